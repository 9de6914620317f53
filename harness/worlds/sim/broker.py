"""A Kafka cluster in one Python object: transactions as a real broker runs them, on a virtual clock.

`SimBroker` is the cluster (logs, transaction coordinator, group coordinator, time) and what the harness uses
to set up, to inspect and to let time pass. `SimLog` is one process's view of it and implements
`store.log.protocol`, so the code under test cannot tell it from `store.log.kafka`. The differential test
(`tests/sim`) holds both to the same answers.

What it must survive: any interleaving of clients, of which several may be incarnations of one transactional
id; a client that is dropped at any moment (a process crash: what it had queued is gone, what the broker has
stays until a successor or the timeout); markers that are written long after the commit was acknowledged.

Everything runs in the caller's thread (or greenlet) and nothing blocks. Where a real client would wait for
the cluster, the cluster does its part first; where it would wait for another client, `RetriableError` is
raised. Nothing here reads a clock, a random number or an unordered set: the same calls give the same logs.
Whatever a real cluster may do in more than one order or amount is asked of the chooser: see `QUESTIONS`.

Not modelled: several brokers, segments and batches of several records, retention by size, producers and
groups that the broker forgets after days without use, partitions added to a topic, size limits other than
`max.message.bytes`. A hanging transaction, which a killed broker may leave, hangs no longer than until time passes, or
the coordinator itself ends the transaction behind it: nobody could tell then what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from enum import StrEnum
from typing import NamedTuple, NoReturn, TypeVar

from harness.choices import Chooser, FirstChoice
from harness.schedule import MAX_TRANSACTION_TIMEOUT_MS
from harness.worlds.sim.group import (
    NO_GENERATION,
    Group,
    GroupPhase,
    Heartbeat,
    MemberView,
    Seat,
    SimMembership,
)
from harness.worlds.sim.partition import (
    NO_PRODUCER,
    AbortedRange,
    Entry,
    Kind,
    Partition,
    Writer,
    policy_of,
)
from store.errors import (
    AbortRequiredError,
    ConfigError,
    FatalLogError,
    FencedError,
    LogError,
    OutcomeUnknownError,
    ProtocolError,
    RecordLostError,
    RecordRefusedError,
    RetriableError,
)
from store.log.partitioner import partition_for
from store.log.protocol import (
    Assignor,
    Fetch,
    GroupClient,
    GroupMember,
    Membership,
    Offsets,
    Rebalance,
    TopicSpec,
)
from store.types import Headers, IsolationLevel, Record, TopicPartition

Option = TypeVar("Option")

_LAST_EPOCH = 32_766
"""From this epoch on, a new incarnation gets a new producer id instead of the next epoch."""

SEND_NOW = "whether queued records are sent otherwise than linger_records says"
MARK_NOW = "whether markers are written otherwise than hold_markers says"
MARKED_TRANSACTION = "which held transaction is marked first"
MARKED_PLACE = "which partition or group of a transaction is marked first"
KEYLESS_PARTITION = "which partition a record without a key takes"
LEFT_DIRTY = "how many offsets before the last that could be a cleaning stops"
LEFT_EXPIRED = "how many offsets before the last that could be retention stops"
MEMBER_PLACE = "how many places from the last a new member takes among those alike"
ON_ITS_WAY = (
    "whether what a reader is given of one of several inputs is all, nothing yet, or the first record"
)
QUESTIONS = (
    SEND_NOW,
    MARK_NOW,
    MARKED_TRANSACTION,
    MARKED_PLACE,
    KEYLESS_PARTITION,
    LEFT_DIRTY,
    LEFT_EXPIRED,
    MEMBER_PLACE,
    ON_ITS_WAY,
)
"""Everything that is asked of the chooser."""

_RECORD_OVERHEAD = 70
"""Bytes that a batch of one small record occupies beside key, value and headers."""

_MAX_METADATA = 4096
"""Characters that may be said beside a position (`offset.metadata.max.bytes`)."""

_TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
}


class Phase(StrEnum):
    """How far the coordinator is with the latest transaction of a transactional id."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare_commit"
    PREPARE_ABORT = "prepare_abort"
    COMPLETE_COMMIT = "complete_commit"
    COMPLETE_ABORT = "complete_abort"


class TransactionView(NamedTuple):
    """What the coordinator knows of one transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    phase: Phase
    partitions: tuple[TopicPartition, ...]
    """Partitions that have no marker of this transaction yet, in the order in which they joined."""
    groups: tuple[str, ...]
    """Groups whose offsets are still pending."""


class _Transaction:
    """The coordinator's state of one transactional id."""

    __slots__ = (
        "began_ms",
        "epoch",
        "groups",
        "partitions",
        "phase",
        "producer_id",
        "timeout_ms",
        "transactional_id",
    )

    def __init__(self, transactional_id: str, producer_id: int) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = -1
        self.phase = Phase.EMPTY
        self.timeout_ms = 0
        self.began_ms = 0
        self.partitions: dict[TopicPartition, None] = {}
        self.groups: dict[Group, None] = {}


class SimBroker:
    """The cluster. One thread, no blocking; `now` is its only clock (milliseconds, moved by `advance`).

    `linger_records`: how many queued records make a producer send them on its own, ahead of `flush`. None
    keeps all of them in the client until `flush`, `commit_transaction` or `SimProducer.deliver`; 1 sends each
    at once.

    `hold_markers` may be switched at any time: while it is set, commits and aborts are acknowledged and their
    markers wait for `settle`. A coordinator never starts a new transaction or a new incarnation of an id
    before the markers of its last one are written, so those calls settle that id first.

    A coordinator that dies may leave them out (`leave_out_markers`), as real ones have done: it takes the next
    transaction of that id, and where the two meet, the marker of the second is that of both.

    Logs are cleaned and cut only when the harness calls `compact`, `retain` or `delete_records`, which it may
    do at any moment.
    """

    __slots__ = (
        "_asks",
        "_choice",
        "_groups",
        "_held",
        "_leaving_out",
        "_left_out",
        "_made",
        "_next_producer_id",
        "_partitions",
        "_sent",
        "_topic_config",
        "_topic_ids",
        "_topics",
        "_transactions",
        "hold_markers",
        "linger_records",
        "max_transaction_timeout_ms",
        "now",
    )

    def __init__(
        self,
        *,
        linger_records: int | None = None,
        hold_markers: bool = False,
        max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
        now: int = 0,
        chooser: Chooser | None = None,
    ) -> None:
        if linger_records is not None and linger_records < 1:
            raise ConfigError("linger_records", linger_records, "None or a number of records from 1 on")
        self.linger_records = linger_records
        self.hold_markers = hold_markers
        self.max_transaction_timeout_ms = max_transaction_timeout_ms
        self.now = now
        self._choice = FirstChoice().choose if chooser is None else chooser.choose
        self._asks = chooser is not None and not isinstance(chooser, FirstChoice)
        """Whether any answer can be another one than the first."""
        self._topics: dict[str, list[Partition]] = {}
        self._partitions: dict[TopicPartition, Partition] = {}
        self._topic_config: dict[str, dict[str, str]] = {}
        self._topic_ids: dict[str, str] = {}
        self._made = 0
        self._groups: dict[str, Group] = {}
        self._transactions: dict[str, _Transaction] = {}
        self._held: dict[str, _Transaction] = {}
        self._leaving_out: dict[str, None] = {}
        """Transactional ids of which the next commit has no markers."""
        self._left_out: dict[str, _Transaction] = {}
        """What such commits lack."""
        self._next_producer_id = 0
        self._sent = 0

    # Setting up, outside any transaction.

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create, or pass over when it exists with as many partitions; `LogError` when with others."""
        existing = self._topics.get(name)
        if existing is not None:
            if len(existing) != partitions:
                raise LogError(
                    f"topic {name!r} exists with {len(existing)} partitions, {partitions} were asked for; "
                    "delete it or use another name"
                )
            return
        if partitions < 1:
            raise ConfigError(f"partitions of topic {name}", partitions, "at least 1")
        self._topic_config[name] = dict(config or {})
        self._made += 1
        self._topic_ids[name] = f"topic {self._made}"
        policy = policy_of(name, self._topic_config[name])
        logs = [Partition(TopicPartition(name, number), policy) for number in range(partitions)]
        self._topics[name] = logs
        self._partitions.update({log.tp: log for log in logs})

    def topic_config(self, name: str) -> dict[str, str]:
        """The settings that the topic was created with; `LogError` when it does not exist."""
        self._logs(name)
        return dict(self._topic_config[name])

    def delete_topic(self, name: str) -> None:
        """Forget a topic, its records and its positions, committed and pending. Passed over if there is none.

        Markers that it is still owed go to a topic of that name, if there is one again by then.
        """
        for log in self._topics.pop(name, ()):
            log.deleted = True
            del self._partitions[log.tp]
        self._topic_config.pop(name, None)
        self._topic_ids.pop(name, None)
        for group in self._groups.values():
            for positions in (group.committed, *group.pending.values()):
                for tp in [tp for tp in positions if tp.topic == name]:
                    del positions[tp]

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> int:
        """Write one record outside any transaction. Returns its offset."""
        log = self._choose(topic, key, partition)
        refusal = _refusal(log, key, value, headers)
        if refusal is not None:
            raise LogError(refusal)
        offset = len(log.records)
        at = self.now if timestamp is None or log.policy.append_time else timestamp
        log.append(Record(log.tp.topic, log.tp.partition, offset, key, value, at, headers))
        return offset

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
    ) -> None:
        """A consumer's own commit, outside any transaction. It outlives pending offsets sent before it.

        Raises `LogError` while the group has members: it takes positions from nobody else.
        """
        group = self._group(group_id)
        if group.phase is not GroupPhase.EMPTY:
            raise LogError(f"group {group_id!r} has members, and takes no positions from anybody else")
        self._take_positions(group, offsets, metadata)

    def _take_positions(self, group: Group, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        _check_length(metadata)
        for tp, position in offsets.items():
            self._log(tp)
            self._sent += 1
            group.metadata.pop(group.committed.get(tp, (0, 0))[0], None)
            group.committed[tp] = (self._sent, position)
            group.committed_ms[tp] = self.now
            if metadata:
                group.metadata[self._sent] = metadata

    def forget_group(self, group_id: str) -> None:
        """Drop a group's committed positions, as retention does (`offsets.retention.minutes`)."""
        group = self._groups.get(group_id)
        if group is not None:
            group.committed.clear()
            if group.phase is GroupPhase.EMPTY:
                del self._groups[group_id]

    def forget_positions(self, group_id: str, tps: Iterable[TopicPartition]) -> None:
        """Drop a group's committed positions of some partitions, as their age or a person with a tool does."""
        group = self._groups.get(group_id)
        if group is not None:
            for tp in tps:
                group.committed.pop(tp, None)

    def ages_ms(self, group_id: str) -> dict[TopicPartition, int]:
        """How long ago each position of a group was committed."""
        group = self._groups.get(group_id)
        if group is None:
            return {}
        return {tp: self.now - group.committed_ms[tp] for tp in group.committed}

    # Time and markers.

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass.

        A transaction whose time is up is aborted and its producer fenced; a member that was not heard of for its
        session timeout is removed from its group.
        """
        self.now += ms
        for txn in self._transactions.values():
            if txn.phase is Phase.ONGOING and self.now - txn.began_ms >= txn.timeout_ms:
                self._mark_left_out(txn.transactional_id)
                txn.epoch += 1
                self._prepare(txn, Phase.PREPARE_ABORT)
        for group in self._groups.values():
            group.pass_time(self.now)

    def settle(self, limit: int | None = None, transactional_id: str | None = None) -> int:
        """Write markers that are held, at most `limit`, of all ids (oldest transaction first) or of one.

        Returns how many were written. Within a transaction partitions come in the order in which they joined,
        then groups: one unit each. The chooser may say otherwise.
        """
        written = 0
        if limit is None and transactional_id is None:
            for one in list(self._left_out):
                written += self._mark_left_out(one)
        while self._held and (limit is None or written < limit):
            if transactional_id is None:
                txn = self._pick(MARKED_TRANSACTION, list(self._held.values()))
            elif transactional_id in self._held:
                txn = self._held[transactional_id]
            else:
                break
            self._mark_next(txn)
            written += 1
        return written

    @property
    def owes_markers(self) -> bool:
        """Whether a transaction is decided whose markers are not all written."""
        return bool(self._held or self._left_out)

    def leave_out_markers(self, transactional_id: str) -> None:
        """The next commit of the id is acknowledged without its markers."""
        self._leaving_out[transactional_id] = None

    # What does not stay in a log.

    def compact(self, tp: TopicPartition, end: int | None = None) -> int:
        """Clean the log once, below `end` or as far as a broker may. Returns how many records it took.

        Neither what is at or behind the last stable offset is cleaned nor the newest batch, and nothing happens
        when nothing was added since the cleaning before, or the topic's `cleanup.policy` lacks `compact`.
        """
        log = self._log(tp)
        last = log.cleanable(self.now)
        if end is None:
            most = last - log.cleaned
            end = last if most <= 1 else last - self._choice(LEFT_DIRTY, most)
        end = min(end, last)
        if not log.policy.compact or end <= log.cleaned:
            return 0
        return log.clean(end, self.now)

    def retain(self, tp: TopicPartition) -> int:
        """Cut off what is older than the topic's `retention.ms`, up to the first that is not. Returns the start.

        Open transactions do not hold it up. Nothing happens when `cleanup.policy` lacks `delete`.
        """
        log = self._log(tp)
        if log.policy.delete and log.policy.retention_ms >= 0:
            expired = log.expired(self.now - log.policy.retention_ms)
            if expired > log.start:
                expired -= self._choice(LEFT_EXPIRED, expired - log.start + 1)
            log.truncate(expired)
        return log.start

    def delete_records(self, tp: TopicPartition, offset: int) -> int:
        """Cut off everything below `offset`, or below the high watermark when it is -1. Returns the start.

        A lower `offset` than the start changes nothing; an open transaction does not hold it up. Raises
        `LogError` beyond the high watermark, and for a topic with `cleanup.policy=compact` alone.
        """
        log = self._log(tp)
        if not log.policy.delete:
            raise LogError(f"records of {tp} cannot be deleted: its cleanup.policy is compact")
        end = len(log.records)
        if not -1 <= offset <= end:
            raise LogError(f"records of {tp} below {offset} cannot be deleted: the log ends at {end}")
        log.truncate(end if offset == -1 else offset)
        return log.start

    # Inspection: what lies on the broker, seen by nobody but the harness.

    def topics(self) -> dict[str, int]:
        """Partitions by topic, in the order of creation."""
        return {name: len(logs) for name, logs in self._topics.items()}

    def entries(self, tp: TopicPartition) -> list[Entry]:
        """What lies at each offset of the log, in order: markers, aborted records and empty batches too."""
        return self._log(tp).entries()

    def visible(self, tp: TopicPartition, isolation: IsolationLevel) -> list[Record]:
        """What a reader at `isolation` gets from the first offset on."""
        return list(self._log(tp).read(0, None, isolation).records)

    def first_visible(self, tp: TopicPartition) -> int:
        """The offset of the first record that a reader at READ_COMMITTED gets, or else where such readers end."""
        visible = self.visible(tp, IsolationLevel.READ_COMMITTED)
        return visible[0].offset if visible else self._log(tp).last_stable()

    def log(self, tp: TopicPartition) -> Partition:
        """The log of a partition, for whoever looks at it often and deletes no topic."""
        return self._log(tp)

    def high_watermark(self, tp: TopicPartition) -> int:
        return len(self._log(tp).records)

    def holds_back(self, tp: TopicPartition) -> bool:
        """Whether committed records cannot be read yet, because a transaction is open in front of them."""
        return self._log(tp).holds_back()

    def start_offset(self, tp: TopicPartition) -> int:
        return self._log(tp).start

    def cleaned_offset(self, tp: TopicPartition) -> int:
        """The first offset that no compaction has covered yet."""
        return self._log(tp).cleaned

    def last_stable_offset(self, tp: TopicPartition) -> int:
        return self._log(tp).last_stable()

    def aborted(self, tp: TopicPartition) -> Sequence[AbortedRange]:
        """The aborted ranges in the order of their markers, whether or not the log still holds them."""
        return self._log(tp).aborted

    def groups(self) -> list[str]:
        return list(self._groups)

    def rebalances(self, group_id: str) -> tuple[GroupPhase, int]:
        """Where a group is between two generations, and the number of the last one."""
        group = self._groups.get(group_id)
        return (GroupPhase.EMPTY, 0) if group is None else (group.phase, group.generation)

    def expel(self, group_id: str, member_id: str) -> None:
        """Remove a member that lives on, as a person with a tool does, or its session that ended on the way."""
        group = self._groups[group_id]
        seat = group.seat(member_id)
        if seat is not None:
            group.leave(seat, self.now)

    def members(self, group_id: str) -> list[MemberView]:
        """The members of a group in the order in which an assignor goes through them."""
        return self._group(group_id).members()

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """The positions that count now, whatever is pending."""
        return {tp: position for tp, (_, position) in self._group(group_id).committed.items()}

    def committed_offset(self, group_id: str, tp: TopicPartition) -> int | None:
        """The position of one partition that counts now, None if there is none."""
        committed = self._group(group_id).committed.get(tp)
        return None if committed is None else committed[1]

    def pending_offsets(self, group_id: str) -> list[tuple[int, TopicPartition, int]]:
        """Producer id, partition and position of every offset sent in a transaction that has not ended."""
        return [
            (producer_id, tp, position)
            for producer_id, sent in self._group(group_id).pending.items()
            for tp, (_, position) in sent.items()
        ]

    def transactions(self) -> list[TransactionView]:
        """All transactional ids, in the order of their first `init_transactions`."""
        return [
            TransactionView(
                txn.transactional_id,
                txn.producer_id,
                txn.epoch,
                txn.phase,
                tuple(txn.partitions),
                tuple(group.group_id for group in txn.groups),
            )
            for txn in self._transactions.values()
        ]

    # The transaction coordinator.

    def _init(self, transactional_id: str, timeout_ms: int) -> _Transaction:
        txn = self._transactions.get(transactional_id)
        if txn is None:
            txn = _Transaction(transactional_id, self._new_producer_id())
            self._transactions[transactional_id] = txn
        else:
            self._mark_left_out(transactional_id)
        if txn.phase is Phase.ONGOING:
            txn.epoch += 1
            self._prepare(txn, Phase.PREPARE_ABORT)
        self._complete(txn)
        if txn.epoch >= _LAST_EPOCH:
            txn.producer_id = self._new_producer_id()
            txn.epoch = -1
        txn.epoch += 1
        txn.timeout_ms = timeout_ms
        txn.phase = Phase.EMPTY
        return txn

    def _join(self, txn: _Transaction) -> None:
        """The first record or offset of a transaction opens it at the coordinator."""
        if txn.phase is not Phase.ONGOING:
            if self._held:
                self._complete(txn)
            txn.phase = Phase.ONGOING
            txn.began_ms = self.now

    def _prepare(self, txn: _Transaction, phase: Phase) -> None:
        """Decide the outcome. From here on it is final; the markers follow now or, when held, later."""
        txn.phase = phase
        if txn.transactional_id in self._leaving_out and phase is Phase.PREPARE_COMMIT:
            self._leave_out(txn)
            return
        self._held[txn.transactional_id] = txn
        if self.hold_markers == (self._asks and self._choice(MARK_NOW, 2) == 1):
            self._complete(txn)

    def _leave_out(self, txn: _Transaction) -> None:
        del self._leaving_out[txn.transactional_id]
        self._mark_left_out(txn.transactional_id)
        self._left_out[txn.transactional_id] = left = copy(txn)
        for tp in left.partitions:
            if tp in self._partitions:
                self._partitions[tp].leave_open(txn.producer_id)
        for group in left.groups:
            group.pending[~txn.producer_id] = group.pending.pop(txn.producer_id, {})
        txn.partitions, txn.groups = {}, {}
        txn.phase = Phase.COMPLETE_COMMIT

    def _mark_left_out(self, transactional_id: str) -> int:
        """Write the markers that were left out and have not come with others since. Returns how many."""
        left = self._left_out.pop(transactional_id, None)
        if left is None:
            return 0
        writer: Writer = (Kind.COMMIT, left.producer_id, left.epoch, transactional_id)
        for tp in left.partitions:
            log = self._partitions.get(tp)
            if log is not None:
                log.mark(True, writer, self.now, left=True)
        for group in left.groups:
            self._settle_offsets(group, ~left.producer_id, True)
        return len(left.partitions) + len(left.groups)

    def _complete(self, txn: _Transaction) -> None:
        while txn.transactional_id in self._held:
            self._mark_next(txn)

    def _mark_next(self, txn: _Transaction) -> None:
        """Write the next marker that `txn` is owed, and complete it with the last one."""
        commit = txn.phase is Phase.PREPARE_COMMIT
        left = self._left_out.get(txn.transactional_id) if self._left_out else None
        if txn.partitions:
            tp = self._pick(MARKED_PLACE, list(txn.partitions))
            del txn.partitions[tp]
            if left is not None:
                left.partitions.pop(tp, None)
            log = self._partitions.get(tp)
            if log is not None:
                kind = Kind.COMMIT if commit else Kind.ABORT
                log.mark(commit, (kind, txn.producer_id, txn.epoch, txn.transactional_id), self.now)
        elif txn.groups:
            group = self._pick(MARKED_PLACE, list(txn.groups))
            del txn.groups[group]
            if left is not None and group in left.groups:
                del left.groups[group]
                self._settle_offsets(group, ~txn.producer_id, commit)
            self._settle_offsets(group, txn.producer_id, commit)
        if not txn.partitions and not txn.groups:
            txn.phase = Phase.COMPLETE_COMMIT if commit else Phase.COMPLETE_ABORT
            del self._held[txn.transactional_id]
            if left is not None and not left.partitions and not left.groups:
                del self._left_out[txn.transactional_id]

    def _new_producer_id(self) -> int:
        producer_id = self._next_producer_id
        self._next_producer_id += 1
        return producer_id

    # The group coordinator.

    def _group(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            topics, choice = self._topics, self._choice
            group = self._groups[group_id] = Group(
                group_id,
                lambda topic: len(topics.get(topic, ())),
                lambda places: choice(MEMBER_PLACE, places),
            )
        return group

    def _hold_offsets(
        self, group: Group, producer_id: int, offsets: Mapping[TopicPartition, int], metadata: str = ""
    ) -> None:
        _check_length(metadata)
        pending = group.pending.setdefault(producer_id, {})
        for tp, position in offsets.items():
            self._sent += 1
            group.metadata.pop(pending.get(tp, (0, 0))[0], None)
            pending[tp] = (self._sent, position)
            if metadata:
                group.metadata[self._sent] = metadata

    def _settle_offsets(self, group: Group, producer_id: int, commit: bool) -> None:
        """Of several positions for one partition the last *sent* counts, whenever its transaction commits."""
        for tp, sent in group.pending.pop(producer_id, {}).items():
            gone = sent
            if commit and sent > group.committed.get(tp, (0, 0)):
                gone = group.committed.get(tp, (0, 0))
                group.committed[tp] = sent
                group.committed_ms[tp] = self.now
            group.metadata.pop(gone[0], None)

    # Finding things.

    def _logs(self, topic: str) -> list[Partition]:
        logs = self._topics.get(topic)
        if logs is None:
            raise LogError(f"topic {topic!r} does not exist on this broker; create it first")
        return logs

    def _log(self, tp: TopicPartition) -> Partition:
        log = self._partitions.get(tp)
        return self._choose(tp.topic, None, tp.partition) if log is None else log

    def _choose(self, topic: str, key: bytes | None, partition: int | None) -> Partition:
        return self._choose_of(self._logs(topic), topic, key, partition)

    def _choose_of(
        self, logs: Sequence[Partition], topic: str, key: bytes | None, partition: int | None
    ) -> Partition:
        if partition is None:
            if key is None:
                # A real client takes any partition; this one the shortest log, the first of several.
                return self._pick(KEYLESS_PARTITION, sorted(logs, key=lambda log: len(log.records)))
            return logs[partition_for(key, len(logs))]
        if 0 <= partition < len(logs):
            return logs[partition]
        raise LogError(f"partition {partition} of topic {topic!r} does not exist; it has {len(logs)}")

    def _pick(self, question: str, options: Sequence[Option]) -> Option:
        """One of several, the first unless the chooser says otherwise."""
        return options[0] if len(options) == 1 else options[self._choice(question, len(options))]

    def _sends(self, queued: int) -> bool:
        """Whether a producer with so many queued records sends them now, though nobody waits for that."""
        own = self.linger_records is not None and queued >= self.linger_records
        return own != (self._choice(SEND_NOW, 2) == 1) if self._asks else own


def _refusal(log: Partition, key: bytes | None, value: bytes | None, headers: Headers) -> str | None:
    """Why the broker does not take a record, None if it does."""
    if key is None and log.policy.compact:
        return f"a record for {log.tp} has no key, and its cleanup.policy compacts by key"
    size = len(key or b"") + len(value or b"")
    if headers:
        size += sum([len(name) + len(said or b"") for name, said in headers])
    if size + _RECORD_OVERHEAD > log.policy.max_bytes:
        return f"a record for {log.tp} is larger than its max.message.bytes={log.policy.max_bytes}"
    return None


_Queued = tuple[Partition, bytes | None, bytes | None, int, Headers]

# Where a producer is, as its own process sees it.
_NEW, _READY, _IN_TRANSACTION, _DEAD, _CLOSED = 0, 1, 2, 3, 4
_STATE_NAMES = ("not initialised", "without a transaction", "in a transaction", "dead", "closed")


class SimProducer:
    """One incarnation of a transactional id. A crash is to drop the object: nothing tells the broker."""

    __slots__ = (
        "_broker",
        "_epoch",
        "_error",
        "_first",
        "_gaps",
        "_groups",
        "_known",
        "_logs",
        "_producer_id",
        "_queue",
        "_state",
        "_timeout_ms",
        "_transaction",
        "_written",
        "transactional_id",
    )

    def __init__(self, broker: SimBroker, transactional_id: str, transaction_timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self._broker = broker
        self._timeout_ms = transaction_timeout_ms
        self._state = _NEW
        self._transaction: _Transaction | None = None
        self._producer_id = NO_PRODUCER
        self._epoch = NO_PRODUCER
        self._queue: list[_Queued] = []
        # Partitions of the open transaction with the offset of the last record there, -1 while none arrived.
        self._written: dict[Partition, int] = {}
        self._first: dict[Partition, int] = {}
        self._groups: dict[str, None] = {}
        # What went wrong behind the caller's back and has to be told at the next call that can tell.
        self._error: LogError | None = None
        # Partitions whose next record the broker will miss a predecessor of.
        self._gaps: dict[Partition, None] = {}
        # The logs to which records were sent, and the partitions of topics as last seen: topics may be deleted.
        self._logs: dict[TopicPartition, Partition] = {}
        self._known: dict[str, list[Partition]] = {}

    def init_transactions(self) -> None:
        if self._state != _NEW:
            self._refuse("init_transactions")
        broker = self._broker
        if not 0 < self._timeout_ms <= broker.max_transaction_timeout_ms:
            self._raise(
                FatalLogError(
                    f"transaction timeout {self._timeout_ms} ms of {self.transactional_id!r} is not allowed: "
                    f"the broker accepts 1 to {broker.max_transaction_timeout_ms} ms"
                )
            )
        txn = broker._init(self.transactional_id, self._timeout_ms)
        self._transaction = txn
        self._producer_id = txn.producer_id
        self._epoch = txn.epoch
        self._state = _READY

    def begin_transaction(self) -> None:
        if self._state != _READY:
            self._refuse("begin_transaction")
        self._state = _IN_TRANSACTION

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
        if self._state != _IN_TRANSACTION:
            self._refuse("produce")
        if self._error is not None and not isinstance(self._error, FencedError):
            self._raise(self._error)
        broker = self._broker
        logs = broker._topics.get(topic) or self._known.get(topic)
        if logs is None:
            # A client learns that a topic does not exist when it tries to send.
            self._error = AbortRequiredError(
                f"topic {topic!r} does not exist; abort the transaction, and create the topic first"
            )
            return
        if partition is None or not 0 <= partition < len(logs):
            log = broker._choose_of(logs, topic, key, partition)
        else:
            log = logs[partition]
        if log not in self._written:
            self._written[log] = -1
            self._known[topic] = logs
            if self._error is None:
                txn = self._owned()
                if txn is not None:
                    broker._join(txn)
                    txn.partitions[log.tp] = None
        queue = self._queue
        queue.append((log, key, value, broker.now if timestamp is None else timestamp, headers))
        if broker._sends(len(queue)):
            self.deliver()

    def flush(self) -> Mapping[TopicPartition, int]:
        if self._state >= _DEAD:
            self._refuse("flush")
        self.deliver()
        if self._error is not None:
            self._raise(self._error)
        if self._queue:
            raise RetriableError(f"{self._queue[0][0].tp} was deleted, so that records for it wait")
        return {log.tp: offset for log, offset in self._written.items() if offset >= 0}

    def first_offsets(self) -> dict[TopicPartition, int]:
        return {log.tp: offset for log, offset in self._first.items()}

    def send_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str = "",
        *,
        membership: Membership | None = None,
    ) -> None:
        if self._state != _IN_TRANSACTION:
            self._refuse("send_offsets")
        if self._error is not None:
            self._raise(self._error)
        if membership is not None and membership.group_id != group_id:
            raise ProtocolError(
                f"{self.transactional_id}: a member of {membership.group_id} sends for {group_id}"
            )
        if not offsets:
            return
        broker = self._broker
        for topic, number in offsets:
            if number >= len(broker._topics.get(topic, ())):
                # The group coordinator waits for the topic to appear, for as long as it may.
                raise RetriableError(
                    f"{topic}-{number} does not exist, so that no position in it can be sent"
                )
        txn = self._owned()
        if txn is None:
            self._raise(self._fenced())
        broker._join(txn)
        group = broker._group(group_id)
        txn.groups[group] = None
        self._groups[group_id] = None
        if membership is not None:
            assert isinstance(membership, SimMembership)
            try:
                group.check_transactional(membership)
            except AbortRequiredError as error:
                self._error = error
                raise
        broker._hold_offsets(group, self._producer_id, offsets, metadata)

    def commit_transaction(self) -> None:
        if self._state != _IN_TRANSACTION:
            self._refuse("commit_transaction")
        if self._queue:
            self.deliver()
        if self._error is not None:
            self._raise(self._error)
        if self._queue:
            self._raise(
                OutcomeUnknownError(f"{self._queue[0][0].tp} was deleted; a commit waits for its records")
            )
        if self._written or self._groups:
            self._end(Phase.PREPARE_COMMIT)
        self._state = _READY

    def abort_transaction(self) -> None:
        if self._state != _IN_TRANSACTION:
            self._refuse("abort_transaction")
        if isinstance(self._error, FencedError):
            self._raise(self._error)
        self._queue.clear()
        if self._written or self._groups:
            self._end(Phase.PREPARE_ABORT)
        self._error = None
        self._state = _READY

    def close(self) -> None:
        self._queue.clear()
        self._state = _CLOSED

    @property
    def fenced(self) -> bool:
        """Whether the cluster refuses this incarnation, known to it or not. For the harness only."""
        txn = self._transaction
        return txn is not None and (txn.epoch != self._epoch or txn.producer_id != self._producer_id)

    def deliver(self) -> None:
        """Send what is queued, as the thread of a real client may do at any moment.

        Raises nothing: what fails is told at the next call that waits for the broker.
        """
        queue = self._queue
        if not queue:
            return
        self._queue = []
        if self._error is not None:
            return
        txn = self._owned()
        if txn is None:
            return
        writer: Writer = (Kind.RECORD, self._producer_id, self._epoch, self.transactional_id)
        written = self._written
        for queued in queue:
            log, key, value, timestamp, headers = queued
            if log.deleted:
                present = self._broker._partitions.get(log.tp)
                if present is None:
                    self._queue.append(queued)
                    continue
                log = present
            if written.get(log, -1) < 0 and self._out_of_sequence(log):
                self._error = FatalLogError(
                    f"{log.tp} was made anew and misses the earlier records of {self.transactional_id!r}"
                )
                return
            if self._gaps and log in self._gaps:
                del self._gaps[log]
                self._error = AbortRequiredError(
                    f"{log.tp} misses an earlier record of {self.transactional_id!r}; abort the transaction"
                )
                return
            refusal = _refusal(log, key, value, headers)
            if refusal is not None:
                self._gaps[log] = None
                self._error = RecordRefusedError(
                    f"{refusal}; abort the transaction", [(log.tp.topic, key, value, headers)]
                )
                return
            at = self._broker.now if log.policy.append_time else timestamp
            written[log] = offset = log.append_open(key, value, at, headers, writer)
            self._first.setdefault(log, offset)

    def _out_of_sequence(self, log: Partition) -> bool:
        """Whether the broker knows this producer in `log`, but none of its records, of which there were some.

        That is so when a marker for the deleted log of the same name arrived here.
        """
        earlier = self._logs.setdefault(log.tp, log)
        self._logs[log.tp] = log
        return earlier is not log and any(writer[1] == self._producer_id for writer in log.writers)

    def _owned(self) -> _Transaction | None:
        """The coordinator's state while it is still this incarnation's, else None and the error is noted."""
        txn = self._transaction
        if txn is not None and txn.epoch == self._epoch and txn.producer_id == self._producer_id:
            return txn
        self._error = self._fenced()
        return None

    def _end(self, phase: Phase) -> None:
        txn = self._owned()
        if txn is None:
            self._raise(self._fenced())
        self._written.clear()
        self._first.clear()
        self._groups.clear()
        self._broker._prepare(txn, phase)

    def _fenced(self) -> FencedError:
        return FencedError(
            f"producer {self.transactional_id!r} with epoch {self._epoch} was superseded or timed out; "
            "close everything that belongs to it"
        )

    def _raise(self, error: LogError) -> NoReturn:
        """Tell `error`. Unless an abort mends it, every later call but `close` tells it again."""
        if not isinstance(error, AbortRequiredError):
            self._queue.clear()
            self._error = error
            self._state = _DEAD
        raise copy(error)

    def _refuse(self, call: str) -> NoReturn:
        if self._error is not None and self._state != _CLOSED:
            self._raise(self._error)
        raise ProtocolError(f"{call}: producer {self.transactional_id!r} is {_STATE_NAMES[self._state]}")


class SimPlainProducer:
    """A producer without transactions. A crash is to drop the object: what it had queued is gone."""

    __slots__ = ("_alone", "_broker", "_closed", "_error", "_known", "_queue", "_written")

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self._queue: list[_Queued] = []
        self._written: dict[TopicPartition, int] = {}
        self._known: dict[str, list[Partition]] = {}
        self._error: FatalLogError | None = None
        # Whether what was delivered last was one record, and nothing before it since the last flush.
        self._alone = False
        self._closed = False

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
        self._check()
        broker = self._broker
        logs = broker._topics.get(topic) or self._known.get(topic)
        if logs is None:
            # A client learns that a topic does not exist when it tries to send.
            self._error = FatalLogError(f"topic {topic!r} does not exist; create it first")
            return
        self._known[topic] = logs
        log = broker._choose_of(logs, topic, key, partition)
        self._queue.append((log, key, value, broker.now if timestamp is None else timestamp, headers))
        if broker._sends(len(self._queue)):
            self.deliver()

    def flush(self) -> Mapping[TopicPartition, int]:
        self._check_open()
        self.deliver()
        if self._alone and isinstance(self._error, RecordLostError):
            error, self._error = self._error, None
            raise error
        self._check()
        if self._queue:
            raise RetriableError(f"{self._queue[0][0].tp} was deleted, so that records for it wait")
        written, self._written = self._written, {}
        return written

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
    ) -> None:
        self._check()
        try:
            self._broker.commit_offsets(group_id, offsets, metadata)
        except LogError as error:
            raise FatalLogError(str(error)) from error

    def close(self) -> None:
        self._queue.clear()
        self._closed = True

    def deliver(self) -> None:
        """Send what is queued, as the thread of a real client may do at any moment. Raises nothing."""
        if self._error is None:
            self._alone = len(self._queue) == 1 and not self._written
        queue, self._queue = self._queue, []
        for queued in queue:
            log, key, value, timestamp, headers = queued
            if self._error is not None:
                return
            if log.deleted and log.tp not in self._broker._partitions:
                self._queue.append(queued)
                continue
            refusal = _refusal(log, key, value, headers)
            if refusal is not None:
                self._error = RecordLostError(refusal, [(log.tp.topic, key, value, headers)])
                return
            topic, number = log.tp
            self._written[log.tp] = self._broker.append(
                topic, key, value, partition=number, timestamp=timestamp, headers=headers
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ProtocolError("this producer is closed")

    def _check(self) -> None:
        self._check_open()
        if self._error is not None:
            raise copy(self._error)


class SimReader:
    """Reads by explicit offset; holds no position."""

    __slots__ = ("_broker", "_closed")

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self._closed = False

    def partitions(self, topic: str) -> int:
        if self._closed:
            self._refuse()
        return len(self._broker._logs(topic))

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        if self._closed:
            self._refuse()
        log = self._broker._log(tp)
        return Offsets(
            log.start, log.last_stable() if isolation == IsolationLevel.READ_COMMITTED else len(log.records)
        )

    def offsets_of(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, Offsets]:
        return {tp: self.offsets(tp, isolation) for tp in places}

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        if self._closed:
            self._refuse()
        if max_records < 1:
            raise ProtocolError(f"read of {tp}: max_records is {max_records}, at least 1 is needed")
        log = self._broker._log(tp)
        if not log.start <= offset <= len(log.records):
            raise LogError(
                f"offset {offset} of {tp} is out of range: {log.start} to {len(log.records)} are there"
            )
        return log.read(offset, max_records, isolation)

    def poll(
        self,
        positions: Mapping[TopicPartition, int],
        max_records: int,
        isolation: IsolationLevel,
        seconds: float,  # noqa: ARG002
    ) -> Mapping[TopicPartition, Fetch]:
        """All that is there, at once: a simulated reader has no time to wait in. Of one of several inputs less may have
        come, as is usual with a real one."""
        fetches = {tp: self.read(tp, offset, max_records, isolation) for tp, offset in positions.items()}
        came = {tp: fetch for tp, fetch in fetches.items() if fetch.next_offset > positions[tp]}
        if self._broker._asks and len({tp.topic for tp in positions}) > 1:
            return {tp: self._so_far(positions[tp], fetch) for tp, fetch in came.items()}
        return came

    def _so_far(self, offset: int, fetch: Fetch) -> Fetch:
        """What has come of an input for which the reader waits no longer."""
        records = fetch.records
        match self._broker._choice(ON_ITS_WAY, 3) if records else 0:
            case 1:
                return Fetch((), offset, more=True)
            case 2:
                return Fetch(records[:1], records[0].offset + 1, more=True)
        return fetch

    def committed(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> int | None:
        if self._closed:
            self._refuse()
        group = self._broker._groups.get(group_id)
        if group is None:
            return None
        for sent in group.pending.values() if stable else ():
            if tp in sent:
                raise RetriableError(
                    f"the position of group {group_id!r} in {tp} is pending in a transaction; ask again"
                )
        committed = group.committed.get(tp)
        return None if committed is None else committed[1]

    def committed_metadata(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> str:
        self.committed(group_id, tp, stable=stable)
        group = self._broker._groups.get(group_id)
        if group is None or tp not in group.committed:
            return ""
        return group.metadata.get(group.committed[tp][0], "")

    def lineage(self, tp: TopicPartition, offset: int) -> str:  # noqa: ARG002 - no leader lacks what was there
        return ""

    def expect(self, tp: TopicPartition, offset: int, lineage: str) -> None: ...

    def close(self) -> None:
        self._closed = True

    def _refuse(self) -> NoReturn:
        raise ProtocolError("this reader is closed")


class SimMember:
    """A member of a group. A crash is to drop the object: the coordinator waits for its session timeout.

    The client's own thread is not simulated: it speaks when `poll` is called, and when the harness calls
    `heartbeat`, as that thread may do at any moment.
    """

    __slots__ = (
        "_assignor",
        "_broker",
        "_closed",
        "_error",
        "_forgotten",
        "_gave_up",
        "_generation",
        "_granted",
        "_group_id",
        "_held",
        "_instance_id",
        "_member_id",
        "_polled_ms",
        "_prefix",
        "_rebalance",
        "_rebalance_timeout_ms",
        "_session_timeout_ms",
        "_topics",
    )

    def __init__(
        self,
        broker: SimBroker,
        prefix: str,
        group_id: str,
        topics: Sequence[str],
        rebalance: Rebalance,
        instance_id: str | None,
        assignor: Assignor,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        if not 0 < session_timeout_ms <= rebalance_timeout_ms:
            raise ConfigError("session_timeout_ms", session_timeout_ms, f"from 1 to {rebalance_timeout_ms}")
        self._broker = broker
        self._prefix = prefix
        self._group_id = group_id
        self._topics = tuple(topics)
        self._rebalance = rebalance
        self._instance_id = instance_id
        self._assignor: Assignor = assignor
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._polled_ms = broker.now
        self._closed = False
        self._error: LogError | None = None
        self._member_id = ""
        self._generation = NO_GENERATION
        # What the coordinator gave, until the owner was told.
        self._granted: tuple[TopicPartition, ...] | None = None
        self._held: tuple[TopicPartition, ...] | None = None
        # The coordinator does not know it any more, and the owner was not told.
        self._forgotten = False
        # It has given up a part of what it had, and has not joined again since.
        self._gave_up = False

    def poll(self, seconds: float) -> None:
        del seconds
        self._check()
        self.heartbeat()
        self._polled_ms = self._broker.now
        self._check()
        if self._forgotten:
            self._forgotten = False
            self._member_id = ""
            self._generation = NO_GENERATION
            self._granted = None
            self._gave_up = False
            held, self._held = self._held, None
            if held is not None:
                self._rebalance.lost(held)
        group = self._group()
        if self._member_id == "":
            self._join(group)
        self._tell()
        if self._cooperative:
            self._rejoin_with_all(group)
            self._tell()
            # Whoever has given up a part joins again with the rest.
            self._rejoin_with_all(group)
        elif self._must_rejoin(group) is not None:
            held, self._held = self._held, None
            if held is not None:
                self._rebalance.revoked(held)
            # The owner may have let time pass.
            seat = self._must_rejoin(group)
            if seat is not None:
                group.rejoin(seat, self._broker.now)
                self._take_grant(seat)
        self._tell()

    def rejoin(self) -> None:
        """As the leader of the group does, whoever this is."""
        self._check()
        held, self._held = self._held, None
        if held is not None:
            self._rebalance.revoked(held)
        group = self._group()
        seat = group.seat(self._member_id)
        if seat is not None:
            group.prepare(self._broker.now)
            group.rejoin(seat, self._broker.now)

    def membership(self) -> SimMembership:
        self._check()
        return self._membership()

    def member_id(self) -> str:
        return self._member_id

    def commit_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        self._check()
        seat = self._group().seat(self._member_id)
        if seat is not None and self._cooperative:
            # The client's thread has heard of the generation, the owner need not.
            self._take_grant(seat)
        if seat is None or seat.generation != self._generation:
            raise FatalLogError(
                f"group {self._group_id!r} takes no positions from member {self._member_id!r} of generation "
                f"{self._generation}"
            )
        self._broker._take_positions(self._group(), offsets, metadata)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        held, self._held = self._held, None
        if held is not None and self._error is None:
            self._rebalance.revoked(held)
        seat = self._group().seat(self._member_id)
        if seat is not None and self._instance_id is None:
            self._group().leave(seat, self._broker.now)

    def heartbeat(self) -> None:
        """Say to the coordinator that the process lives, and take what it answers. Raises nothing."""
        if self._closed or self._forgotten or self._error is not None or self._member_id == "":
            return
        group = self._group()
        now = self._broker.now
        seat = group.seat(self._member_id)
        if seat is not None:
            self._take_grant(seat)
            if now - self._polled_ms >= self._rebalance_timeout_ms:
                # A client whose owner does not come back in time gives up by itself, and leaves unless static.
                self._forgotten = True
                if self._instance_id is None:
                    group.leave(seat, now)
                return
            if seat.rejoined and group.phase is GroupPhase.PREPARING:
                return
            if self._cooperative and seat.generation == self._generation:
                # Nobody has to give anything up before.
                self._rejoin_with_all(group)
        match group.heartbeat(self._membership(), now):
            case Heartbeat.FENCED_INSTANCE:
                self._error = FencedError(
                    f"another member of group {self._group_id!r} has the instance id {self._instance_id!r}"
                )
            case Heartbeat.UNKNOWN_MEMBER | Heartbeat.ILLEGAL_GENERATION:
                self._forgotten = True
            case Heartbeat.WELCOME | Heartbeat.REBALANCING:
                pass

    def _join(self, group: Group) -> None:
        seat = Seat(
            self._prefix,
            self._instance_id,
            self._topics,
            self._session_timeout_ms,
            self._rebalance_timeout_ms,
        )
        seat = group.join(seat, self._assignor, self._broker.now)
        self._member_id = seat.member_id
        self._take_grant(seat)

    @property
    def _cooperative(self) -> bool:
        return self._assignor == "cooperative-sticky"

    def _rejoin_with_all(self, group: Group) -> None:
        """Join again, with all that it has, where a rebalance waits for that or a part was given up; not before the
        owner has heard what it has."""
        seat = group.seat(self._member_id)
        if seat is None or self._granted is not None or seat.generation != self._generation:
            return
        if self._gave_up:
            self._gave_up = False
            group.prepare(self._broker.now)
        if self._must_rejoin(group) is not None:
            group.rejoin(seat, self._broker.now, self._held or ())
            self._take_grant(seat)

    def _must_rejoin(self, group: Group) -> Seat | None:
        """Its record at the coordinator, if a rebalance waits for it."""
        seat = group.seat(self._member_id)
        return (
            seat if seat is not None and group.phase is GroupPhase.PREPARING and not seat.rejoined else None
        )

    def _take_grant(self, seat: Seat) -> None:
        if seat.generation > self._generation:
            self._generation = seat.generation
            self._granted = seat.assignment

    def _tell(self) -> None:
        granted = self._granted
        if granted is None:
            return
        held = self._held or ()
        gone = tuple(tp for tp in held if tp not in granted)
        if self._cooperative and gone:
            self._held = tuple(tp for tp in held if tp in granted)
            self._gave_up = True
            self._rebalance.revoked(gone)
        self._granted = None
        self._held = granted
        self._rebalance.assigned(granted)

    def _group(self) -> Group:
        return self._broker._group(self._group_id)

    def _membership(self) -> SimMembership:
        return SimMembership(self._group_id, self._member_id, self._generation, self._instance_id)

    def _check(self) -> None:
        if self._closed:
            raise ProtocolError("this member is closed")
        if self._error is not None:
            raise type(self._error)(*self._error.args)


class SimAdmin:
    """Topics of the simulated cluster."""

    __slots__ = ("_broker", "_closed")

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self._closed = False

    def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        self._check()
        for name, partitions, config in topics:
            self._broker.create_topic(name, partitions, config)

    def delete_topics(self, topics: Sequence[str]) -> None:
        self._check()
        for name in topics:
            self._broker.delete_topic(name)

    def delete_records(self, before: Mapping[TopicPartition, int], wait_s: float | None = None) -> None:  # noqa: ARG002
        self._check()
        for tp, offset in before.items():
            self._broker.delete_records(tp, offset)

    def group_members(self, group_id: str) -> list[GroupMember]:
        self._check()
        group = self._broker._groups.get(group_id)
        if group is None or group.phase is not GroupPhase.STABLE:
            return []
        return [
            GroupMember(seat.prefix.removesuffix("-"), tuple(sorted(seat.assignment)))
            for seat in group._members
        ]

    def group_clients(self, group_id: str) -> list[GroupClient]:
        self._check()
        group = self._broker._groups.get(group_id)
        members = [] if group is None else group._members
        return [GroupClient(seat.member_id, seat.client_id, "/127.0.0.1") for seat in members]

    def topic_ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        self._check()
        return {topic: self._broker._topic_ids[topic] for topic in topics if topic in self._broker._topic_ids}

    def topic_config(self, topic: str) -> Mapping[str, str]:
        self._check()
        return {**_TOPIC_DEFAULTS, **self._broker.topic_config(topic)}

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise ProtocolError("this admin client is closed")


class SimLog:
    """The cluster as one process sees it. The ids of its group members begin with `client_id`."""

    __slots__ = ("broker", "client_id")

    def __init__(self, broker: SimBroker, client_id: str = "rdkafka") -> None:
        self.broker = broker
        self.client_id = client_id

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> SimProducer:
        return SimProducer(self.broker, transactional_id, transaction_timeout_ms)

    def plain_producer(self) -> SimPlainProducer:
        return SimPlainProducer(self.broker)

    def reader(self, wait_s: float | None = None) -> SimReader:  # noqa: ARG002 - it answers at once
        return SimReader(self.broker)

    def member(
        self,
        group_id: str,
        topics: Sequence[str],
        rebalance: Rebalance,
        *,
        instance_id: str | None = None,
        assignor: Assignor = "range",
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
    ) -> SimMember:
        return SimMember(
            self.broker,
            self.client_id,
            group_id,
            topics,
            rebalance,
            instance_id,
            assignor,
            session_timeout_ms,
            rebalance_timeout_ms,
        )

    def admin(self) -> SimAdmin:
        return SimAdmin(self.broker)


def _check_length(metadata: str) -> None:
    if len(metadata) > _MAX_METADATA:
        raise FatalLogError(f"{len(metadata)} characters beside a position; {_MAX_METADATA} are taken")
