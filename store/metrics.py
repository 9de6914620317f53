"""Metrics of stores, under the names that KIP-892 and Kafka Streams give them.

Rates, averages and maxima are of the last 30 to 60 seconds, sampled as Kafka samples them; what they measure is
read from the clock seam, so they are the same in every run of a simulation. Must survive: any thread may record
and read; a store that is closed takes its metrics along, and one that is opened again starts anew.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import wraps
from math import nan
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from store.clock import Clock, SystemClock

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

GROUP = "stream-state-metrics"
TASK_GROUP = "stream-task-metrics"

WINDOW_SECONDS = 30.0
NUM_SAMPLES = 2

_NANOSECONDS = 1e9
_INVALID = re.compile("[^A-Za-z0-9_]")

P = ParamSpec("P")
R = TypeVar("R")

_DESCRIPTIONS = {
    "uncommitted-bytes": "Memory held by writes that are not committed, in bytes.",
    "cache-size-bytes": "Memory held by rows in the store's write-back cache, in bytes.",
    "dropped-records-rate": "Records per second that were dropped: expired in a store, left out by a task.",
    "dropped-records-total": "Records that were dropped: expired in a store, left out by a task.",
    "restore-rate": "Changelog records per second that were restored.",
    "restore-total": "Changelog records that were restored.",
}

_OF_OPERATIONS = {
    "-rate": "Calls of {} per second.",
    "-latency-avg": "Average time that a call of {} took, in nanoseconds.",
    "-latency-max": "Longest time that a call of {} took, in nanoseconds.",
}


class RecordingLevel(StrEnum):
    """How much is recorded (`metrics.recording.level`)."""

    INFO = "INFO"
    DEBUG = "DEBUG"
    """As INFO, and rate and latency of each operation of a typed store. Every call then reads the clock twice."""


class MetricName(NamedTuple):
    """What Kafka identifies a metric by."""

    name: str
    group: str
    tags: tuple[tuple[str, str], ...]


class _Sample:
    __slots__ = ("count", "last", "maximum", "start", "total")

    def __init__(self, start: float) -> None:
        self.start = start
        self.last = start
        self.count = 0
        self.total = 0.0
        self.maximum = nan


class _Sampled:
    """Values recorded lately. A sample takes 30 seconds of them, and counts for 60 seconds after its last one."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=NUM_SAMPLES + 1)

    def record(self, value: float, now: float, count: int = 1) -> None:
        if not self._samples or now - self._samples[-1].start >= WINDOW_SECONDS:
            self._samples.append(_Sample(now))
        sample = self._samples[-1]
        sample.last = now
        sample.count += count
        sample.total += value
        if not sample.maximum >= value:
            sample.maximum = value

    def rate(self, now: float) -> float:
        """Events per second. At least one whole window counts as gone by, so that the first ones are no burst."""
        samples = self._current(now)
        if not samples:
            return 0.0
        elapsed = now - samples[0].start
        elapsed += max(0, NUM_SAMPLES - 1 - int(elapsed // WINDOW_SECONDS)) * WINDOW_SECONDS
        return sum(sample.count for sample in samples) / elapsed

    def average(self, now: float) -> float:
        """NaN without any values, as in Kafka."""
        samples = self._current(now)
        count = sum(sample.count for sample in samples)
        return sum(sample.total for sample in samples) / count if count else nan

    def maximum(self, now: float) -> float:
        """NaN without any values, as in Kafka."""
        return max((sample.maximum for sample in self._current(now)), default=nan)

    def _current(self, now: float) -> list[_Sample]:
        return [sample for sample in self._samples if now - sample.last < NUM_SAMPLES * WINDOW_SECONDS]


class StateStoreMetrics:
    """The metrics of one open store, see `store.state.protocol.StoreMetrics`. Made by `Metrics.store`."""

    def __init__(
        self, tags: dict[str, str], clock: Clock, level: RecordingLevel, remove: Callable[[], None]
    ) -> None:
        self.tags = tuple(tags.items())
        self._clock = clock
        self._level = level
        self._remove = remove
        self._lock = Lock()
        self._commits = _Sampled()
        self._drops = _Sampled()
        self._restored = _Sampled()
        self._num_dropped = 0
        self._num_restored = 0
        self._operations: dict[str, _Sampled] = {}
        self._uncommitted_bytes: Callable[[], int] = int
        self._cached_bytes: Callable[[], int] = int

    def committed(self, seconds: float) -> None:
        with self._lock:
            self._commits.record(seconds * _NANOSECONDS, self._clock.monotonic())

    def dropped(self) -> None:
        with self._lock:
            self._num_dropped += 1
            self._drops.record(0, self._clock.monotonic())

    def restored(self, num_records: int) -> None:
        """So many changelog records were restored."""
        with self._lock:
            self._num_restored += num_records
            self._restored.record(0, self._clock.monotonic(), num_records)

    def watch(self, uncommitted_bytes: Callable[[], int], cached_bytes: Callable[[], int]) -> None:
        self._uncommitted_bytes, self._cached_bytes = uncommitted_bytes, cached_bytes

    def measure(self, operation: str, call: Callable[P, R]) -> Callable[P, R]:
        """`call`, with its rate and its latency recorded as those of `operation` at DEBUG; else `call` itself."""
        if self._level is not RecordingLevel.DEBUG:
            return call
        with self._lock:
            sampled = self._operations.setdefault(operation, _Sampled())

        @wraps(call)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            began = self._clock.monotonic()
            try:
                return call(*args, **kwargs)
            finally:
                ended = self._clock.monotonic()
                with self._lock:
                    sampled.record((ended - began) * _NANOSECONDS, ended)

        return measured

    def as_dict(self) -> dict[str, float]:
        """Name → value, now. Averages and maxima are NaN while there is nothing to tell."""
        uncommitted, cached = self._uncommitted_bytes(), self._cached_bytes()
        with self._lock:
            now = self._clock.monotonic()
            values = {
                "commit-rate": self._commits.rate(now),
                "commit-latency-avg": self._commits.average(now),
                "commit-latency-max": self._commits.maximum(now),
                "uncommitted-bytes": float(uncommitted),
                "cache-size-bytes": float(cached),
                "dropped-records-rate": self._drops.rate(now),
                "dropped-records-total": float(self._num_dropped),
                "restore-rate": self._restored.rate(now),
                "restore-total": float(self._num_restored),
            }
            for operation, sampled in self._operations.items():
                values[f"{operation}-rate"] = sampled.rate(now)
                values[f"{operation}-latency-avg"] = sampled.average(now)
                values[f"{operation}-latency-max"] = sampled.maximum(now)
            return values

    def close(self) -> None:
        """The store is closed: its metrics are gone. Idempotent."""
        self._remove()
        self._uncommitted_bytes = self._cached_bytes = int


class TaskMetrics:
    """The metrics of one open task. Made by `Metrics.task`."""

    def __init__(self, tags: dict[str, str], clock: Clock, remove: Callable[[], None]) -> None:
        self.tags = tuple(tags.items())
        self._clock = clock
        self.close = remove
        self._lock = Lock()
        self._drops = _Sampled()
        self._num_dropped = 0

    def dropped(self) -> None:
        """A record, or an output, was left out."""
        with self._lock:
            self._num_dropped += 1
            self._drops.record(0, self._clock.monotonic())

    def as_dict(self) -> dict[str, float]:
        """Name → value, now."""
        with self._lock:
            return {
                "dropped-records-rate": self._drops.rate(self._clock.monotonic()),
                "dropped-records-total": float(self._num_dropped),
            }


class Metrics:
    """The metrics of all tasks and stores of a process. Any thread.

    It is a collector for `prometheus_client` too: `REGISTRY.register(metrics)` adds it to what a process
    exports already.
    """

    def __init__(self, clock: Clock | None = None, level: RecordingLevel = RecordingLevel.INFO) -> None:
        self._clock = clock or SystemClock()
        self._level = level
        self._lock = Lock()
        self._stores: dict[tuple[str, str], StateStoreMetrics] = {}
        self._tasks: dict[str, TaskMetrics] = {}

    def task(self, task_id: str, *, thread_id: str = "main") -> TaskMetrics:
        """The metrics of a task that is opened now. What an earlier one of that id had recorded is gone."""

        def remove() -> None:
            with self._lock:
                if self._tasks.get(task_id) is metrics:
                    del self._tasks[task_id]

        metrics = TaskMetrics({"thread-id": thread_id, "task-id": task_id}, self._clock, remove)
        with self._lock:
            self._tasks[task_id] = metrics
        return metrics

    def store(
        self, name: str, *, task_id: str, scope: str = "rocksdb", thread_id: str = "main"
    ) -> StateStoreMetrics:
        """The metrics of a store that is opened now, for its context; `scope` is its kind, as in `in-memory-window`.

        What an earlier store of that task and name had recorded is gone.
        """
        key = task_id, name

        def remove() -> None:
            with self._lock:
                if self._stores.get(key) is metrics:
                    del self._stores[key]

        tags = {"thread-id": thread_id, "task-id": task_id, f"{scope}-state-id": name}
        metrics = StateStoreMetrics(tags, self._clock, self._level, remove)
        with self._lock:
            self._stores[key] = metrics
        return metrics

    def as_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """Task → store → name → value, now."""
        values: dict[str, dict[str, dict[str, float]]] = {}
        for (task_id, name), metrics in self._open():
            values.setdefault(task_id, {})[name] = metrics.as_dict()
        return values

    def snapshot(self) -> dict[MetricName, float]:
        """Every metric now, by the name, group and tags that Kafka would give it."""
        values = {
            MetricName(name, GROUP, metrics.tags): value
            for _, metrics in self._open()
            for name, value in metrics.as_dict().items()
        }
        with self._lock:
            tasks = list(self._tasks.values())
        for task in tasks:
            values |= {
                MetricName(name, TASK_GROUP, task.tags): value for name, value in task.as_dict().items()
            }
        return values

    def tasks_as_dict(self) -> dict[str, dict[str, float]]:
        """Task → name → value, now."""
        with self._lock:
            tasks = list(self._tasks.items())
        return {task_id: metrics.as_dict() for task_id, metrics in tasks}

    def collect(self) -> Iterator[Metric]:
        """The metrics for `prometheus_client`: a family for each name, counters for totals, tags as labels."""
        # Imported where it is used: it brings a web server along, and most processes export nothing.
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Metric] = {}
        for (name, group, tags), value in self.snapshot().items():
            words = _valid(f"{group}_{name}")
            family = families.get(words)
            if family is None:
                kind = CounterMetricFamily if name.endswith("-total") else GaugeMetricFamily
                family = families[words] = kind(words, _description(name))
            # Families of counters lose the suffix of their name, their samples keep it.
            family.add_sample(words, {_valid(key): word for key, word in tags}, value)
        yield from families.values()

    def prometheus_text(self) -> str:
        """Every metric now, in the text format that Prometheus scrapes."""
        from prometheus_client.exposition import generate_latest

        return generate_latest(self).decode()

    def _open(self) -> list[tuple[tuple[str, str], StateStoreMetrics]]:
        with self._lock:
            return list(self._stores.items())


def _description(name: str) -> str:
    if name in _DESCRIPTIONS:
        return _DESCRIPTIONS[name]
    for statistic, words in _OF_OPERATIONS.items():
        if name.endswith(statistic):
            return words.format(name.removesuffix(statistic))
    raise KeyError(name)


def _valid(name: str) -> str:
    """A name with every character that Prometheus does not allow in one replaced by an underscore."""
    return _INVALID.sub("_", name)
