"""Payments with a limit, by the DSL: results that are held back, and refused when they are forwarded at last.

Input, keyed by card: an amount, or a negative one, which is a refund. Payments are added up by card in windows of 20 s,
which take late ones for 10 s more; refunds are counted by card.

Output: in `spent`, keyed by card and start of a window, as in `ann@20000`, number and sum of its payments; in
`refunds`, keyed by card, how many there were. In `bills`, keyed as `spent`, the sum of a window that is closed, which
`suppress` has held back until then.

Behind each of these is a mapper that raises: of a window with more than two payments, of a card with more than two
refunds, and of a sum that three divides. A handler goes on. What raises may have been held back by the record cache,
with others before and behind it in the same row, or by `suppress`, since long before the last commit.

In `dead`, with headers that say why and of which record, are the payments and refunds that are too many. Each record
counts one, so it is the same ones whenever a row is forwarded: those at fault are found from the last one on, until the
rest is within the limit. They leave nothing behind, nor does their time count. In `unbilled`, keyed by card, are the
sums that were refused. They are of no record, and a header says of which window. Both topics get copies too, so that
they are there: of payments of nothing, and of large bills.

Windows close by the largest time of the payments that were taken. What `suppress` holds back is a row of a store, as in
`top_k`. No store is written before a record is refused, which nothing but the commit may bring: else one who reads what
is not committed would see what is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import WORD, InputRecord, Json, Output, Sample, State, Stores, decode_held, decode_held_key
from scenarios.readings import said_of
from scenarios.top_k import as_headers, as_json
from store.serdes import JsonSerde, StrSerde
from store.state.windowed import Windowed
from store.streams.dsl import Materialized, StreamsBuilder, Suppressed, TimeWindows
from store.streams.handlers import (
    MESSAGE,
    STACKTRACE,
    TOPIC,
    ErrorHandlerContext,
    LogAndContinueExceptionHandler,
    Response,
)
from store.streams.topology import Topology

SIZE_MS = 20_000
GRACE_MS = 10_000
MOST = 2
"""Payments in a window, and refunds."""
UNLUCKY = 3
LARGE = 12
SPENT, REFUNDS, CLOSED = "spent-windows", "refunds-table", "closed-store"
TIMES, NOW = "times", "now"


class RefusedError(Exception):
    """A result is not taken."""

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(why)
        self.topic = topic
        """Where it is buried: what is of no record does not say of which application it is."""


class Bury(LogAndContinueExceptionHandler):
    """Goes on, with dead letters that say the same on every machine."""

    def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
        if not isinstance(error, RefusedError):
            return Response.fail()
        (letter,) = super().handle_error(replace(context, dead_letter_topic=error.topic), error).dead_letters
        said = {name: text for name, text in letter.headers if name not in (MESSAGE, STACKTRACE)}
        said[TOPIC] = context.topic.rpartition("-")[2].encode()
        key = letter.key
        if not context.topic and key is not None:
            said["window"] = b"%d" % int.from_bytes(key[-8:], "big")
            key = key[:-8]
        return Response.resume([letter._replace(key=key, headers=tuple(said.items()))])


def is_refund(_card: str, amount: int) -> bool:
    return amount < 0


def is_nothing(_card: str, amount: int) -> bool:
    return amount == 0


def is_large(_window: str, bill: int) -> bool:
    return bill >= LARGE


def add(_card: str, amount: int, spent: list[int]) -> list[int]:
    number, total = spent
    return [number + 1, total + amount]


def none_yet() -> list[int]:
    return [0, 0]


def within_limit(topic: str, spent: list[int]) -> list[int]:
    if spent[0] > MOST:
        raise RefusedError(topic, f"{spent[0]} payments")
    return spent


def few(topic: str, refunds: int) -> int:
    if refunds > MOST:
        raise RefusedError(topic, f"{refunds} refunds")
    return refunds


def billed(topic: str, spent: list[int]) -> int:
    if spent[1] % UNLUCKY == 0:
        raise RefusedError(topic, f"a sum of {spent[1]}")
    return spent[1]


def name_of(key: Windowed[str], _spent: Any) -> str:
    return f"{key.key}@{key.window.start}"


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "limits"
    summary = (
        "Results of the DSL that are held back, and refused when they are forwarded; dead letters of these."
    )
    keys = WORD
    # As in `readings`: without transactions in a store, what is refused begins a new incarnation of the task.
    settings: ClassVar[Mapping[str, Any]] = {
        "default.dsl.store": "txn_rocksDB",
        "statestore.transactional.enabled": True,
        "processing.guarantee": "exactly_once_v2",
        "processing.exception.handler": "scenarios.limits.Bury",
    }
    # An attempt of Spark ends with what is refused, and forgets what was decided about it.
    runtimes = ("worker", "streams")
    aborts = True
    time_step_ms = 5_000
    durations_ms = (SIZE_MS, SIZE_MS + GRACE_MS)
    retentions_ms: ClassVar[Mapping[str, int]] = {SPENT: SIZE_MS + GRACE_MS}
    updates: ClassVar[frozenset[str]] = frozenset({"spent", "refunds"})
    noted: ClassVar[frozenset[str]] = frozenset({TIMES})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        dead, unbilled = (f"{application_id}-{name}" for name in ("dead", "unbilled"))
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        amounts = builder.stream(f"{application_id}-input")
        payments = amounts.filter_not(is_refund)
        payments.filter(is_nothing).to(dead)
        windows = TimeWindows.of_size_and_grace(SIZE_MS, GRACE_MS)
        spent = (
            payments.group_by_key()
            .windowed_by(windows)
            .aggregate(none_yet, add, materialized=Materialized(SPENT))
        )
        closed = spent.suppress(Suppressed.until_window_closes(name="closed"))
        bills = closed.to_stream(name_of).map_values(partial(billed, unbilled))
        bills.to(f"{application_id}-bills", key_serde=StrSerde())
        bills.filter(is_large).to(unbilled, key_serde=StrSerde())
        spent.to_stream(name_of).map_values(partial(within_limit, dead)).to(
            f"{application_id}-spent", key_serde=StrSerde()
        )
        refunds = (
            amounts.filter(is_refund)
            .group_by_key()
            .count(materialized=Materialized(REFUNDS, value_serde=JsonSerde()))
        )
        refunds.to_stream().map_values(partial(few, dead)).to(f"{application_id}-refunds")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        headers = (("at", random.choice(("till", "web"))),) if random.random() < 0.3 else ()
        amount = -1 if random.random() < 0.25 else random.randint(0, 9)
        return Sample(random.choice(("ann", "gus")), amount, headers=headers)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.value < 0:
            return self._refund(state, record)
        key, time, held = record.key, record.timestamp, state[CLOSED]
        start, before = time - time % SIZE_MS, state[TIMES].get(NOW, 0)
        copies = [Output("dead", key, 0, headers=record.headers)] if record.value == 0 else []
        if start + SIZE_MS + GRACE_MS <= before:
            return copies
        (number, total), latest = state[SPENT].get(key, start) or ([0, 0], -1)
        if number == MOST:
            return [_one_too_many(record)]
        now = state[TIMES][NOW] = max(before, time)
        spent, latest = [number + 1, total + record.value], max(latest, time)
        state[SPENT].put(key, [spent, latest], start)
        held[f"{key} {start:015}"] = [start + SIZE_MS, latest, as_json(record.headers), None, spent]
        outputs = [*copies, Output("spent", f"{key}@{start}", spent, latest, record.headers)]
        closed = [name for name, row in held.items() if row[0] + GRACE_MS <= now]
        for name in sorted(closed, key=lambda name: (held[name][0], name)):
            outputs += _closed(name.split(" ")[0], held.pop(name))
        return outputs

    def _refund(self, state: State, record: InputRecord) -> list[Output]:
        number, latest = state[REFUNDS].get(record.key, [0, -1])
        if number == MOST:
            return [_one_too_many(record)]
        latest = max(latest, record.timestamp)
        state[REFUNDS][record.key] = [number + 1, latest]
        return [Output("refunds", record.key, number + 1, latest, record.headers)]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and type(record.value) is int

    def decode_key(self, store: str, key: bytes) -> str:
        return decode_held_key(key) if store == CLOSED else super().decode_key(store, key)

    def decode(self, store: str, value: bytes) -> Json:
        return decode_held(value) if store == CLOSED else super().decode(store, value)


def _closed(card: str, row: Json) -> list[Output]:
    """The bill of a window that is closed, or its dead letter."""
    end, time, told, _, spent = row
    start, bill, headers = end - SIZE_MS, spent[1], as_headers(told)
    if bill % UNLUCKY == 0:
        said = said_of(RefusedError, "", -1, -1, time)
        # No dead letter has the time 0, which the client takes for none.
        return [Output("unbilled", card, spent, max(1, time), (*headers, *said, ("window", str(start))))]
    topics = ("bills", "unbilled") if bill >= LARGE else ("bills",)
    return [Output(topic, f"{card}@{start}", bill, time, headers) for topic in topics]


def _one_too_many(record: InputRecord) -> Output:
    """The dead letter of a record."""
    said = said_of(RefusedError, record.topic, record.partition, record.offset, record.timestamp)
    return Output("dead", record.key, record.value, max(1, record.timestamp), (*record.headers, *said))


SCENARIO = Scenario()
