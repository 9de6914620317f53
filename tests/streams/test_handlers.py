"""Errors of single records: failing, going on without them, and dead letters, exactly once (KIP-1033, KIP-1034)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.worlds.sim.broker import SimLog
from harness.worlds.sim.disk import Host
from store.config import StreamsConfig
from store.errors import (
    ConfigError,
    DeserializationError,
    LogError,
    ProtocolError,
    RecordFailedError,
    RecordRefusedError,
    RecordTooLargeError,
)
from store.log import Producer
from store.metrics import Metrics
from store.points import Point
from store.streams import handlers
from store.streams.application import Application
from store.streams.context import Context
from store.streams.handlers import (
    ErrorHandlerContext,
    Faults,
    LogAndContinueExceptionHandler,
    LogAndFailExceptionHandler,
    Response,
)
from store.streams.task import apply
from store.suppliers import global_store, persistent_key_value_store
from store.types import Content, Headers, IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock
from tests.clusters import CHANGELOG, SINK, SOURCE, STORE, Cluster, count, pipeline, rows

DEAD = TopicPartition("dead", 0)


def config(**options: Any) -> StreamsConfig:
    return StreamsConfig(errors_dead_letter_queue_topic_name=DEAD.topic, **options)


CONTINUE = config(processing_exception_handler="continue")


def cluster_of(
    process: Callable[[Context, Record], None], *keys: bytes, stores: tuple[Any, ...] = ()
) -> Cluster:
    cluster = Cluster(pipeline(process, *stores), keys)
    cluster.broker.create_topic(DEAD.topic, 1)
    return cluster


def poisoned(context: Context, record: Record) -> None:
    """Counts, forwards, and only then finds that the record is bad."""
    count(context, record)
    if record.key == b"bad":
        raise ValueError("bad record")


def run(cluster: Cluster, configuration: StreamsConfig, **options: Any) -> None:
    worker = cluster.worker(configuration, **options)
    try:
        while worker.poll():
            pass
    finally:
        worker.close()


def dead(cluster: Cluster) -> list[Record]:
    return cluster.broker.visible(DEAD, IsolationLevel.READ_COMMITTED)


def headers(record: Record) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers}


@pytest.mark.requirement("129.5")
def test_a_record_whose_processing_raised_leaves_no_trace_but_its_dead_letter() -> None:
    cluster = cluster_of(poisoned, b"a", b"bad", b"a", b"bad", b"b")
    metrics = Metrics(cluster.clock)
    worker = cluster.worker(CONTINUE, metrics=metrics)
    while worker.poll():
        pass
    assert metrics.tasks_as_dict()["0_0"]["dropped-records-total"] == 2
    assert rows(worker.tasks[0]) == {b"a": b"2", b"b": b"1"}
    worker.close()
    assert cluster.output() == [(b"a", b"1"), (b"a", b"2"), (b"b", b"1")]
    assert cluster.position() == 5
    assert [record.key for record in cluster.changes()] == [b"a", b"a", b"b"]
    assert [(record.key, headers(record)[handlers.OFFSET]) for record in dead(cluster)] == [
        (b"bad", "1"),
        (b"bad", "3"),
    ]


def test_a_record_behind_markers_and_aborted_records_is_passed_over_like_any_other() -> None:
    cluster = cluster_of(poisoned)
    foreign = SimLog(cluster.broker).producer("foreign", 60_000)
    foreign.init_transactions()
    for key, end in (
        (b"lost", foreign.abort_transaction),
        (b"bad", foreign.commit_transaction),
        (b"a", foreign.commit_transaction),
        (b"bad", foreign.commit_transaction),
    ):
        foreign.begin_transaction()
        foreign.produce(SOURCE.topic, key, b"", partition=0, timestamp=1)
        foreign.flush()
        end()
    run(cluster, CONTINUE)
    assert cluster.output() == [(b"a", b"1")]
    assert [headers(record)[handlers.OFFSET] for record in dead(cluster)] == ["2", "6"]


def test_a_dead_letter_has_the_record_and_says_what_happened_to_it() -> None:
    cluster = cluster_of(poisoned)
    cluster.broker.append(
        SOURCE.topic, b"bad", b"value", partition=0, timestamp=77, headers=(("own", b"kept"), ("none", None))
    )
    run(cluster, CONTINUE)
    (letter,) = dead(cluster)
    assert (letter.key, letter.value, letter.timestamp) == (b"bad", b"value", 77)
    assert letter.headers[:2] == (("own", b"kept"), ("none", None))
    said = headers(letter)
    assert "raise ValueError" in said.pop("__streams.errors.stacktrace")
    del said["own"], said["none"]
    assert said == {
        "__streams.errors.exception": "builtins.ValueError",
        "__streams.errors.message": "bad record",
        "__streams.errors.topic": "in",
        "__streams.errors.partition": "0",
        "__streams.errors.offset": "0",
        "__streams.errors.timestamp": "77",
    }


def test_by_default_and_with_fail_the_error_is_raised() -> None:
    for handler in (None, "fail", LogAndFailExceptionHandler):
        cluster = cluster_of(poisoned, b"a", b"bad")
        with pytest.raises(ValueError, match="bad record"):
            run(cluster, config(processing_exception_handler=handler))
        assert (cluster.output(), dead(cluster), cluster.position()) == ([], [], None)


def test_no_dead_letter_is_sent_where_no_topic_is_named() -> None:
    cluster = cluster_of(poisoned, b"bad", b"a")
    run(cluster, StreamsConfig(processing_exception_handler="continue"))
    assert (cluster.output(), dead(cluster)) == ([(b"a", b"1")], [])


def test_a_dead_letter_topic_that_does_not_exist_is_named_when_the_task_starts() -> None:
    cluster = Cluster(pipeline(poisoned))
    with pytest.raises(LogError, match="dead"), cluster.task(CONTINUE):
        pass


def test_a_dead_letter_topic_that_does_not_exist_is_named_with_the_others_before_anything_starts() -> None:
    cluster = Cluster(pipeline(poisoned))
    with pytest.raises(LogError, match="these topics do not exist: dead"):
        Application.of(cluster.topology).prepare(SimLog(cluster.broker), CONTINUE)


def test_a_changelog_is_no_topic_of_dead_letters() -> None:
    """They would be rows of the store wherever that is restored."""
    cluster = cluster_of(poisoned)
    chosen = replace(CONTINUE, errors_dead_letter_queue_topic_name=CHANGELOG.topic)
    with pytest.raises(ConfigError, match=r"dead\.letter.*app-counts-changelog.*the application's own"):
        Application.of(cluster.topology).prepare(SimLog(cluster.broker), chosen)


@pytest.mark.parametrize("handler", ["fail", "continue"])
def test_a_dead_letter_topic_that_no_handler_sends_to_is_said_at_the_start(
    handler: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = cluster_of(poisoned)
    chosen = replace(CONTINUE, deserialization_exception_handler="fail", processing_exception_handler=handler)
    chosen = replace(chosen, production_exception_handler=None)
    Application.of(cluster.topology).prepare(SimLog(cluster.broker), chosen)
    said = [text for text in caplog.messages if "has no effect" in text]
    assert len(said) == (handler == "fail")


def test_the_topic_of_a_global_table_that_does_not_exist_is_named_with_the_others_and_once() -> None:
    cluster = Cluster(pipeline(poisoned))
    table = global_store(persistent_key_value_store("people"), "people")
    topology = replace(cluster.topology, global_stores=(table,))
    cluster.broker.create_topic("other", 1)
    both = replace(topology, ordinal=1, sources=("other",), sinks=(), stores=())
    with pytest.raises(LogError, match=r"these topics do not exist: people\. "):
        Application(topology.application_id, (topology, both)).prepare(SimLog(cluster.broker))


def test_a_record_that_cannot_be_read_is_left_out_without_an_abort() -> None:
    def read(context: Context, record: Record) -> None:
        if record.key == b"bad":
            raise DeserializationError("no JSON")
        count(context, record)

    cluster = cluster_of(read, b"a", b"bad", b"a")
    with cluster.task(config(deserialization_exception_handler="continue")) as task:
        apply(task, cluster.records())
        assert task.uncommitted_records == 3
        task.commit()
    assert cluster.output() == [(b"a", b"1"), (b"a", b"2")]
    assert [record.key for record in dead(cluster)] == [b"bad"]
    assert headers(dead(cluster)[0])[handlers.EXCEPTION] == "store.errors.DeserializationError"


def test_each_handler_is_asked_only_for_its_own_errors() -> None:
    cluster = cluster_of(poisoned, b"bad")
    with pytest.raises(ValueError, match="bad record"):
        run(
            cluster,
            config(deserialization_exception_handler="continue", production_exception_handler="continue"),
        )


def test_an_error_that_is_not_of_the_record_is_never_left_out() -> None:
    def wrong(context: Context, record: Record) -> None:
        context.forward("nowhere", record.key, b"")

    cluster = cluster_of(wrong, b"a")
    with pytest.raises(Exception, match="has no sink 'nowhere'"):
        run(cluster, CONTINUE)


class Choosy:
    """Goes on without records that have no value, and sends what it likes."""

    def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
        if context.source_raw_value:
            return Response.fail()
        letter = handlers.DeadLetter("dead", b"mine", str(error).encode(), context.timestamp, context.headers)
        return Response.resume([letter])


@pytest.mark.parametrize("handler", [Choosy, Choosy(), f"{__name__}:Choosy", f"{__name__}.Choosy"])
def test_a_handler_of_ones_own_decides_record_by_record(handler: object) -> None:
    cluster = cluster_of(poisoned, b"bad")
    run(cluster, config(processing_exception_handler=handler))
    assert [(record.key, record.value) for record in dead(cluster)] == [(b"mine", b"bad record")]
    cluster.broker.append(SOURCE.topic, b"bad", b"value", partition=0)
    with pytest.raises(ValueError, match="bad record"):
        run(cluster, config(processing_exception_handler=handler))


def dead_letter(**changes: Any) -> Response:
    return Response.resume([handlers.DeadLetter("dead", None, b"", 1, ())._replace(**changes)])


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "returned None, and is to return Response"),
        (True, "returned True"),
        (Response.resume(cast(Any, [("dead", None, b"")])), "is to be a DeadLetter"),
        (dead_letter(key="text"), "key and value are bytes or None"),
        (dead_letter(timestamp=None), "a time a whole number"),
        (dead_letter(headers=(("name", "text"),)), "headers are pairs"),
        (
            dead_letter(topic=CHANGELOG.topic),
            "dead letter for app-counts-changelog, a topic of the application's own",
        ),
    ],
)
def test_an_answer_that_is_none_ends_the_task_and_is_not_asked_for_over_and_over(
    answer: Any, message: str, guarantee: str
) -> None:
    class Wrong:
        def handle_error(self, *_: object) -> Response:
            return cast(Response, answer)

    cluster = cluster_of(poisoned, b"bad")
    with pytest.raises((TypeError, ProtocolError), match=message):
        run(cluster, config(processing_guarantee=guarantee, processing_exception_handler=Wrong()))
    assert dead(cluster) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (":Handler", "there is no such class"),
        ("no.such:Handler", "there is no such class: No module"),
        (dict, r"a class with handle_error\(context, error\)"),
        (f"{__name__}:Needy", "cannot be constructed without arguments"),
        (f"{__name__}:Curious", r"handle_error\(context, error\) takes two"),
    ],
)
def test_what_is_no_handler_is_refused(given: object, message: str) -> None:
    cluster = cluster_of(poisoned)
    with pytest.raises(ConfigError, match=message):
        cluster.task(config(processing_exception_handler=given))
    with pytest.raises(ConfigError, match=r"processing\.exception\.handler=7"):
        config(processing_exception_handler=7)


class Needy(LogAndContinueExceptionHandler):
    def __init__(self, what: str) -> None:
        self.what = what


class Curious:
    def handle_error(self, context: ErrorHandlerContext, record: Record, error: Exception) -> Response:
        raise NotImplementedError


def test_a_store_without_transactions_is_rebuilt_and_the_record_is_passed_over() -> None:
    stores = (persistent_key_value_store(STORE, transactional=False),)
    cluster = cluster_of(poisoned, b"a", b"bad", b"a", b"bad", b"b", stores=stores)
    run(cluster, CONTINUE)
    assert cluster.output() == [(b"a", b"1"), (b"a", b"2"), (b"b", b"1")]
    assert [record.key for record in dead(cluster)] == [b"bad", b"bad"]


def test_many_bad_records_in_a_row_do_not_stop_a_worker() -> None:
    cluster = cluster_of(poisoned, *[b"bad"] * 60, b"a")
    run(cluster, CONTINUE)
    assert cluster.output() == [(b"a", b"1")]
    assert len(dead(cluster)) == 60


def test_under_at_least_once_partial_writes_stay_as_in_kafka_streams() -> None:
    cluster = cluster_of(poisoned, b"a", b"bad", b"a")
    settings_ = config(processing_exception_handler="continue", processing_guarantee="at_least_once")
    run(cluster, settings_)
    assert cluster.output() == [(b"a", b"1"), (b"bad", b"1"), (b"a", b"2")]
    assert [record.key for record in dead(cluster)] == [b"bad"]


@pytest.mark.requirement("129.5")
@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(st.sampled_from([b"a", b"b", b"bad"]), min_size=1, max_size=8),
    at=st.sampled_from(
        [
            Point.TRANSACTION_BEGUN,
            Point.RECORD_PROCESSED,
            Point.ABORTED,
            Point.COMMIT_STARTED,
            Point.OFFSETS_SENT,
            Point.KAFKA_COMMITTED,
            Point.STORE_COMMITTED,
        ]
    ),
    times=st.integers(1, 8),
    each=st.sampled_from([1, 3, 100]),
)
def test_a_crash_at_any_point_leaves_each_record_once(
    keys: list[bytes], at: Point, times: int, each: int
) -> None:
    cluster = cluster_of(poisoned, *keys)
    configuration = config(processing_exception_handler="continue", commit_records=each)

    def work(storage: Any) -> None:
        worker = cluster.worker(configuration, storage=storage)
        while worker.poll():
            pass
        worker.close()

    killed_at(cluster, at, times, work)
    work(cluster.storage(Host(1)))
    good = [key for key in keys if key != b"bad"]
    expected = [(key, b"%d" % good[: index + 1].count(key)) for index, key in enumerate(good)]
    assert cluster.output() == expected
    assert [int(headers(record)[handlers.OFFSET]) for record in dead(cluster)] == [
        offset for offset, key in enumerate(keys) if key == b"bad"
    ]


class _Killed(BaseException):
    pass


def killed_at(cluster: Cluster, at: Point, times: int, work: Callable[[Any], None]) -> None:
    """Let a process work that is killed at a point, if it comes there so many times."""
    from store import points

    left = times

    def hook(reached: Point) -> None:
        nonlocal left
        left -= reached is at
        if left == 0:
            left = -1
            raise _Killed

    previous = points.arm(hook)
    try:
        work(cluster.storage())
    except _Killed:
        pass
    finally:
        points.arm(previous)


# -- dead letters that are too large ------------------------------------------------------------------------


def fussy(context: Context, record: Record) -> None:
    """Forwards what is a number, as a function may that quotes what is none."""
    count(context, record)
    float(record.value or b"0")


LARGE = b"x" * 600_000


def test_what_an_error_quotes_is_cut_in_the_dead_letter_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(fussy)
    cluster.broker.append(SOURCE.topic, b"bad", LARGE, partition=0)
    run(cluster, CONTINUE)
    (letter,) = dead(cluster)
    assert letter.value == LARGE
    said = headers(letter)
    assert said[handlers.MESSAGE].startswith("could not convert string to float: b'xxx")
    assert "float(record.value" in said[handlers.STACKTRACE]
    assert max(map(len, [*said.values(), *caplog.messages])) < 9_000


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize(
    ("value", "own", "most", "left"),
    [
        (LARGE, (), 600_900, (b"bad", LARGE, None)),
        (LARGE, (), 5_000, (b"bad", None, "value")),
        (b"x", (("own", LARGE),), 5_000, (None, None, "key, value and headers")),
    ],
    ids=["without the error", "without the value", "without all of the record"],
)
def test_of_a_dead_letter_that_the_cluster_refuses_as_much_is_sent_as_it_takes(
    guarantee: str, value: bytes, own: Headers, most: int, left: tuple[object, ...]
) -> None:
    cluster = Cluster(pipeline(fussy))
    cluster.broker.create_topic(DEAD.topic, 1, {"max.message.bytes": str(most)})
    cluster.feed(b"a")
    cluster.broker.append(SOURCE.topic, b"bad", value, partition=0, headers=own)
    cluster.feed(b"b")
    run(cluster, config(processing_exception_handler="continue", processing_guarantee=guarantee))
    assert cluster.position() == 3
    (letter,) = dead(cluster)
    assert (letter.key, letter.value, headers(letter).get(handlers.OMITTED)) == left
    assert headers(letter)[handlers.OFFSET] == "1"
    assert headers(letter)[handlers.EXCEPTION] == "builtins.ValueError"


def test_however_many_dead_letters_the_cluster_refuses_they_do_not_stop_a_worker() -> None:
    def read(*_: object) -> None:
        raise DeserializationError(f"no JSON, by {object()}")

    cluster = Cluster(pipeline(read))
    cluster.broker.create_topic(DEAD.topic, 1, {"max.message.bytes": "5000"})
    for _ in range(30):
        cluster.broker.append(SOURCE.topic, b"bad", LARGE, partition=0)
    run(cluster, config(deserialization_exception_handler="continue"))
    assert [headers(letter)[handlers.OFFSET] for letter in dead(cluster)] == [str(at) for at in range(30)]


def test_of_a_batch_of_dead_letters_that_was_refused_the_one_at_fault_is_sent_with_less() -> None:
    def read(*_: object) -> None:
        raise DeserializationError("no JSON")

    class Constant:
        def handle_error(self, context: ErrorHandlerContext, _: Exception) -> Response:
            value = b"x" * (2_000_000 if context.offset else 1)
            return Response.resume([handlers.DeadLetter("dead", b"mine", value, 1, ())])

    cluster = cluster_of(read, b"a", b"b")
    faults = Faults()
    batch = [("dead", b"mine", b"x" * size, ()) for size in (1, 2_000_000)]
    with cluster.task(config(deserialization_exception_handler=Constant), faults=faults) as task:
        apply(task, cluster.records()[:1])
        faults.blame(batch, RecordRefusedError("a batch"))
        with pytest.raises(RecordRefusedError, match="dead-0 is larger"):
            apply(task, cluster.records(1))
        task.abort()
        assert len(faults.refused) == 1


def test_a_dead_letter_that_the_client_refuses_is_sent_with_less_at_once() -> None:
    def read(*_: object) -> None:
        raise DeserializationError("no JSON")

    cluster = cluster_of(read)
    cluster.broker.append(SOURCE.topic, b"bad", b"x" * 1_000_001, partition=0)
    configuration = config(deserialization_exception_handler="continue")
    with cluster.task(configuration, log=_LimitedLog(cluster.broker)) as task:
        cluster.run(task)
    (letter,) = dead(cluster)
    assert (letter.value, headers(letter)[handlers.OMITTED]) == (None, "value")


def test_a_dead_letter_that_is_refused_whatever_it_lacks_stops_a_worker() -> None:
    cluster = Cluster(pipeline(poisoned), [b"bad"])
    cluster.broker.create_topic(DEAD.topic, 1, {"max.message.bytes": "100"})
    with pytest.raises(LogError, match=r"dead-0 is larger than its max\.message\.bytes"):
        run(cluster, CONTINUE)
    assert cluster.position() is None


def test_a_dead_letter_of_a_record_of_time_0_has_the_first_time_that_can_be_sent() -> None:
    cluster = cluster_of(poisoned)
    cluster.broker.append(SOURCE.topic, b"bad", b"", partition=0, timestamp=0)
    run(cluster, CONTINUE)
    (letter,) = dead(cluster)
    assert (letter.timestamp, headers(letter)[handlers.TIMESTAMP]) == (1, "0")


# -- outputs ----------------------------------------------------------------------------------------------------

PRODUCTION = config(production_exception_handler="continue")


def big(context: Context, record: Record) -> None:
    """Forwards what it counts, once as it is and once too large for the sink where the key says so."""
    count(context, record)
    if record.key == b"bad":
        context.forward("out", record.key, b"x" * 2_000_000)


def sink_of(cluster: Cluster) -> list[bytes | None]:
    return [key for key, _ in cluster.output()]


@pytest.mark.requirement("129.5")
@pytest.mark.parametrize("linger", [None, 1])
def test_an_output_that_the_cluster_refuses_is_left_out_and_the_record_counts(linger: int | None) -> None:
    cluster = Cluster(pipeline(big), [b"a", b"bad", b"a", b"bad"], linger_records=linger)
    cluster.broker.create_topic(DEAD.topic, 1)
    metrics = Metrics(cluster.clock)
    worker = cluster.worker(PRODUCTION, metrics=metrics)
    while worker.poll():
        pass
    assert rows(worker.tasks[0]) == {b"a": b"2", b"bad": b"2"}
    worker.close()
    assert sink_of(cluster) == [b"a", b"bad", b"a", b"bad"]
    assert [headers(record)[handlers.OFFSET] for record in dead(cluster)] == ["1", "3"]
    assert headers(dead(cluster)[0])[handlers.EXCEPTION] == "store.errors.RecordRefusedError"


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_an_output_that_the_cluster_refuses_at_the_end_of_a_worker_keeps_no_neighbour_from_its_commit(
    guarantee: str,
) -> None:
    cluster = Cluster(pipeline(big), partitions=2)
    cluster.broker.create_topic(DEAD.topic, 1)
    cluster.feed(b"bad")
    cluster.feed(b"a", partition=1)
    configuration = config(
        production_exception_handler="continue",
        processing_guarantee=guarantee,
        commit_records=100,
        commit_interval_ms=50_000,
    )
    worker = cluster.worker(configuration, partitions=(0, 1))
    worker.poll()
    stops = iter([False, True])
    worker.run(lambda: next(stops))
    assert cluster.position() is None
    assert cluster.broker.committed_offsets("app")[TopicPartition("in", 1)] == 1
    run(cluster, configuration)
    assert (cluster.position(), len(dead(cluster))) == (1, 1)


def test_under_at_least_once_too_an_output_that_the_cluster_refuses_is_left_out() -> None:
    cluster = cluster_of(big, b"a", b"bad", b"b")
    run(cluster, config(production_exception_handler="continue", processing_guarantee="at_least_once"))
    assert cluster.position() == 3
    assert set(sink_of(cluster)) == {b"a", b"bad", b"b"}
    assert {headers(record)[handlers.OFFSET] for record in dead(cluster)} == {"1"}


def test_many_outputs_that_the_cluster_refuses_do_not_stop_a_worker() -> None:
    cluster = cluster_of(big, *[b"bad"] * 30)
    run(cluster, PRODUCTION)
    assert (cluster.position(), len(dead(cluster))) == (30, 30)


def test_an_output_to_the_topic_of_dead_letters_is_left_out_by_the_production_handler_alone() -> None:
    def process(context: Context, record: Record) -> None:
        if record.key == b"bad":
            raise DeserializationError("no JSON")
        context.forward(DEAD.topic, record.key, b"x" * 2_000_000)

    cluster = cluster_of(process, b"bad", b"a")
    cluster.topology = replace(cluster.topology, sinks=(DEAD.topic,))
    with pytest.raises(LogError, match=r"dead-0 is larger than its max\.message\.bytes"):
        run(cluster, config(deserialization_exception_handler="continue"))


def test_failures_between_which_a_worker_commits_do_not_stop_it() -> None:
    def committing(context: Context, record: Record) -> None:
        big(context, record)
        context.commit()

    cluster = cluster_of(committing, *[b"bad"] * 30)
    run(cluster, PRODUCTION)
    assert (cluster.position(), len(dead(cluster))) == (30, 30)


def test_an_output_that_the_cluster_refuses_stops_a_worker_by_default() -> None:
    cluster = Cluster(pipeline(big), [b"bad"])
    with pytest.raises(LogError, match=r"larger than its max\.message\.bytes"):
        run(cluster, StreamsConfig())
    assert cluster.position() is None


class Deciding:
    def handle_error(self, *_: object) -> Response:
        return Response.fail()


def test_a_handler_that_fails_stops_the_worker_at_once() -> None:
    cluster = Cluster(pipeline(big), [b"bad"])
    with pytest.raises(LogError, match=r"an output cannot be sent: .* larger than"):
        run(cluster, StreamsConfig(production_exception_handler=Deciding))


def test_a_record_for_a_changelog_is_never_left_out() -> None:
    def fat(context: Context, record: Record) -> None:
        context.store(STORE).put(record.key, b"x" * 2_000_000)

    cluster = cluster_of(fat, b"a")
    with pytest.raises(LogError, match="app-counts-changelog-0 is larger"):
        run(cluster, PRODUCTION)
    assert cluster.position() is None


class _Limited:
    """A producer whose client takes no values above a size, as librdkafka's `message.max.bytes` does."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def produce(self, topic: str, key: bytes | None, value: bytes | None, **options: Any) -> None:
        if value is not None and len(value) > 1_000_000:
            raise RecordTooLargeError("produce: Broker: Message size too large")
        self._producer.produce(topic, key, value, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


class _LimitedLog(SimLog):
    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> Any:
        return _Limited(super().producer(transactional_id, transaction_timeout_ms))


def test_an_output_that_the_client_refuses_is_left_out_without_an_abort() -> None:
    cluster = cluster_of(big, b"a", b"bad", b"a")
    with cluster.task(PRODUCTION, log=_LimitedLog(cluster.broker)) as task:
        apply(task, cluster.records())
        task.commit()
    assert sink_of(cluster) == [b"a", b"bad", b"a"]
    assert headers(dead(cluster)[0])[handlers.EXCEPTION] == "store.errors.RecordTooLargeError"
    cluster = cluster_of(big, b"bad")
    with (
        cluster.task(StreamsConfig(), log=_LimitedLog(cluster.broker)) as task,
        pytest.raises(RecordTooLargeError),
    ):
        apply(task, cluster.records())


class _Dated(_Limited):
    """A producer whose cluster takes no times above one, as `message.timestamp.after.max.ms` says."""

    LATEST = 10**6

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)
        self._too_new: list[Content] = []

    def produce(self, topic: str, key: bytes | None, value: bytes | None, **options: Any) -> None:
        if topic == DEAD.topic and options["timestamp"] > self.LATEST:
            self._too_new.append((topic, key, value, options["headers"]))
        else:
            self._producer.produce(topic, key, value, **options)

    def flush(self) -> Any:
        if self._too_new:
            refused, self._too_new = self._too_new, []
            raise RecordRefusedError("too new", refused, by_time=True)
        return self._producer.flush()


class _DatedLog(SimLog):
    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> Any:
        return _Dated(super().producer(transactional_id, transaction_timeout_ms))


def test_a_dead_letter_that_is_refused_for_its_time_has_the_time_of_day() -> None:
    cluster = cluster_of(poisoned)
    cluster.broker.append(SOURCE.topic, b"bad", b"v", partition=0, timestamp=10**15)
    run(cluster, CONTINUE, log=_DatedLog(cluster.broker))
    (letter,) = dead(cluster)
    assert letter.timestamp <= _Dated.LATEST
    assert (letter.value, headers(letter)[handlers.TIMESTAMP]) == (b"v", str(10**15))
    assert handlers.MESSAGE in headers(letter)


def test_of_a_batch_that_was_refused_only_the_record_at_fault_is_left_out() -> None:
    """A cluster refuses batches; each of its records is then sent alone."""
    cluster = cluster_of(big, b"a", b"bad", b"b")
    faults = Faults()
    refused = [
        ("out", b"a", b"1", ()),
        ("out", b"bad", b"1", ()),
        ("out", b"bad", b"x" * 2_000_000, ()),
        ("out", b"b", b"1", ()),
    ]
    faults.blame(refused, RecordRefusedError("a batch"))
    for left_out in (0, 1):
        with cluster.task(PRODUCTION, faults=faults) as task:
            if not left_out:
                with pytest.raises(LogError, match="larger"):
                    apply(task, cluster.records())
            else:
                apply(task, cluster.records())
                task.commit()
    assert sink_of(cluster) == [b"a", b"bad", b"b"]
    assert len(dead(cluster)) == 1


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_of_outputs_that_differ_in_their_headers_only_the_one_at_fault_is_left_out(guarantee: str) -> None:
    def twice(context: Context, record: Record) -> None:
        context.forward("out", record.key, b"v", headers=(("small", b"x"),))
        context.forward("out", record.key, b"v", headers=(("large", b"x" * 2_000_000),))

    cluster = cluster_of(twice, b"a")
    run(cluster, config(production_exception_handler="continue", processing_guarantee=guarantee))
    sent = cluster.broker.visible(SINK, IsolationLevel.READ_COMMITTED)
    assert {name for record in sent for name, _ in record.headers} == {"small"}


def test_a_task_by_itself_says_that_the_record_is_passed_over() -> None:
    cluster = cluster_of(poisoned, b"a", b"bad", b"a")
    with cluster.task(CONTINUE) as task:
        with pytest.raises(RecordFailedError, match="in-0 offset 1 raised ValueError, and it is passed over"):
            apply(task, cluster.records())
        task.abort()
        apply(task, cluster.records(task.position(SOURCE)))
        task.commit()
    assert cluster.output() == [(b"a", b"1"), (b"a", b"2")]


def test_nothing_is_remembered_of_a_record_that_was_passed_over_once_that_is_committed() -> None:
    cluster, faults = cluster_of(poisoned, b"a", b"bad", b"a"), Faults()
    with cluster.task(CONTINUE, faults=faults) as task:
        with pytest.raises(RecordFailedError):
            apply(task, cluster.records())
        task.abort()
        assert [*faults.skipped[SOURCE]] == [1]
        apply(task, cluster.records(task.position(SOURCE)))
        task.commit()
    assert not any(faults.skipped.values())


OWN = """
from store.streams.handlers import Response


class Outer:
    class Skips:
        def handle_error(self, context, error):
            return Response.resume()
"""


@pytest.mark.parametrize("path", ["{}.of.ours:Outer.Skips", "{}.of.ours.Skips"])
def test_a_handler_is_found_in_a_module_that_nobody_has_imported(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"errors_{uuid4().hex}"
    (tmp_path / package / "of").mkdir(parents=True)
    (tmp_path / package / "of" / "ours.py").write_text(f"{OWN}\n\nSkips = Outer.Skips\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = handlers.Handlers.of(config(processing_exception_handler=path.format(package)))
    assert made.processing is not None
    assert type(made.processing.handler).__name__ == "Skips"
    assert made.deserialization is None


def test_who_fails_says_of_which_record_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    context = ErrorHandlerContext(Record("in", 3, 7, b"k", b"v", 1, ()), "0_3", None)
    assert not LogAndFailExceptionHandler().handle_error(context, ValueError("no number")).resumes
    assert caplog.messages == ["task 0_3, record in-3 offset 7: ValueError: no number"]


def test_a_result_that_was_held_back_has_no_place_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    context = ErrorHandlerContext(handlers.result_of(b"k", b"v", 1), "0_3", None)
    LogAndFailExceptionHandler().handle_error(context, ValueError("no number"))
    assert caplog.messages == ["task 0_3, a result that was held back: ValueError: no number"]


def test_nothing_is_remembered_of_what_was_refused_once_that_is_committed() -> None:
    """A topic may take more later on, and a task that runs for months keeps none of what it has left out."""
    faults = Faults()
    one, other = (("out", b"k", value, ()) for value in (b"1", b"2"))
    faults.blame([one], RecordRefusedError("too large"))
    faults.blame([one, other], RecordRefusedError("one of them is too large"))
    assert faults.refused
    assert faults.suspects
    faults.committed({SOURCE: 1})
    assert not faults.refused
    assert not faults.suspects


CONTENTS: list[tuple[str, bytes | None, bytes | None, Headers]] = [
    ("out", None, b"x", ()),
    ("out", b"x", None, ()),
    ("out", b"x", b"", ()),
    ("out", b"", b"x", ()),
    ("out", None, None, ()),
    ("out", b"a", b"b\1c", ()),
    ("out", b"a\1b", b"c", ()),
    ("out", b"a", b"b", (("c", b"d"),)),
    ("out", b"a", b"b", (("c", None), ("d", None))),
    ("outa", b"b", b"", ()),
]


def test_an_output_is_taken_for_no_other_one_that_was_refused() -> None:
    """It would be left out without a word."""
    assert len({handlers.digest(*content) for content in CONTENTS}) == len(CONTENTS)
    one = CONTENTS[0]
    assert len({handlers.digest(*one, time) for time in (None, 0, 1, 11)}) == 4


RECORD = Record("in", 0, 0, b"k", b"v", 1, ())


def raised(said: str) -> None:
    raise ValueError(said)


def told_of(said: str) -> dict[str, str]:
    context = handlers.ErrorHandlerContext(RECORD, "0_0", "dead")
    with pytest.raises(ValueError) as caught:
        raised(said)
    return {
        name: (value or b"").decode()
        for name, value in handlers.dead_letter("dead", context, caught.value).headers
    }


def test_of_a_long_traceback_a_dead_letter_has_the_end_where_the_error_was_raised() -> None:
    def odd(left: int) -> None:
        even(left - 1)

    def even(left: int) -> None:
        if left:
            odd(left - 1)
        raise ValueError("at the bottom")

    context = handlers.ErrorHandlerContext(RECORD, "0_0", "dead")
    with pytest.raises(ValueError) as caught:
        even(200)
    told = dict(handlers.dead_letter("dead", context, caught.value).headers)[handlers.STACKTRACE] or b""
    assert told.endswith(b"ValueError: at the bottom")
    assert len(told) <= 8_192


@pytest.mark.parametrize(
    ("length", "told"),
    [(1_000, "x" * 1_000), (1_001, "x" * 1_000 + "… (1 more characters)")],
    ids=["whole", "cut"],
)
def test_a_message_of_a_thousand_characters_is_told_whole_and_a_longer_one_says_how_much_is_left_out(
    length: int, told: str
) -> None:
    assert told_of("x" * length)[handlers.MESSAGE] == told


def test_a_message_with_half_a_character_is_told_all_the_same() -> None:
    assert told_of("half \ud83d of it")[handlers.MESSAGE] == "half ? of it"


def test_a_record_that_is_to_be_passed_over_is_so_after_a_commit_of_what_lies_before_it() -> None:
    tried = []

    def process(context: Context, record: Record) -> None:
        tried.append(record.key)
        poisoned(context, record)

    cluster = cluster_of(process, b"a", b"bad", b"b")
    with cluster.task(CONTINUE) as task:
        with pytest.raises(RecordFailedError):
            apply(task, cluster.records())
        task.abort()
        apply(task, cluster.records()[:1])
        task.commit()
        apply(task, cluster.records(1))
        task.commit()
    assert tried == [b"a", b"bad", b"a", b"b"]


def test_many_records_that_are_passed_over_are_warned_of_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(poisoned, *[b"bad"] * 30)
    run(cluster, CONTINUE)
    assert len(dead(cluster)) == 30
    warned = [line for line in caplog.messages if "going on without it" in line]
    assert warned[0].endswith("going on without it")
    assert len(warned) == 1
    assert len([line for line in caplog.messages if "resuming from the last commit" in line]) == 1


def test_records_of_which_each_needs_a_new_incarnation_are_warned_of_now_and_then_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stores = (persistent_key_value_store(STORE, transactional=False),)
    cluster = cluster_of(poisoned, *[b"bad"] * 10, stores=stores)
    run(cluster, CONTINUE)
    assert len(dead(cluster)) == 10
    assert len([line for line in caplog.messages if "going on without it" in line]) == 1


class _Counts(LogAndContinueExceptionHandler):
    def __init__(self) -> None:
        self.asked = 0

    def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
        self.asked += 1
        return Response.fail() if self.asked > 3 else super().handle_error(context, error)


@pytest.mark.parametrize("transactional", [True, False])
def test_a_handler_that_gives_up_after_so_many_errors_can_count_them(transactional: bool) -> None:
    stores = (persistent_key_value_store(STORE, transactional=transactional),)
    cluster = cluster_of(poisoned, *[b"bad"] * 10, stores=stores)
    with pytest.raises(ValueError, match="bad record"):
        run(cluster, config(processing_exception_handler=_Counts))
    assert len(dead(cluster)) == 3


class Skips:
    def handle_error(self, *_: object) -> Response:
        return Response.resume()


@pytest.mark.parametrize("handler", ["continue", Skips])
def test_a_warning_that_was_put_off_counts_what_came_since(
    handler: object, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    asked = handlers.Handlers.of(config(processing_exception_handler=handler)).processing
    assert asked is not None
    at = Record("in", 0, 1, b"k", b"v", 1)
    for _ in range(3):
        asked.decide(ErrorHandlerContext(at, "0_0", None, clock.monotonic), ValueError("bad"))
        clock.now += 5.0
    assert [line.partition("without it")[2] for line in caplog.messages] == [
        "",
        "; 2 such since the last line",
    ]


def unreadable(*_: object) -> None:
    raise DeserializationError("no JSON")


@pytest.mark.parametrize(
    ("process", "of"),
    [
        (unreadable, "deserialization_exception_handler"),
        (poisoned, "processing_exception_handler"),
        (big, "production_exception_handler"),
    ],
)
def test_a_handler_of_ones_own_that_goes_on_is_warned_of_as_continue_is(
    process: Callable[[Context, Record], None], of: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    for handler in ("continue", Skips):
        run(cluster_of(process, *[b"bad"] * 3), config(**{of: handler}))
        said.append([text for text in caplog.messages if "going on without it" in text])
        caplog.clear()
    assert said[1] == said[0]
    assert len(said[0]) == 1
