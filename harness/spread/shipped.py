"""What goes along with a job: the packages of the project, and the code of scenarios of a user's own, in one archive.

The same files give the same archive, byte for byte, and its name is its digest: where a file of that name is, the code
is that of the driver.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path

from scenarios import load, load_all, module_of, names_a_file

PACKAGES = ("store", "harness", "scenarios", "reports")
_FILES = "scenario-files"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Shipped:
    """An archive, and where in it the scenarios are that are files, by their references."""

    data: bytes
    files: dict[str, str]

    @property
    def name(self) -> str:
        return f"crashproof-{hashlib.sha256(self.data).hexdigest()[:32]}.zip"


def ship(references: Sequence[str]) -> Shipped:
    """The archive for a campaign of these scenarios."""
    content: dict[str, bytes] = {}
    for name in PACKAGES:
        content.update(_tree(name, _folder(name), every_file=True))
    own = [reference for reference in references if reference not in load_all()]
    files: dict[str, str] = {}
    for number, reference in enumerate(reference for reference in own if names_a_file(reference)):
        path = Path(reference)
        files[reference] = f"{_FILES}/{number}/{path.name}"
        content[files[reference]] = path.read_bytes()
    if own:
        content.update(own_modules(own))
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content[name])
    return Shipped(buffer.getvalue(), files)


def _folder(package: str) -> Path:
    return Path(str(import_module(package).__file__)).parent


def _tree(name: str, folder: Path, *, every_file: bool = False) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*" if every_file else "*.py"):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
        if path.is_file() and not hidden:
            yield f"{name}/{inside.as_posix()}", path.read_bytes()


def own_modules(references: Sequence[str]) -> dict[str, bytes]:
    """The Python files of what scenarios have imported and what is not installed, whole packages of it: a module that
    is found from the directory of the command is found by no executor."""
    files = {module_of(load(reference)) for reference in references}
    installed = tuple(
        str(Path(sysconfig.get_path(name)).resolve())
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    )
    found: dict[str, bytes] = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        top = name.partition(".")[0]
        if module in files or not file or not file.endswith(".py") or top in (*PACKAGES, "__main__"):
            continue
        if str(Path(file).resolve()).startswith(installed):
            continue
        package = sys.modules.get(top)
        folders = getattr(package, "__path__", None)
        if folders is None:
            found[f"{top}.py"] = Path(file).read_bytes()
            continue
        for folder in folders:
            found.update(_tree(top, Path(folder)))
    return found
