"""Faults of brokers: death and return, a standstill, and a restart, in the middle of whatever a process does."""

from __future__ import annotations

from harness.faults.description import STARTS_AGAIN, Capability, Fault, Figure, Where

_BROKERS = frozenset({Capability.PROCESSES, Capability.BROKERS})
_WHICH = (0, 1)
"""The coordinator of the task's transactions, the leader of its input."""

FAULTS = (
    Fault(
        "kill_broker",
        "The broker that coordinates the task's transactions, or that leads its input, is killed, and started again "
        "with what it had written.",
        Where.POINT,
        needs=_BROKERS,
        excuses=STARTS_AGAIN,
        amount=_WHICH,
        figures=frozenset({Figure.BROKERS_KILLED}),
        apply=lambda stage, actor, step: stage.kill_broker(actor, step.amount),
    ),
    Fault(
        "pause_broker",
        "The broker that coordinates the task's transactions, or that leads its input, stands still for a moment and "
        "keeps its connections.",
        Where.POINT,
        needs=_BROKERS,
        excuses=STARTS_AGAIN,
        amount=_WHICH,
        apply=lambda stage, actor, step: stage.pause_broker(actor, step.amount),
    ),
    Fault(
        "restart_broker",
        "The broker that coordinates the task's transactions, or that leads its input, is stopped in order and started "
        "again.",
        Where.POINT,
        needs=_BROKERS,
        excuses=STARTS_AGAIN,
        amount=_WHICH,
        apply=lambda stage, actor, step: stage.restart_broker(actor, step.amount),
    ),
    Fault(
        "cut_broker",
        "The broker that coordinates the task's transactions, or that leads its input, is cut off from the others, "
        "though not from clients, until those have chosen brokers in its place.",
        Where.POINT,
        needs=_BROKERS,
        excuses=STARTS_AGAIN,
        amount=_WHICH,
        figures=frozenset({Figure.LINKS_CUT}),
        apply=lambda stage, actor, step: stage.cut_broker(actor, step.amount),
    ),
)
