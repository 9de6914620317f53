"""How long it takes to move the stores of a host to tasks of other ordinals: stores per second, and a start without.

`python -m harness.bench.relocation [STORES] [DIRECTORY]` prints it, by default for 10,000 stores in a directory for
temporary files. Each store is a directory with a file; what is in it does not matter, since it is renamed. Half of
them have their offset in the checkpoint file of their task, which is the dearer half.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from store.engine.protocol import Checkpointed
from store.recovery.directory import StateDirectory
from store.recovery.relocation import relocate
from store.streams.context import Context
from store.streams.topology import Topology
from store.types import Record, TopicPartition

STORES = 10_000
STORES_PER_TASK = 10
SUB_TOPOLOGIES = 4
APPLICATION = "bench"


class Measured(msgspec.Struct, frozen=True):
    """Seconds for all stores."""

    stores: int
    tasks: int
    move_seconds: float
    in_place_seconds: float
    """Of a start that finds every store in its place."""


def topologies(first: int) -> list[Topology]:
    """The sub-topologies, of which number `first` has the ordinal 0, and so on around."""
    return [
        Topology(
            APPLICATION, (f"in-{number}",), (), _stores(number), _nothing, (number - first) % SUB_TOPOLOGIES
        )
        for number in range(SUB_TOPOLOGIES)
    ]


def _stores(number: int) -> tuple[str, ...]:
    return tuple(f"store-{number}-{store}" for store in range(STORES_PER_TASK))


def _nothing(context: Context, record: Record) -> None: ...


def make(root: Path, made: Sequence[Topology], partitions: int) -> int:
    """The state directory as tasks leave it; how many stores it has."""
    directory = StateDirectory(root, APPLICATION)
    count = 0
    for one in made:
        for partition in range(partitions):
            task_id = one.task_id(partition)
            entries: dict[TopicPartition, Checkpointed] = {}
            for number, store in enumerate(one.store_names):
                path = directory.path(task_id, store)
                path.mkdir(parents=True)
                (path / "CURRENT").write_text("MANIFEST-000001\n")
                count += 1
                if number % 2:
                    entries[one.changelog(store, partition)] = Checkpointed(number)
            with directory.lock(task_id):
                directory.write_checkpoint(task_id, entries)
        directory.remember(one.ordinal, "\n".join(sorted(one.content)))
    return count


def measure(root: Path, stores: int = STORES) -> Measured:
    """Make them, move them all, and start once more."""
    partitions = max(1, stores // (STORES_PER_TASK * SUB_TOPOLOGIES))
    count = make(root, topologies(0), partitions)
    seconds = []
    for _ in range(2):
        started = time.monotonic()
        moved = relocate(root, APPLICATION, topologies(1)).moves
        seconds.append(time.monotonic() - started)
        if len(moved) != (0 if len(seconds) > 1 else count):
            raise AssertionError(f"{len(moved)} of {count} stores were moved")
    return Measured(count, partitions * SUB_TOPOLOGIES, seconds[0], seconds[1])


def main(arguments: Sequence[str]) -> None:
    stores = int(arguments[0]) if arguments else STORES
    with tempfile.TemporaryDirectory(dir=arguments[1] if len(arguments) > 1 else None) as root:
        measured = measure(Path(root), stores)
    sys.stdout.write(
        f"{measured.stores:,} stores of {measured.tasks:,} tasks: moved in {measured.move_seconds:.2f} s "
        f"({measured.stores / measured.move_seconds:,.0f} a second), a start that finds them in place "
        f"{measured.in_place_seconds:.3f} s\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
