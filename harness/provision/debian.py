"""What a Debian machine can do for images: install Docker, and make a base where no registry is in reach.

The packages come from where this machine's own come from, as /etc/apt says. Must survive: being killed (mounts made by
debootstrap are in a namespace that dies with it), another Linux than Debian, a mirror that does not answer.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.provision.docker import find_tool
from harness.provision.errors import ProvisionError
from harness.provision.steps import Show

SUITE = "bookworm"
_LONGEST_S = 1800
_PATIENCE_S = 5
_URI = re.compile(r"(https?|file|copy):\S+")


@dataclass(frozen=True)
class Source:
    """One place of Debian packages that this machine's apt reads."""

    uri: str
    suites: tuple[str, ...]
    keyring: str | None


def apt_get(packages: Sequence[str], show: Show) -> None:
    """Install Debian packages on this machine. Raises `ProvisionError`."""
    apt = shutil.which("apt-get")
    if apt is None:
        raise ProvisionError(
            f"This machine has no apt-get, so {', '.join(packages)} cannot be installed from here.",
            "Install Docker, iptables, iproute2 (tc) and util-linux (nsenter) with this system's own tools, "
            "then: crashproof doctor --fix",
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    # Lists may be old or absent. A list that cannot be had is said by the installation, if it is one that matters.
    _watched([apt, "update"], environment, show)
    command = [apt, "install", "--yes", "--no-install-recommends", "--no-upgrade", *packages]
    code, last = _watched(command, environment, show)
    if code != 0:
        raise ProvisionError(
            f"apt-get could not install {' '.join(packages)}:\n  " + "\n  ".join(last),
            f"Mend what it names, or type yourself: {shlex.join(command)}",
        )


def _watched(command: Sequence[str], environment: dict[str, str], show: Show) -> tuple[int, list[str]]:
    last: deque[str] = deque(maxlen=3)
    try:
        with subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for number, line in enumerate(process.stdout):
                    if line.strip():
                        last.append(_without_hosts(line.strip()))
                        show(last[-1], number, 0)
                return process.wait(timeout=_LONGEST_S), list(last)
            finally:
                if process.poll() is None:
                    _end(process)
    except OSError as error:
        raise ProvisionError(f"{command[0]} cannot be run: {error.strerror}", "Repair it.") from error


def _end(process: subprocess.Popen[str]) -> None:
    """apt-get mends its state on a signal. `unshare` takes none but the one that takes all with it."""
    process.terminate()
    try:
        process.wait(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _without_hosts(line: str) -> str:
    """A mirror is this machine's own affair, and its address may have a password in it."""
    line = re.sub(r"(?<=://)[^/\s]+", "...", line)
    return re.sub(r"(?<=host address )\S+", "...", line)


def source(directory: Path = Path("/etc/apt"), release: Path = Path("/etc/os-release")) -> Source:
    """Where this machine's Debian packages come from. Raises `ProvisionError` where it is no Debian."""
    described = _described(release)
    codename = described.get("VERSION_CODENAME", "")
    if described.get("ID") == "debian" and codename:
        for found in _sources(directory):
            if codename in found.suites:
                return found
    raise ProvisionError(
        f"No registry is in reach, and {directory} names no source of Debian's packages, "
        "so there is nothing to make a base image of.",
        "Give the Docker daemon a registry (`docker pull debian:bookworm-slim` has to work), "
        "or run the same command on Debian.",
    )


def _described(release: Path) -> dict[str, str]:
    try:
        text = release.read_text()
    except OSError:
        return {}
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in text.splitlines())}


def _sources(directory: Path) -> Iterator[Source]:
    lists = directory / "sources.list.d"
    for file in sorted(lists.glob("*.sources")):
        for paragraph in re.split(r"\n\s*\n", file.read_text(errors="replace")):
            yield from _paragraph(paragraph)
    for file in (directory / "sources.list", *sorted(lists.glob("*.list"))):
        if file.is_file():
            for line in file.read_text(errors="replace").splitlines():
                yield from _line(line)


def _paragraph(text: str) -> Iterator[Source]:
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    if (
        "deb" in fields.get("Types", "").split()
        and "main" in fields.get("Components", "").split()
        and fields.get("Enabled", "yes") != "no"
    ):
        keyring = fields.get("Signed-By", "")
        for uri in fields.get("URIs", "").split():
            if _URI.fullmatch(uri):
                suites = tuple(fields.get("Suites", "").split())
                yield Source(uri, suites, keyring if keyring.startswith("/") else None)


def _line(text: str) -> Iterator[Source]:
    match = re.match(
        r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<parts>.*)", text
    )
    if match and _URI.fullmatch(match["uri"]) and "main" in match["parts"].split():
        keyring = re.search(r"signed-by=(/\S+)", match["options"] or "")
        yield Source(match["uri"], (match["suite"],), keyring[1] if keyring else None)


@contextmanager
def root(packages: Sequence[str], trim: Path, scratch: Path, show: Show) -> Iterator[Path]:
    """A directory with a minimal Debian and `packages`, trimmed; gone when the block ends."""
    found = source()
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}"]
    if found.keyring is not None and Path(found.keyring).is_file():
        command.append(f"--keyring={found.keyring}")
    with tempfile.TemporaryDirectory(dir=scratch, prefix="root-") as directory:
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        code, last = _watched([*apart, *command, SUITE, directory, found.uri], _environment(), show)
        if code != 0:
            raise ProvisionError(
                "debootstrap could not make a base image:\n  " + "\n  ".join([*last, *_log(Path(directory))]),
                "Mend what it names (is this machine's Debian mirror in reach?), then the same command.",
            )
        show("trimming", 0, 0)
        trimmed = subprocess.run(["sh", str(trim), directory], capture_output=True, text=True, check=False)
        if trimmed.returncode != 0:
            raise ProvisionError(
                f"The base image could not be trimmed: {trimmed.stderr.strip()}",
                "Type: crashproof doctor --fix",
            )
        yield Path(directory)


def _log(directory: Path) -> list[str]:
    try:
        text = (directory / "debootstrap" / "debootstrap.log").read_text(errors="replace")
    except OSError:
        return []
    return [_without_hosts(line) for line in text.strip().splitlines()[-3:]]


def _environment() -> dict[str, str]:
    """apt's proxy is told to debootstrap, which asks for packages by itself."""
    environment = {**os.environ, "LC_ALL": "C"}
    asked = shutil.which("apt-config")
    if asked is not None and "http_proxy" not in environment:
        told = subprocess.run(
            [asked, "shell", "proxy", "Acquire::http::Proxy"], capture_output=True, text=True, check=False
        )
        match = re.search(r"proxy='([^']+)'", told.stdout)
        if match:
            environment["http_proxy"] = match[1]
    tools = Path(find_tool("debootstrap") or "").parent
    environment["PATH"] = (
        f"{environment.get('PATH', os.defpath)}{os.pathsep}{tools}{os.pathsep}/usr/sbin:/sbin"
    )
    return environment
