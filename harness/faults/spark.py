"""Faults of Spark's own parts: executors, their Python workers, and the master. Its driver is killed at its points."""

from __future__ import annotations

from harness.faults.description import STARTS_AGAIN, Capability, Fault, Figure, Where

_EXECUTORS = frozenset({Capability.PROCESSES, Capability.EXECUTORS})
_SPARK = ("spark",)
_WHEN = (0, 1)
"""Once the next attempt has fenced it, or at once, so that it commits what Spark runs again."""

FAULTS = (
    Fault(
        "kill_executor",
        "The executor whose task host the task has is killed with all that it runs, and Spark brings the orders again.",
        Where.POINT,
        needs=_EXECUTORS,
        deadly=True,
        runtimes=_SPARK,
        apply=lambda stage, actor, _: stage.kill_executor(actor),
    ),
    Fault(
        "pause_attempt",
        "The task host stands still for a moment that Spark does not notice.",
        Where.POINT,
        needs=_EXECUTORS,
        runtimes=_SPARK,
        apply=lambda stage, actor, _: stage.pause_attempt(actor),
    ),
    Fault(
        "slow_attempt",
        "The task host stands still until Spark, by speculation, has the order brought to another machine.",
        Where.POINT,
        needs=_EXECUTORS,
        excuses=STARTS_AGAIN,
        amount=_WHEN,
        runtimes=_SPARK,
        figures=frozenset({Figure.ZOMBIES}),
        apply=lambda stage, actor, step: stage.slow_attempt(actor, at_once=step.amount == 1),
    ),
    Fault(
        "pause_executor",
        "The executor of the task host stands still until Spark gives it up and has the order brought elsewhere; the "
        "host itself goes on, as a zombie.",
        Where.POINT,
        needs=_EXECUTORS,
        excuses=STARTS_AGAIN,
        amount=_WHEN,
        runtimes=_SPARK,
        figures=frozenset({Figure.ZOMBIES}),
        apply=lambda stage, actor, step: stage.pause_executor(actor, at_once=step.amount == 1),
    ),
    Fault(
        "cut_executor",
        "The machine of the task host is cut off from Spark's driver and master, though not from the brokers, until "
        "they give it up and have the order brought elsewhere; the host goes on, as a zombie.",
        Where.POINT,
        needs=_EXECUTORS | {Capability.NETWORK},
        excuses=STARTS_AGAIN,
        amount=_WHEN,
        runtimes=_SPARK,
        figures=frozenset({Figure.LINKS_CUT, Figure.ZOMBIES}),
        apply=lambda stage, actor, step: stage.cut_executor(actor, at_once=step.amount == 1),
    ),
    Fault(
        "kill_master",
        "Spark's master is killed, and started again with what it had written down.",
        Where.NOW,
        needs=_EXECUTORS,
        runtimes=_SPARK,
        apply=lambda stage, *_: stage.kill_master(),
    ),
)
