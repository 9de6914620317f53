"""Faults: all that a schedule can do to a run, each described once.

A description says its name, a sentence for people, what it needs of a world, where it can strike, whether a process
dies of it, and what a process may do because of it. Generators, the director, oracles, counters, reports and the table
in the documentation derive from it. Generators know some by name, to put them where they do harm. To add one, add a
`Fault` to a module of this package and list the module below; what it asks of a world that no other fault does is a
method of `Stage` and a `Capability`; a world that lacks it skips the fault and says so. A fault is something that the
pipeline has to survive: what stops it for good by design is none.

A fault strikes in one of three ways. `Where.POINT`: when a process is at a protocol point or at the edge of a
client call, or at once. `Where.NOW`: as soon as its step is due, to no process in particular. `Where.OCCASION`: it lies
in wait until the task does something (a commit, a read, a write, a record) and happens around that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.faults.brokers import FAULTS as _BROKERS
from harness.faults.calls import FAULTS as _CALLS
from harness.faults.description import (
    Blow,
    Capability,
    Excuse,
    Fault,
    Figure,
    Link,
    Occasion,
    SkipError,
    Stage,
    Where,
)
from harness.faults.disk import FAULTS as _DISK
from harness.faults.groups import FAULTS as _GROUPS
from harness.faults.logs import FAULTS as _LOGS
from harness.faults.machines import FAULTS as _MACHINES
from harness.faults.network import FAULTS as _NETWORK
from harness.faults.processes import FAULTS as _PROCESSES
from harness.faults.spark import FAULTS as _SPARK

FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for module in (_PROCESSES, _CALLS, _DISK, _LOGS, _GROUPS, _NETWORK, _BROKERS, _MACHINES, _SPARK)
    for fault in module
}
"""Every fault by name, in the order in which people should read them."""

DEADLY: frozenset[str] = frozenset(name for name, fault in FAULTS.items() if fault.deadly)
"""Names of the faults that a process dies of."""


def possible(capabilities: Iterable[Capability]) -> dict[str, Fault]:
    """The faults that a world with these capabilities can make, by name."""
    there = frozenset(capabilities)
    return {name: fault for name, fault in FAULTS.items() if fault.needs <= there}


__all__ = [
    "DEADLY",
    "FAULTS",
    "Blow",
    "Capability",
    "Excuse",
    "Fault",
    "Figure",
    "Link",
    "Occasion",
    "SkipError",
    "Stage",
    "Where",
    "possible",
]
