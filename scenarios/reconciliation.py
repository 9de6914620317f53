"""Invoices and payments joined by the DSL: an outer join of two streams, both sides of which wait, and an inner one.

Input, keyed by customer: to `invoices` and `payments`, a number, or null, which is joined with nothing. What has no key
comes out of the outer join alone, at once, without one. So does an invoice of 0, which is nobody's: it has no key from
then on. Invoices go by a repartition topic to the second sub-topology, which has the payments too. An invoice and a
payment of the same key are joined when the payment comes from 10 s before the invoice to 20 s after it. Windows take
late records for 10 s more. For the inner join the payment has to come from 5 s to 25 s after the invoice.

Output, keyed by customer: in `reconciled` the two numbers, with the later of the two times. What has had no partner
when its window is closed comes out alone, with its own time and no headers: with the first record that has the stream
time then, of either topic and of any key of the partition, and before that record counts. Rows of one time come out
payments first, then by their key. One that comes when no partner could be in time any more comes out alone at once,
whatever the windows take. In `paid` the key too. All others have the headers of the record that made them.

The stream time is the largest time of the records of both topics, those without a value among them; a processor before
the joins keeps it in a store of its own, for the reference to find. It is noted beside the positions, which may be
older than the stores after a crash under at least once, so that a window is closed a second time: exactly once is set.
The order in which records of the two topics come is free. The reference takes them as the task did.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import KEYLESS, WORD, InputRecord, Json, Output, Sample, State, Stores
from scenarios.unpaid_orders import those_that_wait
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import JoinWindows, StreamJoined, StreamsBuilder
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.streams.topology import Topology

BEFORE_MS = 10_000
AFTER_MS = 20_000
GRACE_MS = 10_000
EARLIEST_MS = 5_000
LATEST_MS = 25_000
INVOICES, PAYMENTS, WAITING = (
    f"reconciled-outer-{which}-join-store" for which in ("this", "other", "shared")
)
TO_JOIN = "invoices-repartition"
NOBODYS = 0
PAYABLE, PAYING = (f"paid-{which}-join-store" for which in ("this", "other"))
CLOCK = "clock"
NOW = "now"
OF_PAYMENTS, OF_INVOICES = range(2)


class Clock:
    """A processor that hands records on, and keeps the largest of their times."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.store = context.store(CLOCK)

    def process(self, record: StreamRecord) -> None:
        self.store.put(NOW, max(self.store.get(NOW) or 0, record.timestamp))
        self.context.forward(record.value)


def customer_of(customer: str, invoice: int | None) -> str | None:
    return None if invoice == NOBODYS else customer


def both(invoice: int | None, payment: int | None) -> list[int | None]:
    return [invoice, payment]


def paid(customer: str, invoice: int, payment: int) -> list[Any]:
    return [customer, invoice, payment]


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "reconciliation"
    summary = "An outer join of two streams by the DSL over uneven windows, and an inner one for later partners alone."
    keys = rf"({WORD})?"
    settings: ClassVar[Mapping[str, Any]] = {"processing.guarantee": "exactly_once_v2"}
    time_step_ms = 7_000
    durations_ms = (BEFORE_MS, AFTER_MS, BEFORE_MS + GRACE_MS, AFTER_MS + GRACE_MS, EARLIEST_MS, LATEST_MS)
    retentions_ms: ClassVar[Mapping[str, int]] = {
        INVOICES: BEFORE_MS + AFTER_MS + GRACE_MS,
        PAYMENTS: BEFORE_MS + AFTER_MS + GRACE_MS,
        PAYABLE: LATEST_MS + GRACE_MS + 1,
        PAYING: LATEST_MS + GRACE_MS + 1,
    }

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        builder.add_state_store(stores.key_value(CLOCK, serdes=(StrSerde(), JsonSerde())))
        made = builder.stream(f"{application_id}-invoices").select_key(customer_of)
        invoices = made.repartition(name="invoices").process_values(Clock, CLOCK)
        payments = builder.stream(f"{application_id}-payments").process_values(Clock, CLOCK)
        windows = JoinWindows.of_time_difference(BEFORE_MS, grace=GRACE_MS).after(AFTER_MS)
        outer = invoices.outer_join(
            payments, both, windows, joined=StreamJoined.with_(stores.kind).with_store_name("reconciled")
        )
        outer.to(f"{application_id}-reconciled")
        later = (
            JoinWindows.of_time_difference_with_no_grace(LATEST_MS).before(-EARLIEST_MS).with_grace(GRACE_MS)
        )
        typed = StreamJoined.as_("paid").with_key_serde(StrSerde()).with_value_serde(JsonSerde())
        typed = typed.with_other_value_serde(JsonSerde()).with_dsl_store_suppliers(stores.kind)
        inner = invoices.join(payments, paid, later, with_key=True, joined=typed)
        inner.to(f"{application_id}-paid")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        topic = random.choice(("invoices", "payments"))
        value = None if random.random() < 0.1 else random.randint(NOBODYS, 9)
        headers = (("by", random.choice(("post", "hand"))),) if random.random() < 0.2 else ()
        customer = random.choice(("a", "ann", "anna") * 2 + (KEYLESS,))
        return Sample(customer, value, topic=topic, headers=headers)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic == "invoices":
            key = KEYLESS if record.value == NOBODYS else record.key
            return [Output(TO_JOIN, key, record.value, headers=record.headers)]
        key, value, time, waiting = record.key, record.value, record.timestamp, state[WAITING]
        now = state[CLOCK][NOW] = max(state[CLOCK].get(NOW, 0), time)
        if value is None:
            return []
        is_invoice = record.topic == TO_JOIN
        alone = [value, None] if is_invoice else [None, value]
        if key == KEYLESS:
            return [Output("reconciled", key, alone, time, record.headers)]
        outputs = []
        if time == now:
            for name in sorted(waiting):
                at, side, of = name.split(" ")
                closed = int(at) + (AFTER_MS if int(side) == OF_INVOICES else BEFORE_MS) + GRACE_MS < now
                for one in waiting.pop(name) if closed else ():
                    pair = [one, None] if int(side) == OF_INVOICES else [None, one]
                    outputs.append(Output("reconciled", of, pair, int(at)))
        own, other = (INVOICES, PAYMENTS) if is_invoice else (PAYMENTS, INVOICES)
        before, after = (BEFORE_MS, AFTER_MS) if is_invoice else (AFTER_MS, BEFORE_MS)
        partners = state[other].fetch(key, time - before, time + after)
        for at, partner in partners:
            waiting.pop(_waiting(at, OF_PAYMENTS if is_invoice else OF_INVOICES, key), None)
            pair = [value, partner] if is_invoice else [partner, value]
            outputs.append(Output("reconciled", key, pair, max(at, time), record.headers))
        if not partners and time + after < now:
            outputs.append(Output("reconciled", key, alone, time, record.headers))
        elif not partners:
            waiting.setdefault(_waiting(time, OF_INVOICES if is_invoice else OF_PAYMENTS, key), []).append(
                value
            )
        state[own].put(key, value, time)
        return [*outputs, *self._paid(state, record)]

    def _paid(self, state: State, record: InputRecord) -> list[Output]:
        """The inner join."""
        key, value, time = record.key, record.value, record.timestamp
        if record.topic == TO_JOIN:
            partners = state[PAYING].fetch(key, time + EARLIEST_MS, time + LATEST_MS)
            state[PAYABLE].put(key, value, time)
            pairs = [(value, payment, at) for at, payment in partners]
        else:
            # No window of Kafka Streams ends before time 0, so that what has that time is found.
            partners = state[PAYABLE].fetch(key, time - LATEST_MS, max(0, time - EARLIEST_MS))
            state[PAYING].put(key, value, time)
            pairs = [(invoice, value, time) for _, invoice in partners]
        return [
            Output("paid", key, [key, invoice, payment], at, record.headers) for invoice, payment, at in pairs
        ]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic in ("invoices", "payments") and (
            record.value is None or type(record.value) is int
        )

    def decode_key(self, store: str, key: bytes) -> str:
        if store != WAITING:
            return super().decode_key(store, key)
        time, side = struct.unpack_from(">qB", key)
        return _waiting(time, side, key[9:].decode())

    def decode(self, store: str, value: bytes) -> Json:
        """Of records that wait, those of one row in the order in which they came."""
        if store != WAITING:
            return super().decode(store, value)
        sides, found = those_that_wait(value)
        if len(sides) != 1:
            raise ValueError(f"{value.hex()} has records of both sides")
        return found


def _waiting(time: int, side: int, key: str) -> str:
    """The name of a row of records that wait. Names are in the order of the rows."""
    return f"{time:015} {side} {key}"


SCENARIO = Scenario()
