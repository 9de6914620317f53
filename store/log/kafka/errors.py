"""The errors of the Kafka client, each as the class of `store.errors` that says what the caller has to do next.

Must survive: a client that reports one cause under many codes, and codes that mean one thing for a producer and
another for a reader. What each means is decided in `translate`, and nowhere else.
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
    RetriableError,
)

FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
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


def translate(error: KafkaError, doing: str) -> CrashproofError:
    """What an error of the client asks the caller to do. The order of the cases matters."""
    code = error.code()
    text = f"{doing}: {error.str()} ({error.name()})"
    if code in FENCED:
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


def cause_of(exception: KafkaException) -> KafkaError:
    error = exception.args[0]
    assert isinstance(error, KafkaError), error
    return error


def topic_error(topic: str, error: KafkaError) -> LogError:
    if error.code() in _MISSING:
        return LogError(f"topic {topic} does not exist ({error.name()}). Create it, or check the name")
    return LogError(f"topic {topic}: {error.str()} ({error.name()})")
