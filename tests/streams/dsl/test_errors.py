"""Errors of single records in applications of the DSL: what cannot be read, processed or written, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.worlds.sim.broker import SimLog
from harness.worlds.sim.disk import Host
from store.config import StoreType, StreamsConfig
from store.errors import LogError, SerdeError, TaskLostError
from store.metrics import Metrics
from store.points import Point
from store.serdes import IntSerde, JsonSerde, LongSerde, StrSerde
from store.streams import handlers
from store.streams.application import Application
from store.streams.dsl import (
    Materialized,
    ProcessorContext,
    PunctuationType,
    SessionWindows,
    SlidingWindows,
    StreamRecord,
    StreamsBuilder,
    TimeWindows,
)
from store.streams.worker import Worker
from store.testing.driver import TestDriver
from store.types import IsolationLevel, Record, TopicPartition
from tests.clusters import Cluster
from tests.streams.test_handlers import Deciding, killed_at

DEAD = "dead"
CONTINUE = {
    "deserialization_exception_handler": "continue",
    "processing_exception_handler": "continue",
    "production_exception_handler": "continue",
    "errors_dead_letter_queue_topic_name": DEAD,
}


def counting(builder: StreamsBuilder) -> None:
    """Counts JSON values by key, and then finds some of them bad."""

    def check(key: str, count: int) -> None:
        if key == "bad":
            raise ValueError(f"count {count} of a bad key")

    builder.stream("in").group_by_key().count(materialized="counts").to_stream().peek(check).to("out")


def application(build: Callable[[StreamsBuilder], object]) -> Application:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    build(builder)
    return builder.build()


def cluster_of(build: Callable[[StreamsBuilder], object], *records: tuple[bytes, bytes]) -> Cluster:
    (topology,) = application(build).sub_topologies
    cluster = Cluster(topology)
    cluster.broker.create_topic(DEAD, 1)
    for number, (key, value) in enumerate(records, start=1):
        cluster.broker.append("in", key, value, partition=0, timestamp=number)
    return cluster


def run(cluster: Cluster, storage: Any = None, **config: Any) -> dict[str, float]:
    metrics = Metrics(cluster.clock)
    worker = cluster.worker(StreamsConfig(**{**CONTINUE, **config}), storage=storage, metrics=metrics)
    try:
        while worker.poll():
            pass
        return metrics.tasks_as_dict()["0_0"]
    finally:
        worker.close()


def seen(cluster: Cluster, topic: str) -> list[Record]:
    return cluster.broker.visible(TopicPartition(topic, 0), IsolationLevel.READ_COMMITTED)


def offsets(cluster: Cluster) -> list[int]:
    return [int(dict(record.headers)["__streams.errors.offset"] or b"") for record in seen(cluster, DEAD)]


def counts(cluster: Cluster) -> list[tuple[bytes | None, int]]:
    return [(record.key, LongSerde().deserialize(record.value or b"")) for record in seen(cluster, "out")]


GOOD = b'"x"'


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_records_that_are_no_json_are_dead_letters(cache: int) -> None:
    cluster = cluster_of(counting, (b"a", GOOD), (b"a", b"{"), (b"\xff", GOOD), (b"a", GOOD))
    metrics = run(cluster, statestore_cache_max_bytes=cache)
    assert offsets(cluster) == [1, 2]
    assert counts(cluster)[-1] == (b"a", 2)
    assert metrics["dropped-records-total"] == 2
    said = dict(seen(cluster, DEAD)[0].headers)
    assert said["__streams.errors.exception"] == b"store.errors.DeserializationError"
    assert b"in-0 offset 1: JsonSerde cannot deserialize its value" in (
        said["__streams.errors.message"] or b""
    )


def test_a_record_that_raises_behind_a_store_is_not_counted() -> None:
    cluster = cluster_of(counting, (b"a", GOOD), (b"bad", GOOD), (b"a", GOOD), (b"bad", GOOD))
    run(cluster, statestore_cache_max_bytes=0)
    assert counts(cluster) == [(b"a", 1), (b"a", 2)]
    assert offsets(cluster) == [1, 3]
    assert [record.key for record in seen(cluster, "app-counts-changelog")] == [b"a", b"a"]


@pytest.mark.parametrize("cache", [1, 1 << 20])
def test_what_raises_when_a_cache_forwards_is_each_record_that_makes_it_raise(cache: int) -> None:
    """One after the other, until none is left."""
    records = [(b"a", GOOD), (b"bad", GOOD), (b"b", GOOD), (b"bad", GOOD), (b"a", GOOD)]
    cluster = cluster_of(counting, *records)
    run(cluster, statestore_cache_max_bytes=cache)
    assert dict(counts(cluster)) == {b"a": 2, b"b": 1}
    assert offsets(cluster) == [1, 3]
    assert b"bad" not in [record.key for record in seen(cluster, "app-counts-changelog")]


def listing(builder: StreamsBuilder) -> None:
    """Lists JSON values by key. A list with 0 in it cannot be told, nor one with 1 be written."""

    def add(_: str, value: int, agg: list[object]) -> list[object]:
        return [*agg, object() if value == 1 else value]

    def check(_: str, agg: list[object]) -> None:
        if 0 in agg:
            raise ValueError(f"{agg} has a 0")

    group = builder.stream("in").group_by_key()
    group.aggregate(list, add, materialized="lists").to_stream().peek(check).to("out")


@pytest.mark.parametrize("cache", [0, 1, 1 << 20])
@pytest.mark.parametrize("bad", [b"0", b"1"])
def test_a_record_that_makes_an_aggregate_raise_takes_no_later_record_of_its_key_along(
    cache: int, bad: bytes
) -> None:
    """What a cache had last is in order, and raises for what came before it."""
    values = [b"2", bad, b"3", b"4", bad, b"5", b"6"]
    records = [record for value in values for record in ((b"a", value), (b"b", b"7"))]
    cluster = cluster_of(listing, *records)
    run(cluster, statestore_cache_max_bytes=cache)
    assert offsets(cluster) == [2, 8]
    told = {record.key: record.value for record in seen(cluster, "out")}
    assert told == {b"a": b"[2,3,4,5,6]", b"b": b"[7,7,7,7,7,7,7]"}


def test_what_raises_when_a_cache_is_flushed_is_raised_under_at_least_once() -> None:
    cluster = cluster_of(counting, (b"bad", GOOD))
    with pytest.raises(ValueError, match="count 1 of a bad key"):
        run(cluster, processing_guarantee="at_least_once")


def test_what_raises_when_a_cache_makes_room_takes_no_other_record_along_under_at_least_once() -> None:
    """It may be of several records, and nothing is taken back: the worker ends, and all are read again."""

    def build(builder: StreamsBuilder) -> None:
        counting(builder)
        builder.stream("in").to("copied")

    cluster = cluster_of(build, (b"bad", GOOD), (b"good", GOOD), (b"other", GOOD))
    cluster.broker.create_topic("copied", 1)
    with pytest.raises(ValueError, match="count 1 of a bad key"):
        run(cluster, processing_guarantee="at_least_once", statestore_cache_max_bytes=1)
    assert seen(cluster, DEAD) == []
    processed = SimLog(cluster.broker).reader().committed("app", TopicPartition("in", 0)) or 0
    assert len(seen(cluster, "copied")) >= processed


def test_an_output_topic_that_is_deleted_keeps_no_later_record_from_being_passed_over() -> None:
    """An abort asks whether the last commits are to be seen, also where their outputs are gone."""

    def check(_: str, value: str) -> None:
        if value == "bad":
            raise ValueError(value)

    def build(builder: StreamsBuilder) -> None:
        builder.stream("in").peek(check).to(lambda _key, value, _context: f"day-{value}")

    cluster = cluster_of(build, (b"k", b'"1"'), (b"k", b'"2"'))
    for day in ("day-1", "day-2"):
        cluster.broker.create_topic(day, 1)
    settings: dict[str, Any] = {**CONTINUE}
    worker = cluster.worker(StreamsConfig(**settings))
    while worker.poll():
        pass
    cluster.broker.delete_topic("day-1")
    for value in (b'"bad"', b'"2"'):
        cluster.broker.append("in", b"k", value, partition=0, timestamp=10)
    while worker.poll():
        pass
    worker.close()
    assert len(seen(cluster, "day-2")) == 2
    assert offsets(cluster) == [2]


def test_under_at_least_once_other_branches_go_on_where_one_raises_as_in_kafka_streams() -> None:
    """Its test driver forwards the same for this pipeline."""

    def but_for(bad: str) -> Callable[[str], str]:
        def checked(value: str) -> str:
            if value == bad:
                raise ValueError(f"{bad} is bad")
            return value

        return checked

    def build(builder: StreamsBuilder) -> None:
        stream = builder.stream("in")
        stream.map_values(but_for("x")).to("one")
        stream.map_values(lambda value: value + "2").to("two")
        stream.group_by_key().count().to_stream().map_values(str).to("three")
        stream.flat_map_values(lambda value: [f"{value}{n}" for n in "abc"]).map_values(but_for("yb")).to(
            "four"
        )

    config = {
        "errors.dead.letter.queue.topic.name": DEAD,
        "processing.exception.handler": "continue",
        "processing.guarantee": "at_least_once",
        "statestore.cache.max.bytes": 0,
    }
    with TestDriver(application(build), config) as driver:
        for value in "uxy":
            driver.pipe_input("in", "k", value, 1, value_serde=JsonSerde())
        came = [
            [record.value for record in driver.read_output(topic, value_serde=JsonSerde())]
            for topic in ("one", "two", "three", "four", DEAD)
        ]
    assert came == [
        ["u", "y"],
        ["u2", "x2", "y2"],
        ["1", "2", "3"],
        ["ua", "ub", "uc", "xa", "xb", "xc", "ya", "yc"],
        ["x", "y"],
    ]


@pytest.mark.parametrize("cache", [0, 1 << 20])
@pytest.mark.parametrize(
    "windows",
    [
        None,
        TimeWindows.of_size(100),
        SlidingWindows.of_time_difference(100),
        SessionWindows.with_inactivity_gap(100),
    ],
)
@pytest.mark.parametrize("read", [False, True])
def test_under_at_least_once_an_aggregate_has_nothing_of_a_record_that_raised_while_it_was_changed_in_place(
    cache: int, windows: Any, read: bool
) -> None:
    """As in Kafka Streams, whose cache holds bytes."""

    def add(_: str, value: str, so_far: list[str]) -> list[str]:
        so_far.append(value)
        if value == "bad":
            raise ValueError("a bad value")
        return so_far

    def build(builder: StreamsBuilder) -> None:
        group: Any = builder.stream("in").group_by_key()
        if windows is None:
            group.aggregate(list, add, materialized="lists")
        elif isinstance(windows, SessionWindows):
            merge = lambda _, one, two: one + two if one else two  # noqa: E731
            group.windowed_by(windows).aggregate(list, add, merge, materialized="lists")
        else:
            group.windowed_by(windows).aggregate(list, add, materialized="lists")

    config = {
        "processing.exception.handler": "continue",
        "processing.guarantee": "at_least_once",
        "statestore.cache.max.bytes": cache,
    }
    with TestDriver(application(build), config, auto_commit=False) as driver:
        store = driver.get_store("lists")
        rows = partial(store.fetch, "k") if isinstance(windows, SessionWindows) else store.all
        for value in ("one", "bad", "two"):
            driver.pipe_input("in", "k", value, 1, value_serde=JsonSerde())
            if read:
                # What is held back is written for whoever reads.
                list(rows())
        driver.commit()
        with rows() as found:
            expected = ["one", "two"] if isinstance(windows, SessionWindows) else (["one", "two"], 1)
            assert [held for _, held in found] == [expected]


def test_under_at_least_once_a_handler_that_does_not_go_on_is_asked_once() -> None:
    asked: list[Exception] = []

    class Failing:
        def handle_error(self, _context: handlers.ErrorHandlerContext, error: Exception) -> handlers.Response:
            asked.append(error)
            return handlers.Response.fail()

    def fail(_key: str, value: str) -> None:
        raise ValueError(value)

    config = {"processing.exception.handler": Failing, "processing.guarantee": "at_least_once"}
    stream = application(lambda builder: builder.stream("in").map_values(str).peek(fail).to("out"))
    with TestDriver(stream, config) as driver, pytest.raises(ValueError, match="bad"):
        driver.pipe_input("in", "k", "bad", 1, value_serde=JsonSerde())
    assert [str(error) for error in asked] == ["bad"]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_handler_is_told_which_operator_has_an_error(guarantee: str) -> None:
    told: list[tuple[str, str | None]] = []

    class Telling:
        def handle_error(self, context: handlers.ErrorHandlerContext, error: Exception) -> handlers.Response:
            told.append((type(error).__name__, context.operator))
            return handlers.Response.resume()

    def refuse(_key: str, value: str) -> None:
        if value == "bad!":
            raise ValueError(value)

    def build(builder: StreamsBuilder) -> None:
        marked = builder.stream("in", name="texts").map_values("{}!".format, name="marks")
        marked.peek(refuse, name="refuses").to("out", name="sends")
        fine = marked.filter(lambda _key, value: value == "fine!", name="keeps")
        fine.to("numbers", value_serde=LongSerde(), name="counts")

    config = {
        "processing.guarantee": guarantee,
        "deserialization.exception.handler": Telling,
        "processing.exception.handler": Telling,
        "production.exception.handler": Telling,
    }
    with TestDriver(application(build), config) as driver:
        for value in (b'"bad"', b'"fine"', b"no JSON"):
            driver.pipe_input("in", "k", value, 1)
    assert told == [("ValueError", "refuses"), ("SerdeError", "counts"), ("DeserializationError", "texts")]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_what_a_punctuator_raises_is_no_fault_of_the_record_that_it_came_after(guarantee: str) -> None:
    class Punctual:
        def init(self, context: ProcessorContext) -> None:
            context.schedule(10, PunctuationType.STREAM_TIME, self.punctuate)

        def process(self, record: StreamRecord) -> None: ...

        def punctuate(self, now: int) -> None:
            raise ValueError(f"not at {now}")

    cluster = cluster_of(lambda b: b.stream("in").process(Punctual), (b"a", GOOD), (b"b", GOOD))
    with pytest.raises(ValueError, match="not at 1"):
        run(cluster, processing_guarantee=guarantee)
    assert (seen(cluster, DEAD), cluster.position()) == ([], None)


def test_what_a_wall_clock_punctuator_sends_that_the_cluster_refuses_is_left_out() -> None:
    class Punctual:
        def init(self, context: ProcessorContext) -> None:
            self.context = context
            context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self.punctuate)

        def process(self, record: StreamRecord) -> None: ...

        def punctuate(self, _: int) -> None:
            for key, size in (("large", 2_000_000), ("small", 1)):
                self.context.forward(key, "x" * size)

    cluster = cluster_of(lambda b: b.stream("in").process(Punctual).to("out"), (b"a", GOOD))
    cluster.broker.linger_records = 1
    worker = cluster.worker(StreamsConfig(production_exception_handler="continue"))
    while worker.poll():
        pass
    cluster.clock.sleep(0.01)
    while worker.poll():
        pass
    worker.close()
    assert {record.key for record in seen(cluster, "out")} == {b"small"}


def writing(builder: StreamsBuilder) -> None:
    """Forwards each value twice, once as a number."""
    stream = builder.stream("in")
    stream.to("out")
    stream.to("numbers", value_serde=IntSerde())


def test_an_output_that_cannot_be_serialized_is_left_out_alone() -> None:
    cluster = cluster_of(writing, (b"a", b"1"), (b"b", GOOD))
    metrics = run(cluster)
    assert [record.key for record in seen(cluster, "out")] == [b"a", b"b"]
    assert [record.key for record in seen(cluster, "numbers")] == [b"a"]
    assert offsets(cluster) == [1]
    assert metrics["dropped-records-total"] == 1


def test_an_output_that_cannot_be_serialized_is_an_error_by_default_or_where_the_handler_says_so() -> None:
    cluster = cluster_of(writing, (b"b", GOOD))
    with pytest.raises(SerdeError, match="topic numbers: StrSerde and IntSerde cannot serialize"):
        run(cluster, production_exception_handler=None, processing_exception_handler=None)
    with pytest.raises(LogError, match="an output cannot be sent: topic numbers"):
        run(cluster, production_exception_handler=Deciding)
    assert seen(cluster, "out") == []


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"bad", b"\xff"]), st.sampled_from([GOOD, GOOD, b"{"])),
        min_size=1,
        max_size=8,
    ),
    at=st.sampled_from([Point.RECORD_PROCESSED, Point.ABORTED, Point.FLUSHED, Point.KAFKA_COMMITTED]),
    times=st.integers(1, 6),
    each=st.sampled_from([1, 2, 100]),
    cache=st.sampled_from([0, 1, 1 << 20]),
)
def test_a_crash_leaves_each_record_counted_or_dead_once(
    records: list[tuple[bytes, bytes]], at: Point, times: int, each: int, cache: int
) -> None:
    cluster = cluster_of(counting, *records)
    options = {"statestore_cache_max_bytes": cache, "commit_records": each}

    def work(storage: Any) -> None:
        run(cluster, storage, **options)

    killed_at(cluster, at, times, work)
    run(cluster, cluster.storage(Host(1)), **options)
    good = [key for key, value in records if key in (b"a", b"b") and value == GOOD]
    if cache:
        assert dict(counts(cluster)) == {key: good.count(key) for key in good}
    else:
        assert counts(cluster) == [(key, good[: at + 1].count(key)) for at, key in enumerate(good)]
    assert offsets(cluster) == [
        offset for offset, (key, value) in enumerate(records) if key not in (b"a", b"b") or value != GOOD
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"statestore.transactional.enabled": False},
        {"processing.guarantee": "at_least_once", "statestore.cache.max.bytes": 0},
    ],
)
@pytest.mark.parametrize("auto_commit", [True, False])
def test_the_driver_goes_on_without_records_and_has_their_dead_letters(
    settings: dict[str, object], auto_commit: bool
) -> None:
    config = {
        "deserialization.exception.handler": "continue",
        "processing.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": DEAD,
    }
    with TestDriver(application(counting), config | settings, auto_commit=auto_commit) as driver:
        records = [("a", "1"), ("bad", "1"), ("a", "{"), (b"\xff", "1"), ("a", "1")]
        for time, (key, value) in enumerate(records, start=1):
            driver.pipe_input("in", key, value, timestamp=time)
        driver.commit()
        assert driver.read_output("out", StrSerde(), LongSerde())[-1][:2] == ("a", 2)
        errors = {letter.key: dict(letter.headers)[handlers.MESSAGE] for letter in driver.read_output(DEAD)}
    assert errors[b"bad"] == b"count 1 of a bad key"
    assert b"JsonSerde cannot deserialize its value" in (errors[b"a"] or b"")
    assert b"StrSerde cannot deserialize its key" in (errors[b"\xff"] or b"")


def test_a_topic_that_the_driver_does_not_have_is_told_with_those_that_it_has() -> None:
    with TestDriver(application(counting)) as driver:
        with pytest.raises(LogError, match=r"^topic inn does not exist\. There are: .*\bin, out$"):
            driver.pipe_input("inn", "a", "1")
        with pytest.raises(LogError, match=r"topic ouut does not exist\. There are: .*\bin, out$"):
            driver.read_output("ouut")


def test_the_driver_opens_a_task_anew_with_the_global_stores_of_its_sub_topology() -> None:
    """One that cannot take back what a record has done that raised, as a store of it has no transactions."""

    def check(_: str, value: str) -> None:
        if value == "bad":
            raise ValueError("a bad value")

    def build(builder: StreamsBuilder) -> None:
        names = builder.global_table("names")
        moved = builder.stream("in").select_key(lambda key, _: key).repartition()
        named = moved.join_global(names, lambda key, _: key, lambda value, name: f"{name} {value}")
        moved.to_table(materialized=Materialized("last", store_type=StoreType.ROCKS_DB))
        moved.foreach(check)
        named.to("out")

    config = {"processing.exception.handler": "continue", "statestore.cache.max.bytes": 0}
    with TestDriver(application(build), config) as driver:
        driver.pipe_input("names", "k", b'"Ann"')
        for value in (b'"one"', b'"bad"', b'"two"'):
            driver.pipe_input("in", "k", value)
        came = [record.value for record in driver.read_output("out", value_serde=JsonSerde())]
    assert came == ["Ann one", "Ann two"]


def poll_on(worker: Worker) -> None:
    for _ in range(10):
        worker.poll()


class Unclosable:
    """Refuses a record, and to be closed."""

    def process(self, record: StreamRecord) -> None:
        raise ValueError(f"{record.value} is bad")

    def close(self) -> None:
        raise RuntimeError("it is stuck")


def test_what_has_ended_a_task_is_raised_and_not_what_its_processors_raise_as_they_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(lambda builder: builder.stream("in").process(Unclosable), (b"a", GOOD))
    worker = cluster.worker(StreamsConfig())
    try:
        with pytest.raises(ValueError, match="is bad") as raised:
            poll_on(worker)
        assert "closing task 0_0 failed too: RuntimeError('it is stuck')" in raised.value.__notes__
        assert "task 0_0: closing it failed too: RuntimeError('it is stuck')" in caplog.messages
    finally:
        worker.close()


def test_a_task_that_was_taken_over_is_told_of_whatever_its_processors_raise_as_they_are_closed() -> None:
    class Stuck(Unclosable):
        def process(self, record: StreamRecord) -> None: ...

    cluster = cluster_of(lambda builder: builder.stream("in").process(Stuck))
    told: list[int] = []
    worker = cluster.worker(StreamsConfig(), on_lost=lambda partition, _: told.append(partition))
    try:
        worker.poll()
        cluster.worker(StreamsConfig(), storage=cluster.storage(Host(1))).poll()
        cluster.broker.append("in", b"a", GOOD, partition=0, timestamp=1)
        with pytest.raises(TaskLostError):
            poll_on(worker)
        assert told == [0]
    finally:
        worker.close()
