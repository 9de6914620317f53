from __future__ import annotations

from io import StringIO
from threading import Thread

import pytest
from rich.console import Console

from store.engine.memory import MemoryEngine
from store.recovery.progress import ProgressListener
from store.recovery.restore import RestoreSettings, restore
from store.state.keyvalue import KeyValueStore
from store.state.protocol import StoreContext
from store.types import TopicPartition
from tests.recovery.logs import CHANGELOG, StepClock, WrittenLog

OTHER = TopicPartition("app-totals-changelog", 3)


def terminal(*, real: bool = True) -> tuple[Console, StringIO]:
    text = StringIO()
    return Console(file=text, force_terminal=real, width=120, color_system=None), text


def refresh(listener: ProgressListener) -> None:
    assert listener._progress is not None
    listener._progress.refresh()


@pytest.mark.requirement("x.3")
def test_a_restore_over_two_seconds_shows_how_far_it_is_and_then_what_it_did() -> None:
    console, text = terminal()
    clock = StepClock()
    with ProgressListener(console, clock=clock) as listener:
        listener.on_restore_start(CHANGELOG, "orders", 100, 1100)
        clock.now = 1.9
        listener.on_batch_restored(CHANGELOG, "orders", 300, 200)
        assert text.getvalue() == ""
        clock.now = 2.0
        listener.on_batch_restored(CHANGELOG, "orders", 600, 1234)
        refresh(listener)
        shown = text.getvalue()
        for part in ("restoring orders from app-orders-changelog-0", "50%", "1,434 records"):
            assert part in shown
        listener.on_restore_end(CHANGELOG, "orders", 2000)
        assert listener._progress is None
    assert "restored orders from app-orders-changelog-0: 2,000 records in 2.0 s" in text.getvalue()


def test_a_short_restore_shows_nothing() -> None:
    console, text = terminal()
    store = KeyValueStore(StoreContext(name="orders", open_engine=MemoryEngine))
    with ProgressListener(console, clock=StepClock()) as listener:
        restore(store, CHANGELOG, WrittenLog({0: (b"a", b"1")}, end=2), RestoreSettings(listener=listener))
    assert text.getvalue() == ""


def test_without_a_terminal_nothing_is_written() -> None:
    console, text = terminal(real=False)
    with ProgressListener(console, after_s=0.0) as listener:
        listener.on_restore_start(CHANGELOG, "orders", 0, 10)
        listener.on_batch_restored(CHANGELOG, "orders", 10, 10)
        listener.on_restore_end(CHANGELOG, "orders", 10)
    assert text.getvalue() == ""


def test_a_restore_that_failed_leaves_no_bar_behind_when_it_begins_again_or_is_given_up() -> None:
    console, _ = terminal()
    with ProgressListener(console, after_s=0.0) as listener:
        for _ in range(2):
            listener.on_restore_start(CHANGELOG, "orders", 0, 10)
            listener.on_batch_restored(CHANGELOG, "orders", 5, 5)
            assert listener._progress is not None
            assert len(listener._progress.tasks) == 1
    assert listener._progress is None


def test_a_read_beyond_the_end_that_was_known_is_not_more_than_all() -> None:
    console, text = terminal()
    with ProgressListener(console, after_s=0.0) as listener:
        listener.on_restore_start(CHANGELOG, "orders", 0, 10)
        listener.on_batch_restored(CHANGELOG, "orders", 50, 10)
        refresh(listener)
    assert "100%" in text.getvalue()


@pytest.mark.requirement("x.3")
def test_restores_of_several_threads_each_have_a_bar_of_their_own() -> None:
    console, text = terminal()
    with ProgressListener(console, after_s=0.0) as listener:

        def run(changelog: TopicPartition, name: str) -> None:
            listener.on_restore_start(changelog, name, 0, 1000)
            for position in range(1, 1001):
                listener.on_batch_restored(changelog, name, position, 1)
            listener.on_restore_end(changelog, name, 1000)

        threads = [Thread(target=run, args=pair) for pair in ((CHANGELOG, "orders"), (OTHER, "totals"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert listener._progress is None
    for name in ("orders from app-orders-changelog-0", "totals from app-totals-changelog-3"):
        assert f"restored {name}: 1,000 records" in text.getvalue()


def test_two_threads_restore_a_store_of_one_name_each_for_itself() -> None:
    """As each stream thread does with a global table."""
    console, text = terminal()
    with ProgressListener(console, after_s=0.0) as listener:

        def restore_all() -> None:
            listener.on_restore_start(CHANGELOG, "prices", 0, 10)
            listener.on_batch_restored(CHANGELOG, "prices", 10, 10)
            listener.on_restore_end(CHANGELOG, "prices", 10)

        listener.on_restore_start(CHANGELOG, "prices", 0, 10)
        other = Thread(target=restore_all)
        other.start()
        other.join()
        listener.on_batch_restored(CHANGELOG, "prices", 10, 10)
        listener.on_restore_end(CHANGELOG, "prices", 10)
    assert text.getvalue().count("restored prices") == 2


def test_a_restore_goes_on_after_its_display_was_closed() -> None:
    console, _ = terminal()
    listener = ProgressListener(console, after_s=0.0)
    listener.on_restore_start(CHANGELOG, "orders", 0, 10)
    listener.close()
    listener.on_batch_restored(CHANGELOG, "orders", 10, 10)
    listener.on_restore_end(CHANGELOG, "orders", 10)
    assert listener._progress is None
