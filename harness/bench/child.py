"""Measurements that need a process of their own: memory, and recovery after a SIGKILL.

Runs as `python -m harness.bench.child NAME JSON` and prints its figures as one JSON object.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from harness.bench.sides import CHANGELOG, OurDatabase, ordered_keys
from store.transaction.protocol import Mechanism

_BATCH = 10_000


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def buffer_memory(directory: Path, keys: int, value_bytes: int) -> dict[str, float]:
    """Memory of an uncommitted buffer of that many pairs, each with a value of its own."""
    database = OurDatabase(directory / "database", Mechanism.INDEXED_BATCH)
    names = [key + b"!" for key in ordered_keys(keys)]
    database.put(names[:1], b"", 1)
    del names
    ordered_keys.cache_clear()
    before = _resident()
    store = database.store
    for number in range(keys):
        store.put(b"%016d" % number, b"%0*d" % (value_bytes, number))
    # The sorted index is part of it, and is made by the first range.
    store.range(b"5", b"5").close()
    resident = _resident() - before
    held = keys * (16 + value_bytes)
    counted = store.approximate_num_uncommitted_bytes()
    database.close()
    return {"held_bytes": held, "resident_bytes": resident, "approximate_bytes": counted}


def large_transaction(directory: Path, total_bytes: int, value_bytes: int) -> dict[str, float]:
    """One transaction of that size in the secondary mechanism: written, committed, read back in part."""
    database = OurDatabase(directory / "database", Mechanism.SECONDARY)
    store = database.store
    count = total_bytes // (16 + value_bytes)
    step = 7_919  # A prime: keys come in no order, each once.
    began = time.perf_counter()
    order = random.Random(1)
    for number in range(count):
        store.put(b"%016d" % (number * step % count), order.randbytes(value_bytes))
    written = time.perf_counter()
    uncommitted = store.approximate_num_uncommitted_bytes()
    store.commit({CHANGELOG: count})
    committed = time.perf_counter()
    seen = sum(1 for _ in store.range(b"%016d" % 0, b"%016d" % 999))
    if seen != min(count, 1000) or store.get_committed_offset(CHANGELOG) != count:
        raise AssertionError(f"{seen} of the first 1000 pairs are there")
    database.close()
    return {
        "transaction_bytes": count * (16 + value_bytes),
        "approximate_bytes": uncommitted,
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "write_seconds": written - began,
        "commit_seconds": committed - written,
    }


def fill_and_die(directory: Path, total_bytes: int, value_bytes: int) -> dict[str, float]:
    """Commit that much state, leave a transaction open, and be killed."""
    database = OurDatabase(directory / "database", Mechanism.INDEXED_BATCH)
    store = database.store
    order = random.Random(1)
    count = total_bytes // (16 + value_bytes)
    for number in range(count):
        store.put(b"%016d" % number, order.randbytes(value_bytes))
        if number % _BATCH == _BATCH - 1:
            store.commit({CHANGELOG: number})
    store.put(b"uncommitted", b"")
    sys.stdout.write(msgspec.json.encode({"committed": count - count % _BATCH - 1}).decode())
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


_MEASUREMENTS: dict[str, Callable[..., dict[str, float]]] = {
    measurement.__name__: measurement for measurement in (buffer_memory, large_transaction, fill_and_die)
}


def main() -> None:
    name, request = sys.argv[1:]
    arguments = msgspec.json.decode(request, type=dict[str, int | str])
    directory = Path(str(arguments.pop("directory")))
    sys.stdout.write(msgspec.json.encode(_MEASUREMENTS[name](directory, **arguments)).decode())


if __name__ == "__main__":
    main()
