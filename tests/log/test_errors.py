"""What an error of the Kafka client asks a task to do, code by code."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from store.errors import (
    AbortRequiredError,
    FatalLogError,
    FencedError,
    LogError,
    ProtocolError,
    RecordTooLargeError,
    RetriableError,
)
from store.log.kafka.errors import translate


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
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, {"txn_requires_abort": True}, AbortRequiredError),
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
