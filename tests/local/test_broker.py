"""The broker as a child process: it comes up, comes back, and never stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.worlds.local.broker import BrokerError, LocalBroker, PortInUseError
from store.log.kafka import KafkaLog
from store.log.protocol import TopicSpec
from store.suppliers import persistent_window_store
from store.types import IsolationLevel, TopicPartition
from tests.waiting import ended, settle, until

pytestmark = pytest.mark.xdist_group("own-broker")

NEVER_MS = 600_000
"""Longer than any transaction is open here, on a machine that stands still for a while too."""

DAY_MS = 86_400_000

STARTS_A_BROKER = """
import sys, time
from pathlib import Path
from harness.worlds.local.broker import LocalBroker
broker = LocalBroker(directory=Path(sys.argv[1]))
broker.start()
print(broker.pid, broker.directory, flush=True)
time.sleep(600)
"""


def write(
    log: KafkaLog, topic: str, value: bytes, transactional_id: str, *, timestamp: int | None = None
) -> None:
    producer = log.producer(transactional_id, NEVER_MS)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"key", value, timestamp=timestamp)
    reached = producer.flush()
    producer.commit_transaction()
    producer.close()
    reader = log.reader()
    for tp in reached:
        settle(reader, tp)
    reader.close()


def await_removed(log: KafkaLog, tp: TopicPartition, offset: int) -> None:
    reader = log.reader()
    until(lambda: reader.offsets(tp, IsolationLevel.READ_UNCOMMITTED).earliest > offset)
    reader.close()


def values(log: KafkaLog, topic: str) -> list[bytes | None]:
    reader = log.reader()
    try:
        fetch = reader.read(TopicPartition(topic, 0), 0, 100, IsolationLevel.READ_COMMITTED)
        return [record.value for record in fetch.records]
    finally:
        reader.close()


def create(log: KafkaLog, topic: str) -> None:
    admin = log.admin()
    admin.create_topics([TopicSpec(topic, 1)])
    admin.close()


def await_end(process: psutil.Process) -> None:
    until(lambda: ended(process))


def test_a_transaction_commits_as_soon_as_start_returns(
    broker: LocalBroker, log: KafkaLog, unique: Callable[[str], str]
) -> None:
    topic = unique("topic")
    create(log, topic)
    write(log, topic, b"value", unique("id"))
    assert values(log, topic) == [b"value"]
    assert broker.running


def test_what_was_committed_is_there_after_a_sigkill_and_a_start(
    own_broker: LocalBroker, unique: Callable[[str], str]
) -> None:
    log, topic, transactional_id = KafkaLog(own_broker.bootstrap), unique("topic"), unique("id")
    create(log, topic)
    write(log, topic, b"before", transactional_id)
    address = own_broker.bootstrap
    own_broker.kill()
    assert not own_broker.running
    own_broker.start()
    assert own_broker.bootstrap == address
    write(log, topic, b"after", transactional_id)
    assert values(log, topic) == [b"before", b"after"]


def test_a_restart_keeps_data_and_address(own_broker: LocalBroker, unique: Callable[[str], str]) -> None:
    log, topic, transactional_id = KafkaLog(own_broker.bootstrap), unique("topic"), unique("id")
    create(log, topic)
    write(log, topic, b"before", transactional_id)
    own_broker.restart()
    assert values(log, topic) == [b"before"]


def test_a_paused_broker_goes_on_where_it_was(own_broker: LocalBroker, unique: Callable[[str], str]) -> None:
    log, topic, transactional_id = KafkaLog(own_broker.bootstrap), unique("topic"), unique("id")
    create(log, topic)
    own_broker.pause()
    assert psutil.Process(own_broker.pid).status() == psutil.STATUS_STOPPED
    own_broker.resume()
    write(log, topic, b"value", transactional_id)
    assert values(log, topic) == [b"value"]


def test_records_of_any_time_stay(tmp_path: Path) -> None:
    """A topic with a retention of its own shows that the broker has looked at all topics since."""
    often = {"log.initial.task.delay.ms": 0, "log.retention.check.interval.ms": 50}
    with LocalBroker(directory=tmp_path, settings=often) as broker:
        log = KafkaLog(broker.bootstrap)
        admin = log.admin()
        admin.create_topics([TopicSpec("kept", 1), TopicSpec("swept", 1, {"retention.ms": "1"})])
        admin.close()
        producer = log.plain_producer()
        for offset in range(2):
            for topic in ("kept", "swept"):
                producer.produce(topic, b"key", b"%d" % offset, timestamp=77)
            producer.flush()
            await_removed(log, TopicPartition("swept", 0), offset)
        producer.close()
        assert values(log, "kept") == [b"0", b"1"]


def test_a_changelog_of_windows_keeps_what_was_committed_with_times_of_long_ago(tmp_path: Path) -> None:
    """As of an application that reads the history of its input, while the broker cleans all the time."""
    changelog = persistent_window_store("counts", 600_000, 60_000).changelog_config()
    of_their_own = {**changelog, "message.timestamp.type": "CreateTime", "segment.ms": str(DAY_MS)}
    with LocalBroker(directory=tmp_path, settings={"log.cleaner.backoff.ms": 50}) as broker:
        log = KafkaLog(broker.bootstrap)
        log.admin().create_topics([TopicSpec("kept", 1, changelog), TopicSpec("swept", 1, of_their_own)])
        for topic in ("kept", "swept"):
            write(log, topic, b"1", f"writer of {topic}", timestamp=1)
        await_removed(log, TopicPartition("swept", 0), 0)
        assert values(log, "kept") == [b"1"]


def test_a_cluster_id_may_begin_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=b"\xf8" * 16))
    with LocalBroker(directory=tmp_path) as broker:
        assert "cluster.id=-" in (broker.directory / "data" / "meta.properties").read_text()


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@pytest.mark.parametrize("name", ["a, b", "ärö"])
def test_nothing_is_written_elsewhere_whatever_its_directory_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, locale: str
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    monkeypatch.chdir(tmp_path)
    with LocalBroker(directory=tmp_path / name) as broker:
        assert (broker.directory / "data" / "meta.properties").is_file()
        assert list(tmp_path.iterdir()) == [tmp_path / name]
    assert list((tmp_path / name).iterdir()) == []


def test_stop_removes_the_process_and_everything_it_wrote(tmp_path: Path) -> None:
    broker = LocalBroker(directory=tmp_path)
    broker.start()
    process = psutil.Process(broker.pid)
    broker.stop()
    assert ended(process)
    assert list(tmp_path.iterdir()) == []
    broker.stop()


def test_when_the_starter_is_killed_neither_broker_nor_directory_stays(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_BROKER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pid, directory = starter.stdout.readline().split()
    broker = psutil.Process(int(pid))
    (guard,) = [child for child in psutil.Process(starter.pid).children() if child.pid != broker.pid]
    assert Path(directory).is_dir()
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    await_end(guard)
    # While a killed process ends, it has no command line any more by which the guard would know it.
    await_end(broker)
    assert list(tmp_path.iterdir()) == []


def test_when_the_starter_is_killed_while_its_broker_is_down_the_directory_goes_too(tmp_path: Path) -> None:
    program = STARTS_A_BROKER.replace("time.sleep(600)", "broker.kill(); print(flush=True); time.sleep(600)")
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    starter.stdout.readline()
    starter.stdout.readline()
    (guard,) = psutil.Process(starter.pid).children()
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    await_end(guard)
    assert list(tmp_path.iterdir()) == []


def test_the_guard_spares_a_process_that_only_has_the_number(tmp_path: Path) -> None:
    directory = tmp_path / "crashproof-broker-x"
    directory.mkdir()
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (directory / "broker.pid").write_text(f"{bystander.pid}\n")
    guard = Path(sys.modules[LocalBroker.__module__].__file__ or "").with_name("guard.py")
    not_its_parent = bystander.pid
    subprocess.run([sys.executable, "-P", guard, str(not_its_parent), directory], check=True)
    assert not directory.exists()
    assert bystander.poll() is None
    bystander.communicate(b"\n")
    assert bystander.returncode == 0


def test_a_port_in_use_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=str(port)):
            LocalBroker(port=port, directory=tmp_path).start()
    assert list(tmp_path.iterdir()) == []


def test_a_port_taken_while_the_broker_was_down_is_named(own_broker: LocalBroker) -> None:
    own_broker.kill()
    port = int(own_broker.bootstrap.rpartition(":")[2])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(PortInUseError, match=str(port)):
            own_broker.start()


def test_a_start_that_fails_ends_with_the_brokers_own_words(tmp_path: Path) -> None:
    broker = LocalBroker(directory=tmp_path, settings={"transaction.state.log.num.partitions": -3})
    with pytest.raises(BrokerError, match=r"transaction\.state\.log\.num\.partitions"):
        broker.start()
    assert list(tmp_path.iterdir()) == []


def test_it_listens_on_loopback_only(broker: LocalBroker) -> None:
    connections = psutil.Process(broker.pid).net_connections()
    listening = {c.laddr.ip.removeprefix("::ffff:") for c in connections if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_it_is_no_child_of_the_terminals_group(broker: LocalBroker) -> None:
    assert os.getpgid(broker.pid) != os.getpgid(0)
