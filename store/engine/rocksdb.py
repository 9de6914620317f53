"""An engine on disk: RocksDB through rocksdict, in raw mode, and a reader of it for other processes.

Both key spaces are in one column family, because a sorted file is taken in atomically for one family only, and a
commit that comes as a file has data, offsets and positions in it. Metadata keys get a prefix that sorts behind all
data; data keys that would fall among them get another; all others are stored as they are.

Must survive: SIGKILL at any moment (every batch that `write` returned for is there, whole), a power cut (a
prefix of the batches, up to the last synced one at least), files that were damaged or removed (an error,
never an empty or partial database), and readers that are still open when the engine is closed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    Cache,
    DBRecoveryMode,
    IngestExternalFileOptions,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from store.engine.database import (
    EARLIER_VERSION,
    Chunk,
    Database,
    Decode,
    View,
    corrupted,
    database_options,
    typed,
)
from store.engine.logfile import damaged_length
from store.engine.protocol import NO_DATA, Family, KeyRange, Pairs, Write
from store.engine.scratch import RocksScratch
from store.engine.staged import StagedCommit
from store.errors import StoreError, StoreIOError

_BLOCK_CACHE_BYTES: Final = 64 << 20
_WRITE_BUFFER_BYTES: Final = 16 << 20
_MANIFEST_BYTES: Final = 4 << 20
"""The list of files is begun anew beyond this. It is read through at each opening, and each commit of a file adds."""
_SCRATCH: Final = "scratch"
_OLD_FAMILY: Final = "meta"
_ATTEMPTS: Final = 100
"""How often a reader tries to catch up with a writer that changes its files meanwhile."""

_DATA: Final = Family.DATA
_RESERVED: Final = b"\xff"
"""From here on, keys of data are escaped: few keys start so, while many start with zeros (numbers, times)."""
_ESCAPED: Final = b"\xff\x00"
_DATA_END: Final = b"\xff\x01"
_META: Final = b"\xff\xff"
_PREFIX_BYTES: Final = 2

_SYNC = WriteOptions()
_SYNC.sync = True
_NO_SYNC = WriteOptions()


def _stored(family: Family, key: bytes) -> bytes:
    """The key in the database. Order is kept within a key space."""
    if family is not _DATA:
        return _META + key
    return key if key < _RESERVED else _ESCAPED + key


def _unescaped(chunk: Chunk) -> Chunk:
    # Escaped keys are the last of all, so one of the ends shows whether there are any.
    if chunk and (chunk[-1][0] >= _RESERVED or chunk[0][0] >= _RESERVED):
        return [(key if key < _RESERVED else key[_PREFIX_BYTES:], value) for key, value in chunk]
    return chunk


def _without_prefix(chunk: Chunk) -> Chunk:
    return [(key[_PREFIX_BYTES:], value) for key, value in chunk]


class _Reader:
    """What reads the key spaces of a database, of its present state or of one that a view keeps."""

    _database: Database
    _view: View | None = None

    def scan(
        self, family: Family, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Pairs:
        decode: Decode
        if family is _DATA:
            decode = _unescaped
            if lower is not None and lower >= _RESERVED:
                lower = _ESCAPED + lower
            if upper is None:
                upper = _DATA_END
            elif upper >= _RESERVED:
                upper = _ESCAPED + upper
        else:
            decode = _without_prefix
            lower = _META + (lower or b"")
            upper = None if upper is None else _META + upper
        if self._view is not None:
            return self._database.scan_view(self._view, lower, upper, reverse, decode)
        return self._database.scan(lower, upper, reverse, decode)

    def approximate_num_keys(self, family: Family) -> int:
        """RocksDB's estimate, which counts a key again for each time that it was written, until that is compacted.

        Metadata is counted exactly: it is a few rows, and taken off the estimate that holds for both.
        """
        metadata = sum(1 for _ in self.scan(Family.META, None, None))
        if family is not _DATA:
            return metadata
        try:
            return max(
                0, (self._database.rdict.property_int_value("rocksdb.estimate-num-keys") or 0) - metadata
            )
        except Exception as error:
            raise self._database.error(error) from error


class RocksEngine(_Reader):
    """See `store.engine.protocol.Engine`.

    One open engine for a path, in all processes. `write` and `apply_staged` hold the interpreter lock while
    RocksDB works, so very large batches stop other threads for their time.
    """

    def __init__(self, path: Path | str) -> None:
        """Open the database at `path`, or create it there. A staged commit that is there is applied.

        Raises `StateLockedError` when a live process, this one included, has it open; `StoreCorruptedError`
        when it cannot be trusted; `StoreIOError` when the operating system refuses.
        """
        self._path = Path(path)
        self._refuse_remains()
        self._rdict = self._open_database()
        self._database = Database(self._path, self._rdict)
        self._get = self._rdict.get
        self._staged = StagedCommit(self._path)
        self._waits = False
        self._scratch: RocksScratch | None = None
        try:
            self._recover()
        except BaseException:
            self._database.close_readers()
            self._rdict.close()
            raise

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            if family is _DATA and key < _RESERVED:
                return self._get(key)
            return self._get(_stored(family, key))
        except Exception as error:
            raise self._database.error(error) from error

    def write(
        self,
        writes: Iterable[Write],
        *,
        data: Mapping[bytes, bytes | None] = NO_DATA,
        drop: Sequence[KeyRange] = (),
        sync: bool = False,
    ) -> None:
        database = self._database
        if not database.is_open:
            raise database.closed()
        batch = WriteBatch(raw_mode=True)
        if data:
            _put_all(batch, data)
        delete = batch.delete
        for family, key, value in writes:
            if family is not _DATA:
                key = _META + key
            elif key >= _RESERVED:
                key = _ESCAPED + key
            if value is None:
                delete(key)
            else:
                batch[key] = value
        for lower, upper in drop:
            # RocksDB writes a range that is the wrong way round to its log, and can then not be opened again.
            if lower < upper:
                batch.delete_range(_stored(_DATA, lower), _stored(_DATA, upper))
        if self._waits:
            self.apply_staged()
        try:
            with database.lock:
                self._rdict.write(batch, _SYNC if sync else _NO_SYNC)
        except Exception as error:
            raise database.error(error) from error

    def sync(self) -> None:
        try:
            self._rdict.flush_wal(True)
        except Exception as error:
            raise self._database.error(error) from error

    def snapshot(self) -> RocksSnapshot:
        return RocksSnapshot(self._database)

    def scratch(self) -> RocksScratch:
        """A second database in a directory of this one. Closed with this engine at the latest."""
        if not self._database.is_open:
            raise self._database.closed()
        self._scratch = RocksScratch(self._path / _SCRATCH)
        return self._scratch

    def stage(self, writes: Iterable[Write]) -> None:
        """Takes the memory of one file of 64 MB at most for its index, and the space of the commit on disk."""
        if not self._database.is_open:
            raise self._database.closed()
        self.apply_staged()
        try:
            # What the log holds came before this commit, so it must not be lost where this one is kept.
            self._staged.write(_rows(writes), _options(), before_marking=self.sync)
        except Exception as error:
            raise self._database.error(error) from error
        finally:
            self._waits = self._staged.exists()

    def apply_staged(self, *, drop: Sequence[KeyRange] = ()) -> bool:
        """As long as it raises, every later `write` and `stage` tries it first and raises the same."""
        if not self._database.is_open:
            raise self._database.closed()
        if not self._waits:
            return False
        try:
            self._staged.apply(self._ingest)
        except Exception as error:
            raise self._database.error(error) from error
        self._waits = False
        if drop:
            self.write((), drop=drop)
        return True

    def close(self) -> None:
        """Snapshots and scans that are still open are closed first: one left open would keep the database."""
        if not self._database.is_open:
            return
        try:
            if self._scratch is not None:
                self._scratch.close()
        finally:
            self._database.close_readers()
            try:
                self._rdict.close()
            except Exception as error:
                raise self._database.error(error) from error

    def _ingest(self, files: list[str], how: IngestExternalFileOptions) -> None:
        with self._database.lock:
            self._rdict.ingest_external_file(files, how)

    def _recover(self) -> None:
        """Finish or remove what the last process left beside the database."""
        try:
            if (self._path / _SCRATCH).exists():
                shutil.rmtree(self._path / _SCRATCH)
            self._staged.clean()
            self._waits = self._staged.exists()
            if self._waits:
                self._staged.apply(self._ingest)
                self._waits = False
        except Exception as error:
            raise self._database.error(error, opening=True) from error

    def _refuse_remains(self) -> None:
        """Where CURRENT alone is missing, RocksDB would start anew and drop the files that are there."""
        if (self._path / "CURRENT").exists():
            return
        remains = sorted(
            file.name for pattern in ("*.sst", "*.log", "staged") for file in self._path.glob(pattern)
        )
        if remains:
            raise corrupted(self._path, f"its file CURRENT is missing, but there is {remains[0]}")

    def _open_database(self) -> Rdict:
        try:
            self._refuse_damaged("MANIFEST-*")
            return _open(self._path, DBRecoveryMode.absolute_consistency())
        except Exception as error:
            if not _torn_tail(error):
                raise typed(self._path, error, opening=True) from error
        # The last batch before a kill or power cut was written in part. Recover up to there, without a hole.
        try:
            self._refuse_damaged("*.log")
            return _open(self._path, DBRecoveryMode.point_in_time())
        except Exception as error:
            raise typed(self._path, error, opening=True) from error

    def _refuse_damaged(self, pattern: str) -> None:
        """Where the length of a record is damaged, RocksDB would drop it and all that follows, without a word."""
        for file in sorted(self._path.glob(pattern)):
            place = damaged_length(file)
            if place is not None:
                raise corrupted(
                    self._path, f"the length of the record at byte {place} of its file {file.name} is wrong"
                )


class RocksSnapshot(_Reader):
    """See `store.engine.protocol.Snapshot`. Safe to read from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._view: View = database.view()

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self._view.get(_stored(family, key))

    def close(self) -> None:
        """Idempotent."""
        self._database.release(self._view)


class ReadOnlyRocksEngine(_Reader):
    """A `store.engine.protocol.View` of a database that another process, or none, has open for writing.

    It shows one commit until `refresh` shows the last one. Reads from any thread. It neither locks the database nor
    changes what it holds; the directory must be writable, since rocksdict notes there how a database is opened.
    """

    def __init__(self, path: Path | str) -> None:
        """Raises `StoreError` when there is no database at `path` yet, and as `RocksEngine` does otherwise."""
        self._path = Path(path)
        # RocksDB has a reader keep its own log in a directory of its own.
        self._own = tempfile.TemporaryDirectory(prefix="store-reader-")
        try:
            self._follow()
        except BaseException:
            self._own.cleanup()
            raise

    def get(self, family: Family, key: bytes) -> bytes | None:
        database = self._database
        try:
            with database.lock:
                value: bytes | None = database.rdict.get(_stored(family, key))
        except Exception as error:
            raise database.error(error) from error
        return value

    def snapshot(self) -> RocksSnapshot:
        """What is shown now, whatever `refresh` shows later."""
        return RocksSnapshot(self._database)

    def refresh(self) -> None:
        """Show the last commit of the writer. Ranges that are open keep what they show.

        Where the database was set aside since, the one that took its place is shown.
        """
        if not self._database.is_open:
            raise self._database.closed()
        found = _identity(self._path)
        if found is None:
            raise self._absent()
        if found != self._followed:
            self._database.close_readers()
            self._database.rdict.close()
            self._follow()
        else:
            self._catch_up()

    def close(self) -> None:
        """Idempotent. Open ranges end with `StoreClosedError`."""
        self._database.close_readers()
        self._database.rdict.close()
        self._own.cleanup()

    def _follow(self) -> None:
        """Open the database that is at the path now, and come to its last commit."""
        for left in reversed(range(_ATTEMPTS)):
            if not (self._path / "CURRENT").exists():
                raise self._absent()
            try:
                self._followed = _identity(self._path)
                if _OLD_FAMILY in Rdict.list_cf(str(self._path), _options()):
                    raise corrupted(self._path, EARLIER_VERSION)
                own = tempfile.mkdtemp(dir=self._own.name)
                rdict = Rdict(
                    str(self._path),
                    options=_options(),
                    column_families={"default": _options()},
                    access_type=AccessType.secondary(own),
                )
                break
            except Exception as error:
                # A live writer removes files while they are being opened: what it has now is to be opened then.
                if not left or not (isinstance(error, FileNotFoundError) or _file_is_gone(error)):
                    raise typed(self._path, error, opening=True) from error
        self._database = Database(self._path, rdict)
        self._catch_up()

    def _absent(self) -> StoreError:
        return StoreError(
            f"there is no store at {self._path}: its writer has not made it yet, or the path is wrong"
        )

    def _catch_up(self) -> None:
        """RocksDB reads the list of files first and the log after: a commit that came between must not be missing.

        So this is repeated until no file came or went while it ran.
        """
        database = self._database
        try:
            with database.lock:
                for _ in range(_ATTEMPTS):
                    before = _files(self._path)
                    database.rdict.try_catch_up_with_primary()
                    if before is not None and before == _files(self._path):
                        return
            raise StoreIOError(
                f"the writer of {self._path} changes its files faster than they can be followed"
            )
        except Exception as error:
            # What is shown now may have a hole.
            self.close()
            raise database.error(error) from error


def _put_all(batch: WriteBatch, data: Mapping[bytes, bytes | None]) -> None:
    values = data.values()
    if len(data) > 1 and None not in values and max(data) < _RESERVED:
        # No bytecode is run for a pair: this is most of what a commit costs.
        deque(map(batch.__setitem__, data, values), maxlen=0)
        return
    for key, value in data.items():
        stored = key if key < _RESERVED else _ESCAPED + key
        if value is None:
            batch.delete(stored)
        else:
            batch[stored] = value


def _rows(writes: Iterable[Write]) -> Iterator[tuple[bytes, bytes | None]]:
    """The writes of a commit as they are stored, in order: metadata, which comes first, is last there."""
    meta: list[tuple[bytes, bytes | None]] = []
    for family, key, value in writes:
        if family is not _DATA:
            meta.append((_META + key, value))
        else:
            yield (key if key < _RESERVED else _ESCAPED + key), value
    yield from meta


@cache
def _block_cache() -> Cache:
    """Committed blocks of all stores of this process."""
    return Cache(_BLOCK_CACHE_BYTES)


def _options() -> Options:
    return database_options(_block_cache(), _WRITE_BUFFER_BYTES)


def _open(path: Path, recovery: DBRecoveryMode) -> Rdict:
    options = _options()
    options.set_max_manifest_file_size(_MANIFEST_BYTES)
    options.set_wal_recovery_mode(recovery)
    return Rdict(str(path), options=options, column_families={"default": options})


def _torn_tail(error: Exception) -> bool:
    """Whether the write-ahead log only ends within a record, as a kill or a power cut may leave it."""
    return str(error).startswith(("Corruption: truncated", "Corruption: error reading trailing data"))


def _identity(path: Path) -> str | None:
    """What RocksDB calls the database since it was made; None while there is none."""
    try:
        return (path / "IDENTITY").read_text(encoding="ascii")
    except FileNotFoundError:
        return None


def _files(path: Path) -> tuple[str, int] | None:
    """What changes whenever the database gets or loses a file: where it lists them, and how long the list is."""
    try:
        name = (path / "CURRENT").read_text(encoding="ascii").strip()
        return name, (path / name).stat().st_size
    except FileNotFoundError:
        return None


def _file_is_gone(error: Exception) -> bool:
    return str(error).startswith("IO error: No such file or directory")
