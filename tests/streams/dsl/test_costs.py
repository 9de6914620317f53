"""What a record costs an operator does not grow with the records that came before.

Counted in calls, of Python and of C, so that it is the same on any machine. All records are of one transaction, whose
deleted rows are still there to be passed, and of one segment of each window store; where there are several
sub-topologies, transactions are as long as a part of the records that is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from random import Random
from types import FrameType
from typing import Any

import pytest

from store.serdes import StrSerde
from store.streams.dsl import (
    BufferConfig,
    EmitStrategy,
    JoinWindows,
    KStream,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from store.suppliers import persistent_versioned_key_value_store
from store.testing.driver import TestDriver

RECORDS = 1_200
KEYS = 20
STEP_MS = 10
WINDOW_MS = 200
Pipeline = Callable[[StreamsBuilder], Any]


def _windowed(builder: StreamsBuilder, windows: Any, *, closed: bool = False, **stored: Any) -> Any:
    group = builder.stream("left").group_by_key().windowed_by(windows)
    if closed:
        group = group.emit_strategy(EmitStrategy.on_window_close())
    return group.count(materialized=Materialized("counts", **stored))


def _joined(builder: StreamsBuilder, method: str, windows: JoinWindows) -> KStream:
    joined: KStream = getattr(builder.stream("left"), method)(builder.stream("right"), _both, windows)
    return joined


def _both(left: Any, right: Any) -> str:
    return f"{left} {right}"


def _versioned(builder: StreamsBuilder) -> Any:
    supplier = persistent_versioned_key_value_store("versions", 3_600_000)
    return builder.table("right", materialized=Materialized.as_(supplier))


_TUMBLING = TimeWindows.of_size_and_grace(WINDOW_MS, 50)
_SLIDING = SlidingWindows.of_time_difference_and_grace(WINDOW_MS, 50)
_SESSIONS = SessionWindows.of_inactivity_gap_and_grace(WINDOW_MS, 50)
_NEAR = JoinWindows.of_time_difference_and_grace(WINDOW_MS, 50)
_LATER = _NEAR.before(0).after(2_000)
_DAY_MS = 86_400_000

PIPELINES: Mapping[str, Pipeline] = {
    "tumbling windows": lambda b: _windowed(b, _TUMBLING),
    "tumbling windows that are kept for a day": lambda b: _windowed(b, _TUMBLING, retention=_DAY_MS),
    "sliding windows": lambda b: _windowed(b, _SLIDING),
    "sessions": lambda b: _windowed(b, _SESSIONS),
    "tumbling windows when they close": lambda b: _windowed(b, _TUMBLING, closed=True),
    "tumbling windows that are kept for a day when they close": lambda b: _windowed(
        b, _TUMBLING, closed=True, retention=_DAY_MS
    ),
    "sliding windows when they close": lambda b: _windowed(b, _SLIDING, closed=True),
    "sessions when they close": lambda b: _windowed(b, _SESSIONS, closed=True),
    "windows suppressed until they close": lambda b: _windowed(b, _TUMBLING).suppress(
        Suppressed.until_window_closes(BufferConfig.unbounded())
    ),
    "a table suppressed for a time": lambda b: b.table("left").suppress(Suppressed.until_time_limit(500)),
    "a join of streams": lambda b: _joined(b, "join", _NEAR),
    "a left join of streams": lambda b: _joined(b, "left_join", _NEAR),
    "an outer join of streams": lambda b: _joined(b, "outer_join", _NEAR),
    "an outer join of streams that waits longer on one side": lambda b: _joined(b, "outer_join", _LATER),
    "a join of a stream with a table": lambda b: b.stream("left").join_table(b.table("right"), _both),
    "a join of a stream with a versioned table": lambda b: b.stream("left").join_table(_versioned(b), _both),
    "a join of a stream with a versioned table that waits": lambda b: b.stream("left").join_table(
        _versioned(b), _both, grace=500
    ),
    "an outer join of tables": lambda b: b.table("left").outer_join(b.table("right"), _both),
}

ACROSS_SUB_TOPOLOGIES: Mapping[str, Pipeline] = {
    "a join by a foreign key": lambda b: b.table("left").join(b.table("right"), _group_of, _both),
    "a left join by a foreign key": lambda b: b.table("left").left_join(b.table("right"), _group_of, _both),
    "groups of a table": lambda b: b.table("left").group_by(lambda _, value: (value[-1], value)).count(),
    "groups of a stream": lambda b: b.stream("left").group_by(lambda _, value: value[-1]).count(),
}
CACHES = {"without a cache": 0, "with a cache": 10_000_000}


def _group_of(value: str) -> str:
    return f"{int(value) % (2 * KEYS):02}"


def costs(pipeline: Pipeline, cache: int, *, part: int) -> list[int]:
    """Calls for each part of the records, which are as many."""
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    pipeline(builder)
    random, calls, found = Random(1), 0, []

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    config = {"statestore.cache.max.bytes": cache}
    with TestDriver(builder.build(), config, auto_commit=False) as driver:
        for number in range(RECORDS):
            side = ("left", "right")[number % 2] if "right" in driver.log.topics else "left"
            # Half of the keys of each side are not those of the other one.
            key = random.randrange(KEYS) + (KEYS // 2 if side == "right" else 0)
            at = 10_000 + number * STEP_MS - random.choice((0, 0, 0, 15, 100))
            sys.setprofile(count)
            try:
                driver.pipe_input(side, f"{key:02}", f"{random.randrange(1000)}", at)
                if number % part == part - 1 and len(driver.application.sub_topologies) > 1:
                    driver.commit()
                    driver.process()
            finally:
                sys.setprofile(None)
            if number % part == part - 1:
                found.append(calls)
                calls = 0
    return found


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", [*PIPELINES, *ACROSS_SUB_TOPOLOGIES])
def test_a_record_costs_no_more_after_many_others(name: str, cache: str) -> None:
    found = costs({**PIPELINES, **ACROSS_SUB_TOPOLOGIES}[name], CACHES[cache], part=RECORDS // 6)
    assert found[-1] < 1.2 * found[1], f"{name} {cache}: {found} calls"


@pytest.mark.parametrize("cache", CACHES)
def test_a_late_record_of_a_session_costs_no_more_after_many_later_sessions(cache: str) -> None:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    _windowed(builder, SessionWindows.of_inactivity_gap_and_grace(WINDOW_MS, _DAY_MS))
    calls, found = 0, []

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    config = {"statestore.cache.max.bytes": CACHES[cache]}
    with TestDriver(builder.build(), config, auto_commit=False) as driver:
        for number in range(1, 1_001):
            driver.pipe_input("left", "key", "1", number * 3 * WINDOW_MS)
            if number in (100, 1_000):
                calls = 0
                sys.setprofile(count)
                try:
                    driver.pipe_input("left", "key", "1", 3 * WINDOW_MS)
                finally:
                    sys.setprofile(None)
                found.append(calls)
    assert found[1] < 1.2 * found[0], f"{found} calls"
