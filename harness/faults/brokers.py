"""Faults of brokers: death and return, a standstill, and a restart, in the middle of whatever a process does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from harness.faults.description import (
    STARTS_AGAIN,
    Arguments,
    Blow,
    Capability,
    Fault,
    Figure,
    Stage,
    Where,
)

if TYPE_CHECKING:
    from harness.worlds.actors import Actor

_WHICH = (0, 1)
"""The coordinator of the task's transactions, the leader of its input."""


def _strike(blow: Blow, stage: Stage, actor: Actor, step: Arguments) -> None:
    stage.strike_broker(actor, blow, step.amount)


FAULTS = tuple(
    Fault(
        name,
        f"The broker that coordinates the task's transactions, or that leads its input, {what}.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.BROKERS}),
        excuses=STARTS_AGAIN,
        amount=_WHICH,
        figures=frozenset(figures),
        apply=partial(_strike, blow),
    )
    for name, blow, what, *figures in (
        (
            "kill_broker",
            Blow.KILL,
            "is killed, and started again with what it had written",
            Figure.BROKERS_KILLED,
        ),
        ("pause_broker", Blow.PAUSE, "stands still for a moment and keeps its connections"),
        ("restart_broker", Blow.RESTART, "is stopped in order and started again"),
        (
            "cut_broker",
            Blow.CUT_OFF,
            "is cut off from the others, though not from clients, until those have chosen brokers in its place",
            Figure.LINKS_CUT,
        ),
    )
)
