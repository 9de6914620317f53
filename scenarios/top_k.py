"""The best players of each window by the DSL: windows that are held back until they are closed, then ranked.

Input, keyed by player: points, which may be negative, or null, which is left out, with headers. They are added up by
player in windows of 20 s, which take late records for 10 s more. `suppress` lets the sums of a window go when it is
closed: with the record that brings the stream time there, those of earlier windows first, and of one window by player.
They go by a repartition topic to the second sub-topology, keyed by the window's start, which keeps the two best of
each.

Output: in `best`, keyed by the window's start, the two best so far, each as [points, player]. In `lately`, keyed by
player, all points together, null where they are none: `suppress` lets the last sum of a player go 12 s after the first
that it held back, or earlier where it would hold more than two players back, or more bytes than it may. Both have the
headers of the last record that led there. In `shown` are points with the sum that went last, which is one's own sum
while none is held back, and with their own headers; no points where there is none. These last sums are grouped by
whether they are negative, which goes by a repartition topic to the third sub-topology: in `signs` is how many players
each sign has.

Both go by the largest time of the records that have points. A processor keeps it in a store of its own, for the
reference to find. It is noted beside the positions, which may be older than the stores after a crash under at least
once: exactly once is set. What is held back is a row of a store, called by player and window, with its place in time,
the time of the sum, its headers, the sum that went last and this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import msgspec

import scenarios
from scenarios import (
    WORD,
    Headers,
    InputRecord,
    Json,
    Output,
    Sample,
    State,
    Stores,
    decode_held,
    decode_held_key,
    encode_value,
)
from scenarios.reconciliation import CLOCK, NOW, Clock
from store.serdes import JsonSerde, StrSerde
from store.state.windowed import Windowed
from store.streams.dsl import BufferConfig, Materialized, StreamsBuilder, Suppressed, TimeWindows
from store.streams.topology import Topology

SIZE_MS = 20_000
GRACE_MS = 10_000
WAIT_MS = 12_000
HELD = 2
HELD_BYTES = 64
BEST = 2
POINTS, TOTALS, RANKING, SIGNS = "points", "totals", "ranking", "signs-table"
UNTIL_CLOSED, UNTIL_LATER = "closed-store", "later-store"
RANKED, SIGNED = "ranked-repartition", "signed-repartition"


def has_points(_player: str, points: int | None) -> bool:
    return points is not None


def plus(total: int, points: int) -> int:
    return total + points


def beside(points: int, total: int) -> list[int]:
    return [points, total]


def add(_player: str, points: int, total: int) -> int | None:
    return total + points or None


def by_window(key: Windowed[str], points: int) -> tuple[str, list[Any]]:
    return str(key.window.start), [points, key.key]


def rank(_window: str, player: list[Any], ranking: list[list[Any]]) -> list[list[Any]]:
    return sorted([*ranking, player], key=lambda one: (-one[0], one[1]))[:BEST]


def by_sign(_player: str, total: int) -> tuple[str, int]:
    return sign_of(total), total


def sign_of(total: int) -> str:
    return "negative" if total < 0 else "positive"


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "top_k"
    summary = "Windows of the DSL that are suppressed until they are closed, and then ranked; sums that wait a while."
    keys = WORD
    settings: ClassVar[Mapping[str, Any]] = {"processing.guarantee": "exactly_once_v2"}
    time_step_ms = 6_000
    durations_ms = (SIZE_MS, SIZE_MS + GRACE_MS, WAIT_MS)
    retentions_ms: ClassVar[Mapping[str, int]] = {POINTS: SIZE_MS + GRACE_MS}
    updates: ClassVar[frozenset[str]] = frozenset({"best", "signs"})
    changes: ClassVar[frozenset[str]] = frozenset({SIGNED})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        builder.add_state_store(stores.key_value(CLOCK, serdes=(StrSerde(), JsonSerde())))
        points = builder.stream(f"{application_id}-input").filter(has_points).process_values(Clock, CLOCK)
        by_player = points.group_by_key()
        windows = TimeWindows.of_size(SIZE_MS, grace=GRACE_MS)
        sums = by_player.windowed_by(windows).reduce(plus, materialized=Materialized(POINTS))
        unlimited = (
            BufferConfig.max_bytes(HELD_BYTES).with_max_records(HELD).with_no_bound().shut_down_when_full()
        )
        closed = sums.suppress(Suppressed.until_window_closes(unlimited, name="closed"))
        ranked = closed.to_stream().map(by_window).group_by_key(value_serde=JsonSerde(), name="ranked")
        ranking = ranked.aggregate(list, rank, materialized=Materialized(RANKING))
        ranking.to_stream().to(f"{application_id}-best")
        # What a cache makes of several sums by a commit would depend on where the commit is.
        totals = by_player.aggregate(int, add, materialized=Materialized(TOTALS).with_caching_disabled())
        some = BufferConfig.max_records(HELD).with_max_bytes(HELD_BYTES).emit_early_when_full()
        later = totals.suppress(Suppressed.until_time_limit(WAIT_MS, some, name="later"))
        later.to_stream().to(f"{application_id}-lately")
        points.join_table(later, beside).to(f"{application_id}-shown")
        signs = later.group_by(by_sign, name="signed").count(
            materialized=Materialized(SIGNS, value_serde=JsonSerde())
        )
        signs.to_stream().to(f"{application_id}-signs")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        value = None if random.random() < 0.1 else random.choice((-2, -1, 0, 1, 1, 2, 3))
        # Of an update with a long one the buffer has hardly room for another beside.
        trace = str(random.randint(1, 9)) * random.choice((1, 1, 25))
        headers = (("trace", trace),) if random.random() < 0.4 else ()
        return Sample(random.choice(("a", "ann", "anna")), value, headers=headers)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic == RANKED:
            ranking, latest = state[RANKING].get(record.key, [[], -1])
            everybody = [*map(tuple, ranking), tuple(record.value)]
            best = [list(one) for one in sorted(everybody, key=lambda one: (-one[0], one[1]))[:BEST]]
            latest = max(latest, record.timestamp)
            state[RANKING][record.key] = [best, latest]
            return [Output("best", record.key, best, latest, record.headers)]
        if record.topic == SIGNED:
            return self._signed(state, record)
        if record.value is None:
            return []
        now = state[CLOCK][NOW] = max(state[CLOCK].get(NOW, 0), record.timestamp)
        return [
            *self._windows(state, record, now),
            *self._totals(state, record, now),
            *self._shown(state, record),
        ]

    def _windows(self, state: State, record: InputRecord, now: int) -> list[Output]:
        key, time, held = record.key, record.timestamp, state[UNTIL_CLOSED]
        start = time - time % SIZE_MS
        if now >= start + SIZE_MS + GRACE_MS:
            return []
        points, latest = state[POINTS].get(key, start) or [0, -1]
        points, latest = points + record.value, max(latest, time)
        state[POINTS].put(key, [points, latest], start)
        held[f"{key} {start:015}"] = [start + SIZE_MS, latest, as_json(record.headers), None, points]
        closed = [name for name, row in held.items() if row[0] + GRACE_MS <= now]
        outputs = []
        for name in sorted(closed, key=lambda name: (held.get(name)[0], name)):
            end, at, headers, _, result = held.pop(name)
            player = [result, name.split(" ")[0]]
            outputs.append(Output(RANKED, str(end - SIZE_MS), player, at, as_headers(headers)))
        return outputs

    def _totals(self, state: State, record: InputRecord, now: int) -> list[Output]:
        key, totals, held = record.key, state[TOTALS], state[UNTIL_LATER]
        before, latest = totals.get(key, [0, -1])
        total = before + record.value or None
        latest = max(latest, record.timestamp)
        if total is None:
            totals.pop(key, None)
        else:
            totals[key] = [total, latest]
        place, _, _, went, _ = held.get(key, [latest, None, None, before or None, None])
        held[key] = [place, latest, as_json(record.headers), went, total]
        outputs = []
        for name in sorted(held, key=lambda name: (held.get(name)[0], name)):
            size = sum(size_of(*row) for row in held.items())
            if held[name][0] + WAIT_MS <= now or len(held) > HELD or size > HELD_BYTES:
                _, at, headers, went, result = held.pop(name)
                some = at, as_headers(headers)
                outputs.append(Output("lately", name, result, *some))
                left, comes = (None if one is None else sign_of(one) for one in (went, result))
                if left is not None and left == comes:
                    outputs.append(Output(SIGNED, left, [result, went], *some))
                    continue
                if left is not None:
                    outputs.append(Output(SIGNED, left, [None, went], *some))
                if comes is not None:
                    outputs.append(Output(SIGNED, comes, [result, None], *some))
        return outputs

    def _shown(self, state: State, record: InputRecord) -> list[Output]:
        """What was forwarded last of the player's total; without any there is nothing to be beside."""
        if record.key in state[UNTIL_LATER]:
            total = state[UNTIL_LATER][record.key][3]
        else:
            total, _ = state[TOTALS].get(record.key, [None, -1])
        if total is None:
            return []
        return [Output("shown", record.key, [record.value, total], headers=record.headers)]

    def _signed(self, state: State, record: InputRecord) -> list[Output]:
        (comes, goes), signs = record.value, state[SIGNS]
        number, latest = signs.get(record.key, [0, -1])
        number += (comes is not None) - (goes is not None)
        latest = max(latest, record.timestamp)
        signs[record.key] = [number, latest]
        return [Output("signs", record.key, number, latest, record.headers)]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and (record.value is None or type(record.value) is int)

    def decode_key(self, store: str, key: bytes) -> str:
        if store != UNTIL_CLOSED:
            return super().decode_key(store, key)
        return decode_held_key(key)

    def decode(self, store: str, value: bytes) -> Json:
        if store not in (UNTIL_CLOSED, UNTIL_LATER):
            return super().decode(store, value)
        return decode_held(value)


def as_json(headers: Headers) -> Json:
    return [list(header) for header in headers]


def as_headers(told: Json) -> Headers:
    return tuple((name, value) for name, value in told)


def size_of(player: str, row: Json) -> int:
    """How many bytes an update takes that is held back: as it is written, with its key."""
    place, time, headers, *sums = row
    told = [[name, None if value is None else value.encode()] for name, value in headers]
    return len(player.encode()) + len(
        msgspec.msgpack.encode((place, time, told, *(encode_value(one) for one in sums)))
    )


SCENARIO = Scenario()
