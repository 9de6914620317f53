"""A query of `SparkStreams` from its start to its stop: real Spark, real task hosts, killed and sent off."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import msgspec
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import InheritableThread

from store.config import StreamsConfig
from store.errors import LogError, TaskHostError
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.log.kafka.reader import KafkaReader
from store.recovery.directory import StateDirectory
from store.spark import SparkStreams, SparkStreamsQuery, streams
from store.spark.host import SILENCE_S
from store.spark.process import Place
from store.streams.application import Application
from store.streams.dsl import ProcessorContext, PunctuationType, StreamRecord, StreamsBuilder
from store.streams.hanging import HangingInputs
from store.streams.topology import Context, Topology
from store.suppliers import global_store, persistent_key_value_store
from store.types import IsolationLevel, Record, TopicPartition
from tests.spark import hosts
from tests.spark.hosts import asking, impatient, lasting, noting
from tests.waiting import LONGEST_S, gone, settle, until

pytestmark = pytest.mark.xdist_group("spark")


class Running:
    """Topics, directories and queries of one application with a name of its own."""

    def __init__(self, spark: SparkSession, log: KafkaLog, directory: Path, name: str) -> None:
        self.spark, self.log, self.directory, self.name = spark, log, directory, name
        self.queries: list[SparkStreamsQuery] = []

    def topics(self, *names: str, partitions: int = 2) -> None:
        admin = self.log.admin()
        admin.create_topics([TopicSpec(f"{self.name}-{one}", partitions) for one in names])
        admin.close()

    def feed(self, topic: str, *rows: tuple[bytes, bytes]) -> None:
        producer = self.log.plain_producer()
        for key, value in rows:
            producer.produce(f"{self.name}-{topic}", key, value)
        producer.flush()
        producer.close()

    def start(
        self, application: Application | Topology, *, silence_s: float | None = SILENCE_S, **options: object
    ) -> SparkStreamsQuery:
        made = SparkStreams(
            application,
            bootstrap=self.log.bootstrap,
            state_dir=self.directory / "state",
            checkpoint=self.directory / "checkpoint",
            **options,  # type: ignore[arg-type]
        )
        made.deployment = replace(made.deployment, silence_s=silence_s)
        self.queries.append(made.start(self.spark))
        return self.queries[-1]

    def output(
        self, topic: str = "out", partitions: int = 2, *, settled: bool = True
    ) -> list[tuple[bytes | None, bytes | None]]:
        """All that is committed; `settled`: once nothing is open, which does not come where hosts go on writing."""
        reader = self.log.reader()
        try:
            rows: list[Record] = []
            for partition in range(partitions):
                place = TopicPartition(f"{self.name}-{topic}", partition)
                if settled:
                    settle(reader, place)
                rows += reader.read(place, 0, 10_000, IsolationLevel.READ_COMMITTED).records
            return [(row.key, row.value) for row in rows]
        finally:
            reader.close()

    def set_back(self, topic: str, partitions: int = 2) -> None:
        """Have the group begin anew at the first record, as `kafka-consumer-groups.sh` does."""
        places = [
            confluent_kafka.TopicPartition(f"{self.name}-{topic}", partition, 0)
            for partition in range(partitions)
        ]
        admin = AdminClient({"bootstrap.servers": self.log.bootstrap})
        group = confluent_kafka.ConsumerGroupTopicPartitions(self.name, places)
        for answer in admin.alter_consumer_group_offsets([group]).values():
            answer.result()

    def hosts(self) -> list[int]:
        """The process ids of the task hosts that listen."""
        places = (self.directory / "state" / self.name / ".hosts").glob("slot-*.json")
        return [msgspec.json.decode(place.read_bytes(), type=Place).pid for place in places]


@pytest.fixture
def running(
    spark: SparkSession, log: KafkaLog, tmp_path: Path, unique: Callable[[str], str]
) -> Iterator[Running]:
    made = Running(spark, log, tmp_path, unique("streams"))
    yield made
    for query in made.queries:
        query.stop()


class Count:
    """Counts the records of each key."""

    def __init__(self, sink: str) -> None:
        self.sink = sink

    def __call__(self, context: Context, record: Record) -> None:
        counts = context.store("counts")
        number = b"%d" % (int(counts.get(record.key) or 0) + 1)
        counts.put(record.key, number)
        context.forward(self.sink, record.key, number)


def counting(running: Running) -> Topology:
    running.topics("in", "out")
    name = running.name
    return Topology(name, (f"{name}-in",), (f"{name}-out",), ("counts",), Count(f"{name}-out"))


KEYS = [b"%d" % number for number in range(8)]


def rows_of(rounds: int) -> list[tuple[bytes, bytes]]:
    return [(key, b"%d" % (number + 1)) for key in KEYS for number in range(rounds)]


@pytest.mark.requirement("card.3")
def test_tasks_stay_open_in_one_host_over_several_micro_batches(running: Running) -> None:
    topology = counting(running)
    running.feed("in", *[(key, b"") for key in KEYS])
    # Hosts end, and are killed, where a machine has them wait for long.
    query = running.start(topology, host=lasting, silence_s=None)
    query.process_all_available()
    before = running.hosts()
    running.feed("in", *[(key, b"") for key in KEYS])
    query.process_all_available()
    assert running.hosts() == before
    assert sorted(running.output()) == sorted(rows_of(2))


@pytest.mark.requirement("card.3", "129.3")
def test_a_task_host_that_is_killed_is_followed_by_another_one_and_nothing_counts_twice(
    running: Running,
) -> None:
    query = running.start(counting(running), host=lasting)
    for round_ in range(3):
        running.feed("in", *[(key, b"") for key in KEYS])
        query.process_all_available()
        if round_ < 2:
            for pid in running.hosts():
                os.kill(pid, signal.SIGKILL)
    assert sorted(running.output()) == sorted(rows_of(3))


@pytest.mark.requirement("card.3", "129.3")
def test_a_task_host_that_stands_still_is_followed_by_another_one_and_nothing_counts_twice(
    running: Running,
) -> None:
    query = running.start(counting(running), host=lasting, silence_s=2.0)
    for round_ in range(2):
        running.feed("in", *[(key, b"") for key in KEYS])
        query.process_all_available()
        if round_ == 0:
            for pid in running.hosts():
                os.kill(pid, signal.SIGSTOP)
    assert sorted(running.output()) == sorted(rows_of(2))


@pytest.mark.parametrize("own", [None, "FileContextBasedCheckpointFileManager"])
def test_the_logs_of_a_query_on_a_local_disk_need_no_processes_unless_the_session_says_by_what_they_are_written(
    running: Running, own: str | None
) -> None:
    key, package = streams._FILE_MANAGER, streams._BY_FILE_SYSTEM.rpartition(".")[0]
    said = None if own is None else f"{package}.{own}"
    if said is not None:
        running.spark.conf.set(key, said)
    try:
        query = running.start(counting(running))
        running.feed("in", (b"a", b"1"))
        query.process_all_available()
        log = query.query._jsq.streamingQuery().offsetLog()
        assert log.fileManager().getClass().getName() == (said or streams._BY_FILE_SYSTEM)
        assert running.spark.conf.get(key, None) == said
    finally:
        running.spark.conf.unset(key)


def test_a_query_that_is_stopped_leaves_no_host_behind(running: Running) -> None:
    # One that was killed would leave word of where it was.
    query = running.start(counting(running), host=lasting, silence_s=None)
    running.feed("in", (b"a", b""))
    query.process_all_available()
    pids = running.hosts()
    assert pids
    query.stop()
    until(lambda: all(map(gone, pids)))
    assert running.hosts() == []
    assert not query.is_active
    assert query.exception() is None


def test_a_query_tells_what_it_has_processed_and_how_far_it_is(running: Running) -> None:
    query = running.start(counting(running))
    running.feed("in", *[(key, b"") for key in KEYS])
    query.process_all_available()
    assert sum(one["records"] for one in query.recent_progress) == len(KEYS)
    assert set(query.lag.values()) <= {0}
    assert query.last_progress is not None
    assert sum(query.positions.values()) == len(KEYS)


class Waits:
    """Counts, once a file is there."""

    def __init__(self, sink: str, gate: Path) -> None:
        self.count, self.gate = Count(sink), gate

    def __call__(self, context: Context, record: Record) -> None:
        until(self.gate.exists)
        self.count(context, record)


def test_a_query_tells_what_a_micro_batch_that_is_under_way_has_before_it(running: Running) -> None:
    gate = running.directory / "gate"
    waiting = replace(counting(running), process=Waits(f"{running.name}-out", gate))
    running.feed("in", *[(key, b"") for key in KEYS])
    # A transaction may be open for as long as brokers allow.
    query = running.start(waiting, config=StreamsConfig(transaction_timeout_ms=900_000))
    until(lambda: sum(query.lag.values()) == len(KEYS))
    assert query.positions == {}
    gate.touch()
    query.process_all_available()
    assert set(query.lag.values()) == {0}


class FailsOnce:
    """Counts, and fails once in each run of the test, at the record `bad`."""

    def __init__(self, sink: str, mark: Path, times: int) -> None:
        self.count, self.mark, self.times = Count(sink), mark, times

    def __call__(self, context: Context, record: Record) -> None:
        if record.value == b"bad" and len(list(self.mark.glob("*"))) < self.times:
            (self.mark / f"{len(list(self.mark.glob('*')))}").touch()
            raise ArithmeticError("no such account")
        self.count(context, record)


def failing(running: Running, times: int) -> Topology:
    topology = counting(running)
    mark = running.directory / "mark"
    mark.mkdir()
    sink = topology.sinks[0]
    return Topology(running.name, topology.sources, topology.sinks, ("counts",), FailsOnce(sink, mark, times))


def test_a_failed_query_is_started_again_as_often_as_it_may_be(running: Running, few_attempts: int) -> None:
    query = running.start(failing(running, few_attempts + 1), restarts=1)
    running.feed("in", (b"a", b"bad"))
    while not running.output():
        assert query.is_active, query.exception()
    assert running.output() == [(b"a", b"1")]


def test_the_cores_of_a_machine_are_those_that_spark_has_there(spark: SparkSession) -> None:
    context = spark.sparkContext
    (machine,) = streams._machines(context)
    assert streams._cores(context) == {machine: context.defaultParallelism}


def test_code_that_is_large_is_in_one_file_without_passwords_for_as_long_as_the_query_runs(
    running: Running, few_attempts: int
) -> None:
    temporary = Path(str(running.spark.sparkContext._temp_dir))

    def files() -> set[Path]:
        return {one for one in temporary.rglob("*") if one.is_file()}

    running.topics("in", "out")
    mark, table = running.directory / "mark", os.urandom(2 << 20)
    mark.mkdir()

    def looked_up(value: bytes) -> bytes:
        if value == b"bad" and len(list(mark.iterdir())) < few_attempts:
            (mark / f"{len(list(mark.iterdir()))}").touch()
            raise ArithmeticError("the query fails, and is started again")
        return table[:8]

    builder = StreamsBuilder(running.name)
    builder.stream(f"{running.name}-in").map_values(looked_up).to(f"{running.name}-out")
    before = files()
    # Of a login that the protocol has not.
    query = running.start(builder.build(), restarts=2, kafka={"sasl.password": "OpenSesame-1001"})
    running.feed("in", (b"a", b""))
    query.process_all_available()
    running.feed("in", (b"a", b"bad"))
    while len(running.output()) < 2:
        assert query.is_active, query.exception()
    running.feed("in", (b"a", b""))
    query.process_all_available()
    assert query._deployment.start > 0
    (file,) = files() - before
    code = file.read_bytes()
    assert table in code
    assert b"OpenSesame" not in code
    assert file.stat().st_mode & 0o077 == 0
    query.stop()
    assert files() == before
    assert running.output() == [(b"a", table[:8])] * 3


def test_a_query_that_is_started_again_has_the_local_properties_of_who_has_started_it(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, pools = running.spark.sparkContext, list[str | None]()
    bring = SparkStreamsQuery._bring_to_planned

    def fail_first(query: SparkStreamsQuery, batch_id: int) -> None:
        pools.append(context.getLocalProperty("spark.scheduler.pool"))
        if len(pools) < 2:
            raise ArithmeticError("the first micro-batch fails")
        bring(query, batch_id)

    monkeypatch.setattr(SparkStreamsQuery, "_bring_to_planned", fail_first)
    context.setLocalProperty("spark.scheduler.pool", "streams")
    try:
        query = running.start(counting(running), restarts=1)
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
    running.feed("in", (b"a", b"1"))
    while not running.output():
        assert query.is_active, query.exception()
    assert pools[:2] == ["streams", "streams"]


@pytest.mark.long
def test_a_start_that_fails_is_tried_again_as_the_query_is(
    running: Running, few_attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = running.start(failing(running, few_attempts + 1), restarts=5)
    start = query._start
    failed: list[bool] = []

    def fails_twice() -> StreamingQuery:
        if len(failed) < 2:
            failed.append(True)
            raise StreamingQueryException("the checkpoint is away")
        return start()

    monkeypatch.setattr(query, "_start", fails_twice)
    running.feed("in", (b"a", b"bad"))
    while not running.output():
        assert query.is_active, query.exception()
    assert len(failed) == 2


@pytest.mark.usefixtures("few_attempts")
def test_a_query_that_fails_for_good_says_of_what(running: Running) -> None:
    query = running.start(failing(running, 1_000))
    running.feed("in", (b"a", b"bad"))
    with pytest.raises(StreamingQueryException, match="ArithmeticError: no such account"):
        query.await_termination(LONGEST_S)
    assert not query.is_active


@pytest.mark.requirement("x.4", "card.3")
def test_an_application_of_two_sub_topologies_runs_as_one_query(running: Running) -> None:
    running.topics("in", "out")
    name = running.name
    builder = StreamsBuilder(name)
    (
        builder.stream(f"{name}-in")
        .flat_map_values(lambda value: value.split())
        .group_by(lambda _key, word: word)
        .count()
        .to_stream()
        .map_values(lambda number: b"%d" % number)
        .to(f"{name}-out")
    )
    query = running.start(builder.build())
    running.feed("in", (b"1", b"to be or"), (b"2", b"not to be"))
    query.process_all_available()
    assert dict(running.output()) == {b"to": b"2", b"be": b"2", b"or": b"1", b"not": b"1"}


def test_what_was_processed_between_sub_topologies_is_deleted_and_a_query_goes_on_without_it(
    running: Running,
) -> None:
    running.topics("in", "out", partitions=1)
    name = running.name
    builder = StreamsBuilder(name)
    counts = builder.stream(f"{name}-in").group_by(lambda _, value: value, name="by").count()
    counts.to_stream().map_values(lambda number: b"%d" % number).to(f"{name}-out")
    between = TopicPartition(f"{name}-by-repartition", 0)
    for rounds in (1, 2, 3):
        query = running.start(builder.build(), config={"repartition.purge.interval.ms": 1})
        running.feed("in", (b"k", b"a"), (b"k", b"b"))
        query.process_all_available()
        reader = running.log.reader()
        begins = reader.offsets(between, IsolationLevel.READ_COMMITTED).earliest
        assert begins >= 2 * rounds
        reader.close()
        query.stop()
        assert dict(running.output(partitions=1)) == {b"a": b"%d" % rounds, b"b": b"%d" % rounds}
        if rounds == 2:
            (running.directory / "checkpoint").rename(running.directory / "lost")


def test_inputs_that_are_not_joined_may_have_other_partitions(running: Running) -> None:
    name = running.name
    running.topics("in", "out", partitions=3)
    running.topics("narrow", partitions=1)
    topology = Topology(
        name,
        (f"{name}-narrow", f"{name}-in"),
        (f"{name}-out",),
        ("counts",),
        Count(f"{name}-out"),
        copartitioned=(),
    )
    query = running.start(topology)
    for _ in range(2):
        running.feed("in", *rows_of(2))
        running.feed("narrow", (b"of the first task", b""))
        query.process_all_available()
    assert sorted(running.output(partitions=3)) == sorted(
        [*rows_of(4), (b"of the first task", b"1"), (b"of the first task", b"2")]
    )
    assert {tp.topic: tp.partition for tp in query.positions if tp.topic.endswith("narrow")} == {
        f"{name}-narrow": 0
    }


@pytest.mark.requirement("x.4", "card.3")
def test_a_query_that_ends_by_itself_has_processed_all_through_every_sub_topology(running: Running) -> None:
    running.topics("in", "out")
    name = running.name

    def application() -> Application:
        builder = StreamsBuilder(name)
        (
            builder.stream(f"{name}-in")
            .flat_map_values(lambda value: value.split())
            .select_key(lambda _key, word: word)
            .repartition()
            .select_key(lambda _key, word: word[:1])
            .group_by_key()
            .count()
            .to_stream()
            .map_values(lambda number: b"%d" % number)
            .to(f"{name}-out")
        )
        return builder.build()

    for rounds in (1, 2):
        running.feed("in", (b"1", b"to be or not to be"), (b"2", b"that is the question"))
        query = running.start(application(), trigger={"availableNow": True})
        assert query.await_termination(LONGEST_S)
        counts = {b"t": 4, b"b": 2, b"o": 1, b"n": 1, b"i": 1, b"q": 1}
        last: dict[bytes | None, int] = {}
        for key, value in running.output():
            last[key] = max(last.get(key, 0), int(value or b""))
        assert last == {key: rounds * number for key, number in counts.items()}


def test_a_query_that_is_about_to_end_by_itself_can_be_stopped_before(running: Running) -> None:
    running.topics("in", "out")
    gate = running.directory / "gate"
    running.feed("in", (b"a", b""))
    query = running.start(_numbers_once(gate, running.name), trigger={"availableNow": True}, silence_s=2.0)
    until(lambda: not query.query.isActive)
    _stop_before(gate, query)
    assert query.exception() is None
    assert running.output() == []


def test_orders_that_are_about_to_be_brought_while_a_query_is_stopped_are_not_waited_for(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.topics("in", "out")
    gate, about_to, stopped = running.directory / "gate", threading.Event(), threading.Event()
    between, cancel = SparkStreamsQuery._between, SparkStreamsQuery._cancel

    def between_until_stopped(query: SparkStreamsQuery) -> dict[TopicPartition, int]:
        found = between(query)
        assert found
        about_to.set()
        stopped.wait()
        return found

    def cancel_and_go_on(query: SparkStreamsQuery) -> None:
        cancel(query)
        stopped.set()

    monkeypatch.setattr(SparkStreamsQuery, "_between", between_until_stopped)
    monkeypatch.setattr(SparkStreamsQuery, "_cancel", cancel_and_go_on)
    running.feed("in", (b"a", b""))
    query = running.start(_numbers_once(gate, running.name), trigger={"availableNow": True}, silence_s=2.0)
    until(about_to.is_set)
    _stop_before(gate, query)
    assert query.exception() is None
    assert running.hosts() == []


def _numbers_once(gate: Path, name: str) -> Application:
    """Counts words, and sends the number of each on once a file is there."""

    def number_once_open(number: int) -> bytes:
        until(gate.exists)
        return b"%d" % number

    builder = StreamsBuilder(name)
    counted = builder.stream(f"{name}-in").group_by(lambda _key, word: word).count()
    counted.to_stream().map_values(number_once_open).to(f"{name}-out")
    return builder.build()


def _stop_before(gate: Path, query: SparkStreamsQuery) -> None:
    """Stop a query whose tasks wait for a file, which is made if that does not end."""
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    stopping.join(LONGEST_S)
    waited = stopping.is_alive()
    gate.touch()
    stopping.join()
    assert not waited, "stop waits for the tasks"


@pytest.mark.parametrize(("kind", "restarts"), [(RuntimeError, 0), (LogError, 1_000)])
def test_a_query_whose_tasks_nobody_keeps_open_any_more_ends_with_what_has_ended_that_however_often_it_may_be_started(
    running: Running, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], restarts: int
) -> None:
    def fail(*_: object) -> None:
        raise kind("nobody looks at inputs")

    monkeypatch.setattr(streams, "LEASE_S", 1.5)
    monkeypatch.setattr(HangingInputs, "look", fail)
    query = running.start(counting(running), restarts=restarts)
    with pytest.raises(kind, match="nobody looks at inputs"):
        query.await_termination(LONGEST_S)


def test_a_query_that_is_just_started_again_ends_where_nobody_keeps_its_tasks_open(
    running: Running, few_attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, starting = HangingInputs.look, threading.Event()

    def fail(*given: Any) -> None:
        if starting.is_set():
            raise RuntimeError("nobody looks at inputs")
        look(*given)

    monkeypatch.setattr(streams, "LEASE_S", 1.5)
    monkeypatch.setattr(HangingInputs, "look", fail)
    query = running.start(failing(running, few_attempts + 1), restarts=1)
    start = query._start

    def start_unkept() -> StreamingQuery:
        starting.set()
        until(lambda: query._unkept is not None)
        return start()

    monkeypatch.setattr(query, "_start", start_unkept)
    running.feed("in", (b"a", b"bad"))
    with pytest.raises(RuntimeError, match="nobody looks at inputs"):
        query.await_termination(LONGEST_S)


class Noted:
    """A lock that says when somebody waits for it in a `with` statement."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.waited_for = lock, threading.Event()
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> None:
        self.waited_for.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_orders_that_a_micro_batch_waits_for_are_not_waited_for_when_a_query_is_stopped(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.topics("in", "out")
    monkeypatch.setattr(streams, "LEASE_S", 1.5)
    gate = running.directory / "gate"
    gate.touch()

    def value_once_open(value: bytes) -> bytes:
        until(gate.exists)
        return value

    builder = StreamsBuilder(running.name)
    builder.stream(f"{running.name}-in").map_values(value_once_open).to(f"{running.name}-out")
    application, config = builder.build(), StreamsConfig(transaction_timeout_ms=900_000)
    running.feed("in", (b"a", b""))
    query = running.start(application, config=config, silence_s=2.0)
    query.process_all_available()
    query.stop()
    running.set_back("in")
    gate.unlink()
    query = running.start(application, config=config, silence_s=2.0)
    until(query._working.locked)
    query._working = noted = Noted(query._working)  # type: ignore[assignment]
    running.feed("in", (b"b", b""))
    until(noted.waited_for.is_set)
    limit = running.spark.conf.get("spark.sql.streaming.stopTimeout")
    # Spark's default: for as long as it takes.
    running.spark.conf.set("spark.sql.streaming.stopTimeout", "0")
    try:
        _stop_before(gate, query)
    finally:
        running.spark.conf.set("spark.sql.streaming.stopTimeout", str(limit))


def test_a_query_ends_though_spark_has_no_core_to_tell_its_hosts(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_LONGEST_END_S", 2.0)
    query = running.start(counting(running))
    running.feed("in", (b"a", b""))
    query.process_all_available()
    gate, begun = running.directory / "gate", running.directory / "begun"
    begun.mkdir()
    context = running.spark.sparkContext
    cores = context.defaultParallelism

    def occupy(numbers: Iterable[int]) -> Iterable[int]:
        for number in numbers:
            (begun / f"{number}").touch()
            until(gate.exists)
        return ()

    def keep_busy() -> None:
        context.parallelize(range(cores), cores).mapPartitions(occupy).collect()

    other = InheritableThread(target=keep_busy)
    other.start()
    until(lambda: len(list(begun.iterdir())) == cores)
    _stop_before(gate, query)
    other.join()


def test_input_that_is_purged_while_it_is_asked_for_is_not_taken_for_lost(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = running.start(counting(running))
    running.feed("in", (b"a", b""))
    query.process_all_available()
    committed = KafkaReader.committed

    def purged_since(reader: KafkaReader, group: str, place: TopicPartition) -> int | None:
        """The position of before a host has processed one more record, and has deleted it."""
        found = committed(reader, group, place)
        running.feed("in", (b"a", b""))
        query.process_all_available()
        admin = running.log.admin()
        admin.delete_records({place: committed(reader, group, place) or 0})
        admin.close()
        return found

    monkeypatch.setattr(KafkaReader, "committed", purged_since)
    assert not query._is_cut()


class Ticks:
    """Says which process it is in each time that a moment has passed, whether there is input or not."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        context.schedule(timedelta(milliseconds=500), PunctuationType.WALL_CLOCK_TIME, self.tick)

    def tick(self, now: int) -> None:
        self.context.forward(b"%d" % os.getpid(), b"tick", timestamp=now)

    def process(self, record: StreamRecord) -> None:
        self.context.forward(record.key, record.value)


class BreaksOnce(Ticks):
    """Raises once by the wall clock, as where a service does not answer."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def tick(self, now: int) -> None:
        if not self.mark.exists():
            self.mark.touch()
            raise ConnectionError("the service does not answer")
        super().tick(now)


@pytest.mark.usefixtures("few_attempts")
def test_a_query_that_is_started_again_is_over_what_a_punctuator_has_raised(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LEASE_S", 1.5)
    running.topics("in", "out", partitions=1)
    mark = running.directory / "mark"
    builder = StreamsBuilder(running.name)
    builder.stream(f"{running.name}-in").process(lambda: BreaksOnce(mark)).to(f"{running.name}-out")
    query = running.start(builder.build(), restarts=1)
    until(lambda: not query.is_active or running.output(partitions=1, settled=False))
    assert query.exception() is None
    assert mark.exists()


def test_what_is_due_by_the_wall_clock_is_done_without_any_input_for_as_long_as_the_query_runs(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LEASE_S", 1.5)
    running.topics("in", "out")
    name = running.name
    builder = StreamsBuilder(name)
    builder.stream(f"{name}-in").process(Ticks).to(f"{name}-out")
    query = running.start(builder.build(), silence_s=None)

    def ticked() -> set[int]:
        return {int(key or b"") for key, _ in running.output(settled=False)}

    until(lambda: len(ticked()) == 2 or not query.is_active)
    killed = running.hosts()
    assert set(killed) == ticked()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    # Nobody but the driver can have the next ones started.
    until(lambda: len(ticked()) == 4 or not query.is_active)
    pids = running.hosts()
    query.stop()
    until(lambda: all(map(gone, pids)))
    assert running.hosts() == []
    assert query.exception() is None


def test_hosts_are_kept_without_input_for_as_long_as_the_query_runs(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LEASE_S", 1.5)
    query = running.start(counting(running), host=noting, silence_s=None)
    running.feed("in", *[(key, b"") for key in KEYS])
    query.process_all_available()
    notes = running.directory / "state" / "notes"
    had = len(list(notes.iterdir()))
    until(lambda: len(list(notes.iterdir())) >= had + 3 or not query.is_active)
    assert query.exception() is None
    assert sum(one["records"] for one in query.recent_progress) == len(KEYS)


@pytest.mark.parametrize("trigger", [None, {"availableNow": True}], ids=["goes_on", "ends_by_itself"])
def test_hosts_hear_that_the_query_goes_on_while_orders_of_others_take_long(
    running: Running, trigger: dict[str, bool] | None
) -> None:
    running.topics("in", "out")
    gate = running.directory / "gate"
    gate.touch()

    def value_once_open(value: bytes) -> bytes:
        until(lambda: value != b"slow" or gate.exists())
        return value

    builder = StreamsBuilder(running.name)
    builder.stream(f"{running.name}-in").map_values(value_once_open).to(f"{running.name}-out")
    application, config = builder.build(), StreamsConfig(transaction_timeout_ms=900_000)
    rows = [(b"a", b"slow"), *[(key, b"") for key in KEYS]]
    running.feed("in", *rows)
    query = running.start(application, config=config)
    query.process_all_available()
    query.stop()
    # Orders that no micro-batch brings, so that nobody has time to say anything.
    running.set_back("in")
    gate.unlink()
    query = running.start(application, config=config, host=asking, trigger=trigger)
    until(lambda: len(list((running.directory / "state").glob("heard-*"))) == 2 or not query.is_active)
    gate.touch()
    until(lambda: len(running.output(settled=False)) == 2 * len(rows) or not query.is_active)
    query.stop()
    assert query.exception() is None
    assert sorted(running.output()) == sorted(2 * rows)


def test_hosts_hear_that_the_query_goes_on_while_a_micro_batch_takes_long(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LEASE_S", 1.5)
    monkeypatch.setattr(streams, "_BUSY_S", 0.1)
    monkeypatch.setattr(streams, "renew", hosts.renew)
    gate = running.directory / "gate"
    waiting = replace(counting(running), process=Waits(f"{running.name}-out", gate))
    # One partition has something, so that the host of the other one is done with the micro-batch at once.
    running.feed("in", (b"a", b""))
    query = running.start(waiting, config=StreamsConfig(transaction_timeout_ms=900_000))
    until(lambda: (running.directory / "state" / "renewed").exists() or not query.is_active)
    gate.touch()
    query.process_all_available()
    assert running.output() == [(b"a", b"1")]


@pytest.mark.usefixtures("few_attempts")
def test_a_task_that_cannot_be_opened_ends_the_query_without_any_input(running: Running) -> None:
    running.topics("in", "out")
    builder = StreamsBuilder(running.name)
    builder.stream(f"{running.name}-in").process(Ticks).to(f"{running.name}-out")
    state = running.directory / "state" / running.name
    state.mkdir(parents=True)
    (state / "0_0").write_text("a file where a directory has to be")
    query = running.start(builder.build())
    with pytest.raises((TaskHostError, StreamingQueryException), match="TaskHostError: StoreIOError"):
        query.await_termination(LONGEST_S)


@pytest.mark.usefixtures("few_attempts")
def test_a_directory_that_somebody_holds_is_waited_for_by_starting_the_query_again(running: Running) -> None:
    topology = counting(running)
    running.feed("in", *[(key, b"") for key in KEYS])
    with StateDirectory(running.directory / "state", running.name).lock("0_0"):
        query = running.start(topology, host=impatient, restarts=1_000)
        until(lambda: query.query.exception() is not None)
    while len(running.output()) < len(KEYS):
        assert query.is_active, query.exception()
    assert sorted(running.output()) == rows_of(1)


@pytest.mark.parametrize("trigger", [None, {"availableNow": True}], ids=["goes_on", "ends_by_itself"])
def test_what_a_group_that_was_set_back_has_to_process_is_processed_without_anything_new(
    running: Running, trigger: dict[str, bool] | None
) -> None:
    running.topics("in", "out")
    name = running.name
    builder = StreamsBuilder(name)
    builder.stream(f"{name}-in").to(f"{name}-out")
    application = builder.build()
    rows = [(key, b"") for key in KEYS]
    running.feed("in", *rows)
    query = running.start(application)
    query.process_all_available()
    query.stop()
    running.set_back("in")
    query = running.start(application, trigger=trigger)
    until(lambda: len(running.output()) >= 2 * len(KEYS) or not query.is_active)
    assert sorted(running.output()) == sorted(2 * rows)
    query.stop()
    assert query.exception() is None


class Breaks(Ticks):
    """Raises by the wall clock."""

    def tick(self, now: int) -> None:
        raise ArithmeticError(f"nobody is paid at {now}")


@pytest.mark.usefixtures("few_attempts")
def test_a_query_whose_punctuator_raises_without_any_input_ends_with_that(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LEASE_S", 1.5)
    running.topics("in", "out")
    builder = StreamsBuilder(running.name)
    builder.stream(f"{running.name}-in").process(Breaks).to(f"{running.name}-out")
    query = running.start(builder.build())
    # On a busy machine the first micro-batch may be the one that is told.
    with pytest.raises((TaskHostError, StreamingQueryException), match="ArithmeticError: nobody is paid at"):
        query.await_termination(LONGEST_S)


class Priced:
    """Looks the price of each record up in a global store."""

    def __init__(self, sink: str) -> None:
        self.sink = sink

    def __call__(self, context: Context, record: Record) -> None:
        context.forward(self.sink, record.key, context.store("prices").get(record.key))


def test_a_global_store_is_there_on_spark_too(running: Running) -> None:
    running.topics("in", "out", "prices")
    running.feed("prices", *[(key, b"price of " + key) for key in KEYS])
    name = running.name
    prices = global_store(persistent_key_value_store("prices"), f"{name}-prices")
    topology = Topology(
        name, (f"{name}-in",), (f"{name}-out",), (), Priced(f"{name}-out"), global_stores=(prices,)
    )
    query = running.start(topology)
    running.feed("in", *[(key, b"") for key in KEYS])
    query.process_all_available()
    assert sorted(running.output()) == [(key, b"price of " + key) for key in KEYS]


@pytest.mark.usefixtures("few_attempts")
def test_a_host_that_cannot_begin_says_why(running: Running) -> None:
    topology = counting(running)
    state = running.directory / "state" / running.name
    state.mkdir(parents=True)
    (state / "0_0").write_text("a file where a directory has to be")
    query = running.start(topology)
    running.feed("in", *[(key, b"") for key in KEYS])
    with pytest.raises(StreamingQueryException, match="TaskHostError: StoreIOError"):
        query.await_termination(LONGEST_S)
