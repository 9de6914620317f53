"""What clients say of connections that fail is for people: a broker that is gone for an hour is told in some lines."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError

from store.clock import SAID_EVERY_S
from store.errors import LogError
from store.log.kafka import KafkaLog
from store.log.kafka.client import LOGGER, Client

REFUSED = (
    "FAIL [app#consumer-1] [thrd:b:9092/bootstrap]: b:9092/bootstrap: Connect failed: Connection refused"
)


def test_a_connection_that_fails_again_and_again_is_told_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = "of one test"
    times = iter([0.0, 1.0, 2.0, SAID_EVERY_S + 1])
    with patch("store.log.kafka.client.time.monotonic", lambda: next(times)):
        for after in (0, 3, 0, 1):
            LOGGER.error("%s %s (after %dms in state CONNECT)", REFUSED, name, after)
    assert caplog.messages == [
        f"{REFUSED} {name} (after 0ms in state CONNECT)",
        f"{REFUSED} {name} (after 1ms in state CONNECT); 3 such since the last line",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "METADATAUPDATE [%s#producer-1] [thrd:main]: Partition in(wSsCzjvqTuq0)[%d]: new leader-1 not found in cache",
        "ADDOFFSETS [%s#producer-1] [thrd:main]: Failed to add offsets to transaction on broker TxnCoordinator/1: "
        "Broker: Coordinator not available (after %dms, 59998ms remains): error is retriable",
    ],
)
def test_what_a_client_says_of_each_try_while_a_broker_comes_back_is_told_once_in_a_while(
    line: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        LOGGER.warning(line, "spared", number)
    assert caplog.messages == [line % ("spared", 0)]


def test_what_a_client_tells_its_owner_of_that_is_told_once_in_a_while_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", LOGGER.name)
    client = Client("b:9092", 1.0, {})
    for number in range(3):
        for code in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            client._on_error(
                KafkaError(code, f"b:9092: Connection refused (after {number}ms in state CONNECT)")
            )
    assert len(caplog.messages) == 2


def test_each_connection_and_each_reason_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told = [f"{REFUSED} of {number} (after 0ms in state CONNECT)" for number in range(3)]
    for line in told:
        LOGGER.error(line)
    assert caplog.messages == told


def test_all_else_that_a_client_says_is_told_each_time(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        LOGGER.warning("SESSTMOUT [app#consumer-1] [thrd:main]: Consumer group session timed out")
    assert len(caplog.messages) == 3


def test_a_property_of_producers_or_of_consumers_is_not_said_to_be_ignored_by_the_other_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What else is wrong with a property is said, such as that it is deprecated."""
    config: dict[str, str | int] = {
        "compression.type": "lz4",
        "linger.ms": 5,
        "fetch.min.bytes": 1,
        "reconnect.backoff.jitter.ms": 0,
    }
    log = KafkaLog("127.0.0.1:1", timeout=0.2, config=config)
    reader, admin, producer = log.reader(), log.admin(), log.plain_producer()
    with pytest.raises(LogError):
        reader.partitions("in")
    with pytest.raises(LogError):
        admin.topic_ids(["in"])
    producer.produce("out", b"a", b"1")
    with pytest.raises(LogError):
        producer.flush()
    for client in (reader, admin, producer):
        client.close()
    warned = [line for line in caplog.messages if line.startswith("CONFWARN")]
    assert {line.split("]: ")[1].split(": ")[0] for line in warned} == {
        "Configuration property reconnect.backoff.jitter.ms is deprecated"
    }
    assert len(warned) == 3
