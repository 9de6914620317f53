"""Joins of two tables by a foreign key: each row of one with that row of the other whose key its value names (KIP-213).

The two are partitioned differently, so it takes two trips. The task of a row subscribes it, by way of a topic, to its
foreign key, where the other table's task keeps it in a store. That answers at once with what it has under the key, and
again whenever that changes, by way of another topic, to the task of the row; it joins what it is told, and that is the
result. Each step is in its task's transaction, with what it has read: a crash repeats whole steps, each counts once.

Must survive: answers that are outdated when they arrive, as the row has another value by then. So a subscription has
a digest of the row's value, which each answer brings back, and one that is not about the value of now is dropped. That
leaves the right result, in whatever order the answers of several tasks come:

* For each value that a row has had there is one subscription that is answered. The answers to the last one are about
  the value of now for as long as nothing else changes.
* The foreign key is a function of the value, so all answers with one digest come from one task, in one order; it ends
  what was subscribed before what comes later begins. The last of them is of what the table has in the end.
* A row that is gone, or has no foreign key, has nothing to be joined with, whoever answers that.
* Now is what has been forwarded, on both sides, and not what a cache holds back: that may be taken back unseen.

So a row without a partner is answered too, in an inner join as well, and gives a deletion: there may be a result of an
earlier value, whose deletion was outdated when it came. Kafka Streams leaves that out for a row that is new, and such
a result in its table; `docs/kafka-streams-differences.md` has what else differs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from store.errors import SerdeError
from store.serdes import Serde
from store.state.timestamped import ValueAndTimestamp
from store.streams.dsl.operators import Getter, TableSource, current_only, known
from store.types import Headers

if TYPE_CHECKING:
    from store.streams.dsl.graph import Forward, Partitioner, Place

_DIGEST = 16
_LENGTH = struct.Struct(">I")
_PARTITION = struct.Struct(">I")
_VERSION = 1
_VERSIONS = 0x3F
_NO_DIGEST = 0x80
_NO_VALUE = 0x40


class Instruction(IntEnum):
    """What becomes of a row's subscription to a foreign key."""

    LEAVE = 0
    """It ends: the row is subscribed elsewhere."""
    LEAVE_AND_ANSWER = 1
    """It ends, and the row is told that it has no partner."""
    SUBSCRIBE = 2
    """It begins, and the row is told its partner, or that it has none."""


class Subscription(NamedTuple):
    """What the task of a row says to that of its foreign key."""

    digest: bytes | None
    """Of the row's value; None where it has none any more."""
    instruction: Instruction
    key: Any
    """Of the row."""
    partition: int
    """Of the row's task, where answers go."""


class Answer(NamedTuple):
    """What comes back: the partner's value, None for no partner."""

    digest: bytes | None
    value: Any
    partition: int = -1
    """Where it goes. Not written."""


@dataclass(frozen=True)
class SubscriptionSerde:
    """A byte of version and flags, the instruction, the digest, the partition, the key."""

    key_serde: Serde[Any]

    def serialize(self, value: Subscription) -> bytes:
        digest, instruction, key, partition = value
        head = bytes((_VERSION | (_NO_DIGEST if digest is None else 0), instruction))
        return head + (digest or b"") + _PARTITION.pack(partition) + self.key_serde.serialize(key)

    def deserialize(self, data: bytes) -> Subscription:
        flags = _flags(data)
        digest, rest = _digest_in(data, 2, flags)
        (partition,) = _PARTITION.unpack_from(data, rest)
        key = self.key_serde.deserialize(data[rest + _PARTITION.size :])
        return Subscription(digest, Instruction(data[1]), key, partition)


@dataclass(frozen=True)
class AnswerSerde:
    """A byte of version and flags, the digest, the value."""

    value_serde: Serde[Any]

    def serialize(self, value: Answer) -> bytes:
        digest, found, _ = value
        flags = _VERSION | (_NO_DIGEST if digest is None else 0) | (_NO_VALUE if found is None else 0)
        return (
            bytes((flags,)) + (digest or b"") + (b"" if found is None else self.value_serde.serialize(found))
        )

    def deserialize(self, data: bytes) -> Answer:
        flags = _flags(data)
        digest, rest = _digest_in(data, 1, flags)
        return Answer(digest, None if flags & _NO_VALUE else self.value_serde.deserialize(data[rest:]))


def _flags(data: bytes) -> int:
    if data[0] & _VERSIONS != _VERSION:
        raise ValueError(
            f"a message between the tables of a join has the version {data[0] & _VERSIONS}, not 1"
        )
    return data[0]


def _digest_in(data: bytes, at: int, flags: int) -> tuple[bytes | None, int]:
    if flags & _NO_DIGEST:
        return None, at
    return data[at : at + _DIGEST], at + _DIGEST


@dataclass(frozen=True)
class OfKey:
    """A partitioner of the user's, which decides by the key alone."""

    partitioner: Partitioner

    def __call__(self, key: Any, _value: Any) -> int | Collection[int] | None:
        return None if key is None else self.partitioner(key, None)


def back_to_the_row(_key: Any, answer: Answer) -> int:
    """The partition of an answer."""
    return answer.partition


@dataclass(frozen=True)
class Digested:
    """The digest of a value, by its bytes."""

    value_serde: Serde[Any]
    operator: str

    def __call__(self, value: Any) -> bytes:
        try:
            data = self.value_serde.serialize(value)
        except Exception as error:
            raise SerdeError(
                f"{self.operator}: {type(self.value_serde).__name__} cannot serialize a value of type "
                f"{type(value).__name__}: {error}. Say with the serde of the table's Materialized what its values are"
            ) from error
        return blake2b(data, digest_size=_DIGEST).digest()


@dataclass
class Subscribe:
    """Updates of rows as subscriptions to their foreign keys."""

    foreign_key: Callable[..., Any]
    """Takes the value of a row, with its key before it if `with_key`."""
    with_key: bool
    foreign_key_serde: Serde[Any]
    value_serde: Serde[Any]
    left: bool = False
    versioned: bool = False
    """Whether the table is: then what is outdated is not told."""

    def bind(self, place: Place) -> Forward:
        forward: Forward = place.forward
        foreign_key, key_bytes = self._foreign_key(), self.foreign_key_serde.serialize
        digest_of = Digested(self.value_serde, place.name)
        partition, dropped = place.task.task_partition, place.dropped("has no foreign key")

        def process(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
            before = None if old is None else foreign_key(key, old)
            if new is None:
                if old is not None:
                    says = Instruction.SUBSCRIBE if before is None else Instruction.LEAVE_AND_ANSWER
                    forward(before, Subscription(None, says, key, partition), timestamp, headers)
                return
            now = foreign_key(key, new)
            if now is None and not self.left:
                dropped()
            digest = digest_of(new)
            if before is not None and now is None and not self.left:
                # The deletion is no older than the result that it deletes: the answer has the time of both.
                says = Instruction.LEAVE_AND_ANSWER
                forward(before, Subscription(digest, says, key, partition), timestamp, headers)
                return
            if before is not None and (now is None or key_bytes(before) != key_bytes(now)):
                forward(before, Subscription(digest, Instruction.LEAVE, key, partition), timestamp, headers)
            forward(now, Subscription(digest, Instruction.SUBSCRIBE, key, partition), timestamp, headers)

        return current_only(process, place) if self.versioned else process

    def _foreign_key(self) -> Callable[[Any, Any], Any]:
        of_value = self.foreign_key
        return of_value if self.with_key else lambda _key, value: of_value(value)


@dataclass(frozen=True)
class Rows:
    """How subscriptions are kept: under the foreign key, with its length before it, and the key of the row."""

    foreign_key_serde: Serde[Any]
    key_serde: Serde[Any]

    def prefix(self, foreign_key: Any) -> bytes:
        """What the rows of all that are subscribed to it begin with."""
        data = self.foreign_key_serde.serialize(foreign_key)
        return _LENGTH.pack(len(data)) + data

    def row(self, foreign_key: Any, key: Any) -> bytes:
        return self.prefix(foreign_key) + self.key_serde.serialize(key)


@dataclass
class KeepSubscriptions:
    """Keeps subscriptions for the updates to come, and hands them on to be answered."""

    store: str
    rows: Rows

    def bind(self, place: Place) -> Forward:
        forward: Forward = place.forward
        put = place.own_store(self.store).put
        row_of, value_bytes = self.rows.row, SubscriptionSerde(self.rows.key_serde).serialize

        def process(foreign_key: Any, subscription: Subscription, timestamp: int, headers: Headers) -> None:
            if foreign_key is not None:
                row = row_of(foreign_key, subscription.key)
                if subscription.instruction is Instruction.SUBSCRIBE:
                    put(row, ValueAndTimestamp(value_bytes(subscription), timestamp))
                else:
                    put(row, None)
            forward(foreign_key, subscription, timestamp, headers)

        return process


@dataclass
class AnswerOne:
    """Answers a subscription with what the table has now."""

    other: Getter

    def bind(self, place: Place) -> Forward:
        forward: Forward = place.forward
        get = known(self.other.view(place))

        def process(foreign_key: Any, subscription: Subscription, timestamp: int, headers: Headers) -> None:
            digest, instruction, key, partition = subscription
            if instruction is Instruction.LEAVE:
                return
            found = None if foreign_key is None else get(foreign_key)
            value = None
            if found is not None:
                timestamp = max(timestamp, found[1])
                if instruction is Instruction.SUBSCRIBE:
                    value = found[0]
            forward(key, Answer(digest, value, partition), timestamp, headers)

        return process


@dataclass
class AnswerAll:
    """An update of the table as answers to all that are subscribed to its key."""

    store: str
    rows: Rows
    versioned: bool = False
    """Whether the table is: then what is outdated is not told."""

    def bind(self, place: Place) -> Forward:
        forward: Forward = place.forward
        scan = place.task.own_stores[self.store].prefix_scan  # type: ignore[attr-defined]
        prefix_of, read = self.rows.prefix, SubscriptionSerde(self.rows.key_serde).deserialize

        def process(foreign_key: Any, new: Any, _old: Any, timestamp: int, headers: Headers) -> None:
            with scan(prefix_of(foreign_key)) as subscriptions:
                for _, kept in subscriptions:
                    digest, _, key, partition = read(kept.value)
                    forward(key, Answer(digest, new, partition), timestamp, headers)

        return current_only(process, place) if self.versioned else process


@dataclass
class JoinAnswers:
    """Answers with the values of their rows, as far as these are what the answers are about."""

    this: Getter
    value_serde: Serde[Any]
    joiner: Callable[[Any, Any], Any]
    left: bool

    def bind(self, place: Place) -> Forward:
        forward: Forward = place.forward
        get, joiner, left = known(self.this.view(place)), self.joiner, self.left
        dropped = place.dropped()
        digest_of = Digested(self.value_serde, place.name)

        def process(key: Any, answer: Answer, timestamp: int, headers: Headers) -> None:
            found = get(key)
            value = None if found is None else found[0]
            if answer.digest != (None if value is None else digest_of(value)):
                dropped()
            elif value is None or (answer.value is None and not left):
                forward(key, None, timestamp, headers)
            else:
                forward(key, joiner(value, answer.value), timestamp, headers)

        return process


@dataclass
class ForeignKeyResult(TableSource):
    """The result of an inner join as a table. Where it is kept, a deletion of what is not there is not forwarded."""

    def bind(self, place: Place) -> Forward:
        keep: Forward = super().bind(place)
        if not self.materialized:
            return keep
        get = place.table(self.store).get

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if value is not None or get(key) is not None:
                keep(key, value, timestamp, headers)

        return process
