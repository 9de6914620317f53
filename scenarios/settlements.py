"""Joins and an aggregate of the DSL at least once, whose functions refuse records that operators have held back.

Input, keyed by customer, to `claims`: a number, or 0, which is a receipt. To `orders`, keyed by product: how much is
wanted, which is its price from then on if it is large. Times are those of a partition's turns: three offsets of claims,
or one order.

A claim waits for a receipt of its customer within a turn. In `settled` are both, or the claim alone. None that is
negative may be left alone: the record that would have it come out alone is not joined, and claims that have waited
behind that one go with the next record of the partition. In `priced` is each order with what the price was then, two
turns later; in `listed` are all orders of a product, but for fives, which are refused once they are on the list. What
is refused is in `claims-dead` and `orders-dead`, with headers that say why, beside copies of what is large: in the
place of a negative claim the record that has let it go, of a negative order the order itself.

At least once a handler may go on where nothing is taken back: it does without a record, never without a result that is
of none. An order that is let go may be of this transaction or an earlier one. So that the same comes of both, each
order lets go one other at most, and does so last.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import msgspec

import scenarios
from scenarios import WORD, InputRecord, Json, Output, Sample, State, Stores
from scenarios.readings import EARLIEST, BuryRefused, RefusedError, buried
from scenarios.unpaid_orders import OF_ORDERS, those_that_wait
from store.serdes import JsonSerde, Serde, StrSerde
from store.streams.dsl import JoinWindows, Materialized, StreamJoined, StreamsBuilder
from store.streams.handlers import ErrorHandlerContext, Response
from store.streams.timestamps import ConsumedRecord
from store.streams.topology import Topology

TURN_MS = 10_000
CLAIMS_A_TURN = 3
GRACE_MS = 2 * TURN_MS
HISTORY_MS = 4 * TURN_MS
CLAIMS, RECEIPTS, ALONE = (
    f"settled-{suffix}-store" for suffix in ("this-join", "outer-other-join", "left-shared-join")
)
PRICES, LISTED, WAITING = "prices-table", "listed-table", "priced-Buffer"
RECEIPT = 0
UNLISTED = 5
LARGE = 8


class Complain(BuryRefused):
    """A handler that goes on without a record, and fails where what is refused is of none."""

    def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
        return super().handle_error(context, error) if context.topic else Response.fail()


def turn_of_claim(record: ConsumedRecord, _partition_time: int) -> int:
    return EARLIEST + record.offset // CLAIMS_A_TURN * TURN_MS


def turn_of_order(_record: ConsumedRecord, partition_time: int) -> int:
    return max(partition_time, 0) + TURN_MS


def is_receipt(_customer: str, value: int) -> bool:
    return value == RECEIPT


def is_large(_key: str, value: int) -> bool:
    return value >= LARGE


def settle(claim: int, receipt: int | None) -> list[int | None]:
    if receipt is None and claim < 0:
        raise RefusedError(f"a claim of {claim}")
    return [claim, receipt]


def enlist(_product: str, wanted: int, orders: list[int]) -> list[int]:
    orders.append(wanted)
    if wanted == UNLISTED:
        raise RefusedError(f"an order of {wanted}")
    return orders


def price(wanted: int, price: int | None) -> list[int | None]:
    if wanted < 0:
        raise RefusedError(f"an order of {wanted}")
    return [wanted, price]


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "settlements"
    summary = "Joins and an aggregate at least once, whose functions refuse records that were held back."
    keys = WORD
    settings: ClassVar[Mapping[str, Any]] = {
        "processing.guarantee": "at_least_once",
        "processing.exception.handler": "scenarios.settlements.Complain",
    }
    updates: ClassVar[frozenset[str]] = frozenset({"listed"})
    retentions_ms: ClassVar[Mapping[str, int]] = dict.fromkeys((CLAIMS, RECEIPTS), 2 * TURN_MS)

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        self._claims(application_id, builder)
        self._orders(application_id, builder, stores)
        return builder.build().sub_topologies

    def _claims(self, application_id: str, builder: StreamsBuilder) -> None:
        claims = builder.stream(f"{application_id}-claims", timestamp_extractor=turn_of_claim)
        windows = JoinWindows.of_time_difference_with_no_grace(TURN_MS)
        serdes: tuple[Serde[Any], ...] = (StrSerde(), JsonSerde(), JsonSerde())
        said = StreamJoined.with_(*serdes).with_store_name("settled")
        receipts = claims.filter(is_receipt)
        settled = claims.filter_not(is_receipt).left_join(receipts, settle, windows, joined=said)
        settled.to(f"{application_id}-settled", value_serde=JsonSerde())
        claims.filter(is_large).to(f"{application_id}-claims-dead")

    def _orders(self, application_id: str, builder: StreamsBuilder, stores: Stores) -> None:
        orders = builder.stream(f"{application_id}-orders", timestamp_extractor=turn_of_order)
        large = orders.filter(is_large)
        large.to(f"{application_id}-orders-dead")
        prices = large.to_table(
            materialized=Materialized.as_(stores.versioned(PRICES, retention_ms=HISTORY_MS))
        )
        listed = orders.group_by_key().aggregate(list, enlist, materialized=Materialized(LISTED))
        listed.to_stream().to(f"{application_id}-listed")
        # The last one: where it raises, what would come after it does not get the record.
        priced = orders.left_join_table(
            prices,
            price,
            value_serde=JsonSerde(),
            grace=GRACE_MS,
            name=WAITING.removesuffix("-Buffer"),
        )
        priced.to(f"{application_id}-priced", value_serde=JsonSerde())

    def input(self, random: Random) -> Sample:
        if random.random() < 0.5:
            value = random.choice((1, 2, LARGE, -1, -1, -2, RECEIPT))
            return Sample(random.choice(("a", "a", "ann")), value, topic="claims")
        value = random.choice((1, 2, UNLISTED, UNLISTED, LARGE, LARGE + 1, -1))
        return Sample(random.choice(("a", "a", "a", "ann")), value, topic="orders")

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        return self._claim(state, record) if record.topic == "claims" else self._order(state, record)

    def time_of(self, state: State, record: InputRecord) -> int:
        if record.topic == "claims":
            return EARLIEST + record.offset // CLAIMS_A_TURN * TURN_MS
        # The last order is one of those that wait.
        return max((int(row.split(" ")[0]) for row in state[WAITING]), default=0) + TURN_MS

    def _claim(self, state: State, record: InputRecord) -> list[Output]:
        key, value, time = record.key, record.value, self.time_of(state, record)
        own, other = (state[one] for one in ((CLAIMS, RECEIPTS) if value else (RECEIPTS, CLAIMS)))
        outputs, refused = self._alone(state, time)
        if refused:
            outputs.append(_refused(record, time))
        else:
            partners = other.fetch(key, time - TURN_MS, time + TURN_MS)
            for at, partner in partners:
                if not value:
                    state[ALONE].pop(_claim_row(at, key), None)
                pair = [value, partner] if value else [partner, value]
                outputs.append(Output("settled", key, pair, max(at, time)))
            if value and not partners:
                row = _claim_row(time, key)
                state[ALONE][row] = [*state[ALONE].get(row, []), value]
        own.put(key, value, time)
        if value >= LARGE:
            outputs.append(Output("claims-dead", key, value, time))
        return outputs

    def _alone(self, state: State, now: int) -> tuple[list[Output], bool]:
        """What comes out alone, and whether a claim has kept back those behind it."""
        outputs: list[Output] = []
        alone = state[ALONE]
        for row in sorted(alone):
            time, _, key = row.split(" ")
            if int(time) + TURN_MS >= now:
                break
            claims = alone.pop(row)
            for number, claim in enumerate(claims, 1):
                if claim < 0:
                    if claims[number:]:
                        alone[row] = claims[number:]
                    return outputs, True
                outputs.append(Output("settled", key, [claim, None], int(time)))
        return outputs, False

    def _order(self, state: State, record: InputRecord) -> list[Output]:
        key, value, time = record.key, record.value, self.time_of(state, record)
        outputs = []
        if value >= LARGE:
            state[PRICES].put(key, value, time)
            outputs.append(Output("orders-dead", key, value, time))
        if value == UNLISTED:
            outputs.append(_refused(record, time))
        else:
            orders, latest = state[LISTED].get(key, [[], -1])
            state[LISTED][key] = [[*orders, value], max(latest, time)]
            outputs.append(Output("listed", key, [*orders, value], max(latest, time)))
        waiting, number = state[WAITING], 0
        while _order_row(time, key, number) in waiting:
            number += 1
        waiting[_order_row(time, key, number)] = [record.topic, record.partition, record.offset, [], value]
        for row in sorted(waiting):
            at, product, _ = row.split(" ")
            if int(at) > time - GRACE_MS:
                break
            topic, partition, offset, _, wanted = waiting.pop(row)
            if wanted < 0:
                of = InputRecord(topic, partition, offset, product, wanted, int(at))
                outputs.append(_refused(of, int(at)))
            else:
                known = state[PRICES].get(product, int(at))
                pair = [wanted, known and known.value]
                outputs.append(Output("priced", product, pair, int(at)))
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        return record.topic in ("claims", "orders") and type(record.value) is int

    def decode_key(self, store: str, key: bytes) -> str:
        if store == ALONE:
            time, side = struct.unpack_from(">qB", key)
            if side != OF_ORDERS:
                raise ValueError(f"side {side} does not wait")
            return _claim_row(time, key[9:].decode())
        if store == WAITING:
            (time,), (number,) = struct.unpack_from(">q", key), struct.unpack(">I", key[-4:])
            return _order_row(time, key[8:-4].decode(), number)
        return super().decode_key(store, key)

    def decode(self, store: str, value: bytes) -> Json:
        """Of claims that wait, those of one row as they came; of an order, with where it was read."""
        if store == ALONE:
            return those_that_wait(value)[1]
        if store == WAITING:
            topic, partition, offset, headers, wanted = msgspec.msgpack.decode(value)
            return [topic.rpartition("-")[2], partition, offset, headers, msgspec.json.decode(wanted)]
        return super().decode(store, value)


def _refused(record: InputRecord, time: int) -> Output:
    return replace(buried(record, time, "refused", RefusedError), topic=f"{record.topic}-dead")


def _claim_row(time: int, key: str) -> str:
    """The name of a row of claims that wait. Names are in the order of the rows."""
    return f"{time:015} {OF_ORDERS} {key}"


def _order_row(time: int, key: str, number: int) -> str:
    """The same of an order, which is the next one of its time and key."""
    return f"{time:015} {key} {number:010}"


SCENARIO = Scenario()
