"""The suite as a user runs it, over the stores of this project and over two that users might bring."""

from __future__ import annotations

from store.engine.memory import MemoryEngine
from store.state.keyvalue import KeyValueStore
from store.state.listvalue import ListValueStore
from store.state.protocol import StoreContext
from store.state.session import SessionStore
from store.state.versioned import VersionedKeyValueStore
from store.state.window import WindowStore
from store.testing.conformance import conformance
from store.transaction.protocol import Mechanism
from tests.conformance.stores import FileStore, SqliteStore

TestFileStore = conformance(FileStore, examples=8)
TestSqliteStore = conformance(SqliteStore, examples=8)
TestIndexedBatch = conformance(KeyValueStore, examples=6)
TestSecondary = conformance(KeyValueStore, examples=3, mechanism=Mechanism.SECONDARY)
TestWithoutTransactions = conformance(KeyValueStore, examples=4, mechanism=None)
TestInMemory = conformance(KeyValueStore, open_engine=MemoryEngine, persistent=False)
TestCached = conformance(KeyValueStore, examples=6, cache_max_bytes=4_000)


# Stores of another kind are held to what all stores share.


def windows(context: StoreContext) -> WindowStore:
    return WindowStore(context, retention_ms=1_000, window_size_ms=10)


def sessions(context: StoreContext) -> SessionStore:
    return SessionStore(context, retention_ms=1_000)


def versions(context: StoreContext) -> VersionedKeyValueStore:
    return VersionedKeyValueStore(context, history_retention_ms=1_000)


TestWindows = conformance(windows)
TestSessions = conformance(sessions)
TestVersions = conformance(versions)
TestListValues = conformance(ListValueStore, key_value=False)
