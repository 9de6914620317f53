"""A campaign over several processes that is given up while its processes are being started or ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import forkserver

import pytest

from harness.campaign import Part, Plan
from harness.result import WorldResult
from harness.spread import Chunk
from harness.spread import processes as spread
from tests.waiting import LONGEST_S, until

QUICK = 2


def run(_scenario: str, _seed: int, start: int, *_: object) -> Part:
    """A part that is there at once for the first chunks, and never for those that follow."""
    if start >= QUICK:
        threading.Event().wait()
    return Part(WorldResult())


def test_a_campaign_that_is_given_up_ends_its_processes_without_an_error_of_its_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    monkeypatch.setattr(spread, "simulate_part", run)
    # More than a pool takes out of reach of a cancellation.
    monkeypatch.setattr(spread, "AHEAD", 5)
    threads = set(threading.enumerate())
    chunks = (Chunk("balances", number, number + 1) for number in range(20))
    parts = spread.Processes(2).parts(Plan(scenarios=("balances",), seed=1), chunks)
    for _ in range(QUICK):
        next(parts)
    # Those of earlier pools may still be about to end.
    begun = set(threading.enumerate()) - threads
    [manager] = [one for one in begun if type(one).__name__ == "_ExecutorManagerThread"]
    parts.close()
    manager.join(LONGEST_S)
    assert not manager.is_alive()
    assert errors == []


def test_an_interrupt_while_the_server_of_the_processes_is_started_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = forkserver.ensure_running

    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        start()

    monkeypatch.setattr(forkserver, "ensure_running", interrupted)
    before = set(multiprocessing.active_children())
    # A suite that runs in the background is not told of interrupts.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), spread.pool_of(1, "harness.campaign"):
            pass
    finally:
        signal.signal(signal.SIGINT, handler)
    until(lambda: set(multiprocessing.active_children()) <= before)
