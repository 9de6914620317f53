"""The engine that runs containers: is it here, does it answer, and may this process do with it what faults need.

Must survive: no client library, no Docker, a daemon that is not running or accepts connections and never answers, a
daemon on another machine, and a user who is not root. Each is a `ProvisionError` that says what to type.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.provision.cache import cache_directory
from harness.provision.errors import ProvisionError

if TYPE_CHECKING:
    from docker import DockerClient

ANSWER_SECONDS = 10
"""How long a daemon may take to say that it is there."""
START_SECONDS = 60
GRACE_SECONDS = 5
WORK_SECONDS = 900
"""How long it may be silent over a piece of work, such as copying Spark."""

TOOLS = {"dockerd": "docker.io", "nsenter": "util-linux", "iptables": "iptables", "tc": "iproute2"}
"""Program → the Debian package that has it."""
_SYSTEM = os.pathsep.join(("/usr/local/sbin", "/usr/sbin", "/sbin"))

FIX = "Type: crashproof doctor --fix"


class NotRunningError(ProvisionError):
    """No daemon listens, so one may be started."""


def engine() -> DockerClient:
    """A client of this machine's daemon, which has answered, for a process that may make all faults.

    Raises `ProvisionError`; starts and installs nothing.
    """
    check_machine()
    absent = missing_tools()
    if "dockerd" in absent:
        raise ProvisionError("Docker is not installed.", FIX)
    if absent:
        raise ProvisionError(f"Faults in containers need {', '.join(absent)}, not found on the PATH.", FIX)
    return connect()


def check_machine() -> None:
    """Raise `ProvisionError` for what no installation can change: the system, the user, the client library."""
    if not sys.platform.startswith("linux"):
        raise ProvisionError(
            "Containers are run on Linux only: faults enter their network namespaces.",
            "Run the same command on Linux, in a virtual machine for example; "
            "--world sim and --world local run here.",
        )
    try:
        import docker  # noqa: F401
    except ModuleNotFoundError as error:
        raise ProvisionError(
            "Containers need the Python package docker, which is not installed.",
            "Type, in crashproof's directory: pip install '.[containers]'",
        ) from error
    if os.geteuid() != 0:
        raise ProvisionError(
            "Containers need root: faults enter their network namespaces.",
            f"Type: sudo {own_command()} {' '.join(sys.argv[1:]) or 'doctor --fix'}",
        )


def own_command() -> str:
    """This command as another user can type it."""
    script = shutil.which("crashproof")
    return script or f"{sys.executable} -m harness"


def find_tool(name: str) -> str | None:
    """Where a program of the system is. The PATH of a user often leaves out where root's are."""
    return shutil.which(name) or shutil.which(name, path=_SYSTEM)


def missing_tools() -> list[str]:
    """The programs that runs in containers need and that are not here."""
    return [name for name in TOOLS if find_tool(name) is None]


def connect(seconds: int = ANSWER_SECONDS) -> DockerClient:
    """A client of a daemon that has answered within `seconds`. Raises `ProvisionError`."""
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        client = docker.from_env(timeout=seconds)
    except (DockerException, RequestException) as error:
        raise _no_answer(error, seconds) from error
    if not client.api.base_url.startswith("http+docker://"):
        client.close()
        raise ProvisionError(
            f"DOCKER_HOST={os.environ.get('DOCKER_HOST')} names a daemon that is reached over the network; "
            "faults need one on this machine.",
            "Type: unset DOCKER_HOST",
        )
    client.api.timeout = WORK_SECONDS
    return client


def _no_answer(error: Exception, seconds: int) -> ProvisionError:
    host = os.environ.get("DOCKER_HOST")
    named = f" at DOCKER_HOST={host}" if host else ""
    if "timed out" in str(error).lower():
        return ProvisionError(
            f"The Docker daemon{named} accepts connections and did not answer within {seconds} s.",
            f"Look at its log ({_log_place()}), end it, then: crashproof doctor --fix",
        )
    if host:
        return ProvisionError(
            f"No Docker daemon can be reached{named}: {_last_line(str(error))}", "Type: unset DOCKER_HOST"
        )
    if "FileNotFoundError" in str(error) or "ConnectionRefusedError" in str(error):
        return NotRunningError("The Docker daemon is not running.", FIX)
    return ProvisionError(
        f"The Docker daemon cannot be used: {_last_line(str(error))}", f"Look at its log ({_log_place()})."
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:300]


def _log_place() -> str:
    return "journalctl -u docker" if _has_systemd() else str(log_file())


def log_file() -> Path:
    """Where a daemon that was started here writes."""
    return cache_directory() / "docker" / "dockerd.log"


def _has_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


def start_daemon() -> DockerClient:
    """Start the daemon of this machine, which stays, and wait until it answers. Raises `ProvisionError`."""
    dockerd = find_tool("dockerd")
    if dockerd is None:
        raise ProvisionError("Docker is not installed.", FIX)
    daemon: subprocess.Popen[bytes] | None = None
    if _has_systemd():
        _start_service()
    else:
        daemon = _start_process(dockerd)
    deadline = time.monotonic() + START_SECONDS
    ended = False
    while True:
        try:
            return connect(ANSWER_SECONDS)
        except ProvisionError as error:
            if daemon is not None and not ended and daemon.poll() is not None:
                # It ends at once where the package that has just been installed has started another.
                ended = True
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if time.monotonic() < deadline:
                time.sleep(0.25)
                continue
            how = "ended" if ended else f"did not answer within {START_SECONDS} s"
            if daemon is not None and not ended:
                daemon.terminate()
                daemon.wait()
            raise ProvisionError(
                f"The Docker daemon was started and {how}.{_last_lines()}",
                f"Look at its log ({_log_place()}), mend what it names, then: crashproof doctor --fix",
            ) from error


def _start_service() -> None:
    try:
        done = subprocess.run(
            ["systemctl", "start", "docker"],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProvisionError(
            f"Docker's service could not be started: {error}", "Type: systemctl status docker"
        ) from error
    if done.returncode != 0:
        raise ProvisionError(
            f"Docker's service could not be started: {_last_line(done.stderr)}",
            "Type: systemctl status docker",
        )


def _start_process(dockerd: str) -> subprocess.Popen[bytes]:
    log = log_file()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stream:
            return subprocess.Popen(
                [dockerd],
                cwd="/",
                env={**os.environ, "PATH": os.environ.get("PATH", os.defpath) + os.pathsep + _SYSTEM},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise ProvisionError(
            f"The Docker daemon could not be started: {error}",
            "Mend that, or name another directory for its log in CRASHPROOF_CACHE.",
        ) from error


def _last_lines() -> str:
    if _has_systemd():
        return ""
    try:
        lines = log_file().read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "".join(f"\n  {line[:300]}" for line in lines[-3:])
