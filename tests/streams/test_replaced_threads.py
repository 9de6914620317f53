"""A thread of `Streams` that fails: a handler says what becomes of it, and each record is counted once all the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from store.config import StreamsConfig
from store.errors import ConfigError, ProtocolError, ShutdownRequestedError, UnreachableError
from store.streams.dsl import ProcessorContext, StreamsBuilder
from store.streams.instance import _Requests
from store.streams.streams import (
    State,
    Streams,
    StreamThreadExceptionResponse,
    UncaughtExceptionHandler,
)
from store.types import TopicPartition
from tests import clusters
from tests.clusters import RC, Cluster, pipeline
from tests.waiting import until

REPLACE_THREAD = StreamThreadExceptionResponse.REPLACE_THREAD
SHUTDOWN_CLIENT = StreamThreadExceptionResponse.SHUTDOWN_CLIENT
SHUTDOWN_APPLICATION = StreamThreadExceptionResponse.SHUTDOWN_APPLICATION


def failing(*when: int) -> Callable[..., None]:
    """Counts, and fails at those of its calls, after it has written."""
    calls = count()

    def process(context: Any, record: Any) -> None:
        clusters.count(context, record)
        if next(calls) in when:
            raise ValueError("no good")

    return process


def streams(cluster: Cluster, directory: Path, handler: UncaughtExceptionHandler | None = None) -> Streams:
    made = Streams(
        cluster.topology,
        StreamsConfig.of({"commit.interval.ms": 100}),
        bootstrap="127.0.0.1:1",
        state_dir=directory,
    )
    made._log = SimLog(cluster.broker)
    made._clock, made._storage = cluster.clock, cluster.storage()
    if handler is not None:
        made.set_uncaught_exception_handler(handler)
    return made


def counted(cluster: Cluster) -> list[tuple[bytes | None, bytes | None]]:
    records = SimLog(cluster.broker).reader().read(TopicPartition("out", 0), 0, 1_000, RC).records
    return [(record.key, record.value) for record in records]


ALL = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"a", b"3")]


def test_one_that_is_replaced_counts_every_record_once(tmp_path: Path) -> None:
    cluster = Cluster(pipeline(failing(0, 3, 5)), [b"a", b"b", b"a", b"a"])
    told: list[Exception] = []

    def handler(error: Exception) -> StreamThreadExceptionResponse:
        told.append(error)
        return REPLACE_THREAD

    with streams(cluster, tmp_path, handler) as running:
        until(lambda: len(counted(cluster)) == 4)
        until(lambda: running.state is State.RUNNING)
        assert len(running.status.threads) == 1
        with pytest.raises(ProtocolError, match="before the start"):
            running.set_uncaught_exception_handler(handler)
    assert counted(cluster) == ALL
    assert [str(error) for error in told] == ["no good"] * 3
    assert (running.state, running.status.error) == (State.NOT_RUNNING, None)


@pytest.mark.parametrize("handler", [None, lambda _: SHUTDOWN_CLIENT])
def test_else_the_process_ends(tmp_path: Path, handler: UncaughtExceptionHandler | None) -> None:
    cluster = Cluster(pipeline(failing(2)), [b"a", b"b", b"a", b"a"])
    running = streams(cluster, tmp_path, handler)
    with pytest.raises(ValueError, match="no good"):
        running.run()
    assert (running.state, counted(cluster)) == (State.ERROR, [])


@pytest.mark.parametrize("answer", [None, "STOP"])
def test_a_handler_that_does_not_answer_ends_the_process(tmp_path: Path, answer: Any) -> None:
    running = streams(Cluster(pipeline(failing(0)), [b"a"]), tmp_path, lambda _: answer)
    with pytest.raises(ValueError, match="is not a valid StreamThreadExceptionResponse") as raised:
        running.run()
    assert str(raised.value.__context__) == "no good"
    assert running.state is State.ERROR


def test_whoever_asks_all_instances_to_end_fails_by_its_own_error_and_may_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str | None] = []
    ask = _Requests.heard

    def noted(requests: _Requests) -> str | None:
        heard.append(ask(requests))
        return heard[-1]

    monkeypatch.setattr(_Requests, "heard", noted)
    cluster = Cluster(pipeline(failing(2)), [b"a", b"b", b"a", b"a"])
    running = streams(cluster, tmp_path, lambda _: SHUTDOWN_APPLICATION)
    with pytest.raises(ValueError, match="no good"):
        running.run()
    (asked,) = SimLog(cluster.broker).reader().read(TopicPartition("app-shutdown", 0), 0, 9, RC).records
    assert (asked.value or b"").endswith(b": ValueError: no good")
    # The function fails once in all, and who starts now has not heard of the request.
    heard.clear()
    with streams(cluster, tmp_path, lambda _: SHUTDOWN_APPLICATION) as again:
        until(lambda: len(counted(cluster)) == 4)
        until(lambda: len(heard) >= 2)
        assert not any(heard)
        until(lambda: again.state is not State.REBALANCING)
        assert again.state is State.RUNNING


def test_an_instance_ends_when_another_one_asks_for_it_and_commits_first(tmp_path: Path) -> None:
    cluster = Cluster(pipeline(), [b"a", b"b", b"a", b"a"])
    running = streams(cluster, tmp_path, lambda _: SHUTDOWN_CLIENT)
    running.start()
    until(lambda: len(counted(cluster)) == 4)
    _Requests(SimLog(cluster.broker), "app").send("another: no good")
    with pytest.raises(ShutdownRequestedError, match="another: no good"):
        running.wait()
    running.close()
    assert (running.state, counted(cluster)) == (State.ERROR, ALL)


@pytest.mark.parametrize("lost", ["to retention", "with its topic"])
def test_a_request_is_heard_behind_others_that_were_lost(lost: str) -> None:
    broker = SimBroker()
    requests = _Requests(SimLog(broker), "app")
    at = TopicPartition("app-shutdown", 0)
    requests.send("one")
    assert requests.heard() == "one"
    if lost == "to retention":
        requests.send("two")
        broker.delete_records(at, broker.high_watermark(at))
    else:
        broker.delete_topic(at.topic)
        broker.create_topic(at.topic, 1)
    assert requests.heard() is None
    requests.send("three")
    assert requests.heard() == "three"


def test_what_ended_a_process_is_the_error_of_the_thread_that_failed_first(tmp_path: Path) -> None:
    running = streams(Cluster(pipeline(), [b"a"]), tmp_path)
    running.start()
    first = ValueError("first")
    running._end_by(first)
    running._end_by(ValueError("a later one"))
    with pytest.raises(ValueError, match="first"):
        running.wait()
    running.close()
    assert running.status.error is first


def test_a_handler_may_close_what_it_was_called_for_and_the_error_is_the_one_that_it_was_called_with(
    tmp_path: Path,
) -> None:
    def closing(_: Exception) -> StreamThreadExceptionResponse:
        running.close()
        return SHUTDOWN_CLIENT

    running = streams(Cluster(pipeline(failing(0)), [b"a"]), tmp_path, closing)
    with pytest.raises(ValueError, match="no good"):
        running.run()


def test_the_error_of_a_thread_stays_the_one_though_its_other_tasks_cannot_be_closed(tmp_path: Path) -> None:
    class Unclosable:
        def init(self, _context: ProcessorContext) -> None: ...

        def process(self, _record: object) -> None:
            raise ValueError("no good")

        def close(self) -> None:
            raise ArithmeticError("cannot be closed")

    builder = StreamsBuilder("app")
    builder.stream("in").process(Unclosable)
    (topology,) = builder.build().sub_topologies
    asked: list[Exception] = []

    def handler(error: Exception) -> StreamThreadExceptionResponse:
        asked.append(error)
        return SHUTDOWN_CLIENT

    running = streams(Cluster(topology, [b"a"], partitions=2), tmp_path, handler)
    with pytest.raises(ValueError, match="no good") as raised:
        running.run()
    assert asked == [raised.value] == [running.status.error]
    closing = "closing the thread failed too: ArithmeticError('cannot be closed')"
    assert closing in raised.value.__notes__


def test_one_that_cannot_tell_the_others_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UnreachableError("nobody is there")

    monkeypatch.setattr(_Requests, "send", refuse)
    running = streams(Cluster(pipeline(failing(0)), [b"a"]), tmp_path, lambda _: SHUTDOWN_APPLICATION)
    with pytest.raises(ValueError, match="no good") as raised:
        running.run()
    assert raised.value.__notes__[-1] == "the other instances were not told to end: nobody is there"


def test_a_function_is_no_application(tmp_path: Path) -> None:
    function: Any = clusters.count
    with pytest.raises(ConfigError, match="an Application, as"):
        Streams(function, bootstrap="127.0.0.1:1", state_dir=tmp_path)


def test_what_the_process_does_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "store.streams")
    one = streams(Cluster(), tmp_path)
    one.start()
    until(lambda: one.state is State.RUNNING)
    one.close()
    said = [line for line in caplog.messages if "→" in line]
    assert said[0] == "app: CREATED → REBALANCING"
    assert "app: REBALANCING → RUNNING" in said
    assert said[-1].endswith("→ NOT_RUNNING")
