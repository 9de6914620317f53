"""A task that runs on and on takes no more memory than one that has run for a while.

A campaign does not see that: its runs are short, and whatever a task keeps for nothing changes none of its results. So
each pipeline goes on here for some dozens of commits, with keys that come and go, and windows that expire.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from harness.worlds.sim.broker import SimLog
from harness.worlds.sim.disk import HostStorage
from scenarios import load_all
from store.clock import SystemClock
from store.engine.memory import MemoryEngine
from store.streams.dsl.record_cache import SIZE, Table
from store.streams.task import Task
from store.streams.worker import Worker
from tests.scenarios.running import Run, samples

SCENARIOS = load_all()
ROUNDS = 20
AT_ONCE = 8
NEW_KEYS = 4
"""After so many rounds other keys come, and the former ones no more."""
SETTINGS = {
    "commit.records": 5,
    # Full soon, so that what is at hand of old windows makes room.
    "statestore.cache.max.bytes": 4_000,
    "processing.guarantee": "exactly_once_v2",
}
MAY_COME = 60
"""Objects, in as many rounds: fewer than the keys that come, and more than chance makes of a few rows."""
ELSEWHERE = (type, ModuleType, CodeType, BuiltinFunctionType, HostStorage, SimLog, MemoryEngine)
"""What is not a task's own: code, the disk and the cluster."""


def owned(root: object) -> int:
    """How many objects can be reached from one."""
    seen: set[int] = set()
    left: list[Any] = [root]
    while left:
        found = left.pop()
        known = id(found) in seen or isinstance(found, ELSEWHERE)
        if not known and not type(found).__module__.startswith("harness."):
            seen.add(id(found))
            left += _held_by(found)
    return len(seen)


def _held_by(found: object) -> Iterable[Any]:
    if isinstance(found, FunctionType):
        return [*(found.__closure__ or ()), *(found.__defaults__ or ())]
    return gc.get_referents(found)


def rounds(name: str) -> Iterator[list[Task]]:
    """The open tasks of a pipeline, after each round of records, which are committed by then."""
    run = Run(SCENARIOS[name], SETTINGS)
    fed = samples(run.scenario, Random(1), 3 * ROUNDS * AT_ONCE)
    with ExitStack() as workers:
        running = []
        for number, topology in enumerate(run.topologies, 1):
            storage = HostStorage(run.host, number)
            running.append(Worker(topology, [0], SimLog(run.broker), storage, run.config, SystemClock()))
            workers.callback(running[-1].close)
        while fed:
            generation = len(fed) // (NEW_KEYS * AT_ONCE)
            for sample in fed[:AT_ONCE]:
                run.feed(replace(sample, key=f"{sample.key}{generation}") if sample.key else sample)
            del fed[:AT_ONCE]
            while sum(worker.poll() for worker in running):
                pass
            yield [task for worker in running for task in worker.tasks.values()]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_task_keeps_nothing_of_what_it_has_committed(name: str) -> None:
    sizes = []
    for number, tasks in enumerate(rounds(name), 1):
        for task in tasks:
            for table in getattr(task.processing, "tables", {}).values():
                assert table.used == bytes_in(table), f"{name}: what a table counts is what it holds"
        if number % ROUNDS == 0:
            sizes.append(owned(tasks))
    assert sizes[2] < sizes[1] + MAY_COME, f"{name} has {sizes} objects"


def bytes_in(table: Table) -> int:
    return sum(entry[SIZE] for held in (table.dirty, table._written, table._clean) for entry in held.values())
