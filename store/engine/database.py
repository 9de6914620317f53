"""One RocksDB through rocksdict, in raw mode: ranges that keep their view, and errors that say what to do.

Must survive: a block that cannot be read in the middle of a range (an error, never a short range), readers that
are still open when the database is closed, readers in other threads while one thread writes, and a process that is
forked from the one that has it open: it has a copy of RocksDB's memory and the same files, but none of its threads, so
a write of it would be lost, or be in the way of its parent's, and closing would wait for ever. There each database is
left to the parent: whatever is asked of it is refused, and nothing of it is written, released or removed.

Traps of rocksdict 0.3.29 that this module keeps from the others:
* its fast iterators (`items`) end early and in silence at an error. So each range has an explicit iterator too,
  which answers for the end, and reads on where the fast one stopped too soon;
* its snapshots show later writes. Iterators do not, so a view is an iterator;
* RocksDB keeps bare pointers to the upper bound and the options, and setting a lower bound sets the upper one;
* an iterator also points to its column family, which is freed with the last object for it, dropped or not;
* an iterator that is alive anywhere, in the traceback of an error for one, keeps a closed database open;
* errors arrive as a bare `Exception` with a message: `Database.error` is the one place that tells them apart.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final, NoReturn, Protocol
from weakref import WeakSet

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
)

from store.engine.merge import Merging
from store.engine.protocol import Chunk, Overlay, Pairs
from store.errors import (
    CrashproofError,
    ProtocolError,
    StateLockedError,
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    StoreIOError,
)

OLD_FAMILY: Final = "meta"
EARLIER_VERSION: Final = "it was written by an earlier version of this project and has to be rebuilt"

Decode = Callable[[Chunk], Chunk]
"""What turns stored pairs into those that the reader gets, a chunk at a time."""

_FIRST_CHUNK: Final = 128
_LARGEST_CHUNK: Final = 1024


def database_options(blocks: Cache, write_buffer_bytes: int) -> Options:
    """The options that all databases have in common."""
    table = BlockBasedOptions()
    table.set_block_cache(blocks)
    table.set_bloom_filter(10, False)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_stats_persist_period_sec(0)
    return options


class Database:
    """An open database and its readers. Whoever writes holds `lock`."""

    def __init__(self, path: Path, rdict: Rdict) -> None:
        self.path = path
        self.rdict = rdict
        """Where reads go."""
        self.lock = Lock()
        self.is_open = True
        self._is_left = False
        self._held: dict[View | _Range, None] = {}

    def view(self) -> View:
        """The present state, kept until it is closed by `release` or with the database."""
        try:
            with self.lock:
                self._check()
                view = View(self, ReadOptions())
                self._held[view] = None
                return view
        except Exception as error:
            raise self.error(error) from error

    def release(self, view: View) -> None:
        """Idempotent."""
        view.close()
        self._held.pop(view, None)

    def scan(
        self,
        lower: bytes | None,
        upper: bytes | None,
        reverse: bool,
        decode: Decode | None = None,
        overlay: Overlay | None = None,
    ) -> Pairs:
        """See `store.engine.protocol.View.scan`."""
        read = ReadOptions()
        if upper is not None:
            read.set_iterate_upper_bound(upper)
        try:
            # Both iterators have to be of one moment.
            with self.lock:
                self._check()
                taken = _Range(View(self, read), self.rdict.items(reverse, None if reverse else lower, read))
                self._held[taken] = None
        except Exception as error:
            raise self.error(error) from error
        return self._start(taken, lower, upper, reverse, decode, overlay)

    def scan_view(
        self,
        view: View,
        lower: bytes | None,
        upper: bytes | None,
        reverse: bool,
        decode: Decode,
        overlay: Overlay | None,
    ) -> Pairs:
        """The pairs of a range as `view` keeps them, see `scan`; about half as fast."""
        taken = _Range(view, None)
        self._held[taken] = None
        return self._start(taken, lower, upper, reverse, decode, overlay)

    def close_readers(self) -> None:
        """Every open range and view ends with `StoreClosedError`, and no other can be opened."""
        with self.lock:
            self.is_open = False
            held = tuple(self._held)
        for reader in held:
            reader.close()

    def leave(self) -> None:
        """In a process that was forked from the one that has it open: as if it were closed, but nothing is let go of,
        not at the end of the process either. A thread that is not here may have held any of the locks."""
        kept: list[object] = [self.rdict]
        for reader in tuple(self._held):
            kept += reader.leave()
        for one in kept:
            never_let_go(one)
        if not self.is_open:
            # Closed, or another thread was about to close it.
            return
        self.lock = Lock()
        self._is_left = True
        self.is_open = False
        left: Any = _Left(self)
        self.rdict = left

    def closed(self) -> CrashproofError:
        """What to raise where it is no longer open."""
        if self._is_left:
            return ProtocolError(
                f"the database {self.path} was opened by the process that this one was forked from, and only that one "
                "may use it. Open the store in the process that works with it: fork before it is opened, or start "
                'processes by "spawn"; others can read its last commit, see read_store and open_read_only'
            )
        return StoreClosedError(f"{self.path}: used after it was closed")

    def error(self, error: Exception, *, opening: bool = False) -> StoreError:
        """The `StoreError` that an exception means. Raises one again that is neither RocksDB's nor the system's."""
        return typed(self.path, error, opening=opening)

    def _check(self) -> None:
        if not self.is_open:
            raise self.closed()

    def _start(
        self,
        taken: _Range,
        lower: bytes | None,
        upper: bytes | None,
        reverse: bool,
        decode: Decode | None,
        overlay: Overlay | None,
    ) -> Pairs:
        pairs = self._pairs(taken, lower, upper, reverse, decode, overlay)
        next(pairs)
        return pairs

    def _pairs(
        self,
        taken: _Range,
        lower: bytes | None,
        upper: bytes | None,
        reverse: bool,
        decode: Decode | None,
        overlay: Overlay | None,
    ) -> Pairs:
        """The pairs after a first one that only starts the generator, so that `finally` runs in any case."""
        try:
            yield b"", b""
            merging = None if overlay is None else Merging(overlay, reverse=reverse)
            size = _FIRST_CHUNK
            while True:
                try:
                    chunk = taken.read(size, lower, upper, reverse)
                except Exception as error:
                    raise self.error(error) from error
                more = len(chunk) == size
                if more:
                    lower, upper = _after(chunk, lower, upper, reverse)
                if decode is not None:
                    chunk = decode(chunk)
                for part in (chunk,) if merging is None else merging.parts(chunk, more=more):
                    taken.chunk = part
                    yield from part
                    # `close` empties the part, so that a range ends at once when its database is closed.
                    if taken.closed:
                        raise self.closed()
                if not more:
                    return
                size = min(size * 2, _LARGEST_CHUNK)
        finally:
            self._held.pop(taken, None)
            taken.close()
            if overlay is not None:
                overlay.close()


class View:
    """One state of a database: an explicit iterator, with the options and the bound that have to outlive it."""

    __slots__ = ("_database", "_iterator", "_lock", "_options", "_source")

    def __init__(self, database: Database, read: ReadOptions) -> None:
        self._database = database
        self._lock = Lock()
        self._options = read
        self._source: Rdict | None = database.rdict
        self._iterator: RdictIter | None = self._source.iter(read)

    def get(self, key: bytes) -> bytes | None:
        try:
            found = self.read(1, key, key + b"\0", False)
        except Exception as error:
            raise self._database.error(error) from error
        return found[0][1] if found else None

    def read(self, size: int, lower: bytes | None, upper: bytes | None, reverse: bool) -> Chunk:
        """The first `size` pairs of the range. Fewer only where there are fewer."""
        chunk: Chunk = []
        with self._lock:
            iterator = self._iterator
            if iterator is None:
                if not self._database.is_open:
                    raise self._database.closed()
                raise StoreClosedError(f"{self._database.path}: scan or snapshot used after it was closed")
            append, valid, key, value = chunk.append, iterator.valid, iterator.key, iterator.value
            advance = iterator.prev if reverse else iterator.next
            try:
                _seek(iterator, lower, upper, reverse)
                if not valid():
                    iterator.status()
                    return chunk
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
            self._source = None

    def leave(self) -> list[object]:
        """See `Database.leave`. Returns what must not be let go of."""
        kept: list[object] = [self._iterator, self._options, self._source]
        self._lock = Lock()
        self.close()
        return kept


class _Range:
    """One open scan: of a view and, unless it shares that with others, a fast iterator of the same moment."""

    __slots__ = ("_fast", "_own", "_view", "chunk", "closed")

    def __init__(self, view: View, fast: Iterator[tuple[Any, Any]] | None) -> None:
        self._view = view
        self._fast = fast
        self._own = fast is not None
        self.chunk: Chunk = []
        self.closed = False

    def read(self, size: int, lower: bytes | None, upper: bytes | None, reverse: bool) -> Chunk:
        """See `View.read`."""
        if self._fast is None:
            return self._view.read(size, lower, upper, reverse)
        chunk = list(islice(self._fast, size))
        if reverse and lower is not None and chunk and chunk[-1][0] < lower:
            return [pair for pair in chunk if pair[0] >= lower]
        if len(chunk) < size:
            # The end, or an error that only the view can tell.
            self._fast = None
            lower, upper = _after(chunk, lower, upper, reverse)
            chunk += self._view.read(size - len(chunk), lower, upper, reverse)
        return chunk

    def close(self) -> None:
        self.closed = True
        self._fast = None
        self.chunk.clear()
        if self._own:
            self._view.close()

    def leave(self) -> list[object]:
        """See `Database.leave`. Returns what must not be let go of."""
        kept: list[object] = [self._fast, *self._view.leave()]
        self.close()
        return kept


class _Left:
    """In the place of RocksDB where it is left to the process that this one was forked from."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __getattr__(self, _: str) -> Callable[..., NoReturn]:
        return self._refuse

    def __setitem__(self, key: bytes, value: bytes) -> NoReturn:
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise self._database.closed()


class _Owner(Protocol):
    """What has a database open for writing."""

    def leave(self) -> None:
        """See `Database.leave`."""


_owners: WeakSet[_Owner] = WeakSet()


def left_at_fork(owner: _Owner) -> None:
    """Have `leave` called in each process that is forked from this one from now on."""
    _owners.add(owner)


def never_let_go(one: object) -> None:
    """Keep an object of RocksDB's for good, also when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def _leave_all() -> None:
    for owner in tuple(_owners):
        owner.leave()
    _owners.clear()


os.register_at_fork(after_in_child=_leave_all)


def _after(
    chunk: Chunk, lower: bytes | None, upper: bytes | None, reverse: bool
) -> tuple[bytes | None, bytes | None]:
    """What is left of a range after the pairs of the chunk."""
    if not chunk:
        return lower, upper
    last = chunk[-1][0]
    return (lower, last) if reverse else (last + b"\0", upper)


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


def corrupted(path: Path, why: str) -> StoreCorruptedError:
    return StoreCorruptedError(
        f"the database {path} is corrupt: {why}. Nothing was deleted. A store with a changelog can "
        f"be set aside and rebuilt from it; otherwise put back a copy of this directory"
    )


def strange(path: Path) -> StoreCorruptedError:
    """Of a database that may be whole, and whose rows mean something else."""
    return StoreCorruptedError(
        f"the database {path} was made by another program, such as Kafka Streams itself, so its rows would be "
        f"misread. Nothing was deleted. A store with a changelog can be set aside and rebuilt from it; otherwise give "
        f"the store another directory"
    )


_NOT_OPENED: Final = "Invalid argument: Column families not opened:"
_TOO_MANY_FILES: Final = os.strerror(errno.EMFILE)


def typed(path: Path, error: Exception, *, opening: bool = False) -> StoreError:
    """The `StoreError` of an exception of rocksdict or of the system. Raises any other again.

    While a database is opened, a file that is missing is corruption; later it is an error of the system.
    """
    # While one thread closes the database, another that reads finds it "Already mutably borrowed".
    if isinstance(error, DbClosedError) or (type(error) is RuntimeError and "borrowed" in str(error)):
        return StoreClosedError(f"{path}: used after it was closed")
    if type(error) is not Exception and not isinstance(error, OSError):
        raise error
    message = str(error)
    if message.startswith("IO error: lock hold by current process"):
        return StateLockedError(f"the database {path} is open in this process already; close that first")
    if message.startswith("IO error: While lock file"):
        return StateLockedError(
            f"the database {path} is open in another process; wait for that one or stop it"
        )
    if message.startswith("Corruption:"):
        return corrupted(path, message)
    if message.startswith("IO error: No such file or directory:") and opening:
        return corrupted(path, message)
    if message.startswith(_NOT_OPENED):
        ours = message.removeprefix(_NOT_OPENED).strip() == OLD_FAMILY
        return corrupted(path, EARLIER_VERSION) if ours else strange(path)
    if isinstance(error, OSError) or message.startswith("IO error:") or "(os error " in message:
        refused = f"the operating system refused an operation on the database {path}: {message}"
        if _TOO_MANY_FILES in message:
            return StoreIOError(
                f"{refused}. A task takes about ten files and connections, and six more for each store: raise the "
                "limit of this process (ulimit -n), or share the tasks among more processes"
            )
        return StoreIOError(f"{refused}. Check free space, permissions and the device, then open it again")
    return StoreError(f"the database {path}: {message}")
