"""Outputs in a wrong order or place are found, and those that only cannot be seen yet are not called lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from harness.history import Final
from harness.replay import simulate
from harness.schedule import Input, Schedule, Step
from harness.verdict import Outcome
from harness.worlds.sim.broker import SimLog, SimProducer
from scenarios import KEYLESS, InputRecord, Output, Sample, Scenario, State, Stores, load_all
from store.log.partitioner import partition_for
from store.points import Point
from store.streams.topology import Context, Topology
from store.types import Record, TopicPartition
from tests.harness.pipelines import BALANCES

RECORDS = tuple(Input(0, "ann", 1) for _ in range(4))


class Pairs(Scenario):
    """Two records without a key for each record, to the first partition."""

    name = "pairs"
    summary = "Two records without a key for each record, to the first partition."

    def __init__(self, *, first: int) -> None:
        """`first`: which of the two the pipeline writes first, 0 or 1. The reference has them in order."""
        self._first = first

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        del stores

        def process(context: Context, record: Record) -> None:
            del record
            for number in (self._first, 1 - self._first):
                context.forward(f"{application_id}-pairs", None, b"%d" % number, partition=0)

        inputs, outputs = (f"{application_id}-input",), (f"{application_id}-pairs",)
        return Topology(application_id, inputs, outputs, (), process)

    def input(self, random: Random) -> Sample:
        return Sample(random.choice("ab"), random.randint(0, 9))

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        del state, record
        return [Output("pairs", KEYLESS, number, partitions=(0,)) for number in (0, 1)]


class SortsByKey:
    """A producer whose outputs leave in key order at every commit, those of one key in the order of the input."""

    def __init__(self, inner: SimProducer) -> None:
        self._inner = inner
        self._kept: list[tuple[bytes, Callable[[], None]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def produce(self, topic: str, key: bytes, value: bytes | None, **rest: Any) -> None:
        def send() -> None:
            self._inner.produce(topic, key, value, **rest)

        if topic.endswith("-output"):
            self._kept.append((key, send))
        else:
            send()

    def flush(self) -> Mapping[TopicPartition, int]:
        for _, send in sorted(self._kept, key=lambda kept: kept[0]):
            send()
        self._kept.clear()
        return self._inner.flush()

    def abort_transaction(self) -> None:
        self._kept.clear()
        self._inner.abort_transaction()


@contextmanager
def outputs_sorted_by_key() -> Iterator[None]:
    real = SimLog.producer

    def producer(self: SimLog, transactional_id: str, timeout_ms: int) -> SortsByKey:
        return SortsByKey(real(self, transactional_id, timeout_ms))

    with patch.object(SimLog, "producer", producer):
        yield


def test_outputs_of_a_partition_in_another_order_are_found_although_each_key_is_in_order() -> None:
    items = (Input(0, "bob", 1), Input(0, "ann", 1), Input(0, "bob", 1))
    with outputs_sorted_by_key():
        _, verdict = simulate(BALANCES, Schedule("balances", items))
    (finding,) = verdict.findings
    assert finding.oracle == "output"
    assert "Partition 0 of topic output" in finding.sentence
    assert "the same records in another order" in finding.sentence


def test_outputs_without_a_key_to_a_named_partition_in_another_order_are_found() -> None:
    schedule = Schedule("pairs", RECORDS, partitions=2)
    assert simulate(Pairs(first=0), schedule)[1].outcome is Outcome.HOLDS
    (finding,) = simulate(Pairs(first=1), schedule)[1].findings
    assert finding.oracle == "output"
    assert "Partition 0 of topic pairs" in finding.sentence
    assert "the same records in another order" in finding.sentence


def test_outputs_in_another_partition_than_that_of_their_key_are_found() -> None:
    real = SimProducer.produce

    def produce(
        self: SimProducer, topic: str, key: bytes | None, value: bytes | None, **rest: object
    ) -> None:
        if topic.endswith("-output"):
            rest["partition"] = 1 - partition_for(key or b"", 2)
        real(self, topic, key, value, **rest)  # type: ignore[arg-type]

    with patch.object(SimProducer, "produce", produce):
        _, verdict = simulate(BALANCES, Schedule("balances", RECORDS, partitions=2))
    assert verdict.outcome is Outcome.VIOLATED
    assert {finding.oracle for finding in verdict.findings} == {"output"}


def test_a_commit_hidden_behind_the_open_transaction_of_another_task_is_not_called_lost() -> None:
    items = (Input(0, "ann", 1), Input(1, "ann", 2), Input(1, "ann", 2))
    # Task 1 is started again after task 0 and runs before it, so it commits while that transaction is open.
    steps = (Step("kill", at=Point.FLUSHED), Step("kill", task="0_1"))
    _, verdict = simulate(
        BALANCES, Schedule("balances", items, steps, partitions=2, settings={"commit.records": 1})
    )
    assert verdict.outcome is Outcome.HOLDS, verdict


def test_records_without_a_key_may_be_in_any_partition() -> None:
    scenario = load_all()["shipments"]
    asking = tuple(
        Input(number % 2, "21"[number % 2], {"from": None, "weight": number}, topic="shipments")
        for number in range(6)
    )
    schedule = Schedule(scenario.name, asking, partitions=2)
    history, verdict = simulate(scenario, schedule)
    assert verdict.outcome is Outcome.HOLDS
    final = history.events[-1]
    assert isinstance(final, Final)
    rows = final.outputs["planned-subscription-registration-topic"].rows
    assert {row.key for row in rows} == {KEYLESS}
    assert {row.partition for row in rows} == {0, 1}
