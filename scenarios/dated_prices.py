"""Orders with the prices of their own time, by the DSL: versioned tables, joins as of a record's time, at once and with
a grace period; transformed and filtered tables; windows of two groups.

Input, keyed by product, both out of order: to `prices`, a number that is the price from its timestamp on, or null, from
which on there is none; to `orders`, how many are wanted, or null, which is left out. An update of a price that is more
than 24 s older than the latest one of all is too late: it leads to nothing.

Output, keyed by product: in `sold` an order with the price of its time, if there was one that is known; in `cheap` with
that price if it was low, else null; in `taxed` with three times the price, by a transformer. In `settled` with what is
in `rated` of its time, once the stream time of orders is 8 s beyond that, so that a late price is in time; at once
where it is so already. In `rated` each price with a number that counts the updates of the product, deletions too, as
they come; a table of these goes back 16 s, and what is older is not in it. In `bargains` each low price, null for any
other update. In `demand` price and number of orders of each product that has both; a price that is not the latest
changes nothing there. In `dated` the number of orders with the largest of their times, by a transformer. In `busy`,
keyed by product and start of a window, as in `ann@20000`, how many orders there were in it, and how many prices: two
groups, each of which has a stream time. A high price leaves a window without a value, so that it begins anew. An order
of no product is in `cheap` and `settled` alone, at once and without a price, and makes no time go by.

Orders are let go in the order of their times, those of one time by their keys, those of one key as they came. All goes
by the largest times of orders and of prices that have a value. Processors keep these in a store of their own, for the
reference to find. They are noted beside the positions, which may be older than the stores after a crash under at least
once, so that an order that was let go waits again: exactly once is set. The order in which records of the two topics
come is free. The reference takes them as the task did.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, ClassVar

import msgspec

import scenarios
from scenarios import KEYLESS, WORD, InputRecord, Json, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.state.windowed import Windowed
from store.streams.dsl import Materialized, StreamsBuilder, TimeWindows
from store.streams.dsl.processors import FixedKeyContext, StreamRecord, TransformContext
from store.streams.topology import Topology

HISTORY_MS = 24_000
RATED_HISTORY_MS = 16_000
GRACE_MS = 8_000
SIZE_MS = 20_000
WINDOW_GRACE_MS = 10_000
LONG = timedelta(days=3_650)
"""How long windows are kept: beyond any time between the groups, for one that is closed may be open to the other."""
PRICES, RATED, ORDERED, WAITING = "prices-table", "rated-table", "ordered-table", "settled-Buffer"
UPDATES, BUSY, CLOCK = "updates", "busy-windows", "clock"
LOW = 5
HIGH = 6
TAX = 3


class Clock:
    """A processor that hands records on, and keeps the largest time of those that have a key and a value."""

    def __init__(self, of: str) -> None:
        self.of = of

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.store = context.store(CLOCK)

    def process(self, record: StreamRecord) -> None:
        if record.key is not None and record.value is not None:
            self.store.put(self.of, max(self.store.get(self.of) or 0, record.timestamp))
        self.context.forward(record.value)


class Bare:
    """A processor that hands records on without their headers: an update of a join has those of either side."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context

    def process(self, record: StreamRecord) -> None:
        self.context.forward(record.value, headers=())


class Tax:
    """A transformer of prices that needs no store."""

    def init(self, context: TransformContext) -> None: ...

    def transform(self, _product: str, price: int | None) -> int | None:
        return None if price is None else price * TAX


class Rate:
    """A transformer of prices that puts behind each how many updates its product has had."""

    def init(self, context: TransformContext) -> None:
        self.updates = context.store(UPDATES)

    def transform(self, product: str, price: int | None) -> list[int] | None:
        number = (self.updates.get(product) or 0) + 1
        self.updates.put(product, number)
        return None if price is None else [price, number]


class Date:
    """A transformer of counts that puts behind each the time of its update."""

    def init(self, context: TransformContext) -> None:
        self.context = context

    def transform(self, _product: str, orders: int) -> list[int]:
        return [orders, self.context.timestamp]


def both(one: Json, other: Json) -> list[Json]:
    return [one, other]


def is_low(_product: str, price: int) -> bool:
    return price <= LOW


def nothing() -> list[int]:
    return [0, 0]


def one_order_more(_product: str, _wanted: int, busy: list[int]) -> list[int]:
    orders, prices = busy
    return [orders + 1, prices]


def one_price_more(_product: str, price: int, busy: list[int]) -> list[int] | None:
    orders, prices = busy
    return None if price > HIGH else [orders, prices + 1]


def window_of(key: Windowed[str], _busy: list[int]) -> str:
    return f"{key.key}@{key.window.start}"


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "dated_prices"
    summary = "A stream beside versioned tables by the DSL, as of each record's time, at once and with a grace period."
    keys = rf"({WORD})?"
    settings: ClassVar[Mapping[str, Any]] = {"processing.guarantee": "exactly_once_v2"}
    time_step_ms = 8_000
    durations_ms = (GRACE_MS, HISTORY_MS, RATED_HISTORY_MS, SIZE_MS, SIZE_MS + WINDOW_GRACE_MS)
    updates: ClassVar[frozenset[str]] = frozenset({"busy", "dated"})
    joins: ClassVar[frozenset[str]] = frozenset({"demand"})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        values = JsonSerde[Any]()
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=values)
        for store in (UPDATES, CLOCK):
            builder.add_state_store(stores.key_value(store, serdes=(StrSerde(), JsonSerde())))
        priced, rating = (
            Materialized.as_(stores.versioned(name, retention_ms=history))
            for name, history in ((PRICES, HISTORY_MS), (RATED, RATED_HISTORY_MS))
        )
        prices = builder.table(f"{application_id}-prices", materialized=priced)
        orders = builder.stream(f"{application_id}-orders").process_values(partial(Clock, "orders"), CLOCK)
        rated = prices.transform_values(Rate, UPDATES, materialized=rating)
        rated.to_stream().to(f"{application_id}-rated", value_serde=values)
        bargains = prices.filter(is_low)
        bargains.to_stream().to(f"{application_id}-bargains")
        taxed = prices.transform_values(Tax)
        orders.join_table(taxed, both).to(f"{application_id}-taxed")
        grouped = orders.process_values(Bare).group_by_key(value_serde=values)
        ordered = grouped.count(materialized=Materialized(ORDERED, value_serde=values))
        prices.join(ordered, both).to_stream().to(f"{application_id}-demand")
        ordered.transform_values(Date).to_stream().to(f"{application_id}-dated")
        orders.join_table(prices, both).to(f"{application_id}-sold")
        orders.left_join_table(bargains, both).to(f"{application_id}-cheap")
        settled = orders.left_join_table(
            rated, both, value_serde=values, grace=GRACE_MS, name=WAITING.removesuffix("-Buffer")
        )
        settled.to(f"{application_id}-settled")
        windows = TimeWindows.of_size(SIZE_MS, grace=WINDOW_GRACE_MS)
        dated = prices.to_stream().process_values(partial(Clock, "prices"), CLOCK)
        busy = (
            grouped.cogroup(one_order_more)
            .cogroup(dated.group_by_key(value_serde=values), one_price_more)
            .windowed_by(windows)
            .aggregate(nothing, materialized=Materialized(BUSY, retention=LONG))
        )
        busy.to_stream(window_of).to(f"{application_id}-busy", key_serde=StrSerde())
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        product = random.choice(("a", "a", "a", "ann"))
        if random.random() < 0.45:
            headers = (("by", random.choice(("post", "hand"))),) if random.random() < 0.2 else ()
            value = None if random.random() < 0.1 else random.randint(0, 9)
            ordered = KEYLESS if random.random() < 0.1 else product
            return Sample(ordered, value, topic="orders", headers=headers)
        return Sample(product, None if random.random() < 0.25 else random.randint(0, 9), topic="prices")

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic == "prices":
            return self._price(state, record)
        if record.value is None:
            return []
        if record.key == KEYLESS:
            value, time, headers = [record.value, None], record.timestamp, record.headers
            return [Output(topic, KEYLESS, value, time, headers) for topic in ("cheap", "settled")]
        before = state[CLOCK].get("orders", -1)
        state[CLOCK]["orders"] = max(before, record.timestamp)
        return [
            *self._at_once(state, record),
            *self._settled(state, record, before),
            *self._ordered(state, record),
            *self._busy(state, record),
        ]

    def _price(self, state: State, record: InputRecord) -> list[Output]:
        key, value, time = record.key, record.value, record.timestamp
        prices, rated = state[PRICES], state[RATED]
        valid_to = prices.put(key, value, time)
        if valid_to == prices.NOT_PUT:
            return []
        outputs = [Output("bargains", key, value if value is not None and value <= LOW else None)]
        number = state[UPDATES][key] = state[UPDATES].get(key, 0) + 1
        rating = None if value is None else [value, number]
        if rated.put(key, rating, time) != rated.NOT_PUT:
            outputs.append(Output("rated", key, rating))
        ordered = state[ORDERED].get(key)
        if ordered is not None and valid_to == prices.NEWEST:
            orders, latest = ordered
            demand = None if value is None else [value, orders]
            outputs.append(Output("demand", key, demand, max(time, latest)))
        if value is not None:
            state[CLOCK]["prices"] = max(state[CLOCK].get("prices", -1), time)
            outputs += self._busy(state, record)
        return outputs

    def _ordered(self, state: State, record: InputRecord) -> list[Output]:
        number, latest = state[ORDERED].get(record.key, [0, -1])
        time = max(latest, record.timestamp)
        state[ORDERED][record.key] = [number + 1, time]
        dated = Output("dated", record.key, [number + 1, time], time)
        price = state[PRICES].get(record.key)
        if price is None:
            return [dated]
        demand = [price.value, number + 1]
        return [dated, Output("demand", record.key, demand, max(time, price.timestamp))]

    def _at_once(self, state: State, record: InputRecord) -> list[Output]:
        price = state[PRICES].get(record.key, record.timestamp)
        low = None if price is None or price.value > LOW else price.value
        cheap = Output("cheap", record.key, [record.value, low], headers=record.headers)
        if price is None:
            return [cheap]
        prices = {"sold": price.value, "taxed": price.value * TAX}
        return [
            cheap,
            *(
                Output(topic, record.key, [record.value, one], headers=record.headers)
                for topic, one in prices.items()
            ),
        ]

    def _settled(self, state: State, record: InputRecord, before: int) -> list[Output]:
        waiting, due = state[WAITING], []
        if record.timestamp < before - GRACE_MS:
            due.append((record.timestamp, record.key, record.value, record.headers))
        else:
            here = [record.topic, record.partition, record.offset, [list(one) for one in record.headers]]
            number = 0
            while _row(record.timestamp, record.key, number) in waiting:
                number += 1
            waiting[_row(record.timestamp, record.key, number)] = [*here, record.value]
            for row in sorted(waiting):
                time, key, _ = row.split(" ")
                if int(time) <= state[CLOCK]["orders"] - GRACE_MS:
                    *_, headers, value = waiting.pop(row)
                    due.append((int(time), key, value, tuple((name, text) for name, text in headers)))
        outputs = []
        for time, key, value, headers in due:
            rated = state[RATED].get(key, time)
            outputs.append(Output("settled", key, [value, rated and rated.value], time, headers))
        return outputs

    def _busy(self, state: State, record: InputRecord) -> list[Output]:
        key, start, group = record.key, record.timestamp // SIZE_MS * SIZE_MS, record.topic
        if start + SIZE_MS + WINDOW_GRACE_MS <= state[CLOCK][group]:
            return []
        counted, latest = state[BUSY].get(key, start) or ([0, 0], -1)
        more = one_price_more if group == "prices" else one_order_more
        busy = more(key, record.value, counted)
        time = max(latest, record.timestamp)
        state[BUSY].put(key, None if busy is None else [busy, time], start)
        return [Output("busy", f"{key}@{start}", busy, time)]

    def accepts(self, record: InputRecord) -> bool:
        if record.topic != "orders" and (record.topic != "prices" or record.key == KEYLESS):
            return False
        return record.value is None or type(record.value) is int

    def decode_key(self, store: str, key: bytes) -> str:
        if store != WAITING:
            return super().decode_key(store, key)
        (time,), (number,) = struct.unpack_from(">q", key), struct.unpack(">I", key[-4:])
        return _row(time, key[8:-4].decode(), number)

    def decode(self, store: str, value: bytes) -> Json:
        """Of an order that waits, with where it was read."""
        if store != WAITING:
            return super().decode(store, value)
        topic, partition, offset, headers, wanted = msgspec.msgpack.decode(value)
        return [
            topic.rpartition("-")[2],
            partition,
            offset,
            [[name, text and text.decode()] for name, text in headers],
            msgspec.json.decode(wanted),
        ]


def _row(time: int, key: str, number: int) -> str:
    """The name of the row of an order that waits, which is the next one of its time and key. Names are in the order of
    the rows."""
    return f"{time:015} {key} {number:010}"


SCENARIO = Scenario()
