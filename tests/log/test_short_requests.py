"""Requests of an admin client to the leaders of partitions, of which nobody waits for the answer: the process lives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from harness.worlds.local.broker import LocalBroker
from store.log.kafka import KafkaLog
from store.log.protocol import TopicSpec

ASK = """
import random, sys, time
from confluent_kafka import KafkaException
from store.errors import LogError
from store.log.kafka import KafkaLog
from store.log.protocol import TopicSpec
from store.types import TopicPartition
admin = KafkaLog(sys.argv[1]).admin()
# The last try of each call has what is left of its time.
admin._repeat = lambda doing, call, wait_s=None: call(random.choice([0.0005, 0.001, 0.002, 0.003, 0.005]))
for _ in range(1_500):
    try:
        if sys.argv[3] == "delete records":
            admin.delete_records({TopicPartition(sys.argv[2], 0): 0})
        else:
            admin._await_leaders(admin._admin, TopicSpec(sys.argv[2], 1))
    except (LogError, KafkaException):
        pass
    time.sleep(0.002)
"""


@pytest.mark.parametrize("what", ["delete records", "await leaders"])
def test_a_request_to_leaders_that_is_not_waited_for_ends_no_process(
    broker: LocalBroker, unique: Callable[[str], str], what: str
) -> None:
    topic = unique("topic")
    admin = KafkaLog(broker.bootstrap).admin()
    admin.create_topics([TopicSpec(topic, 1)])
    admin.close()
    ended = subprocess.run(
        [sys.executable, "-c", ASK, broker.bootstrap, topic, what],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-500:]
