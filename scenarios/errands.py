"""Errands and who runs them, by the DSL in forms of its own: joins that go by a repartition topic without being told,
stores that a class makes or that are given, values that are no JSON, one window without an end, and sessions by their
own keys.

Input: to `errands`, keyed by customer, a street and how many minutes it takes, or null, which is left out; to
`runners`, keyed by street, the number of one who is there.

Output, keyed by customer: in `short` the minutes of an errand below 5, as a message of Protobuf; in `even` of one of at
least 8 whether they are even, as a byte. In `since`, keyed by customer and start, how many errands there were from the
XX how many minutes there were in it and how many
errands, as records of Avro; null for a session that has become another one. A session goes on while errands are no more
than 15 s apart, and takes late ones for ever.

Errands go by a repartition topic to the second sub-topology, keyed by street. In `served` is each with each runner of
its street, whatever the time between them, and in `soon` with each who was there from 10 s before it to 10 s after it:
the minutes and the runner, with the later time of the two.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any, ClassVar

from google.protobuf.wrappers_pb2 import Int64Value

import scenarios
from scenarios import NOT_EMPTY, InputRecord, Json, Output, Sample, State, Stores, decode_record
from store.avro import AvroSerde
from store.config import StoreType
from store.protobuf import ProtobufSerde
from store.serdes import BoolSerde, JsonSerde, StrSerde
from store.state.windowed import Windowed
from store.streams.dsl import (
    JoinWindows,
    Materialized,
    SessionWindows,
    StreamJoined,
    StreamsBuilder,
    UnlimitedWindows,
)
from store.streams.dsl.suppliers import InMemoryDslStoreSuppliers, TopologyConfig
from store.streams.topology import Topology

MOVED = "KSTREAM-KEY-SELECT-0000000010-repartition"
ERRANDS, RUNNERS = "errands-of-streets", "runners-of-streets"
SOON_ERRANDS, SOON_RUNNERS = (f"soon-{which}-join-store" for which in ("this", "other"))
SINCE, VISITS = "errands-since", "visits-of-customers"
SINCE_MS = 20_000
GAP_MS = 15_000
SOON_MS = 10_000
LONG_MS = 400 * 86_400_000
SHORT, LONG = 5, 8

SUPPLIERS: Mapping[StoreType, str | type] = {
    StoreType.TXN_ROCKS_DB: "store.streams.dsl.suppliers:TxnRocksDbDslStoreSuppliers",
    StoreType.ROCKS_DB: "store.streams.dsl.suppliers.RocksDbDslStoreSuppliers",
    StoreType.IN_MEMORY: InMemoryDslStoreSuppliers,
}
NUMBER = AvroSerde("long")
SUM = AvroSerde(
    {
        "type": "record",
        "name": "Sum",
        "fields": [{"name": "minutes", "type": "long"}, {"name": "errands", "type": "long"}],
    }
)
MINUTES = ProtobufSerde(Int64Value)

Errand = list[Any]
"""Street and minutes."""


def is_errand(_customer: str, errand: Errand | None) -> bool:
    return errand is not None


def is_short(_customer: str, errand: Errand) -> bool:
    return bool(errand[1] < SHORT)


def is_long(_customer: str, errand: Errand) -> bool:
    return bool(errand[1] >= LONG)


def as_message(errand: Errand) -> Any:
    return Int64Value(value=errand[1])


def is_even(errand: Errand) -> bool:
    return bool(errand[1] % 2 == 0)


def street_of(_customer: str, errand: Errand) -> str:
    return str(errand[0])


def run_by(errand: Errand, runner: int) -> list[int]:
    return [errand[1], runner]


def nothing() -> dict[str, int]:
    return {"minutes": 0, "errands": 0}


def one_more(_customer: str, errand: Errand, total: dict[str, int]) -> dict[str, int]:
    return {"minutes": total["minutes"] + errand[1], "errands": total["errands"] + 1}


def together(_customer: str, one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: number + other[name] for name, number in one.items()}


def name_of(key: Windowed[str], _number: int) -> str:
    return f"{key.key}@{key.window.start}"


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "errands"
    summary = (
        "Forms of the DSL: joins of streams with changed keys, Avro and Protobuf, one window without an end."
    )
    keys = NOT_EMPTY
    time_step_ms = 5_000
    durations_ms = (GAP_MS, SOON_MS)
    retentions_ms: ClassVar[Mapping[str, int]] = {
        VISITS: 2 * GAP_MS + LONG_MS + 1,
        SOON_ERRANDS: 2 * SOON_MS + LONG_MS,
        SOON_RUNNERS: 2 * SOON_MS + LONG_MS,
    }
    updates: ClassVar[frozenset[str]] = frozenset({"since"})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        made_by = TopologyConfig(overrides={"dsl.store.suppliers.class": SUPPLIERS[stores.kind]})
        values = JsonSerde[Any]()
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=values, config=made_by)
        errands = builder.stream(f"{application_id}-errands").filter(is_errand)
        kinds = errands.split(name="kind-").branch(is_short, name="short").branch(is_long, name="long")
        split = kinds.no_default_branch()
        short, even = split["kind-short"].map_values(as_message), split["kind-long"].map_values(is_even)
        short.to(f"{application_id}-short", value_serde=MINUTES)
        even.to(f"{application_id}-even", value_serde=BoolSerde())
        runners = builder.stream(f"{application_id}-runners")
        moved = errands.select_key(street_of)
        ever = JoinWindows.of_time_difference_with_no_grace(LONG_MS)
        given = (
            Stores(stores.kind).window(
                name, retention_ms=ever.retention_ms, size_ms=ever.size_ms, retain_duplicates=True
            )
            for name in (ERRANDS, RUNNERS)
        )
        ours, theirs = given
        kept = StreamJoined().with_this_store_supplier(ours).with_other_store_supplier(theirs)
        served = moved.join(runners, run_by, ever, joined=kept)
        served.to(f"{application_id}-served", value_serde=values)
        near = JoinWindows.of_time_difference(SOON_MS, grace=LONG_MS)
        soon = moved.join(runners, run_by, near, joined=StreamJoined.as_("soon"))
        soon.to(f"{application_id}-soon", value_serde=values)
        grouped = errands.group_by_key()
        from_then_on = UnlimitedWindows.of().start_on(datetime.fromtimestamp(SINCE_MS / 1000, UTC))
        since = grouped.windowed_by(from_then_on).count(
            materialized=Materialized.as_(SINCE).with_value_serde(NUMBER).with_store_type(stores.kind)
        )
        since.to_stream(name_of).to(f"{application_id}-since", key_serde=StrSerde(), value_serde=NUMBER)
        sessions = grouped.windowed_by(SessionWindows.of_inactivity_gap_and_grace(GAP_MS, LONG_MS))
        # All sessions of a key are in its partition, so a record cache would have to be looked at by session.
        said = (
            Materialized.as_(VISITS).with_caching_disabled().with_key_serde(StrSerde()).with_value_serde(SUM)
        )
        visits = sessions.aggregate(nothing, one_more, together, materialized=said)
        visits.to_stream().to(f"{application_id}-visits", value_serde=SUM)
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        if random.random() < 0.35:
            return Sample(random.choice("xy"), random.randint(0, 9), topic="runners")
        errand = None if random.random() < 0.1 else [random.choice("xy"), random.randint(0, 9)]
        return Sample(random.choice(("a", "ann", "anna")), errand, topic="errands")

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic != "errands":
            return self._street(state, record)
        if record.value is None:
            return []
        street, minutes = record.value
        outputs = [Output(MOVED, street, record.value)]
        if minutes < SHORT:
            outputs.append(Output("short", record.key, minutes))
        elif minutes >= LONG:
            outputs.append(Output("even", record.key, minutes % 2 == 0))
        return [*outputs, *self._since(state, record), *self._visits(state, record)]

    def _since(self, state: State, record: InputRecord) -> list[Output]:
        if record.timestamp < SINCE_MS:
            return []
        number, latest = state[SINCE].get(record.key, SINCE_MS) or [0, -1]
        number, latest = number + 1, max(latest, record.timestamp)
        state[SINCE].put(record.key, [number, latest], SINCE_MS)
        return [Output("since", f"{record.key}@{SINCE_MS}", number, latest)]

    def _visits(self, state: State, record: InputRecord) -> list[Output]:
        key, time, visits = record.key, record.timestamp, state[VISITS]
        joined = visits.find(key, max(0, time - GAP_MS), time + GAP_MS)
        start = min([time, *(one.start for one in joined)])
        end = max([time, *(one.end for one in joined)])
        outputs = []
        for one in joined if start != end else ():
            visits.remove(key, one.start, one.end)
            outputs.append(Output("visits", key, [one.start, one.end, None], one.end))
        total = {
            "minutes": record.value[1] + sum(one.value["minutes"] for one in joined),
            "errands": 1 + sum(one.value["errands"] for one in joined),
        }
        visits.put(key, start, end, total)
        return [*outputs, Output("visits", key, [start, end, total], end)]

    def _street(self, state: State, record: InputRecord) -> list[Output]:
        street, value, time = record.key, record.value, record.timestamp
        is_runner = record.topic == "runners"
        outputs = []
        for topic, within, errands, runners in (
            ("served", LONG_MS, ERRANDS, RUNNERS),
            ("soon", SOON_MS, SOON_ERRANDS, SOON_RUNNERS),
        ):
            own, other = (runners, errands) if is_runner else (errands, runners)
            for at, partner in state[other].fetch(street, max(0, time - within), time + within):
                errand, runner = (partner, value) if is_runner else (value, partner)
                outputs.append(Output(topic, street, [errand[1], runner], max(at, time)))
            state[own].put(street, value, time)
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        value = record.value
        if record.topic == "runners":
            return type(value) is int
        if record.topic != "errands" or value is None:
            return record.topic == "errands"
        return isinstance(value, list) and [*map(type, value)] == [str, int] and value[1] >= 0

    def decode_output(self, topic: str, key: bytes | None, value: bytes | None) -> tuple[str, Json]:
        if key is None or topic not in ("short", "even", "since", "visits"):
            return super().decode_output(topic, key, value)
        if topic == "visits":
            end, start = struct.unpack(">qq", key[-16:])
            return key[:-16].decode(), [start, end, None if value is None else SUM.deserialize(value)]
        name, _ = decode_record(key, None)
        if value is None:
            return name, None
        if topic == "even":
            return name, bool(value[0])
        return name, MINUTES.deserialize(value).value if topic == "short" else NUMBER.deserialize(value)

    def decode(self, store: str, value: bytes) -> Json:
        if store not in (SINCE, VISITS):
            return super().decode(store, value)
        return (NUMBER if store == SINCE else SUM).deserialize(value)


SCENARIO = Scenario()
