"""Scenarios whose processing function does what no pipeline should: see `scenarios.load`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from scenarios import Stores, balances
from store.log import Fetch
from store.log.kafka.reader import KafkaReader
from store.streams.context import Context
from store.streams.topology import Processor, ProcessorSupplier, Topology
from store.types import Record


@dataclass(frozen=True)
class Broken:
    """Balances, but the process does `how` at the record with the value 3, each time."""

    inner: Processor | ProcessorSupplier
    how: Callable[[], object]

    def __call__(self, context: Context, record: Record) -> None:
        if record.value == b"3":
            self.how()
        assert not isinstance(self.inner, ProcessorSupplier)
        self.inner(context, record)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def exit_without_a_word() -> None:
    os._exit(3)


def hang() -> None:
    time.sleep(3600)


def fail() -> None:
    raise ArithmeticError("no such account")


class BrokenScenario(balances.Scenario):
    """Balances with a broken process."""

    def __init__(self, how: Callable[[], object]) -> None:
        self.how = how

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        topology = super().pipeline(application_id, stores)
        return replace(topology, process=Broken(topology.process, self.how))


SEGFAULTS = BrokenScenario(segfault)
EXITS = BrokenScenario(exit_without_a_word)
HANGS = BrokenScenario(hang)
FAILS = BrokenScenario(fail)


class BrokenAdapter(Broken):
    """Balances; from the first record on, the process reads from Kafka with an adapter that `how` has broken."""

    def __call__(self, context: Context, record: Record) -> None:
        self.how()
        assert not isinstance(self.inner, ProcessorSupplier)
        self.inner(context, record)


class BrokenAdapterScenario(BrokenScenario):
    """Balances with an adapter that is broken in the worker, and only there."""

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        topology = balances.Scenario().pipeline(application_id, stores)
        return replace(topology, process=BrokenAdapter(topology.process, self.how))


_STREAM = KafkaReader._stream


def raise_in_reads() -> None:
    def stream(*_: object) -> Fetch:
        raise RuntimeError("the adapter is broken")

    KafkaReader._stream = stream  # type: ignore[method-assign,assignment]


def drop_from_reads() -> None:
    def stream(*arguments: Any) -> Fetch:
        fetch = _STREAM(*arguments)
        return fetch._replace(records=fetch.records[1:])

    KafkaReader._stream = stream  # type: ignore[method-assign,assignment]


READS_RAISE = BrokenAdapterScenario(raise_in_reads)
READS_DROP = BrokenAdapterScenario(drop_from_reads)
