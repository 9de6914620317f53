"""Two stores as users bring them: a dict kept in a file, and rows in SQLite with transactions and offsets."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import RLock

import msgspec

from store.errors import StoreClosedError
from store.state.protocol import Offsets, StateStore, StoreContext
from store.types import Record, TopicPartition


class FileStore(StateStore):
    """A dict, written to a file as a whole with each commit. No transactions, no offsets of its own."""

    def __init__(self, context: StoreContext) -> None:
        assert context.directory is not None
        self._context = context
        self._file: Path = context.directory / "rows"
        context.directory.mkdir(parents=True, exist_ok=True)
        rows = msgspec.msgpack.decode(self._file.read_bytes()) if self._file.exists() else {}
        self._rows: dict[bytes, bytes] | None = dict(rows)

    @property
    def name(self) -> str:
        return self._context.name

    @property
    def rows(self) -> dict[bytes, bytes]:
        if self._rows is None:
            raise StoreClosedError(f"store {self.name}: used after it was closed")
        return self._rows

    def persistent(self) -> bool:
        return True

    def is_open(self) -> bool:
        return self._rows is not None

    def is_empty(self) -> bool:
        return not self.rows

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def range(self, lower: bytes | None, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        rows = sorted(self.rows.items())
        return iter(
            [pair for pair in rows if (lower or b"") <= pair[0] and (upper is None or pair[0] <= upper)]
        )

    def put(self, key: bytes, value: bytes | None) -> None:
        rows = self.rows
        if self._context.log_change is not None:
            self._context.log_change(key, value, None)
        self.write(rows, key, value)

    def write(self, rows: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value

    def flush(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_bytes(msgspec.msgpack.encode(self.rows))
        new.replace(self._file)

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        for record in records:
            assert record.key is not None
            self.write(self.rows, record.key, record.value)
        self.commit(changelog_offsets)

    def close(self) -> None:
        self._rows = None


class SqliteStore(StateStore):
    """Rows and offsets in a SQLite database; what is uncommitted is in its open transaction.

    Readers in other threads share its connection, and so see uncommitted writes; the lock keeps them apart.
    """

    def __init__(self, context: StoreContext) -> None:
        assert context.directory is not None
        self._context = context
        context.directory.mkdir(parents=True, exist_ok=True)
        self._lock = RLock()
        self._bytes = 0
        self._open = True
        self._database = sqlite3.connect(
            context.directory / "rows.db", isolation_level=None, check_same_thread=False
        )
        # A kill loses nothing then either; only a power cut could.
        self.execute("PRAGMA synchronous = OFF")
        self.execute("CREATE TABLE IF NOT EXISTS row (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        self.execute("CREATE TABLE IF NOT EXISTS committed (partition TEXT PRIMARY KEY, offset INT)")
        self.begin()

    def execute(self, statement: str, *values: object) -> list[tuple[bytes, bytes]]:
        with self._lock:
            if not self._open:
                raise StoreClosedError(f"store {self.name}: used after it was closed")
            return self._database.execute(statement, values).fetchall()

    def begin(self) -> None:
        self.execute("BEGIN")
        self._empty = not self.execute("SELECT key, value FROM row LIMIT 1")
        self._bytes = 0

    @property
    def name(self) -> str:
        return self._context.name

    def persistent(self) -> bool:
        return True

    def transactional(self) -> bool:
        return True

    def manages_offsets(self) -> bool:
        return True

    def is_open(self) -> bool:
        return self._open

    def is_empty(self) -> bool:
        return self._empty

    def get(self, key: bytes) -> bytes | None:
        rows = self.execute("SELECT key, value FROM row WHERE key = ?", key)
        return rows[0][1] if rows else None

    def range(self, lower: bytes | None, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        condition = "key >= ?" if upper is None else "key >= ? AND key <= ?"
        bounds = (lower or b"",) if upper is None else (lower or b"", upper)
        return iter(self.execute(f"SELECT key, value FROM row WHERE {condition} ORDER BY key", *bounds))

    def put(self, key: bytes, value: bytes | None) -> None:
        if self._context.log_change is not None:
            self._context.log_change(key, value, None)
        self.write(key, value)
        self._bytes += len(key) + len(value or b"")

    def write(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.execute("DELETE FROM row WHERE key = ?", key)
        else:
            self.execute("INSERT OR REPLACE INTO row VALUES (?, ?)", key, value)

    def commit(
        self,
        changelog_offsets: Offsets = None,
        position: Mapping[TopicPartition, int] | None = None,  # noqa: ARG002
    ) -> None:
        if isinstance(changelog_offsets, int):
            assert self._context.changelog is not None
            changelog_offsets = {self._context.changelog: changelog_offsets}
        for tp, offset in (changelog_offsets or {}).items():
            self.write_offset(tp, offset)
        self.execute("COMMIT")
        self.begin()

    def write_offset(self, tp: TopicPartition, offset: int | None) -> None:
        if offset is None:
            self.execute("DELETE FROM committed WHERE partition = ?", str(tp))
        else:
            self.execute("INSERT OR REPLACE INTO committed VALUES (?, ?)", str(tp), offset)

    def discard(self) -> None:
        self.execute("ROLLBACK")
        self.begin()

    def recover(self, changelog_offset: int) -> bool:
        self.discard()
        assert self._context.changelog is not None
        committed = self.get_committed_offset(self._context.changelog)
        return committed is not None and committed >= changelog_offset

    def get_committed_offset(self, tp: TopicPartition) -> int | None:
        rows = self.execute("SELECT partition, offset FROM committed WHERE partition = ?", str(tp))
        return int(rows[0][1]) if rows else None

    def approximate_num_uncommitted_bytes(self) -> int:
        return self._bytes

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        for record in records:
            assert record.key is not None
            self.write(record.key, record.value)
        self.commit(changelog_offsets)

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                self._database.close()
