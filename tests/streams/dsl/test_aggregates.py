"""Aggregates of streams and tables: values, times, headers, and what is dropped, as Kafka Streams has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from store.errors import SerdeError
from store.serdes import FloatSerde, JsonSerde, LongSerde, StrSerde
from store.streams.dsl import Materialized, SessionWindows, StreamsBuilder, TimeWindows
from store.streams.dsl.operators import ChangeSerde
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe, results

pytestmark = pytest.mark.requirement("x.4")


@pytest.mark.parametrize(
    ("serde", "groups"),
    [(FloatSerde(), [0.0, -0.0]), (JsonSerde(), [[1], [True]]), (JsonSerde(), [{"x": 1}, {"x": 1.0}])],
)
def test_groups_whose_keys_are_equal_and_have_other_bytes_are_two(serde: Any, groups: list[Any]) -> None:
    first, second = groups

    def build(b: StreamsBuilder) -> None:
        table = b.table("in", materialized="rows").group_by(lambda _, at: (groups[at], at), key_serde=serde)
        table.count(materialized="counts").to_stream().to("out", key_serde=serde, value_serde=LongSerde())

    with driver(build) as running:
        pipe(running, [("in", "a", 0, 1), ("in", "b", 0, 2), ("in", "a", 1, 3)])
        latest = {record.key: record.value for record in running.log.records("out")}
        one = LongSerde().serialize(1)
        assert latest == {serde.serialize(first): one, serde.serialize(second): one}


def counted(b: StreamsBuilder) -> None:
    b.stream("in").group_by_key().count().to_stream().to("out", value_serde=LongSerde())


def test_count_counts_each_key() -> None:
    got = results(counted, [("in", "a", 1, 1), ("in", "b", 1, 2), ("in", "a", 1, 3)], value_serde=LongSerde())
    assert got == [("a", 1, 1), ("b", 1, 2), ("a", 2, 3)]


def test_records_without_key_or_value_are_dropped_and_counted_as_dropped() -> None:
    with driver(counted) as running:
        pipe(running, [("in", None, 1, 1), ("in", "a", None, 2), ("in", "a", 1, 3)])
        assert output(running, value_serde=LongSerde()) == [("a", 1, 3)]
        metrics = running.metrics.tasks_as_dict()["0_0"]
        assert metrics["dropped-records-total"] == 2


def test_an_aggregate_has_the_latest_time_of_its_records() -> None:
    got = results(counted, [("in", "a", 1, 9), ("in", "a", 1, 3)], value_serde=LongSerde())
    assert got == [("a", 1, 9), ("a", 2, 9)]


def test_the_first_value_is_the_first_aggregate_of_reduce() -> None:
    calls: list[tuple[int, int]] = []

    def build(b: StreamsBuilder) -> None:
        def add(one: int, two: int) -> int:
            calls.append((one, two))
            return one + two

        b.stream("in").group_by_key().reduce(add).to_stream().to("out")

    got = results(build, [("in", "a", 5, 1), ("in", "a", 7, 2)])
    assert (got, calls) == ([("a", 5, 1), ("a", 12, 2)], [(5, 7)])


def test_aggregate_begins_with_the_initializer() -> None:
    def build(b: StreamsBuilder) -> None:
        group = b.stream("in").group_by_key()
        group.aggregate(list, lambda k, v, agg: [*agg, k, v]).to_stream().to("out")

    got = results(build, [("in", "a", 5, 1), ("in", "a", 7, 2)])
    assert got == [("a", ["a", 5], 1), ("a", ["a", 5, "a", 7], 2)]


def test_an_aggregate_of_none_deletes_its_row_and_the_next_one_begins_anew() -> None:
    def build(b: StreamsBuilder) -> None:
        group = b.stream("in").group_by_key()
        group.aggregate(int, lambda _, v, agg: None if v == 0 else agg + v).to_stream().to("out")

    got = results(build, [("in", "a", 5, 9), ("in", "a", 0, 2), ("in", "a", 3, 4)])
    assert got == [("a", 5, 9), ("a", None, 9), ("a", 3, 4)]


@pytest.mark.parametrize("config", [CACHED, None])
def test_a_fold_may_change_its_aggregate_in_place(config: Mapping[str, object] | None) -> None:
    def build(b: StreamsBuilder) -> None:
        def append(_: str, value: int, agg: list[int]) -> list[int]:
            agg.append(value)
            return agg

        table = b.stream("in").group_by_key().aggregate(list, append)
        groups = table.group_by(lambda _, agg: ("all", len(agg)))
        groups.aggregate(int, lambda _, n, agg: agg + n, lambda _, n, agg: agg - n).to_stream().to("out")

    with driver(build, config) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 2, 2), ("in", "b", 3, 3), ("in", "a", 4, 4)])
        assert output(running)[-1] == ("all", 4, 4)


def adds(agg: dict[str, int], value: dict[str, int]) -> dict[str, int]:
    """In place; the first value is the first aggregate."""
    agg["n"] += value["n"]
    return agg


def takes(_: str, value: dict[str, int], agg: dict[str, int]) -> dict[str, int]:
    return adds(agg, value) if agg else value


def named(name: str, _: Any, value: Any) -> tuple[str, Any]:
    return name, value


@pytest.mark.parametrize("config", [CACHED, UNCACHED])
def test_a_first_value_that_is_the_aggregate_is_not_that_of_other_aggregates(
    config: Mapping[str, object],
) -> None:
    def build(b: StreamsBuilder) -> None:
        group = b.stream("in").group_by_key()
        for name, table in (
            ("first", group.reduce(adds)),
            ("second", group.reduce(adds)),
            ("third", group.aggregate(dict, takes)),
        ):
            table.to_stream().map(partial(named, name)).to("out")
        windows = group.windowed_by(TimeWindows.of_size(20).advance_by(10)).reduce(adds).to_stream()
        windows.map(lambda k, v: (f"from {k.window.start}", v)).to("out")

    with driver(build, config, auto_commit=False) as running:
        pipe(running, [("in", "a", {"n": n}, time) for n, time in ((1, 15), (2, 16), (4, 25))])
        running.commit()
        latest = {key: value["n"] for key, value, _ in output(running)}
    tables = dict.fromkeys(["first", "second", "third"], 7)
    assert latest == tables | {"from 0": 3, "from 10": 7, "from 20": 4}


def into_cart(_: str, line: dict[str, Any], cart: dict[str, Any]) -> dict[str, Any]:
    """The first line of a sku is what later ones are added to, in place."""
    kept = cart.get(line["sku"])
    if kept is None:
        cart[line["sku"]] = line
    else:
        kept["n"] += line["n"]
    return cart


def counting_lines(_: str, line: dict[str, Any], cart: dict[str, Any] | None) -> dict[str, Any]:
    """A line is changed as soon as it is there."""
    cart = cart or {}
    kept = cart.setdefault(line["sku"], line)
    kept["lines"] = kept.get("lines", 0) + 1
    return cart


def longer(lists: dict[str, list[int]], more: dict[str, list[int]]) -> dict[str, list[int]]:
    for name, numbers in more.items():
        if name in lists:
            lists[name].extend(numbers)
        else:
            lists[name] = numbers
    return lists


def later_into_the_first(_: str, line: Any, lines: tuple[Any, ...]) -> tuple[Any, ...]:
    if not lines:
        return (line,)
    lines[0]["n"] += line["n"]
    return lines


@pytest.mark.parametrize("config", [CACHED, UNCACHED])
def test_what_a_fold_keeps_of_a_record_and_changes_later_is_its_own(config: Mapping[str, object]) -> None:
    def build(b: StreamsBuilder) -> None:
        lines = b.stream("in")
        group = lines.group_by_key()
        hopping = TimeWindows.of_size(60).advance_by(30)
        numbers = lines.map_values(lambda line: {"of": [line["n"]]})
        for name, table in (
            ("cart", group.aggregate(dict, into_cart)),
            ("carts", group.windowed_by(hopping).aggregate(dict, into_cart)),
            ("cogrouped", group.cogroup(into_cart).windowed_by(hopping).aggregate(dict)),
            ("lines", group.windowed_by(hopping).aggregate(lambda: None, counting_lines)),
            ("tuples", group.windowed_by(hopping).aggregate(tuple, later_into_the_first)),
            (
                "session",
                group.windowed_by(SessionWindows.with_inactivity_gap(60)).aggregate(
                    dict, counting_lines, lambda _, one, two: one | two
                ),
            ),
            ("numbers", numbers.map_values(dict).group_by_key().windowed_by(hopping).reduce(longer)),
        ):
            table.to_stream().map(partial(named, name)).to("out")
        first = lines.filter(lambda _, line: line["first"]).to_table()
        first.to_stream().map(partial(named, "first")).to("out")

    with driver(build, config, auto_commit=False) as running:
        for n, time in ((1, 31), (2, 32), (4, 33)):
            pipe(running, [("in", "a", {"sku": "pen", "n": n, "first": n == 1}, time)])
        running.commit()
        latest = {key: value for key, value, _ in output(running)}
    line = {"sku": "pen", "n": 1, "first": True}
    assert latest == {
        "first": line,
        **{name: {"pen": line | {"n": 7}} for name in ("cart", "carts", "cogrouped")},
        "lines": {"pen": line | {"lines": 3}},
        "session": {"pen": line | {"lines": 3}},
        "tuples": [line | {"n": 7}],
        "numbers": {"of": [1, 2, 4]},
    }


@pytest.mark.parametrize("config", [CACHED, UNCACHED])
def test_values_that_cannot_be_copied_are_folded(config: Mapping[str, object]) -> None:
    def build(b: StreamsBuilder) -> None:
        numbers = b.stream("in").map_values(lambda end: (n for n in range(end)))
        table = numbers.group_by_key().aggregate(list, lambda _, numbers, agg: [*agg, *numbers])
        table.to_stream().to("out")

    with driver(build, config) as running:
        pipe(running, [("in", "a", 2, 1), ("in", "a", 3, 2)])
        assert output(running)[-1] == ("a", [0, 1, 0, 1, 2], 2)


def test_grouping_by_another_key_goes_by_way_of_a_repartition_topic() -> None:
    def build(b: StreamsBuilder) -> None:
        stream = b.stream("in").group_by(lambda _, v: v, name="by-value").count().to_stream()
        stream.to("out", value_serde=LongSerde())

    records = [("in", "a", "x", 1), ("in", "b", "y", 2), ("in", "c", "x", 3)]
    with driver(build) as running:
        pipe(running, records)
        assert output(running, value_serde=LongSerde()) == [("x", 1, 1), ("y", 1, 2), ("x", 2, 3)]
        assert output(running, "app-by-value-repartition") == [("x", "x", 1), ("y", "y", 2), ("x", "x", 3)]


def test_a_record_whose_new_key_is_null_is_dropped_before_the_repartition_topic() -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("in").group_by(lambda *_: None, name="by").count()

    with driver(build) as running:
        pipe(running, [("in", "a", "x", 1)])
        assert output(running, "app-by-repartition") == []


def test_headers_of_an_aggregate_are_those_of_its_last_record() -> None:
    with driver(counted, CACHED, auto_commit=False) as running:
        for number in (b"1", b"2"):
            running.pipe_input("in", "a", b"1", 1, (("n", number),))
        running.commit()
        (record,) = running.read_output("out", StrSerde(), LongSerde())
    assert (record.value, record.headers) == (2, (("n", b"2"),))


def test_the_changelog_has_values_and_times_of_the_table() -> None:
    with driver(counted) as running:
        pipe(running, [("in", "a", 1, 9), ("in", "a", 1, 3)])
        changelog = "app-KSTREAM-AGGREGATE-STATE-STORE-0000000001-changelog"
        assert output(running, changelog, value_serde=LongSerde()) == [("a", 1, 9), ("a", 2, 9)]


def test_a_named_store_can_be_asked_for() -> None:
    def build(b: StreamsBuilder) -> None:
        table = b.stream("in").group_by_key().count(materialized="counts")
        assert table.queryable_store_name == "counts"

    with driver(build) as running:
        pipe(running, [("in", "a", 1, 9)])
        assert running.get_store("counts").get("a") == (1, 9)


@pytest.mark.parametrize("config", [CACHED, UNCACHED])
def test_a_value_that_the_store_cannot_write_is_an_error_that_names_the_store(
    config: dict[str, object],
) -> None:
    def build(b: StreamsBuilder) -> None:
        said = Materialized("sums", value_serde=LongSerde())
        b.stream("in").group_by_key().aggregate(str, lambda _, v, agg: f"{agg}{v}", materialized=said)

    with driver(build, config) as running, pytest.raises(TypeError, match=r"store sums: .*value='1'"):
        pipe(running, [("in", "a", 1, 1)])


# -- tables -------------------------------------------------------------------------------------------------------


def by_team(b: StreamsBuilder) -> Any:
    """Players, each with team and points; by team."""
    return b.table("in").group_by(lambda _, row: (row["team"], row["points"]))


def player(name: str, team: str | None, points: int, time: int) -> tuple[str, str, Any, int]:
    return "in", name, None if team is None else {"team": team, "points": points}, time


MOVES = [
    player("ann", "x", 1, 1),
    player("bob", "x", 2, 2),
    player("ann", "x", 5, 3),
    player("ann", "y", 5, 4),
    player("bob", None, 0, 5),
]


class AlmostBytes:
    """A serde of texts that makes something else of them than bytes."""

    def __init__(self, kind: Callable[[bytes], Any]) -> None:
        self.kind = kind

    def serialize(self, value: str) -> Any:
        return self.kind(value.encode())

    def deserialize(self, data: bytes) -> str:
        return data.decode()


@pytest.mark.parametrize("config", [CACHED, UNCACHED])
@pytest.mark.parametrize("kind", [bytearray, memoryview, bytes.decode])
@pytest.mark.parametrize("windows", [None, TimeWindows.of_size(10), SessionWindows.with_inactivity_gap(10)])
def test_a_serde_that_makes_no_bytes_of_a_key_is_an_error_that_names_it(
    windows: Any, kind: Callable[[bytes], Any], config: Mapping[str, object]
) -> None:
    def build(b: StreamsBuilder) -> None:
        group = b.stream("in", key_serde=AlmostBytes(kind)).group_by_key()
        (group if windows is None else group.windowed_by(windows)).count(materialized="counts")

    said = f"store counts: AlmostBytes makes a {type(kind(b'')).__name__} of the key, not bytes"
    with driver(build, config) as running, pytest.raises(SerdeError, match=said):
        pipe(running, [("in", "a", 1, 1)])


@pytest.mark.parametrize("config", [CACHED, UNCACHED])
def test_a_serde_that_makes_no_bytes_of_a_value_is_an_error_that_names_it(
    config: Mapping[str, object],
) -> None:
    def build(b: StreamsBuilder) -> None:
        group = b.stream("in", value_serde=AlmostBytes(bytearray)).group_by_key()
        group.windowed_by(SessionWindows.with_inactivity_gap(10)).reduce(max, materialized="largest")

    said = "store largest: AlmostBytes makes a bytearray of the value, not bytes"
    with driver(build, config) as running, pytest.raises(SerdeError, match=said):
        pipe(running, [("in", "a", 1, 1)])


def test_a_serde_that_makes_no_bytes_of_the_key_of_an_output_is_an_error_that_names_it() -> None:
    said = "topic out: AlmostBytes and JsonSerde .* made a bytearray, not bytes"
    with (
        driver(lambda b: b.stream("in").to("out", key_serde=AlmostBytes(bytearray))) as running,
        pytest.raises(SerdeError, match=said),
    ):
        pipe(running, [("in", "a", 1, 1)])


def test_a_grouped_table_counts_its_rows() -> None:
    got = results(
        lambda b: by_team(b).count().to_stream().to("out", value_serde=LongSerde()),
        MOVES,
        value_serde=LongSerde(),
    )
    assert got == [("x", 1, 1), ("x", 2, 2), ("x", 2, 3), ("x", 1, 4), ("y", 1, 4), ("x", 0, 5)]


def test_what_leaves_a_group_is_subtracted_and_what_comes_is_added() -> None:
    def build(b: StreamsBuilder) -> None:
        table = by_team(b).aggregate(int, lambda _, p, agg: agg + p, lambda _, p, agg: agg - p)
        table.to_stream().to("out")

    assert results(build, MOVES) == [
        ("x", 1, 1),
        ("x", 3, 2),
        ("x", 7, 3),
        ("x", 2, 4),
        ("y", 5, 4),
        ("x", 0, 5),
    ]


def test_an_update_within_a_group_takes_the_old_value_off_before_it_adds_the_new_one() -> None:
    def build(b: StreamsBuilder) -> None:
        table = by_team(b).aggregate(str, lambda _, p, agg: f"{agg}+{p}", lambda _, p, agg: f"{agg}-{p}")
        table.to_stream().to("out")

    assert results(build, MOVES[:3])[-1] == ("x", "+1+2-1+5", 3)


def test_nothing_is_subtracted_from_a_group_without_a_value() -> None:
    def build(b: StreamsBuilder) -> None:
        groups = b.table("in").group_by(lambda _, v: ("all", v))
        table = groups.aggregate(int, lambda _, v, agg: agg + v, lambda _, v, agg: agg - v or None)
        table.to_stream().to("out")

    records = [
        ("in", "a", 1, 1),
        ("in", "b", 2, 2),
        ("in", "c", -2, 3),
        ("in", "a", None, 4),
        ("in", "b", None, 5),
    ]
    assert [value for _, value, _ in results(build, records)] == [1, 3, 1, None, None]


def test_a_grouped_table_reduces_with_adder_and_subtractor() -> None:
    def build(b: StreamsBuilder) -> None:
        by_team(b).reduce(lambda agg, p: agg + p, lambda agg, p: agg - p).to_stream().to("out")

    assert results(build, MOVES)[-1] == ("x", 0, 5)


def test_a_group_of_null_takes_nothing() -> None:
    def build(b: StreamsBuilder) -> None:
        groups = b.table("in").group_by(lambda _, v: (None, v) if v < 0 else ("all", v))
        groups.count().to_stream().to("out", value_serde=LongSerde())

    got = results(build, [("in", "a", -1, 1), ("in", "a", 1, 2)], value_serde=LongSerde())
    assert got == [("all", 1, 2)]


def test_a_materialized_serde_is_that_of_the_store_and_of_what_follows() -> None:
    def build(b: StreamsBuilder) -> None:
        said = Materialized("sums", value_serde=LongSerde())
        table = b.stream("in").group_by_key().aggregate(int, lambda _, v, agg: agg + v, materialized=said)
        table.to_stream().to("out")

    assert results(build, [("in", "a", 5, 1)], value_serde=LongSerde()) == [("a", 5, 1)]


@pytest.mark.parametrize(
    ("change", "written"),
    [
        (("d", "d"), "02646402"),
        (("xabxyz", "xyz"), "0c78616278797a78797a02"),
        (("", "d"), "006402"),
        (("x" * 64, "d"), "8001" + "78" * 64 + "6402"),
        (("x" * 10_000, ""), "a09c01" + "78" * 10_000 + "02"),
        (("d", None), "6401"),
        ((None, "d"), "6400"),
    ],
    ids=["short", "longer", "empty", "two bytes of length", "three", "no old one", "no new one"],
)
def test_a_change_of_a_group_is_written_as_kafka_streams_writes_it(
    change: tuple[str | None, str | None], written: str
) -> None:
    serde = ChangeSerde(StrSerde())
    assert serde.serialize(change).hex() == written
    assert serde.deserialize(bytes.fromhex(written)) == change


def test_windows_cannot_be_kept_for_less_than_no_time() -> None:
    with pytest.raises(ValueError, match="retention=-1 is not allowed"):
        Materialized.as_("counts").with_retention(-1)
