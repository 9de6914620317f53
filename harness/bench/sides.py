"""Our store and raw rocksdict as sides of the benchmark: the same work, the same bytes, RocksDB tuned alike.

The raw side writes what a pipeline has to write whatever it is built on: the pairs and, in the same batch, one row
with the changelog offset.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch

from harness.bench.work import Kind, Work
from store.engine.rocksdb import RocksEngine
from store.state.keyvalue import KeyValueStore
from store.state.protocol import StoreContext
from store.transaction.protocol import Mechanism
from store.types import TopicPartition

CHANGELOG = TopicPartition("bench-store-changelog", 0)


class Side(Protocol):
    def measure(self, work: Work) -> float:
        """Do it; the seconds it took, loading and opening apart."""

    def close(self) -> None: ...


@lru_cache(maxsize=2)
def ordered_keys(count: int) -> list[bytes]:
    """Keys of 16 bytes, ascending."""
    return [b"%016d" % number for number in range(count)]


class _Database(Protocol):
    """What a side does with one open database."""

    def put(self, keys: list[bytes], value: bytes, batch: int) -> None: ...

    def get(self, keys: list[bytes]) -> None: ...

    def scan(self, reverse: bool) -> int: ...

    def ranges(self, bounds: list[tuple[bytes, bytes]]) -> int: ...

    def close(self) -> None: ...


class LocalSide:
    """A side that runs in this process: one database at a time, loaded when other work needs other contents."""

    def __init__(self, open_database: Callable[[Path], _Database], directory: Path) -> None:
        self._open = open_database
        self._parent = directory
        self._directory: Path | None = None
        self._database: _Database | None = None
        self._loaded = 0

    def measure(self, work: Work) -> float:
        order = random.Random(work.seed)
        keys = ordered_keys(work.keys)
        value = bytes(work.value_bytes)
        if work.kind is Kind.PUT:
            shuffled = list(keys)
            order.shuffle(shuffled)
            database = self._fresh()
            return _timed(lambda: database.put(shuffled[: work.operations], value, work.batch))
        database = self._load(keys, value)
        if work.kind is Kind.GET:
            chosen = order.choices(keys, k=work.operations)
            return _timed(lambda: database.get(chosen))
        if work.kind is Kind.RANGE:
            starts = [order.randrange(len(keys) - work.batch) for _ in range(work.operations // work.batch)]
            bounds = [(keys[start], keys[start + work.batch]) for start in starts]
            return _timed(lambda: _exactly(database.ranges(bounds), work.batch * len(bounds)))
        return _timed(lambda: _exactly(database.scan(work.kind is Kind.REVERSE), work.keys))

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None
        self._loaded = 0

    def _fresh(self) -> _Database:
        self.close()
        self._directory = Path(tempfile.mkdtemp(dir=self._parent))
        self._database = self._open(self._directory / "database")
        return self._database

    def _load(self, keys: list[bytes], value: bytes) -> _Database:
        if self._database is not None and self._loaded == len(keys):
            return self._database
        database = self._fresh()
        database.put(keys, value, 10_000)
        self._loaded = len(keys)
        return database


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _exactly(found: int, expected: int) -> None:
    if found != expected:
        raise AssertionError(f"read {found} pairs where {expected} are")


class OurDatabase:
    """A key-value store over RocksDB. `uncommitted` more pairs are written and not committed before reads."""

    def __init__(self, path: Path, mechanism: Mechanism | None) -> None:
        self.store = KeyValueStore(
            StoreContext(name="bench", open_engine=lambda: RocksEngine(path), mechanism=mechanism)
        )
        self._offset = 0

    def put(self, keys: list[bytes], value: bytes, batch: int) -> None:
        store = self.store
        put, commit = store.put, store.commit
        for start in range(0, len(keys), batch):
            for key in keys[start : start + batch]:
                put(key, value)
            self._offset += batch
            commit({CHANGELOG: self._offset})

    def get(self, keys: list[bytes]) -> None:
        get = self.store.get
        for key in keys:
            get(key)

    def scan(self, reverse: bool) -> int:
        count = 0
        for _ in self.store.reverse_all() if reverse else self.store.all():
            count += 1
        return count

    def ranges(self, bounds: list[tuple[bytes, bytes]]) -> int:
        count = 0
        for lower, upper in bounds:
            # The upper bound is inclusive, and not counted.
            for _ in self.store.range(lower, upper):
                count += 1
            count -= 1
        return count

    def close(self) -> None:
        self.store.close()


class RawDatabase:
    """rocksdict, used directly as its documentation has it."""

    def __init__(self, path: Path) -> None:
        table = BlockBasedOptions()
        table.set_block_cache(Cache(64 << 20))
        table.set_bloom_filter(10, False)
        table.set_format_version(5)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_write_buffer_size(16 << 20)
        options.set_max_background_jobs(2)
        options.set_max_total_wal_size(64 << 20)
        self._database = Rdict(str(path), options=options)
        self._offset = 0

    def put(self, keys: list[bytes], value: bytes, batch: int) -> None:
        database = self._database
        for start in range(0, len(keys), batch):
            writes = WriteBatch(raw_mode=True)
            for key in keys[start : start + batch]:
                writes[key] = value
            self._offset += batch
            writes[b"\0offset"] = self._offset.to_bytes(8, "big")
            database.write(writes)

    def get(self, keys: list[bytes]) -> None:
        get = self._database.get
        for key in keys:
            get(key)

    def scan(self, reverse: bool) -> int:
        count = -1
        for _ in self._database.items(backwards=reverse):
            count += 1
        return count

    def ranges(self, bounds: list[tuple[bytes, bytes]]) -> int:
        count = 0
        for lower, upper in bounds:
            for key, _ in self._database.items(from_key=lower):
                if key >= upper:  # type: ignore[operator]
                    break
                count += 1
        return count

    def close(self) -> None:
        self._database.close()
