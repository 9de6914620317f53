"""The world of containers, see `harness.worlds.containers.world`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from harness.faults.description import OF_MACHINES, Capability
from harness.worlds.protocol import Options, World, WorldKind
from harness.worlds.real import ABILITIES


def _open(options: Options) -> AbstractContextManager[World]:
    from harness.worlds.containers.world import ContainerWorld

    return ContainerWorld(options.directory, brokers=options.brokers, jobs=options.jobs, logs=options.logs)


KIND = WorldKind(
    "containers",
    "Brokers, and hosts with disks and links of their own, in containers on this machine.",
    _open,
    ABILITIES | OF_MACHINES | {Capability.CLOCKS},
    uncaused=True,
    brokers=(1, 3),
    on_request=True,
    schedules=20,
)
