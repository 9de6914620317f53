"""An engine on disk: RocksDB through rocksdict, in raw mode, and a reader of it for other processes.

Both key spaces are in one column family, because a sorted file is taken in atomically for one family only, and a
commit that comes as a file has data, offsets and positions in it. Metadata keys get a prefix that sorts behind all
data; data keys that would fall among them get another; all others are stored as they are.

Must survive: SIGKILL at any moment (every batch that `write` returned for is there, whole), a power cut (a
prefix of the batches, up to the last synced one at least), files that were damaged or removed (an error,
never an empty or partial database), a database that another program has left under the name (an error: its keys would
be taken for escaped ones), readers that are still open when the engine is closed, and a fork of the process that has it
open (an error there at each call, see `store.engine.database`).
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from logging import getLogger
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from weakref import WeakSet

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
    OLD_FAMILY,
    Database,
    Decode,
    View,
    corrupted,
    database_options,
    left_at_fork,
    strange,
    typed,
)
from store.engine.logfile import damaged_length, numbers, unwritten_tail
from store.engine.protocol import NO_DATA, Chunk, Family, KeyRange, Overlay, Pairs, Write
from store.engine.scratch import RocksScratch
from store.engine.staged import StagedCommit
from store.errors import StoreCorruptedError, StoreError, StoreIOError

_BLOCK_CACHE_BYTES: Final = 64 << 20
_WRITE_BUFFER_BYTES: Final = 16 << 20
_MEMTABLE_FILTER: Final = 0.02
"""The share of a write buffer that its filter of keys has, beside it: 0.3 MB for each database."""
_MANIFEST_BYTES: Final = 128 << 10
"""The list of files is begun anew beyond this. It is read through at each opening, and each change of it adds."""
_SCRATCH: Final = "scratch"
_OPENED: Final = "opened"
"""A file that says that the database was opened once, and is whole since."""
_FAMILY: Final = "default"
_ASIDE: Final = ".aside"
"""What is added to the name of a log that RocksDB is not to read."""
_MIN_LOG: Final = "rocksdb.min-log-number-to-keep"
_NO_NUMBER: Final = -1
"""Far enough below the number of every write, the first of which is 1."""
_ATTEMPTS: Final = 100
"""How often a reader tries to read the files of a writer that changes them meanwhile."""

_DATA: Final = Family.DATA
_RESERVED: Final = b"\xff"
"""From here on, keys of data are escaped: few keys start so, while many start with zeros (numbers, times)."""
_ESCAPED: Final = b"\xff\x00"
_DATA_END: Final = b"\xff\x01"
_META: Final = b"\xff\xff"
_PREFIX_BYTES: Final = 2

_T = TypeVar("_T")

_log = getLogger(__name__)

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
        self,
        family: Family,
        lower: bytes | None,
        upper: bytes | None,
        *,
        reverse: bool = False,
        overlay: Overlay | None = None,
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
            return self._database.scan_view(self._view, lower, upper, reverse, decode, overlay)
        return self._database.scan(lower, upper, reverse, decode, overlay)

    counts_exactly = False

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
    """An engine over one RocksDB, see `store.engine.protocol.Engine`.

    One open engine for a path, in all processes. In one that is forked from its own, whatever is called raises
    `ProtocolError`, but for `close`, which does nothing there. `write` and `apply_staged` hold the interpreter lock
    while RocksDB works, so very large batches stop other threads for their time.
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
        left_at_fork(self)

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
        """The staged commit takes the memory of the index of one file of at most 64 MB, and its space on disk."""
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
        """A staged commit that cannot be applied is tried and raises again in each later `write` and `stage`."""
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

    def leave(self) -> None:
        """In a forked process, see `Database.leave`. Done once, so that no call has to ask which process it is in."""
        self._database.leave()
        self._rdict = self._database.rdict
        self._get = self._rdict.get

    def _ingest(self, files: list[str], how: IngestExternalFileOptions) -> None:
        with self._database.lock:
            self._rdict.ingest_external_file(files, how)

    def _recover(self) -> None:
        """Finish or remove what the last process left beside the database, and note that it is whole."""
        try:
            if (self._path / _SCRATCH).exists():
                shutil.rmtree(self._path / _SCRATCH)
            self._staged.clean()
            self._waits = self._staged.exists()
            if self._waits:
                self._staged.apply(self._ingest)
                self._waits = False
            (self._path / _OPENED).touch()
        except Exception as error:
            raise self._database.error(error, opening=True) from error

    def _refuse_remains(self) -> None:
        """Where CURRENT alone is missing, RocksDB would start anew and drop the files that are there. And what another
        program has written there would be misread."""
        if (self._path / "CURRENT").exists():
            _refuse_strange(self._path)
            # RocksDB has a log from its first opening on. Without one it would go on without the commits in it.
            if (self._path / _OPENED).exists() and not any(self._path.glob("*.log")):
                raise corrupted(self._path, "its write-ahead log is missing")
            return
        remains = sorted(
            file.name
            for pattern in ("*.sst", "*.log", "staged", _OPENED)
            for file in self._path.glob(pattern)
        )
        if remains:
            raise corrupted(self._path, f"its file CURRENT is missing, but there is {remains[0]}")

    def _open_database(self) -> Rdict:
        logs = sorted(self._path.glob("*.log"), key=_number)
        try:
            self._refuse_damaged("MANIFEST-*")
            if len(logs) > 1:
                logs = self._set_aside_behind_hole(logs)
            return _open(self._path, DBRecoveryMode.absolute_consistency())
        except Exception as error:
            if not _torn_tail(error):
                found = typed(self._path, error, opening=True)
                last = logs[-1] if logs and type(found) is StoreCorruptedError else None
                place = None if last is None else unwritten_tail(last)
                if last is None or place is None:
                    raise found from error
                return self._open_without(last, place)
        # The last batch before a kill or power cut was written in part. Recover up to there, without a hole.
        try:
            self._refuse_damaged("*.log")
            return _open(self._path, DBRecoveryMode.point_in_time())
        except Exception as error:
            raise typed(self._path, error, opening=True) from error

    def _open_without(self, log: Path, place: int) -> Rdict:
        """Open the database without the batch at the end of its log that a power cut let be written in part. The log as
        it was is kept beside it. Raises, and leaves the log as it is, where anything else is damaged."""
        aside = log.with_name(log.name + _ASIDE)
        try:
            shutil.copyfile(log, aside)
            os.truncate(log, place)
        except OSError as error:
            raise typed(self._path, error, opening=True) from error
        try:
            database = _open(self._path, DBRecoveryMode.absolute_consistency())
        except Exception as error:
            aside.replace(log)
            raise typed(self._path, error, opening=True) from error
        _log.warning(
            "%s: a power cut has left the last batch of %s in part; it was never acknowledged as synced. The log as it "
            "was is kept in %s",
            self._path,
            log.name,
            aside.name,
        )
        return database

    def _set_aside_behind_hole(self, logs: list[Path]) -> list[Path]:
        """Put logs out of the way that go on behind writes which a power cut took, so that what is there has no hole.
        Returns those that are left.

        A sync is of all logs, so nothing in them was synced. Logs that the list of files has no use for may lack all.
        """
        database = _open_to_read(self._path)
        try:
            least = database.property_int_value(_MIN_LOG) or 0
        finally:
            database.close()
        expected: int | None = None
        for at, log in enumerate(logs):
            if _number(log) < least:
                continue
            found, whole = numbers(log)
            # A commit that comes as a file has a number of its own; one more, and the logs before it are in files.
            if found is not None and expected is not None and found.first > expected + 1:
                for one in logs[at:]:
                    one.replace(one.with_name(one.name + _ASIDE))
                _log.warning(
                    "%s: a power cut took writes that were not synced, and left later ones. It goes on from before "
                    "those; what %s had is kept in *%s",
                    self._path,
                    ", ".join(one.name for one in logs[at:]),
                    _ASIDE,
                )
                return logs[:at]
            if not whole and unwritten_tail(log) is None:
                # RocksDB goes no further.
                return logs
            if found is not None:
                expected = found.end
            elif expected is None:
                # It lacks all that it had.
                expected = _NO_NUMBER
        return logs

    def _refuse_damaged(self, pattern: str) -> None:
        """Where the length of a record is damaged, RocksDB would drop it and all that follows, without a word."""
        for file in sorted(self._path.glob(pattern)):
            place = damaged_length(file)
            if place is not None:
                raise corrupted(
                    self._path, f"the length of the record at byte {place} of its file {file.name} is wrong"
                )


class RocksSnapshot(_Reader):
    """A snapshot of a `RocksEngine`, see `store.engine.protocol.Snapshot`. Any thread may read it."""

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

    It shows one commit until `refresh` shows the last one. Reads from any thread, `refresh` and `close` from one. It
    neither locks the database nor changes what it holds; the directory must be writable, since rocksdict notes there
    how a database is opened.

    The mode in which RocksDB follows a writer is not used: what it once read from the log hides newer rows from it
    that came by a file (9.8). So each new commit is a new opening, which no later write can reach.
    """

    def __init__(self, path: Path | str) -> None:
        """Raises `StoreError` when there is no database at `path` yet, and as `RocksEngine` does otherwise."""
        self._path = Path(path)
        self._opened: WeakSet[Database] = WeakSet()
        """All that ranges may still read."""
        self._refuse_others()
        self._files, self._database = self._open_last()

    def get(self, family: Family, key: bytes) -> bytes | None:
        database = self._database
        try:
            value: bytes | None = database.rdict.get(_stored(family, key))
        except Exception as error:
            raise database.error(error) from error
        return value

    def snapshot(self) -> RocksSnapshot:
        """The state that is shown now, whatever `refresh` shows later."""
        return RocksSnapshot(self._database)

    def refresh(self) -> None:
        """Show the last commit of the writer, of whatever database is at the path now.

        Ranges and snapshots that are open keep what they show; when it raises, so does everything. Without a new
        commit it only looks at file sizes. With one it takes 2 ms, and 20 ms more for each MB that the writer has
        in its log, of which there are at most 16; meanwhile it holds the interpreter lock.
        """
        if not self._database.is_open:
            raise self._database.closed()
        files = _files(self._path)
        if files == self._files:
            return
        if files is None or files.listed[:2] != self._files.listed[:2]:
            self._refuse_others()
        self._files, self._database = self._open_last()

    def close(self) -> None:
        """Idempotent. Open ranges end with `StoreClosedError`."""
        for database in tuple(self._opened):
            database.close_readers()
            database.rdict.close()

    def _open_last(self) -> tuple[_Files, Database]:
        """The database at its last commit, and the files that it was opened with.

        RocksDB reads the list of files first and the log after, so a commit that came as a file in between would be
        missing before a later one; and what the log had may be in a file by then. So an opening counts if the list
        of files was the same before and after.
        """

        def attempt() -> tuple[_Files, Database] | None:
            before = _files(self._path)
            if before is None:
                raise self._absent()
            database = Database(self._path, _open_to_read(self._path))
            after = _files(self._path)
            if after is None or after.listed != before.listed:
                return None
            self._opened.add(database)
            return before, database

        return self._retried(attempt)

    def _refuse_others(self) -> None:
        def families() -> list[str]:
            if _files(self._path) is None:
                raise self._absent()
            return Rdict.list_cf(str(self._path), _options())

        found = self._retried(families)
        if OLD_FAMILY in found:
            raise corrupted(self._path, EARLIER_VERSION)
        if found != [_FAMILY]:
            raise strange(self._path)
        _refuse_strange(self._path)

    def _retried(self, attempt: Callable[[], _T | None]) -> _T:
        """The result of the attempt, once it has one: a live writer removes files while they are being read."""
        overtaken = StoreIOError(
            f"the writer of {self._path} changes its files faster than they can be read; ask again"
        )
        failure: Exception = overtaken
        for _ in range(_ATTEMPTS):
            before = _files(self._path)
            try:
                found = attempt()
            except Exception as error:
                failure = typed(self._path, error, opening=True)
                if "No such file or directory" not in str(error):
                    raise failure from error
                now = _files(self._path)
                if before is not None and now is not None and before.listed != now.listed:
                    # The file may have been missing only for the list that was read.
                    failure = overtaken
            else:
                if found is not None:
                    return found
        raise failure

    def _absent(self) -> StoreError:
        return StoreError(
            f"there is no store at {self._path}: its writer has not made it yet, or the path is wrong"
        )


def _put_all(batch: WriteBatch, data: Mapping[bytes, bytes | None]) -> None:
    # In order, each key is found its place in the write buffer from that of the one before.
    keys = sorted(data)
    if len(keys) > 1 and keys[-1] < _RESERVED and None not in data.values():
        # No bytecode is run for a pair.
        deque(map(batch.__setitem__, keys, map(data.__getitem__, keys)), maxlen=0)
        return
    for key in keys:
        value = data[key]
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
    options = database_options(_block_cache(), _WRITE_BUFFER_BYTES)
    # For reads of keys that are not there, as each first record of a key makes one, and of those in older files.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(_MEMTABLE_FILTER)
    return options


def _open(path: Path, recovery: DBRecoveryMode) -> Rdict:
    options = _options()
    options.set_max_manifest_file_size(_MANIFEST_BYTES)
    options.set_wal_recovery_mode(recovery)
    return Rdict(str(path), options=options, column_families={_FAMILY: options})


def _open_to_read(path: Path) -> Rdict:
    """The database as its files are now: a live writer's log ends anywhere and is read up to its last whole batch."""
    options = _options()
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    access = AccessType.read_only(error_if_log_file_exist=False)
    return Rdict(str(path), options=options, column_families={_FAMILY: options}, access_type=access)


def _refuse_strange(path: Path) -> None:
    """A database of this engine says that it was opened. In one that lacks that, as files may in a copy, there are
    metadata beside the data, or neither: without transactions data come first, but to a database that says so."""
    if (path / _OPENED).exists():
        return
    try:
        if Rdict.list_cf(str(path), _options()) != [_FAMILY]:
            return
        database = _open_to_read(path)
    except Exception:  # noqa: BLE001 - who opens it is told, and of other families too
        return
    try:
        rows = database.iter()
        rows.seek_to_first()
        has_rows = rows.valid()
        rows.seek(_META)
        has_metadata = rows.valid()
        del rows
    finally:
        database.close()
    if has_rows and not has_metadata:
        raise strange(path)


def _number(log: Path) -> int:
    return int(log.stem)


def _torn_tail(error: Exception) -> bool:
    """Whether the write-ahead log only ends within a record, as a kill or a power cut may leave it."""
    return str(error).startswith(("Corruption: truncated", "Corruption: error reading trailing data"))


class _Files(NamedTuple):
    """What tells one state of the files of a database from another, from the outside."""

    listed: tuple[str, int, int]
    """Where RocksDB lists its files, which file that is to the system, and how long the list is."""
    logs: tuple[tuple[str, int], ...]
    """The write-ahead logs with their lengths."""


def _files(path: Path) -> _Files | None:
    """None while there is no database."""
    try:
        name = (path / "CURRENT").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    logs = []
    for file in sorted(path.glob("*.log")):
        # A live writer removes what it has no use for.
        with suppress(FileNotFoundError):
            logs.append((file.name, file.stat().st_size))
    try:
        found = (path / name).stat()
    except FileNotFoundError:
        return _Files((name, 0, 0), tuple(logs))
    return _Files((name, found.st_ino, found.st_size), tuple(logs))
