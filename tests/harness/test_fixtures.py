"""The fixtures for tests of one's own: shared by the processes of a run, and gone with them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.waiting import LONGEST_S, until

ROUND_TRIP = """
from pathlib import Path
import pytest
from store import IsolationLevel, TopicPartition
from store.log.kafka import KafkaLog

@pytest.mark.parametrize("number", range(4))
def test_a_record_comes_back(kafka_broker, number):
    log = KafkaLog(kafka_broker.bootstrap)
    topic = kafka_broker.topic("orders", cleanup_policy="compact")
    admin = log.admin()
    assert admin.topic_config(topic)["cleanup.policy"] == "compact"
    admin.close()
    producer = log.plain_producer()
    producer.produce(topic, b"key", b"%d" % number, partition=0, timestamp=1)
    producer.flush()
    producer.close()
    reader = log.reader()
    fetch = reader.read(TopicPartition(topic, 0), 0, 10, IsolationLevel.READ_COMMITTED)
    assert [record.value for record in fetch.records] == [b"%d" % number]
    reader.close()
    with (Path(__file__).parent / "seen").open("a") as seen:
        seen.write(f"{topic} {kafka_broker.bootstrap}\\n")
"""

CLUSTERS = """
from confluent_kafka.admin import AdminClient

def test_a_cluster_of_brokers_has_three_copies(kafka_cluster):
    topic = kafka_cluster.topic("orders", partitions=2)
    found = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap}).list_topics(topic).topics[topic]
    assert {len(partition.replicas) for partition in found.partitions.values()} == {3}

def test_a_cluster_of_spark_runs_jobs(spark_cluster):
    with spark_cluster.session() as spark:
        assert spark.range(1000).repartition(4).rdd.map(lambda row: row.id).sum() == 499500
"""

README = Path(__file__).parent.parent.parent / "README.md"

WAITS = """
import time
from pathlib import Path

def test_waits(kafka_broker):
    (Path(__file__).parent / "up").touch()
    time.sleep(%d)
"""

LOCKS = """
from store import StateDirectory

def test_lets_go(state_dir):
    assert not list(state_dir.iterdir())
    with StateDirectory(state_dir, "app").lock("0_0"):
        pass

def test_keeps(state_dir):
    global kept
    kept = StateDirectory(state_dir, "app").lock("0_1")
    kept.__enter__()
"""


def command(place: Path, *words: str) -> list[str]:
    base = ["-p", "no:cacheprovider", "--basetemp", str(place / "base"), *words]
    return [sys.executable, "-m", "pytest", "-q", *base]


def run(place: Path, test: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a suite of somebody else's, in a directory of its own."""
    (place / "test_own.py").write_text(test)
    return subprocess.run(
        command(place, *words),
        cwd=place,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def left(place: Path) -> Iterator[psutil.Process]:
    """Processes whose command lines name a directory."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if any(str(place) in argument for argument in process.cmdline()):
                yield process


def test_processes_of_xdist_share_one_broker_and_no_topic(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["harness.fixtures"]\n')
    answer = run(tmp_path, ROUND_TRIP, "-n", "2", DOCKER_HOST="unix:///nonexistent")
    assert answer.returncode == 0, answer.stdout
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert len({topic for topic, _ in seen}) == len(seen) == 4
    assert len({topic.split("-")[1] for topic, _ in seen}) == 2
    (address,) = {address for _, address in seen}
    told = rf"kafka_broker: {address} in child process \d+, as Docker cannot be used: .*/nonexistent"
    assert len(re.findall(told, answer.stdout)) == 1, answer.stdout
    assert not list(left(tmp_path))


def test_nothing_is_left_of_a_run_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(WAITS % LONGEST_S)
    words = ("-p", "harness.fixtures", "--crashproof-where", "processes")
    process = subprocess.Popen(command(tmp_path, *words), cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        until(lambda: (tmp_path / "up").exists() or process.poll() is not None)
        assert process.poll() is None
        assert len(list(left(tmp_path))) > 1
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    until(lambda: not list(left(tmp_path)))
    assert not list((tmp_path / "base" / "crashproof-services").glob("services-*"))


def test_a_task_that_is_still_locked_fails_its_test(tmp_path: Path) -> None:
    answer = run(tmp_path, LOCKS, "-p", "harness.fixtures")
    assert answer.returncode == 1
    assert "2 passed, 1 error" in answer.stdout
    assert re.search(r"state_dir: task directory \S+/app/0_1 is locked", answer.stdout), answer.stdout


def test_without_being_asked_for_there_are_no_fixtures(tmp_path: Path) -> None:
    answer = run(tmp_path, ROUND_TRIP)
    assert "fixture 'kafka_broker' not found" in answer.stdout


def test_clusters_are_child_processes_or_say_why_they_are_not_there(tmp_path: Path) -> None:
    answer = run(tmp_path, CLUSTERS, "-rs", "-p", "harness.fixtures", "--crashproof-where", "processes")
    assert "1 passed, 1 skipped" in answer.stdout, answer.stdout
    assert re.search(r"SKIPPED .* kafka_cluster: ", answer.stdout), answer.stdout
    assert re.search(r"spark_cluster: spark://127\.0\.0\.1:\d+ in child processes ", answer.stdout)
    assert not list(left(tmp_path))


@pytest.mark.requirement("card.4")
def test_the_example_of_the_readme_passes(tmp_path: Path) -> None:
    (example,) = [
        text
        for text in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        if "(kafka_broker" in text
    ]
    answer = run(tmp_path, example, "-p", "harness.fixtures", "--crashproof-where", "processes")
    assert answer.returncode == 0, answer.stdout


@pytest.mark.long
@pytest.mark.xdist_group("containers")
def test_where_docker_is_there_brokers_and_spark_are_containers(tmp_path: Path) -> None:
    from harness.provision import ProvisionError
    from harness.provision.images import kafka_image

    try:
        kafka_image()
    except ProvisionError as error:
        pytest.skip(str(error))
    answer = run(tmp_path, ROUND_TRIP + CLUSTERS, "-p", "harness.fixtures")
    assert answer.returncode == 0, answer.stdout
    assert "6 passed" in answer.stdout
    assert re.search(r"kafka_broker: 127\.0\.0\.1:\d+ in container crashproof-", answer.stdout)
