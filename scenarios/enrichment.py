"""Orders with the names of their customers: a stream beside a global table, which every worker has whole.

Input: to `customers`, keyed by customer, a name, null when there is no such customer any more; to `orders`, keyed by
customer, a number.

Output, keyed by customer: how many orders of the customer there were, the number, and the name; null where the
customer has no name. Nothing says when a worker hears of a name, so any that the customer ever had is right.
"""

from __future__ import annotations

import struct
from random import Random

import msgspec

import scenarios
from scenarios import InputRecord, Json, OneOf, Output, Sample, Serdes, State, Stores
from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams.topology import Context, Topology
from store.suppliers import global_store
from store.types import Record

CUSTOMERS = "customers"
COUNTS = "counts"
SERDES: Serdes = (StrSerde(), JsonSerde())


class Enrich:
    """The pipeline."""

    def __init__(self, output: str) -> None:
        self.output = output

    def __call__(self, context: Context, record: Record) -> None:
        assert record.key is not None
        assert record.value is not None
        counts = context.store(COUNTS)
        customer = record.key.decode()
        name = context.store(CUSTOMERS).get(customer)
        count = (counts.get(customer) or 0) + 1
        counts.put(customer, count)
        enriched = None if name is None else msgspec.json.encode([count, int(record.value), name])
        context.forward(self.output, record.key, enriched)


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "enrichment"
    summary = "A stream joined with a global table, whose changes come when they come."
    runtimes = ("worker",)

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        customers = Stores(stores.kind).key_value(CUSTOMERS, serdes=SERDES)
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-orders",),
            sinks=(f"{application_id}-output",),
            stores=(stores.key_value(COUNTS, serdes=(StrSerde(), LongSerde())),),
            process=Enrich(f"{application_id}-output"),
            global_stores=(global_store(customers, f"{application_id}-customers"),),
        )

    def input(self, random: Random) -> Sample:
        customer = random.choice(("a", "ann", "anna"))
        if random.random() < 0.6:
            return Sample(customer, random.randint(1, 9), topic="orders")
        return Sample(customer, random.choice(("Ann", "Bob", None)), topic="customers")

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        customers, counts = state[CUSTOMERS], state[COUNTS]
        count = counts[record.key] = counts.get(record.key, 0) + 1
        names = customers.ever(record.key)
        return [
            Output(
                "output",
                record.key,
                OneOf(None if name is None else [count, record.value, name] for name in names),
            )
        ]

    def accepts(self, record: InputRecord) -> bool:
        if record.topic == "customers":
            return isinstance(record.value, str | None)
        return record.topic == "orders" and type(record.value) is int

    def decode(self, store: str, value: bytes) -> Json:
        if store != COUNTS:
            return super().decode(store, value)
        if len(value) != 8:
            raise ValueError(f"{value.hex()} is no count")
        (count,) = struct.unpack(">q", value)
        return count


SCENARIO = Scenario()
