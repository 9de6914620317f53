"""What meters have used, and their highest readings, in windows of the DSL that are looked up once they are closed.

Input, keyed by meter: a reading, or null, which is left out. All windows are 20 s long. Their sums are closed 10 s
after the window's end and kept for 60 s after its start, their highest readings are closed after 20 s, and counts of
them take late records for 70 s.

Output, keyed by the meter and the window's start, as in `ann@20000`: in `peaks` the highest reading, when its window is
closed, with the sum of that window; in `late` the count of its readings after each of them, with the sum if that is
closed by then. The sum is null where there is none, or where it is not kept any more: a window that begins 60 s later
or more has made it expire. In `heavy` is each sum when it is closed, twice if it is a high one, else with null.

The second sub-topology gets the sums by the start of their windows: in `usage`, keyed by that, is what all meters have
used. The third gets what `heavy` has, by meter: in `windows` is how many there were. Each window comes to either once.

The stream time by which windows close is the largest time of the readings. A processor keeps it in a store of its own,
for the reference to find. It is noted beside the positions, which may be older than the stores after a crash under at
least once, so that windows are closed a second time: exactly once is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import NOT_EMPTY, InputRecord, Output, Sample, State, Stores
from scenarios.reconciliation import CLOCK, NOW, Clock
from store.serdes import JsonSerde, StrSerde
from store.state.windowed import Windowed
from store.streams.dsl import EmitStrategy, Materialized, StreamsBuilder, TimeWindows
from store.streams.topology import Topology

SUMS, HIGHEST, COUNTS, USAGE, WINDOWS = "sums", "highest", "counts", "usage-table", "windows-table"
BY_START, BY_METER = "by-start-repartition", "by-meter-repartition"
SIZE_MS = 20_000
SUMS_GRACE_MS, HIGHEST_GRACE_MS, COUNTS_GRACE_MS = 10_000, 20_000, 70_000
SUMS_KEPT_MS = 60_000
HIGH = 8


def is_reading(_meter: str, reading: int | None) -> bool:
    return reading is not None


def is_high(_window: Windowed[str], total: int) -> bool:
    return total > HIGH


def plus(total: int, reading: int) -> int:
    return total + reading


def more(_start: str, total: int, used: int) -> int:
    return used + total


def less(_start: str, total: int, used: int) -> int:
    return used - total


def both(one: int, total: int | None) -> list[int | None]:
    return [one, total]


def name_of(key: Windowed[str], _value: Any) -> str:
    return f"{key.key}@{key.window.start}"


def by_start(key: Windowed[str], total: int) -> tuple[str, int]:
    return str(key.window.start), total


def by_meter(key: Windowed[str], heavy: list[int | None]) -> tuple[str, list[int | None]]:
    return key.key, heavy


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "peaks"
    summary = (
        "Windows of the DSL that are forwarded when they are closed, joined with each other and grouped."
    )
    keys = NOT_EMPTY
    updates: ClassVar[frozenset[str]] = frozenset({"usage", "windows"})
    changes: ClassVar[frozenset[str]] = frozenset({BY_START, BY_METER})
    settings: ClassVar[Mapping[str, Any]] = {"processing.guarantee": "exactly_once_v2"}
    time_step_ms = 7_000
    edges_ms = (SIZE_MS + SUMS_GRACE_MS,)
    durations_ms = (SIZE_MS, SIZE_MS + SUMS_GRACE_MS, SIZE_MS + HIGHEST_GRACE_MS, SUMS_KEPT_MS)
    retentions_ms: ClassVar[Mapping[str, int]] = {
        SUMS: SUMS_KEPT_MS,
        HIGHEST: SIZE_MS + HIGHEST_GRACE_MS,
        COUNTS: SIZE_MS + COUNTS_GRACE_MS,
    }

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        builder.add_state_store(stores.key_value(CLOCK, serdes=(StrSerde(), JsonSerde())))
        readings = builder.stream(f"{application_id}-input").filter(is_reading).process_values(Clock, CLOCK)
        grouped, once = readings.group_by_key(), EmitStrategy.on_window_close()
        sums = (
            grouped.windowed_by(TimeWindows.of_size_and_grace(SIZE_MS, SUMS_GRACE_MS))
            .emit_strategy(once)
            .reduce(plus, materialized=Materialized(SUMS).with_retention(SUMS_KEPT_MS))
        )
        highest = (
            grouped.windowed_by(TimeWindows.of_size_and_grace(SIZE_MS, HIGHEST_GRACE_MS))
            .emit_strategy(once)
            .reduce(max, materialized=Materialized(HIGHEST))
        )
        # What a cache makes of several counts by a commit would be joined with sums that are closed by then.
        counts = grouped.windowed_by(TimeWindows.of_size_and_grace(SIZE_MS, COUNTS_GRACE_MS)).count(
            materialized=Materialized(COUNTS, value_serde=JsonSerde()).with_caching_disabled()
        )
        peaks = highest.left_join(sums, both)
        peaks.to_stream(name_of).to(f"{application_id}-peaks", key_serde=StrSerde())
        late = counts.to_stream().left_join_table(sums, both)
        late.select_key(name_of).to(f"{application_id}-late", key_serde=StrSerde())
        usage = sums.group_by(by_start, key_serde=StrSerde(), name="by-start").aggregate(
            int,
            more,
            less,
            materialized=Materialized(USAGE),
        )
        usage.to_stream().to(f"{application_id}-usage")
        high = sums.filter(is_high)
        sums.to_stream().left_join_table(high, both).select_key(name_of).to(
            f"{application_id}-heavy", key_serde=StrSerde()
        )
        heavy = sums.left_join(high, both)
        windows = heavy.group_by(by_meter, key_serde=StrSerde(), name="by-meter").count(
            materialized=Materialized(WINDOWS, value_serde=JsonSerde())
        )
        windows.to_stream().to(f"{application_id}-windows")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        reading = None if random.random() < 0.1 else random.randint(0, 9)
        return Sample(random.choice(("a", "ann", "anna")), reading)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic in (BY_START, BY_METER):
            return self._grouped(state, record)
        if record.value is None:
            return []
        key, time, reading = record.key, record.timestamp, record.value
        start = time - time % SIZE_MS
        before = state[CLOCK].get(NOW, -1)
        now = state[CLOCK][NOW] = max(before, time)
        sums, highest, counts = state[SUMS], state[HIGHEST], state[COUNTS]
        outputs = []
        for meter, begin, (total, at) in closed(sums, before, now, SIZE_MS + SUMS_GRACE_MS):
            told = [total, total if total > HIGH else None]
            outputs.append(Output("heavy", f"{meter}@{begin}", told, at))
            outputs.append(Output(BY_METER, meter, [told, None], at))
            outputs.append(Output(BY_START, str(begin), [total, None], at))
        if start + SIZE_MS + SUMS_GRACE_MS > now:
            total, at = sums.get(key, start) or (0, -1)
            sums.put(key, [total + reading, max(at, time)], start)
        for meter, begin, (peak, at) in closed(highest, before, now, SIZE_MS + HIGHEST_GRACE_MS):
            total, summed_at = sums.get(meter, begin) or (None, -1)
            told, latest = [peak, total], max(at, summed_at)
            outputs.append(Output("peaks", f"{meter}@{begin}", told, latest))
        if start + SIZE_MS + HIGHEST_GRACE_MS > now:
            peak, at = highest.get(key, start) or (reading, -1)
            highest.put(key, [max(peak, reading), max(at, time)], start)
        if start + SIZE_MS + COUNTS_GRACE_MS > now:
            count, at = counts.get(key, start) or (0, -1)
            count, latest = count + 1, max(at, time)
            counts.put(key, [count, latest], start)
            is_closed = start + SIZE_MS + SUMS_GRACE_MS <= now
            total, _ = (is_closed and sums.get(key, start)) or (None, -1)
            outputs.append(Output("late", f"{key}@{start}", [count, total], latest))
        return outputs

    def _grouped(self, state: State, record: InputRecord) -> list[Output]:
        comes, _ = record.value
        table, topic = (USAGE, "usage") if record.topic == BY_START else (WINDOWS, "windows")
        total, latest = state[table].get(record.key, [0, -1])
        total, latest = total + (comes if table == USAGE else 1), max(latest, record.timestamp)
        state[table][record.key] = [total, latest]
        return [Output(topic, record.key, total, latest)]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and (record.value is None or type(record.value) is int)


def closed(windows: Any, before: int, now: int, after: int) -> list[tuple[str, int, Any]]:
    """The windows that are closed now, and were not before, so long after their start: key, start and row."""
    found = windows.fetch_range(None, None, before - after + 1, now - after)
    return sorted(found, key=itemgetter(1, 0))


SCENARIO = Scenario()
