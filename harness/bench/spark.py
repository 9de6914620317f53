"""`crashproof bench spark`: records per second of counts per key, against native Spark and Quix Streams, in one run.

All sides read the same topics of one broker and do the same, one after the other and some rounds long; the best round
of each side counts, since whatever else the machine does only takes away. Steady state: a first part of the input is
left out of all measurements, and so is what it takes to start. Nothing is asserted but that the work was done: a target
that is missed is printed as missed.
"""

from __future__ import annotations

import math
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from harness.bench import moves, plain
from harness.bench.count import COMMIT_MS, KEYS, Input, Kind, make_output, produce
from harness.bench.quix import VERSION, QuixUnavailableError, environment
from harness.bench.spark_sides import CORES, OnSpark, session
from harness.bench.store import Figure
from harness.worlds.local.broker import LocalBroker
from store.log.kafka import KafkaLog

Progress = Callable[[str], None]

NATIVE = "Spark: groupBy.count, RocksDB, at least once"
READING = "Spark: mapInArrow that only reads"
QUIX = "Quix Streams: count, exactly once"
_DSL_ON_SPARK = "SparkStreams: DSL count, exactly once"
_DSL_ONCE_OR_MORE = "SparkStreams: DSL count, at least once"

_IDLE_TASKS = 18

_QUIX_S = 600.0
"""After so long a measurement of Quix Streams is given up."""


class Row(msgspec.Struct):
    """A rate; its ratios are to native Spark, with as many keys where that was measured, and to Quix Streams. None: not
    measured."""

    name: str
    records_per_second: float
    ratio_native_spark: float | None = None
    ratio_quix: float | None = None
    target_native_spark: float | None = None
    target_quix: float | None = None
    rounds: list[float] = []


class Report(msgspec.Struct):
    rows: list[Row]
    figures: list[Figure]
    environment: dict[str, str]
    notes: list[str]


class Sizes(msgspec.Struct, frozen=True):
    """How much is done."""

    budget_s: float
    """After so long no round begins or goes on, and of the first one more partitions are left out."""
    rounds: int
    records: int
    micro_batch: int
    """Records of a micro-batch. So many are processed before a measurement begins."""
    partitions: tuple[int, ...]
    """Of the worker's inputs. The second is what all sides count."""
    idle_micro_batches: int
    commits: int
    state_mb: int
    """Of a task that moves."""
    many_keys: int
    """Of one more input, that has as many partitions as the last one."""
    many_keys_on_spark: bool
    """Whether Spark's sides count that input too, in one round: it takes them many times as long as the other."""


QUICK = Sizes(95.0, 2, 200_000, 100_000, (1, 2, 10, 100), 8, 200, 50, 100_000, False)
FULL = Sizes(math.inf, 3, 1_000_000, 200_000, (1, 2, 10, 100), 30, 1_000, 1_000, 1_000_000, True)


class _Side(NamedTuple):
    name: str
    measure: Callable[[str], float]
    """A name that no other measurement has, to records per second."""
    target_native: float | None = None
    target_quix: float | None = None
    left_out_when_late: bool = False
    in_one_round: bool = False
    native: str = NATIVE
    """The side of native Spark that it is compared with, if that was measured: the one that has as many keys."""


def run(*, quick: bool, progress: Progress) -> Report:
    """Measure everything. Uses a broker and a directory of its own, and removes both.

    Raises `ProvisionError` without Java, Kafka or the connector.
    """
    return measure(QUICK if quick else FULL, progress)


def measure(sizes: Sizes, progress: Progress) -> Report:
    """`run` by sizes."""
    until = time.perf_counter() + sizes.budget_s
    report = Report([], [], _environment(), [])
    with ExitStack() as undone:
        directory = Path(undone.enter_context(tempfile.TemporaryDirectory(prefix="crashproof-bench-")))
        broker = undone.enter_context(LocalBroker(directory=directory))
        inputs = [_input(sizes, partitions) for partitions in sizes.partitions]
        many = Input(
            "bench-input-many-keys", sizes.partitions[-1], sizes.micro_batch, sizes.records, sizes.many_keys
        )
        for made in (*inputs, many):
            progress(f"producing {made.warm + made.records:,} records to {made.partitions} partitions")
            produce(broker.bootstrap, made)
        progress("starting Spark")
        spark = undone.enter_context(session(directory))
        on_spark, of_many = (
            OnSpark(spark, broker.bootstrap, directory, made) for made in (_shared(inputs), many)
        )
        sides = [
            *_spark_sides(on_spark),
            *(_many_on_spark(of_many, many) if sizes.many_keys_on_spark else ()),
            *_worker_sides(broker.bootstrap, directory, inputs, many),
            *_quix_sides(broker.bootstrap, directory, _shared(inputs), report),
        ]
        rates = _in_turns(sides, sizes, until, progress, report)
        report.rows += _rows(sides, rates)
        _compare_guarantees(rates, report)
        _compare_sizes(rates, inputs[0], many, report)
        _compare_sizes_of_native(rates, _shared(inputs), many, report)
        _idle(on_spark, sizes, progress, report)
        _commits(broker.bootstrap, directory, _shared(inputs), sizes, progress, report)
        _moves(broker.bootstrap, directory, sizes, progress, report)
    report.notes.append(
        f"{sizes.records:,} records of {KEYS:,} keys after {sizes.micro_batch:,} that are not measured, the best of "
        f"{max(map(len, rates.values()), default=0)} rounds; micro-batches of {sizes.micro_batch:,} records on "
        f"{CORES} cores, {_shared(inputs).partitions} partitions; workers and Quix Streams commit every {COMMIT_MS} ms "
        "and run in one process each"
    )
    return report


def _environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "pyspark": version("pyspark"),
        "confluent-kafka": version("confluent-kafka"),
    }


def _input(sizes: Sizes, partitions: int) -> Input:
    return Input(f"bench-input-{partitions}", partitions, sizes.micro_batch, sizes.records)


def _shared(inputs: Sequence[Input]) -> Input:
    """What all sides count."""
    return inputs[min(1, len(inputs) - 1)]


# -- sides ---------------------------------------------------------------------------------------------------


def _spark_sides(on_spark: OnSpark) -> Iterator[_Side]:
    exactly, at_least = "exactly_once_v2", "at_least_once"
    yield _Side(NATIVE, on_spark.native)
    yield _Side(READING, on_spark.reading)
    yield _Side(_DSL_ON_SPARK, lambda name: on_spark.ours(name, Kind.DSL, exactly), target_native=1.2)
    yield _Side(_DSL_ONCE_OR_MORE, lambda name: on_spark.ours(name, Kind.DSL, at_least))
    yield _Side(
        "SparkStreams: processor, exactly once",
        lambda name: on_spark.ours(name, Kind.PROCESSOR, exactly),
        target_native=0.8,
    )


def _many_on_spark(of_many: OnSpark, many: Input) -> Iterator[_Side]:
    """The sides on Spark with many partitions and keys, where each record is nearly the only one of its key."""
    native = _native(many)
    yield _Side(native, of_many.native, in_one_round=True, native=native)
    for kind in Kind:

        def measure_ours(name: str, kind: Kind = kind) -> float:
            return of_many.ours(name, kind, "exactly_once_v2")

        yield _Side(
            f"SparkStreams: {kind}, exactly once, {_size(many)}",
            measure_ours,
            in_one_round=True,
            native=native,
        )


def _native(made: Input) -> str:
    return NATIVE if made.keys == KEYS else f"{NATIVE}, {_size(made)}"


def _worker_sides(bootstrap: str, directory: Path, inputs: Sequence[Input], many: Input) -> Iterator[_Side]:
    def side(kind: Kind, made: Input, target: float | None = None) -> _Side:
        def measure_worker(name: str) -> float:
            request = plain.Request(bootstrap, name, kind, made, str(directory / "state"))
            return made.records / plain.measure(request).seconds

        return _Side(
            _worker(kind, made),
            measure_worker,
            target_quix=target,
            left_out_when_late=made not in inputs[:2],
            native=_native(made),
        )

    for kind, target in ((Kind.PROCESSOR, 1.5), (Kind.DSL, 3.0)):
        for made in inputs:
            yield side(kind, made, target)
        yield side(kind, many)


def _worker(kind: Kind, made: Input) -> str:
    return f"worker: {kind}, exactly once, {_size(made)}"


def _size(made: Input) -> str:
    plural = "" if made.partitions == 1 else "s"
    keys = "" if made.keys == KEYS else f", {made.keys:,} keys"
    return f"{made.partitions} partition{plural}{keys}"


def _quix_sides(bootstrap: str, directory: Path, made: Input, report: Report) -> Iterator[_Side]:
    try:
        python = environment()
    except QuixUnavailableError as error:
        report.notes.append(f"Quix Streams was not measured: {error}")
        return

    def measure_quix(name: str) -> float:
        asked = {
            "bootstrap": bootstrap,
            "application_id": name,
            "source": made.topic,
            "sink": make_output(KafkaLog(bootstrap), name, made.partitions),
            "directory": str(directory / name),
            "warm": made.warm,
            "records": made.records,
            "commit_ms": COMMIT_MS,
        }
        command = [
            python,
            str(Path(__file__).with_name("quix_count.py")),
            msgspec.json.encode(asked).decode(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=_QUIX_S)
        except subprocess.TimeoutExpired as error:
            raise QuixUnavailableError(f"it took more than {_QUIX_S:.0f} s") from error
        if done.returncode:
            raise QuixUnavailableError(f"it ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
        return made.records / msgspec.json.decode(done.stdout.splitlines()[-1], type=float)

    report.environment["quixstreams"] = VERSION
    yield _Side(QUIX, measure_quix)


# -- measuring -----------------------------------------------------------------------------------------------


def _in_turns(
    sides: Sequence[_Side], sizes: Sizes, until: float, progress: Progress, report: Report
) -> dict[str, list[float]]:
    """The rates of each side, of as many rounds as there is time for; at least one of most sides."""
    rates: dict[str, list[float]] = {}
    left_out: set[str] = set()
    in_order = sorted(enumerate(sides), key=lambda one: one[1].left_out_when_late)
    for number in range(sizes.rounds):
        for at, side in in_order:
            late = time.perf_counter() > until
            if number and late:
                return rates
            if late and side.left_out_when_late:
                report.notes.append(f"{side.name}: not measured, the time was over")
                left_out.add(side.name)
            if side.name in left_out or (number and side.in_one_round):
                continue
            progress(f"{side.name}, round {number + 1}")
            try:
                rates.setdefault(side.name, []).append(side.measure(f"bench-{at}-{number}"))
            except QuixUnavailableError as error:
                report.notes.append(f"Quix Streams was not measured: {error}")
                left_out.add(side.name)
    return {name: found for name, found in rates.items() if found}


def _rows(sides: Sequence[_Side], rates: dict[str, list[float]]) -> Iterator[Row]:
    best = {name: max(found) for name, found in rates.items() if found}
    quix = best.get(QUIX)
    for side in sides:
        rate, native = best.get(side.name), best.get(side.native, best.get(NATIVE))
        if rate is None:
            continue
        yield Row(
            side.name,
            rate,
            None if native is None else rate / native,
            None if quix is None else rate / quix,
            side.target_native,
            None if quix is None else side.target_quix,
            rates[side.name],
        )


def _compare_guarantees(rates: dict[str, list[float]], report: Report) -> None:
    once, more = max(rates[_DSL_ON_SPARK]), max(rates[_DSL_ONCE_OR_MORE])
    report.figures.append(
        Figure("DSL count on Spark: time exactly once / at least once", more / once, "×", 1.2)
    )


def _compare_sizes(rates: dict[str, list[float]], small: Input, large: Input, report: Report) -> None:
    for kind in Kind:
        found = [rates.get(_worker(kind, made)) for made in (large, small)]
        if found[0] and found[1]:
            report.figures.append(
                Figure(
                    f"worker, {kind}: time of {large.partitions} partitions and {large.keys:,} keys / "
                    f"{small.partitions} partition and {small.keys:,} keys",
                    max(found[1]) / max(found[0]),
                    "×",
                    1 / 0.7,
                )
            )


def _compare_sizes_of_native(
    rates: dict[str, list[float]], small: Input, large: Input, report: Report
) -> None:
    found = rates.get(_native(large))
    if found:
        report.figures.append(
            Figure(f"{NATIVE}: time of {_size(large)} / {_size(small)}", max(rates[NATIVE]) / max(found), "×")
        )


def _idle(on_spark: OnSpark, sizes: Sizes, progress: Progress, report: Report) -> None:
    """Micro-batches of one record, half of them before the others in each order."""
    progress("micro-batches of one record")
    half = max(1, sizes.idle_micro_batches // 2)
    empty = on_spark.idle("bench-empty-1", half, ours=False)
    ours = on_spark.idle("bench-idle-1", half, ours=True)
    ours += on_spark.idle("bench-idle-2", half, ours=True)
    empty += on_spark.idle("bench-empty-2", half, ours=False)
    beside = on_spark.idle("bench-idle-3", half, ours=True, idle_tasks=_IDLE_TASKS)
    report.figures += [
        Figure(
            f"micro-batch of one record, empty foreachBatch: median of {len(empty)}",
            median(empty) * 1000,
            "ms",
        ),
        Figure(f"micro-batch of one record, SparkStreams: median of {len(ours)}", median(ours) * 1000, "ms"),
        Figure(
            "what a task with one record adds to a micro-batch",
            (median(ours) - median(empty)) * 1000,
            "ms",
            50.0,
        ),
        Figure(
            f"what an open task without news adds to a micro-batch, as one of {_IDLE_TASKS}",
            (median(beside) - median(ours)) * 1000 / _IDLE_TASKS,
            "ms",
            50.0,
        ),
    ]


def _commits(
    bootstrap: str, directory: Path, made: Input, sizes: Sizes, progress: Progress, report: Report
) -> None:
    commits = min(sizes.commits, made.records // made.partitions // plain.COMMITTED_AT_ONCE)
    progress(f"{commits} commits")
    request = plain.Request(
        bootstrap, "bench-commits", Kind.PROCESSOR, made, str(directory / "state"), commits=commits
    )
    taken = sorted(plain.measure(request).commits)
    of = f"commit of {plain.COMMITTED_AT_ONCE} records exactly once"
    for name, value in (
        ("median", taken[len(taken) // 2]),
        ("95th percentile", taken[len(taken) * 95 // 100]),
        ("99th percentile", taken[len(taken) * 99 // 100]),
        ("slowest", taken[-1]),
    ):
        report.figures.append(Figure(f"{of}: {name}", value * 1000, "ms"))


def _moves(bootstrap: str, directory: Path, sizes: Sizes, progress: Progress, report: Report) -> None:
    progress(f"a task with {sizes.state_mb:,} MB of state moves to another task host")
    answer = moves.measure(moves.Request(bootstrap, "bench-moves", str(directory / "state"), sizes.state_mb))
    report.figures += [
        Figure(
            f"a task host is killed; until another one has processed a record on its {answer.state_mb:,} MB of state",
            answer.seconds,
            "s",
            2.0,
        ),
        Figure("peak memory of the first host, which had that by one order", answer.peak_mb, "MB"),
        Figure(
            f"peak memory of one that had {answer.smaller_mb} MB by one order", answer.smaller_peak_mb, "MB"
        ),
    ]
