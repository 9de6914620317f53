"""Faults of time and of the logs: timeouts, late markers, compaction, retention, long absence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.faults.description import STARTS_AGAIN, Arguments, Capability, Excuse, Fault, Stage, Where

if TYPE_CHECKING:
    from harness.worlds.actors import Actor

HOUR_MS = 3_600_000


def _be_away(stage: Stage, actor: Actor, step: Arguments) -> None:
    stage.advance(step.amount or 13 * HOUR_MS)
    stage.compact(CHANGELOGS)
    stage.kill(actor)


CHANGELOGS = "*-changelog"
"""Stands for the changelog topics of all stores."""

FAULTS = (
    Fault(
        "transaction_timeout",
        "The transaction timeout passes: the coordinator aborts what is open, and fences who had opened it.",
        Where.NOW,
        needs=frozenset({Capability.TIME}),
        excuses=frozenset({Excuse.ABORT, Excuse.NEW_PRODUCER, Excuse.RETRY, Excuse.BLOCKED}),
        amount=(60_001,),
        apply=lambda stage, _, step: stage.advance(step.amount or 60_001),
    ),
    Fault(
        "delay_markers",
        "From now on commits are acknowledged before their markers are written.",
        Where.NOW,
        needs=frozenset({Capability.MARKERS}),
        excuses=frozenset({Excuse.BLOCKED}),
        apply=lambda stage, *_: stage.hold_markers(),
    ),
    Fault(
        "leave_out_markers",
        "A broker dies before it has written the markers of the task's next commit, which it has acknowledged: they "
        "are as those of the transaction after it, unless they come before.",
        Where.POINT,
        needs=frozenset({Capability.MARKERS}),
        excuses=frozenset({Excuse.BLOCKED}),
        placed=True,
        apply=lambda stage, actor, _: stage.leave_out_markers(actor),
    ),
    Fault(
        "long_absence",
        "Hours or weeks pass while the task's process is down, and the broker cleans its topics meanwhile.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.TIME, Capability.LOGS}),
        deadly=True,
        excuses=frozenset({Excuse.ABORT, Excuse.NEW_PRODUCER, Excuse.RETRY, Excuse.BLOCKED}),
        amount=(13 * HOUR_MS, 25 * HOUR_MS, 10 * 24 * HOUR_MS, 40 * 24 * HOUR_MS),
        apply=_be_away,
    ),
    Fault(
        "compact",
        "The broker cleans a topic: of each key only the newest record stays.",
        Where.NOW,
        needs=frozenset({Capability.LOGS}),
        on_topics=True,
        apply=lambda stage, _, step: stage.compact(step.topic),
    ),
    Fault(
        "truncate",
        "The broker deletes the head of an input, up to where the group has committed it.",
        Where.NOW,
        needs=frozenset({Capability.LOGS}),
        on_topics=True,
        apply=lambda stage, _, step: stage.truncate(step.topic),
    ),
    Fault(
        "truncate_aborted",
        "The broker deletes what was aborted at the head of an input of which the group has committed nothing.",
        Where.NOW,
        needs=frozenset({Capability.LOGS}),
        on_topics=True,
        # Who stands there, and has read nothing, begins anew.
        excuses=STARTS_AGAIN,
        apply=lambda stage, _, step: stage.truncate_aborted(step.topic),
    ),
    Fault(
        "open_transaction",
        "A transaction of another application stays open in a topic for a long time, and then settles.",
        Where.NOW,
        needs=frozenset({Capability.LOGS}),
        on_topics=True,
        excuses=frozenset({Excuse.BLOCKED}),
        apply=lambda stage, _, step: stage.hold_open(step.topic),
    ),
)
