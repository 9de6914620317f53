"""The seam to Kafka: what a task needs from a transactional log, and nothing else.

Two implementations exist: `store.log.kafka` over confluent-kafka, and the simulated broker of the harness.
A differential test runs random operation sequences on both and compares every observable, so what is
promised here is what a real broker does. Errors are the classes of `store.errors`, told apart by what the
caller must do; nothing else may escape.

Offsets: the offset of a *record* is its place in the partition; a *position* or *committed offset* is the
offset of the next record to read. Control markers and aborted records occupy offsets but are never returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from store.types import Headers, IsolationLevel, Record, TopicPartition


class Fetch(NamedTuple):
    """What was read of a partition. `next_offset` is where to read on: past markers, aborted and compacted records."""

    records: Sequence[Record]
    next_offset: int
    more: bool
    """Whether there is more from there on, or may be, as far as the reader has heard."""


class Offsets(NamedTuple):
    """The bounds of a partition: first offset still there, and the end for the isolation level asked."""

    earliest: int
    end: int
    """READ_COMMITTED: the last stable offset. READ_UNCOMMITTED: the high watermark."""


class TopicSpec(NamedTuple):
    name: str
    partitions: int
    config: Mapping[str, str] = {}


ANY_TIME: Mapping[str, str] = {
    f"message.timestamp.{side}.max.ms": str(2**63 - 1) for side in ("after", "before")
}
"""In the `config` of a topic that is to take records of any time. By default one of Kafka 4 takes none an hour ahead.

Brokers of before Kafka 3.6 do not know it, and take any: where it is refused, the topic is made without it.
"""


Assignor = Literal["range", "roundrobin", "cooperative-sticky"]
"""How the partitions of a group are given to its members; all members of a group use the same. The last one alone is
cooperative: a rebalance takes back what goes to others, and nothing else."""


class Membership(Protocol):
    """One member of a consumer group in one generation, as `Producer.send_offsets` shows it to the broker."""

    @property
    def group_id(self) -> str: ...


class Producer(Protocol):
    """A transactional producer: one transactional id, one thread, at most one open transaction.

    Any call may raise `FencedError`, `AbortRequiredError`, `RetriableError`, `FatalLogError` or
    `UnreachableError`. Calls out of order raise `ProtocolError` and change nothing. Where the cluster does not take a
    record for what it is, the abort is required by a `RecordRefusedError`.
    """

    def init_transactions(self) -> None:
        """Fence every earlier producer with this id and settle what it left: committed or aborted, finally.

        Allowed once, before anything else. At return nothing of the predecessor is pending.
        """

    def begin_transaction(self) -> None:
        """Open a transaction. Local: the broker learns of it with the first record or offset."""

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
        """Queue one record. Without `partition` the key's murmur2 hash decides, as in Kafka's Java clients."""

    def flush(self) -> Mapping[TopicPartition, int]:
        """Wait until the broker holds all queued records.

        Returns the offset of the last record of the current transaction in each partition it wrote to.
        """

    def first_offsets(self) -> Mapping[TopicPartition, int]:
        """The offset of the first record of the current transaction in each partition that `flush` names."""

    def send_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str = "",
        *,
        membership: Membership | None = None,
    ) -> None:
        """Add input positions of a consumer group to the transaction. They count only if it commits.

        `metadata` is kept beside each of them, see `GroupReader.committed_metadata`. With `membership`, of that group,
        `AbortRequiredError` when the member has left, was fenced, or the group has a newer generation; without, the
        broker takes them from anybody.
        """

    def commit_transaction(self) -> None:
        """Commit records and offsets. Raises `OutcomeUnknownError` when sent and never answered."""

    def abort_transaction(self) -> None:
        """Drop records and offsets of the open transaction."""

    def close(self) -> None:
        """Release the client. Does not end an open transaction: it is left to the successor or the timeout."""


class PlainProducer(Protocol):
    """A producer without transactions: what it sends counts as soon as the broker has it. One thread.

    The client's own repeats neither double records nor change their order. Any call may raise `RetriableError`
    or `UnreachableError`, and `FatalLogError`: then nobody knows which records since the last `flush` are there.
    Where the cluster does not take a record for what it is, that is a `RecordLostError`.
    """

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
        """Queue one record, see `Producer.produce`."""

    def flush(self) -> Mapping[TopicPartition, int]:
        """Wait until the broker holds all queued records.

        Returns the offset of the last record since the `flush` before in each partition written to. Where the only
        record since then is refused, a `RecordLostError` says so, and the producer goes on.
        """

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
    ) -> None:
        """Commit input positions of a consumer group, `metadata` beside each. At return the broker has them."""

    def close(self) -> None:
        """Release the client. Queued records may be lost."""


class Reader(Protocol):
    """Reads partitions by explicit offset. One thread. Any call may raise `RetriableError` or `UnreachableError`."""

    def partitions(self, topic: str) -> int:
        """The number of partitions; `LogError` naming the topic when it does not exist.

        Fewer than the log has told of before only where they stay so: a broker may lag behind the others.
        """

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        """The bounds of `tp` at this moment."""

    def offsets_of(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, Offsets]:
        """The bounds of each of these, by as few questions as the log allows."""

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        """Up to `max_records` records from `offset` on, in offset order, and no more bytes than `MAX_FETCH_BYTES`.

        Fewer records only where the next one would be too many bytes (see `store.log.size`), or when the end (for the
        isolation level) was reached; then `next_offset` is that end. `more` says whether it was one of the two bounds.
        """

    def committed(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> int | None:
        """The group's committed position, None if it never committed one.

        Never a pending one: while a transaction holds an offset of this partition this raises
        `RetriableError`. Unless `stable`: then it is what the last commit has left, and nothing is waited for.
        """

    def close(self) -> None:
        """Release the client."""


class GroupReader(Reader, Protocol):
    """A reader that also reads what a consumer group keeps beside its positions."""

    def committed_metadata(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> str:
        """What was committed beside the group's position; "" where that is nothing. Raises as `committed` does.

        Unless `stable`: then it is what the last commit has left, whatever a transaction holds, and nothing is waited
        for.
        """

    def lineage(self, tp: TopicPartition, offset: int) -> str:
        """What tells the log up to there from one with other records at those offsets; "" where that is not known."""

    def expect(self, tp: TopicPartition, offset: int, lineage: str) -> None:
        """What `lineage` was said of that position when it was noted. Where it is read on from, `LogTruncatedError`
        where the log is another by now. Of what `committed` answers, and the positions of a group that were committed
        through this log, that is known."""


class StreamingReader(GroupReader, Protocol):
    """A reader that also hands over what has come of many partitions, without asking each of them."""

    def poll(
        self,
        positions: Mapping[TopicPartition, int],
        max_records: int,
        isolation: IsolationLevel,
        seconds: float,
    ) -> Mapping[TopicPartition, Fetch]:
        """What has come of these partitions from these offsets on, up to `max_records` and `MAX_FETCH_BYTES` of each.

        Waits up to `seconds` while nothing has. A partition that is left out had no more when the reader last heard of
        it; one that it has not heard of yet is there, without records. `read` alone says where the end is now.
        Raises `LogError` for an offset that is not there; what other partitions have comes with the next call.
        """


class Rebalance(Protocol):
    """What the owner of a `Member` does as partitions come and go. Called by `Member.poll` and `Member.close`."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These, in order, are all that the member has from now on. May be none."""

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These go: all that it has, unless rebalances are cooperative. Until this returns nobody else gets them, so
        what is open can be committed."""

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """All that it had is gone already, and may be others' by now: nothing of it can be committed."""


class Member(Protocol):
    """A member of a consumer group: the broker gives it partitions, and takes them back. One thread.

    It reads nothing and commits nothing. While its process lives the client keeps it in the group, as long as
    `poll` is called at least once in `rebalance_timeout_ms`.
    """

    def poll(self, seconds: float) -> None:
        """Take part in the group, for up to `seconds`; returns early when partitions came or went.

        Raises `RetriableError` now and then while the group has members with another assignor, and joins it when they
        are gone. Raises `FencedError` when another member has its `instance_id`, and `FatalLogError` when the group
        does not take it for another reason: then make a new one.
        """

    def membership(self) -> Membership:
        """What it is in the group at this moment, to be shown with positions."""

    def member_id(self) -> str:
        """Under which id it was given partitions last. Another one than before: it was none of the group in between."""

    def commit_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit input positions of the group, as `PlainProducer.commit_offsets`, but as this member.

        A group that has members takes such positions from them alone. `FatalLogError` when it is none any more.
        """

    def rejoin(self) -> None:
        """Give all partitions back, in the course of `poll`, and join anew. Where the group's leader does, all are
        given out once more."""

    def close(self) -> None:
        """Leave the group. With an `instance_id` it stays in it for its session timeout, or until its successor."""


class GroupMember(NamedTuple):
    """A member of a consumer group as everybody sees it."""

    client_id: str
    """The name that its process has given itself, which others may have too."""
    partitions: tuple[TopicPartition, ...]


class GroupClient(NamedTuple):
    """A member of a consumer group, whatever it has."""

    member_id: str
    client_id: str
    """The name that its process has given itself."""
    host: str
    """Where its process is, as the broker sees it."""


class Admin(Protocol):
    """Topics and groups. Creating one that exists with the same number of partitions is no error."""

    def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        """Create what is missing, and wait until every partition can be written to. Where nothing is, it needs no
        right to create."""

    def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete; topics that do not exist are passed over."""

    def delete_records(self, before: Mapping[TopicPartition, int], wait_s: float | None = None) -> None:
        """Have a log begin at that offset, which is no later than its end. Nothing happens where it begins later.

        Leaders are waited for up to `wait_s` seconds, by default as long as for anything; what they do later is done
        all the same. Raises `LogError` for topics that are compacted and nothing else.
        """

    def group_members(self, group_id: str) -> Sequence[GroupMember]:
        """Who has which partitions. None of a group that is unknown, empty, or in the middle of a rebalance."""

    def group_clients(self, group_id: str) -> Sequence[GroupClient]:
        """Who is a member, also in the middle of a rebalance. Raises `LogError` for who is not allowed to ask."""

    def topic_ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        """What tells each topic from any other that had its name before, or has it later. Topics that are not there, or
        of which the cluster does not tell that, are left out."""

    def topic_config(self, topic: str) -> Mapping[str, str]:
        """Every setting of a topic that is in effect, defaults included. `LogError` when it does not exist."""

    def close(self) -> None:
        """Release the client."""


class Log(Protocol):
    """One cluster, as seen by one process."""

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> Producer:
        """A new incarnation of `transactional_id`. Nothing is fenced before `init_transactions`."""

    def plain_producer(self) -> PlainProducer:
        """A producer without a transactional id, which fences nobody and which nobody fences."""

    def reader(self, wait_s: float | None = None) -> GroupReader:
        """A reader that waits up to `wait_s` seconds for what it asks, by default as long as all clients of the log."""

    def admin(self) -> Admin: ...


class Groups(Protocol):
    """The consumer groups of one cluster, for those who let the broker decide who works on which partition."""

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
    ) -> Member:
        """A new member of the group, which asks for partitions of `topics`.

        With `instance_id` it is static: it takes the place of the one that had this id, with its partitions and
        without a rebalance. The coordinator removes a member whose process it has not heard of for
        `session_timeout_ms`, or that holds up a rebalance for `rebalance_timeout_ms`, which is no less.
        """
