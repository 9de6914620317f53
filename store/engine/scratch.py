"""The second RocksDB of KIP-844's secondary mechanism: uncommitted writes on disk, gone with their process.

It has a directory of its own and no write-ahead log, since nothing in it is to survive. Each transaction has a
column family of its own, made at its first write and dropped at its end: that costs the same for any number of rows,
and ranges that are still open keep their view.

Must survive: transactions much larger than memory, ranges that stay open while rows are written and removed.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Final

from rocksdict import Cache, Options, Rdict, WriteOptions

from store.engine.database import Database, database_options, left_at_fork, never_let_go, typed
from store.engine.protocol import Pairs

WRITE_BUFFER_BYTES: Final = 8 << 20
ROW_OVERHEAD: Final = 29
"""Bytes of memory that a row takes in a write buffer beyond its key and value, measured on RocksDB 9.8."""
_ARENA_BLOCK_BYTES: Final = 4096
"""By what a write buffer grows. By default that is an eighth of its size: 1 MiB for one row."""
_BLOCK_CACHE_BYTES: Final = 16 << 20
_MANIFEST_BYTES: Final = 1 << 20


class RocksScratch:
    """Uncommitted rows in a RocksDB of their own, see `store.engine.protocol.Scratch`."""

    def __init__(self, directory: Path) -> None:
        """Make the database. `directory`, which must not exist, is removed again by `close`."""
        self._directory = directory
        try:
            directory.mkdir()
            self._root = Rdict(str(directory), options=_options(), column_families={"default": _options()})
        except Exception as error:
            raise typed(directory, error) from error
        self._database = Database(directory, self._root)
        self._begun = False
        self._number = 0
        self._num_bytes = 0
        left_at_fork(self)

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._database.rdict.get(key)
        except Exception as error:
            raise self._database.error(error) from error
        return value

    def put(self, key: bytes, value: bytes, /) -> None:
        database = self._database
        try:
            if not self._begun:
                self._begin()
            with database.lock:
                database.rdict[key] = value
        except Exception as error:
            raise database.error(error) from error
        self._num_bytes += ROW_OVERHEAD + len(key) + len(value)

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs:
        return self._database.scan(lower, upper, reverse)

    def approximate_num_bytes(self) -> int:
        """The memory of the write buffer, in bytes: keys and values put since the last `clear`, `ROW_OVERHEAD` each.

        A key that is put again counts again, since the buffer keeps both. At most `WRITE_BUFFER_BYTES`: a full buffer
        goes to disk, and what is there is not counted. RocksDB's own account is within 10 % of this, and 8 KiB, until
        the first buffer is full; from then on this is a bound of the one that fills (for moments, while a full one is
        written, there are two).
        """
        return min(self._num_bytes, WRITE_BUFFER_BYTES)

    def clear(self) -> None:
        database = self._database
        if not database.is_open:
            raise database.closed()
        if not self._begun:
            return
        # Kept until it is dropped: letting go of it before would write out what is in memory.
        rows = database.rdict
        with database.lock:
            database.rdict = self._root
        self._begun = False
        self._num_bytes = 0
        try:
            self._root.drop_column_family(self._name())
        except Exception as error:
            raise database.error(error) from error
        finally:
            del rows

    def close(self) -> None:
        if not self._database.is_open:
            return
        self.clear()
        self._database.close_readers()
        try:
            self._root.close()
            shutil.rmtree(self._directory)
        except Exception as error:
            raise self._database.error(error) from error

    def leave(self) -> None:
        """In a forked process, see `Database.leave`."""
        # The database has that of a transaction, where one has begun.
        never_let_go(self._root)
        self._database.leave()
        self._root = self._database.rdict

    def _name(self) -> str:
        return f"transaction-{self._number}"

    def _begin(self) -> None:
        self._number += 1
        rows = self._root.create_column_family(self._name(), _options())
        rows.set_write_options(_no_log())
        with self._database.lock:
            self._database.rdict = rows
        self._begun = True


@cache
def _block_cache() -> Cache:
    """Blocks of all scratch databases of this process: reading one through must not push out committed ones."""
    return Cache(_BLOCK_CACHE_BYTES)


@cache
def _no_log() -> WriteOptions:
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[assignment, method-assign]
    return options


def _options() -> Options:
    options = database_options(_block_cache(), WRITE_BUFFER_BYTES)
    options.set_max_manifest_file_size(_MANIFEST_BYTES)
    options.set_arena_block_size(_ARENA_BLOCK_BYTES)
    return options
