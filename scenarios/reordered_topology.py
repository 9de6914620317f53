"""An application by the DSL whose sub-topologies come in another order in another version of it, so that ordinals
change.

Input: to `clicks`, keyed by page, any number; to `orders`, keyed by customer, which product and how many, or null,
which is left out. Clicks are counted by page. Orders are numbered by customer, go by a repartition topic to another
sub-topology, keyed by product, and are collected there in windows of 20 s, which take late orders for 10 s more.

Output: in `counted`, keyed by page, how many clicks there were. In `collected`, keyed by product and the start of a
window, as in `a@20000`, the numbers of all orders of the window with how many were wanted, once, when the window is
closed: with the first record whose time closes it, before that counts, the earliest window first, and of one window by
product.

The one version has clicks first, the other one last. The stores, the positions and the stream time by which windows
close have to come along, whenever the other version is started; operators that have a time have names, for those that
count up change. The stream time is the largest time of the records that count, and may be older than the stores after
a crash under at least once: exactly once is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import KEYED, InputRecord, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.state.windowed import Windowed
from store.streams.dsl import EmitStrategy, Materialized, StreamsBuilder, TimeWindows
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.streams.topology import Topology

CLICKS, NUMBERS, COLLECTED = "click-counts", "order-numbers", "collected-orders"
BY_PRODUCT = "by-product-repartition"
SIZE_MS = 20_000
GRACE_MS = 10_000


class Number:
    """A processor that numbers the orders of each customer."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.numbers = context.store(NUMBERS)

    def process(self, record: StreamRecord) -> None:
        number = (self.numbers.get(record.key) or 0) + 1
        self.numbers.put(record.key, number)
        self.context.forward([*record.value, number])


def is_order(_customer: str, order: list[Any] | None) -> bool:
    return order is not None


def product_of(_customer: str, order: list[Any]) -> str:
    return str(order[0])


def collect(_product: str, order: list[Any], orders: list[list[int]]) -> list[list[int]]:
    return [*orders, order[1:]]


def name_of(key: Windowed[str], _orders: list[list[int]]) -> str:
    return f"{key.key}@{key.window.start}"


class Scenario(scenarios.Scenario):
    """Both versions of the pipeline, with their input and their reference."""

    name = "reordered_topology"
    summary = (
        "An application of the DSL that goes on as another version, with its sub-topologies in another order."
    )
    keys = KEYED
    settings: ClassVar[Mapping[str, Any]] = {"processing.guarantee": "exactly_once_v2"}
    time_step_ms = 6_000
    durations_ms = (SIZE_MS, SIZE_MS + GRACE_MS)
    retentions_ms: ClassVar[Mapping[str, int]] = {COLLECTED: SIZE_MS + GRACE_MS}
    updates: ClassVar[frozenset[str]] = frozenset({"counted"})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        builder = self._builder(application_id)
        self._clicks(builder)
        self._orders(builder, stores)
        return builder.build().sub_topologies

    def reordered(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        builder = self._builder(application_id)
        self._orders(builder, stores)
        self._clicks(builder)
        return builder.build().sub_topologies

    def _builder(self, application_id: str) -> StreamsBuilder:
        return StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())

    def _clicks(self, builder: StreamsBuilder) -> None:
        clicks = builder.stream(f"{builder.application_id}-clicks").group_by_key()
        counted = clicks.count(
            materialized=Materialized.as_(CLICKS).with_value_serde(JsonSerde()).with_caching_enabled()
        )
        counted.to_stream().to(f"{builder.application_id}-counted")

    def _orders(self, builder: StreamsBuilder, stores: Stores) -> None:
        values = JsonSerde[Any]()
        builder.add_state_store(stores.key_value(NUMBERS, serdes=(StrSerde(), JsonSerde())))
        orders = builder.stream(f"{builder.application_id}-orders").filter(is_order)
        numbered = orders.process_values(Number, NUMBERS)
        products = numbered.group_by(product_of, value_serde=values, name="by-product")
        windows = products.windowed_by(TimeWindows.of_size(SIZE_MS, grace=GRACE_MS))
        collected = windows.emit_strategy(EmitStrategy.on_window_close()).aggregate(
            list, collect, materialized=Materialized(COLLECTED), name="collect"
        )
        collected.to_stream(name_of).to(f"{builder.application_id}-collected", key_serde=StrSerde())

    def input(self, random: Random) -> Sample:
        if random.random() < 0.3:
            return Sample(random.choice(("a", "ann")), random.randint(0, 9), topic="clicks")
        order = None if random.random() < 0.1 else [random.choice("ab"), random.randint(0, 9)]
        return Sample(random.choice(("u", "v")), order, topic="orders")

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic == "clicks":
            number, latest = state[CLICKS].get(record.key, [0, -1])
            state[CLICKS][record.key] = [number + 1, max(latest, record.timestamp)]
            return [Output("counted", record.key, *state[CLICKS][record.key])]
        if record.topic == BY_PRODUCT:
            return self._collect(state, record)
        if record.value is None:
            return []
        number = state[NUMBERS][record.key] = state[NUMBERS].get(record.key, 0) + 1
        return [Output(BY_PRODUCT, record.value[0], [*record.value, number])]

    def _collect(self, state: State, record: InputRecord) -> list[Output]:
        windows, time = state[COLLECTED], record.timestamp
        # A record that moves the stream time is in a window that is open, so the latest of all is among the values.
        before = max([latest for _, latest in windows.rows().values()], default=-1)
        now = max(before, time)
        wait = SIZE_MS + GRACE_MS
        closed = windows.fetch_range(None, None, before - wait + 1, now - wait)
        outputs = [
            Output("collected", f"{product}@{start}", orders, latest)
            for product, start, (orders, latest) in sorted(closed, key=itemgetter(1))
        ]
        start = time - time % SIZE_MS
        if start > now - wait:
            orders, latest = windows.get(record.key, start) or ([], -1)
            windows.put(record.key, [[*orders, record.value[1:]], max(latest, time)], start)
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        value = record.value
        if record.topic != "orders":
            return record.topic == "clicks" and type(value) is int
        return value is None or (isinstance(value, list) and [*map(type, value)] == [str, int])


SCENARIO = Scenario()
