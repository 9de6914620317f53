"""What is said, and with which exit code, when Docker is not there, not running, silent, or out of reach."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.provision import Finding, ProvisionError, doctor
from harness.provision import docker as provision
from tests.provision.containers import needs_docker


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here is asked only of root."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DOCKER_HOST", raising=False)


def refused(seconds: int = 1) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        provision.connect(seconds)
    assert caught.value.exit_code == 4
    return caught.value


def test_another_system_is_told_what_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ProvisionError, match="on Linux only") as caught:
        provision.engine()
    assert "--world sim and --world local" in caught.value.remedy


@pytest.mark.usefixtures("root")
def test_without_the_client_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(ProvisionError, match="Python package docker") as caught:
        provision.engine()
    assert "pip install '.[containers]'" in caught.value.remedy


@pytest.mark.usefixtures("root")
def test_another_user_than_root_is_told_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["crashproof", "run", "--world", "containers"])
    with pytest.raises(ProvisionError, match="need root") as caught:
        provision.engine()
    assert caught.value.remedy.startswith("Type: sudo ")
    assert caught.value.remedy.endswith(" run --world containers")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ({"dockerd", "tc"}, "Docker is not installed."),
        ({"iptables", "tc"}, "Faults in containers need iptables, tc, not found on the PATH."),
    ],
)
def test_a_program_that_is_missing_is_named(
    absent: set[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision, "find_tool", lambda name: None if name in absent else f"/usr/sbin/{name}")
    with pytest.raises(ProvisionError) as caught:
        provision.engine()
    assert caught.value.problem == said
    assert caught.value.remedy == "Type: crashproof doctor --fix"


def test_programs_of_root_are_found_with_the_path_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tc").write_text("#!/bin/sh\n")
    (tmp_path / "tc").chmod(0o755)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(provision, "_SYSTEM", str(tmp_path))
    assert provision.find_tool("tc") == str(tmp_path / "tc")


def test_a_daemon_that_accepts_and_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{place}")
        assert "did not answer within 1 s" in refused().problem


def test_a_named_daemon_that_is_not_there_is_not_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    error = refused()
    assert not isinstance(error, provision.NotRunningError)
    assert error.remedy == "Type: unset DOCKER_HOST"


@pytest.mark.usefixtures("root")
def test_no_daemon_is_one_that_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(**_: object) -> None:
        from docker.errors import DockerException

        raise DockerException("('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))")

    monkeypatch.setattr("docker.from_env", absent)
    error = refused()
    assert isinstance(error, provision.NotRunningError)
    assert error.problem == "The Docker daemon is not running."
    assert error.remedy == "Type: crashproof doctor --fix"


@pytest.mark.usefixtures("root")
def test_a_daemon_that_ends_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = tmp_path / "dockerd"
    daemon.write_text("#!/bin/sh\necho 'failed to start daemon: no iptables' >&2\nexit 1\n")
    daemon.chmod(0o755)
    monkeypatch.setenv("CRASHPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.setattr(provision, "find_tool", lambda _: str(daemon))
    monkeypatch.setattr(provision, "_has_systemd", lambda: False)
    monkeypatch.setattr(provision, "GRACE_SECONDS", 0)
    with pytest.raises(ProvisionError, match="was started and ended") as caught:
        provision.start_daemon()
    assert "failed to start daemon: no iptables" in caught.value.problem
    assert str(tmp_path / "cache" / "docker" / "dockerd.log") in caught.value.remedy


def test_doctor_counts_missing_docker_as_absent_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ProvisionError("Docker is not installed.", "Type: crashproof doctor --fix")

    monkeypatch.setattr(provision, "engine", missing)
    found = [finding for finding in doctor() if finding.name in ("Docker", "images")]
    sentence = "Docker is not installed. (only runs in containers need it)"
    assert found == [Finding("Docker", True, sentence, "Type: crashproof doctor --fix", absent=True)]
    assert found[0].word == "absent"


def test_the_command_ends_with_exit_code_4_and_one_message(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"}
    done = subprocess.run(
        [sys.executable, "-m", "harness", "doctor", "--fix"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("crashproof: ")


@needs_docker
def test_the_daemon_of_this_machine_answers() -> None:
    client = provision.engine()
    try:
        assert client.ping()
        assert client.api.timeout == provision.WORK_SECONDS
    finally:
        client.close()
