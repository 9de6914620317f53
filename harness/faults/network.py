"""Faults of the network between the hosts of processes and the brokers, as packet filters and queues make them."""

from __future__ import annotations

from harness.faults.description import STARTS_AGAIN, Capability, Excuse, Fault, Figure, Link, Where

_NETWORK = frozenset({Capability.PROCESSES, Capability.NETWORK})
_WAYS = (0, 1, 2)
"""Both directions, only from the host, only to the host."""


FAULTS = (
    Fault(
        "cut",
        "The host of the process and the brokers lose sight of each other for a moment, in both directions or in one.",
        Where.POINT,
        needs=_NETWORK,
        excuses=STARTS_AGAIN,
        amount=_WAYS,
        figures=frozenset({Figure.LINKS_CUT}),
        apply=lambda stage, actor, step: stage.disturb(actor, Link.CUT, step.amount),
    ),
    Fault(
        "refuse_connections",
        "For a moment every connection between the host of the process and the brokers is reset, and new ones are "
        "refused.",
        Where.POINT,
        needs=_NETWORK,
        excuses=STARTS_AGAIN,
        apply=lambda stage, actor, _: stage.disturb(actor, Link.REFUSING, 0),
    ),
    Fault(
        "lose_packets",
        "The link between the host of the process and the brokers loses one packet in three for a while.",
        Where.POINT,
        needs=_NETWORK,
        excuses=STARTS_AGAIN,
        amount=_WAYS,
        apply=lambda stage, actor, step: stage.disturb(actor, Link.LOSSY, step.amount),
    ),
    Fault(
        "slow_link",
        "What the host of the process sends goes through a link of a few kilobytes a second for a while.",
        Where.POINT,
        needs=_NETWORK,
        excuses=STARTS_AGAIN,
        apply=lambda stage, actor, _: stage.disturb(actor, Link.SLOW, 0),
    ),
    Fault(
        "late_link",
        "Each packet between the host of the process and the brokers comes a quarter of a second late for a while, and "
        "none is lost.",
        Where.POINT,
        needs=_NETWORK,
        excuses=STARTS_AGAIN,
        amount=_WAYS,
        apply=lambda stage, actor, step: stage.disturb(actor, Link.LATE, step.amount),
    ),
    Fault(
        "isolate",
        "The host of the process is cut off from the brokers while its processes run on, as zombies, and new "
        "incarnations start on other hosts.",
        Where.POINT,
        needs=_NETWORK | {Capability.HOSTS},
        # How long that takes is up to those that go on elsewhere. A worker that reaches no broker for long ends.
        excuses=STARTS_AGAIN | {Excuse.FAIL},
        suspends=True,
        amount=_WAYS,
        runtimes=("worker", "streams"),
        figures=frozenset({Figure.LINKS_CUT, Figure.ZOMBIES}),
        apply=lambda stage, actor, step: stage.isolate(actor, step.amount),
    ),
)
