"""One consumer that streams many partitions, and what it has fetched of each that nobody has asked for yet.

A consumer has one queue, in which the partitions come as they were fetched. Whoever reads one of them takes what comes
of the others aside, into a buffer of each, so that nothing is fetched twice. What is kept aside is bounded: a partition
that goes beyond is taken away from the consumer, and given back when its buffer has been read. Giving it back, or
moving to another offset, names the offset: it does not depend on what the client thinks has been delivered.

What is kept are the fields of records, as plain tuples in a plain tuple: the garbage collector forgets those when it
has seen them once. Each message or record counts as long as it lives, and has it go through the whole process the more
often, so there are few of either at any time.

Must survive: messages of a place that was left, which may still be in the client's queue, and errors of one partition
that come while another is read. Those are kept for who reads it. And a leader without all records that were read: what
comes is kept only where it is of the leader that wrote those, or its leader was asked (see `store.log.kafka.lineage`).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from itertools import repeat as endlessly
from operator import itemgetter
from types import NoneType
from typing import cast, overload

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka._types import HeadersType

from store.log.kafka.client import number
from store.log.kafka.errors import cause_of
from store.log.kafka.lineage import Before, Lineages, Trail, is_truncation, truncation
from store.log.size import MAX_FETCH_BYTES, Row, fitting, size_of
from store.types import UNREADABLE, Headers, Record, TopicPartition

MOST_BYTES = 64 << 20
"""What may be kept aside of partitions that are not being read, about."""

MOST_MESSAGES = 200_000
"""The same in messages, of which each takes some hundred bytes more than what is in it."""

UNREAD_S = 10.0
"""A partition that was not read for so long, while others were, is let go, with what was kept of it."""

_BATCH = 1_000
"""Messages that are taken out of the client at once."""

_NEW_TUPLE: Callable[..., Record] = tuple.__new__

_NOT_BEGUN = frozenset(
    {
        KafkaError._STATE,
        KafkaError._PREV_IN_PROGRESS,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
"""What the client says of a place in a partition that it was given and has not begun with."""

_offset: Callable[[Row], int] = itemgetter(Record._fields.index("offset"))


class Records(Sequence[Record]):
    """Records that are made when they are asked for."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Record]:
        return map(_NEW_TUPLE, endlessly(Record), self._rows)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return list(Records(self._rows[index]))
        return Record(*self._rows[index])


class Inflow:
    """One partition as it comes in, from the offset on at which it is read."""

    __slots__ = (
        "asks",
        "assigned",
        "at_end",
        "begins_again",
        "bytes",
        "confirmed",
        "doubted",
        "error",
        "fetched",
        "gap",
        "given",
        "kept",
        "last",
        "last_read",
        "parted",
        "place",
        "served",
        "since",
        "trail",
        "unasked",
        "waiting",
    )

    def __init__(self, place: TopicPartition, offset: int, before: Before | None = None) -> None:
        self.place = place
        self.kept: deque[tuple[Row, ...]] = deque()
        """What was fetched and not read, without errors, in order."""
        self.last: tuple[int, list[tuple[Row, ...]]] = offset, []
        """Where the last read began, and what it was given."""
        self.given = 0
        """How many bytes that is."""
        self.bytes = 0
        """The keys, values and headers of what is kept."""
        self.waiting = 0
        """How many messages are kept. Counted as they come and go: they may have come in a thousand small pieces."""
        self.fetched = offset
        """Where the consumer stands: behind all that is kept, and behind markers."""
        self.served = offset
        """Where the next read goes on."""
        self.since = offset
        """Behind the last record that was read. Up to `served` there is none."""
        self.at_end = False
        """Whether the consumer has met the end behind what is kept, and nothing since."""
        self.error: KafkaError | None = None
        """What the consumer has met behind what is kept."""
        self.assigned = False
        self.last_read = time.monotonic()
        self.trail = Trail(offset, before)
        self.gap = range(0)
        """Offsets without records through which the consumer comes to where it goes on, until it has."""
        self.asks = False
        """Whether the leader is to be asked as the consumer is told where to go on."""
        self.confirmed = False
        """Whether it was, and nothing has come since."""
        self.doubted = False
        """Whether a leader has said so, and was not asked again."""
        self.begins_again = False
        """Whether the consumer is to be told anew where to go on."""
        self.unasked = False
        """Whether its leader has yet to be asked, so that what comes until then does not count."""
        self.parted = False
        """Whether the log is not the one that was read before, so that nothing more of it counts."""

    def goes_on_at(self, offset: int) -> bool:
        """Whether what comes next is what follows `offset`; a part of the last read may be taken back for that."""
        began, rows = self.last
        if began <= offset < self.since and rows:
            for some in reversed(rows):
                again = some[bisect_left(some, offset, key=_offset) :]
                if again:
                    self.kept.appendleft(again)
                    self.bytes += size_of(again)
                    self.waiting += len(again)
            self.since = self.served = offset
        if not self.since <= offset <= self.served:
            return False
        self.last, self.given = (self.since, []), 0
        return True

    def take(self, most: int) -> Records:
        """Up to that many of the records that are kept, as long as the read has no more than `MAX_FETCH_BYTES`. They
        count as read. What is kept then is beyond one of the two."""
        taken: list[Row] = []
        while self.kept and len(taken) < most:
            kept = self.kept[0]
            rows = kept[: most - len(taken)]
            size = size_of(rows)
            if self.given + size > MAX_FETCH_BYTES:
                number = fitting(rows, MAX_FETCH_BYTES - self.given)
                if number == 0 and self.last[1]:
                    break
                rows = rows[: max(1, number)]
                size = size_of(rows)
            self.kept.popleft()
            if len(rows) < len(kept):
                self.kept.appendleft(kept[len(rows) :])
            self.given += size
            self.bytes -= size
            self.waiting -= len(rows)
            taken += rows
            self.last[1].append(rows)
        if taken:
            self.since = self.served = _offset(taken[-1]) + 1
        if not self.kept:
            self.served = self.fetched
        return Records(taken)

    def start(self) -> ClientPartition:
        """Where the consumer is to go on, and what its leader is to be asked for, if it is."""
        before = self.trail.before(self.fetched) if self.asks else None
        self.confirmed, self.asks = before is not None, False
        if before is None:
            self.gap = range(0)
            return ClientPartition(*self.place, self.fetched)
        self.gap = range(before.behind, self.fetched)
        return ClientPartition(*self.place, before.behind, "", before.epoch)

    def add(self, messages: Sequence[Message]) -> None:
        """Keep what came in, without what lies before the place where the consumer was told to go on."""
        if self.parted or self.unasked or self.begins_again:
            return
        if number(messages[0].offset()) < self.fetched:
            for message in messages:
                if number(message.offset()) in self.gap:
                    self.parted = True
                    self.error = truncation(self.place, self.fetched, number(message.offset()))
                    return
            messages = [message for message in messages if number(message.offset()) >= self.fetched]
            if not messages:
                return
        if not self.confirmed and self.trail.is_not_of(messages[-1].leader_epoch()):
            self.begins_again = self.asks = True
            return
        self.gap, self.doubted, self.confirmed = range(0), False, False
        rows = _rows(self.place, messages)
        self.kept.append(rows)
        self.bytes += size_of(rows)
        self.waiting += len(rows)
        self.fetched = _offset(rows[-1]) + 1
        self.at_end = False
        if messages[0].leader_epoch() == messages[-1].leader_epoch():
            self.trail.came(_offset(rows[0]), self.fetched, messages[0].leader_epoch())
            return
        for epoch, run in groupby(messages, Message.leader_epoch):
            offsets = [number(message.offset()) for message in run]
            self.trail.came(offsets[0], offsets[-1] + 1, epoch)

    def met(self, error: KafkaError, offset: int | None) -> None:
        if self.unasked or self.begins_again:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            if number(offset) >= self.fetched:
                self.gap = range(0)
            self.fetched = max(self.fetched, number(offset))
            self.trail.passed(self.fetched)
            self.doubted = False
            self.at_end = True
            if not self.kept:
                self.served = self.fetched
        elif is_truncation(error):
            # An answer may be that to a question which was asked of another place, before this one was gone on from.
            if self.doubted or self.trail.before(self.fetched) is None:
                self.parted = True
                self.error = error
            self.doubted = self.begins_again = self.asks = True
        elif self.gap and error.code() == KafkaError._AUTO_OFFSET_RESET:
            # The place behind the last record is gone. What is known is not where this one began, which may be there.
            self.trail = Trail(self.fetched)
            self.begins_again = True
        else:
            self.error = error


class Intake:
    """One consumer and the partitions that it streams. Not thread-safe."""

    def __init__(self, consumer: Consumer, lineages: Lineages | None = None) -> None:
        """`lineages` are told of what it reads, and asked for where it begins. Those of readers of committed records
        are theirs alone: to others what was aborted is there."""
        self.consumer = consumer
        self._lineages = lineages or Lineages()
        self.inflows: dict[TopicPartition, Inflow] = {}
        self.topics: set[str] = set()
        """Those that the consumer was told of."""
        self._unasked: dict[TopicPartition, ClientPartition] = {}
        """Where those begin whose leaders are to be asked, and were not."""
        self._asked = self._swept = time.monotonic()
        """When it was asked for anything last, and when it was swept."""

    def at(self, place: TopicPartition, offset: int) -> Inflow | None:
        """The partition as it comes in, if what comes next is what follows `offset`."""
        inflow = self.inflows.get(place)
        if inflow is None or not inflow.goes_on_at(offset):
            return None
        inflow.last_read = time.monotonic()
        return inflow

    def begin(self, places: Collection[tuple[TopicPartition, int]]) -> None:
        """Stream these from there on. What was kept of them is dropped."""
        self.let_go([place for place, _ in places])
        for place, offset in places:
            inflow = Inflow(place, offset, self._lineages.before(place, offset))
            self.inflows[place] = inflow
            self._lineages.follow(place, inflow.trail)
        self.resume([self.inflows[place] for place, _ in places])

    def resume(self, inflows: Collection[Inflow]) -> None:
        """Have the consumer go on with those that were taken away from it."""
        waiting = [inflow for inflow in inflows if not inflow.assigned]
        if waiting:
            starts = [inflow.start() for inflow in waiting]
            self.consumer.incremental_assign(starts)
            for inflow, start in zip(waiting, starts, strict=True):
                inflow.assigned = True
                if start.leader_epoch is not None:
                    inflow.unasked = True
                    self._unasked[inflow.place] = start
            self._ask()

    def _ask(self) -> None:
        """Have those leaders asked that are to be.

        A client that is given a partition asks only a leader that it has not heard of yet. It always asks where it is
        told to go on in another place, which it can be once it has begun with the partition; until then it may be
        letting go of what it had before.
        """
        for place, start in list(self._unasked.items()):
            try:
                self.consumer.seek(start)
            except KafkaException as exception:
                if cause_of(exception).code() not in _NOT_BEGUN:
                    raise
            else:
                self.inflows[place].unasked = False
                del self._unasked[place]

    def let_go(self, places: Collection[TopicPartition]) -> None:
        """Read no more of these, and drop what was kept of them."""
        known = [self.inflows.pop(place) for place in places if place in self.inflows]
        self._take_away(known)

    def sweep(self) -> None:
        """Let go of what was not read for long while others were. Called whenever it is about to be asked.

        A caller that is busy for long with what it was given comes back for all of them.
        """
        before, self._asked = self._asked, time.monotonic()
        if before - self._swept < UNREAD_S / 10:
            return
        self._swept = before
        self.let_go([place for place, one in self.inflows.items() if before - one.last_read > UNREAD_S])

    def pull(self, seconds: float, most: int, reading: Collection[TopicPartition]) -> bool:
        """Take in what has come, waiting up to `seconds` for the first; about `most`. Whether there was anything.

        Those that are `reading` are not held back, however much is kept of them. Raises `KafkaException` for errors
        that are not those of one partition.
        """
        try:
            self._ask()
            taken = 0
            while taken < most:
                size = min(most - taken, _BATCH)
                messages = self._consume(0 if taken else seconds, size)
                if messages:
                    came = [self._sort_in(place, run) for place, run in _runs(messages)]
                    self._hold_back([inflow for inflow in came if inflow and inflow.place not in reading])
                taken += len(messages)
                if len(messages) < size:
                    break
            return taken > 0
        except BaseException:
            # Nobody knows what of it was kept.
            self.let_go(list(self.inflows))
            raise

    def _consume(self, seconds: float, most: int) -> list[Message]:
        # consume() waits until it has all it was asked for; poll() until there is anything.
        messages = self.consumer.consume(most, 0)
        if messages or seconds <= 0:
            return messages
        first = self.consumer.poll(seconds)
        return [] if first is None else [first, *self.consumer.consume(most, 0)]

    def _sort_in(self, place: TopicPartition, messages: Sequence[Message]) -> Inflow | None:
        inflow = self.inflows.get(place)
        errors = list(map(Message.error, messages))
        # Not by counting None: the client's errors cannot be compared with it.
        if set(map(type, errors)) == {NoneType}:
            if inflow is not None:
                inflow.add(messages)
                self._go_on(inflow)
            return inflow
        begin = 0
        for index, error in enumerate(errors):
            if error is None:
                continue
            if inflow is not None:
                if begin < index:
                    inflow.add(messages[begin:index])
                inflow.met(error, messages[index].offset())
            elif place.partition < 0:
                raise KafkaException(error)
            begin = index + 1
        if inflow is not None:
            if begin < len(messages):
                inflow.add(messages[begin:])
            self._go_on(inflow)
        return inflow

    def _go_on(self, inflow: Inflow) -> None:
        """Let others know what has come, and have it begin anew where it asks for that."""
        self._lineages.follow(inflow.place, inflow.trail)
        if inflow.begins_again:
            inflow.begins_again = False
            self._take_away([inflow])

    def _hold_back(self, inflows: Collection[Inflow]) -> None:
        if not inflows:
            return
        # One that came in several runs is here as often, and the client ends its process over one taken away twice.
        inflows = dict.fromkeys(inflows)
        kept = self.inflows.values()
        if (
            sum(inflow.bytes for inflow in kept) > MOST_BYTES
            or sum(inflow.waiting for inflow in kept) > MOST_MESSAGES
        ):
            self._take_away(inflows)

    def _take_away(self, inflows: Collection[Inflow]) -> None:
        going = [inflow for inflow in inflows if inflow.assigned]
        for inflow in going:
            inflow.assigned = inflow.unasked = False
            self._unasked.pop(inflow.place, None)
        if going:
            self.consumer.incremental_unassign([ClientPartition(*inflow.place) for inflow in going])


def _runs(messages: Sequence[Message]) -> Iterator[tuple[TopicPartition, Sequence[Message]]]:
    """Those of one partition that follow one another."""
    topics = list(map(Message.topic, messages))
    partitions = list(map(Message.partition, messages))
    if len(set(partitions)) == 1 and len(set(topics)) == 1:
        yield _place(topics[0], partitions[0]), messages
        return
    for (topic, partition), run in groupby(zip(topics, partitions, messages, strict=True), itemgetter(0, 1)):
        yield _place(topic, partition), [message for _, _, message in run]


def _place(topic: str | None, partition: int | None) -> TopicPartition:
    """An error that is not one of a partition has none."""
    return TopicPartition(topic or "", -1 if partition is None else partition)


def _rows(place: TopicPartition, messages: Sequence[Message]) -> tuple[Row, ...]:
    """Field by field, which is twice as fast as record by record."""
    fields = zip(
        endlessly(place.topic),
        endlessly(place.partition),
        map(Message.offset, messages),
        map(Message.key, messages),
        map(Message.value, messages),
        [-1 if kind == TIMESTAMP_NOT_AVAILABLE else time for kind, time in map(Message.timestamp, messages)],
        _all_headers(messages),
        strict=False,
    )
    return cast(tuple[Row, ...], tuple(fields))


def _all_headers(messages: Sequence[Message]) -> list[Headers]:
    found: list[HeadersType | Headers | None] = []
    each = map(Message.headers, messages)
    while len(found) < len(messages):
        try:
            found.extend(each)
        except SystemError:
            # The client wants names to be UTF-8, as the protocol has them, which brokers do not check. It is asked once
            # of each message: the second answer would be memory that was never written.
            found.append(UNREADABLE)
    return [_headers(one) if one else UNREADABLE if one is UNREADABLE else () for one in found]


def _headers(headers: HeadersType | Headers) -> Headers:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
