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
    ColumnFamily,
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
        self._meta_handle: ColumnFamily | None = self._db.get_column_family_handle(_META_NAME)
        self._open = True
        self._lock = Lock()
        self._held: dict[_View | RocksSnapshot, None] = {}

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key) if family is _DATA else self._meta.get(key)
        except Exception as error:
            raise self._error(error) from error
        return value

    def scan(
        self, family: Family, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Pairs:
        try:
            view = _View(self._db if family is _DATA else self._meta, upper)
        except Exception as error:
            raise self._error(error) from error
        pairs = self._pairs(view, lower, upper, reverse, shared=False)
        next(pairs)
        return pairs

    def write(self, writes: Iterable[Write], *, sync: bool = False) -> None:
        if not self._open:
            raise self._closed()
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
            # Each column family has a view of its own; without the lock a write could fall between.
            with self._lock:
                views = _View(self._db), _View(self._meta)
        except Exception as error:
            raise self._error(error) from error
        snapshot = RocksSnapshot(self, views)
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
        self._meta_handle = None
        try:
            try:
                self._meta.close()
            finally:
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

    def _pairs(
        self, view: _View, lower: bytes | None, upper: bytes | None, reverse: bool, *, shared: bool
    ) -> Pairs:
        """The pairs after a first one that only starts the generator, so that `finally` runs in any case."""
        if not shared:
            self._held[view] = None
        try:
            yield b"", b""
            size = _FIRST_CHUNK
            seek = True
            while True:
                try:
                    chunk = view.read(size, lower, upper, reverse, seek=seek)
                except Exception as error:
                    raise self._error(error) from error
                for pair in chunk:
                    if not self._open:
                        raise self._closed()
                    yield pair
                if len(chunk) < size:
                    return
                size = min(size * 2, _LARGEST_CHUNK)
                # Whoever shares the view has moved it meanwhile.
                seek = shared
                if not shared:
                    continue
                if reverse:
                    upper = chunk[-1][0]
                else:
                    lower = chunk[-1][0] + b"\0"
        finally:
            if not shared:
                self._held.pop(view, None)
                view.close()

    def _closed(self) -> StoreClosedError:
        return StoreClosedError(f"{self._path}: used after it was closed")

    def _corrupted(self, why: str) -> StoreCorruptedError:
        return StoreCorruptedError(
            f"the database {self._path} is corrupt: {why}. Nothing was deleted. A store with a changelog can "
            f"be set aside and rebuilt from it; otherwise put back a copy of this directory"
        )

    def _error(self, error: Exception, *, opening: bool = False) -> StoreError:
        """What an exception of rocksdict means. Raises it again if it is none of RocksDB's."""
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
    """See `store.engine.protocol.Snapshot`. Safe to read from any thread.

    Reads through one iterator for each key space, made when the snapshot was: those of rocksdict's own
    snapshots show later writes (0.3.29).
    """

    def __init__(self, engine: RocksEngine, views: tuple[_View, _View]) -> None:
        self._engine = engine
        self._views = views

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            found = self._views[family].read(1, key, key + b"\0", False, seek=True)
        except Exception as error:
            raise self._engine._error(error) from error
        return found[0][1] if found else None

    def scan(
        self, family: Family, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Pairs:
        pairs = self._engine._pairs(self._views[family], lower, upper, reverse, shared=True)
        next(pairs)
        return pairs

    def close(self) -> None:
        """Idempotent."""
        for view in self._views:
            view.close()
        self._engine._held.pop(self, None)


class _View:
    """One RocksDB iterator, which keeps the view of the moment it is made, with what has to outlive it.

    Traps of rocksdict 0.3.29: RocksDB keeps a bare pointer to the upper bound and to the options, and setting
    a lower bound sets the upper one. So both bounds are compared here, and the upper one is told to RocksDB
    only to spare it a walk over deleted keys beyond.
    """

    __slots__ = ("_iterator", "_lock", "_options", "_upper")

    def __init__(self, source: Rdict, upper: bytes | None = None) -> None:
        self._lock = Lock()
        self._upper = upper
        self._options = ReadOptions()
        if upper is not None:
            self._options.set_iterate_upper_bound(upper)
        self._iterator: RdictIter | None = source.iter(self._options)

    def read(
        self, size: int, lower: bytes | None, upper: bytes | None, reverse: bool, *, seek: bool
    ) -> list[tuple[bytes, bytes]]:
        """The next `size` pairs, from the bound on if `seek`. Fewer only at the end, if that is no error."""
        chunk: list[tuple[bytes, bytes]] = []
        with self._lock:
            iterator = self._iterator
            if iterator is None:
                raise StoreClosedError("scan or snapshot used after it or its engine was closed")
            append, valid, key, value = chunk.append, iterator.valid, iterator.key, iterator.value
            advance = iterator.prev if reverse else iterator.next
            try:
                if seek:
                    _seek(iterator, lower, upper, reverse)
                for _ in range(size):
                    if not valid():
                        break
                    found = key()
                    if (upper is not None and found >= upper) or (lower is not None and found < lower):
                        break
                    append((found, value()))
                    advance()
                iterator.status()
            finally:
                # An error's traceback holds this frame, and the iterator in it would hold the database open.
                del iterator, valid, key, value, advance
        return chunk

    def close(self) -> None:
        with self._lock:
            self._iterator = None


def _seek(iterator: RdictIter, lower: bytes | None, upper: bytes | None, reverse: bool) -> None:
    if not reverse:
        if lower is None:
            iterator.seek_to_first()
        else:
            iterator.seek(lower)
    elif upper is None:
        iterator.seek_to_last()
    else:
        iterator.seek_for_prev(upper)
        if iterator.valid() and iterator.key() == upper:
            iterator.prev()


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
