"""Reading partitions by explicit offset, and the positions of groups.

Must survive: fetches that answer for a position that was left, ends of partitions that move while they are reported,
and a coordinator that is loading or holds a pending position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import repeat as endlessly

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka._types import HeadersType

from store.errors import LogError, ProtocolError, RetriableError
from store.log.kafka.client import CONSUMER, Built, Client, Config, build, number, repeat, settle_missing
from store.log.kafka.errors import MISSING, cause_of, translate
from store.log.protocol import Fetch, Offsets
from store.types import Headers, IsolationLevel, Record, TopicPartition

_STABLE_SECONDS = 1.0

_BATCH = 10_000
_READER_GROUP = "crashproof-reader"
_NEW_TUPLE: Callable[..., Record] = tuple.__new__


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
            endlessly(self.tp.topic),
            endlessly(self.tp.partition),
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
        records += map(_NEW_TUPLE, endlessly(Record), fields)
        self.position = records[-1].offset + 1


class KafkaReader:
    """`store.log.protocol.Reader`. Reads that follow one another in a partition stream. Not thread-safe."""

    def __init__(self, client: Client, config: Config) -> None:
        self._client = client
        self._config = config
        self._cursors: dict[IsolationLevel, _Cursor] = {}
        # Questions about offsets have connections of their own: on that of a cursor they wait behind a fetch.
        self._askers: dict[tuple[str, IsolationLevel], Consumer] = {}
        self._closed = False

    def partitions(self, topic: str) -> int:
        asker = self._asker()

        def ask(seconds: float) -> int:
            metadata = asker.list_topics(topic, seconds).topics[topic]
            if metadata.error is not None:
                raise KafkaException(metadata.error)
            return len(metadata.partitions)

        return self._repeat(f"partitions of {topic}", settle_missing(asker, topic, None, ask))

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        asker = self._asker(isolation=isolation)

        def ask(seconds: float) -> Offsets:
            bounds = asker.get_watermark_offsets(ClientPartition(tp.topic, tp.partition), seconds)
            if bounds is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return Offsets(*bounds)

        return self._repeat(f"offsets of {tp}", settle_missing(asker, *tp, ask))

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
                raise translate(cause_of(error), f"read of {tp} at {offset}") from error
            raise

    def committed(self, group_id: str, tp: TopicPartition) -> int | None:
        offset = self._committed(group_id, tp).offset
        return offset if offset >= 0 else None

    def committed_metadata(self, group_id: str, tp: TopicPartition) -> str:
        return self._committed(group_id, tp).metadata or ""

    def _committed(self, group_id: str, tp: TopicPartition) -> ClientPartition:
        # Under read_committed the client waits while a transaction holds an offset, and says it timed out.
        asker = self._asker(group_id)
        doing = f"committed offset of group {group_id} in {tp}"

        def ask(seconds: float) -> ClientPartition:
            (answer,) = asker.committed(
                [ClientPartition(tp.topic, tp.partition)], min(seconds, _STABLE_SECONDS)
            )
            if answer.error is not None:
                raise KafkaException(answer.error)
            return answer

        def ask_once_stable(seconds: float) -> ClientPartition:
            try:
                return ask(seconds)
            except KafkaException as exception:
                cause = cause_of(exception)
                if cause.code() not in (KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT):
                    raise
                asker.list_topics(timeout=self._client.ping_seconds)
                raise RetriableError(
                    f"{doing}: a transaction holds it, or the group's coordinator is not ready; ask again"
                ) from exception

        return self._repeat(doing, settle_missing(asker, *tp, ask_once_stable))

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
                    cursor.position = max(cursor.position, number(message.offset()))
                    if cursor.position >= self.offsets(tp, isolation).end:
                        cursor.at_end = True
                        return Fetch(records, cursor.position)
                elif error.code() in MISSING and self.partitions(tp.topic) > tp.partition:
                    # The client asks for a leader again by itself.
                    last = error
                else:
                    last = error
                    if not isinstance(translate(error, "read"), RetriableError):
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
        return repeat(self._client, doing, call, self._ping)

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
        return build(Consumer, self._client.config(CONSUMER, self._config, own))

    def _check_open(self) -> None:
        if self._closed:
            raise ProtocolError("the reader is closed")


def _headers(headers: HeadersType) -> Headers:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
