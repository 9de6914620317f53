"""Values collected by key and window, forwarded once: when the window is closed (`EmitStrategy.ON_WINDOW_CLOSE`).

And two groups that share their windows, each with an aggregator of its own; and sessions of two tables that are joined.

Input, keyed by anything: a number, or null, which counts nowhere. Windows are 20 s long, one begins every 10 s, and
they take late records for 15 s more.

Output, keyed by the input's key and the window's start, as in `ann@30000`: the values of the window in the order in
which they came, with the latest time of them. It comes with the first record whose time closes the window, of any key
of the partition, and before that record counts; the oldest window first, and of those the first key. A window that is
not closed yet has no output. A processor that the number 0 comes to leaves nothing but that number in the latest of its
windows, while the store has it. In `windows` the same, keyed by the window itself, as the DSL writes it: all windows of
a key are in the partition of the key. To the reference that is the input's key, and start and values.

In `weighed`, keyed alike: the odd numbers of a window less the even ones, null where that is nothing, with each of
them, or what several have made of it by a commit. These windows are 20 s long, one begins when the other ends, and
they take late records for 5 s more.

In `pairs`, keyed by the input's key and the session, as in `ann@30000..41000`: the sum of the session's numbers and the
highest of them, null for a session that has become another one. Each is in a table of its own, and these are joined. A
session goes on while numbers are no more than 8 s apart, and takes late ones for 5 s more.

In `summed`, keyed by the input's key: the sum of all its numbers, and how many there were. The latter is in a table
with a cache, which hands each change on to that of the sums, a table without one. In `beside` both tables, joined. In
`placed` is each number after all that, with its offset and its topic.

The stream time by which windows close is the largest time of the records that count; `weighed` has one of the odd
numbers and one of the even ones, which a processor keeps in a store of its own, for the reference to find. It is noted
beside the positions. Under at least once those may be older than the stores after a crash, so that windows are closed
a second time: exactly once is set.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from operator import itemgetter
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import NOT_EMPTY, InputRecord, Json, Output, Sample, State, Stores, decode_record
from scenarios.profiles import Place
from store.serdes import JsonSerde, StrSerde
from store.state.timestamped import ValueAndTimestamp
from store.state.windowed import Windowed
from store.streams.dsl import EmitStrategy, Materialized, SessionWindows, StreamsBuilder, TimeWindows
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.streams.topology import Topology

COLLECTED, WEIGHED, CLOCKS = "collected", "weighed-windows", "clocks"
TOTALS, HIGHEST = "session-totals", "session-highest"
COUNTED, SUMMED = "counted", "summed-table"
SIZE_MS = 20_000
ADVANCE_MS = 10_000
GRACE_MS = 15_000
WEIGHED_GRACE_MS = 5_000
GAP_MS = 8_000
SESSION_GRACE_MS = 5_000
RETENTION_MS = 86_400_000


class Clocks:
    """A processor that hands records on, and keeps the largest time of odd and of even numbers. What it writes to
    `COLLECTED` comes there past the aggregate."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.store = context.store(CLOCKS)
        self.windows = context.store(COLLECTED)

    def process(self, record: StreamRecord) -> None:
        kind = kind_of(record.value)
        self.store.put(kind, max(self.store.get(kind) or 0, record.timestamp))
        start = record.timestamp // ADVANCE_MS * ADVANCE_MS
        if record.value == 0 and (found := self.windows.fetch(record.key, start)) is not None:
            self.windows.put(record.key, ValueAndTimestamp([0], found.timestamp), start)
        self.context.forward(record.value)


def kind_of(value: int) -> str:
    return "odd" if value % 2 else "even"


def is_number(_key: str, value: int | None) -> bool:
    return value is not None


def is_odd(_key: str, value: int) -> bool:
    return kind_of(value) == "odd"


def plus(_key: str, value: int, total: int) -> int | None:
    return total + value or None


def minus(_key: str, value: int, total: int) -> int | None:
    return total - value or None


def add(total: int, value: int) -> int:
    return total + value


def pair(total: int, highest: int) -> list[int]:
    return [total, highest]


def told(count: int) -> list[int]:
    return [count]


def sum_up(_key: str, value: int | list[int], summed: list[int]) -> list[int]:
    """A number to be added, or how many there are."""
    total, count = summed
    return [total, *value] if isinstance(value, list) else [total + value, count]


def none_yet() -> list[int]:
    return [0, 0]


def append(_key: str, value: int, values: list[int]) -> list[int]:
    return [*values, value]


def session_of(key: Windowed[str], _values: Any) -> str:
    return f"{key.key}@{key.window.start}..{key.window.end}"


def name_of(key: Windowed[str], _values: Any) -> str:
    return f"{key.key}@{key.window.start}"


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "closed_windows"
    summary = "Windows of the DSL that are forwarded once, when they are closed; cogrouped ones, and joined sessions."
    keys = NOT_EMPTY
    updates: ClassVar[frozenset[str]] = frozenset({"weighed"})
    joins: ClassVar[frozenset[str]] = frozenset({"pairs", "summed", "beside"})
    behind_caches: ClassVar[frozenset[str]] = frozenset({SUMMED})
    settings: ClassVar[Mapping[str, Any]] = {"processing.guarantee": "exactly_once_v2"}
    time_step_ms = 9_000
    durations_ms = (SIZE_MS, ADVANCE_MS, SIZE_MS + GRACE_MS, SIZE_MS + WEIGHED_GRACE_MS, GAP_MS)
    retentions_ms: ClassVar[Mapping[str, int]] = {
        COLLECTED: SIZE_MS + GRACE_MS,
        **dict.fromkeys((WEIGHED, TOTALS, HIGHEST), RETENTION_MS),
    }

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        windows = TimeWindows.of_size_with_no_grace(SIZE_MS).advance_by(ADVANCE_MS).with_grace(GRACE_MS)
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        builder.add_state_store(stores.key_value(CLOCKS, serdes=(StrSerde(), JsonSerde())))
        stream = builder.stream(f"{application_id}-input")
        grouped = stream.group_by_key().windowed_by(windows)
        collected = grouped.emit_strategy(EmitStrategy.on_window_close()).aggregate(
            list, append, materialized=Materialized(COLLECTED)
        )
        collected.to_stream(name_of).to(f"{application_id}-output", key_serde=StrSerde())
        collected.to_stream().to(f"{application_id}-windows")
        numbers = stream.filter(is_number).process_values(Clocks, CLOCKS, COLLECTED)
        odd, even = (some.group_by_key() for some in (numbers.filter(is_odd), numbers.filter_not(is_odd)))
        both = odd.cogroup(plus).cogroup(even, minus)
        shared = both.windowed_by(TimeWindows.of_size_and_grace(SIZE_MS, WEIGHED_GRACE_MS))
        # The store goes by the times of both: what it expired, the slower of the two would begin anew.
        weighed = shared.aggregate(int, materialized=Materialized(WEIGHED).with_retention(RETENTION_MS))
        weighed.to_stream(name_of).to(f"{application_id}-weighed", key_serde=StrSerde())
        sessions = numbers.group_by_key().windowed_by(
            SessionWindows.of_inactivity_gap_and_grace(GAP_MS, SESSION_GRACE_MS)
        )
        # A cache says when stores expire, which joins find out.
        totals, highest = (
            sessions.reduce(fold, materialized=Materialized(name).with_retention(RETENTION_MS))
            for name, fold in ((TOTALS, add), (HIGHEST, max))
        )
        totals.join(highest, pair).to_stream(session_of).to(f"{application_id}-pairs", key_serde=StrSerde())
        counted = numbers.group_by_key().count(materialized=Materialized(COUNTED, value_serde=JsonSerde()))
        changes = numbers.merge(counted.to_stream().map_values(told)).group_by_key()
        summed = changes.aggregate(
            none_yet, sum_up, materialized=Materialized(SUMMED).with_caching_disabled()
        )
        # Before they are forwarded: a change of the counts that this looks at comes to the sums as well.
        summed.join(counted, pair).to_stream().to(f"{application_id}-beside")
        summed.to_stream().to(f"{application_id}-summed")
        # After the tables, which may have let go of another record's update meanwhile.
        numbers.process_values(Place).to(f"{application_id}-placed")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        value = None if random.random() < 0.1 else random.randint(0, 9)
        return Sample(random.choice(("a", "ann", "anna")), value)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.value is None:
            return []
        windows, time = state[COLLECTED], record.timestamp
        # A record that moves the stream time is in a window that is open, so the latest of all is among the values.
        before = max([latest for _, latest in windows.rows().values()], default=-1)
        now = max(before, time)
        closes = SIZE_MS + GRACE_MS
        outputs = [
            output
            for key, start, (values, latest) in sorted(
                windows.fetch_range(None, None, before - closes + 1, now - closes), key=itemgetter(1)
            )
            for output in (
                Output("output", f"{key}@{start}", values, latest),
                Output("windows", key, [start, values], latest),
            )
        ]
        for start in range(time // ADVANCE_MS * ADVANCE_MS, time - SIZE_MS, -ADVANCE_MS):
            if start >= 0 and start > now - closes:
                values, latest = windows.get(record.key, start) or ([], -1)
                windows.put(record.key, [[*values, record.value], max(latest, time)], start)
        start = time - time % ADVANCE_MS
        if record.value == 0 and (found := windows.get(record.key, start)) is not None:
            windows.put(record.key, [[0], found[1]], start)
        return [
            *outputs,
            *self._weighed(state, record),
            *self._paired(state, record, now),
            *self._summed(state, record),
            Output("placed", record.key, [record.offset, record.topic, record.value]),
        ]

    def _weighed(self, state: State, record: InputRecord) -> list[Output]:
        kind, time, windows = kind_of(record.value), record.timestamp, state[WEIGHED]
        now = state[CLOCKS][kind] = max(state[CLOCKS].get(kind, 0), time)
        start = time - time % SIZE_MS
        if start + SIZE_MS + WEIGHED_GRACE_MS <= now:
            return []
        total, latest = windows.get(record.key, start) or (0, -1)
        total, latest = total + (record.value if kind == "odd" else -record.value), max(latest, time)
        windows.put(record.key, [total, latest] if total else None, start)
        return [Output("weighed", f"{record.key}@{start}", total or None, latest)]

    def _paired(self, state: State, record: InputRecord, now: int) -> list[Output]:
        key, time, closed = record.key, record.timestamp, now - SESSION_GRACE_MS - GAP_MS
        outputs: list[Output] = []

        def put(own: Any, other: Any, start: int, end: int, value: int | None) -> None:
            own.put(key, start, end, value)
            sides = [side.get(key, start, end) for side in (state[TOTALS], state[HIGHEST])]
            if other.get(key, start, end) is not None:
                outputs.append(
                    Output("pairs", f"{key}@{start}..{end}", None if None in sides else sides, end)
                )

        for own, other, fold in (
            (state[TOTALS], state[HIGHEST], sum),
            (state[HIGHEST], state[TOTALS], max),
        ):
            joined = own.find(key, max(time - GAP_MS, closed), time + GAP_MS)
            start = min([time, *(one.start for one in joined)])
            end = max([time, *(one.end for one in joined)])
            if end < closed:
                break
            for one in joined if start != end else ():
                put(own, other, one.start, one.end, None)
            put(own, other, start, end, fold([*(one.value for one in joined), record.value]))
        return outputs

    def _summed(self, state: State, record: InputRecord) -> list[Output]:
        key = record.key
        count, latest = state[COUNTED].get(key, [0, -1])
        (total, _), _ = state[SUMMED].get(key, [[0, 0], -1])
        count, latest = count + 1, max(latest, record.timestamp)
        state[COUNTED][key] = [count, latest]
        state[SUMMED][key] = [[total + record.value, count], latest]
        before, after = [total, count], [total + record.value, count]
        return [
            Output("beside", key, [before, count], latest),
            Output("summed", key, before, latest),
            Output("beside", key, [before, count], latest),
            Output("beside", key, [after, count], latest),
            Output("summed", key, after, latest),
        ]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and isinstance(record.value, int | None)

    def decode_output(self, topic: str, key: bytes | None, value: bytes | None) -> tuple[str, Json]:
        if topic != "windows" or key is None:
            return super().decode_output(topic, key, value)
        (start,) = struct.unpack(">q", key[-8:])
        name, values = decode_record(key[:-8], value)
        return name, [start, values]


SCENARIO = Scenario()
