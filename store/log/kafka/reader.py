"""Reading partitions by explicit offset, and the positions of groups.

Must survive: fetches that answer for a position that was left (see `store.log.kafka.intake`), ends of partitions that
move while they are reported, topics that are deleted and made anew, and a coordinator that is loading or holds a
pending position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from store.errors import CrashproofError, LogError, LogTruncatedError, ProtocolError, RetriableError
from store.log.kafka.client import (
    CONSUMER,
    LOGGER,
    UNSERVED,
    Built,
    Client,
    Config,
    Counts,
    build,
    repeat,
    settle_missing,
)
from store.log.kafka.errors import MISSING, cause_of, translate
from store.log.kafka.intake import Inflow, Intake
from store.log.kafka.lineage import Lineages, is_truncation, parse, parts_at, take_apart
from store.log.protocol import Fetch, Offsets
from store.log.size import MAX_FETCH_BYTES
from store.types import IsolationLevel, TopicPartition

_STABLE_SECONDS = 1.0

_READER_GROUP = "crashproof-reader"
_MOST_AT_ONCE = 10_000


class KafkaReader:
    """`store.log.protocol.StreamingReader`. Reads that follow one another in a partition stream, also when they take
    turns with those of others. Not thread-safe."""

    def __init__(self, client: Client, config: Config, lineages: Lineages, counts: Counts) -> None:
        self._client = client
        self._config = config
        self._lineages = lineages
        self._counts = counts
        self._intakes: dict[IsolationLevel, Intake] = {}
        # Questions about offsets have connections of their own: on that of an intake they wait behind a fetch.
        self._askers: dict[tuple[str, IsolationLevel], Consumer] = {}
        self._closed = False

    def partitions(self, topic: str) -> int:
        asker = self._asker()

        def ask(seconds: float) -> int:
            metadata = asker.list_topics(topic, seconds).topics[topic]
            if metadata.error is not None:
                raise KafkaException(metadata.error)
            return len(metadata.partitions)

        known = self._counts.settle(topic, self._client.timeout, ask)
        return self._repeat(f"partitions of {topic}", settle_missing(asker, topic, None, known))

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        asker = self._asker(isolation=isolation)

        def ask(seconds: float) -> Offsets:
            bounds = asker.get_watermark_offsets(ClientPartition(tp.topic, tp.partition), seconds)
            if bounds is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return Offsets(*bounds)

        return self._repeat(f"offsets of {tp}", settle_missing(asker, *tp, ask))

    def offsets_of(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, Offsets]:
        """`offsets` of each of these, by two questions in all."""
        asker = self._asker(isolation=isolation)

        def ask(where: int) -> dict[TopicPartition, int]:
            # What it passes on to the brokers as a time is, below 0, an end of the log.
            asked = [ClientPartition(*tp, where) for tp in places]
            answers = asker.offsets_for_times(asked, self._client.ping_seconds)
            for answer in answers:
                if answer.error is not None:
                    raise KafkaException(answer.error)
            return {TopicPartition(one.topic, one.partition): one.offset for one in answers}

        if len(places) > 1:
            try:
                earliest, ends = ask(OFFSET_BEGINNING), ask(OFFSET_END)
                return {tp: Offsets(earliest[tp], ends[tp]) for tp in places}
            except KafkaException as exception:
                LOGGER.debug("offsets of %d partitions: %s; asking for each", len(places), exception)
        return {tp: self.offsets(tp, isolation) for tp in places}

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        if max_records < 1:
            raise ProtocolError(f"read of {tp}: max_records is {max_records}, at least 1 is needed")
        intake = self._intake(isolation)
        try:
            intake.sweep()
            inflow = intake.at(tp, offset)
            if inflow is None or (inflow.at_end and not inflow.kept):
                # The client reports the end of a partition once. Standing there, ask whether it has moved.
                reached = offset if inflow is None else inflow.served
                bounds = self.offsets(tp, isolation)
                self._check_in_range(tp, reached, bounds, isolation)
                if reached >= bounds.end:
                    return Fetch((), reached, more=False)
            if inflow is None:
                self._introduce(intake, tp.topic)
                intake.begin([(tp, offset)])
                inflow = intake.inflows[tp]
            inflow.at_end = inflow.at_end and bool(inflow.kept)
            return self._stream(intake, inflow, max_records, isolation)
        except BaseException as error:
            # What was fetched is not returned, so the next read starts anew where the caller says.
            self._start_anew(intake, tp)
            if isinstance(error, KafkaException):
                raise self._meaning(cause_of(error), tp, offset) from error
            raise

    def poll(
        self,
        positions: Mapping[TopicPartition, int],
        max_records: int,
        isolation: IsolationLevel,
        seconds: float,
    ) -> Mapping[TopicPartition, Fetch]:
        intake = self._intake(isolation)
        intake.sweep()
        if self._client.misses_topic:
            # Who waits for more of a topic that was deleted is told of it so, and not by an error of its partition.
            self._client.misses_topic = False
            for topic in {tp.topic: None for tp in positions}:
                self.partitions(topic)
        moved = [(tp, offset) for tp, offset in positions.items() if intake.at(tp, offset) is None]
        try:
            for topic in {tp.topic: None for tp, _ in moved if tp.topic not in intake.topics}:
                # Of one that does not exist the client says nothing for half a minute.
                self.partitions(topic)
                self._introduce(intake, topic)
            intake.begin(moved)
            inflows = [intake.inflows[tp] for tp in positions]
            if any(not inflow.assigned for inflow in inflows):
                intake.resume([inflow for inflow in inflows if not inflow.kept])
            there = sum(inflow.waiting for inflow in inflows)
            starved = [inflow.place for inflow in inflows if not inflow.kept and not inflow.at_end]
            if there < _MOST_AT_ONCE and sum(inflow.bytes for inflow in inflows) < MAX_FETCH_BYTES:
                intake.pull(0 if there else seconds, _MOST_AT_ONCE, positions)
            elif starved:
                # What the others have may be waiting for these, so only these may have more than there is room for.
                intake.pull(0, _MOST_AT_ONCE, starved)
        except KafkaException as error:
            raise translate(cause_of(error), f"reading {len(positions)} partitions") from error
        for inflow in inflows:
            if inflow.error is not None and not inflow.kept:
                self._explain(intake, inflow, isolation)
        return {
            inflow.place: Fetch(
                inflow.take(max_records), inflow.served, bool(inflow.kept) or not inflow.at_end
            )
            for inflow in inflows
            if inflow.kept or inflow.served > positions[inflow.place] or not inflow.at_end
        }

    def committed(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> int | None:
        answer = self._committed(group_id, tp, stable)
        offset = answer.offset
        if offset < 0:
            return None
        _, before = take_apart(offset, answer.metadata or "", answer.leader_epoch)
        self._lineages.note(tp, offset, before)
        return offset

    def committed_metadata(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> str:
        answer = self._committed(group_id, tp, stable)
        said, _ = take_apart(answer.offset, answer.metadata or "", None)
        return said

    def lineage(self, tp: TopicPartition, offset: int) -> str:
        before = self._lineages.before(tp, offset)
        return "" if before is None else str(before)

    def expect(self, tp: TopicPartition, offset: int, lineage: str) -> None:
        self._lineages.note(tp, offset, parse(lineage))

    def _committed(self, group_id: str, tp: TopicPartition, stable: bool = True) -> ClientPartition:
        # Under read_committed the client waits while a transaction holds an offset, and says it timed out.
        asker = self._asker(
            group_id, IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        )
        doing = f"committed offset of group {group_id} in {tp}"

        def ask(seconds: float) -> ClientPartition:
            (answer,) = asker.committed([ClientPartition(tp.topic, tp.partition)], seconds)
            if answer.error is not None:
                raise KafkaException(answer.error)
            return answer

        def ask_once_stable(seconds: float) -> ClientPartition:
            try:
                return ask(min(seconds, _STABLE_SECONDS))
            except KafkaException as exception:
                cause = cause_of(exception)
                if cause.code() not in (KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT):
                    raise
                asker.list_topics(timeout=self._client.ping_seconds)
                raise RetriableError(
                    f"{doing}: a transaction holds it, or the group's coordinator is not ready; ask again. If it stays "
                    "so for longer than transaction.timeout.ms, `kafka-transactions.sh find-hanging --topic "
                    "__consumer_offsets` shows a transaction without an end, and `abort` ends it"
                ) from exception

        # No transaction holds what is asked without waiting for it: there, a broker is just slow.
        return self._repeat(doing, settle_missing(asker, *tp, ask_once_stable if stable else ask))

    def close(self) -> None:
        self._closed = True
        consumers = [*(intake.consumer for intake in self._intakes.values()), *self._askers.values()]
        self._intakes.clear()
        self._askers.clear()
        for consumer in consumers:
            consumer.close()

    def _stream(self, intake: Intake, inflow: Inflow, max_records: int, isolation: IsolationLevel) -> Fetch:
        tp = inflow.place
        records = list(inflow.take(max_records))
        deadline = time.monotonic() + self._client.timeout
        last: KafkaError | None = None
        while len(records) < max_records and not inflow.kept:
            if inflow.at_end:
                # The report may have waited in the client's queue while more was written and committed.
                if inflow.served >= self.offsets(tp, isolation).end:
                    break
                inflow.at_end = False
            if inflow.error is not None:
                last, inflow.error = inflow.error, None
                self._check_passing(tp, last)
            intake.resume([inflow])
            before = inflow.fetched
            intake.pull(0.1, max_records - len(records), (tp,))
            if inflow.fetched > before:
                deadline = time.monotonic() + self._client.timeout
            elif not inflow.at_end and time.monotonic() > deadline:
                # What comes of other partitions meanwhile is no progress of this one.
                raise self._client.gave_up(f"read of {tp} at {inflow.served}", last, self._ping)
            records += inflow.take(max_records - len(records))
        return Fetch(records, inflow.served, more=bool(inflow.kept) or len(records) >= max_records)

    def _check_passing(self, tp: TopicPartition, error: KafkaError) -> None:
        """Raise an error of a partition, if the client does not go on there by itself."""
        if error.code() in MISSING and self.partitions(tp.topic) > tp.partition:
            # The client asks for a leader again by itself.
            return
        if not isinstance(translate(error, "read"), RetriableError):
            raise KafkaException(error)

    def _explain(self, intake: Intake, inflow: Inflow, isolation: IsolationLevel) -> None:
        """Raise the error of a partition, if the client does not go on there by itself."""
        tp, error = inflow.place, inflow.error
        assert error is not None
        try:
            inflow.error = None
            self._check_passing(tp, error)
        except BaseException as raised:
            self._start_anew(intake, tp)
            if not isinstance(raised, KafkaException):
                raise
            if not is_truncation(error):
                self._check_in_range(tp, inflow.served, self.offsets(tp, isolation), isolation)
            raise self._meaning(error, tp, inflow.served) from raised

    @staticmethod
    def _meaning(error: KafkaError, tp: TopicPartition, offset: int) -> CrashproofError:
        meaning = translate(error, f"read of {tp} at {offset}")
        if is_truncation(error):
            return LogTruncatedError(str(meaning), tp, offset, parts_at(error))
        return meaning

    def _introduce(self, intake: Intake, topic: str) -> None:
        """Of a topic it does not know yet the client asks only once a second."""
        if topic not in intake.topics:
            intake.consumer.list_topics(topic, self._client.ping_seconds)
            intake.topics.add(topic)

    @staticmethod
    def _start_anew(intake: Intake, tp: TopicPartition) -> None:
        intake.topics.discard(tp.topic)
        intake.let_go([tp])

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
        for asker in self._askers.values():
            # It fetches nothing: this serves what it has to say of its brokers.
            asker.poll(0)
        return self._asker().list_topics(timeout=self._client.ping_seconds)

    def _repeat(self, doing: str, call: Callable[[float], Built]) -> Built:
        return repeat(self._client, doing, call, self._ping)

    def _intake(self, isolation: IsolationLevel) -> Intake:
        self._check_open()
        if isolation not in self._intakes:
            lineages = self._lineages if isolation is IsolationLevel.READ_COMMITTED else None
            self._intakes[isolation] = Intake(self._consumer(_READER_GROUP, isolation), lineages)
        return self._intakes[isolation]

    def _asker(
        self, group_id: str | None = None, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> Consumer:
        self._check_open()
        which = (group_id or _READER_GROUP, isolation)
        if which not in self._askers:
            self._askers[which] = self._consumer(*which, UNSERVED)
        return self._askers[which]

    def _consumer(self, group_id: str, isolation: IsolationLevel, *more: Config) -> Consumer:
        own: Config = {"group.id": group_id, "isolation.level": isolation.value.lower()}
        return build(Consumer, self._client.config(CONSUMER, self._config, *more, own))

    def _check_open(self) -> None:
        if self._closed:
            raise ProtocolError("the reader is closed")
