"""Outputs that a real broker and its client refuse: what a handler lets be left out, exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.worlds.local.broker import LocalBroker
from store.clock import SystemClock
from store.config import Guarantee, StreamsConfig
from store.errors import DeserializationError, LogError
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.recovery.directory import StateDirectory
from store.streams.context import Context
from store.streams.handlers import ErrorHandlerContext, Response, dead_letter
from store.streams.topology import Topology
from store.streams.worker import Worker
from store.types import IsolationLevel, Record, TopicPartition
from tests.waiting import settle

RECORDS = 40
BAD = (7, 8, 23)
NEVER_MS = 600_000
HOUR_MS = 3_600_000
SELDOM: dict[str, Any] = {
    "commit_interval_ms": NEVER_MS // 2,
    "transaction_timeout_ms": NEVER_MS,
    "commit_records": RECORDS,
}


def outputs(log: KafkaLog, topic: str) -> list[tuple[bytes | None, Mapping[str, bytes | None]]]:
    """Keys and headers of what is committed."""
    reader, place = log.reader(), TopicPartition(topic, 0)
    try:
        settle(reader, place)
        records = reader.read(place, 0, 1_000, IsolationLevel.READ_COMMITTED).records
        return [(record.key, dict(record.headers)) for record in records]
    finally:
        reader.close()


def run(
    topology: Topology,
    specs: list[TopicSpec],
    config: StreamsConfig,
    log: KafkaLog,
    directory: Path,
    values: list[bytes],
) -> None:
    """Process these values, with what the topology writes to."""
    (source,) = topology.sources
    admin = log.admin()
    admin.create_topics([TopicSpec(source, 1), *specs, *topology.internal_topics(1)])
    admin.close()
    producer = log.plain_producer()
    now = int(time.time() * 1000)
    for number, value in enumerate(values):
        producer.produce(source, b"%d" % number, value, partition=0, timestamp=now + number)
    producer.flush()
    producer.close()
    worker = Worker(topology, [0], log, StateDirectory(directory, "app"), config, SystemClock())
    try:
        while 0 not in worker.tasks or worker.tasks[0].committed_position(TopicPartition(source, 0)) < len(
            values
        ):
            worker.poll()
    finally:
        worker.close()


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
@pytest.mark.parametrize(
    "why",
    [
        "too large for the broker",
        "too large by its headers",
        "too large for the client",
        "too new",
        "of time 0",
    ],
)
def test_what_is_refused_is_left_out_and_all_else_arrives(
    log: KafkaLog, unique: Callable[[str], str], tmp_path: Path, why: str, guarantee: Guarantee
) -> None:
    """What is too new, or has large headers, has the key and value of others that are not."""
    name = unique("refused")
    source, sink, dead = f"{name}-in", f"{name}-out", f"{name}-dead"
    large = Random(7).randbytes(2_000_000 if why.endswith("client") else 20_000)

    def process(context: Context, record: Record) -> None:
        counts = context.store("counts")
        number = int(counts.get(b"all") or 0)
        counts.put(b"all", b"%d" % (number + 1))
        bad = record.offset in BAD
        if why in ("too new", "of time 0"):
            odd = record.timestamp + 10 * HOUR_MS if why == "too new" else 0
            made = ("made of", b"%d" % record.offset)
            context.forward(
                sink, b"same", b"same", timestamp=odd if bad else record.timestamp, headers=(made,)
            )
        elif why == "too large by its headers":
            made = ("made of", b"%d" % record.offset)
            context.forward(sink, b"same", b"same", headers=(made, ("large", large if bad else b"")))
        else:
            context.forward(sink, record.key, large if bad else b"%d" % number)

    topology = Topology(name, (source,), (sink,), ("counts",), process)
    limits = {"max.message.bytes": "10000", "message.timestamp.after.max.ms": str(HOUR_MS)}
    config = StreamsConfig(
        processing_guarantee=guarantee,
        production_exception_handler="continue",
        errors_dead_letter_queue_topic_name=dead,
        **SELDOM,
    )
    specs = [TopicSpec(sink, 1, limits), TopicSpec(dead, 1)]
    run(topology, specs, config, log, tmp_path, [b"v"] * RECORDS)
    arrived = [headers.get("made of", key) for key, headers in outputs(log, sink)]
    good = [b"%d" % number for number in range(RECORDS) if number not in BAD]
    letters = [headers["__streams.errors.offset"] for _, headers in outputs(log, dead)]
    if guarantee is Guarantee.EXACTLY_ONCE_V2:
        assert arrived == good
        assert letters == [b"%d" % number for number in BAD]
    else:
        assert set(arrived) == set(good)
        assert set(letters) == {b"%d" % number for number in BAD}


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
def test_a_changelog_that_takes_small_batches_alone_takes_all_changes_in_the_end(
    log: KafkaLog, unique: Callable[[str], str], tmp_path: Path, guarantee: Guarantee
) -> None:
    name = unique("batches")
    source = f"{name}-in"

    def process(context: Context, record: Record) -> None:
        context.store("kept").put(record.key, record.value)

    topology = Topology(name, (source,), (), ("kept",), process)
    (changelog,) = topology.internal_topics(1)
    limited = changelog._replace(config={**changelog.config, "max.message.bytes": "5000"})
    admin = log.admin()
    admin.create_topics([limited])
    admin.close()
    config = StreamsConfig(processing_guarantee=guarantee, **SELDOM)
    run(topology, [], config, log, tmp_path, [b"v" * 500] * RECORDS)
    assert [key for key, _ in outputs(log, changelog.name)][-RECORDS:] == [
        b"%d" % number for number in range(RECORDS)
    ]


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
def test_dead_letters_that_are_too_large_are_sent_without_the_value(
    log: KafkaLog, unique: Callable[[str], str], tmp_path: Path, guarantee: Guarantee
) -> None:
    name = unique("buried")
    source, sink, dead = f"{name}-in", f"{name}-out", f"{name}-dead"

    def process(context: Context, record: Record) -> None:
        if record.offset in BAD:
            raise DeserializationError(f"no number: {record.value!r}")
        context.forward(sink, record.key, record.value)

    config = StreamsConfig(
        processing_guarantee=guarantee,
        deserialization_exception_handler="continue",
        errors_dead_letter_queue_topic_name=dead,
        **SELDOM,
    )
    large = Random(7).randbytes(20_000)
    values = [large if number in BAD else b"v" for number in range(RECORDS)]
    topology = Topology(name, (source,), (sink,), ("counts",), process)
    specs = [TopicSpec(sink, 1), TopicSpec(dead, 1, {"max.message.bytes": "10000"})]
    run(topology, specs, config, log, tmp_path, values)
    assert {key for key, _ in outputs(log, sink)} == {b"%d" % at for at in range(RECORDS) if at not in BAD}
    letters = [(key, headers["__streams.errors.omitted"]) for key, headers in outputs(log, dead)]
    if guarantee is Guarantee.EXACTLY_ONCE_V2:
        assert letters == [(b"%d" % number, b"value") for number in BAD]
    else:
        assert set(letters) == {(b"%d" % number, b"value") for number in BAD}


def test_at_least_once_outputs_that_are_refused_when_sent_alone_are_left_out_by_one_new_incarnation(
    broker: LocalBroker, unique: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = unique("refused")
    source, sink = f"{name}-in", f"{name}-out"

    def process(context: Context, record: Record) -> None:
        large = Random(record.offset).randbytes(20_000)
        context.forward(sink, record.key, large if record.offset in BAD else b"v")

    topology = Topology(name, (source,), (sink,), (), process)
    config = StreamsConfig(
        processing_guarantee=Guarantee.AT_LEAST_ONCE, production_exception_handler="continue", **SELDOM
    )
    # All that is sent between two commits is one batch.
    log = KafkaLog(broker.bootstrap, config={"linger.ms": 60_000})
    run(
        topology,
        [TopicSpec(sink, 1, {"max.message.bytes": "10000"})],
        config,
        log,
        tmp_path,
        [b"v"] * RECORDS,
    )
    assert [int(key or b"") for key, _ in outputs(log, sink)] == [
        number for number in range(RECORDS) if number not in BAD
    ]
    assert len([line for line in caplog.messages if "starting a new incarnation" in line]) == 1


def unreadable(_context: Context, _record: Record) -> None:
    raise DeserializationError("no JSON")


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
def test_a_topic_of_ones_own_dead_letters_that_does_not_exist_ends_the_worker_at_the_first_one(
    log: KafkaLog, unique: Callable[[str], str], tmp_path: Path, guarantee: Guarantee
) -> None:
    name = unique("nowhere")
    asked: list[int] = []

    class Buries:
        def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
            asked.append(context.offset)
            return Response.resume([dead_letter(f"{name}-dead", context, error)])

    topology = Topology(name, (f"{name}-in",), (), (), unreadable)
    config = StreamsConfig(processing_guarantee=guarantee, deserialization_exception_handler=Buries, **SELDOM)
    with pytest.raises(LogError, match=rf"topic {name}-dead does not exist .*Create it, or check the name"):
        run(topology, [], config, log, tmp_path, [b"v"])
    assert asked == [0]


def test_a_topic_of_ones_own_dead_letters_may_be_made_after_the_start(
    log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("late")

    class Buries:
        def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
            admin = log.admin()
            admin.create_topics([TopicSpec(f"{name}-dead", 1)])
            admin.close()
            return Response.resume([dead_letter(f"{name}-dead", context, error)])

    topology = Topology(name, (f"{name}-in",), (), (), unreadable)
    config = StreamsConfig(deserialization_exception_handler=Buries, **SELDOM)
    run(topology, [], config, log, tmp_path, [b"v"])
    assert [key for key, _ in outputs(log, f"{name}-dead")] == [b"0"]
