"""Joins on the primary key, and tables that are mapped and filtered: every update, as Kafka Streams forwards it."""

from __future__ import annotations

import json
import operator
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams.dsl import (
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
)
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.suppliers import persistent_versioned_key_value_store
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe, results

pytestmark = pytest.mark.requirement("x.4")


def both(one: Any, two: Any) -> str:
    return f"{one}+{two}"


LEFT_RIGHT = [
    ("left", "a", 1, 10),
    ("right", "a", 2, 5),
    ("left", "a", 3, 7),
    ("right", "a", None, 20),
    ("left", "a", None, 30),
    ("right", "a", 4, 40),
    ("left", "a", None, 50),
]


def join(kind: str) -> Callable[[StreamsBuilder], None]:
    def build(b: StreamsBuilder) -> None:
        left, right = b.table("left"), b.table("right")
        joined: KTable = getattr(left, kind)(right, both)
        joined.to_stream().to("out")

    return build


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "join",
            [
                ("a", "1+2", 10),
                ("a", "3+2", 7),
                ("a", None, 20),
                ("a", None, 50),
            ],
        ),
        (
            "left_join",
            [
                ("a", "1+None", 10),
                ("a", "1+2", 10),
                ("a", "3+2", 7),
                ("a", "3+None", 20),
                ("a", None, 30),
                ("a", None, 50),
            ],
        ),
        (
            "outer_join",
            [
                ("a", "1+None", 10),
                ("a", "1+2", 10),
                ("a", "3+2", 7),
                ("a", "3+None", 20),
                ("a", None, 30),
                ("a", "None+4", 40),
                ("a", "None+4", 50),
            ],
        ),
    ],
)
def test_tables_join_on_their_key(kind: str, expected: list[object]) -> None:
    assert results(join(kind), LEFT_RIGHT) == expected


def test_a_join_that_is_kept_forwards_the_same() -> None:
    def build(b: StreamsBuilder) -> None:
        b.table("left").join(b.table("right"), both, materialized="joined").to_stream().to("out")

    with driver(build) as running:
        pipe(running, LEFT_RIGHT[:3])
        assert output(running) == [("a", "1+2", 10), ("a", "3+2", 7)]
        assert running.get_store("joined").get("a") == ("3+2", 7)


def test_a_join_that_is_held_back_forwards_the_last_result() -> None:
    with driver(join("outer_join"), CACHED, auto_commit=False) as running:
        pipe(running, LEFT_RIGHT[:3])
        running.commit()
        assert output(running)[-1] == ("a", "3+2", 7)


BOTH_THERE = [("left", "a", 1, 10), ("right", "a", 2, 10)]


def after_commit(
    build: Callable[[StreamsBuilder], object], before: list[Any], held_back: list[Any], **serdes: Any
) -> list[tuple[Any, Any, int]]:
    """What one commit forwards of updates that were held back, after others."""
    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, before)
        running.commit()
        output(running, **serdes)
        pipe(running, held_back)
        running.commit()
        return output(running, **serdes)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
def test_a_key_that_both_tables_lose_in_one_commit_is_deleted(kind: str, first: int) -> None:
    gone = [("left", "a", None, 20), ("right", "a", None, 20)]
    assert after_commit(join(kind), BOTH_THERE, [gone[first], gone[1 - first]])[-1] == ("a", None, 20)


@pytest.mark.parametrize(
    ("kind", "held_back", "expected"),
    [
        ("join", [("left", "a", 3, 20), ("right", "a", 4, 20)], [("a", "3+4", 20), ("a", "3+4", 20)]),
        ("join", [("left", "a", None, 20), ("right", "a", None, 20)], [("a", None, 20)]),
        ("join", [("left", "a", 3, 20), ("right", "a", None, 20)], [("a", None, 20)]),
        ("join", [("left", "a", None, 20), ("right", "a", 4, 20)], [("a", None, 20)]),
        (
            "left_join",
            [("left", "a", 3, 20), ("right", "a", None, 20)],
            [("a", "3+None", 20), ("a", "3+None", 20)],
        ),
        ("left_join", [("left", "a", None, 20), ("right", "a", 4, 20)], [("a", None, 20)]),
    ],
)
def test_a_commit_forwards_of_both_tables_what_kafka_streams_forwards_and_the_last_deletion(
    kind: str, held_back: list[Any], expected: list[object]
) -> None:
    """All but the second case are what Kafka Streams forwards."""
    assert after_commit(join(kind), BOTH_THERE, held_back) == expected


@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
def test_what_a_group_gave_to_a_join_is_what_is_taken_off_though_both_tables_changed(kind: str) -> None:
    """The joined value decides the group, so an old value that never was would be taken off a group that is not."""

    def build(b: StreamsBuilder) -> None:
        left, right = b.table("left"), b.table("right")
        joined: KTable = getattr(left, kind)(right, both)
        joined.group_by(lambda _, v: (v, v)).count().to_stream().to("out")

    held_back = [("left", "a", 3, 20), ("right", "a", 4, 20)]
    got = after_commit(build, BOTH_THERE, held_back, value_serde=LongSerde())
    assert {key: count for key, count, _ in got} == {"1+2": 0, "3+4": 1}


Steps = list[tuple[str, str, int]]
"""Topic, key, and a number, where 0 leaves nothing of what there was."""


def sum_or_nothing(_: str, number: int, total: int) -> int | None:
    return total + number if number else None


def of_windows(b: StreamsBuilder, topic: str, windows: Any, retention: int | None) -> KTable:
    sums = b.stream(topic).group_by_key().windowed_by(windows)
    said = Materialized(f"{topic}-sums", retention=retention, value_serde=JsonSerde())
    if isinstance(windows, SessionWindows):
        return sums.aggregate(int, sum_or_nothing, lambda _, one, two: one + two, materialized=said)
    return sums.aggregate(int, sum_or_nothing, materialized=said)


def last_results(
    kind: str,
    windows: Any,
    kept: str | None,
    order: str,
    batches: list[list[Steps]],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """What has come of each window, and how many are in each group by then; of each group of steps in one window."""

    def build(b: StreamsBuilder) -> None:
        tables = {topic: of_windows(b, topic, windows, LONG if topic == kept else None) for topic in order}
        two = getattr(tables["a"], kind)(tables["b"], lambda one, other: [one, other])
        three = getattr(two, kind)(tables["c"], lambda one, other: [one, other])
        turned = getattr(tables["c"], kind)(two, lambda one, other: [one, other])
        for name, joined in (("two", two), ("three", three), ("turned", turned)):
            named = joined.to_stream(lambda key, _, name=name: f"{name} {key.key} {key.window}")
            named.to("out", key_serde=StrSerde(), value_serde=JsonSerde())
            groups = joined.group_by(lambda _, value: (json.dumps(value), 1), value_serde=JsonSerde())
            counted = groups.count(materialized=Materialized(f"groups-{name}", value_serde=JsonSerde()))
            counted.to_stream(lambda key, _, name=name: f"{name} {key}").to("out", key_serde=StrSerde())

    start, last = 0, {}
    with driver(build, config, auto_commit=False) as running:
        for batch in batches:
            # Nothing of what was committed is open any more.
            start += 200
            for steps in batch:
                start += 30
                pipe(
                    running,
                    [(topic, key, number, start + at % 5) for at, (topic, key, number) in enumerate(steps)],
                )
            running.commit()
        for key, value, _ in output(running):
            last[key] = value
    return {key: value for key, value in last.items() if value}


LONG = 100_000


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
@given(
    windows=st.sampled_from(
        [TimeWindows.of_size_with_no_grace(10), SessionWindows.of_inactivity_gap_with_no_grace(5)]
    ),
    kept=st.sampled_from([None, None, *"abc"]),
    order=st.permutations("abc").map("".join),
    batches=st.lists(
        st.lists(
            st.lists(
                st.tuples(st.sampled_from("abc"), st.sampled_from("kl"), st.integers(0, 3)),
                min_size=1,
                max_size=6,
            ),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
        max_size=2,
    ),
)
@settings(max_examples=25)
def test_a_join_has_of_windows_that_expire_before_the_commit_what_it_has_without_a_cache(
    kind: str, guarantee: str, windows: Any, kept: str | None, order: str, batches: list[list[Steps]]
) -> None:
    runs = [
        last_results(kind, windows, kept, order, batches, {**config, "processing.guarantee": guarantee})
        for config in (UNCACHED, CACHED)
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
def test_an_hour_of_windows_that_is_read_in_one_go_is_joined(kind: str) -> None:
    def build(b: StreamsBuilder) -> None:
        minutes = TimeWindows.of_size(60_000)
        shown, clicked = (
            b.stream(topic).group_by_key().windowed_by(minutes).count() for topic in ("shown", "clicked")
        )
        joined: KTable = getattr(shown, kind)(clicked, lambda one, other: [one, other])
        joined.to_stream(lambda key, _: str(key.window.start // 60_000)).to("out", key_serde=StrSerde())

    hour = [
        (topic, "ad", 1, minute * 60_000 + second * 1_000)
        for minute in range(60)
        for topic, second in (("shown", 10), ("shown", 20), ("clicked", 30), ("shown", 40))
    ]
    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, hour)
        running.commit()
        assert {key: value for key, value, _ in output(running)} == {
            str(minute): [3, 1] for minute in range(60)
        }


def test_an_update_that_a_join_has_seen_and_that_is_taken_back_is_not_in_the_result() -> None:
    """The left update falls out of the cache, and finds a right one that is held back and deleted before the commit."""
    with driver(join("join"), {"statestore.cache.max.bytes": 2000}, auto_commit=False) as running:
        pipe(running, [("right", "a", 2, 10), ("left", "a", 1, 10)])
        pipe(running, [("left", "b", 1, 10), ("left", "c", 1, 10)])
        pipe(running, [("right", "a", None, 20)])
        running.commit()
        assert output(running) == [("a", "1+2", 10), ("a", "1+2", 10), ("a", None, 20)]


def taken_back_by_the_other_side(b: StreamsBuilder) -> None:
    orders, payments = (
        b.table(name, materialized=Materialized(name, caching=False)) for name in ("left", "right")
    )
    large = payments.filter(lambda _, number: number > 100)
    unpaid = orders.left_join(
        payments, lambda order, paid: order if paid is None else None, materialized="unpaid"
    )
    unpaid.join(large, both).to_stream().to("out")


def changed_into_what_does_not_pass(b: StreamsBuilder) -> None:
    orders, payments = (
        b.table(name, materialized=Materialized(name, caching=False)) for name in ("left", "right")
    )
    large = payments.filter(lambda _, number: number > 100)
    pairs = orders.left_join(payments, lambda order, paid: [order, paid], materialized="pairs")
    pairs.filter(lambda _, pair: pair[1] is None).join(large, both).to_stream().to("out")


def taken_back_while_it_is_settled(b: StreamsBuilder) -> None:
    table = b.table("right")
    early, kept = table.map_values(lambda v: v), table.map_values(lambda v: v, materialized="kept")
    never = early.left_join(kept, lambda one, two: one if two is None else None, materialized="never")
    never.left_join(table, both).to_stream().to("out")


def counted_once_more(b: StreamsBuilder) -> None:
    table = b.table("right", materialized=Materialized("right", caching=False))
    kept = table.map_values(lambda v: v, materialized="kept")
    numbers = table.to_stream().merge(kept.to_stream()).group_by_key().count(materialized="numbers")
    table.join(kept, both).to_stream().to("pairs")
    numbers.filter(lambda _, number: number % 2 == 1).join(table, both).to_stream().to("out")


@pytest.mark.parametrize(
    ("build", "updates"),
    [
        (taken_back_by_the_other_side, [("left", "a", 1, 10), ("right", "a", 900, 20)]),
        (changed_into_what_does_not_pass, [("left", "a", 1, 10), ("right", "a", 900, 20)]),
        (taken_back_while_it_is_settled, [("right", "a", 900, 20)]),
        (counted_once_more, [("right", "a", 900, 20)]),
    ],
)
def test_a_result_of_an_update_that_is_held_back_and_then_changed_is_taken_back(
    build: Callable[[StreamsBuilder], None], updates: list[tuple[str, str, int, int]]
) -> None:
    last = []
    for config in (UNCACHED, CACHED):
        with driver(build, config, auto_commit=False) as running:
            pipe(running, updates)
            running.commit()
            last.append({key: value for key, value, _ in output(running)})
    assert last[0] == last[1] == {"a": None}


def test_an_update_that_a_kept_join_forwards_comes_to_all_before_the_next_of_its_key() -> None:
    """A cache of one row each: what falls out of it is joined with a table that leads back to the kept join."""

    def build(b: StreamsBuilder) -> None:
        left, right = b.table("left"), b.table("right")
        kept = left.left_join(right, both, materialized="kept")
        kept.join(right, both).group_by(lambda _, v: (v, v)).count().to_stream().to("out")
        kept.to_stream().to("kept")

    with driver(build, {"statestore.cache.max.bytes": 900}, auto_commit=False) as running:
        pipe(running, [("left", "a", 0, 1), ("right", "a", 0, 1), ("left", "b", 2, 1)])
        pipe(running, [("left", "a", 2, 1), ("right", "b", 3, 1)])
        running.commit()
        updates = output(running, "kept")
        assert {key: value for key, value, _ in updates} == {"a": "2+0", "b": "2+3"}
        counts = {key: count for key, count, _ in output(running, value_serde=LongSerde())}
        assert {key: count for key, count in counts.items() if count} == {"2+0+0": 1, "2+3+3": 1}


@pytest.mark.parametrize("config", [UNCACHED, CACHED])
def test_a_table_that_is_joined_with_what_is_made_of_it_loses_a_key(config: dict[str, object]) -> None:
    def build(b: StreamsBuilder) -> None:
        table = b.table("in")
        table.join(table.map_values(lambda v: v * 2), both).to_stream().to("out")

    with driver(build, config, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 10)])
        running.commit()
        assert output(running) == [("a", "1+2", 10), ("a", "1+2", 10)]
        pipe(running, [("in", "a", None, 20)])
        running.commit()
        assert output(running) == [("a", None, 20)]


def joined_with_what_is_made_of_it(
    make: Callable[[StreamsBuilder, KStream], KTable],
) -> Callable[[StreamsBuilder], None]:
    """A table that is held back, joined with what is made, and not held back, of its updates and a stream's."""

    def build(b: StreamsBuilder) -> None:
        table = b.table("right", materialized="right")
        made = make(b, table.to_stream())
        made.join(table, lambda one, two: one * 1000 + two).to_stream().to("out")

    return build


def kept_by_the_last(b: StreamsBuilder, updates: KStream) -> KTable:
    return b.stream("left").merge(updates).to_table(materialized=at_once())


def summed(b: StreamsBuilder, updates: KStream) -> KTable:
    return b.stream("left").merge(updates).group_by_key().reduce(operator.add, materialized=at_once())


def summed_by_two(b: StreamsBuilder, updates: KStream) -> KTable:
    def add(_key: str, value: int, total: int) -> int:
        return total + value

    groups = b.stream("left").group_by_key().cogroup(add).cogroup(updates.group_by_key(), add)
    return groups.aggregate(int, materialized=at_once())


def at_once() -> Materialized:
    return Materialized("made").with_caching_disabled()


@pytest.mark.parametrize(
    ("make", "last"), [(kept_by_the_last, 1_001), (summed, 8_001), (summed_by_two, 8_001)]
)
def test_a_table_that_is_held_back_is_joined_with_what_is_made_of_its_updates_and_a_stream(
    make: Callable[[StreamsBuilder, KStream], KTable], last: int
) -> None:
    with driver(joined_with_what_is_made_of_it(make), CACHED, auto_commit=False) as running:
        pipe(running, [("right", "a", 1, 10), ("left", "a", 7, 20)])
        running.commit()
        results = output(running)
        assert results[0] == ("a", 7_001, 20)
        assert results[-1][:2] == ("a", last)


@pytest.mark.parametrize("room", [3_000, 12_000])
def test_what_is_made_of_a_table_is_joined_with_it_however_often_both_fall_out_of_full_caches(
    room: int,
) -> None:
    def build(b: StreamsBuilder) -> None:
        table = b.table("right")
        made = b.stream("left").merge(table.to_stream()).group_by_key().reduce(operator.add)
        made.to_stream().to("made")
        table.to_stream().to("updates")
        made.join(table, lambda one, two: [one, two]).to_stream().to("out")

    chosen = random.Random(0)
    records = [
        (chosen.choice(["left", "right"]), f"k{chosen.randrange(30)}", chosen.randrange(1, 9), 10 + at)
        for at in range(200)
    ]
    with driver(build, {"statestore.cache.max.bytes": room}, auto_commit=False) as running:
        pipe(running, records)
        running.commit()
        right = {key: value for topic, key, value, _ in records if topic == "right"}
        made = {key: value for key, value, _ in output(running, "made")}
        came = [(key, value) for topic, key, value, _ in records if topic == "left"]
        sums = Counter[str]()
        for key, value in came + [(key, value) for key, value, _ in output(running, "updates")]:
            sums[key] += value
        assert made == sums
        joined = {key: value for key, value, _ in output(running)}
        assert joined == {key: [made[key], value] for key, value in right.items()}


class Halved:
    """Forwards each value in two halves, and notes what it is called for meanwhile."""

    meanwhile: list[Any]

    def init(self, context: FixedKeyContext) -> None:
        self._context, self._busy = context, False

    def process(self, record: StreamRecord) -> None:
        if self._busy:
            Halved.meanwhile.append(record.value)
        self._busy = True
        self._context.forward(record.value // 2)
        self._context.forward(record.value - record.value // 2)
        self._busy = False


def test_a_processor_is_not_called_while_it_forwards_what_a_join_looks_for_a_table_with() -> None:
    """The table's updates come to the processor too. What is held back of them waits until it is through."""
    Halved.meanwhile = []

    def halves_summed(b: StreamsBuilder, updates: KStream) -> KTable:
        halves = b.stream("left").merge(updates).process_values(Halved)
        return halves.group_by_key().reduce(operator.add, materialized=at_once())

    with driver(joined_with_what_is_made_of_it(halves_summed), CACHED, auto_commit=False) as running:
        pipe(running, [("right", "a", 2, 10), ("left", "a", 8, 20)])
        running.commit()
        assert not Halved.meanwhile
        assert [value for _, value, _ in output(running)] == [4_002, 8_002, 9_002, 10_002, 10_002]


def test_a_record_that_waited_for_a_partner_is_forwarded_once_where_it_is_joined_with_a_table_that_leads_back() -> (
    None
):
    """The update that is held back comes to the join of streams with the time that has closed the record's window."""

    def unpaired(b: StreamsBuilder, updates: KStream) -> KTable:
        windows = JoinWindows.of_time_difference(10)
        stream = b.stream("left").merge(updates)
        alone = stream.left_join(b.stream("other"), lambda one, two: one if two is None else None, windows)
        alone.to("alone")
        return alone.group_by_key().reduce(operator.add, materialized=at_once())

    with driver(joined_with_what_is_made_of_it(unpaired), CACHED, auto_commit=False) as running:
        pipe(running, [("left", "a", 7, 10), ("right", "a", 1, 100), ("left", "b", 2, 100)])
        running.commit()
        assert output(running, "alone") == [("a", 7, 10)]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_no_record_is_passed_over_where_a_table_is_joined_with_what_is_made_of_its_updates(
    guarantee: str,
) -> None:
    handled: dict[str, object] = {
        "processing.guarantee": guarantee,
        "processing.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    with driver(joined_with_what_is_made_of_it(summed), handled | CACHED, auto_commit=False) as running:
        pipe(running, [("right", "a", 1, 10), ("left", "a", 7, 20)])
        running.commit()
        assert not running.read_output("dead")
        assert running.get_store("made").get("a").value == 8


def test_the_result_of_a_join_can_be_joined_and_grouped_again() -> None:
    def build(b: StreamsBuilder) -> None:
        left, right, third = b.table("left"), b.table("right"), b.table("third")
        joined = left.join(right, lambda one, two: one + two).left_join(third, lambda s, t: s + (t or 0))
        total = joined.group_by(lambda _, v: ("all", v))
        total.reduce(lambda agg, v: agg + v, lambda agg, v: agg - v).to_stream().to("out")

    got = results(
        build,
        [
            ("left", "a", 1, 1),
            ("right", "a", 2, 1),
            ("left", "b", 10, 1),
            ("right", "b", 20, 1),
            ("third", "a", 100, 1),
            ("left", "b", None, 1),
        ],
    )
    assert [value for _, value, _ in got] == [3, 33, 133, 103]


def test_a_filtered_table_deletes_what_no_longer_passes() -> None:
    def build(b: StreamsBuilder) -> None:
        b.table("in").filter(lambda _, v: v > 1).to_stream().to("out")

    got = results(build, [("in", "a", 2, 1), ("in", "a", 1, 2), ("in", "b", 0, 3), ("in", "a", None, 4)])
    assert got == [("a", 2, 1), ("a", None, 2), ("b", None, 3), ("a", None, 4)]


def test_a_filtered_table_that_knows_old_values_forwards_no_needless_deletion() -> None:
    def build(b: StreamsBuilder) -> None:
        table = b.table("in").filter(lambda _, v: v > 1)
        table.to_stream().to("out")
        table.group_by(lambda k, v: (k, v)).count()

    got = results(build, [("in", "a", 2, 1), ("in", "a", 1, 2), ("in", "b", 0, 3), ("in", "a", None, 4)])
    assert got == [("a", 2, 1), ("a", None, 2)]


def test_filter_not_keeps_the_other_rows() -> None:
    def build(b: StreamsBuilder) -> None:
        b.table("in").filter_not(lambda _, v: v > 1, materialized="small").to_stream().to("out")

    with driver(build) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 2, 2)])
        assert output(running) == [("a", 1, 1), ("a", None, 2)]
        assert running.get_store("small").get("a") is None


def test_a_mapped_table_maps_values_and_keeps_deletions() -> None:
    def build(b: StreamsBuilder) -> None:
        b.table("in").map_values(lambda k, v: f"{k}{v}", with_key=True).to_stream().to("out")

    assert results(build, [("in", "a", 2, 1), ("in", "a", None, 2)]) == [("a", "a2", 1), ("a", None, 2)]


def test_a_join_looks_into_a_table_that_is_mapped_and_not_kept() -> None:
    def build(b: StreamsBuilder) -> None:
        table = b.table("right").map_values(lambda v: -v).filter(lambda _, v: v < -1)
        b.stream("left").join_table(table, both).to("out")

    got = results(
        build,
        [("right", "a", 1, 1), ("left", "a", 1, 2), ("right", "a", 2, 3), ("left", "a", 2, 1)],
    )
    assert got == [("a", "2+-2", 1)]


def test_a_stream_joins_what_the_table_has_now() -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("left").join_table(b.table("right"), both).to("out")

    got = results(
        build,
        [
            ("left", "a", 1, 1),
            ("right", "a", 2, 9),
            ("left", "a", 3, 3),
            ("right", "a", None, 4),
            ("left", "a", 4, 5),
            ("left", "a", None, 6),
        ],
    )
    assert got == [("a", "3+2", 3)]


def test_a_left_join_has_every_record_with_a_value() -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("left").left_join_table(b.table("right"), both).to("out")

    got = results(build, [("left", "a", 1, 1), ("left", None, 1, 1), ("left", "a", None, 2)])
    assert got == [("a", "1+None", 1), (None, "1+None", 1)]


@pytest.mark.parametrize("grace", [None, 5])
@pytest.mark.parametrize("left", [False, True])
def test_a_joiner_of_a_stream_and_a_table_may_take_the_key(left: bool, grace: int | None) -> None:
    def build(b: StreamsBuilder) -> None:
        prices = persistent_versioned_key_value_store("prices", 10)
        table = b.table("right", materialized=Materialized.as_(prices) if grace else None)
        stream = b.stream("left")
        join = stream.left_join_table if left else stream.join_table
        join(table, lambda *found: list(found), with_key=True, grace=grace).to("out")

    got = results(
        build, [("right", "a", 2, 1), ("left", "a", 3, 2), ("left", "b", 4, 8), ("left", "z", 0, 19)]
    )
    assert got[: 1 + left] == [("a", ["a", 3, 2], 2)] + [("b", ["b", 4, None], 8)] * left


@pytest.mark.parametrize("left", [False, True])
def test_a_joiner_of_a_stream_and_a_global_table_may_take_the_stream_s_key(left: bool) -> None:
    def build(b: StreamsBuilder) -> None:
        rates = b.global_table("rates")
        stream = b.stream("in")
        join = stream.left_join_global if left else stream.join_global
        join(rates, lambda _, currency: currency, lambda *found: list(found), with_key=True).to("out")

    with driver(build) as running:
        pipe(running, [("rates", "EUR", 2, 1), ("in", "a", "EUR", 3), ("in", "b", "USD", 4)])
        expected = [("a", ["a", "EUR", 2], 3), ("b", ["b", "USD", None], 4)]
        assert output(running) == expected[: 1 + left]


def test_a_stream_with_new_keys_is_repartitioned_before_it_joins() -> None:
    def build(b: StreamsBuilder) -> None:
        stream = b.stream("left").select_key(lambda _, v: v)
        stream.join_table(b.table("right"), both).to("out")

    with driver(build) as running:
        pipe(running, [("right", "x", 2, 1), ("left", "a", "x", 2)])
        assert output(running) == [("x", "x+2", 2)]
        assert len(running.application.sub_topologies) == 2


def test_a_stream_sees_updates_of_a_table_that_are_held_back() -> None:
    def build(b: StreamsBuilder) -> None:
        stream = b.stream("in")
        counts = stream.group_by_key().count()
        stream.join_table(counts, both).to("out")

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 2, 2)])
        running.commit()
        assert output(running) == [("a", "1+1", 1), ("a", "2+2", 2)]


def test_a_stream_looks_up_a_global_table_by_a_key_of_its_choice() -> None:
    def build(b: StreamsBuilder) -> None:
        table = b.global_table("rates")
        stream = b.stream("in")
        stream.join_global(table, lambda _, v: v["currency"], lambda v, rate: v["n"] * rate).to("out")
        stream.left_join_global(table, lambda _, v: v["currency"], lambda v, rate: [v["n"], rate]).to("all")

    with driver(build) as running:
        pipe(running, [("rates", "eur", 2, 1), ("in", "a", {"n": 3, "currency": "eur"}, 5)])
        pipe(running, [("in", "a", {"n": 3, "currency": "usd"}, 6)])
        assert output(running) == [("a", 6, 5)]
        assert output(running, "all") == [("a", [3, 2], 5), ("a", [3, None], 6)]


def test_a_global_table_follows_several_records_at_once_that_its_own_application_has_written() -> None:
    def build(b: StreamsBuilder) -> None:
        rates = b.global_table("rates")
        stream = b.stream("in")
        stream.flat_map(lambda key, v: [(key, v), (f"{key}-half", v / 2)]).to("rates")
        stream.join_global(rates, lambda key, _: f"{key}-half", both).to("out")

    with driver(build) as running:
        pipe(running, [("in", "eur", 2, 1), ("in", "eur", 4, 2), ("in", "eur", 6, 3)])
        assert output(running) == [("eur", "4+1.0", 2), ("eur", "6+2.0", 3)]


def test_a_stream_becomes_a_table() -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("in").map_values(lambda v: v).to_table(materialized="last").to_stream().to("out")

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 2, 2), ("in", "b", None, 3)])
        running.commit()
        assert output(running) == [("a", 2, 2)]
        assert running.get_store("last").get("a") == (2, 2)


def test_a_stream_with_new_keys_becomes_a_table_by_way_of_a_repartition_topic() -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("in").select_key(lambda _, v: v).to_table(name="mine").to_stream().to("out")

    with driver(build) as running:
        pipe(running, [("in", "a", "x", 1)])
        assert output(running) == [("x", "x", 1)]
        assert output(running, "app-mine-repartition") == [("x", "x", 1)]


def test_a_table_is_kept_only_where_somebody_needs_it() -> None:
    b = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    b.table("in").to_stream().to("out")
    (topology,) = b.build().sub_topologies
    assert topology.store_names == ()


def test_updates_of_a_table_can_be_streamed_under_other_keys() -> None:
    def build(b: StreamsBuilder) -> None:
        b.table("in").to_stream(lambda k, v: f"{k}{v}").to("out")

    assert results(build, [("in", "a", 1, 1)]) == [("a1", 1, 1)]


def test_a_joined_table_that_is_not_kept_has_the_later_time_of_both_its_sides() -> None:
    def build(b: StreamsBuilder) -> None:
        both = b.table("left").join(b.table("right"), lambda one, two: [one, two])
        both.join(b.table("third"), lambda pair, three: [*pair, three]).to_stream().to("out")

    got = results(build, [("left", "k", 1, 1), ("right", "k", 2, 9), ("third", "k", 3, 3)])
    assert got == [("k", [1, 2, 3], 9)]
