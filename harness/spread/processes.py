"""The schedules of a campaign in this process, or in several processes of this machine.

Must survive: SIGKILL of the process that spreads them, after which those that it has begun end by themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import forkserver, resource_tracker

from harness.campaign import Part, Plan, simulate_part
from harness.spread import Chunk, Spread, SpreadError

AHEAD = 3
"""Chunks that each process has before it."""


def over(jobs: int) -> Spread:
    """Spreads over that many processes; one is this process itself."""
    return Alone() if jobs <= 1 else Processes(jobs)


@contextmanager
def pool_of(jobs: int, preloaded: str) -> Iterator[ProcessPoolExecutor]:
    """So many processes that have loaded a module. At the end what has not begun is taken back, and the rest is ended
    where the block was left before its end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preloaded])
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent)
    # It would let interrupts through again that are held back below.
    resource_tracker.ensure_running()
    try:
        # Held back, for this process until the first of them has begun, which would not be known here, and would look
        # for what is gone; and, by inheritance, for good from their server and so from them: the command says what is
        # to be said.
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
            pool.submit(int)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        yield pool
    except BaseException:
        # One that is just starting would not find what it was to inherit, and say so with a traceback.
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        # Not by each future: a pool whose processes are ended meanwhile fails at a future that it did not cancel.
        # Waited for: the interpreter wakes the pool's thread at its own end, and fails where that is just letting go.
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """This process ends as soon as the one that asks it is gone. It would wait for ever: it holds the other end of the
    queue that it is asked through itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Alone:
    """One chunk after the other in this process."""

    environment: Mapping[str, str] = {}

    def parts(self, plan: Plan, chunks: Iterator[Chunk]) -> Generator[Part]:
        for scenario, start, stop in chunks:
            yield simulate_part(scenario, plan.seed, start, stop, plan.mutant, plan.faults)


class Processes:
    """Several chunks at a time, each in one of `jobs` processes."""

    environment: Mapping[str, str] = {}

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def parts(self, plan: Plan, chunks: Iterator[Chunk]) -> Generator[Part]:
        with pool_of(self._jobs, "harness.campaign") as pool:
            running: deque[Future[Part]] = deque()

            def submit(most: int) -> None:
                for scenario, start, stop in islice(chunks, most):
                    running.append(
                        pool.submit(simulate_part, scenario, plan.seed, start, stop, plan.mutant, plan.faults)
                    )

            submit(AHEAD * self._jobs)
            while running:
                try:
                    part = running.popleft().result()
                except BrokenProcessPool as error:
                    raise SpreadError(
                        "a process that ran schedules is gone, so nothing is known: code of a scenario has ended it, "
                        "as os._exit does, or the machine was out of memory"
                    ) from error
                yield part
                submit(1)
