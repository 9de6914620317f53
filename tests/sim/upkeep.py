"""Cleaning, retention, truncation and topics made anew: the same operations on a simulated and a real broker.

A sequence is a list of small tuples (`Op`); after each, both sides tell what they see. The simulated side runs the
cleaner whenever a real broker's would: when an append has closed a segment, and when a transaction that held the
cleaner up has ended. The real side waits until its cleaner has come as far.

What is compared: bounds and records at both isolation levels, the batches in the segment files of the compacted
topic, and the class of each error.

What cannot be compared is kept out of sequences. Batches of several records: the simulation has none, so every
record is flushed. Cleaning by the size of segments and by `max.compaction.lag.ms`: the simulated cleaner runs when
it is told to. How far retention goes within a segment: each record of that topic closes one. A delete retention
above 0, since the real clock would have to pass it. Which error a producer's `flush` raises in a topic made anew
inside its transaction: the real client says first that an abort is enough, and then that it is not. A topic that
is gone while records wait for it: a real client waits for minutes.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Protocol

from confluent_kafka import KafkaException
from confluent_kafka import Producer as ClientProducer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.partition import Kind
from store.errors import CrashproofError, FatalLogError, LogError, OutcomeUnknownError
from store.log import Log, Producer, Reader, TopicSpec
from store.log.kafka import KafkaLog
from store.log.kafka.client import LOGGER
from store.types import IsolationLevel, TopicPartition
from tests.sim.differential import ISOLATIONS, RETRIABLE, Answer, Comparison, await_end, until

Op = tuple[Any, ...]
"""A call and its arguments; `at` is an index into `topics_of`:

    put at key value old: one plain record, or with value None a tombstone; `old` ones are expired
    begin | send at key value | commit | abort | successor: of one transactional id
    roll at: a plain record that closes the segment before it
    delete_records at offset
    retain: let the retention of the topic EXPIRING strike
    recreate at partitions
    create at partitions: without deleting it first
    send_offsets at position
    committed at
"""

FATAL: Answer = ("error", FatalLogError.__name__)
UNKNOWN: Answer = ("error", OutcomeUnknownError.__name__)

COMPACTED, BOTH, EXPIRING = 0, 1, 2
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
OLD_MS = 1_000_000
_FOREVER = str(2**63 - 1)


def topics_of(name: str, retention_ms: int) -> list[TopicSpec]:
    compact = {
        "min.cleanable.dirty.ratio": "0.0001",
        "delete.retention.ms": "0",
        "segment.ms": str(HOUR_MS),
        "message.timestamp.after.max.ms": _FOREVER,
        "retention.ms": "-1",
    }
    return [
        TopicSpec(f"{name}-c", 1, {**compact, "cleanup.policy": "compact"}),
        TopicSpec(f"{name}-b", 1, {**compact, "cleanup.policy": "compact,delete"}),
        TopicSpec(
            f"{name}-e",
            1,
            {
                "cleanup.policy": "delete",
                # Each record that is later than the one before closes its segment.
                "segment.ms": "1",
                "segment.index.bytes": "4096",
                "message.timestamp.after.max.ms": _FOREVER,
                "retention.ms": str(retention_ms),
            },
        ),
    ]


class Cluster(Protocol):
    """What a side does to its cluster from outside."""

    def append(self, tp: TopicPartition, key: bytes, value: bytes | None, timestamp: int, /) -> None: ...

    def delete_records(self, tp: TopicPartition, offset: int, /) -> int:
        """Returns the start of the log; `LogError` when it is refused."""

    def retain(self, tp: TopicPartition, /) -> None:
        """Let DAY_MS of retention strike once."""

    def layout(self, tp: TopicPartition, /) -> list[tuple[int, str]]:
        """Offset and kind of each batch: record, empty or marker."""


class Side:
    """One cluster, driven by one sequence. One thread."""

    def __init__(self, name: str, log: Log, cluster: Cluster, now_ms: int, retention_ms: int) -> None:
        self.name = name
        self.topics = topics_of(name, retention_ms)
        self.places = [TopicPartition(topic.name, 0) for topic in self.topics]
        self.log = log
        self.cluster = cluster
        self.now_ms = now_ms
        self.rolled = 0
        self.admin = log.admin()
        self.reader: Reader = log.reader()
        self.admin.create_topics(self.topics)
        self.producer: Producer = self._incarnation()

    def close(self) -> None:
        self.producer.close()
        self.reader.close()
        self.admin.close()

    def apply(self, step: int, op: Op) -> Answer:
        try:
            return ("ok", *self._apply(step, op))
        except CrashproofError as error:
            return ("error", type(error).__name__)

    def see(self, at: int) -> Answer:
        """Everything that can be seen of one topic."""
        try:
            return self._see(self.places[at], at == COMPACTED)
        except CrashproofError as error:
            return ("error", type(error).__name__)

    def _see(self, tp: TopicPartition, batches: bool) -> Answer:
        seen: list[object] = []
        for isolation in ISOLATIONS:
            bounds = self.reader.offsets(tp, isolation)
            # By a reader of its own: one that reads an offset again may give what it had before the cleaning.
            with closing(self.log.reader()) as reader:
                fetch = reader.read(tp, bounds.earliest, 1_000, isolation)
            records = [(record.offset, record.key, record.value) for record in fetch.records]
            seen += [tuple(bounds), fetch.next_offset, records]
        if batches:
            seen.append(self.cluster.layout(tp))
        return tuple(seen)

    def _apply(self, step: int, op: Op) -> tuple[object, ...]:
        match op:
            case ("put", int(at), str(key), value, bool(old)):
                # Some older would close the segments of the other topics.
                timestamp = (OLD_MS if old and at == EXPIRING else self.now_ms) + 10 * step
                self.cluster.append(self.places[at], key.encode(), _bytes(value), timestamp)
            case ("roll", int(at)):
                self.rolled += 1
                self.cluster.append(self.places[at], b"roll", b"", self.now_ms + self.rolled * 2 * HOUR_MS)
            case ("begin",):
                self.producer.begin_transaction()
            case ("send", int(at), str(key), value):
                topic = self.topics[at].name
                self.producer.produce(topic, key.encode(), _bytes(value), partition=0, timestamp=self.now_ms)
                return tuple(self.producer.flush().values())
            case ("send_commit", int(at), str(key), value):
                topic = self.topics[at].name
                self.producer.produce(topic, key.encode(), _bytes(value), partition=0, timestamp=self.now_ms)
                self.producer.commit_transaction()
            case ("commit",):
                self.producer.commit_transaction()
            case ("abort",):
                self.producer.abort_transaction()
            case ("successor",):
                self.producer = self._incarnation()
            case ("delete_records", int(at), int(offset)):
                return (self.cluster.delete_records(self.places[at], offset),)
            case ("retain",):
                self.cluster.retain(self.places[EXPIRING])
            case ("recreate", int(at), int(partitions)):
                self.admin.delete_topics([self.topics[at].name])
                self._create(at, partitions)
            case ("create", int(at), int(partitions)):
                self._create(at, partitions)
            case ("send_offsets", int(at), int(position)):
                self.producer.send_offsets(self.name, {self.places[at]: position})
            case ("committed", int(at)):
                return (self.reader.committed(self.name, self.places[at]),)
            case _:
                raise ValueError(f"no such operation: {op}")
        return ()

    def _create(self, at: int, partitions: int) -> None:
        self.topics[at] = self.topics[at]._replace(partitions=partitions)
        self.admin.create_topics([self.topics[at]])

    def _incarnation(self) -> Producer:
        producer = self.log.producer(self.name, 600_000)
        producer.init_transactions()
        return producer


class SimCluster:
    """The simulated cluster, with the segments that a real one would have made of the same appends."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker
        self.segments: dict[TopicPartition, list[int]] = {}

    def append(self, tp: TopicPartition, key: bytes, value: bytes | None, timestamp: int, /) -> None:
        offset = self.broker.append(tp.topic, key, value, partition=tp.partition, timestamp=timestamp)
        if key == b"roll":
            self.segments.setdefault(tp, []).append(offset)

    def delete_records(self, tp: TopicPartition, offset: int, /) -> int:
        return self.broker.delete_records(tp, offset)

    def retain(self, tp: TopicPartition, /) -> None:
        self.broker.retain(tp)

    def layout(self, tp: TopicPartition, /) -> list[tuple[int, str]]:
        marker = (Kind.COMMIT, Kind.ABORT)
        return [
            (entry.offset, "marker" if entry.kind in marker else entry.kind.value)
            for entry in self.broker.entries(tp)
        ]

    def clean(self, tp: TopicPartition) -> None:
        """What the cleaner does by itself: whole segments, up to the active one or the last stable offset."""
        stable = self.broker.last_stable_offset(tp)
        if self.broker.high_watermark(tp) == 0:
            self.segments.pop(tp, None)
        end = max((base for base in self.segments.get(tp, ()) if base <= stable), default=0)
        self.broker.compact(tp, end)


class KafkaCluster:
    """A real cluster, for one sequence after the other."""

    def __init__(self, name: str, bootstrap: str, directory: Path, deadline_s: float) -> None:
        self.log = KafkaLog(bootstrap, timeout=deadline_s)
        self.reader = self.log.reader()
        self.canary = TopicPartition(f"{name}-canary", 0)
        self.data = directory / "data"
        self.deadline_s = deadline_s
        config: dict[str, Any] = {"bootstrap.servers": bootstrap, "logger": LOGGER}
        self.client = AdminClient(config)
        # Without a producer id, as the plain records of the simulation.
        # It sends a record again when no answer came in time, and there it is then twice.
        timeout_ms = int(deadline_s * 1000)
        patient = {
            "request.timeout.ms": timeout_ms,
            "socket.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
        }
        self.plain = ClientProducer({**config, **patient, "linger.ms": 0})
        admin = self.log.admin()
        admin.create_topics([TopicSpec(self.canary.topic, 1, {"retention.ms": "-1"})])
        admin.close()

    def close(self) -> None:
        self.reader.close()
        self.plain.close()

    def append(self, tp: TopicPartition, key: bytes, value: bytes | None, timestamp: int, /) -> None:
        failed: list[object] = []
        self.plain.produce(
            tp.topic,
            value,
            key,
            tp.partition,
            on_delivery=lambda error, _message: failed.append(error) if error is not None else None,
            timestamp=timestamp,
        )
        if self.plain.flush(self.deadline_s) or failed:
            raise LogError(f"a plain record for {tp} did not arrive: {failed}")

    def delete_records(self, tp: TopicPartition, offset: int, /) -> int:
        (future,) = self.client.delete_records(
            [ClientPartition(tp.topic, tp.partition, offset)], request_timeout=self.deadline_s
        ).values()
        try:
            return int(future.result().low_watermark)
        except KafkaException as error:
            raise LogError(str(error)) from error

    def retain(self, tp: TopicPartition, /) -> None:
        # A broker takes settings in their order: where the canary's counts, the other one's does.
        for topic in (tp.topic, self.canary.topic):
            self._set_retention(topic, DAY_MS)
        # A round of the broker goes through all logs. The first that takes a canary may have begun before.
        for _ in range(2):
            self.append(self.canary, b"", b"", OLD_MS)
            end = self.reader.offsets(self.canary, IsolationLevel.READ_UNCOMMITTED).end
            for _ in until(self.deadline_s):
                if self.reader.offsets(self.canary, IsolationLevel.READ_UNCOMMITTED).earliest >= end:
                    break
            else:
                raise LogError(f"retention did not strike within {self.deadline_s:g} s")
        for topic in (self.canary.topic, tp.topic):
            self._set_retention(topic, -1)

    def layout(self, tp: TopicPartition, /) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for file in sorted((self.data / f"{tp.topic}-{tp.partition}").glob("*.log")):
            try:
                data = file.read_bytes()
            except FileNotFoundError as error:
                # The broker has just replaced or deleted it.
                raise LogError(str(error)) from error
            at = 0
            while at + _HEADER.size <= len(data):
                base, length, attributes, last, count = _HEADER.unpack_from(data, at)
                if length == 0:
                    break
                kind = "marker" if attributes & 0x20 else "record" if count else "empty"
                found.append((base + last, kind))
                at += 12 + length
        return found

    def cleaned(self, tp: TopicPartition) -> int:
        """The first offset that the cleaner has not covered."""
        try:
            lines = (self.data / "cleaner-offset-checkpoint").read_text().splitlines()
        except FileNotFoundError:
            return 0
        for line in lines[2:]:
            topic, partition, offset = line.split()
            if (topic, int(partition)) == tp:
                return int(offset)
        return 0

    def _set_retention(self, topic: str, ms: int) -> None:
        entry = ConfigEntry("retention.ms", str(ms), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        asked = self.client.incremental_alter_configs([resource], request_timeout=self.deadline_s)
        for future in asked.values():
            future.result()


_HEADER = struct.Struct(">qi9xhi30xi")
"""Of a batch: base offset, length, attributes, last offset delta, number of records."""


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def compare(name: str, ops: Sequence[Op], real_cluster: KafkaCluster) -> Comparison:
    """Run `ops` on a new simulated cluster and on topics of the real one, until the first difference."""
    now_ms = int(time.time() * 1000)
    broker = SimBroker(now=now_ms)
    sim_cluster = SimCluster(broker)
    simulated = Side("sim", SimLog(broker), sim_cluster, now_ms, DAY_MS)
    # A real broker's retention runs all the time, so it is allowed something to do only while it is asked to.
    real = Side(name, real_cluster.log, real_cluster, now_ms, -1)
    done: list[Op] = []
    ours: list[Answer] = []
    theirs: list[Answer] = []

    def catch_up(ended: bool) -> None:
        """Wait until the real side has written what is acknowledged, and cleaned as far."""
        for at, (sim_tp, tp) in enumerate(zip(simulated.places, real.places, strict=True)):
            if ended:
                end = broker.high_watermark(sim_tp)
                await_end(real.reader, tp, end, real_cluster.deadline_s)
            if at != EXPIRING:
                sim_cluster.clean(sim_tp)
                goal = broker.cleaned_offset(sim_tp)
                if at == COMPACTED or broker.start_offset(sim_tp) == 0:
                    for _ in until(real_cluster.deadline_s):
                        if real_cluster.cleaned(tp) == goal:
                            break
                    else:
                        raise LogError(f"{tp} is cleaned to {real_cluster.cleaned(tp)}, not to {goal}")

    def answered(step: int, op: Op) -> tuple[Answer, Answer]:
        expected, got = simulated.apply(step, op), real.apply(step, op)
        if op[0] == "committed" and expected != RETRIABLE:
            for _ in until(real_cluster.deadline_s):
                if got != RETRIABLE:
                    break
                got = real.apply(step, op)
        if op[0] == "send_commit" and expected == FATAL and got == UNKNOWN:
            # The client heard of it when the commit was on its way.
            got = expected
        return expected, got

    def looked_at(at: int) -> tuple[Answer, Answer]:
        expected = simulated.see(at)
        seen: Answer = ()
        for _ in until(real_cluster.deadline_s):
            seen = real.see(at)
            if seen == expected:
                break
        return expected, seen

    try:
        for step, op in enumerate(ops):
            answers = answered(step, op)
            if answers[0] == answers[1]:
                try:
                    catch_up(op[0] in ("commit", "abort", "successor", "send_commit"))
                except LogError as error:
                    answers = answers[0], ("error", f"{answers[1]}, but {error}")
            done.append(op)
            ours.append(answers[0])
            theirs.append(answers[1])
            if answers[0] != answers[1]:
                return Comparison(done, ours, theirs)
            for at in reached(op):
                expected, seen = looked_at(at)
                if expected != seen:
                    done.append(("see", at))
                    ours.append(expected)
                    theirs.append(seen)
                    return Comparison(done, ours, theirs)
    finally:
        real.close()
    return Comparison(done, ours, theirs)


def reached(op: Op) -> Sequence[int]:
    """The topics that may look different after a step."""
    match op:
        case ("begin",) | ("send_offsets", *_) | ("committed", *_):
            return ()
        case ("retain",):
            return (EXPIRING,)
        case (_, int(at), *_):
            return (at,)
    return (COMPACTED, BOTH, EXPIRING)


def generate(random: Random) -> list[Op]:
    """A sequence of 8 to 18 steps."""
    ops: list[Op] = []
    is_open = False
    touched: set[int] = set()
    for _ in range(random.randint(8, 18)):
        key = random.choice("abc")
        value = random.choice(("1", "2", None))
        at = random.choice((COMPACTED, COMPACTED, BOTH, EXPIRING))
        choices: list[tuple[int, Callable[[], Op]]] = [
            (4, lambda at=at, key=key, value=value: ("put", at, key, value, random.random() < 0.6)),  # type: ignore[misc]
            (5, lambda: ("roll", random.choice((COMPACTED, COMPACTED, BOTH)))),
            (
                1,
                lambda: ("delete_records", random.choice((COMPACTED, BOTH, EXPIRING)), random.randint(-1, 6)),
            ),
            (1, lambda: ("retain",)),
            (1, lambda: ("successor",)),
        ]
        if is_open:
            choices += [
                (9, lambda at=at, key=key, value=value: ("send", at, key, value)),  # type: ignore[misc]
                (3, lambda: ("commit",)),
                (3, lambda: ("abort",)),
            ]
        else:
            choices += [(6, lambda: ("begin",))]
        if at not in touched:
            choices += [
                (1, lambda at=at: ("recreate", at, random.randint(1, 2))),  # type: ignore[misc]
                (1, lambda at=at: ("create", at, 3)),  # type: ignore[misc]
            ]
        op = random.choices([make for _, make in choices], [weight for weight, _ in choices])[0]()
        if op[0] == "create":
            op = (*op[:2], 3)
        ops.append(op)
        match op[0]:
            case "begin":
                is_open = True
            case "send":
                touched.add(op[1])
            case "commit" | "abort" | "successor":
                is_open = False
                touched.clear()
    return ops


FACTS: dict[str, list[Op]] = {
    "cleanings leave the newest of each key, then no tombstone, then no marker": [
        ("begin",),
        ("send", COMPACTED, "a", "1"),
        ("send", COMPACTED, "b", "1"),
        ("commit",),
        ("begin",),
        ("send", COMPACTED, "a", "x"),
        ("send", COMPACTED, "c", "x"),
        ("abort",),
        ("begin",),
        ("send", COMPACTED, "a", "2"),
        ("send", COMPACTED, "b", None),
        ("commit",),
        *[("roll", COMPACTED)] * 4,
        ("begin",),
        ("send", COMPACTED, "z", "1"),
        ("commit",),
        *[("roll", COMPACTED)] * 3,
    ],
    "an open transaction holds the cleaner up": [
        ("put", COMPACTED, "a", "1", False),
        ("put", COMPACTED, "a", "2", False),
        ("roll", COMPACTED),
        ("begin",),
        ("send", COMPACTED, "a", "3"),
        ("put", COMPACTED, "b", "1", False),
        ("put", COMPACTED, "b", "2", False),
        ("roll", COMPACTED),
        ("roll", COMPACTED),
        ("commit",),
        ("roll", COMPACTED),
    ],
    "the marker of a successor stays as the newest epoch": [
        ("begin",),
        ("send", COMPACTED, "a", "1"),
        ("successor",),
        *[("roll", COMPACTED)] * 4,
        ("begin",),
        ("send", COMPACTED, "a", "1"),
        ("commit",),
        *[("roll", COMPACTED)] * 3,
    ],
    "records are deleted beyond an open transaction, and never under compaction alone": [
        ("delete_records", COMPACTED, 0),
        ("begin",),
        ("send", BOTH, "a", "1"),
        ("put", BOTH, "a", "2", False),
        ("delete_records", BOTH, 1),
        ("delete_records", BOTH, 0),
        ("delete_records", BOTH, -1),
        ("delete_records", BOTH, 3),
        ("put", BOTH, "a", "3", False),
        ("abort",),
        ("put", BOTH, "a", "4", False),
    ],
    "retention takes what is old, also of an open transaction, up to the first that is not": [
        ("put", EXPIRING, "a", "1", True),
        ("put", EXPIRING, "a", "2", True),
        ("put", EXPIRING, "a", "3", False),
        ("put", EXPIRING, "a", "4", True),
        ("retain",),
        ("begin",),
        ("send", EXPIRING, "a", "5"),
        ("retain",),
        ("commit",),
        ("retain",),
    ],
    "everything can expire, and the end stays": [
        ("put", EXPIRING, "a", "1", True),
        ("put", EXPIRING, "a", "2", True),
        ("retain",),
        ("put", EXPIRING, "a", "3", False),
    ],
    "a topic made anew is empty, and its positions are gone, also pending ones": [
        ("put", EXPIRING, "a", "1", False),
        ("begin",),
        ("send_offsets", EXPIRING, 1),
        ("commit",),
        ("committed", EXPIRING),
        ("begin",),
        ("send_offsets", EXPIRING, 2),
        ("create", EXPIRING, 2),
        ("recreate", EXPIRING, 2),
        ("committed", EXPIRING),
        ("commit",),
        ("committed", EXPIRING),
        ("put", EXPIRING, "a", "2", False),
    ],
    "the marker of a deleted topic lands in its successor": [
        ("begin",),
        ("send", EXPIRING, "a", "1"),
        ("send", EXPIRING, "a", "2"),
        ("recreate", EXPIRING, 1),
        ("commit",),
        ("begin",),
        ("send_commit", EXPIRING, "a", "3"),
        ("successor",),
        ("begin",),
        ("send", EXPIRING, "a", "4"),
        ("commit",),
    ],
    "a producer goes on in a topic made anew inside and between its transactions": [
        ("begin",),
        ("send", EXPIRING, "a", "1"),
        ("recreate", EXPIRING, 1),
        ("send", EXPIRING, "a", "2"),
        ("commit",),
        ("recreate", EXPIRING, 1),
        ("begin",),
        ("send", EXPIRING, "a", "3"),
        ("abort",),
    ],
}
