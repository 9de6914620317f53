"""The local world, see `harness.worlds.local.world`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from harness.worlds.protocol import Options, World, WorldKind
from harness.worlds.real import ABILITIES


def _open(options: Options) -> AbstractContextManager[World]:
    from harness.worlds.local.world import LocalWorld

    return LocalWorld(options.directory, port=options.port, logs=options.logs)


KIND = WorldKind(
    "local",
    "A real broker, real processes that are really killed, real Spark and RocksDB, on this machine.",
    _open,
    ABILITIES,
    uncaused=True,
    listens=True,
    schedules=8,
)
