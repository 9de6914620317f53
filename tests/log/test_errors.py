"""What an error of the Kafka client asks a task to do, code by code and call by call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import repeat
from struct import pack
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from store.errors import (
    AbortRequiredError,
    FatalLogError,
    FencedError,
    LogError,
    OutcomeUnknownError,
    ProtocolError,
    RecordTooLargeError,
    RetriableError,
)
from store.log import kafka as logs
from store.log.kafka import KafkaAdmin, KafkaLog, KafkaMember, KafkaPlainProducer, KafkaProducer, KafkaReader
from store.log.kafka import admin as admins
from store.log.kafka import client as clients
from store.log.kafka import producer as producers
from store.log.kafka import reader as readers
from store.log.kafka.client import Client, Counts
from store.log.kafka.errors import translate
from store.log.kafka.lineage import Lineages
from store.log.kafka.producer import BatchBytes
from store.log.protocol import Assignor, GroupClient, GroupMember
from store.types import IsolationLevel, TopicPartition

NEVER_MS = 600_000


@pytest.mark.requirement("129.5")
@pytest.mark.parametrize(
    ("code", "flags", "expected"),
    [
        (KafkaError._FENCED, {"fatal": True}, FencedError),
        (KafkaError.PRODUCER_FENCED, {}, FencedError),
        (KafkaError.INVALID_PRODUCER_EPOCH, {}, FencedError),
        (KafkaError.INVALID_PRODUCER_EPOCH, {"txn_requires_abort": True}, FencedError),
        # Closed, and a new incarnation asks `init_transactions` who has the task.
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, {}, FatalLogError),
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, {"fatal": True}, FatalLogError),
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, {"txn_requires_abort": True}, FatalLogError),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, {"fatal": True}, FatalLogError),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, {}, RetriableError),
        (KafkaError.NOT_COORDINATOR, {}, RetriableError),
        (KafkaError.CONCURRENT_TRANSACTIONS, {}, RetriableError),
        # Of the broker that was asked nothing is heard any more: the metadata lists it no longer, or elsewhere.
        (KafkaError._DESTROY_BROKER, {}, RetriableError),
        (KafkaError._NODE_UPDATE, {}, RetriableError),
        (KafkaError._TIMED_OUT, {"retriable": True}, RetriableError),
        (KafkaError._TIMED_OUT, {"txn_requires_abort": True}, AbortRequiredError),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, {"txn_requires_abort": True}, AbortRequiredError),
        (KafkaError._STATE, {}, ProtocolError),
        (KafkaError.MSG_SIZE_TOO_LARGE, {}, RecordTooLargeError),
        (KafkaError._UNKNOWN_TOPIC, {}, LogError),
        (KafkaError.UNKNOWN, {}, FatalLogError),
    ],
)
def test_each_error_says_what_is_to_be_done(
    code: int, flags: dict[str, bool], expected: type[Exception]
) -> None:
    found = translate(KafkaError(code, "reason", **flags), "commit_transaction")
    assert type(found) is expected
    assert "commit_transaction: reason" in str(found)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_CONTROLLER,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
    ],
)
def test_what_kafkas_own_clients_repeat_may_be_repeated(code: int) -> None:
    """The errors that Kafka's protocol calls retriable, but for a topic that is unknown and a damaged record: of the
    first the cluster is asked, and the second is so each time that it is read."""
    assert type(translate(KafkaError(code), "read")) is RetriableError


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
    ],
)
def test_a_call_that_no_broker_has_answered_may_be_repeated(code: int) -> None:
    assert type(translate(KafkaError(code), "read")) is RetriableError


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
    ],
)
def test_what_no_repetition_can_change_is_not_repeated(code: int) -> None:
    assert type(translate(KafkaError(code), "read")) is FatalLogError


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (KafkaError.INVALID_SESSION_TIMEOUT, "session_timeout_ms has to be .* group.max.session.timeout.ms"),
        (KafkaError.GROUP_MAX_SIZE_REACHED, "num.stream.threads.* group.max.size of the broker"),
        (KafkaError.UNKNOWN_MEMBER_ID, "takes positions from them alone.* its id as its group.id"),
    ],
)
def test_what_a_group_refuses_names_the_settings_on_both_sides(code: int, names: str) -> None:
    assert re.search(names, str(translate(KafkaError(code), "member of group app")))


# Calls to a client that answers as it is told


class Time:
    """As `time` has it, but for nobody who sleeps has to wait."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(clients, "time", clock)
    monkeypatch.setattr(producers, "time", clock)
    return clock


def raised(code: int, **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, "reason", **flags))


def producer_over(native: Mock, timeout: float = 30.0) -> KafkaProducer:
    client = Client("nobody:1", timeout, {})
    return KafkaProducer(client, native, "id", NEVER_MS, Mock(), BatchBytes(1_000_000), Lineages())


def test_a_commit_that_was_sent_and_then_fails_for_good_has_an_unknown_outcome() -> None:
    """The broker may have committed at the first try, whose answer was lost."""
    native = Mock()
    native.commit_transaction.side_effect = [
        raised(KafkaError._TIMED_OUT, retriable=True),
        raised(KafkaError.UNKNOWN, fatal=True),
    ]
    producer = producer_over(native)
    producer.begin_transaction()
    native.begin_transaction.side_effect = raised(KafkaError._STATE)
    with pytest.raises(OutcomeUnknownError, match="may or may not be committed"):
        producer.commit_transaction()


def test_a_commit_whose_first_answer_asks_for_an_abort_is_known_not_to_have_happened() -> None:
    native = Mock()
    native.commit_transaction.side_effect = raised(KafkaError.INVALID_TXN_STATE, txn_requires_abort=True)
    producer = producer_over(native)
    producer.begin_transaction()
    native.begin_transaction.side_effect = raised(KafkaError._STATE)
    with pytest.raises(AbortRequiredError):
        producer.commit_transaction()
    producer.abort_transaction()
    native.begin_transaction.side_effect = None
    producer.begin_transaction()


def test_a_commit_that_was_answered_in_the_end_leaves_nothing_unknown_of_the_next_transaction() -> None:
    native = Mock()
    native.commit_transaction.side_effect = [raised(KafkaError._TIMED_OUT, retriable=True), None]
    producer = producer_over(native)
    producer.begin_transaction()
    producer.commit_transaction()
    producer.begin_transaction()
    native.produce.side_effect = None
    native.abort_transaction.side_effect = raised(KafkaError._TIMED_OUT, retriable=True)
    with pytest.raises(RetriableError):
        producer.abort_transaction()


def test_a_flush_goes_on_for_as_long_as_records_are_delivered(clock: Time) -> None:
    native = MagicMock()
    native.__len__.return_value = 10
    left = iter([9, 9, 8, 8, 7, 7, 0])

    def flush(_: float) -> int:
        clock.now += 20.0
        return next(left)

    native.flush.side_effect = flush
    producer = producer_over(native, timeout=30.0)
    producer.begin_transaction()
    assert producer.flush() == {}
    assert clock.now == 140.0


def test_a_flush_in_which_nothing_is_delivered_any_more_ends(clock: Time) -> None:
    native = MagicMock()
    native.__len__.return_value = 10

    def flush(_: float) -> int:
        clock.now += 20.0
        return 9

    native.flush.side_effect = flush
    producer = producer_over(native, timeout=30.0)
    producer.begin_transaction()
    with pytest.raises(RetriableError, match="flush of 9 records"):
        producer.flush()
    assert clock.now < 100.0


def test_a_client_that_cannot_be_emptied_is_closed_all_the_same() -> None:
    native = Mock()
    native.purge.side_effect = raised(KafkaError._STATE)
    producer = producer_over(native)
    producer.close()
    producer.close()
    native.purge.assert_called_once()


def refused(code: int) -> list[SimpleNamespace]:
    """What a client answers of positions: of one that it is committed, of the other that it is not."""
    return [SimpleNamespace(error=None), SimpleNamespace(error=KafkaError(code))]


POSITIONS = {TopicPartition("in", 0): 3, TopicPartition("in", 1): 5}


def commit_positions(of: str, consumer: Mock) -> None:
    client = Client("nobody:1", 30.0, {})
    if of == "a member":
        KafkaMember(client, lambda: consumer, "group", ["in"], Mock(), "range", Lineages()).commit_offsets(
            POSITIONS, "beside"
        )
    else:
        KafkaPlainProducer(
            client, Mock(), lambda _: consumer, BatchBytes(1_000_000), Lineages()
        ).commit_offsets("group", POSITIONS, "beside")


@pytest.mark.parametrize("of", ["a plain producer", "a member"])
def test_positions_of_which_one_was_refused_are_not_said_to_be_committed(of: str) -> None:
    consumer = Mock()
    consumer.commit.return_value = refused(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(FatalLogError, match="GROUP_AUTHORIZATION_FAILED"):
        commit_positions(of, consumer)


@pytest.mark.parametrize("of", ["a plain producer", "a member"])
def test_positions_that_the_coordinator_cannot_take_yet_are_committed_when_it_can(of: str) -> None:
    consumer = Mock()
    consumer.commit.side_effect = [
        refused(KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        raised(KafkaError.NOT_COORDINATOR),
        [SimpleNamespace(error=None)] * 2,
    ]
    commit_positions(of, consumer)
    assert consumer.commit.call_count == 3
    sent = consumer.commit.call_args.kwargs["offsets"]
    assert [(one.topic, one.partition, one.offset, one.metadata) for one in sent] == [
        ("in", 0, 3, "beside"),
        ("in", 1, 5, "beside"),
    ]


@pytest.mark.parametrize(("assignor", "repeated"), [("cooperative-sticky", True), ("range", False)])
def test_a_generation_that_is_over_is_waited_out_by_members_that_stay_ones_in_a_rebalance(
    assignor: Assignor, repeated: bool
) -> None:
    consumer = Mock()
    consumer.commit.side_effect = [raised(KafkaError.ILLEGAL_GENERATION), None]
    member = KafkaMember(
        Client("nobody:1", 30.0, {}), lambda: consumer, "group", ["in"], Mock(), assignor, Lineages()
    )
    if repeated:
        member.commit_offsets(POSITIONS)
    else:
        with pytest.raises(FatalLogError):
            member.commit_offsets(POSITIONS)
    assert consumer.commit.call_count == 1 + repeated


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.GROUP_AUTHORIZATION_FAILED, FatalLogError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, FatalLogError),
        (KafkaError.INVALID_SESSION_TIMEOUT, FatalLogError),
        (KafkaError.FENCED_INSTANCE_ID, FencedError),
        (KafkaError._TRANSPORT, None),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, None),
        (KafkaError._MAX_POLL_EXCEEDED, None),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, None),
    ],
)
def test_a_member_raises_what_its_client_does_not_get_over_by_itself(
    code: int, expected: type[Exception] | None
) -> None:
    consumer = Mock()
    told = Mock()
    told.error.return_value = KafkaError(code)
    consumer.poll.side_effect = [told, None, None]
    member = KafkaMember(
        Client("nobody:1", 30.0, {}), lambda: consumer, "group", ["in"], Mock(), "range", Lineages()
    )
    if expected is None:
        member.poll(0)
    else:
        with pytest.raises(expected):
            member.poll(0)


@pytest.mark.parametrize("stable", [True, False])
def test_a_coordinator_that_is_slow_is_asked_again_where_no_transaction_can_be_the_reason(
    stable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = KafkaReader(Client("nobody:1", 30.0, {}), {}, Lineages(), Counts())
    asker = Mock()
    noted = SimpleNamespace(error=None, offset=3, metadata="noted")
    asker.committed.side_effect = [raised(KafkaError._TIMED_OUT), [noted]]
    monkeypatch.setattr(reader, "_consumer", lambda *_: asker)
    if stable:
        with pytest.raises(RetriableError, match="a transaction holds it"):
            reader.committed_metadata("group", TopicPartition("in", 0))
    else:
        assert reader.committed_metadata("group", TopicPartition("in", 0), stable=False) == "noted"


def reader_over(stable: int, end: int, monkeypatch: pytest.MonkeyPatch) -> KafkaReader:
    """Of a log that begins at 2."""
    reader = KafkaReader(Client("nobody:1", 30.0, {}), {}, Lineages(), Counts())
    ends = {IsolationLevel.READ_COMMITTED: stable, IsolationLevel.READ_UNCOMMITTED: end}

    def consumer(_: str, isolation: IsolationLevel, *_more: object) -> Mock:
        made = Mock()
        made.get_watermark_offsets.return_value = (2, ends[isolation])
        return made

    monkeypatch.setattr(reader, "_consumer", consumer)
    return reader


@pytest.mark.parametrize("offset", [4, 5, 7])
def test_a_read_behind_an_open_transaction_has_nothing_yet_and_is_no_error(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_over(4, 7, monkeypatch)
    fetch = reader.read(TopicPartition("in", 0), offset, 10, IsolationLevel.READ_COMMITTED)
    assert (list(fetch.records), fetch.next_offset) == ([], offset)


@pytest.mark.parametrize("offset", [0, 1, 8])
def test_a_read_before_the_beginning_of_a_log_or_behind_all_that_is_in_it_says_what_there_is(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_over(4, 7, monkeypatch)
    with pytest.raises(LogError, match=f"at {offset}: the partition holds offsets from 2 to"):
        reader.read(TopicPartition("in", 0), offset, 10, IsolationLevel.READ_COMMITTED)


def assigned(*partitions: tuple[str, tuple[int, ...]]) -> bytes:
    """As a group tells a member of its partitions: a version, topics with their numbers, and nothing of the user's."""
    packed = pack("!hi", 0, len(partitions))
    for topic, numbers in partitions:
        packed += pack(f"!h{len(topic)}si{len(numbers)}i", len(topic), topic.encode(), len(numbers), *numbers)
    return packed + pack("!i", -1)


def group(state: str, error: KafkaError | None = None) -> SimpleNamespace:
    members = [
        SimpleNamespace(
            id="1", client_id="one", client_host="/h", assignment=assigned(("b", (1,)), ("a", (2, 0)))
        ),
        SimpleNamespace(id="2", client_id="two", client_host="/h", assignment=assigned()),
        SimpleNamespace(id="3", client_id="three", client_host=None, assignment=b""),
    ]
    return SimpleNamespace(error=error, state=state, members=members)


class Listing:
    """What the client answers when it is asked for the members of a group."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: Any = ()
        monkeypatch.setattr(admins, "_AdminClientImpl", SimpleNamespace(list_groups=self._list))
        self.admin = KafkaAdmin(Client("nobody:1", 30.0, {}), Mock())

    def _list(self, *_: object, **__: object) -> Any:
        if isinstance(self.answer, KafkaException):
            raise self.answer
        return self.answer


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> Listing:
    return Listing(monkeypatch)


def test_members_of_a_group_have_their_partitions_in_order(listing: Listing) -> None:
    listing.answer = [group("Stable")]
    assert listing.admin.group_members("group") == [
        GroupMember("one", (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))),
        GroupMember("two", ()),
        GroupMember("three", ()),
    ]


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance", "Empty", "Dead", ""])
def test_who_has_which_partitions_is_not_said_in_the_midst_of_a_rebalance_but_who_is_a_member(
    state: str, listing: Listing
) -> None:
    listing.answer = [group(state)]
    assert listing.admin.group_members("group") == []
    assert listing.admin.member_ids("group") == ["1", "2", "3"]


def test_who_is_a_member_is_said_by_name_and_host_whatever_the_group_does(listing: Listing) -> None:
    listing.answer = [group("PreparingRebalance")]
    assert listing.admin.group_clients("group") == [
        GroupClient("1", "one", "/h"),
        GroupClient("2", "two", "/h"),
        GroupClient("3", "three", ""),
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.NOT_COORDINATOR, RetriableError),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, RetriableError),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, FatalLogError),
    ],
)
def test_who_is_not_told_of_the_members_of_a_group_does_not_take_it_for_empty(
    code: int, expected: type[Exception], listing: Listing
) -> None:
    listing.answer = [group("", KafkaError(code))]
    with pytest.raises(expected, match="ask for the members of group group"):
        listing.admin.group_clients("group")


def test_a_coordinator_that_knows_nothing_of_a_group_for_now_names_no_members(listing: Listing) -> None:
    listing.answer = [group("Stable", KafkaError(KafkaError.NOT_COORDINATOR))]
    assert listing.admin.group_members("group") == []
    assert listing.admin.member_ids("group") == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._PARTIAL, RetriableError),
        (KafkaError._TIMED_OUT, RetriableError),
        (KafkaError._TRANSPORT, RetriableError),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, FatalLogError),
    ],
)
def test_members_that_not_all_brokers_could_be_asked_for_are_asked_for_again(
    code: int, expected: type[Exception], listing: Listing
) -> None:
    listing.answer = raised(code)
    with pytest.raises(expected, match="ask for the members of group group"):
        listing.admin.group_members("group")


def future(result: object) -> Future[Any]:
    made: Future[Any] = Future()
    if isinstance(result, Exception):
        made.set_exception(result)
    else:
        made.set_result(result)
    return made


def test_topics_that_are_not_there_or_whose_brokers_tell_no_id_have_none() -> None:
    """All topics would seem to be one, and each made anew once the brokers tell."""
    native = Mock()
    native.describe_topics.return_value = {
        "there": future(SimpleNamespace(topic_id=Uuid(1, 2))),
        "gone": future(raised(KafkaError.UNKNOWN_TOPIC_OR_PART)),
        "old": future(SimpleNamespace(topic_id=Uuid(0, 0))),
        "older": future(SimpleNamespace(topic_id=None)),
    }
    admin = KafkaAdmin(Client("nobody:1", 30.0, {}), native)
    assert admin.topic_ids(["there", "gone", "old", "older"]) == {"there": str(Uuid(1, 2))}
    native.describe_topics.return_value = {"secret": future(raised(KafkaError.TOPIC_AUTHORIZATION_FAILED))}
    with pytest.raises(FatalLogError):
        admin.topic_ids(["secret"])


def told(counts: Counts, answers: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many partitions a new reader finds, of brokers that say what is next."""
    asker = Mock()
    asker.list_topics.side_effect = lambda topic, _: SimpleNamespace(
        topics={topic: SimpleNamespace(error=None, partitions=range(next(answers)))}
    )
    reader = KafkaReader(Client("nobody:1", 30.0, {}), {}, Lineages(), counts)
    monkeypatch.setattr(reader, "_asker", lambda: asker)
    return reader.partitions("in")


def test_a_broker_that_has_not_heard_of_new_partitions_takes_none_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts, answers = Counts(), iter([1, 2, 1, 1, 2])
    assert [told(counts, answers, monkeypatch) for _ in range(3)] == [1, 2, 2]


def test_a_topic_that_stays_one_of_fewer_partitions_is_one_of_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts()
    assert told(counts, repeat(2), monkeypatch) == 2
    assert told(counts, repeat(1), monkeypatch) == 1


def test_clients_that_nobody_polls_gather_no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []

    def build(_: object, config: dict[str, object]) -> Mock:
        made.append(config)
        return Mock()

    for module in (logs, readers):
        monkeypatch.setattr(module, "build", build)
    log = KafkaLog("nobody:1", config={"statistics.interval.ms": 10})
    log.admin()
    log.plain_producer()._make_committer("group")
    reader = log.reader()
    reader._asker()
    reader._intake(IsolationLevel.READ_COMMITTED)
    # The producer and what fetches are polled.
    assert [config["statistics.interval.ms"] for config in made] == [0, 10, 0, 0, 10]
