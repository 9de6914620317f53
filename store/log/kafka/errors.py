"""The errors of the Kafka client, each as the class of `store.errors` that says what the caller has to do next.

Must survive: a client that reports one cause under many codes, and flags them as retriable for transactions alone.
What each means is decided in `translate`, and nowhere else. One meaning cannot be told from the code: a client says
that it does not know a partition when there is none, and also when its metadata, or a broker's, is older than the
topic. So whoever meets one of `MISSING` asks the cluster, see `store.log.kafka.client.settle_missing`.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from store.errors import (
    AbortRequiredError,
    CrashproofError,
    FatalLogError,
    FencedError,
    LogError,
    ProtocolError,
    RecordTooLargeError,
    RetriableError,
)

FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
_NO_ANSWER = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        # The cluster's metadata no longer lists the broker that was asked, or lists it at another address.
        KafkaError._DESTROY_BROKER,
        KafkaError._NODE_UPDATE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
    }
)
# Those that Kafka's Java clients repeat: leaders, coordinators and controllers move, and metadata follows later.
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
        # Of positions of a member, between the answers to its own joining and to that of the group's leader.
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
"""What a broker says of batches, for `max.message.bytes` and `segment.bytes` of their topics."""
REFUSED = TOO_LARGE | {KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP}
"""What a broker says of records that it will never take."""
FORGOTTEN = frozenset({KafkaError.INVALID_PRODUCER_ID_MAPPING})
"""What the coordinator says where it does not know the transactional id any more."""
FOLLOWING = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._INVALID_DIFFERENT_RECORD}
)
"""What the client says of records that nothing is wrong with, but something was with another, or with all."""
_HINTS = {
    # The client says that the broker has refused it, also where it does so itself.
    KafkaError.MSG_SIZE_TOO_LARGE: "The client takes up to its message.max.bytes, which kafka={'message.max.bytes': …} "
    "sets, and a topic up to its max.message.bytes",
    KafkaError.RECORD_LIST_TOO_LARGE: "A topic takes no batch that is larger than its segment.bytes",
    # It is also what the client says of each of several in a batch, whatever the broker has against them.
    KafkaError.INVALID_RECORD: "A compacted topic takes no record without a key, and no topic takes one whose time is "
    "further from the broker's clock than its message.timestamp.after.max.ms or message.timestamp.before.max.ms allow",
    KafkaError._BAD_MSG: "What a broker has sent is damaged: on the way, or on its disk, and then it is so each time",
    # The client's own text has a name for it that no broker knows.
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "transaction.timeout.ms may be no longer than "
    "transaction.max.timeout.ms of the broker",
    KafkaError.INVALID_SESSION_TIMEOUT: "session_timeout_ms has to be from group.min.session.timeout.ms to "
    "group.max.session.timeout.ms of the broker",
    KafkaError.GROUP_MAX_SIZE_REACHED: "Each thread of each process (num.stream.threads) is a member, and a group has "
    "no more of them than group.max.size of the broker",
    KafkaError.UNKNOWN_MEMBER_ID: "A group that has members takes positions from them alone: this is none, or none any "
    "more. An application on Spark has none, so another consumer has its id as its group.id",
}
MISSING = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)


def text_of(error: KafkaError, doing: str) -> str:
    """What went wrong in doing what, and of what a setting has refused, which one that may be."""
    text = f"{doing}: {error.str()} ({error.name()})"
    hint = _HINTS.get(error.code())
    return text if hint is None else f"{text}. {hint}"


def translate(error: KafkaError, doing: str) -> CrashproofError:
    """What an error of the client asks the caller to do. The order of the cases matters."""
    code = error.code()
    text = text_of(error, doing)
    if code in FENCED:
        return FencedError(
            f"{text}. A newer producer has this transactional id, or its transaction timed out"
        )
    if code in FORGOTTEN:
        # To the client, an abort and a new producer id. But who has had the transactional id since has fenced nobody,
        # and only who begins anew finds what that one has committed.
        return FatalLogError(
            f"{text}. Nothing was done with this transactional id for longer than transactional.id.expiration.ms of "
            "the broker, which has forgotten it"
        )
    if error.fatal():
        return FatalLogError(text)
    if error.txn_requires_abort():
        return AbortRequiredError(text)
    if code == KafkaError._STATE:
        return ProtocolError(text)
    if code in MISSING:
        partition = code == KafkaError._UNKNOWN_PARTITION
        hint = "The topic has fewer partitions" if partition else "Create the topic, or check its name"
        return LogError(f"{text}. {hint}")
    if error.retriable() or code in _NO_ANSWER or code in _PASSING or code == KafkaError._CONFLICT:
        return RetriableError(text)
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordTooLargeError(text)
    if code in (KafkaError._INVALID_ARG, KafkaError.INVALID_REQUEST):
        # Refused by the client before anything was sent: the transaction is as it was.
        return LogError(text)
    return FatalLogError(text)


def cause_of(exception: KafkaException) -> KafkaError:
    error = exception.args[0]
    assert isinstance(error, KafkaError), error
    return error
