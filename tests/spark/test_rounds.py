"""What a query does about what lies between its sub-topologies, and about what it was told by its checkpoint alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store.log import Reader
from store.log.kafka import KafkaLog
from store.log.kafka.reader import KafkaReader
from store.spark import SparkStreamsQuery, streams
from store.spark.host import Deployment, TaskHost
from store.streams import ordinals
from store.streams.application import Application
from store.streams.dsl import ProcessorContext, PunctuationType, StreamRecord, StreamsBuilder
from store.streams.task import Task
from store.streams.topology import Context, Topology
from store.types import Record, TopicPartition
from tests.spark.hosts import lasting
from tests.spark.test_streams import Running
from tests.waiting import LONGEST_S, settle, until

pytestmark = pytest.mark.xdist_group("spark")

AVAILABLE_NOW = {"availableNow": True}


@pytest.fixture
def running(
    spark: SparkSession, log: KafkaLog, tmp_path: Path, unique: Callable[[str], str]
) -> Iterator[Running]:
    made = Running(spark, log, tmp_path, unique("rounds"))
    yield made
    for query in made.queries:
        query.stop()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each round has found between sub-topologies. Ends a test that has too many."""
    found: list[int] = []
    between = SparkStreamsQuery._between

    def noted(query: SparkStreamsQuery) -> dict[TopicPartition, int]:
        ends = between(query)
        found.append(len(ends))
        assert len(found) < 20, f"rounds without end: {found}"
        return ends

    monkeypatch.setattr(SparkStreamsQuery, "_between", noted)
    return found


def by_a_repartition_topic(running: Running) -> Application:
    running.topics("in", "out")
    builder = StreamsBuilder(running.name)
    source = builder.stream(f"{running.name}-in")
    source.select_key(lambda _, value: value).repartition().to(f"{running.name}-out")
    return builder.build()


def test_whoever_waits_for_all_that_there_is_waits_for_nothing_where_all_was_processed_before(
    running: Running, rounds: list[int]
) -> None:
    application = by_a_repartition_topic(running)
    running.feed("in", (b"a", b"x"), (b"b", b"y"))
    query = running.start(application)
    query.process_all_available()
    query.stop()
    rounds.clear()
    query = running.start(application)
    query.process_all_available()
    assert rounds == [0]
    running.feed("in", (b"c", b"z"))
    query.process_all_available()
    assert sorted(running.output()) == [(one, one) for one in (b"x", b"y", b"z")]


def passing(running: Running, *steps: tuple[str, str]) -> Application:
    """A sub-topology for each step, from one topic of the user's to another."""
    builder = StreamsBuilder(running.name)
    for source, sink in steps:
        builder.stream(f"{running.name}-{source}").to(f"{running.name}-{sink}")
    return builder.build()


@pytest.mark.requirement("x.4", "card.3")
def test_a_query_that_ends_by_itself_has_processed_all_through_topics_of_the_user_between_sub_topologies(
    running: Running,
) -> None:
    running.topics("in", "first", "second", "out")
    # The last step comes first, as the tasks of a micro-batch do.
    application = passing(running, ("second", "out"), ("first", "second"), ("in", "first"))
    for keys in ([b"a", b"b"], [b"c"]):
        running.feed("in", *[(key, b"") for key in keys])
        query = running.start(application, trigger=AVAILABLE_NOW)
        assert query.await_termination(LONGEST_S)
    assert sorted(running.output()) == [(key, b"") for key in (b"a", b"b", b"c")]


def test_a_query_that_ends_by_itself_ends_though_what_it_writes_comes_back_to_it(
    running: Running, rounds: list[int]
) -> None:
    running.topics("in", "back")
    running.feed("in", (b"a", b""))
    query = running.start(passing(running, ("in", "back"), ("back", "in")), trigger=AVAILABLE_NOW)
    assert query.await_termination(LONGEST_S)
    assert len(rounds) == 2
    assert running.output("back")


def test_a_query_that_ends_by_itself_does_not_wait_for_the_end_of_others_transactions(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_OTHERS_S", 1.0)
    running.topics("in", "between", "out", partitions=1)
    producer = running.log.producer("somebody else", 900_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(f"{running.name}-between", b"theirs", b"", partition=0)
    producer.flush()
    running.feed("in", (b"ours", b""))
    application = passing(running, ("in", "between"), ("between", "out"))
    query = running.start(application, trigger=AVAILABLE_NOW)
    assert query.await_termination(LONGEST_S)
    assert running.output(partitions=1) == []
    producer.commit_transaction()
    producer.close()
    with closing(running.log.reader()) as reader:
        settle(reader, TopicPartition(f"{running.name}-between", 0))
    query = running.start(application, trigger=AVAILABLE_NOW)
    assert query.await_termination(LONGEST_S)
    assert running.output(partitions=1) == [(b"theirs", b""), (b"ours", b"")]


class Ticks:
    """Forwards something by the wall clock, again and again."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        context.schedule(timedelta(milliseconds=20), PunctuationType.WALL_CLOCK_TIME, self.tick)

    def tick(self, now: int) -> None:
        self.context.forward(b"tick", b"", timestamp=now)

    def process(self, record: StreamRecord) -> None:
        self.context.forward(record.key, record.value)


def test_a_query_that_ends_by_itself_ends_though_punctuators_go_on(
    running: Running, rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = streams._decided_ends

    def once_one_has_ticked_again(*args: object) -> dict[TopicPartition, int]:
        """However fast this machine is, between two rounds there is always something new."""
        before = decided(*args)  # type: ignore[arg-type]
        until(lambda: decided(*args) != before)  # type: ignore[arg-type]
        return decided(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(streams, "_decided_ends", once_one_has_ticked_again)
    running.topics("in", "out")
    builder = StreamsBuilder(running.name)
    builder.stream(f"{running.name}-in").process(Ticks).repartition().to(f"{running.name}-out")
    running.feed("in", (b"a", b"x"), (b"b", b"y"))
    query = running.start(builder.build(), trigger=AVAILABLE_NOW, host=lasting)
    assert query.await_termination(LONGEST_S)
    assert len(rounds) == 1
    assert {(b"a", b"x"), (b"b", b"y")} <= set(running.output())


class OnceOpen:
    """Passes each record on, once a file is there."""

    def __init__(self, sink: str, gate: Path) -> None:
        self.sink, self.gate = sink, gate

    def __call__(self, context: Context, record: Record) -> None:
        until(self.gate.exists)
        context.forward(self.sink, record.key, record.value)


def test_a_query_that_is_stopped_in_a_micro_batch_goes_on_without_a_topic_that_has_left_the_topology(
    running: Running,
) -> None:
    running.topics("stays", "leaves", "out")
    gate = running.directory / "gate"
    name, sink = running.name, f"{running.name}-out"

    def of(*sources: str) -> Topology:
        return Topology(name, tuple(f"{name}-{one}" for one in sources), (sink,), (), OnceOpen(sink, gate))

    running.feed("stays", (b"b", b""))
    query = running.start(of("stays", "leaves"), silence_s=None)
    until(lambda: any(query.lag.values()))
    query.stop()
    gate.touch()
    running.feed("stays", (b"c", b""))
    query = running.start(of("stays"))
    query.process_all_available()
    assert sorted(running.output()) == [(b"b", b""), (b"c", b"")]
    assert {tp.topic for tp in query.lag} == {f"{name}-stays"}


def all_old(deployment: Deployment) -> TaskHost:
    """Called in the process of a host: all positions are old."""
    Task.began_with_positions_of = lambda *_: True  # type: ignore[method-assign]
    return TaskHost.of(deployment)


def committed_at(reader: KafkaReader | Reader, running: Running, topic: str) -> list[int | None]:
    """When the positions in its partitions were committed."""
    assert isinstance(reader, KafkaReader)
    return [
        ordinals.committed_at(
            reader.committed_metadata(running.name, TopicPartition(f"{running.name}-{topic}", number))
        )
        for number in range(2)
    ]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize("trigger", [None, AVAILABLE_NOW], ids=["goes_on", "ends_by_itself"])
def test_positions_that_are_old_are_committed_again_by_a_query_that_is_started_where_there_is_nothing_new(
    running: Running, monkeypatch: pytest.MonkeyPatch, trigger: dict[str, bool] | None, guarantee: str
) -> None:
    running.topics("in", "out")
    application = passing(running, ("in", "out"))
    config = {"processing.guarantee": guarantee}
    for number in range(8):
        running.feed("in", (b"%d" % number, b""))
    query = running.start(application, config=config, trigger=AVAILABLE_NOW)
    assert query.await_termination(LONGEST_S)
    with closing(running.log.reader()) as reader:
        before = committed_at(reader, running, "in")
        # Not before they are old.
        query = running.start(application, config=config, trigger=AVAILABLE_NOW)
        assert query.await_termination(LONGEST_S)
        assert committed_at(reader, running, "in") == before
        monkeypatch.setattr(streams, "is_old", lambda *_: True)
        query = running.start(application, config=config, trigger=trigger, host=all_old)
        until(
            lambda: (
                all(
                    (now or 0) > (then or 0)
                    for now, then in zip(committed_at(reader, running, "in"), before, strict=True)
                )
                or not query.is_active
            )
        )
        query.stop()
        assert query.exception() is None
        after = committed_at(reader, running, "in")
        assert all((now or 0) > (then or 0) for now, then in zip(after, before, strict=True))
    assert sorted(running.output()) == [(b"%d" % number, b"") for number in range(8)]
