"""Orders with the names of their customers, by the DSL: a stream beside a global table, which every worker has whole.

Input: to `customers`, keyed by customer, a name, null when there is no such customer any more, and what has no key is
nobody's, though an empty key is somebody's; to `orders`, keyed by customer, a number.

Output, keyed by customer: how many orders of the customer there were, the number, and the name; null where the
customer has no name. Nothing says when a worker hears of a name, so any that the customer ever had is right.
"""

from __future__ import annotations

import struct
from random import Random

import scenarios
from scenarios import EMPTY, KEYLESS, InputRecord, Json, OneOf, Output, Sample, Serdes, State, Stores
from store.config import StoreType
from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams.dsl import StreamsBuilder
from store.streams.dsl.builder import GlobalKTable
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.streams.topology import Topology
from store.suppliers import global_store

CUSTOMERS = "customers"
COUNTS = "counts"
ANONYMOUS = 0
SERDES: Serdes = (StrSerde(), JsonSerde())


class Number:
    """A processor that counts the orders of each customer, and puts the count before the order."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.counts = context.store(COUNTS)

    def process(self, record: StreamRecord) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward([count, record.value])


def customer_of(customer: str, order: list[int]) -> str | None:
    return None if order[1] == ANONYMOUS else customer


def with_name(order: list[int], name: str | None) -> list[Json] | None:
    return None if name is None and order[1] != ANONYMOUS else [*order, name]


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "enrichment"
    summary = "A stream joined with a global table by the DSL, whose changes come when they come."
    runtimes = ("worker", "streams")

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        builder.add_state_store(stores.key_value(COUNTS, serdes=(StrSerde(), LongSerde())))
        if stores.kind is StoreType.TXN_ROCKS_DB:
            known = builder.global_table(f"{application_id}-customers", name=CUSTOMERS)
        else:
            customers = Stores(stores.kind).key_value(CUSTOMERS, serdes=SERDES)
            builder.add_global_store(global_store(customers, f"{application_id}-customers"))
            known = GlobalKTable(CUSTOMERS)
        orders = builder.stream(f"{application_id}-orders").process_values(Number, COUNTS)
        enriched = orders.left_join_global(known, customer_of, with_name)
        enriched.to(f"{application_id}-output")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        customer = random.choice(("a", "ann", "anna") * 3 + (EMPTY,))
        if random.random() < 0.6:
            return Sample(customer, random.randint(ANONYMOUS, 9), topic="orders")
        named = customer if random.random() < 0.9 else KEYLESS
        return Sample(named, random.choice(("Ann", "Bob", "", None)), topic="customers")

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        customers, counts = state[CUSTOMERS], state[COUNTS]
        count = counts[record.key] = counts.get(record.key, 0) + 1
        if record.value == ANONYMOUS:
            return [Output("output", record.key, [count, record.value, None])]
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
        return record.topic == "orders" and record.key != KEYLESS and type(record.value) is int

    def decode(self, store: str, value: bytes) -> Json:
        if store != COUNTS:
            return super().decode(store, value)
        if len(value) != 8:
            raise ValueError(f"{value.hex()} is no count")
        (count,) = struct.unpack(">q", value)
        return count


SCENARIO = Scenario()
