from __future__ import annotations

from collections.abc import Sequence

import pytest

from store.engine import Family, Write
from store.engine.memory import MemoryEngine
from store.errors import StoreIOError
from tests.engine.engines import ListJournal


def test_a_synced_write_syncs_the_journal_after_appending() -> None:
    journal = ListJournal()
    engine = MemoryEngine(journal)
    engine.write([(Family.DATA, b"a", b"1")])
    assert journal.syncs == 0
    engine.write([(Family.DATA, b"b", b"2")], sync=True)
    assert journal.syncs == 1
    assert len(journal.batches) == 2


def test_a_journal_that_fails_leaves_the_contents_and_ends_writing() -> None:
    class FullDisk(ListJournal):
        def append(self, batch: Sequence[Write]) -> None:
            raise StoreIOError(f"no space left for {len(batch)} writes")

    engine = MemoryEngine(FullDisk())
    with pytest.raises(StoreIOError, match="no space left"):
        engine.write([(Family.DATA, b"a", b"1")])
    assert engine.get(Family.DATA, b"a") is None
    with pytest.raises(StoreIOError, match="reopen"):
        engine.write([(Family.DATA, b"a", b"1")])


def test_a_staged_commit_is_synced_when_it_is_applied() -> None:
    journal = ListJournal()
    engine = MemoryEngine(journal)
    engine.stage([(Family.DATA, b"a", b"1")])
    assert engine.apply_staged()
    assert (len(journal.batches), journal.syncs) == (1, 1)


def test_a_journal_that_fails_is_not_taken_for_synced_later() -> None:
    class TornDisk(ListJournal):
        def append(self, batch: Sequence[Write]) -> None:
            raise StoreIOError(f"the device is gone, with {len(batch)} writes")

    engine = MemoryEngine(TornDisk())
    with pytest.raises(StoreIOError, match="device is gone"):
        engine.write([(Family.DATA, b"a", b"1")])
    with pytest.raises(StoreIOError, match="reopen"):
        engine.sync()
