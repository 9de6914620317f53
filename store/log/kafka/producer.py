"""Producers, with transactions and without.

Must survive: a successor that takes the transactional id over, a commit whose answer never comes, records that the
broker refuses one by one, batches of records each of which it would take, and the client's own surprises, which are
noted where they are met.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import Producer as ClientProducer

from store.errors import (
    AbortRequiredError,
    CrashproofError,
    FatalLogError,
    FencedError,
    OutcomeUnknownError,
    ProtocolError,
    RecordLostError,
    RecordNotTakenError,
    RecordRefusedError,
    RetriableError,
)
from store.log.kafka.client import LOGGER, STEP, Client, number, repeat
from store.log.kafka.errors import (
    FENCED,
    FOLLOWING,
    FORGOTTEN,
    REFUSED,
    TOO_LARGE,
    cause_of,
    text_of,
    translate,
)
from store.log.kafka.lineage import Lineages, as_committed
from store.log.kafka.member import KafkaMembership
from store.log.protocol import Membership
from store.types import Content, Headers, TopicPartition

_SERVE_EVERY = 1000

BATCH_BYTES = 1_000_000
"""What the client puts into one batch for a partition at the most, by default (`batch.size`)."""


class BatchBytes:
    """How many bytes of records the producers of one log put into a batch, those that are made from now on.

    A topic's `max.message.bytes` and `segment.bytes` bound batches, not records. The client does not divide one that
    was refused, as Kafka's own does, and its size is that of all topics, so it is the next producer whose batches are
    smaller. In the end the largest record is a batch. Any thread.
    """

    def __init__(self, most: int) -> None:
        self.most = most

    def refused(self, smaller: int) -> None:
        """A producer had one refused, and ones of up to `smaller` bytes may be taken."""
        # Others may have found the same.
        self.most = min(self.most, smaller)


class _Deliveries:
    """What became of the records of one transaction. Reports that come too late go to its own object."""

    __slots__ = (
        *("batch_bytes", "by_time", "failed", "failed_topics", "failure"),
        *("first", "largest", "lost", "reached", "refused", "too_large"),
    )

    def __init__(self, batch_bytes: int) -> None:
        self.batch_bytes = batch_bytes
        """How many bytes of them are in a batch at the most."""
        self.refused: list[Content] = []
        self.by_time = False
        """Whether any of those was refused for its time, which a report does not have."""
        self.reached: dict[tuple[str | None, int | None], int] = {}
        """By topic and partition, as the client has them: it is told of every record."""
        self.first: dict[tuple[str | None, int | None], int] = {}
        """The same of the first record in each."""
        self.too_large = 0
        """How many records were in a batch that was refused for its size."""
        self.largest = 0
        """How many bytes the largest of those has."""
        self.failure: KafkaError | None = None
        self.failed_topics: set[str] = set()
        """Those of the records that were not delivered for `failure`."""
        self.failed = 0
        """How many records were not delivered."""
        self.lost: TopicPartition | None = None

    def __call__(self, error: KafkaError | None, message: Message, *, headers: Headers = ()) -> None:
        """What the client calls for each record, whose headers its report does not have."""
        if error is None:
            offset = message.offset()
            if offset is not None and offset >= 0:
                place = message.topic(), message.partition()
                self.reached[place] = offset
                self.first.setdefault(place, offset)
            else:
                # A repeated batch that the broker no longer remembers counts as delivered, without an offset.
                self.lost = TopicPartition(message.topic() or "", number(message.partition()))
            return
        # One refused record makes the client purge the others, and a broker refuse its whole batch: the first report
        # that says more than that has the reason, except that a successor's fencing explains everything.
        self.failed += 1
        if self.failure is None or _explains(error) > _explains(self.failure):
            self.failure = error
            self.failed_topics.clear()
        if error.code() == self.failure.code():
            self.failed_topics.add(message.topic() or "")
        if error.code() in REFUSED:
            topic, key, value = message.topic() or "", _bytes(message.key()), _bytes(message.value())
            self.refused.append((topic, key, value, headers))
            self.by_time = self.by_time or error.code() == KafkaError.INVALID_TIMESTAMP
            if error.code() in TOO_LARGE:
                self.too_large += 1
                self.largest = max(self.largest, _size(key, value, headers))

    @property
    def is_of_one(self) -> bool:
        """Whether one record was refused, and no other was sent."""
        return len(self.refused) == self.failed == 1 and not self.reached and self.lost is None

    @property
    def smaller(self) -> int:
        """How many bytes the next batches of the same records may have. For one that is refused alone, as the largest
        is then, still smaller ones would change nothing."""
        return max(1, self.largest, self.batch_bytes // 8)

    @property
    def is_divisible(self) -> bool:
        """Whether smaller batches of the same records may be taken."""
        return self.too_large > 1 and self.smaller < self.batch_bytes

    @property
    def which(self) -> str:
        """What was not delivered, in words."""
        topics = sorted({topic for topic, *_ in self.refused} or self.failed_topics)
        what = f"a batch of {self.too_large} records" if self.is_divisible else "a record"
        named = what + (f" for {' or '.join(topics)}" if topics else "")
        if self.is_divisible:
            named += (
                ", which smaller ones of the next producer may take the place of (kafka={'batch.size': …}),"
            )
        if not self.by_time:
            return named
        return (
            f"{named}, whose time is further from the broker's clock than message.timestamp.after.max.ms or "
            "message.timestamp.before.max.ms of the topic allow (kafka-configs.sh --alter --entity-type topics "
            f"--entity-name {topics[0]} --add-config message.timestamp.after.max.ms={2**63 - 1} sets the first),"
        )

    def last(self) -> dict[TopicPartition, int]:
        """The last offset in each partition."""
        return _by_partition(self.reached)


def _by_partition(offsets: Mapping[tuple[str | None, int | None], int]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic or "", number(partition)): offset
        for (topic, partition), offset in offsets.items()
    }


def _explains(error: KafkaError) -> int:
    """How much that a record was not delivered says of why others were not."""
    return 2 if error.code() in FENCED else int(error.code() not in FOLLOWING)


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    return (
        len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(of or b"") for name, of in headers)
    )


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


P = ParamSpec("P")
R = TypeVar("R")


def _remembers_fencing(
    method: Callable[Concatenate[KafkaProducer, P], R],
) -> Callable[Concatenate[KafkaProducer, P], R]:
    """Once a producer was fenced every call says so, and an error that only follows from fencing says so too.

    The client itself forgets: after `FENCED` its calls answer `_FATAL`, `_CONFLICT` or `_STATE`, and the first
    report of a fenced producer's record is often that it was purged.
    """

    @wraps(method)
    def call(self: KafkaProducer, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._live()
        if self._fenced is not None:
            raise FencedError(self._fenced)
        try:
            return method(self, *args, **kwargs)
        except FencedError as error:
            self._fence(str(error))
            raise
        except (AbortRequiredError, FatalLogError) as error:
            why = _why(self._live())
            found = translate(why, "the producer")
            if why.code() in FORGOTTEN:
                raise found from error
            self._fence(str(found) if isinstance(found, FencedError) else None)
            if self._fenced is None and isinstance(error, AbortRequiredError) and self._deliveries.refused:
                refused = self._deliveries
                raise RecordRefusedError(str(error), refused.refused, by_time=refused.by_time) from error
            if self._fenced is None:
                raise
            raise FencedError(self._fenced) from error

    return call


def _why(producer: ClientProducer) -> KafkaError:
    """Why the client can begin no transaction. Only to be asked of one whose transaction has failed."""
    try:
        producer.begin_transaction()
    except KafkaException as exception:
        return cause_of(exception)
    raise AssertionError("a producer whose transaction has failed began another one")


class _Sender:
    """What both kinds of producers do alike: queue records, and wait until they are delivered."""

    def __init__(self, client: Client, producer: ClientProducer, name: str, batches: BatchBytes) -> None:
        self._client = client
        self._batches = batches
        self._batch_bytes = batches.most
        self._producer: ClientProducer | None = producer
        """Held by nothing but this and `_send`, no local of a frame that an error may keep: an exception that is being
        handled while the Python client raises its own is never let go of, and the client's threads would stay."""
        self._send: Callable[..., None] | None = producer.produce
        """None where it is known that nothing can be produced any more."""
        self._id = name
        self._unserved = 0
        self._begin_deliveries()

    def _begin_deliveries(self) -> None:
        self._deliveries = _Deliveries(self._batch_bytes)
        # Bound once: it is given along with each record.
        self._report = self._deliveries.__call__

    def _refuse(self, doing: str, exception: KafkaException) -> NoReturn:
        """Raise what an error of the client means."""
        raise NotImplementedError

    def _check_deliveries(self) -> None:
        """Raise when a record was not delivered."""
        raise NotImplementedError

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
        # Called for each output and each change of a store: whatever is rare is somewhere else.
        self._unserved += 1
        if self._send is None or timestamp == 0 or self._unserved >= _SERVE_EVERY:
            self._look_around(topic, timestamp)
        assert self._send is not None, "a producer that was fenced or closed has found nothing wrong"
        deadline, found = 0.0, False
        while True:
            try:
                self._send(
                    topic,
                    value,
                    key,
                    -1 if partition is None else partition,
                    partial(self._deliveries, headers=headers) if headers else self._report,
                    None,
                    0 if timestamp is None else timestamp,
                    list(headers) if headers else None,
                )
                return
            except BufferError:
                deadline = self._wait_for_room(topic, deadline)
            except KafkaException as exception:
                found = not found and self._finds(exception, topic, partition)
                if not found:
                    self._refuse_record(exception, topic, partition)

    def _finds(self, exception: KafkaException, topic: str, partition: int | None) -> bool:
        """Whether the cluster has the partition that the client does not know of; the client does then."""
        if cause_of(exception).code() != KafkaError._UNKNOWN_PARTITION:
            return False
        try:
            return (
                partition
                in self._live().list_topics(topic, self._client.ping_seconds).topics[topic].partitions
            )
        except KafkaException as error:
            LOGGER.info("%s: asking for the partitions of %s: %s", self._id, topic, error)
            return False

    def _look_around(self, topic: str, timestamp: int | None) -> None:
        """Raise where nothing, or not this, can be produced, and let the client report."""
        self._live()
        if timestamp == 0:
            raise RecordNotTakenError(
                f"{self._id}: a record for {topic} has the time 0 (1970-01-01), which the Kafka client takes for none "
                "and would replace by the time of day; the first time that it can write is 1 ms later"
            )
        self._unserved = 0
        self._serve(0)

    def _wait_for_room(self, topic: str, deadline: float) -> float:
        """Let records leave the client's queue, which is full; until when that may go on, 0.0 being unknown."""
        now = time.monotonic()
        deadline = deadline or now + self._client.timeout
        if now > deadline:
            raise self._client.gave_up(
                f"{self._id}: produce to {topic}, whose queue is full", None, self._ping
            ) from None
        self._serve(0.1)
        return deadline

    def _refuse_record(self, exception: KafkaException, topic: str, partition: int | None) -> NoReturn:
        self._refuse("produce to " + (topic if partition is None else f"{topic}-{partition}"), exception)

    def _drain(self) -> Mapping[TopicPartition, int]:
        waiting = len(self._live())
        deadline = time.monotonic() + self._client.timeout
        while True:
            try:
                left = self._live().flush(STEP)
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
        return self._deliveries.last()

    def close(self) -> None:
        producer, self._producer = self._producer, None
        self._send = None
        if producer is None:
            return
        if self._deliveries.is_divisible:
            self._batches.refused(self._deliveries.smaller)
        # The client's own close() would abort the open transaction, and wait for a broker that may be gone.
        try:
            producer.purge(blocking=False)
        except KafkaException as exception:
            LOGGER.info("%s: purge at close: %s", self._id, exception)

    def _live(self) -> ClientProducer:
        if self._producer is None:
            raise ProtocolError(f"{self._id}: the producer is closed")
        return self._producer

    def _ping(self) -> object:
        self._serve(0)
        return self._live().list_topics(timeout=self._client.ping_seconds)

    def _serve(self, seconds: float) -> None:
        try:
            self._live().poll(seconds)
        except KafkaException as exception:
            self._refuse("poll", exception)

    def _check_fatal(self, doing: str) -> None:
        if self._client.fatal is not None:
            error = translate(self._client.fatal, f"{self._id}: {doing}")
            raise error if isinstance(error, FencedError) else FatalLogError(str(error))


class KafkaProducer(_Sender):
    """`store.log.protocol.Producer` over one librdkafka producer. Not thread-safe."""

    def __init__(
        self,
        client: Client,
        producer: ClientProducer,
        transactional_id: str,
        transaction_timeout_ms: int,
        metadata: Callable[[str], object],
        batches: BatchBytes,
        lineages: Lineages,
    ) -> None:
        super().__init__(client, producer, transactional_id, batches)
        self._lineages = lineages
        self._timeout_ms = transaction_timeout_ms
        self._metadata = metadata
        self._open = False
        self._commit_sent = False
        self._fenced: str | None = None

    @_remembers_fencing
    def init_transactions(self) -> None:
        # Without a connection to any broker the client looks for the coordinator only every half second.
        self._repeat("init_transactions", lambda seconds: self._live().list_topics(timeout=seconds))
        self._repeat(
            f"init_transactions with transaction.timeout.ms={self._timeout_ms}",
            lambda seconds: self._live().init_transactions(seconds),
        )

    @_remembers_fencing
    def begin_transaction(self) -> None:
        self._repeat("begin_transaction", lambda _seconds: self._live().begin_transaction())
        self._begin_deliveries()
        self._open = True

    @_remembers_fencing
    def _look_around(self, topic: str, timestamp: int | None) -> None:
        super()._look_around(topic, timestamp)

    @_remembers_fencing
    def _wait_for_room(self, topic: str, deadline: float) -> float:
        return super()._wait_for_room(topic, deadline)

    @_remembers_fencing
    def _refuse_record(self, exception: KafkaException, topic: str, partition: int | None) -> NoReturn:
        super()._refuse_record(exception, topic, partition)

    @_remembers_fencing
    def flush(self) -> Mapping[TopicPartition, int]:
        return self._drain()

    def first_offsets(self) -> Mapping[TopicPartition, int]:
        return _by_partition(self._deliveries.first)

    @_remembers_fencing
    def send_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str = "",
        *,
        membership: Membership | None = None,
    ) -> None:
        positions = as_committed(offsets, metadata, self._lineages)
        if membership is None:
            group = self._metadata(group_id)
        else:
            assert isinstance(membership, KafkaMembership)
            if membership.group_id != group_id:
                raise ProtocolError(f"{self._id}: a member of {membership.group_id} sends for {group_id}")
            group = membership.native
        self._serve(0)
        if self._client.lost_all:
            # A client that has forgotten all brokers never returns from send_offsets.
            self._client.lost_all = False
            self._repeat("send_offsets", lambda seconds: self._live().list_topics(timeout=seconds))
        self._repeat(
            f"send_offsets of group {group_id}",
            lambda seconds: self._live().send_offsets_to_transaction(positions, group, seconds),
        )

    @_remembers_fencing
    def commit_transaction(self) -> None:
        doing = f"{self._id}: commit_transaction"

        def commit(seconds: float) -> None:
            try:
                self._live().commit_transaction(seconds)
            except KafkaException as exception:
                error = cause_of(exception)
                self._commit_sent = self._commit_sent or error.retriable()
                raise

        try:
            repeat(self._client, doing, commit, self._ping)
        except (FencedError, AbortRequiredError, ProtocolError):
            raise
        except CrashproofError as error:
            if self._commit_sent:
                raise OutcomeUnknownError(f"{error}. The transaction may or may not be committed") from error
            raise
        self._end()

    def abort_transaction(self) -> None:
        self._abort()
        if self._deliveries.is_divisible:
            raise FatalLogError(f"{self._id}: aborted, and its next batches would be as large as that one")
        self._end()

    @_remembers_fencing
    def _abort(self) -> None:
        self._let_begin()
        if self._deliveries.failed and (why := _why(self._live())).code() in FORGOTTEN:
            # The client would abort, and go on with another producer id.
            raise translate(why, f"{self._id}: abort_transaction")
        self._repeat("abort_transaction", lambda seconds: self._live().abort_transaction(seconds))

    def _let_begin(self) -> None:
        """Have the transaction begin at the broker before it is aborted, if its records are on their way.

        While the broker still writes the markers of the last one, it refuses the first request of the next, which the
        client repeats. An abort in between would come before any that was taken: the broker knows of no transaction to
        end, and for the client that is fatal.
        """
        if self._deliveries.failed:
            return
        try:
            self._live().flush(STEP)
        except (KafkaException, SystemError):
            # What has become of this producer is what the abort is answered.
            LOGGER.debug("%s: could not be flushed before an abort", self._id, exc_info=True)

    def _fence(self, why: str | None) -> None:
        self._fenced = why
        if why is not None:
            self._send = None

    def _end(self) -> None:
        self._open = False
        self._commit_sent = False
        self._begin_deliveries()

    def _repeat(self, doing: str, call: Callable[[float], object]) -> None:
        try:
            repeat(self._client, f"{self._id}: {doing}", call, self._ping)
        except RetriableError as error:
            if self._commit_sent:
                raise OutcomeUnknownError(
                    f"{error}. An earlier commit was sent and never answered"
                ) from error
            raise

    def _refuse(self, doing: str, exception: KafkaException) -> NoReturn:
        cause = cause_of(exception)
        if cause.code() in (KafkaError._FATAL, KafkaError._STATE):
            self._check_fatal(doing)
        if self._commit_sent:
            raise OutcomeUnknownError(f"{self._id}: {doing}: a commit was sent and never answered")
        producing = self._open and doing.startswith("produce to ")
        if producing and cause.code() == KafkaError._STATE:
            # The client refuses more records after one has failed, without saying so.
            self._serve(0)
            self._check_deliveries()
            raise AbortRequiredError(f"{self._id}: {doing}: an earlier record of the transaction failed")
        error = translate(cause, f"{self._id}: {doing}")
        if producing and cause.code() == KafkaError._UNKNOWN_TOPIC:
            # The client knows already what a flush would have said of the record.
            raise AbortRequiredError(str(error)) from exception
        raise error from exception

    def _check_deliveries(self) -> None:
        failure = self._deliveries.failure
        if failure is not None:
            if failure.code() not in FENCED:
                self._check_fatal("a record was not delivered")
            if failure.code() in FOLLOWING:
                # Where a topic could not be added to the transaction, for one, no report says so.
                why = _why(self._live())
                failure = failure if why.code() == KafkaError._STATE else why
            error = translate(failure, f"{self._id}: {self._deliveries.which} was not delivered")
            refused = self._deliveries
            if refused.refused and failure.code() in REFUSED and not failure.fatal():
                raise RecordRefusedError(str(error), refused.refused, by_time=refused.by_time)
            raise (
                error
                if isinstance(error, FencedError | FatalLogError)
                and (failure.fatal() or failure.code() in FENCED)
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
        self,
        client: Client,
        producer: ClientProducer,
        committer: Callable[[str], Consumer],
        batches: BatchBytes,
        lineages: Lineages,
    ) -> None:
        super().__init__(client, producer, "the plain producer", batches)
        self._lineages = lineages
        self._make_committer = committer
        self._committers: dict[str, Consumer] = {}

    def flush(self) -> Mapping[TopicPartition, int]:
        try:
            reached = self._drain()
        except RecordLostError:
            if self._deliveries.is_of_one and not len(self._live()):
                self._begin_deliveries()
            raise
        self._begin_deliveries()
        return reached

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
    ) -> None:
        self._live()
        if not offsets:
            return
        if group_id not in self._committers:
            self._committers[group_id] = self._make_committer(group_id)
        committer = self._committers[group_id]
        positions = as_committed(offsets, metadata, self._lineages)

        def commit(seconds: float) -> None:
            # The commit takes no time limit, and without a broker it waits for one.
            committer.list_topics(timeout=seconds)
            for answer in committer.commit(offsets=positions, asynchronous=False) or ():
                if answer.error is not None:
                    raise KafkaException(answer.error)

        repeat(self._client, f"commit_offsets of group {group_id}", commit, self._ping)

    def close(self) -> None:
        committers = list(self._committers.values())
        self._committers.clear()
        super().close()
        for committer in committers:
            committer.close()

    def _refuse(self, doing: str, exception: KafkaException) -> NoReturn:
        error = translate(cause_of(exception), f"{self._id}: {doing}")
        # Nobody can fence it: an epoch that the broker does not take any more is its own trouble.
        raise FatalLogError(str(error)) if isinstance(error, FencedError) else error from exception

    def _check_fatal(self, doing: str) -> None:
        if self._client.fatal is not None:
            raise FatalLogError(f"{self._id}: {doing}: {self._client.fatal.str()}")

    def _check_deliveries(self) -> None:
        # A record that did not arrive is not sent again; only from the committed position on it is made anew.
        failure = self._deliveries.failure
        if failure is not None:
            text = text_of(failure, f"{self._id}: {self._deliveries.which} was not delivered")
            if self._deliveries.refused:
                raise RecordLostError(text, self._deliveries.refused, by_time=self._deliveries.by_time)
            raise FatalLogError(text)
        if self._deliveries.lost is not None:
            raise FatalLogError(
                f"{self._id}: the broker has a record in {self._deliveries.lost}, but the answer with its "
                "offset was lost"
            )
