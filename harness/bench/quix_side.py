"""Quix Streams' state store, measured in a Python environment of its own.

Runs as a script there and imports nothing of this project. Reads one JSON request a line, answers each with the
seconds that the measured part took.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

PREFIX = b"p"


class Quix:
    """One partition of a store, over the key space that the request asked for last."""

    def __init__(self) -> None:
        self.directory: Path | None = None
        self.store: Any = None
        self.loaded = 0
        self.offset = 0

    def fresh(self) -> None:
        from quixstreams.state.rocksdb.store import RocksDBStore  # type: ignore[import-not-found]

        self.close()
        self.directory = Path(tempfile.mkdtemp(prefix="crashproof-bench-quix-"))
        self.store = RocksDBStore(name="bench", stream_id="bench", base_dir=str(self.directory))
        self.partition = self.store.assign_partition(0)
        self.loaded = 0

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
            self.store = None
        if self.directory is not None:
            shutil.rmtree(self.directory)
            self.directory = None

    def put(self, keys: list[bytes], value: bytes, batch: int) -> float:
        began = time.perf_counter()
        for start in range(0, len(keys), batch):
            transaction = self.store.start_partition_transaction(0)
            for key in keys[start : start + batch]:
                transaction.set_bytes(key, value, prefix=PREFIX)
            self.offset += batch
            transaction.prepare({"bench": self.offset})
            transaction.flush(changelog_offset=self.offset)
        return time.perf_counter() - began

    def load(self, keys: list[bytes], value: bytes) -> None:
        if self.loaded != len(keys):
            self.fresh()
            self.put(keys, value, 10_000)
            self.loaded = len(keys)

    def get(self, keys: list[bytes]) -> float:
        transaction = self.store.start_partition_transaction(0)
        began = time.perf_counter()
        for key in keys:
            transaction.get_bytes(key, prefix=PREFIX)
        return time.perf_counter() - began

    def scan(self, backwards: bool) -> float:
        began = time.perf_counter()
        for _ in self.partition.iter_items(b"", b"\xff" * 8, backwards=backwards):
            pass
        return time.perf_counter() - began

    def ranges(self, bounds: list[tuple[bytes, bytes]]) -> float:
        began = time.perf_counter()
        for lower, upper in bounds:
            for _ in self.partition.iter_items(PREFIX + b"|" + lower, PREFIX + b"|" + upper):
                pass
        return time.perf_counter() - began


def main() -> None:
    quix = Quix()
    try:
        for line in sys.stdin:
            request = json.loads(line)
            keys = [b"%016d" % number for number in range(request["keys"])]
            value = bytes(request["value_bytes"])
            order = random.Random(request["seed"])
            if request["kind"] == "put":
                quix.fresh()
                order.shuffle(keys)
                seconds = quix.put(keys[: request["operations"]], value, request["batch"])
                quix.loaded = 0
            else:
                quix.load(keys, value)
                if request["kind"] == "get":
                    seconds = quix.get(order.choices(keys, k=request["operations"]))
                elif request["kind"] == "range":
                    length = request["batch"]
                    starts = [
                        order.randrange(len(keys) - length) for _ in range(request["operations"] // length)
                    ]
                    seconds = quix.ranges([(keys[start], keys[start + length]) for start in starts])
                else:
                    seconds = quix.scan(backwards=request["kind"] == "reverse")
            print(json.dumps(seconds), flush=True)  # noqa: T201 - the answer
    finally:
        quix.close()


if __name__ == "__main__":
    main()
