"""Orders with prices and rebates, by the DSL: a stream beside tables, an outer join of two, and rows that are
regrouped.

Input, keyed by product: to `prices` and `rebates`, a number, or null for one that is gone; to `orders`, how many are
wanted, or null, which is left out. Without a key a price or rebate is none of any product, and an order is asked
alone.

Output, keyed by product: in `sold` an order with the price of that moment, if there is one, and in `taxed` with three
times that price; in `asked` with price and rebate, each null where there is none; in `bargains` only where the price is
low, as text. Whatever the record cache holds back, an order finds what the tables have come to. In `offers` is price
and rebate of each product that has either, in `taxed_offers` with three times the price; in `bargains_now` the low
prices as text, null where there is none any more.

The second sub-topology gets prices by whether they are odd: in `classes` are all prices of a class, in order, and in
`sums` their sum; null for an empty class. In `numbers` is how many they are. A price that changes leaves one class for
another. Whenever it does, in `means` is how many they are by then, and their sum. The sums are grouped by whether they
are large, for a third sub-topology, which adds three times each of them up in `totals`. With a record cache `offers`,
`taxed_offers` and `bargains_now` have at a commit what a product has come to, and there may be more or less before it;
and what has come to the classes amounts to the same.

Three more tables are grouped anew: `offers` by what there is of the two, the low prices as text by how low they are,
and all that was ordered of a product by whether it was ordered more than once. Their groups are counted in `numbers`
as well. What was ordered is a list that grows in place; in `baskets` is what it was at the last even order. With a
record cache that is what it was then, whatever was ordered since. Two tables have no output: the even orders of a
product, as objects that each odd one is added to in place, and the last even order as it came.

The order in which records of the three topics come is free. The reference takes them as the task did, and so it does
those of the second sub-topology's.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

import scenarios
from scenarios import KEYLESS, InputRecord, Json, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.dsl.processors import FixedKeyContext, StreamRecord, TransformContext
from store.streams.topology import Topology

PRICES, REBATES = "prices-table", "rebates-table"
CLASSES, SUMS, NUMBERS = "classes-table", "sums-table", "numbers-table"
ORDERED, BASKETS, TOTALS = "ordered-table", "baskets-table", "totals-table"
TALLIES, LAST = "tallies-table", "last-table"
REGROUPED, BY_KIND, BY_TEXT, BY_NUMBER, BY_SIZE = (
    f"by-{what}-repartition" for what in ("class", "kind", "text", "number", "size")
)
COUNTS = {BY_KIND: "kinds-table", BY_TEXT: "texts-table", BY_NUMBER: "ordered-numbers-table"}
AGGREGATES = {
    REGROUPED: (("classes", CLASSES), ("sums", SUMS), ("numbers", NUMBERS)),
    **{topic: (("numbers", store),) for topic, store in COUNTS.items()},
    BY_SIZE: (("totals", TOTALS),),
}
LOW, LOWEST = 5, 3
LARGE = 10
TAX = 3


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


def by_kind(_product: str, offer: list[int | None]) -> tuple[str, list[int | None]]:
    price, rebate = offer
    return ("rebate" if price is None else "price" if rebate is None else "both"), offer


def by_text(_product: str, text: str) -> tuple[str, str]:
    return ("lowest" if int(text.removeprefix("only ")) < LOWEST else "low"), text


def by_number(_product: str, orders: list[int]) -> tuple[str, list[int]]:
    return ("once" if len(orders) == 1 else "often"), orders


def append(_product: str, wanted: int, orders: list[int]) -> list[int]:
    orders.append(wanted)
    return orders


def has_value(_product: str, wanted: int | None) -> bool:
    return wanted is not None


def as_object(wanted: int) -> dict[str, int]:
    return {"wanted": wanted}


def is_even_object(_product: str, order: dict[str, int]) -> bool:
    return order["wanted"] % 2 == 0


def tally(_product: str, order: dict[str, int], tallies: list[dict[str, int]]) -> list[dict[str, int]]:
    if order["wanted"] % 2 and tallies:
        tallies[-1]["wanted"] += order["wanted"]
    else:
        tallies.append(order)
    return tallies


def is_even(_product: str, wanted: int | None) -> bool:
    return wanted is not None and wanted % 2 == 0


def basket(_wanted: int, orders: list[int]) -> list[int]:
    return orders


def plus(total: int, price: int) -> int:
    return total + price


def minus(total: int, price: int) -> int | None:
    return total - price or None


def by_size(_class: str, total: int) -> tuple[str, int]:
    return ("large" if total >= TAX * LARGE else "small"), total


class AddSum:
    """A processor that puts the sum of a class beside the number of its prices."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.sums = context.store(SUMS)

    def process(self, record: StreamRecord) -> None:
        found = self.sums.get(record.key)
        self.context.forward([record.value, found and found.value])


class Tax:
    """A transformer of prices, and of their sums."""

    def init(self, context: TransformContext) -> None: ...

    def transform(self, _product: str, price: int | None) -> int | None:
        return None if price is None else price * TAX


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "priced_orders"
    summary = "A stream beside tables by the DSL, an outer join of tables, and tables that are grouped anew."
    updates: ClassVar[frozenset[str]] = frozenset({"classes", "sums", "numbers", "baskets", "totals"})
    joins: ClassVar[frozenset[str]] = frozenset({"offers", "taxed_offers", "bargains_now"})
    changes: ClassVar[frozenset[str]] = frozenset(AGGREGATES)

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        prices = builder.table(f"{application_id}-prices", materialized=Materialized(PRICES))
        rebates = builder.table(f"{application_id}-rebates", materialized=Materialized(REBATES))
        orders = builder.stream(f"{application_id}-orders")
        offers = prices.outer_join(rebates, both)
        offers.to_stream().to(f"{application_id}-offers")
        bargains = prices.filter_not(is_high).map_values(told)
        bargains.to_stream().to(f"{application_id}-bargains_now", value_serde=JsonSerde())
        taxed = prices.transform_values(Tax)
        taxed.outer_join(rebates, both).to_stream().to(f"{application_id}-taxed_offers")
        orders.join_table(taxed, both).to(f"{application_id}-taxed")
        orders.join_table(prices, both).to(f"{application_id}-sold")
        orders.left_join_table(offers, both).to(f"{application_id}-asked")
        orders.join_table(bargains, both).to(f"{application_id}-bargains")
        grouped = prices.group_by(by_class, name="by-class")
        classes = grouped.aggregate(list, with_price, without_price, materialized=Materialized(CLASSES))
        classes.to_stream().to(f"{application_id}-classes")
        sums = grouped.reduce(plus, minus, materialized=Materialized(SUMS))
        sums.to_stream().to(f"{application_id}-sums")
        ordered = orders.group_by_key().aggregate(list, append, materialized=Materialized(ORDERED))
        baskets = orders.filter(is_even).join_table(ordered, basket)
        baskets.to_table(materialized=Materialized(BASKETS)).to_stream().to(f"{application_id}-baskets")
        objects = orders.filter(has_value).map_values(as_object)
        objects.group_by_key(value_serde=JsonSerde()).aggregate(
            list, tally, materialized=Materialized(TALLIES, value_serde=JsonSerde())
        )
        even = objects.filter(is_even_object)
        even.to_table(materialized=Materialized(LAST, value_serde=JsonSerde()))
        sizes = sums.transform_values(Tax).group_by(by_size, name="by-size")
        totals = sizes.reduce(plus, minus, materialized=Materialized(TOTALS))
        totals.to_stream().to(f"{application_id}-totals")
        # Without a cache, so that sums are read in the midst of a transaction.
        counted = Materialized(NUMBERS, value_serde=JsonSerde()).with_caching_disabled()
        numbers = grouped.count(materialized=counted).to_stream()
        numbers.process_values(AddSum, SUMS).to(f"{application_id}-means")
        for table, selector, topic in (
            (offers, by_kind, BY_KIND),
            (bargains, by_text, BY_TEXT),
            (ordered, by_number, BY_NUMBER),
        ):
            groups = table.group_by(
                selector, value_serde=JsonSerde(), name=topic.removesuffix("-repartition")
            )
            counts = groups.count(materialized=Materialized(COUNTS[topic], value_serde=JsonSerde()))
            numbers = numbers.merge(counts.to_stream())
        numbers.to(f"{application_id}-numbers")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        topic = random.choice(("prices", "prices", "rebates", "orders"))
        value = None if random.random() < (0.1 if topic == "orders" else 0.3) else random.randint(0, 9)
        return Sample(random.choice(("a", "a", "ann") * 3 + (KEYLESS,)), value, topic=topic)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic in AGGREGATES:
            return self._regrouped(state, record)
        key, value, time = record.key, record.value, record.timestamp
        prices, rebates = state[PRICES], state[REBATES]
        before = prices.get(key)
        if record.topic == "orders":
            if value is None:
                return []
            if key == KEYLESS:
                return [Output("asked", key, [value, None])]
            return [*self._order(value, key, before, rebates.get(key)), *self._ordered(state, record)]
        if key == KEYLESS:
            return []
        table = prices if record.topic == "prices" else rebates
        known, offered = table.get(key) is not None, _offer(before, rebates.get(key))
        if value is None:
            table.pop(key, None)
        else:
            table[key] = [value, time]
        price, rebate = prices.get(key), rebates.get(key)
        outputs = []
        if price is not None or rebate is not None or known:
            latest = max([time, *(row[1] for row in (price, rebate) if row is not None)])
            offer = _offer(price, rebate)
            outputs.append(Output("offers", key, offer, latest))
            outputs.append(Output("taxed_offers", key, _taxed(offer), latest))
            outputs += _moves(BY_KIND, _kind_of(offered), offered, _kind_of(offer), offer, latest)
        if record.topic == "rebates":
            return outputs
        was_low, is_low = (row is not None and row[0] <= LOW for row in (before, price))
        if was_low or is_low:
            outputs.append(Output("bargains_now", key, f"only {value}" if is_low else None))
            was, now = ("lowest" if row and row[0] < LOWEST else "low" for row in (before, price))
            text_before, text_now = (row and f"only {row[0]}" for row in (before, price))
            outputs += _moves(
                BY_TEXT, was if was_low else None, text_before, now if is_low else None, text_now
            )
        of_before = None if before is None else ("odd" if before[0] % 2 else "even")
        of_now = None if value is None else ("odd" if value % 2 else "even")
        return [*outputs, *_moves(REGROUPED, of_before, before and before[0], of_now, value)]

    def _ordered(self, state: State, record: InputRecord) -> list[Output]:
        before, latest = state[ORDERED].get(record.key, [[], -1])
        orders, latest = [*before, record.value], max(latest, record.timestamp)
        state[ORDERED][record.key] = [orders, latest]
        tallies, time = state[TALLIES].get(record.key, [[], -1])
        tallied = [*tallies, {"wanted": record.value}]
        if record.value % 2 and tallies:
            tallied = [*tallies[:-1], {"wanted": tallies[-1]["wanted"] + record.value}]
        state[TALLIES][record.key] = [tallied, max(time, record.timestamp)]
        was = ("once" if len(before) == 1 else "often") if before else None
        outputs = _moves(BY_NUMBER, was, before, "often" if before else "once", orders, latest)
        if record.value % 2 == 0:
            state[BASKETS][record.key] = [orders, record.timestamp]
            state[LAST][record.key] = [{"wanted": record.value}, record.timestamp]
            outputs.append(Output("baskets", record.key, orders))
        return outputs

    def _order(self, wanted: int, key: str, price: Json, rebate: Json) -> list[Output]:
        outputs = []
        offer = _offer(price, rebate)
        if price is not None:
            outputs.append(Output("sold", key, [wanted, price[0]]))
            outputs.append(Output("taxed", key, [wanted, price[0] * TAX]))
        outputs.append(Output("asked", key, [wanted, offer]))
        if price is not None and price[0] <= LOW:
            outputs.append(Output("bargains", key, [wanted, f"only {price[0]}"]))
        return outputs

    def _regrouped(self, state: State, record: InputRecord) -> list[Output]:
        comes, goes = record.value
        outputs = []
        for topic, store in AGGREGATES[record.topic]:
            members: Json
            members, latest = state[store].pop(record.key, [None, -1])
            before = members
            time = record.timestamp if members is None and comes is None else max(latest, record.timestamp)
            if store == CLASSES:
                prices = list(members or [])
                if goes in prices:
                    prices.remove(goes)
                members = sorted(prices + ([] if comes is None else [comes])) or None
            elif store in (SUMS, TOTALS):
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
            if store == SUMS:
                left, comes_to = (total and total * TAX for total in (before, members))
                outputs += _moves(BY_SIZE, _size_of(before), left, _size_of(members), comes_to, time)
            elif store == NUMBERS:
                total, _ = state[SUMS].get(record.key, [None, -1])
                outputs.append(Output("means", record.key, [members, total], time))
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        return record.topic in ("prices", "rebates", "orders") and (
            record.value is None or type(record.value) is int
        )


def _offer(price: Json, rebate: Json) -> Json:
    return None if price is rebate is None else [price and price[0], rebate and rebate[0]]


def _taxed(offer: Json) -> Json:
    return offer and [offer[0] and offer[0] * TAX, offer[1]]


def _kind_of(offer: Json) -> str | None:
    if offer is None:
        return None
    return "both" if None not in offer else "rebate" if offer[0] is None else "price"


def _size_of(total: Json) -> str | None:
    return None if total is None else "small" if total < LARGE else "large"


def _moves(
    topic: str, was: str | None, before: Json, now: str | None, value: Json, time: int | None = None
) -> list[Output]:
    """What a row tells the group that it was in, if any, and that which it is in now."""
    if was is not None and was == now:
        return [Output(topic, was, [value, before], time)]
    left = [] if was is None else [Output(topic, was, [None, before], time)]
    return left + ([] if now is None else [Output(topic, now, [value, None], time)])


SCENARIO = Scenario()
