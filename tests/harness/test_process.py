"""What a process of a run shows of its stores to whoever judges it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from harness.worlds.process import Control, ObservedStorage
from store.errors import StateLockedError
from store.recovery.directory import StateDirectory


def test_the_engines_of_a_task_are_seen_while_another_thread_asks_for_its_lock(tmp_path: Path) -> None:
    """A member that was expelled commits what it has, and the thread that was given its tasks already wants them."""
    storage = ObservedStorage(StateDirectory(tmp_path, "app"), cast(Control, None))
    with storage.lock("0_1"):
        engine = storage.open("0_1", "sums")
        with pytest.raises(StateLockedError), storage.lock("0_1"):
            pass
        assert storage.engines == {("0_1", "sums"): engine}
        engine.close()
    with storage.lock("0_1"):
        assert storage.engines == {}
