"""Errors that users' functions raise: whatever they are, and whatever a function makes of the error of another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from store.config import StreamsConfig
from store.errors import AbortRequiredError, FencedError, LogError, TaskLostError
from store.serdes import BytesSerde
from store.streams.context import Context
from store.streams.dsl import ProcessorContext, PunctuationType, StreamRecord, StreamsBuilder
from store.streams.topology import Topology
from store.streams.worker import Worker
from store.types import Record
from tests.clusters import SINK, Cluster, pipeline

CONTINUE = StreamsConfig.of({"processing.exception.handler": "continue"})


def drain(worker: Worker) -> None:
    while worker.poll():
        pass


def raised_from_itself() -> Exception:
    error = ValueError("what went wrong")
    error.__cause__ = error
    return error


def raised_from_its_fallbacks() -> Exception:
    first, second = ValueError("what went wrong"), KeyError("the fallback")
    first.__cause__, second.__context__ = second, first
    return first


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int


class WordlessError(Exception):
    def __str__(self) -> str:
        raise LookupError("its words")


@pytest.mark.parametrize(
    "make", [raised_from_itself, raised_from_its_fallbacks, lambda: FrozenError(7), WordlessError]
)
def test_an_error_of_any_make_ends_the_processing_of_its_record(make: Callable[[], Exception]) -> None:
    error = make()

    def process(_context: Context, _record: Record) -> None:
        raise error

    worker = Cluster(pipeline(process), [b"a"]).worker()
    with pytest.raises(type(error)) as raised:
        drain(worker)
    assert raised.value is error
    worker.close()


@pytest.mark.parametrize(
    "make", [raised_from_itself, raised_from_its_fallbacks, lambda: FrozenError(7), WordlessError]
)
def test_a_record_whose_error_is_of_any_make_is_passed_over(make: Callable[[], Exception]) -> None:
    def process(context: Context, record: Record) -> None:
        if record.key == b"bad":
            raise make()
        context.forward(SINK.topic, record.key, record.value)

    cluster = Cluster(pipeline(process), [b"a", b"bad", b"c"])
    worker = cluster.worker(CONTINUE)
    drain(worker)
    assert [key for key, _ in cluster.output()] == [b"a", b"c"]
    worker.close()


def test_a_function_that_raises_stop_iteration_is_told_with_its_record() -> None:
    def process(_context: Context, _record: Record) -> None:
        next(iter(()))

    worker = Cluster(pipeline(process), [b"a"]).worker()
    with pytest.raises(RuntimeError, match="processed in-0 offset 0: a function raised StopIteration"):
        drain(worker)
    worker.close()


def failing_once(kind: type[LogError], *, by_the_clock: bool = False) -> Topology:
    """A processor that gives what `forward` raises, the first time for `b`, an error of its own."""

    class Wraps:
        failed = False

        def init(self, context: ProcessorContext) -> None:
            self.context = context
            if by_the_clock:
                context.schedule(100, PunctuationType.WALL_CLOCK_TIME, lambda _now: self.forward(b"b", b""))

        def process(self, record: StreamRecord) -> None:
            self.forward(record.key, record.value)

        def forward(self, key: Any, value: Any) -> None:
            try:
                self.context.forward(key, value)
            except Exception as error:
                raise RuntimeError(f"order {key!r}") from error

    def fail(key: Any, value: Any) -> Any:
        if key == b"b" and not Wraps.failed:
            Wraps.failed = True
            raise kind("the broker took it back")
        return value

    builder = StreamsBuilder("app", key_serde=BytesSerde(), value_serde=BytesSerde())
    builder.stream("in").process(Wraps).map_values(fail, with_key=True).to("out")
    (topology,) = builder.build().sub_topologies
    return topology


def test_an_error_of_the_log_that_a_function_wraps_is_what_it_was() -> None:
    cluster = Cluster(failing_once(AbortRequiredError), [b"a", b"b", b"c"])
    worker = cluster.worker()
    drain(worker)
    assert [key for key, _ in cluster.output()] == [b"a", b"b", b"c"]
    worker.close()


def test_a_task_whose_loss_a_function_wraps_is_given_up() -> None:
    worker = Cluster(failing_once(FencedError), [b"a", b"b", b"c"]).worker()
    with pytest.raises(TaskLostError):
        drain(worker)
    worker.close()


def test_a_punctuator_that_wraps_an_error_of_the_log_has_it_handled() -> None:
    cluster = Cluster(failing_once(AbortRequiredError, by_the_clock=True), [b"a"])
    worker = cluster.worker()
    drain(worker)
    cluster.clock.sleep(0.1)
    drain(worker)
    cluster.clock.sleep(0.1)
    drain(worker)
    assert [key for key, _ in cluster.output()].count(b"b") >= 1
    worker.close()


def wrapping(guarantee: str) -> tuple[Cluster, StreamsConfig]:
    class Wraps:
        def init(self, context: ProcessorContext) -> None:
            self.context = context

        def process(self, record: StreamRecord) -> None:
            try:
                self.context.forward(record.key, record.value)
            except ValueError as error:
                raise RuntimeError(f"order {record.key!r}") from error

    def refuse(key: Any, value: Any) -> Any:
        if key == b"bad":
            raise ValueError("bad record")
        return value

    builder = StreamsBuilder("app", key_serde=BytesSerde(), value_serde=BytesSerde())
    builder.stream("in").process(Wraps).map_values(refuse, with_key=True).to("out")
    (topology,) = builder.build().sub_topologies
    settings = {"processing.exception.handler": "continue", "processing.guarantee": guarantee}
    return Cluster(topology, [b"a", b"bad", b"c"]), StreamsConfig.of(settings)


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_record_is_passed_over_whose_error_a_function_has_wrapped(guarantee: str) -> None:
    cluster, config = wrapping(guarantee)
    worker = cluster.worker(config)
    drain(worker)
    assert [key for key, _ in cluster.output()] == [b"a", b"c"]
    worker.close()


def test_the_error_that_is_raised_says_what_a_function_has_made_of_it() -> None:
    cluster, _ = wrapping("exactly_once_v2")
    worker = cluster.worker()
    with pytest.raises(ValueError, match="bad record") as raised:
        drain(worker)
    assert "a function has made of it: RuntimeError(\"order b'bad'\")" in raised.value.__notes__
    worker.close()


def test_a_record_is_passed_over_by_a_processor_that_cannot_be_closed() -> None:
    closing = [True]

    class Sticks:
        def init(self, context: ProcessorContext) -> None:
            self.context = context

        def process(self, record: StreamRecord) -> None:
            if record.key == b"bad":
                raise ValueError("bad record")
            self.context.forward(record.key, record.value)

        def close(self) -> None:
            if closing[0]:
                raise RuntimeError("it sticks")

    builder = StreamsBuilder("app", key_serde=BytesSerde(), value_serde=BytesSerde())
    builder.stream("in").process(Sticks).to("out")
    (topology,) = builder.build().sub_topologies
    cluster = Cluster(topology, [b"a", b"bad", b"c"])
    worker = cluster.worker(CONTINUE)
    drain(worker)
    assert [key for key, _ in cluster.output()] == [b"a", b"c"]
    closing[0] = False
    worker.close()
