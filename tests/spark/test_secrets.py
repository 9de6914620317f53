"""Passwords that a query is given are told to Kafka's clients, and to nobody who reads logs, pages or files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.worlds.local.broker import LocalBroker, _free_port
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from tests.spark.with_secrets import KAFKA, SECRETS
from tests.waiting import LONGEST_S

pytestmark = pytest.mark.xdist_group("spark")


class GuardedBroker(LocalBroker):
    """A broker with a second port, on which a login is asked for."""

    guarded: str = ""

    def _configure(self, session_ms: int) -> None:
        # Made anew where somebody else has taken one of its ports before it could listen.
        listeners = str(self._settings["listeners"])
        if "GUARDED" not in listeners:
            while (port := str(_free_port())) in listeners:
                pass
            self.guarded = f"127.0.0.1:{port}"
            added = f",GUARDED://{self.guarded}"
            login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
            self._settings |= {
                "listeners": f"{self._settings['listeners']}{added}",
                "advertised.listeners": f"{self._settings['advertised.listeners']}{added}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
                "listener.name.guarded.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.guarded.plain.sasl.jaas.config": (
                    f'{login} user_{KAFKA["sasl.username"]}="{KAFKA["sasl.password"]}";'
                ),
            }
        super()._configure(session_ms)


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with GuardedBroker(directory=tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.mark.long
def test_no_password_is_in_any_log_page_or_file(
    guarded: GuardedBroker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    name = unique("secrets")
    log = KafkaLog(guarded.bootstrap)
    admin = log.admin()
    admin.create_topics([TopicSpec(f"{name}-in", 1), TopicSpec(f"{name}-out", 1)])
    admin.close()
    producer = log.plain_producer()
    producer.produce(f"{name}-in", b"k", b"good", partition=0)
    producer.flush()
    producer.close()
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spark.with_secrets", str(tmp_path), guarded.guarded, name],
        capture_output=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()[-4000:]
    (tmp_path / "printed.txt").write_bytes(ended.stdout + ended.stderr)
    said = (tmp_path / "said.txt").read_text()
    assert "ArithmeticError: no such account" in said
    assert "ArithmeticError: after it" in said
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    # What is looked at is there: logs, pages, events, slots and checkpoint.
    assert {"spark.log", "driver.log", "page-environment_.html", "copy-slot-0.json", "said.txt"} <= {
        file.name for file in files
    }
    assert any("events" in file.parts for file in files)
    told = [(file, secret) for file in files for secret in SECRETS if secret.encode() in file.read_bytes()]
    assert told == []
