"""Values collected by key and window, forwarded once: when the window is closed (`EmitStrategy.ON_WINDOW_CLOSE`).

Input, keyed by anything: a number, or null, which counts nowhere. Windows are 20 s long, one begins every 10 s, and
they take late records for 15 s more.

Output, keyed by the input's key and the window's start, as in `ann@30000`: the values of the window in the order in
which they came, with the latest time of them. It comes with the first record whose time closes the window, of any key
of the partition, and before that record counts; the oldest window first, and of those the first key. A window that is
not closed yet has no output.

The stream time by which windows close is the largest time of the records that count; it is noted beside the positions.
Under at least once those may be older than the stores after a crash, so that windows are closed a second time: exactly
once is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import InputRecord, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.state.windowed import Windowed
from store.streams.dsl import EmitStrategy, Materialized, StreamsBuilder, TimeWindows
from store.streams.topology import Topology

COLLECTED = "collected"
SIZE_MS = 20_000
ADVANCE_MS = 10_000
GRACE_MS = 15_000


def append(_key: str, value: int, values: list[int]) -> list[int]:
    return [*values, value]


def name_of(key: Windowed[str], _values: list[int]) -> str:
    return f"{key.key}@{key.window.start}"


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "closed_windows"
    summary = "Windowed aggregates of the DSL that are forwarded once, when their windows are closed."
    settings: ClassVar[Mapping[str, Any]] = {"processing.guarantee": "exactly_once_v2"}
    time_step_ms = 9_000
    durations_ms = (SIZE_MS, ADVANCE_MS, SIZE_MS + GRACE_MS)

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        windows = TimeWindows.of_size(SIZE_MS).advance_by(ADVANCE_MS).with_grace(GRACE_MS)
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        grouped = builder.stream(f"{application_id}-input").group_by_key().windowed_by(windows)
        collected = grouped.emit_strategy(EmitStrategy.on_window_close()).aggregate(
            list, append, materialized=Materialized(COLLECTED)
        )
        collected.to_stream(name_of).to(f"{application_id}-output", key_serde=StrSerde())
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        value = None if random.random() < 0.1 else random.randint(1, 9)
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
            Output("output", f"{key}@{start}", values, latest)
            for key, start, (values, latest) in sorted(
                windows.fetch_range(None, None, before - closes + 1, now - closes), key=itemgetter(1)
            )
        ]
        for start in range(time // ADVANCE_MS * ADVANCE_MS, time - SIZE_MS, -ADVANCE_MS):
            if start >= 0 and start > now - closes:
                values, latest = windows.get(record.key, start) or ([], -1)
                windows.put(record.key, [[*values, record.value], max(latest, time)], start)
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and isinstance(record.value, int | None)


SCENARIO = Scenario()
