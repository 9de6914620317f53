"""Joins by a foreign key and as of a time, with times and topics of their own, as an application for real systems."""

from __future__ import annotations

from typing import Any

import msgspec

from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.serdes import JsonSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import Materialized, RecordContext, StreamsBuilder
from store.streams.timestamps import ConsumedRecord
from store.suppliers import persistent_versioned_key_value_store

PARTITIONS = {"orders": 3, "people": 2, "prices": 2, "trades": 2}
OUTPUTS = ("joined", "valued")
BASE_MS = 1_700_000_000_000


class OfValue:
    """The last number of a value; the partition time where there is none."""

    def extract(self, record: ConsumedRecord, partition_time: int) -> int:
        return max(BASE_MS, partition_time) if record.value is None else BASE_MS + int(record.value[-1])


class Output:
    """Where results go, whatever they are."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, _key: Any, _value: Any, _context: RecordContext) -> str:
        return self.name


def foreign_key(order: list[Any]) -> str | None:
    found: str | None = order[0]
    return found


def pair(one: Any, two: Any) -> list[Any]:
    return [one, two]


def application(name: str) -> Application:
    made = StreamsBuilder(name, key_serde=StrSerde(), value_serde=JsonSerde())
    orders = made.table(f"{name}-orders", timestamp_extractor=OfValue)
    people = made.table(f"{name}-people", timestamp_extractor=OfValue)
    orders.left_join(people, foreign_key, pair).to_stream().to(Output(f"{name}-joined"))
    versions = Materialized.as_(persistent_versioned_key_value_store("prices", 1_000))
    prices = made.table(f"{name}-prices", timestamp_extractor=OfValue, materialized=versions)
    trades = made.stream(f"{name}-trades", timestamp_extractor=OfValue)
    trades.join_table(prices, pair, grace=10).to(Output(f"{name}-valued"))
    return made.build()


def create_topics(log: KafkaLog, name: str) -> None:
    admin = log.admin()
    counts = PARTITIONS | dict.fromkeys(OUTPUTS, 1)
    admin.create_topics([TopicSpec(f"{name}-{topic}", count) for topic, count in counts.items()])
    admin.close()


def feed(log: KafkaLog, name: str, *rows: tuple[str, str, Any]) -> None:
    producer = log.plain_producer()
    for topic, key, value in rows:
        producer.produce(
            f"{name}-{topic}", key.encode(), None if value is None else msgspec.json.encode(value)
        )
    producer.flush()
    producer.close()


FIRST: list[tuple[str, str, Any]] = [
    *[("people", person, [person.upper(), 1]) for person in ("ann", "bob", "carl")],
    *[("orders", f"o{number}", [("ann", "bob", None)[number % 3], number]) for number in range(12)],
    *[("prices", "share", [price, at]) for price, at in ((10, 5), (30, 30), (20, 20))],
    *[("trades", "share", [at]) for at in (25, 7, 31, 40)],
]

JOINED_FIRST = {
    f"o{number}": [
        [("ann", "bob", None)[number % 3], number],
        [["ANN", 1], ["BOB", 1], None][number % 3],
    ]
    for number in range(12)
}
VALUED_FIRST = [[[7], [10, 5]], [[25], [20, 20]]]
"""The stream time is 40, which lets go of what is not later than 30."""

SECOND: list[tuple[str, str, Any]] = [
    ("people", "ann", ["Anna", 50]),
    ("people", "bob", None),
    ("orders", "o0", ["carl", 60]),
    ("orders", "o3", None),
    ("prices", "share", [35, 35]),
    ("trades", "share", [90]),
]

JOINED_SECOND = {
    **{f"o{number}": [["ann", number], ["Anna", 50]] for number in (6, 9)},
    **{f"o{number}": [["bob", number], None] for number in (1, 4, 7, 10)},
    **{f"o{number}": [[None, number], None] for number in (2, 5, 8, 11)},
    "o0": [["carl", 60], ["CARL", 1]],
}
VALUED_SECOND = [*VALUED_FIRST, [[31], [30, 30]], [[40], [35, 35]]]
