"""What a campaign on Spark costs its driver for each task, and so for how many cores it is enough.

`python -m harness.bench.spread [MASTER]` prints it. Measured with tasks that give a real result without any work. By
default that is on a local Spark with as many cores as this machine, whose JVM is driver and executor; with a standalone
master it is the driver alone.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import psutil
from pyspark import SparkContext
from pyspark.cloudpickle import register_pickle_by_value

from harness.campaign import Plan, Total, chunks_of, default_jobs
from harness.spread.masters import Master, master_of
from harness.spread.part import Done, run_chunks
from harness.spread.shipped import ship
from harness.spread.spark import TASK_SECONDS, open_spark
from harness.worlds import SIMULATION
from scenarios import load_all

TASKS = 1_000
LAUNCHES = 5_000
WARM_UP = 500
ADDED = 500


class Cost(msgspec.Struct, frozen=True):
    """What was measured."""

    archive_bytes: int
    """Of what every executor fetches once."""
    schedules_per_task: int
    result_bytes: int
    """Of one task."""
    add_seconds: float
    """Of the driver's Python, to decode the result of a task and to add it up."""
    launches_per_second: float
    """Of tasks in which nothing is done, not even by Python."""
    driver_seconds: float
    """Of a processor, per task: the driver's Python and its JVM, in which a local executor is too."""
    worker_seconds: float
    """Of a processor, per task: what a Python worker of a local executor does beside the task itself."""


def measure(master: Master) -> Cost:
    """Measure all of it; some ten seconds of work."""
    plan = Plan(tuple(load_all()), seed=0)
    data, done = _real_result(plan)
    total = Total(plan, SIMULATION, lambda *_: None)
    started = time.process_time()
    for _ in range(ADDED):
        again = pickle.loads(data)
        for part in again.parts:
            total.add(part)
    add_seconds = (time.process_time() - started) / ADDED
    launches_per_second, driver_seconds, worker_seconds = _handed_out(master, plan, data)
    return Cost(
        len(ship(plan.scenarios).data),
        sum(part.result.schedules for part in done.parts),
        len(data),
        add_seconds,
        launches_per_second,
        driver_seconds,
        worker_seconds,
    )


def _real_result(plan: Plan) -> tuple[bytes, Done]:
    """The answer of a task that takes as long as tasks are meant to."""
    chunks = islice(chunks_of(plan), 2 * len(plan.scenarios), None)
    number = 1
    while True:
        data = run_chunks(list(islice(chunks, number)), plan.seed, None, (), {}, ".")
        done = pickle.loads(data)
        assert isinstance(done, Done)
        if done.seconds >= 0.7 * TASK_SECONDS:
            return data, done
        number *= 2


def _handed_out(master: Master, plan: Plan, data: bytes) -> tuple[float, float, float]:
    register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark = open_spark(master, plan.scenarios)
    try:
        context = spark.context

        def run(tasks: int) -> None:
            def answer(requests: Iterable[object]) -> Iterator[tuple[str, bytes]]:
                for _ in requests:
                    yield "done", data

            context.parallelize(range(tasks), tasks).mapPartitions(answer).collect()

        run(WARM_UP)
        jvm = psutil.Process(spark.jvm)
        drivers, workers = [psutil.Process(), jvm], jvm.children(recursive=True)
        before = _busy(drivers), _busy(workers)
        run(TASKS)
        driver, worker = ((_busy(drivers) - before[0]) / TASKS, (_busy(workers) - before[1]) / TASKS)
        _launch(context, WARM_UP)
        started = time.monotonic()
        _launch(context, LAUNCHES)
        return LAUNCHES / (time.monotonic() - started), driver, worker
    finally:
        spark.close()


def _busy(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _launch(context: SparkContext, tasks: int) -> None:
    java: Any = context._jsc
    java.sc().range(0, tasks, 1, tasks).count()


if __name__ == "__main__":
    cost = measure(master_of(sys.argv[1] if sys.argv[1:] else f"local[{default_jobs()}]"))
    for name in cost.__struct_fields__:
        sys.stdout.write(f"{name}: {getattr(cost, name):.6g}\n")
