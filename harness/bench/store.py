"""`crashproof bench store`: the state store against raw rocksdict and Quix Streams, in turns, in one run.

Each piece of work is done by all sides one after the other, some rounds long, and the median rate counts, so that
what slows the machine down slows all of them. Nothing is asserted but that the work was done: a target that is
missed is printed as missed.
"""

from __future__ import annotations

import gc
import math
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from harness.bench.quix import Quix, QuixUnavailableError
from harness.bench.sides import CHANGELOG, LocalSide, OurDatabase, RawDatabase, Side, ordered_keys
from harness.bench.work import VALUE_BYTES, Kind, Work
from harness.provision import ProvisionError
from harness.worlds.local.broker import LocalBroker
from store.engine.rocksdb import RocksEngine
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.recovery.restore import restore
from store.state.keyvalue import KeyValueStore
from store.state.protocol import StoreContext
from store.transaction.protocol import Mechanism
from store.types import TopicPartition

Progress = Callable[[str], None]


class Row(msgspec.Struct):
    """Rates in operations per second; a ratio is ours divided by the other's. None: not measured."""

    name: str
    ours: float
    raw: float | None = None
    quix: float | None = None
    ratio_raw: float | None = None
    ratio_quix: float | None = None
    target_raw: float | None = None
    target_quix: float | None = None


class Figure(msgspec.Struct):
    """One measured value that is not a rate, with the most it should be."""

    name: str
    value: float
    unit: str
    at_most: float | None = None


class Report(msgspec.Struct):
    rows: list[Row]
    figures: list[Figure]
    environment: dict[str, str]
    notes: list[str]


class Sizes(msgspec.Struct, frozen=True):
    """How much is done."""

    budget_s: float
    """After so long one round must do."""
    rounds: int
    keys: tuple[int, ...]
    single_commits: int
    """Operations where each is committed by itself."""
    reads: int
    buffer_keys: int
    latency_operations: int
    restore_records: int
    transaction_bytes: int
    state_bytes: tuple[int, ...]


QUICK = Sizes(25.0, 3, (100_000,), 10_000, 50_000, 100_000, 20_000, 100_000, 0, ())
FULL = Sizes(
    math.inf,
    5,
    (100_000, 1_000_000),
    100_000,
    200_000,
    1_000_000,
    200_000,
    1_000_000,
    2 << 30,
    (1 << 30, 4 << 30),
)


def run(*, quick: bool, progress: Progress) -> Report:
    """Measure everything. Uses a temporary directory, and removes it."""
    sizes = QUICK if quick else FULL
    report = Report([], [], _environment(), [])
    directory = Path(tempfile.mkdtemp(prefix="crashproof-bench-"))
    try:
        until = time.perf_counter() + sizes.budget_s
        _rates(sizes, directory, report, progress, until)
        _without_transactions(sizes, directory, report, progress, until)
        _latencies(sizes, directory, report, progress)
        _memory(sizes, directory, report, progress)
        _restore_rate(sizes, directory, report, progress)
        _recovery(sizes, directory, report, progress)
    finally:
        shutil.rmtree(directory)
    return report


def _environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "rocksdict": version("rocksdict"),
    }


def _count(number: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size and number % size == 0:
            return f"{number // size}{letter}"
    return str(number)


# -- rates ---------------------------------------------------------------------------------------------------


def _in_turns(sides: Sequence[Side], work: Work, rounds: int, until: float) -> list[float]:
    """The median rate of each side, in operations per second, of one round only when it is late."""
    seconds: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        if number and time.perf_counter() > until:
            break
        for side, taken in zip(sides, seconds, strict=True):
            gc.collect()
            taken.append(side.measure(msgspec.structs.replace(work, seed=number + 1)))
    return [work.operations / median(taken) for taken in seconds]


def _rates(sizes: Sizes, directory: Path, report: Report, progress: Progress, until: float) -> None:
    ours = LocalSide(lambda path: OurDatabase(path, Mechanism.INDEXED_BATCH), directory)
    raw = LocalSide(RawDatabase, directory)
    sides: list[Side] = [ours, raw]
    try:
        sides.append(Quix())
    except QuixUnavailableError as error:
        report.notes.append(f"Quix Streams was not measured: {error}")
    try:
        for name, work, target_raw, target_quix in _work(sizes):
            progress(name)
            rates = _in_turns(sides, work, sizes.rounds, until)
            quix = rates[2] if len(rates) > 2 else None
            report.rows.append(_row(name, rates[0], rates[1], quix, target_raw, target_quix))
    finally:
        for side in sides:
            side.close()


def _work(sizes: Sizes) -> list[tuple[str, Work, float | None, float | None]]:
    """Names, work, and the ratios to raw rocksdict and to Quix Streams that are aimed at."""
    todo: list[tuple[str, Work, float | None, float | None]] = []
    for keys in sizes.keys:
        of_keys = f"{_count(keys)} keys"
        for batch in (1, 100, 10_000):
            operations = min(keys, sizes.single_commits) if batch == 1 else keys
            work = Work(Kind.PUT, keys, operations, batch)
            todo.append((f"put + commit, {of_keys}, batches of {_count(batch)}", work, 0.8, 3.0))
    for keys in sizes.keys:
        of_keys = f"{_count(keys)} keys"
        todo += [
            (f"get, {of_keys}", Work(Kind.GET, keys, sizes.reads), 0.8, None),
            (f"scan, {of_keys}", Work(Kind.SCAN, keys, keys), 0.7, None),
            (f"scan backward, {of_keys}", Work(Kind.REVERSE, keys, keys), 0.7, None),
            (f"ranges of 100, {of_keys}", Work(Kind.RANGE, keys, sizes.reads, 100), 0.7, None),
        ]
    return todo


def _row(
    name: str,
    ours: float,
    raw: float | None = None,
    quix: float | None = None,
    target_raw: float | None = None,
    target_quix: float | None = None,
) -> Row:
    return Row(
        name,
        ours,
        raw,
        quix,
        None if raw is None else ours / raw,
        None if quix is None else ours / quix,
        target_raw,
        target_quix if quix is not None else None,
    )


class _Dirty(OurDatabase):
    """A store with uncommitted writes, as a task has them while it runs."""

    def put(self, keys: list[bytes], value: bytes, batch: int) -> None:
        super().put(keys, value, batch)
        for key in keys[:: max(1, len(keys) // 1000)]:
            self.store.put(key, value)


def _without_transactions(
    sizes: Sizes, directory: Path, report: Report, progress: Progress, until: float
) -> None:
    """The same store with and without transactions; here `raw` is the store without."""
    keys = sizes.keys[-1]
    todo = [
        ("put + commit, batches of 100", Work(Kind.PUT, keys, min(keys, 100_000), 100), OurDatabase),
        ("get, 1000 uncommitted", Work(Kind.GET, keys, sizes.reads), _Dirty),
        ("scan, 1000 uncommitted", Work(Kind.SCAN, keys, keys), _Dirty),
        ("ranges of 100, 1000 uncommitted", Work(Kind.RANGE, keys, sizes.reads, 100), _Dirty),
    ]
    for name, work, database in todo:
        name = f"with / without transactions: {name}"
        progress(name)
        sides = [
            LocalSide(lambda path, of=database: of(path, Mechanism.INDEXED_BATCH), directory),  # type: ignore[misc]
            LocalSide(lambda path, of=database: of(path, None), directory),  # type: ignore[misc]
        ]
        try:
            ours, direct = _in_turns(sides, work, sizes.rounds, until)
        finally:
            for side in sides:
                side.close()
        report.rows.append(_row(name, ours, direct, target_raw=0.9))


# -- latency, memory -----------------------------------------------------------------------------------------


def _latencies(sizes: Sizes, directory: Path, report: Report, progress: Progress) -> None:
    """Put, get and range in turns on a store with as many uncommitted pairs as committed ones."""
    progress(f"mixed operations on {_count(sizes.buffer_keys)} uncommitted pairs")
    database = OurDatabase(directory / "latency", Mechanism.INDEXED_BATCH)
    store, order = database.store, random.Random(1)
    keys = ordered_keys(sizes.buffer_keys * 2)
    value = bytes(VALUE_BYTES)
    database.put(keys[::2], value, 10_000)
    for number, key in enumerate(keys[1::2]):
        store.put(key, value)
        if number % 1000 == 0:
            store.range(key, key).close()
    taken: dict[str, list[int]] = {"put": [], "get": [], "range of 10": []}
    clock = time.perf_counter_ns
    for number in range(sizes.latency_operations):
        index = order.randrange(len(keys) - 20)
        key = keys[index]
        if number % 5 < 2:
            new = key + b"%d" % number
            began = clock()
            store.put(new, value)
            taken["put"].append(clock() - began)
        elif number % 5 < 4:
            began = clock()
            store.get(key)
            taken["get"].append(clock() - began)
        else:
            upper = keys[index + 10]
            began = clock()
            for _ in store.range(key, upper):
                pass
            taken["range of 10"].append(clock() - began)
    database.close()
    for name, times in taken.items():
        times.sort()
        of_buffer = f"{name}, {_count(sizes.buffer_keys)} uncommitted"
        report.figures += [
            Figure(f"{of_buffer}: 99.9th percentile", times[len(times) * 999 // 1000] / 1e6, "ms", 1.0),
            Figure(f"{of_buffer}: slowest", times[-1] / 1e6, "ms"),
        ]


def _child(name: str, *, killed: bool = False, **arguments: Any) -> Mapping[str, float]:
    """Run a measurement of `harness.bench.child`."""
    command = [sys.executable, "-m", "harness.bench.child", name, msgspec.json.encode(arguments).decode()]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != (-signal.SIGKILL if killed else 0):
        raise RuntimeError(
            f"{name} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}"
        )
    return msgspec.json.decode(done.stdout, type=dict[str, float])


def _memory(sizes: Sizes, directory: Path, report: Report, progress: Progress) -> None:
    progress("memory of the uncommitted buffer")
    own = Path(tempfile.mkdtemp(dir=directory))
    found = _child("buffer_memory", directory=str(own), keys=sizes.buffer_keys, value_bytes=VALUE_BYTES)
    of = f"{_count(sizes.buffer_keys)} uncommitted pairs of {VALUE_BYTES} B"
    report.figures += [
        Figure(f"memory / bytes held, {of}", found["resident_bytes"] / found["held_bytes"], "×", 2.5),
        Figure(
            f"approximate_num_uncommitted_bytes / memory, {of}",
            found["approximate_bytes"] / found["resident_bytes"],
            "×",
        ),
    ]
    if not sizes.transaction_bytes:
        return
    for value_bytes in (VALUE_BYTES, 1000):
        progress(f"a transaction of {sizes.transaction_bytes >> 20} MiB in the secondary mechanism")
        own = Path(tempfile.mkdtemp(dir=directory))
        found = _child(
            "large_transaction",
            directory=str(own),
            total_bytes=sizes.transaction_bytes,
            value_bytes=value_bytes,
        )
        of = f"{found['transaction_bytes'] / 1e9:.2f} GB transaction, secondary, values of {value_bytes} B"
        report.figures += [
            Figure(f"{of}: peak memory of the process", found["peak_resident_bytes"] / 1e6, "MB", 300),
            Figure(f"{of}: commit", found["commit_seconds"], "s"),
        ]
        shutil.rmtree(own)


# -- recovery ------------------------------------------------------------------------------------------------


def _restore_rate(sizes: Sizes, directory: Path, report: Report, progress: Progress) -> None:
    progress(f"restoring {_count(sizes.restore_records)} records from a local broker")
    changelog = TopicPartition(CHANGELOG.topic, 0)
    try:
        broker = LocalBroker()
    except ProvisionError as error:
        report.notes.append(f"Restoring was not measured: {error}")
        return
    with broker:
        log = KafkaLog(broker.bootstrap)
        log.admin().create_topics([TopicSpec(changelog.topic, 1)])
        producer = log.producer("bench", 60_000)
        producer.init_transactions()
        value = bytes(VALUE_BYTES)
        for start in range(0, sizes.restore_records, 10_000):
            producer.begin_transaction()
            for number in range(start, min(start + 10_000, sizes.restore_records)):
                producer.produce(changelog.topic, b"%016d" % number, value, partition=0)
            producer.commit_transaction()
        producer.close()
        rates = []
        for number in range(sizes.rounds):
            path = directory / f"restored-{number}"
            store = KeyValueStore(
                StoreContext(name="bench", open_engine=lambda path=path: RocksEngine(path))  # type: ignore[misc]
            )
            reader = log.reader()
            began = time.perf_counter()
            result = restore(store, changelog, reader)
            rates.append(result.records / (time.perf_counter() - began))
            reader.close()
            store.close()
            if result.records != sizes.restore_records:
                raise AssertionError(f"{result.records} records restored")
    report.rows.append(_row(f"restore from a broker, {_count(sizes.restore_records)} records", median(rates)))


def _recovery(sizes: Sizes, directory: Path, report: Report, progress: Progress) -> None:
    """Until a store that was killed answers: opened, rolled back, at its offset, with a pair read."""
    first: float | None = None
    for state_bytes in sizes.state_bytes:
        size = f"{state_bytes >> 30} GiB of state"
        progress(f"recovery after a SIGKILL, {size}")
        own = Path(tempfile.mkdtemp(dir=directory))
        found = _child(
            "fill_and_die", killed=True, directory=str(own), total_bytes=state_bytes, value_bytes=VALUE_BYTES
        )
        began = time.perf_counter()
        database = OurDatabase(own / "database", Mechanism.INDEXED_BATCH)
        offset = database.store.get_committed_offset(CHANGELOG)
        read = database.store.get(b"%016d" % 0)
        seconds = time.perf_counter() - began
        if offset != found["committed"] or read is None or database.store.get(b"uncommitted") is not None:
            raise AssertionError(f"recovered to offset {offset}, committed was {found['committed']}")
        database.close()
        shutil.rmtree(own)
        if first is None:
            first = seconds
            report.figures.append(Figure(f"recovery after a SIGKILL, {size}", seconds, "s", 1.0))
        else:
            report.figures += [
                Figure(f"recovery after a SIGKILL, {size}", seconds, "s"),
                Figure(f"recovery, {size} / the smaller one", seconds / first, "×", 1.5),
            ]
