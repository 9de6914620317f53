"""An input that stands still behind a transaction which nobody ends is told of."""

from __future__ import annotations

import logging

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store.config import StreamsConfig
from store.log import Producer
from store.streams.application import Application
from store.streams.hanging import HANGS_S
from store.streams.thread import StreamThread
from store.streams.topology import Context, Topology
from store.types import Record
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
