"""What becomes of records that cannot be read, processed or sent: fail, or go on without them, with dead letters.

Must survive, without losing exactly once: functions that raise after a part of their writes, outputs that are refused
only when they are flushed, and a crash between any two steps. The argument:

* A record that cannot be deserialized has changed nothing. Its dead letters are sent and its position counts, in the
  transaction that is open.
* A record whose processing raised may have written to stores, sent outputs and changed what operators hold in memory.
  There is no taking back for one record alone, so the whole transaction is aborted, everything since the last commit
  is read again, and the record is passed over when its turn comes: its dead letters and its position go into the
  transaction then, and a commit follows, so that what is read again for the next such record is short. A crash forgets
  the decision; the record is then processed again, and if it raises again the handler is asked again. At most one of
  these tries is ever committed, so the record's effects, or its dead letters, are there once.
* Where nothing can be taken back (at least once, or a store without transactions and no incarnation that could be told)
  partial writes stay, and the record counts as processed, as in Kafka Streams. In the DSL the operator that raised, and
  those after it, do without the record under at least once, and all others get it; but for results that were held back.
* An output that the client refuses at once (too large for `message.max.bytes`) has not been sent: it is left out, its
  dead letters are sent, and the record goes on.
* An output that the cluster refuses is known when it is flushed, and the transaction can only be aborted (under at
  least once the task begins anew). The input is read again, and the output, recognised by its topic, key, value and
  headers, is left out then; no cluster refuses it for its partition. The cluster refuses whole batches; where a batch
  had several records each of them is sent alone first, to find the one at fault. Under at least once that one is left
  out at once then: all that was sent before has arrived, and nothing that arrived is taken back. Sent alone, too, is
  what was refused for its time, which a client does not say again: it is recognised by that as well, since the same key
  and value may come with another one. All this is forgotten with the commit that has it.
* A record for a changelog is never left out: the store would hold what its changelog does not.
* Where an operator has held a result back, and forwards it at a commit or to make room, several records may have gone
  into it, and the last one need not be at fault. So the transaction is aborted, and until the next commit each record
  that is read again has all that it leads to forwarded before the next one. Under at least once such an error is
  raised.
* What an operator lets go that may be of records long committed (a row of `suppress`, a window that is closed, a record
  that found no partner) is no fault of the record that lets it go. Such a result is passed over by itself: the
  transaction is aborted, the input is read again, and when the same result is due its dead letters are sent instead.
  Under at least once they are sent at once, and what follows goes on.
* Punctuators belong to no record: their errors are raised.

Dead letters have the key and value of the record that was read, its time, its headers and those of KIP-1034. That of
a result has the key and value that were held back, as bytes, its time and headers, and no place: an empty topic,
partition and offset -1.

They are larger than the record, and may be larger than a record may be. One that is refused is sent with less: without
what was raised, then without its value, then without all of the record; one that is refused for its time, which may be
what is wrong with the record, with the time of day. Of what the client refuses nothing was sent, so
that is done at once. What the cluster refuses aborts the transaction, is remembered as an output is, and less is sent
when the input is read again: a crash in between forgets that, and it is refused once more. A commit follows each, so
that there is an end to it however many there are. What was raised may be worded otherwise when it is raised again (by
an address, say), so a dead letter is recognised without that. When nothing is left to leave out the refusal is raised.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from inspect import signature
from typing import NamedTuple, Protocol, runtime_checkable

from store.clock import Sparingly, SystemClock
from store.config import StreamsConfig
from store.errors import (
    ConfigError,
    LogError,
    ProtocolError,
    RecordLostError,
    RecordRefusedError,
    text_of,
)
from store.types import Content, Headers, Record, TopicPartition, checked_headers

_log = logging.getLogger(__name__)

EXCEPTION = "__streams.errors.exception"
MESSAGE = "__streams.errors.message"
STACKTRACE = "__streams.errors.stacktrace"
TOPIC = "__streams.errors.topic"
PARTITION = "__streams.errors.partition"
OFFSET = "__streams.errors.offset"
TIMESTAMP = "__streams.errors.timestamp"
OMITTED = "__streams.errors.omitted"
"""What of the record a dead letter lacks, since it would have been too large."""

_LONGEST_TRACE = 8_192
"""Headers count into the size of a record, which is bounded."""
_LONGEST_MESSAGE = 1_000
"""An error may quote all that it is about."""
_RAISED = (MESSAGE, STACKTRACE)


def result_of(key: bytes | None, value: bytes | None, timestamp: int, headers: Headers = ()) -> Record:
    """What a handler is told of that is no input record."""
    return Record("", -1, -1, key, value, timestamp, headers)


class DeadLetter(NamedTuple):
    """A record for a dead-letter topic, in bytes. `dead_letter` makes the one that `continue` sends."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


@dataclass(frozen=True)
class ErrorHandlerContext:
    """The record that was being processed, as it was read, when the error came."""

    record: Record
    task_id: str
    dead_letter_topic: str | None
    """`errors.dead.letter.queue.topic.name`."""
    monotonic: Callable[[], float] = SystemClock().monotonic
    """The task's clock, which may be a simulated one."""
    is_internal: Callable[[str], bool] = lambda _: False
    """Whether a topic is one of the application's own, to which no dead letter is sent: what a changelog has is in its
    store, sooner or later."""
    operator: str | None = None
    """Which operator of the DSL has raised, or has the output that cannot be sent; None outside of the DSL."""

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def partition(self) -> int:
        return self.record.partition

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def timestamp(self) -> int:
        return self.record.timestamp

    @property
    def headers(self) -> Headers:
        return self.record.headers

    @property
    def source_raw_key(self) -> bytes | None:
        return self.record.key

    @property
    def source_raw_value(self) -> bytes | None:
        return self.record.value


@dataclass(frozen=True)
class Response:
    """What a handler decides."""

    resumes: bool
    dead_letters: tuple[DeadLetter, ...] = ()

    @classmethod
    def fail(cls) -> Response:
        """The error is raised, and its task ends where it was committed last."""
        return cls(False)

    @classmethod
    def resume(cls, dead_letters: Iterable[DeadLetter] = ()) -> Response:
        """Go on without the record. The dead letters are sent in the transaction that moves on past it."""
        return cls(True, tuple(dead_letters))


@runtime_checkable
class ExceptionHandler(Protocol):
    """Decides what becomes of a record with an error. It may be asked again about the same one; what it raises is
    raised instead of the error."""

    def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response: ...


@dataclass(frozen=True, eq=False)
class Asked:
    """A handler as tasks ask it: what it decides is checked, and where it goes on that is logged sparingly."""

    handler: ExceptionHandler
    _went_on: Sparingly = field(default_factory=Sparingly)

    def decide(self, context: ErrorHandlerContext, error: Exception) -> Response:
        """What the handler decides.

        Raises `TypeError` for what is no decision, and `ProtocolError` for a dead letter to a topic of the
        application's own, at once: dead letters that cannot be sent would come up as an error of
        the record that they stand for each time it is read again.
        """
        response: object = self.handler.handle_error(context, error)
        of = f"handle_error of {type(self.handler).__qualname__}"
        if not isinstance(response, Response):
            raise TypeError(
                f"{of} returned {response!r}, and is to return Response.fail() or Response.resume()"
            )
        for letter in response.dead_letters:
            _check(letter, of, context)
        if response.resumes and (since := self._went_on.count(context.monotonic)) is not None:
            _log.warning("%s; going on without it%s", _said(context, error), since)
        return response


def _check(letter: object, of: str, context: ErrorHandlerContext) -> None:
    if not isinstance(letter, DeadLetter):
        raise TypeError(f"{of} returned {letter!r} as a dead letter, which is to be a DeadLetter")
    topic, key, value, timestamp, headers = letter
    right = type(topic) is str and type(timestamp) is int
    if not (right and all(part is None or type(part) is bytes for part in (key, value))):
        raise TypeError(
            f"{of} returned {letter!r}: a topic is text, a time a whole number, key and value are bytes or None"
        )
    checked_headers(headers)
    if context.is_internal(topic):
        raise ProtocolError(f"{of} returned a dead letter for {topic}, a topic of the application's own")


class LogAndFailExceptionHandler:
    """Raises the error."""

    def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
        _log.error("%s", _said(context, error))
        return Response.fail()


class LogAndContinueExceptionHandler:
    """Goes on, with a dead letter where `errors.dead.letter.queue.topic.name` names a topic."""

    def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
        if context.dead_letter_topic is None:
            return Response.resume()
        return Response.resume([dead_letter(context.dead_letter_topic, context, error)])


def _said(context: ErrorHandlerContext, error: Exception) -> str:
    at = f"record {TopicPartition(context.topic, context.partition)} offset {context.offset}"
    what = at if context.topic else "a result that was held back"
    return f"task {context.task_id}, {what}: {type(error).__name__}: {_cut(text_of(error))}"


def _cut(text: str) -> str:
    left = len(text) - _LONGEST_MESSAGE
    return text if left <= 0 else f"{text[:_LONGEST_MESSAGE]}… ({left} more characters)"


def dead_letter(topic: str, context: ErrorHandlerContext, error: Exception) -> DeadLetter:
    """What `continue` sends of a record: as it was read, with its own headers, and those of KIP-1034 and its time."""
    trace = "\n".join([_cut(line.rstrip("\n")) for line in traceback.format_exception(error)])[
        -_LONGEST_TRACE:
    ]
    kind = type(error)
    about = {
        EXCEPTION: f"{kind.__module__}.{kind.__qualname__}",
        MESSAGE: _cut(text_of(error)),
        STACKTRACE: trace,
        TOPIC: context.topic,
        PARTITION: str(context.partition),
        OFFSET: str(context.offset),
        TIMESTAMP: str(context.timestamp),
    }
    added = tuple([(name, text.encode(errors="replace")) for name, text in about.items()])
    return DeadLetter(
        topic, context.source_raw_key, context.source_raw_value, context.timestamp, (*context.headers, *added)
    )


def shortened(letter: DeadLetter) -> Iterator[DeadLetter]:
    """A dead letter without what was raised, then without its value, then without all of the record."""
    headers = tuple([header for header in letter.headers if header[0] not in _RAISED])
    yield letter._replace(headers=headers)
    if letter.value is not None:
        yield letter._replace(value=None, headers=(*headers, (OMITTED, b"value")))
    about = [header for header in headers if header[0].startswith("__streams.errors.")]
    yield letter._replace(key=None, value=None, headers=(*about, (OMITTED, b"key, value and headers")))


@dataclass(frozen=True)
class Handlers:
    """The handlers of a configuration; None where errors are raised."""

    deserialization: Asked | None
    processing: Asked | None
    production: Asked | None
    dead_letter_topic: str | None

    @classmethod
    def of(cls, config: StreamsConfig) -> Handlers:
        """Raises `ConfigError` for a class that is missing, is no handler or cannot be constructed."""
        return cls(
            _made("deserialization.exception.handler", config.deserialization_exception_handler),
            _made("processing.exception.handler", config.processing_exception_handler),
            _made("production.exception.handler", config.production_exception_handler),
            config.errors_dead_letter_queue_topic_name,
        )


def _made(key: str, given: object) -> Asked | None:
    if given is None or given == "fail":
        return None
    if given == "continue":
        return Asked(LogAndContinueExceptionHandler())
    found = imported(key, given, "fail, continue, or a class path") if isinstance(given, str) else given
    if isinstance(found, type):
        if not issubclass(found, ExceptionHandler):
            raise ConfigError(key, given, "a class with handle_error(context, error)")
        try:
            found = found()
        except Exception as error:
            raise ConfigError(key, given, f"it cannot be constructed without arguments: {error!r}") from error
    if isinstance(found, ExceptionHandler):
        # Not at the first record that needs it.
        try:
            signature(found.handle_error).bind(None, None)
        except TypeError as error:
            raise ConfigError(
                key, given, f"one whose handle_error(context, error) takes two: {error}"
            ) from error
        return Asked(found)
    raise ConfigError(key, given, "fail, continue, or a class with handle_error(context, error) or its path")


def imported(key: str, path: str, allowed: str) -> object:
    """What `module:Class` or `module.Class` names. Raises `ConfigError` saying what is `allowed`."""
    module, colon, names = path.partition(":")
    if not colon:
        module, _, names = path.rpartition(".")
    if not module or not names:
        raise ConfigError(key, path, f"{allowed}; there is no such class: a path names the module too")
    try:
        found: object = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(key, path, f"{allowed}; there is no such class: {error}") from error
    return found


Refusal = RecordRefusedError | RecordLostError
MOST_DIFFERENT = 3
"""How often a result that was to be passed over may be another one when it is made again."""


@dataclass
class Faults:
    """What is known of one task for its next try: what was found out of its records, and decided. Shared by its
    incarnations in one process."""

    skipped: dict[TopicPartition, dict[int, tuple[DeadLetter, ...]]] = field(default_factory=dict)
    """Input partition → offset → the dead letters to send instead of processing the record."""
    refused: dict[bytes, LogError] = field(default_factory=dict)
    """Outputs and dead letters that the cluster refuses, by their digests, with their times where those are why."""
    suspects: set[bytes] = field(default_factory=set)
    """Outputs of a batch that the cluster did not take, or that are too old or new: each has to be sent alone."""
    results: dict[tuple[str, Record], tuple[DeadLetter, ...]] = field(default_factory=dict)
    """Operator and a result that it held back → the dead letters to send instead of forwarding it."""
    passed_over: set[tuple[str, Record]] = field(default_factory=set)
    """Those for which they were sent in the transaction that is open."""
    differing: Counter[tuple[str, bytes | None]] = field(default_factory=Counter)
    """Operator and key → how often a result was another one than that to be passed over, since the last commit."""
    one_by_one: bool = False
    """Whether nothing is held back beyond a record, until the next commit: what was has raised."""
    due: dict[tuple[str, int], int] = field(default_factory=dict)
    """Operator and number of a schedule of the wall clock → when it was due next, at the last commit."""

    def skip(self, tp: TopicPartition, offset: int, dead_letters: tuple[DeadLetter, ...]) -> None:
        self.skipped.setdefault(tp, {})[offset] = dead_letters

    def blame(self, outputs: Iterable[Content], error: Refusal) -> None:
        """These outputs were refused together."""
        digests = [digest(*output) for output in outputs]
        if len(digests) == 1 and not error.by_time:
            self.refused[digests[0]] = error
            self.suspects.discard(digests[0])
        else:
            self.suspects.update(digests)

    def differs(self, operator: str, result: Record) -> bool:
        """Whether the operator makes another result of the key at each reading since the last commit: of those to be
        passed over none was met."""
        if any(
            one[0] == operator and one[1].key == result.key and one not in self.passed_over
            for one in self.results
        ):
            self.differing[operator, result.key] += 1
        return self.differing[operator, result.key] >= MOST_DIFFERENT

    def committed(self, positions: dict[TopicPartition, int]) -> None:
        """What lies before these positions is done with."""
        self.one_by_one = False
        self.refused.clear()
        self.suspects.clear()
        self.differing.clear()
        for result in self.passed_over:
            self.results.pop(result, None)
        self.passed_over.clear()
        for tp, offsets in self.skipped.items():
            for offset in [one for one in offsets if one < positions.get(tp, 0)]:
                del offsets[offset]


def digest(
    topic: str, key: bytes | None, value: bytes | None, headers: Headers, time: int | None = None
) -> bytes:
    """What an output, or a dead letter, is recognised by when it is made again."""
    made = hashlib.sha256()
    named = [part for name, said in headers for part in (name.encode(), None if name in _RAISED else said)]
    for part in (topic.encode(), key, value, None if time is None else b"%d" % time, *named):
        made.update(b"\0" if part is None else b"\1" + len(part).to_bytes(8, "big") + part)
    return made.digest()
