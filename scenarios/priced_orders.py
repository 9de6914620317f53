"""Orders with prices and rebates, by the DSL: a stream beside tables, an outer join of two, and rows that are
regrouped.

Input, keyed by product: to `prices` and `rebates`, a number, or null for one that is gone; to `orders`, how many are
wanted, or null, which is left out.

Output, keyed by product: in `sold` an order with the price of that moment, if there is one; in `asked` with price and
rebate, each null where there is none; in `bargains` only where the price is low, as text. Whatever the record cache
holds back, an order finds what the tables have come to. In `offers` is price and rebate of each product that has
either, in `bargains_now` the low prices as text, null where there is none any more.

The second sub-topology gets prices by whether they are odd: in `classes` are all prices of a class, in order, and in
`sums` their sum; null for an empty class. In `numbers` is how many they are. A price that changes leaves one class for
another. With a record cache `offers` and `bargains_now` have at a commit what a product has come to, and there may be
more or less before it; and what has come to the classes amounts to the same.

The order in which records of the three topics come is free. The reference takes them as the task did.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

import scenarios
from scenarios import InputRecord, Json, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.topology import Topology

PRICES, REBATES = "prices-table", "rebates-table"
CLASSES, SUMS, NUMBERS = "classes-table", "sums-table", "numbers-table"
REGROUPED = "by-class-repartition"
LOW = 5


def both(one: int | None, other: int | None) -> list[int | None]:
    return [one, other]


def is_high(_product: str, price: int) -> bool:
    return price > LOW


def told(price: int) -> str:
    return f"only {price}"


def by_class(_product: str, price: int) -> tuple[str, int]:
    return ("odd" if price % 2 else "even"), price


def with_price(_class: str, price: int, prices: list[int]) -> list[int]:
    return sorted([*prices, price])


def without_price(_class: str, price: int, prices: list[int]) -> list[int] | None:
    # Under at least once it may leave twice.
    if price in prices:
        prices.remove(price)
    return prices or None


def plus(total: int, price: int) -> int:
    return total + price


def minus(total: int, price: int) -> int | None:
    return total - price or None


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "priced_orders"
    summary = "A stream beside tables by the DSL, an outer join of tables, and a table that is grouped anew."
    updates: ClassVar[frozenset[str]] = frozenset({"classes", "sums", "numbers"})
    joins: ClassVar[frozenset[str]] = frozenset({"offers", "bargains_now"})
    changes: ClassVar[frozenset[str]] = frozenset({REGROUPED})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        prices = builder.table(f"{application_id}-prices", materialized=Materialized(PRICES))
        rebates = builder.table(f"{application_id}-rebates", materialized=Materialized(REBATES))
        orders = builder.stream(f"{application_id}-orders")
        offers = prices.outer_join(rebates, both)
        offers.to_stream().to(f"{application_id}-offers")
        bargains = prices.filter_not(is_high).map_values(told)
        bargains.to_stream().to(f"{application_id}-bargains_now", value_serde=JsonSerde())
        orders.join_table(prices, both).to(f"{application_id}-sold")
        orders.left_join_table(offers, both).to(f"{application_id}-asked")
        orders.join_table(bargains, both).to(f"{application_id}-bargains")
        grouped = prices.group_by(by_class, name="by-class")
        classes = grouped.aggregate(list, with_price, without_price, materialized=Materialized(CLASSES))
        classes.to_stream().to(f"{application_id}-classes")
        sums = grouped.reduce(plus, minus, materialized=Materialized(SUMS))
        sums.to_stream().to(f"{application_id}-sums")
        numbers = grouped.count(materialized=Materialized(NUMBERS, value_serde=JsonSerde()))
        numbers.to_stream().to(f"{application_id}-numbers")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        topic = random.choice(("prices", "prices", "rebates", "orders"))
        value = None if random.random() < (0.1 if topic == "orders" else 0.3) else random.randint(1, 9)
        return Sample(random.choice(("a", "a", "ann")), value, topic=topic)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic == REGROUPED:
            return self._regrouped(state, record)
        key, value, time = record.key, record.value, record.timestamp
        prices, rebates = state[PRICES], state[REBATES]
        before = prices.get(key)
        if record.topic == "orders":
            return [] if value is None else self._order(value, key, before, rebates.get(key))
        table = prices if record.topic == "prices" else rebates
        known = table.get(key) is not None
        if value is None:
            table.pop(key, None)
        else:
            table[key] = [value, time]
        price, rebate = prices.get(key), rebates.get(key)
        outputs = []
        if price is not None or rebate is not None or known:
            latest = max([time, *(row[1] for row in (price, rebate) if row is not None)])
            offer = None if price is rebate is None else [price and price[0], rebate and rebate[0]]
            outputs.append(Output("offers", key, offer, latest))
        if record.topic == "rebates":
            return outputs
        was_low, is_low = (row is not None and row[0] <= LOW for row in (before, price))
        if was_low or is_low:
            outputs.append(Output("bargains_now", key, f"only {value}" if is_low else None))
        of_before = None if before is None else ("odd" if before[0] % 2 else "even")
        of_now = None if value is None else ("odd" if value % 2 else "even")
        if of_before is not None and of_before == of_now:
            outputs.append(Output(REGROUPED, of_before, [value, before[0]]))
        else:
            outputs += [] if of_before is None else [Output(REGROUPED, of_before, [None, before[0]])]
            outputs += [] if of_now is None else [Output(REGROUPED, of_now, [value, None])]
        return outputs

    def _order(self, wanted: int, key: str, price: Json, rebate: Json) -> list[Output]:
        outputs = []
        offer = None if price is rebate is None else [price and price[0], rebate and rebate[0]]
        if price is not None:
            outputs.append(Output("sold", key, [wanted, price[0]]))
        outputs.append(Output("asked", key, [wanted, offer]))
        if price is not None and price[0] <= LOW:
            outputs.append(Output("bargains", key, [wanted, f"only {price[0]}"]))
        return outputs

    def _regrouped(self, state: State, record: InputRecord) -> list[Output]:
        comes, goes = record.value
        outputs = []
        for topic, store in (("classes", CLASSES), ("sums", SUMS), ("numbers", NUMBERS)):
            members: Json
            members, latest = state[store].pop(record.key, [None, -1])
            time = record.timestamp if members is None and comes is None else max(latest, record.timestamp)
            if store == CLASSES:
                prices = list(members or [])
                if goes in prices:
                    prices.remove(goes)
                members = sorted(prices + ([] if comes is None else [comes])) or None
            elif store == SUMS:
                if goes is not None and members is not None:
                    members = members - goes or None
                if comes is not None:
                    members = comes + (members or 0)
            elif members is not None or comes is not None:
                left = 0 if members is None else members - (goes is not None)
                members = left + (comes is not None)
            if members is not None:
                state[store][record.key] = [members, time]
            outputs.append(Output(topic, record.key, members, time))
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        return record.topic in ("prices", "rebates", "orders") and (
            record.value is None or type(record.value) is int
        )


SCENARIO = Scenario()
