"""An engine on disk: RocksDB through rocksdict, in raw mode, one column family for each key space.

Must survive: SIGKILL at any moment (every batch that `write` returned for is there, whole), a power cut (a
prefix of the batches, up to the last synced one at least), files that were damaged or removed (an error,
never an empty or partial database), and readers that are still open when the engine is closed.

Every error of RocksDB arrives as a bare `Exception` with a message; `_error` is the one place that tells
them apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)
from rocksdict import Snapshot as RdictSnapshot

from store.engine.protocol import Family, Pairs, Write
from store.errors import (
    StateLockedError,
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    StoreIOError,
)

_BLOCK_CACHE_BYTES = 64 << 20
_WRITE_BUFFER_BYTES = 16 << 20
_MAX_WAL_BYTES = 64 << 20
_FIRST_CHUNK = 16
_LARGEST_CHUNK = 512

_DATA: Final = Family.DATA
_META_NAME = "meta"
_SYNC = WriteOptions()
_SYNC.sync = True
_NO_SYNC = WriteOptions()


class RocksEngine:
    """See `store.engine.protocol.Engine`.

    One open engine for a path, in all processes. `write` holds the interpreter lock while RocksDB works, so
    very large batches stop other threads for their time.
    """

    def __init__(self, path: Path | str) -> None:
        """Open the database at `path`, or create it there.

        Raises `StateLockedError` when a live process, this one included, has it open; `StoreCorruptedError`
        when it cannot be trusted; `StoreIOError` when the operating system refuses.
        """
        self._path = Path(path)
        self._refuse_remains()
        self._db = self._open_database()
        self._meta = self._db.get_column_family(_META_NAME)
        self._meta_handle = self._db.get_column_family_handle(_META_NAME)
        self._open = True
        self._lock = Lock()
        self._held: dict[_Cursor | RocksSnapshot, None] = {}

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key) if family is _DATA else self._meta.get(key)
        except Exception as error:
            raise self._error(error) from error
        return value

    def scan(
        self, family: Family, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Pairs:
        return self._scan(self._db if family is _DATA else self._meta, lower, upper, reverse)

    def write(self, writes: Iterable[Write], *, sync: bool = False) -> None:
        batch = WriteBatch(raw_mode=True)
        put, delete, meta = batch.put, batch.delete, self._meta_handle
        for family, key, value in writes:
            if family is _DATA:
                if value is None:
                    delete(key)
                else:
                    batch[key] = value
            elif value is None:
                delete(key, meta)
            else:
                put(key, value, meta)
        try:
            with self._lock:
                self._db.write(batch, _SYNC if sync else _NO_SYNC)
        except Exception as error:
            raise self._error(error) from error

    def snapshot(self) -> RocksSnapshot:
        try:
            # Each column family has a snapshot of its own; without the lock a write could fall between.
            with self._lock:
                data, meta = self._db.snapshot(), self._meta.snapshot()
        except Exception as error:
            raise self._error(error) from error
        snapshot = RocksSnapshot(self, data, meta)
        self._held[snapshot] = None
        return snapshot

    def approximate_num_keys(self, family: Family) -> int:
        database = self._db if family is _DATA else self._meta
        try:
            return database.property_int_value("rocksdb.estimate-num-keys") or 0
        except Exception as error:
            raise self._error(error) from error

    def close(self) -> None:
        """Snapshots and scans that are still open are closed first: one left open would keep the database."""
        if not self._open:
            return
        self._open = False
        for held in tuple(self._held):
            held.close()
        del self._meta_handle
        try:
            self._meta.close()
            self._db.close()
        except Exception as error:
            raise self._error(error) from error

    def _refuse_remains(self) -> None:
        """Where CURRENT alone is missing, RocksDB would start anew and drop the files that are there."""
        if (self._path / "CURRENT").exists():
            return
        remains = sorted(file.name for pattern in ("*.sst", "*.log") for file in self._path.glob(pattern))
        if remains:
            raise self._corrupted(f"its file CURRENT is missing, but there is {remains[0]}")

    def _open_database(self) -> Rdict:
        try:
            return _open(self._path, DBRecoveryMode.absolute_consistency())
        except Exception as error:
            if not _torn_tail(error):
                raise self._error(error, opening=True) from error
        # The last batch before a kill or power cut was written in part. Recover up to there, without a hole.
        try:
            return _open(self._path, DBRecoveryMode.point_in_time())
        except Exception as error:
            raise self._error(error, opening=True) from error

    def _scan(
        self, source: Rdict | RdictSnapshot, lower: bytes | None, upper: bytes | None, reverse: bool
    ) -> Pairs:
        if lower is not None and upper is not None and lower > upper:
            upper = lower
        pairs = self._pairs(source, lower, upper, reverse)
        next(pairs)
        return pairs

    def _pairs(
        self, source: Rdict | RdictSnapshot, lower: bytes | None, upper: bytes | None, reverse: bool
    ) -> Pairs:
        """The pairs after a first one that only starts the generator, so that `finally` runs in any case."""
        try:
            cursor = _Cursor(source, lower, upper, reverse)
        except Exception as error:
            raise self._error(error) from error
        self._held[cursor] = None
        try:
            yield b"", b""
            size = _FIRST_CHUNK
            chunk: list[tuple[bytes, bytes]] | None = None
            while chunk is None or len(chunk) == size:
                try:
                    chunk = cursor.read(size)
                except Exception as error:
                    raise self._error(error) from error
                for pair in chunk:
                    if not self._open:
                        raise self._closed()
                    yield pair
        finally:
            self._held.pop(cursor, None)
            cursor.close()

    def _closed(self) -> StoreClosedError:
        return StoreClosedError(f"{self._path}: used after it was closed")

    def _corrupted(self, why: str) -> StoreCorruptedError:
        return StoreCorruptedError(
            f"the database {self._path} is corrupt: {why}. Nothing was deleted. A store with a changelog can "
            f"be set aside and rebuilt from it; otherwise put back a copy of this directory"
        )

    def _error(self, error: Exception, *, opening: bool = False) -> StoreError:
        """What an exception of rocksdict means. Raises it again if it is none of RocksDB's."""
        if isinstance(error, StoreError):
            return error
        if isinstance(error, DbClosedError):
            return self._closed()
        if type(error) is not Exception:
            raise error
        message = str(error)
        if message.startswith("IO error: lock hold by current process"):
            return StateLockedError(
                f"the database {self._path} is open in this process already; close that first"
            )
        if message.startswith("IO error: While lock file"):
            return StateLockedError(
                f"the database {self._path} is open in another process; wait for that one or stop it"
            )
        if message.startswith("Corruption:"):
            return self._corrupted(message)
        if message.startswith("IO error: No such file or directory:") and opening:
            return self._corrupted(message)
        if message.startswith("IO error:") or "(os error " in message:
            return StoreIOError(
                f"the operating system refused an operation on the database {self._path}: {message}. "
                f"Check free space, permissions and the device, then open it again"
            )
        return StoreError(f"the database {self._path}: {message}")


class RocksSnapshot:
    """See `store.engine.protocol.Snapshot`. Safe to read from any thread."""

    def __init__(self, engine: RocksEngine, data: RdictSnapshot, meta: RdictSnapshot) -> None:
        self._engine = engine
        self._views: tuple[RdictSnapshot, RdictSnapshot] | None = (data, meta)

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            value: bytes = self._view(family)[key]
        except Exception as error:
            if str(error) == "key not found":
                return None
            raise self._engine._error(error) from error
        return value

    def scan(
        self, family: Family, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Pairs:
        return self._engine._scan(self._view(family), lower, upper, reverse)

    def close(self) -> None:
        """Idempotent."""
        self._views = None
        self._engine._held.pop(self, None)

    def _view(self, family: Family) -> RdictSnapshot:
        views = self._views
        if views is None:
            raise StoreClosedError(f"{self._engine._path}: snapshot used after it or its engine was closed")
        return views[family]


class _Cursor:
    """One RocksDB iterator with what has to outlive it, read in chunks.

    RocksDB keeps a bare pointer to the upper bound and to the options. There is no usable lower bound in
    rocksdict 0.3.29 (setting it sets the upper one), so a reverse scan compares keys itself.
    """

    __slots__ = ("_iterator", "_lock", "_lower", "_options", "_reverse", "_upper")

    def __init__(
        self, source: Rdict | RdictSnapshot, lower: bytes | None, upper: bytes | None, reverse: bool
    ) -> None:
        self._lock = Lock()
        self._lower = lower
        self._upper = upper
        self._reverse = reverse
        self._options = ReadOptions()
        if upper is not None:
            self._options.set_iterate_upper_bound(upper)
        iterator = source.iter(self._options)
        if reverse:
            iterator.seek_to_last()
        elif lower is not None:
            iterator.seek(lower)
        else:
            iterator.seek_to_first()
        self._iterator: RdictIter | None = iterator

    def read(self, size: int) -> list[tuple[bytes, bytes]]:
        """The next `size` pairs, fewer only at the end; an end that is an error raises."""
        chunk: list[tuple[bytes, bytes]] = []
        with self._lock:
            iterator = self._iterator
            if iterator is None:
                raise StoreClosedError("scan used after its engine was closed")
            valid, key, value, append = iterator.valid, iterator.key, iterator.value, chunk.append
            try:
                if self._reverse:
                    lower, advance = self._lower or b"", iterator.prev
                    for _ in range(size):
                        if not valid():
                            break
                        found = key()
                        if found < lower:
                            break
                        append((found, value()))
                        advance()
                else:
                    advance = iterator.next
                    for _ in range(size):
                        if not valid():
                            break
                        append((key(), value()))
                        advance()
                iterator.status()
            finally:
                # An error's traceback holds this frame, and the iterator in it would hold the database open.
                del iterator, valid, key, value, advance
        return chunk

    def close(self) -> None:
        with self._lock:
            self._iterator = None


@cache
def _block_cache() -> Cache:
    """Blocks of all databases of this process."""
    return Cache(_BLOCK_CACHE_BYTES)


def _open(path: Path, recovery: DBRecoveryMode) -> Rdict:
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache())
    table.set_bloom_filter(10, False)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_background_jobs(2)
    # Flushed apart, the few metadata rows would keep every write-ahead log since they were last flushed.
    options.set_atomic_flush(True)
    options.set_max_total_wal_size(_MAX_WAL_BYTES)
    options.set_wal_recovery_mode(recovery)
    options.set_keep_log_file_num(2)
    options.set_stats_persist_period_sec(0)
    return Rdict(str(path), options=options, column_families={"default": options, _META_NAME: options})


def _torn_tail(error: Exception) -> bool:
    """Whether the write-ahead log only ends within a record, as a kill or a power cut may leave it."""
    return str(error).startswith(("Corruption: truncated", "Corruption: error reading trailing data"))
