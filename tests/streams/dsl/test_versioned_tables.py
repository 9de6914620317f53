"""Versioned tables (KIP-914), and joins that wait for their late updates (KIP-923), by hand from Kafka Streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import ConfigError
from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import (
    DslKeyValueParams,
    DslStoreSuppliers,
    KTable,
    Materialized,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from store.suppliers import StoreSupplier, persistent_versioned_key_value_store
from store.types import Record
from tests.streams.dsl.crashing import CRASH, FATES, Input, run
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe, results

EACH = pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["uncached", "cached"])
HISTORY = 100
PASSING_OVER: dict[str, object] = UNCACHED | {
    "processing.exception.handler": "continue",
    "errors.dead.letter.queue.topic.name": "dead",
}


def versioned(name: str = "t", history: int = HISTORY) -> Materialized:
    return Materialized.as_(persistent_versioned_key_value_store(name, history))


def pair(one: Any, two: Any) -> list[Any]:
    return [one, two]


def looked_up(
    *, left: bool = False, of: Callable[[KTable], KTable] = lambda table: table, **options: Any
) -> Any:
    def build(made: StreamsBuilder) -> None:
        table, stream = made.table("table", materialized=versioned()), made.stream("stream")
        (stream.left_join_table if left else stream.join_table)(of(table), pair, **options).to("out")

    return build


PRICES = [("table", "k", 1, 10), ("table", "k", 3, 30), ("table", "k", 2, 20), ("table", "k", None, 40)]


@EACH
def test_a_record_is_joined_with_what_the_table_had_at_its_time(config: dict[str, object]) -> None:
    trades = [("stream", "k", "x", time) for time in (5, 10, 25, 20, 39, 40, 31)]
    assert results(looked_up(), [*PRICES, *trades], config) == [
        ("k", ["x", 1], 10),
        ("k", ["x", 2], 25),
        ("k", ["x", 2], 20),
        ("k", ["x", 3], 39),
        ("k", ["x", 3], 31),
    ]
    assert [value for _, value, _ in results(looked_up(left=True), [*PRICES, *trades], config)] == [
        *[["x", None], ["x", 1], ["x", 2], ["x", 2], ["x", 3], ["x", None], ["x", 3]]
    ]


def test_a_moment_beyond_the_history_has_nothing() -> None:
    records = [
        ("table", "k", 1, 10),
        ("table", "k", 2, 20),
        ("table", "other", 3, 130),
        ("stream", "k", "x", 15),
    ]
    assert results(looked_up(left=True), records) == [("k", ["x", None], 15)]


def test_an_update_that_is_too_late_is_dropped_and_goes_no_further() -> None:
    with driver(lambda made: made.table("table", materialized=versioned()).to_stream().to("out")) as running:
        pipe(running, [("table", "k", 1, 500), ("table", "k", 2, 399), ("table", "k", 3, 400)])
        assert output(running) == [("k", 1, 500), ("k", 3, 400)]


def test_an_update_out_of_order_goes_no_further_where_its_table_is_grouped_and_is_no_dropped_record() -> None:
    def grouped(made: StreamsBuilder) -> None:
        table = made.table("table", materialized=versioned())
        summed = table.group_by(lambda key, value: (key, value)).reduce(int.__add__, int.__sub__)
        summed.to_stream().to("out")

    with driver(grouped) as running:
        pipe(running, [("table", "k", 1, 500), ("table", "k", 2, 450)])
        assert output(running) == [("k", 1, 500)]
        assert {one["dropped-records-total"] for one in running.metrics.tasks_as_dict().values()} == {0}


def test_a_table_that_is_made_of_it_is_versioned_too_unless_it_is_kept_otherwise() -> None:
    trades = [("stream", "k", "x", 25)]
    for of in (
        lambda table: table.map_values(lambda value: value * 10),
        lambda table: table.map_values(lambda value: value * 10, materialized=versioned("u")),
        lambda table: table.transform_values(Tenfold),
        lambda table: table.filter(lambda _, value: value < 9).map_values(lambda value: value * 10),
    ):
        assert results(looked_up(of=of), [*PRICES[:3], *trades]) == [("k", ["x", 20], 25)], of
    kept = looked_up(of=lambda table: table.map_values(lambda value: value * 10, materialized="u"))
    assert results(kept, [*PRICES[:2], *trades]) == [("k", ["x", 30], 25)]


class Tenfold:
    def transform(self, _key: Any, value: Any) -> Any:
        return None if value is None else value * 10


@EACH
def test_what_is_outdated_changes_no_group_and_no_join_and_is_forwarded_all_the_same(
    config: dict[str, object],
) -> None:
    def build(made: StreamsBuilder) -> None:
        table, other = made.table("table", materialized=versioned()), made.table("other")
        table.to_stream().to("out")
        table.filter(lambda _, value: value > 1).to_stream().to("filtered")
        grouped = table.group_by(lambda key, value: (key, value))
        grouped.reduce(lambda a, b: a + b, lambda a, b: a - b).to_stream().to("sums")
        table.join(other, pair).to_stream().to("joined")
        table.left_join(other, lambda _: "k", pair).to_stream().to("foreign")
        other.left_join(table, lambda _: "k", pair).to_stream().to("foreign2")

    with driver(build, config) as running:
        pipe(running, [("other", "k", "o", 1), *PRICES[:3]])
        assert output(running) == [("k", 1, 10), ("k", 3, 30), ("k", 2, 20)]
        assert [value for _, value, _ in output(running, "filtered")] == [None, 3, 2]
        assert [value for _, value, _ in output(running, "sums")] == [1, 3]
        assert [value for _, value, _ in output(running, "joined")] == [[1, "o"], [3, "o"]]
        assert [value for _, value, _ in output(running, "foreign")] == [[1, "o"], [3, "o"]]
        assert [value for _, value, _ in output(running, "foreign2")] == [["o", None], ["o", 1], ["o", 3]]


def test_old_values_are_those_of_the_newest_version() -> None:
    def build(made: StreamsBuilder) -> None:
        table = made.table("table", materialized=versioned())
        grouped = table.group_by(lambda _key, value: (f"n{value}", value))
        grouped.count().to_stream().to("out", value_serde=LongSerde())

    found = results(build, PRICES, value_serde=LongSerde())
    assert [(key, count) for key, count, _ in found] == [("n1", 1), ("n1", 0), ("n3", 1), ("n3", 0)]


def test_aggregates_and_joins_can_be_kept_in_versions() -> None:
    def build(made: StreamsBuilder) -> None:
        counts = made.stream("in").group_by_key().count(materialized=versioned("counts"))
        made.stream("asked").join_table(counts, pair).to("out")
        joined = made.table("one").join(made.table("two"), pair, materialized=versioned("joined"))
        made.stream("asked2").join_table(joined, pair).to("out2")
        table = made.stream("to").to_table(materialized=versioned("to-table"))
        made.stream("asked3").join_table(table, pair).to("out3")

    with driver(build, CACHED) as running:
        pipe(running, [("in", "k", "x", time) for time in (10, 20, 30)])
        pipe(running, [("asked", "k", "?", time) for time in (9, 15, 20, 99)])
        assert [value for _, value, _ in output(running)] == [["?", 1], ["?", 2], ["?", 3]]
        pipe(
            running,
            [("one", "k", "a", 10), ("two", "k", "b", 20), ("one", "k", "c", 30), ("asked2", "k", "?", 25)],
        )
        assert [value for _, value, _ in output(running, "out2")] == [["?", ["a", "b"]]]
        pipe(running, [("to", "k", 1, 10), ("to", "k", 2, 20), ("asked3", "k", "?", 15)])
        assert [value for _, value, _ in output(running, "out3")] == [["?", 1]]


def test_versions_are_there_after_a_crash_and_after_a_restore() -> None:
    with driver(looked_up()) as running:
        pipe(running, PRICES)
        running.crash()
        pipe(running, [("stream", "k", "x", 25)])
        running._storage = type(running._storage)()
        running.crash()
        pipe(running, [("stream", "k", "y", 15)])
        assert output(running) == [("k", ["x", 2], 25), ("k", ["y", 1], 15)]


def test_what_cannot_be_versioned_is_refused() -> None:
    made = StreamsBuilder("app")
    table = made.table("table", materialized=versioned())
    with pytest.raises(ConfigError, match="a table that is not versioned"):
        table.filter(lambda *_: True).suppress(Suppressed.until_time_limit(5))
    windows = made.stream("in").group_by_key().windowed_by(TimeWindows.of_size(5))
    with pytest.raises(ValueError, match="needs a WindowSupplier"):
        windows.count(materialized=versioned("w"))


class Versions(DslStoreSuppliers):
    def key_value_store(self, params: DslKeyValueParams) -> StoreSupplier[Any]:
        return persistent_versioned_key_value_store(params.name, HISTORY)


def test_suppliers_of_all_stores_make_no_versioned_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"no versioned store, unless KTABLE-SOURCE-.* by Materialized\.as_"
    ):
        driver(lambda made: made.table("in", materialized="t"), {"dsl.store.suppliers.class": Versions})


# -- with a grace period ---------------------------------------------------------------------------------------------


def steps(build: Any, records: Sequence[Any], config: Any = UNCACHED) -> list[Any]:
    with driver(build, config) as running:
        found = []
        for record in records:
            pipe(running, [record])
            found.append(output(running))
        return found


@EACH
def test_a_record_waits_until_the_stream_time_is_the_grace_beyond_it(config: dict[str, object]) -> None:
    assert steps(
        looked_up(grace=10),
        [
            ("table", "k", "a", 1),
            ("stream", "k", 1, 5),
            ("table", "k", "b", 4),  # Late, and in time all the same.
            ("stream", "k", 2, 14),
            ("table", "k", "c", 60),  # The table's time lets nothing go.
            ("stream", "k", 3, 15),  # 15 - 10: the first one.
            ("stream", "k", 4, 3),  # Later than that: at once.
            ("stream", "k", 5, 5),  # Just not late, and due.
            ("stream", "other", 6, 40),
        ],
        config,
    ) == [
        *[[], [], [], [], []],
        [("k", [1, "b"], 5)],
        [("k", [4, "a"], 3)],
        [("k", [5, "b"], 5)],
        [("k", [2, "b"], 14), ("k", [3, "b"], 15)],
    ]


def test_those_of_one_time_go_by_their_keys_and_then_as_they_came() -> None:
    records = [("stream", "b", 1, 5), ("stream", "a", 2, 5), ("stream", "b", 3, 5), ("stream", "z", 4, 4)]
    found = results(looked_up(left=True, grace=10), [*records, ("stream", "x", 0, 50)])
    assert [(key, value[0]) for key, value, _ in found] == [("z", 4), ("a", 2), ("b", 1), ("b", 3)]


def test_those_of_one_time_and_key_go_together_beside_a_key_that_begins_with_theirs() -> None:
    records = [("stream", "k", 1, 5), ("stream", "k\0", 2, 5), ("stream", "k", 3, 5), ("stream", "x", 0, 50)]
    found = results(looked_up(left=True, grace=10), records)
    assert [(key, value[0]) for key, value, _ in found] == [("k", 1), ("k", 3), ("k\0", 2)]


def test_a_record_that_waits_is_written_once_however_many_wait_with_its_key_and_time() -> None:
    many = 2_000
    with driver(looked_up(left=True, grace=10), UNCACHED) as running:
        for number in range(many):
            if number == many // 2:
                running.crash()
            pipe(running, [("stream", "k", number, 5)])
        changes = list(running.log.records("app-KSTREAM-LEFTJOIN-0000000003-Buffer-changelog"))
        assert len(changes) == many
        assert max(len(change.value or b"") for change in changes) < 100
        pipe(running, [("stream", "k", many, 15)])
        assert output(running) == [("k", [number, None], 5) for number in range(many)]


def test_without_grace_every_record_goes_at_once() -> None:
    records = [("table", "k", "a", 1), ("stream", "k", 1, 5), ("stream", "k", 2, 3), ("stream", "k", 3, 5)]
    assert [value for _, value, _ in results(looked_up(grace=0), records)] == [[1, "a"], [2, "a"], [3, "a"]]


def test_a_left_join_has_nothing_to_wait_for_without_a_key_and_drops_what_has_no_value() -> None:
    with driver(looked_up(left=True, grace=10)) as running:
        pipe(running, [("stream", None, 1, 5), ("stream", "k", None, 6)])
        assert output(running) == [(None, [1, None], 5)]
        assert running.metrics.tasks_as_dict()["0_0"]["dropped-records-total"] == 1


def test_what_lets_others_go_counts_only_where_it_waits_itself() -> None:
    found = steps(
        looked_up(left=True, grace=10),
        [("stream", "k", 1, 5), ("stream", "k", None, 90), ("stream", None, 2, 91)],
    )
    assert found == [[], [], [(None, [2, None], 91)]]


def test_a_record_comes_out_with_its_headers_and_where_it_came_from() -> None:
    seen: list[Any] = []

    class Noting:
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: Any) -> None:
            seen.append((self.context.record_metadata.offset, record.timestamp, record.headers))

    def build(made: StreamsBuilder) -> None:
        table = made.table("table", materialized=versioned())
        joined = made.stream("stream").left_join_table(table, pair, grace=10)
        joined.process(Noting)
        joined.group_by_key().count(materialized="counts")

    with driver(build) as running:
        running.pipe_input("stream", "k", b"1", 5, (("h", b"x"), ("n", None)))
        running.crash()
        running.pipe_input("stream", "k", b"2", 40, (("h", b"y"),))
        assert seen == [(0, 5, (("h", b"x"), ("n", None)))]
        (change,) = running.log.records("app-counts-changelog")
        assert change.timestamp == 5


def picky(made: StreamsBuilder) -> None:
    """A join that cannot join a zero."""
    table = made.table("table", materialized=versioned())
    made.stream("stream").left_join_table(table, lambda value, _: 1 // value, grace=10).to("out")


def test_an_error_is_blamed_on_the_record_that_is_joined() -> None:
    with driver(picky, PASSING_OVER, auto_commit=False) as running:
        pipe(running, [("stream", "k", 0, 5), ("stream", "k", 1, 40), ("stream", "k", 1, 60)])
        running.commit()
        assert output(running) == [("k", 1, 40)]
        (dead,) = running.read_output("dead", StrSerde(), JsonSerde())
        assert (dead.key, dead.value, dead.timestamp) == ("k", 0, 5)
    with driver(picky, PASSING_OVER) as running:
        pipe(running, [("stream", "k", 0, 5)])
        # What it came with is committed: it is passed over when it is let go.
        pipe(running, [("stream", "k", 1, 40), ("stream", "k", 1, 60)])
        assert output(running) == [("k", 1, 40)]
        (dead,) = running.read_output("dead", StrSerde(), JsonSerde())
        assert (dead.key, dead.value, dead.timestamp) == ("k", 0, 5)


@pytest.mark.parametrize("crashes", [False, True], ids=["goes on", "crashes"])
def test_at_least_once_one_that_is_passed_over_waits_no_more_and_keeps_nobody_back(*, crashes: bool) -> None:
    config = PASSING_OVER | {"processing.guarantee": "at_least_once"}
    waiting = [("stream", "k", value, 5) for value in (1, 0, 1)]
    with driver(picky, config, auto_commit=False) as running:
        pipe(running, [*waiting, ("stream", "l", 1, 6), ("stream", "k", 1, 40)])
        if crashes:
            running.commit()
            running.crash()
        pipe(running, [("stream", "k", 1, 60)])
        running.commit()
        assert output(running) == [("k", 1, 5), ("k", 1, 5), ("l", 1, 6), ("k", 1, 40)]
        (dead,) = running.read_output("dead", StrSerde(), JsonSerde())
        assert (dead.key, dead.value, dead.timestamp) == ("k", 0, 5)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_the_record_that_lets_one_go_which_is_passed_over_goes_on_everywhere(guarantee: str) -> None:
    def build(made: StreamsBuilder) -> None:
        picky(made)
        made.stream("stream").to("copied")

    config = PASSING_OVER | {"processing.guarantee": guarantee}
    with driver(build, config, auto_commit=False) as running:
        pipe(running, [("stream", "k", 0, 5), ("stream", "l", 2, 30), ("stream", "m", 3, 60)])
        running.commit()
        copied = [
            (record.key, record.value) for record in running.read_output("copied", StrSerde(), JsonSerde())
        ]
        # Under at least once the one that raised has been copied before.
        assert copied == [*([("k", 0)] if guarantee == "at_least_once" else []), ("l", 2), ("m", 3)]
        assert output(running) == [("l", 0, 30)]
        (dead,) = running.read_output("dead", StrSerde(), JsonSerde())
        assert (dead.key, dead.value) == ("k", 0)


def test_exactly_once_the_dead_letter_of_one_that_waited_is_the_record_as_it_was_read() -> None:
    """And nothing else is left of it, though what an operator made of it is what waited."""

    def build(made: StreamsBuilder) -> None:
        table, stream = made.table("table", materialized=versioned()), made.stream("stream")
        stream.to("copied")
        halved = stream.map_values(lambda value: value // 2)
        halved.left_join_table(table, lambda value, _: 1 // value, grace=10).to("out")

    with driver(build, PASSING_OVER, auto_commit=False) as running:
        pipe(running, [("stream", "k", 1, 5), ("stream", "l", 2, 30), ("stream", "m", 4, 60)])
        running.commit()
        assert [record.value for record in running.read_output("copied", StrSerde(), JsonSerde())] == [2, 4]
        (dead,) = running.read_output("dead", StrSerde(), JsonSerde())
        assert (dead.key, dead.value, dead.timestamp) == ("k", 1, 5)


def test_the_store_is_called_after_the_join_and_made_as_others() -> None:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    looked_up(grace=10)(made)
    (topology,) = made.build().sub_topologies
    assert topology.store_names == ("t", "KSTREAM-JOIN-0000000003-Buffer")
    assert "app-KSTREAM-JOIN-0000000003-Buffer-changelog" in topology.changelogs.values()
    assert not topology.suppliers()["t"].cached


def test_a_grace_period_that_the_table_does_not_allow_is_refused() -> None:
    made = StreamsBuilder("app")
    stream = made.stream("stream")
    with pytest.raises(ConfigError, match="grace=5 is not allowed: a versioned table"):
        stream.join_table(made.table("plain", materialized="plain"), pair, grace=5)
    with pytest.raises(ConfigError, match="at most its history retention, 100 ms"):
        stream.left_join_table(
            made.table("table", materialized=versioned()).filter(lambda *_: True), pair, grace=101
        )


# -- crashes ---------------------------------------------------------------------------------------------------------

GRACE = 4


def application() -> Application:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    table = made.table("table", materialized=versioned(history=6))
    made.stream("stream").left_join_table(table, lambda a, b: f"{a}{b}", grace=GRACE).to("out")
    return made.build()


def values(records: Sequence[Record]) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(record.key, record.value, record.timestamp) for record in records]


def by_hand(records: Sequence[Input]) -> list[tuple[bytes | None, bytes | None, int]]:
    versions: dict[bytes, dict[int, bytes | None]] = {}
    table_time = stream_time = -1
    waiting: list[tuple[int, bytes, int, bytes]] = []
    out: list[tuple[bytes | None, bytes | None, int]] = []

    def join(key: bytes, value: bytes, time: int) -> None:
        found = versions.get(key, {})
        since = max((at for at in found if at <= time), default=None)
        newest = since is not None and since == max(found)
        reached = newest or time >= table_time - 6
        there = None if since is None or not reached else found[since]
        out.append((key, value + (b"None" if there is None else there), time))

    for number, (topic, key, value, time) in enumerate(records):
        assert key is not None
        if topic == "table":
            if time >= table_time - 6:
                table_time = max(table_time, time)
                versions.setdefault(key, {})[time] = value
            continue
        assert value is not None
        if time < stream_time - GRACE:
            join(key, value, time)
            continue
        stream_time = max(stream_time, time)
        waiting.append((time, key, number, value))
        for one in sorted(waiting):
            if one[0] <= stream_time - GRACE:
                waiting.remove(one)
                join(one[1], one[3], one[0])
    return out


TIMES = st.integers(1, 20)
KEYS = st.sampled_from([b"a", b"a\0\0\0\0", b"a\0\0\0\1\0", b"ab", b"b"])
"""Between the rows of the first one, which end in a number, lie those of others."""
RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just("table"), KEYS, st.sampled_from([b"1", b"2", None]), TIMES),
        st.tuples(st.just("stream"), KEYS, st.sampled_from([b"x", b"y"]), TIMES),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(RECORDS, st.lists(FATES, max_size=30))
def test_whatever_crashes_each_record_is_joined_once_with_what_was_there(
    records: list[Input], fates: list[str]
) -> None:
    assert values(run(application(), records, fates)) == by_hand(records)


def test_one_that_waits_outlives_a_crash_after_each_record() -> None:
    records: list[Input] = [
        ("table", b"a", b"1", 1),
        ("stream", b"a", b"x", 3),
        ("table", b"a", b"2", 2),
        ("stream", b"b", b"y", 7),
    ]
    fates = ["commit", CRASH, "commit", CRASH, CRASH, "commit", CRASH]
    assert values(run(application(), records, fates)) == [(b"a", b"x2", 3)]
