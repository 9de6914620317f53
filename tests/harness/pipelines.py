"""Scenarios that differ from `balances` in their processing function alone, and how soon a campaign finds a bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.campaign import schedule_at, tours_of
from harness.replay import simulate
from harness.verdict import Outcome
from scenarios import Scenario, Stores, load_all
from scenarios.balances import Scenario as Balances
from store.streams.topology import Context, Topology
from store.types import Record

Process = Callable[[Context, Record], None]

BALANCES = load_all()["balances"]


class WithProcess(Balances):
    """`balances` with another processing function, made anew for each process."""

    def __init__(self, make: Callable[[], Process]) -> None:
        self._make = make

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        return replace(super().pipeline(application_id, stores), process=self._make())


def first_violated(schedules: int, scenario: Scenario = BALANCES) -> int | None:
    """The index of the first violated schedule of a campaign, the tours included; None if all hold."""
    for index in range(-tours_of(scenario), schedules):
        if simulate(scenario, schedule_at(scenario, 0, index))[1].outcome is Outcome.VIOLATED:
            return index
    return None


class Holder:
    """What a pipeline of another module may keep an object of."""

    def __init__(self) -> None:
        self.amounts: dict[bytes, dict[int, int]] = {}
