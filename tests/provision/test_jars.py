"""The jars: fetched once, checked always, never deleted. A script stands for Ivy's Java in most tests."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from harness.provision import ChecksumError, ProvisionError, broker_jars, doctor, jars, spark_jars
from tests.provision.test_java import fake_java

BROKER_JAR = b"a broker"
SPARK_JAR = b"a connector"


def lock_of(**contents: bytes) -> str:
    return "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}/{name}-1.jar\n" for name, content in contents.items()
    )


@pytest.fixture
def ivy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Java that stands for Ivy's. It notes each run in a file, which is returned, and brings two jars."""
    runs = tmp_path / "runs"
    home = fake_java(tmp_path / "java", version="21")
    script = home / "bin" / "java"
    script.write_text(
        script.read_text()
        + f"""
case "$*" in *-retrieve*) ;; *) exit 0 ;; esac
echo run >> {runs}
[ -e {tmp_path}/offline ] && cat {tmp_path}/offline && echo "no route to the repository" && exit 1
while [ "$1" != -retrieve ]; do shift; done
to=${{2%%/\\[conf\\]*}}
mkdir -p "$to/broker" "$to/spark"
sleep 0.3
printf '%s' '{BROKER_JAR.decode()}' > "$to/broker/broker-1.jar"
printf '%s' '{SPARK_JAR.decode()}' > "$to/spark/spark-1.jar"
"""
    )
    lock = tmp_path / "jars.lock"
    lock.write_text(lock_of(broker=BROKER_JAR, spark=SPARK_JAR))
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("CRASHPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "LOCK_FILE", lock)
    jars._verified.cache_clear()
    return runs


def runs_of(ivy: Path) -> int:
    return len(ivy.read_text().splitlines()) if ivy.exists() else 0


def test_jars_are_fetched_once_and_then_taken_from_the_cache(ivy: Path) -> None:
    first = broker_jars()
    jars._verified.cache_clear()
    assert broker_jars() == first
    assert [jar.read_bytes() for jar in spark_jars()] == [SPARK_JAR]
    assert runs_of(ivy) == 1


def test_a_jar_that_arrives_with_a_wrong_checksum_is_kept_but_not_installed(ivy: Path) -> None:
    jars.LOCK_FILE.write_text(lock_of(broker=b"what was locked", spark=SPARK_JAR))
    with pytest.raises(ChecksumError) as caught:
        broker_jars()
    assert caught.value.jar.read_bytes() == BROKER_JAR
    assert caught.value.found == hashlib.sha256(BROKER_JAR).hexdigest()
    assert caught.value.expected == hashlib.sha256(b"what was locked").hexdigest()
    assert caught.value.exit_code == 4
    assert runs_of(ivy) == 1
    with pytest.raises(ChecksumError):
        broker_jars()


@pytest.mark.usefixtures("ivy")
def test_a_jar_that_was_changed_in_the_cache_is_refused_and_left_where_it_is() -> None:
    (jar,) = broker_jars()
    jar.write_bytes(b"something else")
    jars._verified.cache_clear()
    with pytest.raises(ChecksumError, match=re.escape(f"mv '{jar}'")):
        broker_jars()
    assert jar.read_bytes() == b"something else"


@pytest.mark.usefixtures("ivy")
def test_doctor_names_a_jar_that_was_changed() -> None:
    (jar,) = broker_jars()
    jar.write_bytes(b"something else")
    (finding,) = [finding for finding in doctor() if finding.name == "Kafka broker"]
    assert not finding.ok
    assert str(jar) in finding.detail


def test_a_jar_moved_out_of_the_way_is_fetched_anew(ivy: Path) -> None:
    (jar,) = broker_jars()
    jar.rename(jar.with_name(jar.name + ".wrong"))
    jars._verified.cache_clear()
    assert broker_jars() == [jar]
    assert jar.read_bytes() == BROKER_JAR
    assert runs_of(ivy) == 2


def test_without_a_network_the_error_has_what_ivy_said(ivy: Path) -> None:
    (ivy.parent / "offline").touch()
    with pytest.raises(ProvisionError, match="no route to the repository") as caught:
        broker_jars()
    assert "CRASHPROOF_IVY_SETTINGS" in caught.value.remedy


def test_the_error_has_no_password_of_a_mirror(ivy: Path) -> None:
    (ivy.parent / "offline").write_text("tried https://bob:p@ss:w0rd@mirror.example/maven2/org")
    with pytest.raises(
        ProvisionError, match=re.escape("tried https://...@mirror.example/maven2/org")
    ) as caught:
        broker_jars()
    assert "w0rd" not in str(caught.value)


def test_a_lock_that_names_more_than_ivy_brings_is_an_error(ivy: Path) -> None:
    jars.LOCK_FILE.write_text(jars.LOCK_FILE.read_text() + lock_of(spark=SPARK_JAR).replace("-1", "-2"))
    with pytest.raises(ProvisionError, match=r"spark/spark-2\.jar"):
        broker_jars()
    assert runs_of(ivy) == 1


def test_a_line_of_the_lock_that_cannot_be_read_is_named(ivy: Path) -> None:
    jars.LOCK_FILE.write_text("0123  broker/broker-1.jar\n")
    with pytest.raises(ProvisionError, match="line 1"):
        broker_jars()
    assert runs_of(ivy) == 0


def test_of_several_processes_that_start_at_once_one_fetches(ivy: Path) -> None:
    program = (
        "from pathlib import Path; from harness.provision import jars; "
        f"jars.LOCK_FILE = Path({str(jars.LOCK_FILE)!r}); print(jars.broker_classpath())"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    answers = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * 4, answers
    assert len({out for out, _err in answers}) == 1
    assert runs_of(ivy) == 1


@pytest.mark.usefixtures("ivy")
def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CRASHPROOF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ProvisionError, match="CRASHPROOF_CACHE"):
        broker_jars()


def test_writing_the_lock_anew_gives_the_hashes_of_what_ivy_brings(ivy: Path) -> None:
    before = jars.read_lock(jars.LOCK_FILE)
    jars.LOCK_FILE.write_text("")
    jars.write_lock(jars.LOCK_FILE)
    assert jars.read_lock(jars.LOCK_FILE) == before
    assert runs_of(ivy) == 1


def test_the_committed_lock_covers_what_ivy_is_asked_for() -> None:
    wanted = re.findall(r'name="([^"]+)" rev="([^"]+)" conf="(\w+)->', jars.IVY_FILE.read_text())
    locked = jars.read_lock(jars.LOCK_FILE)
    assert len(wanted) == 6
    assert [f"{conf}/{name}-{version}.jar" in locked for name, version, conf in wanted] == [True] * 6


def test_the_connector_is_that_of_the_installed_pyspark() -> None:
    assert f"spark/spark-sql-kafka-0-10_2.13-{pyspark.__version__}.jar" in jars.read_lock(jars.LOCK_FILE)


def test_the_real_jars_are_as_locked() -> None:
    assert len(broker_jars()) + len(spark_jars()) == len(jars.read_lock(jars.LOCK_FILE))
    assert os.pathsep.join(map(str, broker_jars())) == jars.broker_classpath()
