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
