"""Readings of sensors, some of which cannot be read, or are refused, or have no time of their own, by the DSL.

Input, keyed by sensor: a number. One that can be divided by three has no time of its own: it has the partition time,
the latest of those that were read before, refused ones among them. A five is of a negative time, and passed over. Text
cannot be read, and its time counts for nothing.

Output, keyed by sensor: in `output`, all in one partition, its how manieth reading that is, and the stream time; so
what one task has not committed hides what another has. In `dead`, with headers that say why and of which record, what
cannot be read; negative ones, which are refused once they have been counted and forwarded; sevens, of which an output
cannot be written; elevens, of which the cluster refuses one, since it is too long; and copies of those that are
suspiciously large.

What is refused leaves nothing behind but that, and its time: the stream time, which is the partition time too, goes on
with it. The processor keeps that time in its store with the next reading that is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import KEYED, Headers, InputRecord, Output, Sample, State, Stores
from store.errors import DeserializationError, RecordRefusedError, SerdeError
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import StreamsBuilder
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.streams.handlers import (
    EXCEPTION,
    MESSAGE,
    OFFSET,
    PARTITION,
    STACKTRACE,
    TIMESTAMP,
    TOPIC,
    DeadLetter,
    ErrorHandlerContext,
    LogAndContinueExceptionHandler,
    Response,
)
from store.streams.timestamps import ConsumedRecord
from store.streams.topology import Topology

COUNTED = "counted"
NOW = "now"
TIMES = "times"
LARGE = 8
PASSED_OVER = 5
NO_TIME = -1
UNWRITABLE = 7
TOO_LONG = 11
MOST_BYTES = 20_000
"""Of a record in `output`, and of those that are sent together."""
EARLIEST = 1
"""The client takes 0 for no time at all."""
READABLE: JsonSerde[int] = JsonSerde(int)


class RefusedError(Exception):
    """A reading is not taken."""


class Bury(LogAndContinueExceptionHandler):
    """An `ExceptionHandler` that goes on, with dead letters that say the same on every machine."""

    why: ClassVar[str]
    of: ClassVar[type[Exception] | tuple[type[Exception], ...]]

    def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
        if not isinstance(error, self.of):
            return Response.fail()
        topic = f"{context.topic.removesuffix('-input')}-dead"
        response = super().handle_error(replace(context, dead_letter_topic=topic), error)
        return Response.resume(map(self._alike, response.dead_letters))

    def _alike(self, letter: DeadLetter) -> DeadLetter:
        headers = [
            (name, said.rpartition(b"-")[2] if said is not None and name == TOPIC else said)
            for name, said in letter.headers
            if name not in (MESSAGE, STACKTRACE)
        ]
        return letter._replace(headers=(*headers, ("why", self.why.encode())))


class BuryUnreadable(Bury):
    """Of what cannot be deserialized."""

    why = "unreadable"
    of = DeserializationError


class BuryRefused(Bury):
    """Of what processing raises about."""

    why = "refused"
    of = RefusedError


class BuryUnwritable(Bury):
    """Of an output that cannot be serialized, or that the cluster refuses."""

    why = "unwritable"
    of = SerdeError, RecordRefusedError


def time_of(record: ConsumedRecord, partition_time: int) -> int:
    if record.value == PASSED_OVER:
        return NO_TIME
    return max(record.timestamp if has_time(record.value) else partition_time, EARLIEST)


def has_time(value: int) -> bool:
    return value % 3 != 0


class Count:
    """A processor that finds out late what it does not take."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.counted = context.store(COUNTED)

    def process(self, record: StreamRecord) -> None:
        number, now = (self.counted.get(record.key) or 0) + 1, self.context.stream_time_ms
        self.counted.put(record.key, number)
        self.counted.put(NOW, now)
        self.context.forward([number, now])
        if record.value < 0:
            raise RefusedError(f"a reading of {record.value}")


def is_unwritable(_key: str, value: int) -> bool:
    return value == UNWRITABLE


def something(_value: int) -> object:
    return object()


def is_told_at_length(_key: str, value: int) -> bool:
    return value == TOO_LONG


def at_length(_value: int) -> str:
    return "far " * MOST_BYTES


def is_large(_key: str, value: int) -> bool:
    return value >= LARGE


def the_first(_key: str, _value: int) -> int:
    return 0


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "readings"
    summary = (
        "Records that cannot be read, or are refused, and go to a dead-letter topic; others without a time."
    )
    keys = KEYED
    # Where a store has no transactions, what is refused begins a new incarnation of the task, in a process that may be
    # about to end: what it leaves is that of a crash, and looks like that of an end in order.
    settings: ClassVar[Mapping[str, Any]] = {
        "default.dsl.store": "txn_rocksDB",
        "statestore.transactional.enabled": True,
        "processing.guarantee": "exactly_once_v2",
        "deserialization.exception.handler": "scenarios.readings.BuryUnreadable",
        "processing.exception.handler": "scenarios.readings.BuryRefused",
        "production.exception.handler": "scenarios.readings.BuryUnwritable",
    }
    # An attempt of Spark ends with what is refused, and forgets what was decided about it.
    runtimes = ("worker", "streams")
    aborts = True
    noted: ClassVar[frozenset[str]] = frozenset({TIMES})
    topic_settings: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "output": {"max.message.bytes": str(MOST_BYTES)}
    }

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        builder.add_state_store(stores.key_value(COUNTED, serdes=(StrSerde(), JsonSerde())))
        readings = builder.stream(
            f"{application_id}-input", value_serde=READABLE, timestamp_extractor=time_of
        )
        readings.process_values(Count, COUNTED).to(f"{application_id}-output", partitioner=the_first)
        readings.filter(is_unwritable).map_values(something).to(f"{application_id}-output")
        readings.filter(is_told_at_length).map_values(at_length).to(f"{application_id}-output")
        readings.filter(is_large).to(f"{application_id}-dead")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        value = random.choice((0, 3, 6, 9, 1, 2, 4, 5, 7, 8, 10, 11, -1, -2, -3, "?"))
        headers = (("by", random.choice(("radio", "wire"))),) if random.random() < 0.3 else ()
        return Sample(random.choice(("hall", "roof")), value, headers=headers)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        key, value, counted = record.key, record.value, state[COUNTED]
        if isinstance(value, str):
            return [buried(record, record.timestamp, "unreadable", DeserializationError)]
        time = self.time_of(state, record)
        if value == PASSED_OVER:
            return []
        now = state[TIMES][NOW] = max(state[TIMES].get(NOW, 0), time)
        if value < 0:
            return [buried(record, time, "refused", RefusedError)]
        counted[key] = counted.get(key, 0) + 1
        counted[NOW] = now
        outputs = [Output("output", key, [counted[key], counted[NOW]], time, record.headers, (0,))]
        if value == UNWRITABLE:
            return [*outputs, buried(record, time, "unwritable", SerdeError)]
        if value == TOO_LONG:
            outputs.append(buried(record, time, "unwritable", RecordRefusedError))
        if value >= LARGE:
            outputs.append(Output("dead", key, value, time, record.headers))
        return outputs

    def time_of(self, state: State, record: InputRecord) -> int:
        if record.value == PASSED_OVER:
            return NO_TIME
        own = isinstance(record.value, str) or has_time(record.value)
        return max(EARLIEST, record.timestamp if own else state[TIMES].get(NOW, 0))

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and type(record.value) in (int, str)


def buried(record: InputRecord, time: int, why: str, error: type[Exception]) -> Output:
    """A dead letter, with the headers of the record and its own."""
    said = (*said_of(error, record.topic, record.partition, record.offset, time), ("why", why))
    return Output("dead", record.key, record.value, max(EARLIEST, time), (*record.headers, *said))


def said_of(error: type[Exception], topic: str, partition: int, offset: int, time: int) -> Headers:
    """What a dead letter says of an error and of its record, whatever the machine."""
    name = f"{error.__module__}.{error.__name__}"
    about = {EXCEPTION: name, TOPIC: topic, PARTITION: partition, OFFSET: offset, TIMESTAMP: time}
    return tuple((header, str(said)) for header, said in about.items())


SCENARIO = Scenario()
