"""Joins of tables that are grouped, beside a reference, with caches, commits and kills at random."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from store.config import StreamsConfig
from store.serdes import JsonSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import ProcessorContext, StreamRecord, StreamsBuilder
from tests.streams.dsl.crashing import Process, run_at_random

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


def application(kind: str, joiner: str) -> Application:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    left, right = made.table("left", materialized="l"), made.table("right", materialized="r")
    joined = getattr(left, kind)(right, JOINERS[joiner])
    groups = joined.group_by(lambda _, value: (str(value % 3), value))
    sums = groups.aggregate(
        lambda: [0, 0],
        lambda _, value, group: [group[0] + value, group[1] + 1],
        lambda _, value, group: [group[0] - value, group[1] - 1],
        materialized="sums",
    )
    sums.to_stream().to("out")
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
