"""What of the real worlds is here, what is missing, and what to type. Looks only; no network."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.provision import docker, images, jars
from harness.provision.cache import cache_directory
from harness.provision.errors import ProvisionError
from harness.provision.java import java

if TYPE_CHECKING:
    from docker import DockerClient

_WHAT = {"broker": "Kafka broker", "spark": "Spark's Kafka connector"}


@dataclass(frozen=True)
class Finding:
    """`ok` is False only for what stops a run in the simulation or the local world. `remedy` is what to type, None when
    nothing is needed. `absent` is what only other runs need, and is not here."""

    name: str
    ok: bool
    detail: str
    remedy: str | None = None
    absent: bool = False

    @property
    def word(self) -> str:
        """What it is in one word."""
        if not self.ok:
            return "missing"
        return "absent" if self.absent else "ok"


def doctor() -> list[Finding]:
    """Python, packages, Java, jars and the cache directory, in the order in which a run needs them; then what only
    containers need."""
    jar_findings = (_jars(name) for name in jars.CONFIGURATIONS)
    return [_python(), *_packages(), _cache(), _java(), *jar_findings, *_containers()]


def _python() -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    return Finding("Python", True, found)


def _packages() -> list[Finding]:
    findings = []
    for package in ("confluent-kafka", "rocksdict", "pyspark", "pandas", "pyarrow"):
        try:
            findings.append(Finding(package, True, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            findings.append(Finding(package, False, "not installed", f"pip install {package}"))
    return findings


def _cache() -> Finding:
    directory = cache_directory()
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return Finding("cache", True, str(directory))
    except OSError as error:
        return Finding(
            "cache",
            False,
            f"{directory} cannot be written: {error.strerror}",
            "Make it writable, or name another directory in CRASHPROOF_CACHE.",
        )


def _java() -> Finding:
    try:
        found = java()
    except ProvisionError as error:
        return Finding("Java", False, error.problem, error.remedy)
    passed_over = "".join(f"; skipped {reason}" for reason in found.skipped)
    return Finding("Java", True, f"{found.version} from {found.source}: {found.executable}{passed_over}")


def _jars(configuration: str) -> Finding:
    name = _WHAT[configuration]
    try:
        lock = {
            jar: digest for jar, digest in jars.read_lock().items() if Path(jar).parts[0] == configuration
        }
        directory = jars.jar_directory(jars.LOCK_FILE, cache_directory())
        missing = jars.missing_jars(lock, directory)
        for jar, digest in lock.items():
            if jar not in missing:
                jars.check_jar(directory / jar, digest)
    except ProvisionError as error:
        return Finding(name, False, error.problem, error.remedy)
    if missing:
        settings = os.environ.get("CRASHPROOF_IVY_SETTINGS")
        through = f" (through the Ivy settings {settings})" if settings else ""
        return Finding(
            name,
            True,
            f"{len(missing)} of {len(lock)} jars are not fetched yet",
            f"Nothing: the first run that needs them fetches them{through}.",
        )
    return Finding(name, True, f"{len(lock)} jars in {directory / configuration}, all as locked")


_ONLY = "only runs in containers need it"


def _containers() -> list[Finding]:
    """Nothing of it stops the other worlds, so all is `ok`."""
    try:
        client = docker.engine()
    except ProvisionError as error:
        detail = f"{' '.join(error.problem.split())} ({_ONLY})"
        return [Finding("Docker", True, detail, error.remedy, absent=True)]
    try:
        with images.daemon_errors("The Docker daemon says nothing of itself"):
            found = f"{client.version()['Version']} answers; nsenter, iptables and tc are here"
        return [Finding("Docker", True, found), _images(client)]
    except ProvisionError as error:
        return [Finding("Docker", True, f"{error.problem} ({_ONLY})", error.remedy, absent=True)]
    finally:
        client.close()


def _images(client: DockerClient) -> Finding:
    try:
        found = images.standing(client)
    except ProvisionError as error:
        return Finding("images", True, f"{error.problem} ({_ONLY})", error.remedy, absent=True)
    here = ", ".join(f"{tag} ({size / 1e6:.0f} MB)" for tag, size in found.sizes.items())
    lacking = [name for name in found.missing if name != "host"]
    if lacking:
        detail = f"not built yet: {', '.join(found.missing)}" + (f"; here: {here}" if here else "")
        return Finding("images", True, f"{detail} ({_ONLY})", docker.FIX, absent=True)
    if found.missing:
        remedy = "Nothing: the first run in containers adds the project as it is now, in seconds."
        return Finding("images", True, here, remedy)
    return Finding("images", True, here)
