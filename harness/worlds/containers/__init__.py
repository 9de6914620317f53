"""The world of containers, see `harness.worlds.containers.world`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from harness.faults import Capability
from harness.worlds.protocol import Options, World, WorldKind


def _open(options: Options) -> AbstractContextManager[World]:
    from harness.worlds.containers.world import ContainerWorld

    return ContainerWorld(options.directory, brokers=options.brokers, jobs=options.jobs, logs=options.logs)


KIND = WorldKind(
    "containers",
    "Brokers, and hosts with disks and links of their own, in containers on this machine.",
    _open,
    frozenset(
        {
            Capability.PROCESSES,
            Capability.HOSTS,
            Capability.CALLS,
            Capability.RECORDS,
            Capability.WRITES,
            Capability.SETTINGS,
            Capability.NETWORK,
            Capability.BROKERS,
            Capability.MACHINES,
            Capability.SMALL_DISKS,
            Capability.EXECUTORS,
        }
    ),
    uncaused=True,
    brokers=(1, 3),
    on_request=True,
    schedules=20,
)
