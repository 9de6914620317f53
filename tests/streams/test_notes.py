"""What is noted beside positions fits at any size, and is read again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.worlds.sim.broker import SimBroker, SimLog
from store.clock import SystemClock
from store.config import StreamsConfig
from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams import ordinals
from store.streams.dsl import StreamsBuilder, TimeWindows
from store.streams.task import Task, apply
from store.testing.driver import TestDriver
from store.testing.memory_storage import MemoryStorage
from store.types import IsolationLevel, TopicPartition
from tests.streams.dsl.running import output, pipe

TAKEN = 4096
names = st.text(min_size=1, max_size=60) | st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True)
times = st.integers(0, 2**62)


def read(said: str, operators: Any) -> dict[str, int]:
    found = ordinals.observed_times(said)
    return {name: ordinals.observed_by(name, found) for name in operators}


@given(st.integers(0, 10**6), times, st.dictionaries(names, times, max_size=40))
def test_what_is_noted_is_read_again(ordinal: int, time: int, observed: dict[str, int]) -> None:
    said = ordinals.note(ordinal, time, observed)
    assert len(said) <= TAKEN
    assert (ordinals.noted(said), ordinals.stream_time(said)) == (ordinal, time)
    assert read(said, observed) == observed
    assert ordinals.committed_at(said) is None
    assert ordinals.observed_by("some other operator, of no such name", ordinals.observed_times(said)) == -1


@given(st.dictionaries(names, times, max_size=40), st.dictionaries(names, times, max_size=40))
def test_what_others_had_observed_is_noted_on_whether_it_was_packed_or_not(
    others: dict[str, int], own: dict[str, int]
) -> None:
    found = ordinals.observed_times(ordinals.note(0, 1, others | own))
    left = ordinals.of_others(found, own)
    for _ in range(2):
        left = ordinals.of_others(ordinals.observed_times(ordinals.note(0, 1, left | own)), own)
    assert {name: ordinals.observed_by(name, left) for name in others.keys() - own.keys()} == {
        name: time for name, time in others.items() if name not in own
    }
    assert len(left) == len(others.keys() - own.keys())


@given(st.integers(0, 3000), st.randoms(use_true_random=False), st.integers(0, 62))
def test_it_fits_at_any_size(count: int, random: Any, bits: int) -> None:
    observed = {f"KSTREAM-AGGREGATE-{at:010d}": random.getrandbits(bits) for at in range(count)}
    said = ordinals.note(0, 2**62, observed)
    assert len(said) <= TAKEN
    again = read(said, observed)
    left_out = [name for name, time in again.items() if time == -1]
    assert all(again[name] in (observed[name], -1) for name in observed)
    assert count > 150 or not left_out
    known = [observed[name] for name in observed if again[name] >= 0]
    assert all(observed[name] <= min(known) for name in left_out), "those furthest behind"


@given(
    st.integers(-1, 2**41),
    st.dictionaries(names, times, max_size=5),
    st.dictionaries(names, st.integers(0, 2**50), max_size=20),
)
def test_how_far_changelogs_go_is_read_again_of_the_first_sixteen_beside_the_time_of_the_commit(
    time: int, observed: dict[str, int], ends: dict[str, int]
) -> None:
    inputs = ordinals.note_of_topics({"in": "an id"})
    said = ordinals.note(
        3, time, observed, inputs, ordinals.note_of_changelogs(ends), ordinals.note_of_time(1_700_000_000_000)
    )
    noted = sorted(ends)[:16]
    assert {store: ordinals.last_logged(said, store) for store in ends} == {
        store: ends[store] if store in noted else None for store in ends
    }
    assert ordinals.made_anew(said, {"in": "another id"}) == {"in"}
    assert ordinals.committed_at(said) == 1_700_000_000_000
    if time >= 0:
        assert read(said, observed) == observed


def test_all_that_is_noted_fits_where_there_is_much_of_each() -> None:
    observed = {f"operator {at}": at << 40 for at in range(2_000)}
    ids = {f"topic {at}": f"id {at}" for at in range(100)}
    inputs = ordinals.note_of_topics(ids, [f"topic {at}" for at in range(50, 100)])
    logged = ordinals.note_of_changelogs({f"store {at}": 2**48 for at in range(100)})
    said = ordinals.note(10**6, 2**62, observed, inputs, logged, ordinals.note_of_time(2**62))
    assert len(said) <= TAKEN
    assert ordinals.committed_at(said) == 2**62
    assert ordinals.last_logged(said, "store 0") == 2**48


def topics(inputs: int, stores: int) -> tuple[dict[str, str], list[str]]:
    """The ids of so many inputs and changelogs, and the changelogs."""
    changelogs = [f"app-{at:03}-changelog" for at in range(stores)]
    return {
        topic: f"id of {topic}" for topic in [*[f"in-{at:03}" for at in range(inputs)], *changelogs]
    }, changelogs


@given(st.integers(1, 60), st.integers(0, 60), st.data())
def test_a_topic_that_is_another_one_is_told_however_many_there_are(
    inputs: int, stores: int, data: st.DataObject
) -> None:
    ids, changelogs = topics(inputs, stores)
    said = ordinals.note(0, 5, {}, ordinals.note_of_topics(ids, changelogs))
    another = data.draw(st.sampled_from([*ids]))
    now = {**ids, another: "another id"}
    found = ordinals.made_anew(said, now, changelogs)
    assert another in found
    assert {topic in changelogs for topic in found} == {another in changelogs}
    assert another not in ordinals.noted_as_they_are(said, now, changelogs)
    assert another in ordinals.named(found, now, changelogs)


@given(st.integers(1, 60), st.integers(0, 60))
def test_topics_that_are_as_they_were_are_known_however_many_there_are(inputs: int, stores: int) -> None:
    ids, changelogs = topics(inputs, stores)
    said = ordinals.note(0, 5, {}, ordinals.note_of_topics(ids, changelogs))
    assert ordinals.made_anew(said, ids, changelogs) == set()
    assert ordinals.noted_as_they_are(said, ids, changelogs) == {*ids}


@given(st.integers(1, 60), st.integers(0, 60), st.data())
def test_no_topic_is_another_one_where_some_are_added_or_unknown(
    inputs: int, stores: int, data: st.DataObject
) -> None:
    ids, changelogs = topics(inputs, stores)
    said = ordinals.note_of_topics(ids, changelogs)
    gone = data.draw(st.sets(st.sampled_from([*ids])))
    now = {topic: one for topic, one in ids.items() if topic not in gone} | {"app-a-changelog": "added"}
    assert ordinals.made_anew(ordinals.note(0, 5, {}, said), now, [*changelogs, "app-a-changelog"]) == set()


def test_of_topics_beyond_the_first_forty_an_error_says_that_it_may_be_any() -> None:
    ids, changelogs = topics(39, 3)
    found = {"in-004", *changelogs[1:]}
    assert ordinals.named(found, ids, changelogs) == (
        "in-004; at least one of these 2: app-001-changelog, app-002-changelog"
    )


def test_what_earlier_versions_noted_says_nothing_of_topics_beyond_the_first_forty() -> None:
    ids, changelogs = topics(30, 30)
    said = ordinals.note(0, 5, {}, ordinals.note_of_topics(dict([*ids.items()][:40])))
    now = dict.fromkeys(ids, "another id")
    assert ordinals.made_anew(said, now, changelogs) == {*[*ids][:40]}


def test_three_hundred_operators_that_are_close_together_are_all_remembered() -> None:
    observed = {f"operator {at}": 1_700_000_000_000 + at % 60_000 for at in range(300)}
    assert read(ordinals.note(0, 2**41, observed), observed) == observed


def test_what_older_versions_noted_is_read() -> None:
    said = "sub-topology 7, stream time 20, KSTREAM-AGGREGATE-0000000003 at 18, b at 20"
    assert read(said, ["KSTREAM-AGGREGATE-0000000003", "b", "c"]) == {
        "KSTREAM-AGGREGATE-0000000003": 18,
        "b": 20,
        "c": -1,
    }


def windowed(count: int) -> StreamsBuilder:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    grouped = builder.stream("in").group_by_key()
    for at in range(count):
        table = grouped.windowed_by(TimeWindows.of_size(10)).count(materialized=f"windows-{at}")
        table.to_stream(lambda row, _: row.key).to("out")
    return builder


def test_a_topology_of_a_hundred_windowed_operators_commits() -> None:
    broker = SimBroker()
    application = windowed(100).build()
    (topology,) = application.sub_topologies
    broker.create_topic("in", 1)
    broker.create_topic("out", 1)
    for topic in topology.changelogs.values():
        broker.create_topic(topic, 1)
    broker.append("in", b"k", b"1", partition=0, timestamp=1_700_000_000_000)
    log = SimLog(broker, "a")
    with Task(topology, 0, log, MemoryStorage(), StreamsConfig(), SystemClock()) as task:
        apply(
            task,
            log.reader().read(TopicPartition("in", 0), 0, 10, IsolationLevel.READ_COMMITTED).records,
        )
        task.commit()
    said = log.reader().committed_metadata("app", TopicPartition("in", 0))
    graph: Any = topology.process
    stores = [one.operator.store for one in graph.vertices if one.stores]
    assert read(said, stores) == dict.fromkeys(stores, 1_700_000_000_000)
    assert len(stores) == 100


def test_after_a_restart_a_hundred_operators_drop_what_was_late_before() -> None:
    with TestDriver(windowed(100).build(), {"statestore.cache.max.bytes": 0}) as running:
        pipe(running, [("in", "k", 1, 5), ("in", "k", 1, 25)])
        assert len(output(running, value_serde=LongSerde())) == 200
        running.crash()
        pipe(running, [("in", "k", 1, 6)])
        assert output(running, value_serde=LongSerde()) == []


@pytest.mark.parametrize("later", ["in", "other"])
def test_the_latest_time_counts_of_what_is_noted_beside_several_positions(later: str) -> None:
    """They differ where an input came later than the others, or somebody has set the position of one."""
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    grouped = builder.stream("in").merge(builder.stream("other")).group_by_key()
    table = grouped.windowed_by(TimeWindows.of_size(10)).count(materialized="w", name="words")
    table.to_stream(lambda row, _: row.key).to("out", value_serde=LongSerde())
    (topology,) = builder.build().sub_topologies
    broker = SimBroker()
    for topic in ("in", "other", "out", *topology.changelogs.values()):
        broker.create_topic(topic, 1)
    log = SimLog(broker, "a")
    producer = log.producer("somebody", 60_000)
    producer.init_transactions()
    producer.begin_transaction()
    for topic in ("in", "other"):
        time = 25 if topic == later else 5
        producer.send_offsets("app", {TopicPartition(topic, 0): 0}, ordinals.note(0, time, {"words": time}))
    producer.commit_transaction()
    broker.append("in", b"k", b"1", partition=0, timestamp=6)
    config = StreamsConfig.of({"statestore.cache.max.bytes": 0})
    with Task(topology, 0, log, MemoryStorage(), config, SystemClock()) as task:
        apply(
            task,
            log.reader().read(TopicPartition("in", 0), 0, 10, IsolationLevel.READ_COMMITTED).records,
        )
        task.commit()
    assert log.reader().read(TopicPartition("out", 0), 0, 10, IsolationLevel.READ_COMMITTED).records == []
    said = log.reader().committed_metadata("app", TopicPartition("in", 0))
    assert (ordinals.stream_time(said), read(said, ["w"])) == (25, {"w": 25})


def test_an_operator_with_a_name_of_its_own_is_remembered() -> None:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    grouped = builder.stream("in").group_by_key()
    table = grouped.windowed_by(TimeWindows.of_size(10)).count(materialized="w", name="Words-per_window.10")
    table.to_stream(lambda row, _: row.key).to("out")
    with TestDriver(builder.build(), {"statestore.cache.max.bytes": 0}) as running:
        pipe(running, [("in", "k", 1, 5), ("in", "k", 1, 25)])
        running.crash()
        pipe(running, [("in", "k", 1, 6)])
        assert [time for _, _, time in output(running, value_serde=LongSerde())] == [5, 25]
