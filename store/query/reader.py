"""Stores of another process, read-only and at READ_COMMITTED.

A reader follows the database of the task that owns it, without its lock and without a word to its process: each
query first catches up with the last commit. Any number of readers, in any number of processes.

Must survive: an owner that commits, flushes and compacts while a query runs, that is killed, or that comes back
after its store was set aside and rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import NoReturn, Protocol, Self, runtime_checkable

from store.engine.protocol import (
    NO_DATA,
    Engine,
    Family,
    KeyRange,
    Overlay,
    Pairs,
    Scratch,
    Snapshot,
    View,
    Write,
)
from store.engine.rocksdb import ReadOnlyRocksEngine
from store.errors import ProtocolError, StoreClosedError, StoreError
from store.query.answer import Queryable, is_queryable
from store.recovery.directory import StateDirectory
from store.state import metadata
from store.state.protocol import StateStore, StoreContext
from store.types import IsolationLevel, TopicPartition


@runtime_checkable
class Supplies(Protocol):
    """A supplier or a builder, which opens stores."""

    def open(self, context: StoreContext) -> StateStore: ...


def open_read_only(
    directory: StateDirectory | Path | str,
    task_id: str,
    store_name: str,
    open_store: Callable[[StoreContext], StateStore] | Supplies,
    *,
    application_id: str | None = None,
) -> ReadOnlyStore:
    """A store of a task that another process, or none, works on; ask it with `query` or `query_all`.

    `directory` is the state directory, or its root together with the `application_id`. `open_store` makes the store
    as its owner does: a type such as `KeyValueStore`, or its supplier or builder. Raises `StoreError` when the
    store is not there yet, `StoreCorruptedError` when it cannot be read, `ProtocolError` for a type that does not keep
    its rows in an engine.
    """
    if not isinstance(directory, StateDirectory):
        if application_id is None:
            raise TypeError("open_read_only takes a StateDirectory, or its root and an application_id")
        directory = StateDirectory(directory, application_id)
    opens = open_store.open if isinstance(open_store, Supplies) else open_store
    return ReadOnlyStore(directory.path(task_id, store_name), task_id, store_name, opens)


class ReadOnlyStore:
    """A store of another process, see `open_read_only`. Any thread; close it, or use it as a context manager."""

    def __init__(
        self, path: Path, task_id: str, store_name: str, open_store: Callable[[StoreContext], StateStore]
    ) -> None:
        self._engine = _Followed(path, store_name)
        self.context = StoreContext(
            name=store_name,
            open_engine=lambda: self._engine,
            task_id=task_id,
            followed=True,
            isolation=IsolationLevel.READ_COMMITTED,
        )
        self._open_store = open_store
        self._opening = Lock()
        try:
            self._layout = metadata.layout(self._engine)
            self.inner = self._open()
            """What it is to its owner, over an engine that cannot be written to."""
        except BaseException:
            self._engine.end()
            raise

    @property
    def name(self) -> str:
        return self.context.name

    def snapshot(self) -> Snapshot:
        """The last commit of the owner.

        Raises what opening raises where the owner has made the store anew meanwhile, as one of another type.
        """
        snapshot = self._engine.refreshed()
        try:
            layout = metadata.layout(snapshot)
            with self._opening:
                if layout != self._layout:
                    self.inner = self._open()
                    self._layout = layout
        except BaseException:
            snapshot.close()
            raise
        return snapshot

    def _open(self) -> Queryable:
        store = self._open_store(self.context)
        if not is_queryable(store):
            raise ProtocolError(
                f"store {self.name}: a {type(store).__name__} cannot be read from another process, because its "
                f"rows are not in an engine"
            )
        return store

    def view(self, isolation: IsolationLevel, snapshot: View | None = None) -> object:
        """The store as of `snapshot`, or of the last query. Raises `ProtocolError` for READ_UNCOMMITTED."""
        if isolation is not IsolationLevel.READ_COMMITTED:
            raise ProtocolError(
                f"store {self.name}: what its owner has not committed is in that process alone; "
                f"another one can only ask for READ_COMMITTED"
            )
        return self.inner.view(isolation, snapshot)

    def position(self, snapshot: View | None = None) -> Mapping[TopicPartition, int]:
        """The committed position, as of `snapshot`, or of the last query."""
        return self.inner.position(snapshot)

    def close(self) -> None:
        """Idempotent. Iterators that are open end with `StoreClosedError`."""
        self.inner.close()
        self._engine.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Followed(Engine):
    """The owner's database as the engine of a store type, which takes one that can do everything. This one only reads.

    Must survive: a database that cannot be followed for a while, because it is being set aside and rebuilt, or changes
    too fast. The next query opens it anew.
    """

    def __init__(self, path: Path, store_name: str) -> None:
        self._path = path
        self._store_name = store_name
        self._lock = Lock()
        self._ended = False
        self._reader: ReadOnlyRocksEngine | None = ReadOnlyRocksEngine(path)

    def refreshed(self) -> Snapshot:
        """The last commit there is."""
        with self._lock:
            if self._ended:
                raise self._closed()
            if self._reader is None:
                self._reader = ReadOnlyRocksEngine(self._path)
            try:
                self._reader.refresh()
                return self._reader.snapshot()
            except StoreError:
                self._reader.close()
                self._reader = None
                raise

    def end(self) -> None:
        """Idempotent. Open ranges end with `StoreClosedError`."""
        with self._lock:
            self._ended = True
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    @property
    def _engine(self) -> ReadOnlyRocksEngine:
        if self._reader is None:
            raise self._closed()
        return self._reader

    def _closed(self) -> StoreClosedError:
        return StoreClosedError(f"store {self._store_name} of another process: read after it was closed")

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self._engine.get(family, key)

    def scan(
        self,
        family: Family,
        lower: bytes | None,
        upper: bytes | None,
        *,
        reverse: bool = False,
        overlay: Overlay | None = None,
    ) -> Pairs:
        return self._engine.scan(family, lower, upper, reverse=reverse, overlay=overlay)

    def snapshot(self) -> Snapshot:
        return self._engine.snapshot()

    counts_exactly = False

    def approximate_num_keys(self, family: Family) -> int:
        return self._engine.approximate_num_keys(family)

    def write(
        self,
        writes: Iterable[Write],  # noqa: ARG002
        *,
        data: Mapping[bytes, bytes | None] = NO_DATA,  # noqa: ARG002
        drop: Sequence[KeyRange] = (),  # noqa: ARG002
        sync: bool = False,  # noqa: ARG002
    ) -> None:
        self._refuse()

    def sync(self) -> None:
        self._refuse()

    def scratch(self) -> Scratch:
        self._refuse()

    def stage(self, writes: Iterable[Write]) -> None:  # noqa: ARG002
        self._refuse()

    def apply_staged(self, *, drop: Sequence[KeyRange] = ()) -> bool:  # noqa: ARG002
        self._refuse()

    def close(self) -> None:
        """The store that it is under may close it; the reader is what ends it."""

    def _refuse(self) -> NoReturn:
        raise ProtocolError(f"store {self._store_name} belongs to another process and is only read here")
