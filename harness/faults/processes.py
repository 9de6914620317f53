"""Faults of processes and hosts: death, loss of state, zombies, second incarnations, stops and other settings."""

from __future__ import annotations

from harness.faults.description import Capability, Excuse, Fault, Figure, Where

_HOSTS = frozenset({Capability.PROCESSES, Capability.HOSTS})

DIES_BEFORE = (1_000, 1, 2, 4, 7, 10, 14, 20, 30, 45, 60)
"""Changes to its disk before which a process dies that moves stores; there are fewer than the first number."""


FAULTS = (
    Fault(
        "kill",
        "The process that runs the task is killed and started again.",
        Where.POINT,
        deadly=True,
        apply=lambda stage, actor, _: stage.kill(actor),
    ),
    Fault(
        "wipe",
        "The process that runs the task is killed, and the task's state on that host is gone when it starts again.",
        Where.POINT,
        deadly=True,
        removes_state=True,
        apply=lambda stage, actor, _: stage.kill(actor, wipe=True),
    ),
    Fault(
        "lose_stores",
        "The process that runs the task is killed, and the task's stores on that host are gone, but not their "
        "checkpoint.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.LOSSES}),
        deadly=True,
        removes_state=True,
        # What the checkpoint says was true, where they were closed in order.
        placed=True,
        apply=lambda stage, actor, _: stage.lose_stores(actor),
    ),
    Fault(
        "power_loss",
        "The host loses power: its processes die, and its disk forgets what was not synced, all of it or a part.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.POWER}),
        deadly=True,
        apply=lambda stage, actor, _: stage.kill(actor, power=True),
    ),
    Fault(
        "pause",
        "The process that runs the task is stopped, as a zombie, and a new incarnation starts on another host.",
        Where.POINT,
        needs=_HOSTS,
        suspends=True,
        figures=frozenset({Figure.ZOMBIES}),
        apply=lambda stage, actor, _: stage.pause(actor),
    ),
    Fault(
        "stall",
        "The process that runs the task stands still for a moment that nobody notices, and all others go on meanwhile.",
        Where.POINT,
        yields=True,
        apply=lambda *_: None,
    ),
    Fault(
        "resume",
        "The longest stopped zombie of the task goes on.",
        Where.NOW,
        needs=_HOSTS,
        apply=lambda stage, _, step: stage.resume(step.task),
        after="pause",
    ),
    Fault(
        "second_incarnation",
        "A second incarnation of the task starts on another host while the first one runs on.",
        Where.POINT,
        needs=_HOSTS,
        rivals=True,
        yields=True,
        apply=lambda stage, actor, _: stage.start_another(actor),
    ),
    Fault(
        "fence",
        "Somebody whom the group does not know takes the task and ends at once, and the group leaves it where it is.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.STRANGERS}),
        excuses=frozenset({Excuse.FENCED, Excuse.ABORT, Excuse.NEW_PRODUCER, Excuse.RETRY}),
        rivals=True,
        placed=True,
        runtimes=("streams",),
        apply=lambda stage, actor, _: stage.fence(actor),
    ),
    Fault(
        "clean_stop",
        "The process that runs the task is asked to end, ends by itself, and is started again; on Spark the query is, "
        "with all its processes.",
        Where.POINT,
        asks_to_end=True,
        runtimes=("worker", "spark", "streams"),
        apply=lambda stage, actor, _: stage.stop(actor),
    ),
    Fault(
        "move",
        "The worker that runs the task lets go of it and runs its others on, and another host's worker takes it.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.SHARED}),
        moves=True,
        runtimes=("worker",),
        apply=lambda stage, actor, _: stage.move(actor),
    ),
    Fault(
        "change_settings",
        "The process that runs the task is asked to end, and is started again with other settings; on Spark the query "
        "is, with all its processes.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.SETTINGS}),
        asks_to_end=True,
        changes_settings=True,
        runtimes=("worker", "spark", "streams"),
        excuses=frozenset({Excuse.SET_ASIDE}),
        apply=lambda stage, actor, step: stage.stop(actor, settings=step.settings),
    ),
    Fault(
        "kill_and_change_settings",
        "The process that runs the task is killed, and started again with other settings; on Spark all processes of "
        "the query are.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.SETTINGS}),
        deadly=True,
        changes_settings=True,
        runtimes=("worker", "spark", "streams"),
        excuses=frozenset({Excuse.SET_ASIDE}),
        apply=lambda stage, actor, step: stage.kill_and_start_with(actor, step.settings),
    ),
    Fault(
        "reorder",
        "All processes are asked to end, and started again with the sub-topologies in another order: their stores "
        "move. The first that moves some may be killed in the midst of it.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.VERSIONS}),
        asks_to_end=True,
        reorders=True,
        # Who has begun before another host moves its stores may be taken for one of the former version.
        excuses=frozenset({Excuse.FENCED}),
        amount=DIES_BEFORE,
        runtimes=("worker", "streams"),
        apply=lambda stage, actor, step: stage.reorder(actor, kill=False, dies_before=step.amount),
    ),
    Fault(
        "kill_and_reorder",
        "All processes are killed, and started again with the sub-topologies in another order: their stores move. The "
        "first that moves some may be killed in the midst of it.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.VERSIONS}),
        deadly=True,
        reorders=True,
        amount=DIES_BEFORE,
        runtimes=("worker", "spark", "streams"),
        apply=lambda stage, actor, step: stage.reorder(actor, kill=True, dies_before=step.amount),
    ),
)
