"""The stream times of operators whose store another sub-topology has by now, or whose input has another name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store.clock import SystemClock
from store.config import StreamsConfig
from store.log import TopicSpec
from store.recovery.directory import StateDirectory
from store.serdes import LongSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import EmitStrategy, Materialized, StreamsBuilder, Suppressed, TimeWindows
from store.streams.ordinals import prepare
from store.streams.task import Task, apply
from store.testing.memory_log import MemoryLog
from store.types import IsolationLevel

UNCACHED = StreamsConfig(statestore_cache_max_bytes=0)
CLOCK = SystemClock()
KINDS = ("continuous", "on window close", "suppressed")


def counting(kind: str, *, source: str = "in", repartitioned: bool = False) -> Application:
    """Counts of windows of 10 ms, in the store `windows`; `repartitioned`: of another sub-topology."""
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    records = builder.stream(source)
    if repartitioned:
        records = records.repartition(name="by-key")
    windows = records.group_by_key().windowed_by(TimeWindows.of_size(10))
    if kind == "on window close":
        windows = windows.emit_strategy(EmitStrategy.on_window_close())
    table = windows.count(materialized=Materialized("windows", retention=86_400_000))
    if kind == "suppressed":
        table = table.suppress(Suppressed.until_window_closes(name="held-back"))
    row_key: Any = lambda row, _: f"{row.key}@{row.window.start}"  # noqa: E731 - of a row and its value
    table.to_stream(row_key).to("out", value_serde=LongSerde())
    return builder.build()


class Running:
    """Versions of an application, one after the other, over one log and one state directory."""

    def __init__(self, root: Path) -> None:
        self.log = MemoryLog()
        self.log.admin().create_topics([TopicSpec(topic, 1) for topic in ("in", "other", "out")])
        self._root = root
        self._producer = self.log.plain_producer()
        self._read = 0

    def feed(self, *times: int, topic: str = "in") -> None:
        for time in times:
            self._producer.produce(topic, b"k", b"v", partition=0, timestamp=time)
        self._producer.flush()

    def run(self, application: Application, *, only: int | None = None) -> list[tuple[str, int]]:
        """Process all that there is, each task to its commit and the first one first; what comes out of it. `only`: the
        task of that sub-topology alone."""
        application.prepare(self.log, UNCACHED)
        prepare(self._root, application.sub_topologies, self.log, UNCACHED, CLOCK)
        storage = StateDirectory(self._root, "app")
        for topology in application.sub_topologies:
            if only not in (None, topology.ordinal):
                continue
            with Task(topology, 0, self.log, storage, UNCACHED, CLOCK) as task:
                (tp,) = task.inputs
                fetch = self.log.reader().read(tp, task.position(tp), 100, IsolationLevel.READ_COMMITTED)
                apply(task, fetch.records)
                task.commit()
        records = [*self.log.records("out")]
        before, self._read = self._read, len(records)
        return [
            ((record.key or b"").decode(), LongSerde().deserialize(record.value or b""))
            for record in records[before:]
        ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.requirement("13627.1")
def test_windows_stay_closed_where_another_sub_topology_has_their_store(kind: str, tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.feed(1, 2, 15, 25)
    assert ("k@0", 2) in running.run(counting(kind))
    running.feed(3, 26)
    moved = [] if kind != "continuous" else [("k@20", 2)]
    assert running.run(counting(kind, repartitioned=True)) == moved
    running.feed(36)
    closes = [("k@20", 2)] if kind != "continuous" else [("k@30", 1)]
    assert running.run(counting(kind, repartitioned=True)) == closes


@pytest.mark.parametrize("kind", KINDS)
def test_windows_stay_closed_where_their_store_goes_and_comes_back(kind: str, tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.feed(1, 15)
    running.run(counting(kind))
    running.feed(25)
    running.run(counting(kind, repartitioned=True))
    running.feed(16, 26)
    back = [] if kind != "continuous" else [("k@20", 2)]
    assert running.run(counting(kind)) == back


@pytest.mark.parametrize("kind", KINDS)
def test_windows_stay_closed_where_the_input_has_another_name(kind: str, tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.feed(1, 15, 25)
    running.run(counting(kind))
    running.feed(3, 26, topic="other")
    renamed = [] if kind != "continuous" else [("k@20", 2)]
    assert running.run(counting(kind, source="other")) == renamed


def test_what_was_observed_waits_for_whoever_has_the_store_over_many_commits(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.feed(1, 15, 25)
    running.run(counting("on window close"))
    moved = counting("on window close", repartitioned=True)
    for time in (26, 3):
        running.feed(time)
        assert running.run(moved, only=0) == []
    assert running.run(moved) == []
