"""Worlds: where schedules run. Each is a folder that describes itself and a line here; nothing else knows one by name.

A world runs one schedule after the other and gives the history of each. To add one, write a folder with a `KIND`, and
add that below.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.worlds import containers, local, sim
from harness.worlds.protocol import NotBegunError, Options, World, WorldKind

WORLDS: Mapping[str, WorldKind] = {kind.name: kind for kind in (sim.KIND, local.KIND, containers.KIND)}
"""Every world by name, the cheapest first."""

SIMULATION = next(name for name, kind in WORLDS.items() if kind.spreads)
"""The world that campaigns spread over processes, and that schedules are reduced in."""

__all__ = ["SIMULATION", "WORLDS", "NotBegunError", "Options", "World", "WorldKind"]
