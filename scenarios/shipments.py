"""Shipments with the depots that they leave from, by the DSL: two tables joined by a foreign key, inner and left.

Input: to `shipments`, keyed by shipment, from which depot it leaves, null where that is not known yet, and its weight;
to `depots`, keyed by depot, in which town it is. Null deletes, in either.

Output, keyed by shipment: in `leaving` weight and town of those whose depot is there; in `planned` those of all, where
the town may be null. Null for a shipment that is no longer there.

The two tables are partitioned differently, so each join has two topics between its sub-topologies, which are judged as
well. A subscription, keyed by depot or without a key, says what becomes of it, a digest of the shipment, its key, and
the partition that wants to know. An answer, keyed by shipment, has the digest and the town. For each value that a
shipment ever has there is one that is answered, at once and with each update of the depot until another follows. An
answer about a value that is not that of now is dropped: answers of two depots come in any order, and the one about the
value of now is the last of its depot. So a result may come late, and lack updates in between, but in the end it is that
of the tables. The order in which a task takes its topics is free, and which answers are dropped is given by it.

`leaving` is kept in a store: a deletion of what is not there is not told, and a cache may leave updates out. Both
tables are without a cache: what that makes of several updates by a commit would decide which answers are dropped.

Under at least once a result may be another one in the end. A process that was overtaken and nobody fences, as on Spark,
drops answers about rows that it does not have, and commits that it has read them. And a process that dies may leave a
deletion in its table alone, so that the next one finds nothing to be deleted, and says nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import blake2b
from random import Random
from typing import Any, ClassVar

import msgspec

import scenarios
from scenarios import KEYLESS, NOT_EMPTY, InputRecord, Json, Output, Sample, State, Stores, encode_value
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.topology import Topology

SHIPMENTS, DEPOTS, LEAVING = "shipments-table", "depots-table", "leaving-table"
JOINS = ("leaving", "planned")
ASKED = {f"{name}-subscription-registration-topic": name for name in JOINS}
ANSWERED = {f"{name}-subscription-response-topic": name for name in JOINS}
SUBSCRIBED = {f"{name}-subscription-store": name for name in JOINS}
ENDS, ENDS_AND_ASKS, ASKS = range(3)
"""What a subscription says: it ends, it ends and an answer is wanted, it begins and an answer is wanted."""
DIGEST = 16


def depot_of(shipment: dict[str, Any]) -> str | None:
    depot: str | None = shipment["from"]
    return depot


def with_town(shipment: dict[str, Any], town: str | None) -> list[Any]:
    return [shipment["weight"], town]


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "shipments"
    summary = (
        "Tables of the DSL joined by a foreign key, inner and left, and what the two sides tell each other."
    )
    keys = NOT_EMPTY
    updates: ClassVar[frozenset[str]] = frozenset({"leaving"})
    keeps_leaving = True
    """Whether the result of the inner join is kept in a store."""

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        values = JsonSerde[Any]()
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=values)
        shipments, depots = (
            builder.table(
                f"{application_id}-{topic}", materialized=Materialized(store).with_caching_disabled()
            )
            for topic, store in (("shipments", SHIPMENTS), ("depots", DEPOTS))
        )
        leaving = shipments.join(
            depots, depot_of, with_town, materialized=Materialized(LEAVING), name="leaving"
        )
        leaving.to_stream().to(f"{application_id}-leaving")
        planned = shipments.left_join(depots, depot_of, with_town, name="planned")
        planned.to_stream().to(f"{application_id}-planned")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        depot = random.choice(("ann", "ann", "gus", "an"))
        if random.random() < 0.35:
            town = None if random.random() < 0.3 else random.choice(("Rome", "Bern", "Oslo", ""))
            return Sample(depot, town, topic="depots")
        shipment = None
        if random.random() > 0.15:
            known = random.random() > 0.2
            shipment = {"from": depot if known else None, "weight": random.randint(1, 2)}
        return Sample(random.choice(("1", "1", "2", "3")), shipment, topic="shipments")

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic in ASKED:
            return self._asked(state, record, ASKED[record.topic])
        if record.topic in ANSWERED:
            return self._answered(state, record, ANSWERED[record.topic])
        before = put(state[SHIPMENTS if record.topic == "shipments" else DEPOTS], record)
        if record.topic == "depots":
            return [one for name in JOINS for one in self._answers(state, record, name)]
        return self._told(record, before)

    def _answers(self, state: State, record: InputRecord, name: str) -> list[Output]:
        """An update of a depot is told to all that are subscribed to it."""
        return [
            Output(f"{name}-subscription-response-topic", kept[1], [kept[2], record.value])
            for of, kept in _subscribed(state, name)
            if of == record.key
        ]

    def _told(self, record: InputRecord, before: Json) -> list[Output]:
        """An update of a shipment is told to its depots."""
        return [
            Output(topic, depot, [says, shipment, digest, record.partition])
            for topic, name in ASKED.items()
            for depot, (says, shipment, digest) in _subscriptions(record, before, name)
        ]

    def _shipment(self, state: State, key: str) -> Json:
        """What a shipment is now."""
        return state[SHIPMENTS].get(key, (None, None))[0]

    def _town(self, state: State, depot: str, name: str) -> tuple[Json, int] | None:  # noqa: ARG002 - alike for both
        """Where a depot is now, as a join finds it, and since when."""
        found: tuple[Json, int] | None = state[DEPOTS].get(depot)
        return found

    def _asked(self, state: State, record: InputRecord, name: str) -> list[Output]:
        """A subscription comes to the task of its depot."""
        depot, (says, shipment, digest, partition) = record.key, record.value
        if depot != KEYLESS:
            subscriptions = state[f"{name}-subscription-store"]
            subscriptions.pop(_row(depot, shipment), None)
            if says == ASKS:
                subscriptions[_row(depot, shipment)] = [[says, shipment, digest, partition], record.timestamp]
        if says == ENDS:
            return []
        found = None if depot == KEYLESS else self._town(state, depot, name)
        town, since = found or (None, record.timestamp)
        answer = [digest, town if says == ASKS else None]
        topic = f"{name}-subscription-response-topic"
        return [Output(topic, shipment, answer, max(record.timestamp, since))]

    def _answered(self, state: State, record: InputRecord, name: str) -> list[Output]:
        """An answer comes to the task of its shipment."""
        key, (digest, town) = record.key, record.value
        shipment = self._shipment(state, key)
        if digest != _digest(shipment):
            return []
        result = None
        if shipment is not None and (town is not None or name == "planned"):
            result = [shipment["weight"], town]
        if name == "leaving" and self.keeps_leaving:
            if state[LEAVING].pop(key, None) is None and result is None:
                return []
            if result is not None:
                state[LEAVING][key] = [result, record.timestamp]
        return [Output(name, key, result)]

    def settled(self, inputs: Mapping[str, Mapping[str, Json]]) -> Mapping[str, Mapping[str, Json]]:
        depots = inputs["depots"]
        planned = {
            key: [shipment["weight"], depots.get(shipment["from"])]
            for key, shipment in inputs["shipments"].items()
        }
        return {
            "planned": planned,
            "leaving": {key: row for key, row in planned.items() if row[1] is not None},
        }

    def accepts(self, record: InputRecord) -> bool:
        value = record.value
        if record.topic == "depots":
            return value is None or isinstance(value, str)
        if record.topic != "shipments":
            return False
        return value is None or (
            isinstance(value, dict)
            and value.keys() == {"from", "weight"}
            and type(value["weight"]) is int
            and (value["from"] is None or (isinstance(value["from"], str) and value["from"] != KEYLESS))
        )

    def decode_output(self, topic: str, key: bytes | None, value: bytes | None) -> tuple[str, Json]:
        if topic in ASKED and value is not None:
            return KEYLESS if key is None else key.decode(), _subscription(value)
        if topic in ANSWERED and key is not None and value is not None:
            digest, rest = _digest_in(value, 1)
            return key.decode(), [digest, None if value[0] & 0x40 else msgspec.json.decode(rest)]
        return super().decode_output(topic, key, value)

    def decode_key(self, store: str, key: bytes) -> str:
        if store not in SUBSCRIBED:
            return super().decode_key(store, key)
        (length,) = struct.unpack_from(">I", key)
        return _row(key[4 : 4 + length].decode(), key[4 + length :].decode())

    def decode(self, store: str, value: bytes) -> Json:
        return _subscription(value) if store in SUBSCRIBED else super().decode(store, value)


def put(table: Any, record: InputRecord) -> Json:
    """Put an update into a table without versions; what the value was before."""
    before = table.pop(record.key, None)
    if record.value is not None:
        table[record.key] = [record.value, record.timestamp]
    return before and before[0]


def _subscriptions(
    record: InputRecord, before: Json, name: str
) -> list[tuple[str, tuple[int, str, str | None]]]:
    """What an update of a shipment says to a join, and to which depot."""
    left = before and before["from"]
    if record.value is None:
        if before is None:
            return []
        return [(left or KEYLESS, (ENDS_AND_ASKS if left else ASKS, record.key, None))]
    digest, depot = _digest(record.value), record.value["from"]
    if name == "leaving" and left and depot is None:
        return [(left, (ENDS_AND_ASKS, record.key, digest))]
    ends = [(left, (ENDS, record.key, digest))] if left not in (None, depot) else []
    return [*ends, (depot or KEYLESS, (ASKS, record.key, digest))]


def _digest(shipment: Json) -> str | None:
    data = encode_value(shipment)
    return None if data is None else blake2b(data, digest_size=DIGEST).hexdigest()


def _subscribed(state: State, name: str) -> list[tuple[str, list[Json]]]:
    """The subscriptions of a join with their depots, in the order of the store."""
    rows = state[f"{name}-subscription-store"]
    return [(row.split(" ")[1], rows.get(row)[0]) for row in sorted(rows)]


def _row(depot: str, shipment: str) -> str:
    """The name of a subscription. Names are in the order of the rows."""
    return f"{len(depot.encode()):09} {depot} {shipment}"


def _subscription(value: bytes) -> Json:
    digest, rest = _digest_in(value, 2)
    return [value[1], rest[4:].decode(), digest, int.from_bytes(rest[:4], "big")]


def _digest_in(value: bytes, at: int) -> tuple[str | None, bytes]:
    """The digest of a message, if it has one, and what follows."""
    if value[0] & 0x3F != 1:
        raise ValueError(f"{value.hex()} is of another version")
    return (None, value[at:]) if value[0] & 0x80 else (value[at : at + DIGEST].hex(), value[at + DIGEST :])


SCENARIO = Scenario()
