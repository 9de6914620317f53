"""Situations that have several conditions at once, and so hardly ever arise from things drawn one by one.

A theme draws settings, times and steps that belong together. Which records there are, and all else, stays to chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import count
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from harness.faults import FAULTS, Occasion
from harness.schedule import Edge, Runtime, Step
from scenarios import Scenario
from store.points import Point


class Times(Enum):
    """How the times of the input records follow each other."""

    USUAL = "usual"
    """Mostly forward, by no more than some steps of the scenario, with late records now and then."""
    LATE = "late"
    """Most records are late, and not by much."""
    LEAPS = "leaps"
    """Records that are far ahead come between others: what was before expires by them, or just not yet; and others that
    come too late for anything."""
    FEW = "few"
    """There are few times, and each of them has many records."""
    STEADY = "steady"
    """Each record lets one of the last few expire, or nearly."""
    EARLY = "early"
    """All are at the beginning of time, in no order, several of them within each sliding window."""
    EDGES = "edges"
    """Each is just one of the scenario's edges from one of the last few, or of the same time."""


EDGES = 0.3
"""The share of records among late ones that are a duration of the scenario apart from another, nearly or exactly."""


def first_time(random: Random, scenario: Scenario) -> int:
    """A time for input to begin at, in milliseconds since the epoch: now and then its very beginning, before which no
    window starts."""
    return random.choice((10, 10, 10, 0)) * scenario.time_step_ms


def times(shape: Times, random: Random, scenario: Scenario) -> Iterator[int]:
    """The times of the input records, in milliseconds since the epoch, without end. None for `Times.USUAL`."""
    step = scenario.time_step_ms
    span = max((*scenario.durations_ms, step))
    now = first_time(random, scenario)
    match shape:
        case Times.LATE:
            seen: list[int] = []
            for _ in count():
                now += random.choice((0, step // 4, step))
                late = random.choice((0, 0, step // 2, step, 2 * step, 3 * step, 5 * step))
                time = now - late
                if seen and random.random() < EDGES:
                    # Before the latest, which nearly all that is late depends on, or behind one of the last.
                    apart = random.choice(scenario.durations_ms or (step,)) + random.choice((0, 0, -1, 1))
                    time = max(seen) - apart if random.random() < 0.5 else random.choice(seen[-3:]) + apart
                    now = max(now, time)
                seen.append(time)
                yield max(1, time)
        case Times.LEAPS:
            for _ in count():
                if random.random() < 0.45:
                    now += span + random.choice((0, step, span, 2 * span))
                exact = random.choice((step, *scenario.durations_ms)) + random.choice((0, 0, -1, 1))
                beyond = span + random.choice((step, span))
                late = random.choice((0, 0, 0, step // 2, 2 * step, exact, exact, beyond, beyond))
                yield max(1, now - late)
                if not late:
                    now += random.choice((0, step // 4, step))
        case Times.STEADY:
            for _ in count():
                now += random.choice((0, span // 8, span // 4, span // 4, span // 3))
                yield max(1, now - random.choice((0, 0, 0, span // 4)))
        case Times.EARLY:
            size = scenario.sliding_ms or step
            latest = random.choice((size, size, 2 * size, 3 * size))
            for _ in count():
                yield max(1, random.randrange(9) * latest // 8 + random.choice((0, 0, -1, 1)))
        case Times.EDGES:
            last = [now]
            for _ in count():
                edge = random.choice(scenario.edges_ms or (span,))
                last = [*last[-2:], max(1, random.choice(last) + edge * random.choice((1, 1, 0, -1)))]
                yield last[-1]
        case Times.FEW:
            few = [
                now,
                *(now + random.choice((step // 4, step, 2 * step)) for _ in range(random.randint(0, 2))),
            ]
            while True:
                yield random.choice(few)


class Theme(NamedTuple):
    """One situation."""

    settings: Mapping[str, Sequence[Any]]
    """Setting → values of which one is taken, in place of what was drawn; without values: as it is by default."""
    times: Sequence[Times]
    steps: Callable[[Random, str], list[Step]]
    """Made for a task. They come before all others."""
    queries: Sequence[int] = (0,)
    """How many of them come before these."""
    runtimes: Sequence[str] = tuple(Runtime)
    """Those that can be in it."""
    timed: bool = False
    """Whether it means something to pipelines that times change something in alone."""


def _aborts(random: Random, task: str) -> list[Step]:
    calls = [
        random.choice((Occasion.PRODUCE, *FAULTS["abort_commit"].occasions))
        for _ in range(random.choice((1, 2, 2, 3)))
    ]
    # Half of them when there was a commit, which is gone back to then.
    behind = random.choice((0, 4))
    # In the middle of a transaction, which the first record of one is not, or at its end.
    waits = [random.choice((1, 2, 3, 4) if call is Occasion.PRODUCE else (0, 1, 2)) for call in calls]
    waits[0] += behind
    return [
        Step("abort_commit", task=task, call=call, wait=wait) for call, wait in zip(calls, waits, strict=True)
    ]


def _restarts(random: Random, task: str) -> list[Step]:
    return [
        Step(
            random.choice(("kill", "kill", "wipe", "clean_stop")),
            task=task,
            at=random.choice((None, Point.RECORD_PROCESSED, Point.CHECKPOINT_WRITTEN)),
            wait=random.choice((1, 2, 3)),
        )
        for _ in range(random.choice((1, 2, 2, 3)))
    ]


def _overtaken(random: Random, task: str) -> list[Step]:
    inside = random.choice(
        (Point.RECORD_PROCESSED, Point.RECORD_PROCESSED, Point.COMMIT_STARTED, Point.STORE_COMMITTED)
    )
    return [
        Step("pause", task=task, at=inside, wait=random.choice((0, 0, 1))),
        Step("resume", task=task, wait=random.choice((2, 3, 4, 6))),
    ]


def _handed_on(random: Random, task: str) -> list[Step]:
    if random.random() < 0.5:
        return [Step(random.choice(("kill", "kill", "pause", "stall")), task=task, at=Point.TASK_CLOSED)]
    # It is given up by the group before it has fenced anybody, and does so when another one is at work.
    away = Step("pause", task=task, call=Occasion.INIT_TRANSACTIONS, edge=Edge.BEFORE)
    return [away, Step("resume", task=task, wait=random.choice((1, 2, 3)))]


def _silence(random: Random, task: str) -> list[Step]:
    call = random.choice(
        (
            Occasion.INIT_TRANSACTIONS,
            Occasion.COMMITTED,
            Occasion.OFFSETS,
            Occasion.PARTITIONS,
            Occasion.FLUSH,
            Occasion.SEND_OFFSETS,
        )
    )
    fault = random.choice(("lose_brokers", "lose_brokers", "fail_calls"))
    _, some, many = FAULTS[fault].amount
    silent = Step(fault, task=task, call=call, amount=random.choice((some, many, many)))
    if random.random() < 0.5:
        return [replace(silent, wait=random.choice((0, 0, 1)))]
    # Others have the task while it opens it, or it opens it again.
    away = Step(random.choice(("kill", "kill", "wipe", "clean_stop", "fence")), task=task, wait=1)
    return [away, silent]


_BY_DEFAULT: Mapping[str, Sequence[Any]] = dict.fromkeys(
    (
        "processing.guarantee",
        "default.dsl.store",
        "statestore.transactional.enabled",
        "statestore.uncommitted.max.bytes",
    ),
    (),
)
"""Transactions, and no bound that ends one early."""

_ABORTS = Theme(
    {
        **_BY_DEFAULT,
        "statestore.cache.max.bytes": (0, 1_400, 1_000_000),
        "commit.records": (3, 5, 5),
        "poll.records": (5, 5, 2),
    },
    (*(Times.LEAPS,) * 5, Times.LATE),
    _aborts,
    # A Spark attempt that aborts is thrown away whole.
    runtimes=(Runtime.WORKER, Runtime.STREAMS),
)
"""A task that goes on after an abort: nothing of it may be left in what the task has in memory."""

_RESTARTS = Theme({"commit.records": (1, 2)}, (Times.FEW,), _restarts)
"""Rows of one key and time that are written by one incarnation after the other."""

_QUESTIONS = Theme(
    {**_BY_DEFAULT, "commit.records": (3, 5, 8, 8)},
    (Times.LEAPS, Times.LEAPS, Times.STEADY, *Times),
    lambda _random, _task: [],
    (5, 8, 12),
)
"""Queries of a task that has much that is not committed."""

_DIRECT_QUESTIONS = Theme(
    {
        **_BY_DEFAULT,
        "default.dsl.store": ("rocksDB",),
        "statestore.cache.max.bytes": (),
        "commit.records": (5, 8),
    },
    (Times.STEADY, Times.STEADY, Times.LATE),
    lambda _random, _task: [],
    (8, 12),
    timed=True,
)
"""Queries of a store whose rows are there before their commit, and the time that they expire by only with it."""

_OVERTAKEN = Theme(
    {"processing.guarantee": ("at_least_once",), "commit.records": (1, 2, 3)},
    (Times.USUAL, Times.LATE, Times.FEW),
    _overtaken,
    runtimes=(Runtime.SPARK,),
)
"""An attempt that goes on after others and sets the group's positions back, before what Spark hands over next."""

_HANDED_ON = Theme(
    {"commit.records": (1, 2, 3)},
    (Times.USUAL, Times.FEW),
    _handed_on,
    runtimes=(Runtime.STREAMS,),
)
"""A member that dies, or stands still, when it has just been given a task, or had one taken away."""

_SILENCE = Theme(
    {
        "commit.records": (1, 2, 5),
        "num.standby.replicas": (0, 1),
        "num.stream.threads": (1, 2, 2),
    },
    (Times.USUAL, Times.FEW),
    _silence,
    runtimes=(Runtime.STREAMS,),
)
"""A member that reaches no broker for a while: as it begins, opens its tasks, works on them or copies those of others.
"""

THEMES = (_ABORTS, _ABORTS, _RESTARTS, _QUESTIONS, _DIRECT_QUESTIONS, _OVERTAKEN, _HANDED_ON, _SILENCE)
"""Of which each schedule that has a theme takes one."""
