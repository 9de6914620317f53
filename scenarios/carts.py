"""Shopping carts: a list of items for each customer, in stores with a cache that is too small for them.

Input, keyed by customer: an item for the cart, whose name may be empty; null checks out; "?" asks what lies in all
carts, "!" the same from the last cart to the first, "<" and ">" ask for those of the customers up to this one and from
this one on.

Output, keyed by customer: how many items the cart has now; at the checkout the cart's items, null if it was empty, and
in the topic `bought` how many items the customer has bought so far, with the time of the first checkout that had any;
for a question the items of those carts, where ">" has them from the last to the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import msgspec

import scenarios
from scenarios import NOT_EMPTY, InputRecord, Json, Output, Sample, Serdes, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.state.timestamped import ValueAndTimestamp
from store.streams.topology import Context, Topology
from store.types import Record

CARTS = "carts"
BOUGHT = "bought"
SERDES: Serdes = (StrSerde(), JsonSerde())
BOOK = "a book with a long title " * 16
"""An item that no cart of the cache has room for."""
ATLAS = "an atlas of all the world " * 800
"""An item that no change of a store is held back with until the commit."""


QUESTIONS = ("?", "!", "<", ">")


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
        if item in QUESTIONS:
            with _asked(carts, item, customer) as rows:
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


def _asked(carts: Any, question: str, customer: str) -> Any:
    """The items that a question is for."""
    match question:
        case "?":
            return carts.all()
        case "!":
            return carts.reverse_all()
        case "<":
            return carts.range(None, customer)
        case _:
            return carts.reverse_range(customer, None)


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "carts"
    summary = "Lists of items that grow and go at the checkout, behind a small cache."
    keys = NOT_EMPTY
    settings: ClassVar[Mapping[str, Any]] = {"statestore.cache.max.bytes": 1_200}

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        output, bought = f"{application_id}-output", f"{application_id}-bought"
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-input",),
            sinks=(output, bought),
            stores=(
                # An empty name is a value of no bytes there.
                stores.list_value(CARTS, serdes=(StrSerde(), StrSerde())),
                stores.key_value(BOUGHT, serdes=SERDES, timestamped=True),
            ),
            process=Shop(output, bought),
        )

    def input(self, random: Random) -> Sample:
        items = ("apple", "pear", "plum", "apple", "", BOOK, ATLAS)
        value = random.choice((None, None, None, None, random.choice(QUESTIONS), *items))
        return Sample(random.choice(("a", "a", "ann", "anna")), value)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        carts, bought = state[CARTS], state[BOUGHT]
        if record.value in QUESTIONS:
            lower = record.key if record.value == ">" else None
            upper = record.key if record.value == "<" else None
            asked = [list(row) for row in carts.between(lower, upper)]
            return [Output("output", record.key, asked[::-1] if record.value in "!>" else asked)]
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

    def decode(self, store: str, value: bytes) -> Json:
        return value.decode() if store == CARTS else super().decode(store, value)


SCENARIO = Scenario()
