"""Joins of tables that are grouped, beside a reference or what they say, with caches, commits and kills at random."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from store.config import StreamsConfig
from store.serdes import JsonSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import (
    EmitStrategy,
    KTable,
    Materialized,
    ProcessorContext,
    SessionWindows,
    SlidingWindows,
    StreamRecord,
    StreamsBuilder,
    TimeWindows,
)
from tests.streams.dsl.crashing import Process, run_at_random
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe

pytestmark = pytest.mark.requirement("x.4")

Row = dict[str, int]


def add(left: int | None, right: int | None) -> int:
    return (left or 0) * 10 + (right or 0)


def odd(left: int | None, right: int | None) -> int | None:
    """None, which is no row, where it comes to a multiple of four."""
    made = (left or 0) * 3 + (right or 0)
    return made if made % 4 else None


JOINERS: dict[str, Any] = {"add": add, "odd": odd}
HAS: dict[str, Any] = {
    "join": lambda left, right: left is not None and right is not None,
    "left_join": lambda left, _: left is not None,
    "outer_join": lambda *_: True,
}


class Reading:
    """Reads both tables, which write what they hold back before, and forward it later."""

    def init(self, context: ProcessorContext) -> None:
        self.stores = [context.store(name) for name in ("l", "r")]

    def process(self, record: StreamRecord) -> None:
        for store in self.stores:
            store.get(record.key)


def add_up(joined: KTable) -> None:
    """Have `out` say of each group what its values come to, and how many they are."""
    groups = joined.group_by(lambda _, value: (str(value % 3), value))
    sums = groups.aggregate(
        lambda: [0, 0],
        lambda _, value, group: [group[0] + value, group[1] + 1],
        lambda _, value, group: [group[0] - value, group[1] - 1],
        materialized="sums",
    )
    sums.to_stream().to("out")


def application(kind: str, joiner: str) -> Application:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    left, right = made.table("left", materialized="l"), made.table("right", materialized="r")
    joined = getattr(left, kind)(right, JOINERS[joiner])
    add_up(joined)
    made.stream("read").process(Reading, "l", "r")
    return made.build()


def expected(kind: str, joiner: str, tables: dict[str, Row]) -> dict[str, list[int]]:
    left, right = tables["left"], tables["right"]
    groups: dict[str, list[int]] = {}
    for key in left.keys() | right.keys():
        one, other = left.get(key), right.get(key)
        value = JOINERS[joiner](one, other) if HAS[kind](one, other) else None
        if value is not None:
            group = groups.setdefault(str(value % 3), [0, 0])
            group[0] += value
            group[1] += 1
    return groups


@pytest.mark.parametrize("joiner", JOINERS)
@pytest.mark.parametrize("kind", HAS)
@pytest.mark.parametrize("cache", [0, 2_000, 1 << 20])
def test_each_row_is_in_one_group_once(kind: str, joiner: str, cache: int) -> None:
    for seed in range(30):
        random = Random(seed)
        config = StreamsConfig(statestore_cache_max_bytes=cache, commit_records=random.choice([1, 3, 1_000]))
        process = Process(application(kind, joiner), random.choice([1, 2]), config)
        tables: dict[str, Row] = {"left": {}, "right": {}}
        records: list[tuple[str, bytes | None, bytes | None, int]] = []
        for number in range(random.randint(5, 30)):
            topic, key = random.choice([*tables, "read"]), random.choice("xy")
            value = None if random.random() < 0.3 else random.randint(0, 5)
            encoded = None if value is None else json.dumps(value).encode()
            records.append((topic, key.encode(), encoded, 1_000 + number))
            if topic == "read":
                continue
            if value is None:
                tables[topic].pop(key, None)
            else:
                tables[topic][key] = value
        run_at_random(process, records, seed)
        latest = {key.decode(): json.loads(value) for key, value in process.latest("out").items()}
        found = {key: group for key, group in latest.items() if group != [0, 0]}
        assert found == expected(kind, joiner, tables), f"seed {seed}: {records}"


WINDOWS: dict[str, Any] = {
    "windows": TimeWindows.of_size(10, grace=5),
    "hopping windows": TimeWindows.of_size(10, grace=5).advance_by(5),
    "sliding windows": SlidingWindows.of_time_difference(10, grace=5),
    "sessions": SessionWindows.with_inactivity_gap(5, grace=5),
}


def of_windows(kind: str, windows: str, strategies: str) -> Application:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    left, right = (
        made.stream(topic)
        .group_by_key()
        .windowed_by(WINDOWS[windows])
        .emit_strategy(EmitStrategy[f"ON_WINDOW_{strategy}"])
        .reduce(int.__add__, materialized=Materialized(topic, retention=1_000_000))
        for topic, strategy in zip(("left", "right"), strategies.split(), strict=True)
    )
    joined = getattr(left, kind)(right, add)
    joined.to_stream().to("joined")
    add_up(joined)
    return made.build()


@pytest.mark.parametrize("strategies", ["CLOSE CLOSE", "CLOSE UPDATE", "UPDATE CLOSE"])
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("kind", HAS)
@pytest.mark.parametrize("cache", [0, 2_000, 1 << 20])
def test_a_group_has_what_a_join_with_windows_that_come_out_when_they_are_closed_has_said_last(
    kind: str, windows: str, strategies: str, cache: int
) -> None:
    for seed in range(5):
        random = Random(seed)
        config = StreamsConfig(statestore_cache_max_bytes=cache, commit_records=random.choice([1, 3, 1_000]))
        process = Process(of_windows(kind, windows, strategies), random.choice([1, 2]), config)
        records: list[tuple[str, bytes | None, bytes | None, int]] = []
        for number in range(30):
            topic, key = random.choice([b"left", b"right"]), random.choice([b"x", b"y"])
            value = json.dumps(random.randint(0, 5)).encode()
            records.append((topic.decode(), key, value, 1_000 + 2 * number - random.choice([0, 0, 3, 9])))
        run_at_random(process, records, seed)
        expected: dict[str, list[int]] = {}
        for said in process.latest("joined").values():
            value = json.loads(said)
            group = expected.setdefault(str(value % 3), [0, 0])
            group[0] += value
            group[1] += 1
        latest = {key.decode(): json.loads(value) for key, value in process.latest("out").items()}
        assert {key: group for key, group in latest.items() if group != [0, 0]} == expected, f"seed {seed}"


@pytest.mark.parametrize("config", [CACHED, UNCACHED], ids=["cached", "at once"])
def test_a_join_finds_no_window_that_is_to_come_out_when_it_is_closed(config: dict[str, int]) -> None:
    def build(b: StreamsBuilder) -> None:
        left, right = (b.stream(topic).group_by_key().windowed_by(WINDOWS["windows"]) for topic in "ab")
        closed = left.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count()
        joined = right.count().left_join(closed, lambda one, other: [one, other])
        joined.to_stream(lambda key, _: key.key).to("out")

    with driver(build, config) as running:
        pipe(running, [("a", "k", 1, 1), ("b", "k", 1, 1), ("a", "z", 1, 15), ("b", "k", 1, 2)])
        assert [value for _, value, _ in output(running)] == [[1, None], [1, 1], [2, 1]]


@pytest.mark.parametrize("config", [CACHED, UNCACHED], ids=["cached", "at once"])
def test_a_window_that_comes_out_finds_itself_where_it_came_from(config: dict[str, int]) -> None:
    def build(b: StreamsBuilder) -> None:
        windows = b.stream("in").group_by_key().windowed_by(WINDOWS["windows"])
        closed = windows.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count()
        found = closed.to_stream().left_join_table(closed, lambda one, other: [one, other])
        found.select_key(lambda key, _: key.key).to("out")

    with driver(build, config) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "b", 1, 1), ("in", "z", 1, 15)])
        assert [(key, value) for key, value, _ in output(running)] == [("a", [1, 1]), ("b", [1, 1])]
