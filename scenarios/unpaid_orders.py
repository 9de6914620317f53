"""Orders joined with their payments by the DSL: a left join of two streams, over windows of time.

Input, keyed by order: to `orders` and `payments`, a number. An order and a payment of the same key are joined when
their times differ by no more than 20 s. Windows take late records for 10 s more.

Output, keyed by order: the two numbers, with the later of the two times. An order that has had no payment when its
window is closed comes out alone, with its own time: with the first record that has the stream time then, of either
topic and of any key of the partition, and before that record counts. One that comes when no payment could be in time
any more comes out alone at once, whatever the windows take.

The stream time is the largest time of the records of both topics; it is noted beside the positions. Under at least once
those may be older than the stores after a crash, so that a window is closed a second time: exactly once is set. The
order in which records of the two topics come is free. The reference takes them as the task did.

An order that waits is a row of a store that is called by its time, its side and its key in bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import msgspec

import scenarios
from scenarios import WORD, InputRecord, Json, Output, Sample, State, Stores
from store.serdes import JsonSerde, Serde, StrSerde
from store.streams.dsl import JoinWindows, StreamJoined, StreamsBuilder
from store.streams.topology import Topology

WITHIN_MS = 20_000
GRACE_MS = 10_000
ORDERS, PAYMENTS, WAITING = (
    f"unpaid-{suffix}-store" for suffix in ("this-join", "outer-other-join", "left-shared-join")
)
OF_ORDERS = 1


def both(order: int, payment: int | None) -> list[int | None]:
    return [order, payment]


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "unpaid_orders"
    summary = (
        "A left join of two streams by the DSL, whose records without a partner wait for their windows' end."
    )
    keys = WORD
    settings: ClassVar[Mapping[str, Any]] = {"processing.guarantee": "exactly_once_v2"}
    time_step_ms = 9_000
    durations_ms = (WITHIN_MS, WITHIN_MS + GRACE_MS)
    edges_ms = (WITHIN_MS,)
    retentions_ms: ClassVar[Mapping[str, int]] = dict.fromkeys((ORDERS, PAYMENTS), 2 * WITHIN_MS + GRACE_MS)

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        orders, payments = (builder.stream(f"{application_id}-{topic}") for topic in ("orders", "payments"))
        windows = JoinWindows.of_time_difference_and_grace(WITHIN_MS, GRACE_MS)
        serdes: tuple[Serde[Any], ...] = (StrSerde(), JsonSerde(), JsonSerde())
        said = StreamJoined.with_(*serdes).with_store_name("unpaid").with_logging_enabled()
        joined = orders.left_join(payments, both, windows, joined=said)
        joined.to(f"{application_id}-output", value_serde=JsonSerde())
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        topic = random.choice(("orders", "orders", "payments"))
        return Sample(random.choice(("a", "ann", "anna")), random.randint(0, 9), topic=topic)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        key, value, time = record.key, record.value, record.timestamp
        orders, payments, waiting = state[ORDERS], state[PAYMENTS], state[WAITING]
        now = max(orders.stream_time, payments.stream_time, time)
        outputs = []
        if time == now:
            for name in sorted(waiting):
                at, _, of = name.split(" ")
                if int(at) + WITHIN_MS + GRACE_MS < now:
                    outputs += [Output("output", of, [order, None], int(at)) for order in waiting.pop(name)]
        own, other = (orders, payments) if record.topic == "orders" else (payments, orders)
        partners = other.fetch(key, time - WITHIN_MS, time + WITHIN_MS)
        for at, partner in partners:
            pair = [value, partner] if own is orders else [partner, value]
            outputs.append(Output("output", key, pair, max(at, time)))
            if own is payments:
                waiting.pop(_waiting(at, key), None)
        if own is orders and not partners:
            if time + WITHIN_MS < now:
                outputs.append(Output("output", key, [value, None], time))
            else:
                waiting.setdefault(_waiting(time, key), []).append(value)
        own.put(key, value, time)
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        return record.topic in ("orders", "payments") and type(record.value) is int

    def decode_key(self, store: str, key: bytes) -> str:
        if store != WAITING:
            return super().decode_key(store, key)
        time, side = struct.unpack_from(">qB", key)
        if side != OF_ORDERS:
            raise ValueError(f"side {side} does not wait")
        return _waiting(time, key[9:].decode())

    def decode(self, store: str, value: bytes) -> Json:
        """Of orders that wait, those of one row in the order in which they came."""
        if store != WAITING:
            return super().decode(store, value)
        sides, found = those_that_wait(value)
        if sides != {OF_ORDERS}:
            raise ValueError(f"{value.hex()} is no list of orders")
        return found


def those_that_wait(value: bytes) -> tuple[set[int], list[Json]]:
    """A row of records that wait: their sides, and their values in the order in which they came."""
    (number,) = struct.unpack_from(">I", value, 1)
    place, sides, found = 5, set(), []
    for _ in range(number):
        (length,) = struct.unpack_from(">I", value, place)
        entry = value[place + 4 : place + 4 + length]
        if not 0 < length == len(entry):
            raise ValueError(f"{value.hex()} is no list")
        sides.add(entry[0])
        found.append(msgspec.json.decode(entry[1:]))
        place += 4 + length
    if place != len(value):
        raise ValueError(f"{value.hex()} goes on after its list")
    return sides, found


def _waiting(time: int, key: str) -> str:
    """The name of a row of orders that wait. Names are in the order of the rows."""
    return f"{time:015} {OF_ORDERS} {key}"


SCENARIO = Scenario()
