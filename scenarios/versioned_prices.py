"""Trades valued at the price of their moment: a versioned store of prices, both topics out of order.

Input: to `prices`, keyed by share, a price, null when there is none from then on; to `trades`, keyed by share, how many
were traded. A price is valid from its timestamp on, and prices can be asked for as of 60 s ago.

Output, keyed by share: in `changes` for each price the time until which it is valid (-1: no end), or for null the
price that it ended. In `valued` for each trade the price that was valid at its timestamp, with the time that it is
from, then what prices there were since, newest first, those of the next 8 s, oldest first, those of that very moment,
and the prices of 8 s and 60 s earlier; and how many were traded in all, with the time of the last trade, which a
timestamped store keeps.
"""

from __future__ import annotations

import struct
from random import Random

import msgspec

import scenarios
from scenarios import NOT_EMPTY, InputRecord, Json, Output, Sample, Serdes, State, Stores
from store.serdes import FloatSerde, JsonSerde, StrSerde
from store.state.timestamped import ValueAndTimestamp
from store.streams.topology import Context, Topology
from store.types import Record

RETENTION_MS = 60_000
NEAR_MS = 8_000
PRICES = "prices"
VOLUMES = "volumes"
SERDES: Serdes = (StrSerde(), JsonSerde())


class Value:
    """The pipeline."""

    def __init__(self, application_id: str) -> None:
        self.prices = f"{application_id}-prices"
        self.changes = f"{application_id}-changes"
        self.valued = f"{application_id}-valued"

    def __call__(self, context: Context, record: Record) -> None:
        assert record.key is not None
        share, time = record.key.decode(), context.timestamp
        prices = context.store(PRICES)
        if context.topic == self.prices:
            if record.value is None:
                ended = prices.delete(share, time)
                result = None if ended is None else ended.value
            else:
                result = prices.put(share, float(record.value), time)
            context.forward(self.changes, record.key, None if result is None else b"%d" % result)
            return
        assert record.value is not None
        volumes = context.store(VOLUMES)
        so_far = volumes.get(share) or ValueAndTimestamp(0, time)
        volume = ValueAndTimestamp(so_far.value + int(record.value), max(so_far.timestamp, time))
        volumes.put(share, volume)
        price = prices.get(share, time)
        since: list[list[int]] = []
        soon: list[list[int]] = []
        now: list[list[int]] = []
        if price is not None:
            since = [list(found[:2]) for found in prices.get_versions(share, time, ascending=False)]
            soon = [list(found[:2]) for found in prices.get_versions(share, time, time + NEAR_MS)]
            now = [list(found[:2]) for found in prices.get_versions(share, time, time)]
        before = [prices.get(share, max(0, time - span)) for span in (NEAR_MS, RETENTION_MS)]
        earlier = [found and list(found[:2]) for found in before]
        valued = [price and price.value, since, soon, now, earlier, *volume]
        context.forward(self.valued, record.key, msgspec.json.encode(valued))


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "versioned_prices"
    summary = "Trades valued as of their own time, over a versioned store of prices."
    keys = NOT_EMPTY
    time_step_ms = 8_000
    durations_ms = (NEAR_MS, RETENTION_MS)

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-prices", f"{application_id}-trades"),
            sinks=(f"{application_id}-changes", f"{application_id}-valued"),
            stores=(
                stores.versioned(PRICES, retention_ms=RETENTION_MS, serdes=(StrSerde(), FloatSerde())),
                stores.key_value(VOLUMES, serdes=SERDES, timestamped=True),
            ),
            process=Value(application_id),
        )

    def input(self, random: Random) -> Sample:
        share = random.choice(("a", "a", "a", "ann"))
        if random.random() < 0.3:
            return Sample(share, random.randint(1, 5), topic="trades")
        return Sample(
            share, None if random.random() < 0.4 else random.choice((0, *range(10, 40))), topic="prices"
        )

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        prices, volumes = state[PRICES], state[VOLUMES]
        if record.topic == "prices":
            if record.value is not None:
                return [
                    Output(
                        "changes", record.key, prices.put(record.key, float(record.value), record.timestamp)
                    )
                ]
            ended = prices.delete(record.key, record.timestamp)
            return [Output("changes", record.key, ended and int(ended.value))]
        traded, last = volumes.get(record.key, [0, 0])
        volumes[record.key] = [traded + record.value, max(last, record.timestamp)]
        price = prices.get(record.key, record.timestamp)
        since = prices.versions(record.key, record.timestamp) if price else []
        history = [[version.value, version.timestamp] for version in since]
        soon = [[value, time] for value, time in history if time <= record.timestamp + NEAR_MS]
        now = [[price.value, price.timestamp]] if price else []
        before = [prices.get(record.key, max(0, record.timestamp - span)) for span in (NEAR_MS, RETENTION_MS)]
        earlier = [found and [found.value, found.timestamp] for found in before]
        valued = [price and price.value, history[::-1], soon, now, earlier, *volumes[record.key]]
        return [Output("valued", record.key, valued)]

    def accepts(self, record: InputRecord) -> bool:
        if record.topic == "prices" and record.value is None:
            return True
        return record.topic in ("prices", "trades") and type(record.value) is int

    def decode(self, store: str, value: bytes) -> Json:
        if store != PRICES:
            return super().decode(store, value)
        if len(value) != 8 or value[0] < 0x80:
            raise ValueError(f"{value.hex()} is no price")
        (price,) = struct.unpack(">d", bytes((value[0] ^ 0x80,)) + value[1:])
        return price


SCENARIO = Scenario()
