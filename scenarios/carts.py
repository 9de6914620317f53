"""Shopping carts: a list of items for each customer, in stores with a cache that is too small for them.

Input, keyed by customer: an item for the cart; null checks out; "?" asks what lies in all carts.

Output, keyed by customer: how many items the cart has now; at the checkout the cart's items, null if it was empty, and
in the topic `bought` how many items the customer has bought so far, with the time of the first checkout that had any;
for "?" the items of all carts, from the last to the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import msgspec

import scenarios
from scenarios import InputRecord, Output, Sample, Serdes, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.state.timestamped import ValueAndTimestamp
from store.streams.topology import Context, Topology
from store.types import Record

CARTS = "carts"
BOUGHT = "bought"
SERDES: Serdes = (StrSerde(), JsonSerde())
BOOK = "a book with a long title " * 16
"""An item that no cart of the cache has room for."""


class Shop:
    """The pipeline."""

    def __init__(self, output: str, bought: str) -> None:
        self.output = output
        self.bought = bought

    def __call__(self, context: Context, record: Record) -> None:
        assert record.key is not None
        carts, bought = context.store(CARTS), context.store(BOUGHT)
        customer = record.key.decode()
        item = None if record.value is None else msgspec.json.decode(record.value)
        result: Any
        if item == "?":
            with carts.reverse_all() as rows:
                result = [list(row) for row in rows]
        elif item is not None:
            carts.put(customer, item)
            result = len(carts.get(customer))
        else:
            result = carts.delete(customer)
        context.forward(self.output, record.key, None if result is None else msgspec.json.encode(result))
        if item is None and result is not None:
            before = bought.put_if_absent(customer, ValueAndTimestamp(len(result), context.timestamp))
            if before is not None:
                bought.put(customer, ValueAndTimestamp(before.value + len(result), before.timestamp))
            context.forward(self.bought, record.key, msgspec.json.encode(bought.get(customer)))


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "carts"
    summary = "Lists of items that grow and go at the checkout, behind a small cache."
    settings: ClassVar[Mapping[str, Any]] = {"statestore.cache.max.bytes": 1_200}

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        output, bought = f"{application_id}-output", f"{application_id}-bought"
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-input",),
            sinks=(output, bought),
            stores=(
                stores.list_value(CARTS, serdes=SERDES),
                stores.key_value(BOUGHT, serdes=SERDES, timestamped=True),
            ),
            process=Shop(output, bought),
        )

    def input(self, random: Random) -> Sample:
        value = random.choice((None, None, "?", "apple", "pear", "plum", "apple", "pear", BOOK))
        return Sample(random.choice(("a", "ann", "anna")), value)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        carts, bought = state[CARTS], state[BOUGHT]
        if record.value == "?":
            every = [list(row) for row in reversed(carts.between(None, None))]
            return [Output("output", record.key, every)]
        if record.value is not None:
            carts.put(record.key, record.value)
            return [Output("output", record.key, len(carts[record.key]))]
        items = carts.pop(record.key, None)
        if items is None:
            return [Output("output", record.key, None)]
        number, first = bought.get(record.key, [0, record.timestamp])
        bought[record.key] = [number + len(items), first]
        return [Output("output", record.key, items), Output("bought", record.key, bought[record.key])]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and isinstance(record.value, str | None)


SCENARIO = Scenario()
