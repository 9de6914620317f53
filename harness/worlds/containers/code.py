"""The code of scenarios of a user's own, brought into containers: the image has the project's alone.

A file is there under the path that it has here, and what it has imported and what is not installed lies beside the
image's packages.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path

from docker.models.containers import Container

from harness.spread.shipped import own_modules
from scenarios import load_all, names_a_file

_PACKAGES = "/usr/local/lib/python3.11/dist-packages"


def place_of(reference: str) -> str:
    """What loads the scenario in a container, wherever a process runs there."""
    return str(Path(reference).resolve()) if names_a_file(reference) else reference


@cache
def archive_of(reference: str) -> bytes:
    """What a container needs of a scenario beside the image, to be unpacked at its root; empty if nothing."""
    if reference in load_all():
        return b""
    content = {f"{_PACKAGES}/{name}": data for name, data in own_modules([reference]).items()}
    if names_a_file(reference):
        content[place_of(reference)] = Path(reference).read_bytes()
    return _packed(content)


def bring(archive: bytes, containers: Iterable[Container]) -> None:
    """Unpack an archive in containers."""
    for container in containers:
        container.put_archive("/", archive)


def _packed(content: Mapping[str, bytes]) -> bytes:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in sorted(content.items()):
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))
    return buffer.getvalue()
