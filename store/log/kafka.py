"""The seam to Kafka over confluent-kafka (librdkafka).

Must survive: a broker that is down, restarted or slow at any moment (every call has a deadline, and repeats
what the client says may be repeated), a successor that takes the transactional id over, a commit whose answer
never comes, records that the broker refuses one by one, and the client's own surprises, which are noted where
they are met. What each error of the client means for the caller is decided in `_translate`, and nowhere else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import wraps
from itertools import repeat
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import Producer as ClientProducer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka._types import HeadersType
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from store.errors import (
    AbortRequiredError,
    ConfigError,
    CrashproofError,
    FatalLogError,
    FencedError,
    LogError,
    OutcomeUnknownError,
    ProtocolError,
    RetriableError,
    UnreachableError,
)
from store.log.protocol import Fetch, Offsets, TopicSpec
from store.types import Headers, IsolationLevel, Record, TopicPartition

Built = TypeVar("Built")
ConfigValue = str | int | float | bool
Config = Mapping[str, ConfigValue]

_logger = logging.getLogger(__name__)
# Without a handler Python prints warnings to standard error; a library leaves that to the application.
_logger.addHandler(logging.NullHandler())

_RESERVED: Mapping[str, str] = {
    "bootstrap.servers": "it is the first argument",
    "transactional.id": "the task decides it",
    "transaction.timeout.ms": "the task decides it",
    "enable.idempotence": "without it repeats of the client double and reorder records",
    "partitioner": "simulation, restore and Java clients agree on murmur2",
    "metadata.recovery.strategy": "with others send_offsets may hang after a restart, librdkafka#5511",
    "isolation.level": "each call of the reader says it",
    "enable.auto.commit": "tasks commit their positions themselves",
    "enable.partition.eof": "the reader needs it to see the end of a partition",
    "auto.offset.reset": "an offset that is gone is an error, never a jump",
    "group.id": "each call says it",
    "error_cb": "the log listens to it",
    "logger": "the messages of the client go to the logger store.log.kafka",
}

_BASE: Config = {
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    # By default back-to-back transactions take 100 ms each, which is this pause.
    "retry.backoff.ms": 2,
    "retry.backoff.max.ms": 200,
}

_PRODUCER: Config = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 1,
    "topic.metadata.propagation.max.ms": 5000,
    "queue.buffering.max.messages": 500_000,
}

_CONSUMER: Config = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    # A broker answers one request of a connection after the other, so a fetch that waits delays what follows.
    "fetch.wait.max.ms": 20,
    "fetch.error.backoff.ms": 20,
    "fetch.message.max.bytes": 4 << 20,
    "queued.min.messages": 200_000,
}

_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
_NO_ANSWER = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
    }
)
_PASSING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
    }
)
_MISSING = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)

_STEP = 1.0
"""Seconds that one call into the client may take: it does not react to Ctrl-C before it returns."""

_STABLE_SECONDS = 1.0
_PAUSE = 0.01
_SERVE_EVERY = 1000
_BATCH = 10_000
_READER_GROUP = "crashproof-reader"
_NEW_TUPLE: Callable[..., Record] = tuple.__new__
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def _translate(error: KafkaError, doing: str) -> CrashproofError:
    """What an error of the client asks the caller to do. The order of the cases matters."""
    code = error.code()
    text = f"{doing}: {error.str()} ({error.name()})"
    if code in _FENCED:
        return FencedError(
            f"{text}. A newer producer has this transactional id, or its transaction timed out"
        )
    if error.fatal():
        return FatalLogError(text)
    if error.txn_requires_abort():
        return AbortRequiredError(text)
    if code == KafkaError._STATE:
        return ProtocolError(text)
    if code in _MISSING:
        return LogError(text)
    if error.retriable() or code in _NO_ANSWER or code in _PASSING or code == KafkaError._CONFLICT:
        return RetriableError(text)
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._INVALID_ARG, KafkaError.INVALID_REQUEST):
        # Refused by the client before anything was sent: the transaction is as it was.
        return LogError(text)
    return FatalLogError(text)


def _cause(exception: KafkaException) -> KafkaError:
    error = exception.args[0]
    assert isinstance(error, KafkaError), error
    return error


class _Client:
    """What producer, consumers and admin have in common: configuration, the client's errors, deadlines."""

    def __init__(self, bootstrap: str, timeout: float) -> None:
        self.bootstrap = bootstrap
        self.timeout = timeout
        self.ping_seconds = min(_STEP, timeout)
        self.fatal: KafkaError | None = None

    def config(self, *parts: Config) -> dict[str, object]:
        merged: dict[str, object] = {"bootstrap.servers": self.bootstrap, **_BASE}
        for part in parts:
            merged.update(part)
        return {**merged, "error_cb": self._on_error, "logger": _logger}

    def _on_error(self, error: KafkaError) -> None:
        # An exception raised here would come out of whatever call serves the callback.
        _logger.info("%s: %s", self.bootstrap, error)
        if error.fatal() or error.code() in _FENCED:
            self.fatal = error

    def gave_up(self, doing: str, last: KafkaError | None, ping: Callable[[], object]) -> LogError:
        """The deadline has passed: is nobody there, or does somebody there not answer?"""
        seconds = f"{self.timeout:g} s"
        try:
            ping()
        except KafkaException as error:
            return UnreachableError(
                f"{doing}: no Kafka broker answered at {self.bootstrap} within {seconds} "
                f"({_cause(error).str()}). Is it running, and is the address right?"
            )
        return RetriableError(
            f"{doing}: the broker at {self.bootstrap} did not finish within {seconds}"
            + (f" ({last.str()})" if last is not None else "")
        )


def _build(make: Callable[[dict[str, object]], Built], config: dict[str, object]) -> Built:
    try:
        return make(config)
    except KafkaException as error:
        raise ConfigError("Kafka client", sorted(config), _cause(error).str()) from error


def _repeat(client: _Client, doing: str, call: Callable[[float], Built], ping: Callable[[], object]) -> Built:
    """Call with a time limit in seconds, again as long as the client says that it may be repeated."""
    deadline = time.monotonic() + client.timeout
    last: KafkaError | None = None
    while (left := deadline - time.monotonic()) > 0:
        try:
            return call(min(_STEP, left))
        except KafkaException as exception:
            last = _cause(exception)
            error = _translate(last, doing)
            if not isinstance(error, RetriableError) or last.code() == KafkaError._CONFLICT:
                raise error from exception
            time.sleep(_PAUSE)
    raise client.gave_up(doing, last, ping)


class _Deliveries:
    """What became of the records of one transaction. Reports that come too late go to its own object."""

    __slots__ = ("failure", "lost", "reached")

    def __init__(self) -> None:
        self.reached: dict[TopicPartition, int] = {}
        self.failure: KafkaError | None = None
        self.lost: TopicPartition | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            # One refused record makes the client purge the others: the first report has the reason, except
            # that a successor's fencing explains everything.
            if self.failure is None or error.code() in _FENCED:
                self.failure = error
            return
        where = TopicPartition(message.topic() or "", _number(message.partition()))
        offset = message.offset()
        if offset is None or offset < 0:
            # A repeated batch that the broker no longer remembers counts as delivered, without an offset.
            self.lost = where
        else:
            self.reached[where] = offset


P = ParamSpec("P")
R = TypeVar("R")


def _remembers_fencing(
    method: Callable[Concatenate[KafkaProducer, P], R],
) -> Callable[Concatenate[KafkaProducer, P], R]:
    """Once a producer was fenced every call says so, and an error that only follows from fencing says so too.

    The client itself forgets: after `_FENCED` its calls answer `_FATAL`, `_CONFLICT` or `_STATE`, and the first
    report of a fenced producer's record is often that it was purged.
    """

    @wraps(method)
    def call(self: KafkaProducer, /, *args: P.args, **kwargs: P.kwargs) -> R:
        producer = self._live()
        if self._fenced is not None:
            raise FencedError(self._fenced)
        try:
            return method(self, *args, **kwargs)
        except FencedError as error:
            self._fenced = str(error)
            raise
        except (AbortRequiredError, FatalLogError) as error:
            self._fenced = _fencing(producer)
            if self._fenced is None:
                raise
            raise FencedError(self._fenced) from error

    return call


def _fencing(producer: ClientProducer) -> str | None:
    """Why the client is fenced, None if it is not. Only to be asked of one that can begin no transaction."""
    try:
        producer.begin_transaction()
    except KafkaException as exception:
        error = _translate(_cause(exception), "the producer")
        return str(error) if isinstance(error, FencedError) else None
    raise AssertionError("a producer whose transaction has failed began another one")


class _Sender:
    """What both kinds of producers do alike: queue records, and wait until they are delivered."""

    def __init__(self, client: _Client, producer: ClientProducer, name: str) -> None:
        self._client = client
        self._producer: ClientProducer | None = producer
        self._id = name
        self._deliveries = _Deliveries()
        self._unserved = 0

    def _refuse(self, doing: str, exception: KafkaException) -> NoReturn:
        """Raise what an error of the client means."""
        raise NotImplementedError

    def _check_deliveries(self) -> None:
        """Raise when a record was not delivered."""
        raise NotImplementedError

    def _enqueue(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
    ) -> None:
        producer = self._live()
        deadline = 0.0
        self._unserved += 1
        if self._unserved >= _SERVE_EVERY:
            self._unserved = 0
            self._serve(producer, 0)
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    key,
                    -1 if partition is None else partition,
                    self._deliveries,
                    timestamp=0 if timestamp is None else timestamp,
                    headers=list(headers) if headers else None,
                )
            except BufferError:
                now = time.monotonic()
                deadline = deadline or now + self._client.timeout
                if now > deadline:
                    raise self._client.gave_up(
                        f"{self._id}: produce to {topic}, whose queue is full", None, self._ping
                    ) from None
                self._serve(producer, 0.1)
            except KafkaException as exception:
                self._refuse("produce", exception)
            else:
                return

    def _drain(self) -> Mapping[TopicPartition, int]:
        producer = self._live()
        waiting = len(producer)
        deadline = time.monotonic() + self._client.timeout
        while True:
            try:
                left = producer.flush(_STEP)
            except KafkaException as exception:
                self._refuse("flush", exception)
            except SystemError as error:
                # Seen of a producer that a successor fenced; the reports and the error callback say why.
                self._check_deliveries()
                self._check_fatal("flush")
                raise FatalLogError(f"{self._id}: flush failed inside the Kafka client: {error}") from error
            self._check_deliveries()
            if left == 0:
                break
            if left < waiting:
                waiting = left
                deadline = time.monotonic() + self._client.timeout
            elif time.monotonic() > deadline:
                raise self._client.gave_up(f"{self._id}: flush of {left} records", None, self._ping)
        self._check_fatal("flush")
        return dict(self._deliveries.reached)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        # The client's own close() would abort the open transaction, and wait for a broker that may be gone.
        try:
            producer.purge(blocking=False)
        except KafkaException as exception:
            _logger.info("%s: purge at close: %s", self._id, exception)

    def _live(self) -> ClientProducer:
        if self._producer is None:
            raise ProtocolError(f"{self._id}: the producer is closed")
        return self._producer

    def _ping(self) -> object:
        return self._live().list_topics(timeout=self._client.ping_seconds)

    def _serve(self, producer: ClientProducer, seconds: float) -> None:
        try:
            producer.poll(seconds)
        except KafkaException as exception:
            self._refuse("poll", exception)

    def _check_fatal(self, doing: str) -> None:
        if self._client.fatal is not None:
            error = _translate(self._client.fatal, f"{self._id}: {doing}")
            raise error if isinstance(error, FencedError) else FatalLogError(str(error))


class KafkaProducer(_Sender):
    """`store.log.protocol.Producer` over one librdkafka producer. Not thread-safe."""

    def __init__(
        self,
        client: _Client,
        producer: ClientProducer,
        transactional_id: str,
        metadata: Callable[[str], object],
    ) -> None:
        super().__init__(client, producer, transactional_id)
        self._metadata = metadata
        self._open = False
        self._commit_sent = False
        self._fenced: str | None = None

    @_remembers_fencing
    def init_transactions(self) -> None:
        producer = self._live()
        # Without a connection to any broker the client looks for the coordinator only every half second.
        self._repeat("init_transactions", lambda seconds: producer.list_topics(timeout=seconds))
        self._repeat("init_transactions", lambda seconds: producer.init_transactions(seconds))

    @_remembers_fencing
    def begin_transaction(self) -> None:
        producer = self._live()
        self._repeat("begin_transaction", lambda _seconds: producer.begin_transaction())
        self._deliveries = _Deliveries()
        self._open = True

    @_remembers_fencing
    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> None:
        self._enqueue(topic, key, value, partition, timestamp, headers)

    @_remembers_fencing
    def flush(self) -> Mapping[TopicPartition, int]:
        return self._drain()

    @_remembers_fencing
    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        producer = self._live()
        positions = [ClientPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        metadata = self._metadata(group_id)
        self._repeat(
            f"send_offsets of group {group_id}",
            lambda seconds: producer.send_offsets_to_transaction(positions, metadata, seconds),
        )

    @_remembers_fencing
    def commit_transaction(self) -> None:
        producer = self._live()
        doing = f"{self._id}: commit_transaction"

        def commit(seconds: float) -> None:
            try:
                producer.commit_transaction(seconds)
            except KafkaException as exception:
                error = _cause(exception)
                self._commit_sent = self._commit_sent or error.retriable()
                raise

        try:
            _repeat(self._client, doing, commit, self._ping)
        except (FencedError, AbortRequiredError, ProtocolError):
            raise
        except CrashproofError as error:
            if self._commit_sent:
                raise OutcomeUnknownError(f"{error}. The transaction may or may not be committed") from error
            raise
        self._end()

    @_remembers_fencing
    def abort_transaction(self) -> None:
        producer = self._live()
        self._repeat("abort_transaction", lambda seconds: producer.abort_transaction(seconds))
        self._end()

    def _end(self) -> None:
        self._open = False
        self._commit_sent = False
        self._deliveries = _Deliveries()

    def _repeat(self, doing: str, call: Callable[[float], object]) -> None:
        try:
            _repeat(self._client, f"{self._id}: {doing}", call, self._ping)
        except RetriableError as error:
            if self._commit_sent:
                raise OutcomeUnknownError(
                    f"{error}. An earlier commit was sent and never answered"
                ) from error
            raise

    def _refuse(self, doing: str, exception: KafkaException) -> NoReturn:
        cause = _cause(exception)
        if cause.code() in (KafkaError._FATAL, KafkaError._STATE):
            self._check_fatal(doing)
        if self._commit_sent:
            raise OutcomeUnknownError(f"{self._id}: {doing}: a commit was sent and never answered")
        if doing == "produce" and self._open and cause.code() == KafkaError._STATE:
            # The client refuses more records after one has failed, without saying so.
            raise AbortRequiredError(f"{self._id}: {doing}: an earlier record of the transaction failed")
        raise _translate(cause, f"{self._id}: {doing}") from exception

    def _check_deliveries(self) -> None:
        failure = self._deliveries.failure
        if failure is not None:
            if failure.code() not in _FENCED:
                self._check_fatal("a record was not delivered")
            error = _translate(failure, f"{self._id}: a record was not delivered")
            raise (
                error
                if isinstance(error, FencedError | FatalLogError)
                and (failure.fatal() or failure.code() in _FENCED)
                else AbortRequiredError(str(error))
            )
        if self._deliveries.lost is not None:
            raise AbortRequiredError(
                f"{self._id}: the broker has a record in {self._deliveries.lost}, but the answer with its "
                "offset was lost"
            )


class KafkaPlainProducer(_Sender):
    """`store.log.protocol.PlainProducer` over one idempotent librdkafka producer. Not thread-safe."""

    def __init__(
        self, client: _Client, producer: ClientProducer, committer: Callable[[str], Consumer]
    ) -> None:
        super().__init__(client, producer, "the plain producer")
        self._make_committer = committer
        self._committers: dict[str, Consumer] = {}

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> None:
        self._enqueue(topic, key, value, partition, timestamp, headers)

    def flush(self) -> Mapping[TopicPartition, int]:
        reached = self._drain()
        self._deliveries = _Deliveries()
        return reached

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._live()
        if not offsets:
            return
        if group_id not in self._committers:
            self._committers[group_id] = self._make_committer(group_id)
        committer = self._committers[group_id]
        positions = [ClientPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]

        def commit(seconds: float) -> None:
            # The commit takes no time limit, and without a broker it waits for one.
            committer.list_topics(timeout=seconds)
            for answer in committer.commit(offsets=positions, asynchronous=False) or ():
                if answer.error is not None:
                    raise KafkaException(answer.error)

        _repeat(self._client, f"commit_offsets of group {group_id}", commit, self._ping)

    def close(self) -> None:
        committers = list(self._committers.values())
        self._committers.clear()
        super().close()
        for committer in committers:
            committer.close()

    def _refuse(self, doing: str, exception: KafkaException) -> NoReturn:
        error = _translate(_cause(exception), f"{self._id}: {doing}")
        # Nobody can fence it: an epoch that the broker does not take any more is its own trouble.
        raise FatalLogError(str(error)) if isinstance(error, FencedError) else error from exception

    def _check_fatal(self, doing: str) -> None:
        if self._client.fatal is not None:
            raise FatalLogError(f"{self._id}: {doing}: {self._client.fatal.str()}")

    def _check_deliveries(self) -> None:
        # A record that did not arrive is not sent again; only from the committed position on it is made anew.
        failure = self._deliveries.failure
        if failure is not None:
            raise FatalLogError(f"{self._id}: a record was not delivered: {failure.str()} ({failure.name()})")
        if self._deliveries.lost is not None:
            raise FatalLogError(
                f"{self._id}: the broker has a record in {self._deliveries.lost}, but the answer with its "
                "offset was lost"
            )


class _Cursor:
    """A consumer with at most one partition assigned, and the offset of the next record to return."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.tp: TopicPartition | None = None
        self.position = -1
        self.at_end = False

    def take(self, messages: Sequence[Message], records: list[Record]) -> None:
        """Append messages without errors to `records`. Field by field, which is twice as fast as record by record."""
        if not messages:
            return
        assert self.tp is not None
        fields = zip(
            repeat(self.tp.topic),
            repeat(self.tp.partition),
            map(Message.offset, messages),
            map(Message.key, messages),
            map(Message.value, messages),
            [
                -1 if kind == TIMESTAMP_NOT_AVAILABLE else time
                for kind, time in map(Message.timestamp, messages)
            ],
            [_headers(headers) if headers else () for headers in map(Message.headers, messages)],
            strict=False,
        )
        records += map(_NEW_TUPLE, repeat(Record), fields)
        self.position = records[-1].offset + 1


class KafkaReader:
    """`store.log.protocol.Reader`. Reads that follow one another in a partition stream. Not thread-safe."""

    def __init__(self, client: _Client, config: Config) -> None:
        self._client = client
        self._config = config
        self._cursors: dict[IsolationLevel, _Cursor] = {}
        # Questions about offsets have connections of their own: on that of a cursor they wait behind a fetch.
        self._askers: dict[tuple[str, IsolationLevel], Consumer] = {}
        self._closed = False

    def partitions(self, topic: str) -> int:
        asker = self._asker()
        metadata = self._repeat(
            f"partitions of {topic}", lambda seconds: asker.list_topics(topic, seconds).topics[topic]
        )
        if metadata.error is not None:
            raise _topic_error(topic, metadata.error)
        return len(metadata.partitions)

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        asker = self._asker(isolation=isolation)

        def ask(seconds: float) -> Offsets:
            bounds = asker.get_watermark_offsets(ClientPartition(tp.topic, tp.partition), seconds)
            if bounds is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return Offsets(*bounds)

        return self._repeat(f"offsets of {tp}", ask)

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        if max_records < 1:
            raise ProtocolError(f"read of {tp}: max_records is {max_records}, at least 1 is needed")
        cursor = self._cursor(isolation)
        moved = cursor.tp != tp or cursor.position != offset
        if moved or cursor.at_end:
            # The client reports the end of a partition once. Standing there, ask whether it has moved.
            bounds = self.offsets(tp, isolation)
            self._check_in_range(tp, offset, bounds, isolation)
            if offset >= bounds.end:
                return Fetch((), offset)
            cursor.at_end = False
        try:
            if moved:
                if cursor.tp is None or cursor.tp.topic != tp.topic:
                    # Of a topic it does not know yet the client asks only once a second.
                    cursor.consumer.list_topics(tp.topic, self._client.ping_seconds)
                cursor.tp = tp
                cursor.position = offset
                cursor.consumer.assign([ClientPartition(tp.topic, tp.partition, offset)])
            return self._stream(cursor, tp, max_records, isolation)
        except BaseException as error:
            # What was fetched is not returned, so the next read starts anew where the caller says.
            cursor.tp = None
            if isinstance(error, KafkaException):
                raise _translate(_cause(error), f"read of {tp} at {offset}") from error
            raise

    def committed(self, group_id: str, tp: TopicPartition) -> int | None:
        # Under read_committed the client waits while a transaction holds an offset, and says it timed out.
        asker = self._asker(group_id)
        doing = f"committed offset of group {group_id} in {tp}"

        def ask(seconds: float) -> int | None:
            (answer,) = asker.committed(
                [ClientPartition(tp.topic, tp.partition)], min(seconds, _STABLE_SECONDS)
            )
            if answer.error is not None:
                raise KafkaException(answer.error)
            return answer.offset if answer.offset >= 0 else None

        def ask_once_stable(seconds: float) -> int | None:
            try:
                return ask(seconds)
            except KafkaException as exception:
                cause = _cause(exception)
                if cause.code() not in (KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT):
                    raise
                asker.list_topics(timeout=self._client.ping_seconds)
                raise RetriableError(
                    f"{doing}: a transaction holds it, or the group's coordinator is not ready; ask again"
                ) from exception

        return self._repeat(doing, ask_once_stable)

    def close(self) -> None:
        self._closed = True
        consumers = [*(cursor.consumer for cursor in self._cursors.values()), *self._askers.values()]
        self._cursors.clear()
        self._askers.clear()
        for consumer in consumers:
            consumer.close()

    def _stream(
        self, cursor: _Cursor, tp: TopicPartition, max_records: int, isolation: IsolationLevel
    ) -> Fetch:
        consumer = cursor.consumer
        records: list[Record] = []
        deadline = time.monotonic() + self._client.timeout
        last: KafkaError | None = None
        while len(records) < max_records:
            # consume() waits until it has all it was asked for; poll() until there is anything.
            first = consumer.poll(0.1)
            if first is None:
                if time.monotonic() > deadline:
                    raise self._client.gave_up(f"read of {tp} at {cursor.position}", last, self._ping)
                continue
            messages = [first]
            room = max_records - len(records) - 1
            if room > 0 and first.error() is None:
                messages += consumer.consume(min(room, _BATCH), 0)
            before = cursor.position
            done = 0
            for index, message in enumerate(messages):
                error = message.error()
                if error is None:
                    continue
                cursor.take(messages[done:index], records)
                done = index + 1
                if error.code() == KafkaError._PARTITION_EOF:
                    # The report may have waited in the client's queue while more was written and committed.
                    cursor.position = max(cursor.position, _number(message.offset()))
                    if cursor.position >= self.offsets(tp, isolation).end:
                        cursor.at_end = True
                        return Fetch(records, cursor.position)
                else:
                    last = error
                    if not isinstance(_translate(error, "read"), RetriableError):
                        raise KafkaException(error)
            cursor.take(messages[done:] if done else messages, records)
            if cursor.position > before:
                deadline = time.monotonic() + self._client.timeout
        return Fetch(records, cursor.position)

    def _check_in_range(
        self, tp: TopicPartition, offset: int, bounds: Offsets, isolation: IsolationLevel
    ) -> None:
        end = bounds.end
        if offset > end and isolation is IsolationLevel.READ_COMMITTED:
            end = self.offsets(tp, IsolationLevel.READ_UNCOMMITTED).end
        if not bounds.earliest <= offset <= end:
            raise LogError(
                f"read of {tp} at {offset}: the partition holds offsets from {bounds.earliest} to {end}. "
                "It was cut by retention, or made anew"
            )

    def _ping(self) -> object:
        return self._asker().list_topics(timeout=self._client.ping_seconds)

    def _repeat(self, doing: str, call: Callable[[float], Built]) -> Built:
        return _repeat(self._client, doing, call, self._ping)

    def _cursor(self, isolation: IsolationLevel) -> _Cursor:
        self._check_open()
        if isolation not in self._cursors:
            self._cursors[isolation] = _Cursor(self._consumer(_READER_GROUP, isolation))
        return self._cursors[isolation]

    def _asker(
        self, group_id: str | None = None, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> Consumer:
        self._check_open()
        which = (group_id or _READER_GROUP, isolation)
        if which not in self._askers:
            self._askers[which] = self._consumer(*which)
        return self._askers[which]

    def _consumer(self, group_id: str, isolation: IsolationLevel) -> Consumer:
        own: Config = {"group.id": group_id, "isolation.level": isolation.value.lower()}
        return _build(Consumer, self._client.config(_CONSUMER, self._config, own))

    def _check_open(self) -> None:
        if self._closed:
            raise ProtocolError("the reader is closed")


class KafkaAdmin:
    """`store.log.protocol.Admin`."""

    def __init__(self, client: _Client, admin: AdminClient) -> None:
        self._client = client
        self._admin: AdminClient | None = admin

    def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        admin = self._live()
        for spec in topics:
            # -1 leaves the number of replicas to the broker's default.
            topic = NewTopic(spec.name, spec.partitions, -1, config=dict(spec.config))

            def create(seconds: float, topic: NewTopic = topic) -> None:
                future = admin.create_topics([topic], operation_timeout=seconds, request_timeout=seconds)
                _await(future[topic.topic], KafkaError.TOPIC_ALREADY_EXISTS)

            self._repeat(f"create topic {spec.name}", create)
        for spec in topics:
            self._await_leaders(admin, spec)

    def delete_topics(self, topics: Sequence[str]) -> None:
        admin = self._live()
        for name in topics:

            def delete(seconds: float, name: str = name) -> None:
                future = admin.delete_topics([name], operation_timeout=seconds, request_timeout=seconds)
                _await(future[name], KafkaError.UNKNOWN_TOPIC_OR_PART)

            def check_gone(seconds: float, name: str = name) -> None:
                if name in admin.list_topics(timeout=seconds).topics:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

            self._repeat(f"delete topic {name}", delete)
            self._repeat(f"delete topic {name}", check_gone)

    def close(self) -> None:
        self._admin = None

    def topic_config(self, topic: str) -> dict[str, str]:
        admin, resource = self._live(), ConfigResource(ConfigResource.Type.TOPIC, topic)

        def ask(seconds: float) -> dict[str, str]:
            found = admin.describe_configs([resource], request_timeout=seconds)[resource].result()
            return {name: entry.value for name, entry in found.items() if entry.value is not None}

        return self._repeat(f"ask for the configuration of topic {topic}", ask)

    def _await_leaders(self, admin: AdminClient, spec: TopicSpec) -> None:
        found = -1

        def check(seconds: float) -> None:
            nonlocal found
            topic = admin.list_topics(timeout=seconds).topics.get(spec.name)
            if topic is None or topic.error is not None or not topic.partitions:
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            if any(partition.leader < 0 for partition in topic.partitions.values()):
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            found = len(topic.partitions)
            # A leader that answers for its offsets takes writes.
            wanted = {ClientPartition(spec.name, number): _LATEST for number in topic.partitions}
            for future in admin.list_offsets(wanted, request_timeout=seconds).values():
                future.result()

        self._repeat(f"leaders of topic {spec.name}", check)
        if found != spec.partitions:
            raise LogError(
                f"topic {spec.name} exists with {found} partitions, {spec.partitions} were asked for. "
                "Delete it or use another name"
            )

    def _repeat(self, doing: str, call: Callable[[float], Built]) -> Built:
        admin = self._live()
        return _repeat(
            self._client, doing, call, lambda: admin.list_topics(timeout=self._client.ping_seconds)
        )

    def _live(self) -> AdminClient:
        if self._admin is None:
            raise ProtocolError("the admin client is closed")
        return self._admin


class KafkaLog:
    """`store.log.protocol.Log`: the cluster at `bootstrap` ("host:port", several with commas).

    `timeout` in seconds bounds every call; a call that makes progress may take longer in all. `config` holds
    further librdkafka properties, such as those for TLS; `ConfigError` for those that must not be changed.
    No connection is made before the first call. The log may be shared by threads, what it returns may not.
    """

    def __init__(self, bootstrap: str, *, timeout: float = 30.0, config: Config | None = None) -> None:
        self.bootstrap = bootstrap
        self.timeout = timeout
        self._config: Config = dict(config or {})
        for key, value in self._config.items():
            if key in _RESERVED:
                raise ConfigError(key, value, _RESERVED[key])
        if timeout <= 0:
            raise ConfigError("timeout", timeout, "a number of seconds above 0")
        self._metadata: dict[str, object] = {}

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> KafkaProducer:
        client = _Client(self.bootstrap, self.timeout)
        own: Config = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout_ms,
        }
        made = _build(ClientProducer, client.config(_PRODUCER, self._config, own))
        return KafkaProducer(client, made, transactional_id, self._group_metadata)

    def plain_producer(self) -> KafkaPlainProducer:
        client = _Client(self.bootstrap, self.timeout)

        def committer(group_id: str) -> Consumer:
            return _build(Consumer, client.config(_CONSUMER, self._config, {"group.id": group_id}))

        return KafkaPlainProducer(
            client, _build(ClientProducer, client.config(_PRODUCER, self._config)), committer
        )

    def reader(self) -> KafkaReader:
        return KafkaReader(_Client(self.bootstrap, self.timeout), self._config)

    def admin(self) -> KafkaAdmin:
        client = _Client(self.bootstrap, self.timeout)
        return KafkaAdmin(client, _build(_make_admin, client.config(self._config)))

    def _group_metadata(self, group_id: str) -> object:
        """The group as a transaction names it. Only a consumer can make it; it need not have joined."""
        if group_id not in self._metadata:
            client = _Client(self.bootstrap, self.timeout)
            consumer = _build(Consumer, client.config(_CONSUMER, self._config, {"group.id": group_id}))
            try:
                self._metadata[group_id] = consumer.consumer_group_metadata()
            finally:
                consumer.close()
        return self._metadata[group_id]


def _make_admin(config: dict[str, Any]) -> AdminClient:
    return AdminClient(config)


def _number(value: int | None) -> int:
    assert value is not None, "the client left out a field that every delivered message has"
    return value


def _headers(headers: HeadersType) -> Headers:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return tuple(
        (name, value if isinstance(value, bytes) else (value or "").encode()) for name, value in pairs
    )


def _topic_error(topic: str, error: KafkaError) -> LogError:
    if error.code() in _MISSING:
        return LogError(f"topic {topic} does not exist ({error.name()}). Create it, or check the name")
    return LogError(f"topic {topic}: {error.str()} ({error.name()})")


def _await(future: Future[None], allowed: int) -> None:
    try:
        future.result()
    except KafkaException as exception:
        if _cause(exception).code() != allowed:
            raise
