"""The simulated world, see `harness.worlds.sim.world`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from harness.faults.description import SIMULATED
from harness.worlds.protocol import Options, World, WorldKind


def _open(_: Options) -> AbstractContextManager[World]:
    from harness.worlds.sim.world import SimWorld

    return SimWorld()


KIND = WorldKind(
    "sim",
    "Production code in greenlets over a simulated broker and simulated disks, in virtual time.",
    _open,
    SIMULATED,
    spreads=True,
    schedules=100,
)
