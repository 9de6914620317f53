"""What an adversary has done to a query: at bad moments, and to what it relies on."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from confluent_kafka import OFFSET_END
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from store.errors import InputChangedError, LogError
from store.log.kafka import KafkaLog
from store.spark import streams
from store.spark.process import Place
from store.streams.topology import Context, Topology
from store.types import Record
from tests.spark.hosts import lasting
from tests.spark.test_streams import KEYS, Count, Running, counting, rows_of
from tests.waiting import LONGEST_S, gone, until

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def running(
    spark: SparkSession, log: KafkaLog, tmp_path: Path, unique: Callable[[str], str]
) -> Iterator[Running]:
    made = Running(spark, log, tmp_path, unique("adversary"))
    yield made
    for query in made.queries:
        query.stop()


def within(seconds: float, call: Callable[[], object]) -> bool:
    """Whether the call returns in time; if not, it is left behind."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_a_query_that_is_stopped_while_it_waits_to_be_started_again_ends(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("no plan")

    monkeypatch.setattr(streams, "_planned_ends", fail)
    # It would go on for longer than is waited for.
    query = running.start(counting(running), restarts=1_000)
    running.queries.clear()
    failed = query.query
    running.feed("in", (b"a", b""))
    until(lambda: not failed.isActive)
    assert within(LONGEST_S, query.stop)
    assert not query.is_active


def test_a_caller_that_says_nothing_keeps_no_order_from_its_host(running: Running) -> None:
    # Nobody is given up, so one that is kept waiting waits for ever.
    query = running.start(counting(running), host=lasting, silence_s=None)
    running.feed("in", *[(key, b"") for key in KEYS])
    query.process_all_available()
    places = list((running.directory / "state" / running.name / ".hosts").glob("slot-*.json"))
    silent = [
        socket.create_connection(("127.0.0.1", msgspec.json.decode(place.read_bytes(), type=Place).port))
        for place in places
    ]
    try:
        running.feed("in", *[(key, b"") for key in KEYS])
        assert within(LONGEST_S, query.process_all_available)
    finally:
        for one in silent:
            one.close()
    assert sorted(running.output()) == sorted(rows_of(2))


class Slow:
    """Counts, and takes its time. Its process says that it has begun."""

    def __init__(self, sink: str, seconds: float, begun: Path) -> None:
        self.count, self.seconds, self.begun = Count(sink), seconds, begun

    def __call__(self, context: Context, record: Record) -> None:
        (self.begun / f"{os.getpid()}").touch()
        time.sleep(self.seconds)
        self.count(context, record)


def test_a_query_that_is_stopped_in_the_middle_of_a_long_batch_ends_its_hosts_soon(running: Running) -> None:
    topology = counting(running)
    begun = running.directory / "begun"
    begun.mkdir()
    slow = Slow(topology.sinks[0], 1.0, begun)
    running.feed("in", *[(key, b"") for key in KEYS for _ in range(200)])
    query = running.start(Topology(running.name, topology.sources, topology.sinks, ("counts",), slow))
    until(lambda: len(list(begun.iterdir())) >= 2)
    query.stop()
    until(lambda: all(gone(int(one.name)) for one in begun.iterdir()))
    assert len(running.output()) < len(rows_of(200))
    again = running.start(topology)
    again.process_all_available()
    assert sorted(running.output()) == sorted(rows_of(200))


class Pass:
    """Keeps no state."""

    def __init__(self, sink: str) -> None:
        self.sink = sink

    def __call__(self, context: Context, record: Record) -> None:
        context.forward(self.sink, record.key, b"")


def passing(running: Running) -> Topology:
    running.topics("in", "out")
    name = running.name
    return Topology(name, (f"{name}-in",), (f"{name}-out",), (), Pass(f"{name}-out"))


def test_partitions_that_are_added_while_it_runs_are_not_passed_over_in_silence(running: Running) -> None:
    topology, name = passing(running), running.name
    # It would come back however often the query is started again.
    query = running.start(topology, restarts=1_000)
    running.feed("in", *[(key, b"") for key in KEYS])
    query.process_all_available()
    admin = AdminClient({"bootstrap.servers": running.log.bootstrap})
    for future in admin.create_partitions([NewPartitions(f"{name}-in", 4)]).values():
        future.result()

    def fed_until_it_ended() -> bool:
        running.feed("in", *[(b"%d" % number, b"") for number in range(100)])
        return query.await_termination(1)

    with pytest.raises(StreamingQueryException, match="partitions"):
        until(fed_until_it_ended)
    with pytest.raises(LogError, match="exists with 2 partitions, 4 were asked for"):
        running.start(topology)
    positions = f"{name}-0-positions"
    for future in admin.create_partitions([NewPartitions(positions, 4)]).values():
        future.result()
    until(lambda: len(admin.list_topics(positions).topics[positions].partitions) == 4)
    running.start(topology).process_all_available()
    assert len(running.output(partitions=2)) > len(KEYS)


class Refuse(Pass):
    """Passes records on, but for those it cannot process, and one whose output is too large for the cluster."""

    def __call__(self, context: Context, record: Record) -> None:
        if record.value == b"bad":
            raise ArithmeticError("no such account")
        context.forward(self.sink, record.key, b"." * (1 << 21) if record.value == b"large" else b"")


def test_records_that_cannot_be_processed_or_sent_become_dead_letters_once(running: Running) -> None:
    topology = passing(running)
    running.topics("dead")
    refusing = Topology(running.name, topology.sources, topology.sinks, (), Refuse(topology.sinks[0]))
    config = {
        "processing.exception.handler": "continue",
        "production.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": f"{running.name}-dead",
    }
    query = running.start(refusing, config=config, host=lasting)
    for _ in range(2):
        running.feed("in", *[(key, b"") for key in KEYS], (b"1", b"bad"), (b"2", b"large"), (b"3", b""))
        query.process_all_available()
        for pid in running.hosts():
            psutil.Process(pid).kill()
    assert sorted(running.output()) == sorted((key, b"") for key in [*KEYS, b"3"] * 2)
    assert sorted(running.output("dead")) == [(b"1", b"bad")] * 2 + [(b"2", b"large")] * 2


@pytest.mark.long
def test_input_that_has_expired_before_it_was_processed_is_missed(running: Running) -> None:
    topology, name = passing(running), running.name
    query = running.start(topology)
    running.feed("in", *[(key, b"") for key in KEYS])
    query.process_all_available()
    query.stop()
    running.feed("in", *[(key, b"") for key in KEYS * 2])
    admin = AdminClient({"bootstrap.servers": running.log.bootstrap})
    cut = [ClientPartition(f"{name}-in", partition, OFFSET_END) for partition in range(2)]
    for future in admin.delete_records(cut).values():
        future.result()
    running.feed("in", *[(key, b"") for key in KEYS])
    query = running.start(topology, restarts=1_000)
    with pytest.raises(StreamingQueryException, match="It was cut by retention"):
        query.await_termination(LONGEST_S)
    assert len(running.output()) == len(KEYS)


def make_anew(running: Running, topic: str) -> None:
    admin = running.log.admin()
    admin.delete_topics([f"{running.name}-{topic}"])
    admin.close()
    running.topics(topic)


def test_a_source_that_is_made_anew_under_a_running_query_ends_it_at_once(running: Running) -> None:
    """It has more records than were processed of the former one, so no offset says so."""
    query = running.start(passing(running), restarts=1_000)
    running.feed("in", *[(key, b"") for key in KEYS])
    query.process_all_available()
    make_anew(running, "in")
    running.feed("in", *[(key, b"") for key in KEYS * 4])
    with pytest.raises(StreamingQueryException, match=f"made anew .*: {running.name}-in"):
        query.await_termination(LONGEST_S)
    assert sorted(running.output()) == sorted((key, b"") for key in KEYS)


def test_a_source_that_was_made_anew_between_two_starts_is_refused(running: Running) -> None:
    topology = passing(running)
    query = running.start(topology)
    running.feed("in", *[(key, b"") for key in KEYS])
    query.process_all_available()
    query.stop()
    make_anew(running, "in")
    running.feed("in", *[(key, b"") for key in KEYS * 4])
    with pytest.raises(InputChangedError, match=f"{running.name}-in"):
        running.start(topology)
    assert len(running.output()) == len(KEYS)


def test_a_query_that_cannot_be_started_again_ends_with_that(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("no plan")

    monkeypatch.setattr(streams, "_planned_ends", fail)
    query = running.start(counting(running), restarts=5)
    running.queries.clear()
    monkeypatch.setattr(query, "_start", fail)
    running.feed("in", (b"a", b""))
    with pytest.raises(ArithmeticError, match="no plan"):
        query.await_termination(LONGEST_S)
    assert not query.is_active
