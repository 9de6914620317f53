"""Visits by the DSL: sessions that are forwarded with each change, or once when they have ended; and windows that
roll.

Input, keyed by visitor: a number, or null, which counts nowhere, with headers. What has no key counts nowhere either. A
processor puts the record's time before the number, and keeps the largest of these times in a store of its own, for the
reference to find; that of the visits with a large number too. A session goes on while visits are no more than 15 s
apart, and takes late ones for 10 s more; what joins two sessions makes them one.

Output, keyed by visitor and session, as in `ann@30000..41000`: in `sessions` all visits of the session, those of the
earlier one first where two were joined; null for a session that has become another one. In `ended` the sum of a
session, once, with its end as time and the headers of the record that has ended it; in `over` what `suppress` has let
go of such sums, with the headers of the last record of each. Keyed by visitor and start, as in `ann@30000`: in `hops`
how many visits with a large number there were in each window of 20 s, one of which begins every 8 s; by the times of
these alone. In `rolled` the visits that were no more than 10 s apart, in windows that end with a visit or begin after
one, each once, when it is closed; those take late visits for 12 s more. In `rolling` the same with each change, and in
`final` what `suppress` has let go of that: the last of each. In `emptied` the same windows as in `rolling`, but a visit
with a small number empties those that it is in: null, and the next one makes them anew. Such sums of sessions are
grouped by the last letter of the visitor as well, which goes by a repartition topic to the second sub-topology: keyed
by that letter, in `together` is the sum of all of them, those that have ended among them. A visit that comes when the
window that ends with it is closed is not in those that are made later, as in Kafka Streams.

What ended comes out with the first record whose time ends it, of any visitor of the partition, and before that record
counts; what ended first comes first, and then what began first. All others go by the largest time of the records that
count. It is noted beside the positions, which may be older than the stores after a crash under at least once: exactly
once is set.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from operator import attrgetter, itemgetter
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import (
    KEYLESS,
    WORD,
    InputRecord,
    Json,
    Output,
    Sample,
    State,
    Stores,
    decode_held,
    decode_held_key,
)
from scenarios.top_k import as_headers, as_json
from store.serdes import JsonSerde, StrSerde
from store.state.windowed import LATEST, Windowed
from store.streams.dsl import (
    EmitStrategy,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.streams.topology import Topology

GAP_MS = 15_000
SESSION_GRACE_MS = 10_000
SIZE_MS = 20_000
ADVANCE_MS = 8_000
HOP_GRACE_MS = 5_000
APART_MS = 10_000
ROLL_GRACE_MS = 12_000
RETENTION_MS = 86_400_000
GOING, SUMS, HOPS, CLOCK = "going", "session-sums", "hop-counts", "clock"
ROLLING, CHANGING, HELD, EMPTIED = "rolling", "changing", "final-store", "emptied"
OVER, OVER_HELD = "over-sums", "over-store"
TOGETHER, LETTERS = "together-sums", "letters-repartition"
NOW, NOW_LARGE = "now", "now-large"
LARGE, SMALL = 7, 2

Visit = list[int]
"""Time and number."""


class Stamp:
    """A processor that puts its time before each number, and keeps the largest."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.clock = context.store(CLOCK)

    def process(self, record: StreamRecord) -> None:
        if record.value is None:
            self.context.forward(None)
            return
        if record.key is not None:
            for name in (NOW, NOW_LARGE) if record.value >= LARGE else (NOW,):
                self.clock.put(name, max(self.clock.get(name) or 0, record.timestamp))
        self.context.forward([record.timestamp, record.value])


def append(_visitor: str, visit: Visit, visits: list[Visit]) -> list[Visit]:
    return [*visits, visit]


def insert(_visitor: str, visit: Visit, visits: list[Visit]) -> list[Visit]:
    return sorted([*visits, visit])


def insert_or_empty(visitor: str, visit: Visit, visits: list[Visit]) -> list[Visit] | None:
    return insert(visitor, visit, visits) if visit[1] > SMALL else None


def one_after_the_other(_visitor: str, visits: list[Visit], later: list[Visit]) -> list[Visit]:
    return [*visits, *later]


def is_large(_visitor: str, visit: Visit | None) -> bool:
    return visit is not None and visit[1] >= LARGE


def number_of(visit: Visit) -> int:
    return visit[1]


def plus(total: int, number: int) -> int:
    return total + number


def minus(total: int, number: int) -> int:
    return total - number


def by_letter(key: Windowed[str], total: int) -> tuple[str, int]:
    return key.key[-1], total


def session_of(key: Windowed[str], _result: object) -> str:
    return f"{key.key}@{key.window.start}..{key.window.end}"


def window_of(key: Windowed[str], _result: object) -> str:
    return f"{key.key}@{key.window.start}"


def long(name: str) -> str:
    """A name nearly as long as any may be. What is noted of the times of several operators is packed then."""
    return f"{'visits-of-whoever-came-' * 9}{name}"


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "visits"
    summary = "Sessions of the DSL, forwarded with each change or when they have ended; hopping and sliding windows."
    keys = rf"({WORD})?"
    settings: ClassVar[Mapping[str, Any]] = {"processing.guarantee": "exactly_once_v2"}
    time_step_ms = 6_000
    durations_ms = (
        *(GAP_MS, GAP_MS + SESSION_GRACE_MS, SIZE_MS, ADVANCE_MS, SIZE_MS + HOP_GRACE_MS),
        *(APART_MS, APART_MS + ROLL_GRACE_MS, ROLL_GRACE_MS),
    )
    edges_ms = (GAP_MS, APART_MS)
    sliding_ms = APART_MS
    # Of sessions and sliding windows what may still be changed, and what that is merged with or has to be looked at.
    retentions_ms: ClassVar[Mapping[str, int]] = {
        **dict.fromkeys((GOING, SUMS, OVER), 2 * GAP_MS + SESSION_GRACE_MS + 1),
        **dict.fromkeys((ROLLING, CHANGING), 3 * APART_MS + ROLL_GRACE_MS + 2),
        HOPS: SIZE_MS + HOP_GRACE_MS,
        EMPTIED: RETENTION_MS,
    }
    updates: ClassVar[frozenset[str]] = frozenset({"sessions", "hops", "rolling", "emptied", "together"})
    changes: ClassVar[frozenset[str]] = frozenset({LETTERS})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        values = JsonSerde[Any]()
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=values)
        # The cache is left to the tables.
        clock = Stores(stores.kind).key_value(CLOCK, serdes=(StrSerde(), JsonSerde()))
        builder.add_state_store(clock)
        visits = builder.stream(f"{application_id}-input").process_values(Stamp, CLOCK)
        at_the_end = EmitStrategy.on_window_close()
        gap = SessionWindows.of_inactivity_gap_and_grace(GAP_MS, SESSION_GRACE_MS)
        grouped = visits.group_by_key(value_serde=values)
        going = grouped.windowed_by(gap).aggregate(
            list, append, one_after_the_other, materialized=Materialized(GOING), name=long("going")
        )
        going.to_stream(session_of).to(f"{application_id}-sessions", key_serde=StrSerde())
        numbers = visits.filter(has_value).map_values(number_of).group_by_key(value_serde=values)
        sums = (
            numbers.windowed_by(gap)
            .emit_strategy(at_the_end)
            .reduce(plus, materialized=SUMS, name=long("sums"))
        )
        sums.to_stream(session_of).to(f"{application_id}-ended", key_serde=StrSerde())
        # What a cache makes of a session that comes and goes is nothing, and else it is held back as well.
        over = numbers.windowed_by(gap).reduce(
            plus, materialized=Materialized(OVER).with_caching_disabled(), name="overs"
        )
        letters = over.group_by(by_letter, value_serde=values, name="letters")
        together = letters.reduce(plus, minus, materialized=Materialized(TOGETHER, value_serde=values))
        together.to_stream().to(f"{application_id}-together")
        over = over.suppress(Suppressed.until_window_closes().with_name("over"))
        over.to_stream(session_of).to(f"{application_id}-over", key_serde=StrSerde())
        hopping = TimeWindows.of_size(SIZE_MS, grace=HOP_GRACE_MS).advance_by(ADVANCE_MS)
        # What comes to these has other times than what comes to the others.
        large = visits.filter(is_large).group_by_key(value_serde=values)
        hops = large.windowed_by(hopping).count(
            materialized=Materialized.as_(HOPS).with_value_serde(values), name=long("hops")
        )
        hops.to_stream(window_of).to(f"{application_id}-hops", key_serde=StrSerde())
        near = SlidingWindows.of_time_difference_and_grace(APART_MS, ROLL_GRACE_MS)
        rolled = (
            grouped.windowed_by(near)
            .emit_strategy(at_the_end)
            .aggregate(list, insert, materialized=Materialized(ROLLING), name=long("rolling"))
        )
        rolled.to_stream(window_of).to(f"{application_id}-rolled", key_serde=StrSerde())
        changing = grouped.windowed_by(near).aggregate(
            list, insert, materialized=Materialized(CHANGING), name=long("changing")
        )
        changing.to_stream(window_of).to(f"{application_id}-rolling", key_serde=StrSerde())
        final = changing.suppress(Suppressed.until_window_closes().with_name("final"))
        final.to_stream(window_of).to(f"{application_id}-final", key_serde=StrSerde())
        # What came and went in a cache does not come to the store, which goes by the times of what does.
        kept = Materialized(EMPTIED).with_retention(RETENTION_MS)
        emptied = grouped.windowed_by(near).aggregate(
            list, insert_or_empty, materialized=kept, name=long("emptied")
        )
        emptied.to_stream(window_of).to(f"{application_id}-emptied", key_serde=StrSerde())
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        value = None if random.random() < 0.1 else random.randint(0, 9)
        headers = (("trace", str(random.randint(1, 9))),) if random.random() < 0.4 else ()
        return Sample(random.choice(("a", "ann", "anna") * 2 + (KEYLESS,)), value, headers=headers)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic == LETTERS:
            return self._together(state, record)
        if record.value is None or record.key == KEYLESS:
            return []
        before = state[CLOCK].get(NOW, -1)
        now = state[CLOCK][NOW] = max(before, record.timestamp)
        return [
            *self._sessions(state, record, now),
            *self._ended(state, record, before, now),
            *self._over(state, record, now),
            *self._hops(state, record),
            *self._rolled(state, record, before, now),
        ]

    def _sessions(self, state: State, record: InputRecord, now: int) -> list[Output]:
        outputs, going, time, key = [], state[GOING], record.timestamp, record.key
        closed = now - SESSION_GRACE_MS - GAP_MS
        joined = going.find(key, max(time - GAP_MS, closed), time + GAP_MS)
        start = min([time, *(one.start for one in joined)])
        end = max([time, *(one.end for one in joined)])
        if end < closed:
            return []
        for one in joined if start != end else ():
            going.remove(key, one.start, one.end)
            outputs.append(Output("sessions", f"{key}@{one.start}..{one.end}", None, one.end, record.headers))
        visits = [*(visit for one in joined for visit in one.value), [time, record.value]]
        going.put(key, start, end, visits)
        return [*outputs, Output("sessions", f"{key}@{start}..{end}", visits, end, record.headers)]

    def _ended(self, state: State, record: InputRecord, before: int, now: int) -> list[Output]:
        sums, time, key = state[SUMS], record.timestamp, record.key
        wait = SESSION_GRACE_MS + GAP_MS
        ended = [one for one in sums.find_range(None, None, before - wait, LATEST) if one.end < now - wait]
        outputs = [
            Output("ended", f"{one.key}@{one.start}..{one.end}", one.value, one.end, record.headers)
            for one in sorted(ended, key=attrgetter("end", "start"))
        ]
        joined = sums.find(key, max(time - GAP_MS, now - wait), time + GAP_MS)
        start = min([time, *(one.start for one in joined)])
        end = max([time, *(one.end for one in joined)])
        if end >= now - wait:
            for one in joined:
                sums.remove(key, one.start, one.end)
            sums.put(key, start, end, sum(one.value for one in joined) + record.value)
        return outputs

    def _over(self, state: State, record: InputRecord, now: int) -> list[Output]:
        sums, held, time, key = state[OVER], state[OVER_HELD], record.timestamp, record.key
        wait, headers = SESSION_GRACE_MS + GAP_MS, as_json(record.headers)
        joined = sums.find(key, max(time - GAP_MS, now - wait), time + GAP_MS)
        start = min([time, *(one.start for one in joined)])
        end = max([time, *(one.end for one in joined)])
        if end < now - wait:
            return []
        letter, outputs = key[-1], []
        for one in joined:
            sums.remove(key, one.start, one.end)
            if start != end:
                outputs.append(Output(LETTERS, letter, [None, one.value], one.end, record.headers))
            # It goes without a word when it is due, if it is another one's by then.
            held[f"{key} {one.end:015} {one.start:015}"] = [one.end, one.end, headers, None, None]
        total = sum(one.value for one in joined) + record.value
        sums.put(key, start, end, total)
        same = joined[0].value if joined and start == end else None
        outputs.append(Output(LETTERS, letter, [total, same], end, record.headers))
        held[f"{key} {end:015} {start:015}"] = [end, end, headers, None, total]
        closed = [name for name, row in held.items() if row[0] + wait < now]
        for name in sorted(closed, key=lambda name: (held.get(name)[0], name)):
            ended, at, told, _, result = held.pop(name)
            of, _, began = name.split(" ")
            if result is not None:
                outputs.append(Output("over", f"{of}@{int(began)}..{ended}", result, at, as_headers(told)))
        return outputs

    def _together(self, state: State, record: InputRecord) -> list[Output]:
        (comes, goes), sums = record.value, state[TOGETHER]
        total, latest = sums.get(record.key, [0, -1])
        total, latest = total + (comes or 0) - (goes or 0), max(latest, record.timestamp)
        sums[record.key] = [total, latest]
        return [Output("together", record.key, total, latest, record.headers)]

    def _hops(self, state: State, record: InputRecord) -> list[Output]:
        if record.value < LARGE:
            return []
        outputs, hops, time = [], state[HOPS], record.timestamp
        now = state[CLOCK][NOW_LARGE] = max(state[CLOCK].get(NOW_LARGE, 0), time)
        for start in range(0, time + 1, ADVANCE_MS):
            if start + SIZE_MS > time and start + SIZE_MS + HOP_GRACE_MS > now:
                number, latest = hops.get(record.key, start) or [0, -1]
                hops.put(record.key, [number + 1, max(latest, time)], start)
                name = f"{record.key}@{start}"
                outputs.append(Output("hops", name, number + 1, max(latest, time), record.headers))
        return outputs

    def _rolled(self, state: State, record: InputRecord, before: int, now: int) -> list[Output]:
        wait, key = ROLL_GRACE_MS + APART_MS, record.key
        closed = state[ROLLING].fetch_range(None, None, before - wait, now - wait - 1)
        outputs = [
            Output("rolled", f"{of}@{start}", visits, latest, record.headers)
            for of, start, (visits, latest) in sorted(closed, key=itemgetter(1))
        ]
        self._roll(state[ROLLING], record, now)
        for start, visits, latest in self._roll(state[CHANGING], record, now):
            outputs.append(Output("rolling", f"{key}@{start}", visits, latest, record.headers))
            waits = [start + APART_MS, latest, as_json(record.headers), None, visits]
            state[HELD][f"{key} {start:015}"] = waits
        outputs += [
            Output("emptied", f"{key}@{start}", visits, latest, record.headers)
            for start, visits, latest in self._roll(
                state[EMPTIED], record, now, empties=record.value <= SMALL
            )
        ]
        return [*outputs, *self._final(state, now)]

    def _roll(
        self, windows: Any, record: InputRecord, now: int, *, empties: bool = False
    ) -> list[tuple[int, list[Visit] | None, int]]:
        """The windows that a visit changes, in order: start, visits and latest time. `empties`: it empties those that
        it is in."""
        wait, time, key = ROLL_GRACE_MS + APART_MS, record.timestamp, record.key
        if time + 1 + wait <= now:
            return []

        def with_it(visits: list[Visit]) -> list[Visit] | None:
            return None if empties else sorted([*visits, [time, record.value]])

        held = dict(windows.fetch(key, max(0, time - 2 * APART_MS), time + 1))
        over = [value for start, value in held.items() if start + APART_MS < time]
        inside = [start for start in held if start <= time <= start + APART_MS]
        made = {start: (with_it(held[start][0]), max(held[start][1], time)) for start in inside}
        left = max(0, time - APART_MS)
        ends_at = held[left][1] if left in held else -1
        new, later = [], []
        if ends_at < time or time < APART_MS:
            # What earlier windows have of the visits before this one is all that is known of these.
            previous = over[-1][1] if over else ends_at if ends_at < time else -1
            if previous >= 0 and previous + 1 not in held and time <= previous + APART_MS:
                made[previous + 1] = with_it([]), time
                new.append(previous + 1)
            if left not in held:
                made[left] = with_it(over[-1][0] if over and over[-1][1] >= left else []), time
                new.append(left)
            if time + 1 not in held and inside and held[inside[-1]][1] > time:
                made[time + 1] = held[inside[-1]]
                later.append(time + 1)
        if time < APART_MS:
            changed = [*filter(None, inside), *later, *filter(None, new), 0]
        else:
            changed = [*reversed(inside), *new, *later]
        kept = [start for start in changed if start == time + 1 or start + wait >= now]
        for start in kept:
            visits, latest = made[start]
            windows.put(key, [visits, latest] if visits else None, start)
        return [(start, *made[start]) for start in kept]

    def _final(self, state: State, now: int) -> list[Output]:
        """What is not held back any more."""
        held = state[HELD]
        closed = [name for name, row in held.items() if row[0] + ROLL_GRACE_MS < now]
        outputs = []
        for name in sorted(closed, key=lambda name: (held.get(name)[0], name)):
            _, at, headers, _, visits = held.pop(name)
            key, start = name.split(" ")
            outputs.append(Output("final", f"{key}@{int(start)}", visits, at, as_headers(headers)))
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and (record.value is None or type(record.value) is int)

    def decode_key(self, store: str, key: bytes) -> str:
        if store == OVER_HELD:
            end, start = struct.unpack(">qq", key[-16:])
            return f"{key[:-16].decode()} {end:015} {start:015}"
        return decode_held_key(key) if store == HELD else super().decode_key(store, key)

    def decode(self, store: str, value: bytes) -> Json:
        return decode_held(value) if store in (HELD, OVER_HELD) else super().decode(store, value)


def has_value(_visitor: str, visit: Visit | None) -> bool:
    return visit is not None


SCENARIO = Scenario()
