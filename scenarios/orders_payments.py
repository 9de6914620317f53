"""Orders joined with their payments: two topics, and a window store of each that keeps duplicates.

Input, keyed by order: to `orders` and `payments`, any value. An order and a payment of the same key are joined, once,
when their times differ by no more than 30 s, by the one that comes later; null waits for nobody, and has all that came
before committed. Both wait for 90 s.

Output, keyed by order: in `joined` the two values, with the later of the two times. In `waiting` what there is on the
own side of each record, newest first, on the other side of all keys up to its own, and what of the own side is the last
one of the record's own time.

The order in which records of the two topics come is free. The reference takes them as the task did.
"""

from __future__ import annotations

from random import Random

import msgspec

import scenarios
from scenarios import NOT_EMPTY, InputRecord, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.state.windowed import LATEST
from store.streams.topology import Context, Topology
from store.types import Record

WITHIN_MS = 30_000
RETENTION_MS = 90_000
SIDES = ("orders", "payments")


class Join:
    """The pipeline."""

    def __init__(self, application_id: str) -> None:
        self.orders = f"{application_id}-orders"
        self.joined = f"{application_id}-joined"
        self.waiting = f"{application_id}-waiting"

    def __call__(self, context: Context, record: Record) -> None:
        assert record.key is not None
        is_order = context.topic == self.orders
        own, other = map(context.store, SIDES if is_order else reversed(SIDES))
        if record.value is None:
            # A store that retains duplicates takes no notice.
            own.put(record.key.decode(), None, context.timestamp)
            context.commit()
            return
        key, time, value = record.key.decode(), context.timestamp, msgspec.json.decode(record.value)
        with other.fetch(key, time - WITHIN_MS, time + WITHIN_MS) as partners:
            for at, partner in partners:
                pair = [value, partner] if is_order else [partner, value]
                context.forward(self.joined, record.key, msgspec.json.encode(pair), timestamp=max(at, time))
        own.put(key, value, time)
        with own.backward_fetch(key, 0, LATEST) as mine, other.backward_fetch(None, key, 0, LATEST) as theirs:
            waiting = [[value for _, value in mine], [[found.key, value] for found, value in theirs]]
        waiting.append(own.fetch(key, time))
        context.forward(self.waiting, record.key, msgspec.json.encode(waiting))


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "orders_payments"
    summary = "A join of two topics within a time difference, over window stores that keep duplicates."
    keys = NOT_EMPTY
    time_step_ms = 12_000
    durations_ms = (WITHIN_MS, RETENTION_MS)

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        return Topology(
            application_id=application_id,
            sources=tuple(f"{application_id}-{side}" for side in SIDES),
            sinks=(f"{application_id}-joined", f"{application_id}-waiting"),
            stores=tuple(
                kind.window(
                    side,
                    retention_ms=RETENTION_MS,
                    size_ms=2 * WITHIN_MS,
                    retain_duplicates=True,
                    serdes=(StrSerde(), JsonSerde()),
                )
                for side, kind in zip(SIDES, (stores, stores.others), strict=True)
            ),
            process=Join(application_id),
        )

    def input(self, random: Random) -> Sample:
        value = None if random.random() < 0.1 else random.randint(0, 9)
        return Sample(random.choice(("a", "ann")), value, topic=random.choice(SIDES))

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.value is None:
            return []
        key, time, value = record.key, record.timestamp, record.value
        outputs = []
        if record.topic == "orders":
            own, other = state["orders"], state["payments"]
            for at, payment in other.fetch(key, time - WITHIN_MS, time + WITHIN_MS):
                outputs.append(Output("joined", key, [value, payment], max(at, time)))
        else:
            own, other = state["payments"], state["orders"]
            for at, order in other.fetch(key, time - WITHIN_MS, time + WITHIN_MS):
                outputs.append(Output("joined", key, [order, value], max(at, time)))
        own.put(key, value, time)
        mine = [found for _, found in own.fetch(key, 0, LATEST)]
        theirs = [[name, found] for name, _, found in other.fetch_range(None, key, 0, LATEST)]
        return [*outputs, Output("waiting", key, [mine[::-1], theirs[::-1], own.get(key, time)])]

    def commits_after(self, record: InputRecord) -> bool:
        return record.value is None

    def accepts(self, record: InputRecord) -> bool:
        return record.topic in SIDES


SCENARIO = Scenario()
