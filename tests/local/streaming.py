"""A process that runs `Streams` over the counting pipeline, until it is told to stop or is killed.

python -m tests.local.streaming BOOTSTRAP STATE_DIR APPLICATION INSTANCE GUARANTEE SESSION_TIMEOUT_MS

Once there is a file `dies` in STATE_DIR, it kills itself when it is told to give a task up, before it has done so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from store.streams.application import Application
from store.streams.streams import State, Streams
from store.streams.thread import StreamThread
from store.streams.topology import Context, Topology
from store.types import Record, TopicPartition

STORE = "counts"
LONG_MS = 300_000
"""A session that outlasts any time for which a busy machine stands still: the group takes nothing from who lives."""


class Count:
    """Counts the records of each key, and forwards the number."""

    def __init__(self, sink: str, store: str = STORE) -> None:
        self.sink = sink
        self.store = store

    def __call__(self, context: Context, record: Record) -> None:
        store = context.store(self.store)
        number = int(store.get(record.key) or 0) + 1
        store.put(record.key, b"%d" % number)
        context.forward(self.sink, record.key, b"%d" % number)


def application(name: str) -> Application:
    return Application.of(Topology(name, (f"{name}-in",), (f"{name}-out",), (STORE,), Count(f"{name}-out")))


def streams(
    bootstrap: str,
    state_dir: str,
    name: str,
    instance: str,
    guarantee: str,
    session_timeout_ms: int | str = LONG_MS,
) -> Streams:
    return Streams(
        application(name),
        {"processing.guarantee": guarantee, "num.stream.threads": "2", "commit.interval.ms": "100"},
        bootstrap=bootstrap,
        state_dir=state_dir,
        instance_id=instance or None,
        session_timeout_ms=int(session_timeout_ms),
    )


def tell(running: Streams, place: Path) -> None:
    """Make the file `place` once it runs."""
    while running.state is State.CREATED:
        time.sleep(0.05)
    place.touch()


def die_with(place: Path) -> None:
    """Have the process end when the group takes a task from it while the file `place` is there."""
    give_up = StreamThread.revoked

    def revoked(thread: StreamThread, partitions: Sequence[TopicPartition]) -> None:
        if place.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        give_up(thread, partitions)

    StreamThread.revoked = revoked  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    made = streams(*sys.argv[1:])
    own = Path(sys.argv[2])
    die_with(own / "dies")
    threading.Thread(target=tell, args=(made, own / f"{os.getpid()}.runs"), daemon=True).start()
    made.run()
