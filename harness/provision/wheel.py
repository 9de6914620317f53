"""The project's wheel, made of the installation that runs: a checkout, an editable one, or one from a wheel.

No build backend and no network take part, and the same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.provision.errors import ProvisionError

PROJECT = "crashproof"
ROOMS = ("store", "harness", "scenarios", "reports")
_METADATA = ("METADATA", "entry_points.txt", "licenses/LICENSE")
_WHEEL = "Wheel-Version: 1.0\nGenerator: crashproof\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH = (2020, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory, a few megabytes."""

    name: str
    content: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def wheel() -> Wheel:
    """The wheel of the four packages as they are now. Raises `ProvisionError` where crashproof is not installed."""
    try:
        distribution = importlib.metadata.distribution(PROJECT)
    except importlib.metadata.PackageNotFoundError as error:
        raise ProvisionError(
            "crashproof runs from its sources without being installed, so there is no wheel of it.",
            "Type, in its directory: pip install -e .",
        ) from error
    files = dict(sorted(_sources()))
    info = f"{PROJECT}-{distribution.version}.dist-info"
    for name in _METADATA:
        text = distribution.read_text(name)
        if text is not None:
            files[f"{info}/{name}"] = text.encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    packed = io.BytesIO()
    # Stored, not compressed: what a compressor makes of the same bytes differs between its versions.
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return Wheel(f"{PROJECT}-{distribution.version}-py3-none-any.whl", packed.getvalue())


def _sources() -> Iterator[tuple[str, bytes]]:
    for room in ROOMS:
        found = importlib.util.find_spec(room)
        for location in (found.submodule_search_locations or ()) if found is not None else ():
            for file in Path(location).rglob("*"):
                inside = file.relative_to(location)
                hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
                if not hidden and file.suffix != ".pyc" and file.is_file():
                    yield f"{room}/{inside.as_posix()}", file.read_bytes()


def _record(files: dict[str, bytes], own: str) -> bytes:
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    return "".join([*lines, f"{own},,\n"]).encode()
