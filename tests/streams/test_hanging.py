"""An input that stands still behind a transaction which nobody ends is told of."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog, SimReader
from harness.worlds.sim.disk import Host, HostStorage
from store.config import StreamsConfig
from store.errors import FatalLogError, LogError, RetriableError
from store.log import Offsets, Producer
from store.streams.application import Application
from store.streams.hanging import HANGS_S, HangingInputs
from store.streams.thread import StreamThread
from store.streams.topology import Context, Topology
from store.types import IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock


def forward(context: Context, record: Record) -> None:
    context.forward("out", record.key, record.value)


class Behind:
    """A thread whose input has an open transaction, and records behind that."""

    def __init__(self) -> None:
        self.broker, self.clock = SimBroker(), VirtualClock()
        for topic in ("in", "out"):
            self.broker.create_topic(topic, 1)
        application = Application.of(Topology("app", ("in",), ("out",), (), forward))
        application.prepare(SimLog(self.broker))
        storage = HostStorage(Host(0), 0)
        self.thread = StreamThread(application, StreamsConfig(), SimLog(self.broker), storage, self.clock)
        self.producer = self.begin()
        self.broker.append("in", b"k", b"v", partition=0)

    def begin(self) -> Producer:
        producer = SimLog(self.broker).producer("upstream", 900_000)
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("in", b"k", b"v", partition=0)
        producer.flush()
        return producer

    def work(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.thread.step()
            self.clock.sleep(10.0)


def test_an_input_that_cannot_be_read_on_for_longer_than_transactions_may_be_open_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    behind = Behind()
    with caplog.at_level(logging.WARNING):
        behind.work(3 * HANGS_S)
    assert "in-0 cannot be read beyond offset 0, though it ends at 2" in caplog.text


def test_nothing_is_told_of_transactions_that_end_while_others_begin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    behind = Behind()
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            behind.work(HANGS_S)
            behind.producer.commit_transaction()
            behind.producer = behind.begin()
    assert "cannot be read beyond" not in caplog.text


class WithoutLeader(SimReader):
    def offsets_of(
        self,
        places: Sequence[TopicPartition],
        isolation: IsolationLevel,  # noqa: ARG002
    ) -> Mapping[TopicPartition, Offsets]:
        raise RetriableError(f"{places[0]}: LEADER_NOT_AVAILABLE")


@pytest.mark.parametrize(
    ("answers", "told"), [((False, False), 1), ((False, False, False), 2), ((False, True, False), 0)], ids=str
)
def test_an_input_that_has_no_leader_one_time_after_another_is_told_of(
    answers: tuple[bool, ...], told: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker, clock = SimBroker(), VirtualClock()
    broker.create_topic("in", 1)
    hanging = HangingInputs("t0", clock)
    with caplog.at_level(logging.WARNING):
        for answer in answers:
            clock.sleep(HANGS_S)
            reader = SimLog(broker).reader() if answer else WithoutLeader(broker)
            hanging.look(reader, lambda: [TopicPartition("in", 0)])
    assert caplog.text.count("in-0: LEADER_NOT_AVAILABLE. Neither now nor 20 minutes ago") == told


@pytest.mark.parametrize(
    "error",
    [LogError("no such topic"), FatalLogError("not authorized"), RetriableError("no leader")],
    ids=str,
)
def test_an_error_of_the_log_ends_nothing_and_what_stands_still_is_told_of_when_it_is_over(
    error: LogError, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = Behind()
    offsets_of = SimReader.offsets_of
    refused: list[LogError] = []

    def fails_once(self: SimReader, places: Any, isolation: IsolationLevel) -> Any:
        if not refused:
            refused.append(error)
            raise error
        return offsets_of(self, places, isolation)

    monkeypatch.setattr(SimReader, "offsets_of", fails_once)
    with caplog.at_level(logging.WARNING):
        behind.work(4 * HANGS_S)
    assert refused
    assert "in-0 cannot be read beyond offset 0, though it ends at 2" in caplog.text
