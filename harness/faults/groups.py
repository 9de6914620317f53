"""Faults of consumer groups: committed positions that expire, or that somebody deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.faults.description import Arguments, Capability, Fault, Stage, Where

if TYPE_CHECKING:
    from harness.worlds.actors import Actor


def _forget(stage: Stage, actor: Actor, _: Arguments) -> None:
    stage.forget_positions(actor.task)
    stage.kill(actor)


def _forget_one(stage: Stage, actor: Actor, _: Arguments) -> None:
    stage.forget_position(actor.task)
    stage.kill(actor, wipe=True)


FAULTS = (
    Fault(
        "forget_group",
        "The process that runs the task is killed, and the group has forgotten its positions when it starts again.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.GROUPS}),
        deadly=True,
        without_stores=True,
        # On Spark the group gets them again with the next record, and nobody knows when that comes.
        runtimes=("worker", "streams"),
        apply=_forget,
    ),
    Fault(
        "forget_position",
        "The process that runs the task is killed, and its state on that host and the group's position in one of its "
        "inputs are gone when it starts again; it has to say so, and then somebody sets the position back.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.GROUPS}),
        deadly=True,
        removes_state=True,
        of_several=True,
        placed=True,
        runtimes=("worker",),
        apply=_forget_one,
    ),
)
