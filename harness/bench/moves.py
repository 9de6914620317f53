"""A task that moves to another task host of its machine, and the memory of a host, for `crashproof bench spark`.

Runs as `python -m harness.bench.moves JSON` and prints its figures as one JSON object. It does what Spark's Python
workers do: it brings orders, which start the hosts; the first host is killed when its state is there, and the clock
runs until the second one has committed a record on that state.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
from confluent_kafka import Producer

from store.config import StreamsConfig
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.spark.host import Carried, Deployment, Order
from store.spark.messenger import bring, dismiss
from store.spark.process import Place
from store.streams.application import Application
from store.streams.topology import Context, Topology
from store.types import Record

_ROW_BYTES = 1_000
_SMALLER = 5
"""By how much the order is smaller whose host's memory is compared."""


class Request(msgspec.Struct, frozen=True):
    bootstrap: str
    name: str
    """A name that no other measurement has."""
    directory: str
    state_mb: int


class Answer(msgspec.Struct, frozen=True):
    state_mb: int
    """What the directory of the task has taken when the first host dies."""
    seconds: float
    peak_mb: int
    """Memory of the first host, which had all its input by one order."""
    smaller_mb: int
    """Input of a smaller order, for comparison."""
    smaller_peak_mb: int


def measure(request: Request) -> Answer:
    """Have a process do it."""
    command = [sys.executable, "-m", "harness.bench.moves", msgspec.json.encode(request).decode()]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"moving a task ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return msgspec.json.decode(done.stdout, type=Answer)


def _keep(context: Context, record: Record) -> None:
    context.store("rows").put(record.key or b"", record.value)


class _Run:
    """One application with one task, whose input holds rows of random bytes."""

    def __init__(self, request: Request, name: str) -> None:
        self.source = f"{name}-input"
        application = Application.of(Topology(name, (self.source,), (), ("rows",), _keep))
        config = StreamsConfig.of({"commit.interval.ms": 1_000, "commit.records": 100_000})
        self.deployment = Deployment(application, config, request.bootstrap, request.directory, "bench", {})
        log = KafkaLog(request.bootstrap)
        log.admin().create_topics([TopicSpec(self.source, 1)])
        application.prepare(log)
        self._producer = Producer({"bootstrap.servers": request.bootstrap, "linger.ms": 5})
        self._produced = 0
        self._hosts = Path(request.directory) / name / ".hosts"

    def produce(self, rows: int, row_bytes: int) -> None:
        for _ in range(rows):
            self._await(
                partial(self._producer.produce, self.source, os.urandom(row_bytes), b"%d" % self._produced)
            )
            self._produced += 1
        self._producer.flush()

    def _await(self, send: Any) -> None:
        while True:
            try:
                send()
                return
            except BufferError:
                self._producer.poll(0.1)

    def order(self, slot: int) -> list[Carried]:
        """Have the host of the slot process all that there is."""
        return bring(self.deployment, slot, [Order(0, 0, {self.source: self._produced})], 1)

    def host(self, slot: int) -> psutil.Process:
        place = msgspec.json.decode((self._hosts / f"slot-{slot}.json").read_bytes(), type=Place)
        return psutil.Process(place.pid)

    def peak_mb(self, slot: int) -> int:
        status = Path("/proc", str(self.host(slot).pid), "status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) // 1_000

    def end(self, slot: int) -> None:
        dismiss(self.deployment, slot)


def _move(request: Request) -> Answer:
    run = _Run(request, request.name)
    run.produce(request.state_mb * 1_000_000 // _ROW_BYTES, _ROW_BYTES)
    run.order(0)
    peak = run.peak_mb(0)
    state = sum(
        file.stat().st_size for file in Path(request.directory, request.name).rglob("*") if file.is_file()
    )
    run.produce(1, _ROW_BYTES)
    run.host(0).send_signal(signal.SIGKILL)
    began = time.perf_counter()
    (carried,) = run.order(1)
    seconds = time.perf_counter() - began
    if carried.records != 1:
        raise AssertionError(f"{carried.records} records were processed, not 1")
    run.end(1)
    smaller = _Run(request, f"{request.name}-smaller")
    smaller_mb = request.state_mb // _SMALLER
    smaller.produce(smaller_mb * 1_000_000 // _ROW_BYTES, _ROW_BYTES)
    smaller.order(0)
    smaller_peak = smaller.peak_mb(0)
    smaller.end(0)
    return Answer(state // 1_000_000, seconds, peak, smaller_mb, smaller_peak)


def main() -> None:
    request = msgspec.json.decode(sys.argv[1], type=Request)
    sys.stdout.write(msgspec.json.encode(_move(request)).decode())


if __name__ == "__main__":
    main()
