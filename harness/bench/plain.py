"""A worker without Spark as a side of `crashproof bench spark`, in a process of its own.

Runs as `python -m harness.bench.plain JSON` and prints its figures as one JSON object.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from harness.bench.count import SETTINGS, Input, Kind, application, make_output
from store.clock import SystemClock
from store.config import StreamsConfig
from store.log.kafka import KafkaLog
from store.recovery.directory import StateDirectory
from store.streams.task import Task
from store.streams.worker import Worker
from store.types import IsolationLevel, TopicPartition

COMMITTED_AT_ONCE = 100
"""Records of each commit whose time is measured."""


class Request(msgspec.Struct, frozen=True):
    """What is to be measured."""

    bootstrap: str
    application_id: str
    kind: Kind
    input: Input
    directory: str
    guarantee: str = "exactly_once_v2"
    commits: int = 0
    """Measure so many commits instead."""


class Answer(msgspec.Struct, frozen=True):
    seconds: float
    commits: list[float]


def measure(request: Request) -> Answer:
    """Have a process do it."""
    command = [sys.executable, "-m", "harness.bench.plain", msgspec.json.encode(request).decode()]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the worker ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return msgspec.json.decode(done.stdout, type=Answer)


def _count(request: Request, log: KafkaLog, config: StreamsConfig) -> Answer:
    """Seconds from the first record behind the warm part to the commit of the last."""
    made = request.input
    (topology,) = application(request.kind, request.application_id, made.topic).sub_topologies
    pool = ThreadPoolExecutor(config.num_commit_threads)
    worker = Worker(
        topology,
        range(made.partitions),
        log,
        StateDirectory(request.directory, request.application_id),
        config,
        SystemClock(),
        streaming=log.reader(),
        pool=pool,
    )
    try:
        worker.advance(made.ends(made.warm))
        began = time.perf_counter()
        processed = sum(worker.advance(made.ends(made.warm + made.records)).values())
        seconds = time.perf_counter() - began
    finally:
        worker.close()
        pool.shutdown()
    if processed != made.records:
        raise AssertionError(f"{processed} of {made.records} records were processed")
    return Answer(seconds, [])


def _commits(request: Request, log: KafkaLog, config: StreamsConfig) -> Answer:
    """Seconds of each commit of one task."""
    (topology,) = application(request.kind, request.application_id, request.input.topic).sub_topologies
    storage = StateDirectory(request.directory, request.application_id)
    reader = log.reader()
    source = TopicPartition(request.input.topic, 0)
    taken: list[float] = []
    began = time.perf_counter()
    with Task(topology, 0, log, storage, config, SystemClock()) as task:
        while len(taken) < request.commits:
            fetch = reader.read(
                source, task.position(source), COMMITTED_AT_ONCE, IsolationLevel.READ_COMMITTED
            )
            task.process_batch(fetch.records)
            started = time.perf_counter()
            task.commit()
            taken.append(time.perf_counter() - started)
    seconds = time.perf_counter() - began
    reader.close()
    return Answer(seconds, taken)


def main() -> None:
    request = msgspec.json.decode(sys.argv[1], type=Request)
    Path(request.directory).mkdir(parents=True, exist_ok=True)
    log = KafkaLog(request.bootstrap)
    config = StreamsConfig.of({**SETTINGS, "processing.guarantee": request.guarantee})
    made = application(request.kind, request.application_id, request.input.topic)
    make_output(log, request.application_id, request.input.partitions)
    made.prepare(log)
    answer = (_commits if request.commits else _count)(request, log, config)
    sys.stdout.write(msgspec.json.encode(answer).decode())


if __name__ == "__main__":
    main()
