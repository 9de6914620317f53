"""One commit in sorted files beside the database: the commit marker of KIP-844's secondary store.

A directory that is built under one name and renamed to another once all in it is on the medium. That it bears the
second name is the marker: whoever finds it has the whole commit and must apply it. Applying is one step for readers
and can be repeated, since the database gets links to the files, which stay until it has said that it has them.

Must survive: a kill or a power cut between any two steps (either nothing is left that counts, or a commit that is
applied at the next open), a commit of any size (memory is that of one file), a marker with files that are missing or
cut (`StoreCorruptedError`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from rocksdict import IngestExternalFileOptions, Options, SstFileWriter

from store.engine.database import corrupted

Ingest = Callable[[list[str], IngestExternalFileOptions], object]

_BUILDING: Final = "staging"
_MARKED: Final = "staged"
_LINKS: Final = "ingesting"
_APPLIED: Final = "applied"
_LIST: Final = "files"
_FILE_BYTES: Final = 64 << 20


class StagedCommit:
    """The place of a staged commit in the directory of a database, and what to do with it. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._marked = directory / _MARKED

    def exists(self) -> bool:
        """Whether a whole commit waits to be applied."""
        return self._marked.is_dir()

    def clean(self) -> None:
        """Remove what an interrupted `write` or `apply` left behind, the marked commit excepted."""
        left = [name for name in (_BUILDING, _LINKS, _APPLIED) if (self._directory / name).exists()]
        for name in left:
            _remove(self._directory / name)
        if left:
            sync_path(self._directory)

    def write(
        self,
        rows: Iterable[tuple[bytes, bytes | None]],
        options: Options,
        before_marking: Callable[[], object],
    ) -> None:
        """Stage rows that come in ascending order, each key once; None deletes.

        `before_marking` is called when all is written: what must not be younger on the medium than the commit
        has to be there when it returns. Raises what rocksdict and the operating system raise.
        """
        building = self._directory / _BUILDING
        _remove(building)
        building.mkdir()
        try:
            names = _write_files(building, rows, options)
            (building / _LIST).write_text("".join(f"{name}\n" for name in names), encoding="ascii")
            for name in (*names, _LIST):
                sync_path(building / name)
            sync_path(building)
            before_marking()
            building.rename(self._marked)
        except BaseException:
            _remove(building)
            raise
        sync_path(self._directory)

    def apply(self, ingest: Ingest) -> None:
        """Let `ingest` apply the marked commit in one step, then remove it.

        Once it has returned, no power cut brings the marker back, which would undo later writes. Raises what
        `ingest` and the operating system raise, and may then be called again.
        """
        if self.exists():
            self._ingest(self._files(), ingest)
            _remove(self._directory / _APPLIED)
            self._marked.rename(self._directory / _APPLIED)
        sync_path(self._directory)
        self.clean()

    def _ingest(self, files: Sequence[Path], ingest: Ingest) -> None:
        if not files:
            return
        directory = self._directory / _LINKS
        _remove(directory)
        directory.mkdir()
        links = [directory / file.name for file in files]
        how = IngestExternalFileOptions()
        try:
            for file, link in zip(files, links, strict=True):
                link.hardlink_to(file)
        except OSError:
            # A file system without links. The database takes copies, which costs as much time as the files do.
            how.set_move_files(False)
            ingest([str(file) for file in files], how)
        else:
            how.set_move_files(True)
            ingest([str(link) for link in links], how)

    def _files(self) -> list[Path]:
        """The files of the marked commit, which are all that were there when it was marked."""
        listed = self._marked / _LIST
        if not listed.exists():
            raise corrupted(self._directory, f"its commit in {_MARKED} has lost the list of its files")
        names = listed.read_text(encoding="ascii", errors="replace").splitlines()
        found = {file.name for file in self._marked.iterdir()} - {_LIST}
        for name in sorted(found.symmetric_difference(names)):
            where = "is in it, but not in its list" if name in found else "is missing"
            raise corrupted(self._directory, f"its commit in {_MARKED} is not whole: {name} {where}")
        return [self._marked / name for name in names]


def _write_files(directory: Path, rows: Iterable[tuple[bytes, bytes | None]], options: Options) -> list[str]:
    names: list[str] = []
    writer: SstFileWriter | None = None
    size = 0
    for key, value in rows:
        if writer is None:
            names.append(f"{len(names):06}.sst")
            writer = SstFileWriter(options)
            writer.open(str(directory / names[-1]))
            size = 0
        if value is None:
            del writer[key]
            size += len(key)
        else:
            writer[key] = value
            size += len(key) + len(value)
        if size >= _FILE_BYTES:
            writer.finish()
            writer = None
    if writer is not None:
        writer.finish()
    return names


def sync_path(path: Path) -> None:
    """A file's content, or the renames in a directory, are power-safe at return. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
