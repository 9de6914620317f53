"""Counts what the schedules of a campaign have met, and says what they had to meet and did not.

A run that never killed at some point, never varied some setting, or never struck some type of store, shows nothing of
it: it is inconclusive, whatever it has found right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from harness.faults import DEADLY, Capability, possible
from harness.generate.plain import MECHANISMS
from harness.generate.settings import VALUES, consistent, effective, mechanism, text
from harness.generate.vocabulary import KILL_POINTS, kind_of, parts_of
from harness.history import History, Injected, Queried, Reached, Skipped
from harness.result import Cell, Pair, WorldResult
from harness.schedule import Runtime, Schedule, config_of
from harness.worlds.actors import is_driver
from scenarios import Scenario, topologies
from store.config import StreamsConfig


class Met:
    """The counts of one world."""

    def __init__(self) -> None:
        self.result = WorldResult()
        self._cells: Counter[tuple[str, str, str]] = Counter()
        self._pairs: Counter[tuple[str, str, str]] = Counter()

    def add(self, scenario: Scenario, schedule: Schedule, history: History) -> None:
        """One run more."""
        result = self.result
        runtime = str(schedule.runtime)
        result.schedules += 1
        _count(result.scenarios, scenario.name)
        _count(result.runtimes, runtime)
        for name, value in effective(schedule):
            _count(result.varied.setdefault(name, {}), value)
        for event in history.events:
            if isinstance(event, Reached):
                _count(result.reached, event.point)
            elif isinstance(event, Injected):
                self._injected(scenario, schedule, event, simulated=history.world == "sim")
            elif isinstance(event, Skipped):
                result.skipped += 1
            elif isinstance(event, Queried):
                result.queries += event.rows is not None

    def _injected(self, scenario: Scenario, schedule: Schedule, event: Injected, *, simulated: bool) -> None:
        runtime = str(schedule.runtime)
        _count(self.result.faults, event.fault)
        self._cells[runtime, event.fault, event.call or (event.point or "")] += 1
        if event.fault not in DEADLY or event.task is None:
            return
        # On real systems the end of Spark's driver is a query that fails, not a process that is killed.
        if simulated or not is_driver(event.task):
            _count(self.result.kills, runtime)
        for kind, how in _stores(scenario, config_of(schedule)):
            self._pairs[how, kind, event.fault] += 1

    def merge(self, other: WorldResult) -> None:
        """Add what another part of the campaign has met."""
        result = self.result
        result.schedules += other.schedules
        result.skipped += other.skipped
        result.repeated += other.repeated
        result.queries += other.queries
        for mine, theirs in (
            (result.scenarios, other.scenarios),
            (result.runtimes, other.runtimes),
            (result.kills, other.kills),
            (result.faults, other.faults),
            (result.reached, other.reached),
            *((result.varied.setdefault(name, {}), values) for name, values in other.varied.items()),
        ):
            for key, number in theirs.items():
                mine[key] = mine.get(key, 0) + number
        for cell in other.cells:
            self._cells[cell.runtime, cell.fault, cell.point] += cell.count
        for pair in other.pairs:
            self._pairs[pair.mechanism, pair.store, pair.fault] += pair.count

    def close(self) -> WorldResult:
        """The figures, in a fixed order."""
        self.result.cells = sorted(Cell(*place, number) for place, number in self._cells.items())
        self.result.pairs = sorted(Pair(*place, number) for place, number in self._pairs.items())
        self.result.varied = {
            name: dict(sorted(values.items())) for name, values in sorted(self.result.varied.items())
        }
        return self.result

    def missing(
        self, scenarios: Sequence[Scenario], capabilities: Iterable[Capability], *, whole: bool
    ) -> list[str]:
        """What had to be met and was not. `whole`: of a run that nobody has cut short, that is also each value of
        each setting, and each deadly fault with each mechanism and type of store."""
        missing = [
            f"{runtime} × kill × {point}"
            for runtime in Runtime
            if self.result.runtimes.get(runtime)
            for point in KILL_POINTS[runtime]
            if not self._killed(runtime, point)
        ]
        if whole:
            missing += [
                f"{name}={value}"
                for name, values in _wanted_settings(scenarios).items()
                for value in values
                if not self.result.varied.get(name, {}).get(value)
            ]
            deadly = [name for name in possible(capabilities) if name in DEADLY]
            missing += [
                f"{how} × {kind} × {fault}"
                for how, kind in _wanted_stores(scenarios)
                for fault in deadly
                if not self._pairs[how, kind, fault]
            ]
        return missing

    def _killed(self, runtime: str, point: str) -> bool:
        return any(self._cells[runtime, fault, point] for fault in DEADLY)


def _count(numbers: dict[str, int], key: str) -> None:
    numbers[key] = numbers.get(key, 0) + 1


@cache
def _stores(scenario: Scenario, config: StreamsConfig) -> list[tuple[str, str]]:
    """Type and mechanism of each store of a run."""
    return [
        (kind_of(supplier), mechanism(config) if _transactional(supplier) else "none")
        for topology in topologies(scenario, "a", config)
        for supplier in topology.suppliers(config.default_dsl_store).values()
    ]


def _transactional(supplier: object) -> bool:
    return getattr(getattr(supplier, "supplier", supplier), "transactional", True) is not False


def _wanted_settings(scenarios: Sequence[Scenario]) -> dict[str, list[str]]:
    """The values that the generator can draw, for those settings that some scenario leaves open."""
    return {
        name: [text(value) for value in values]
        for name, values in VALUES.items()
        if any(name not in scenario.settings for scenario in scenarios)
    }


def _wanted_stores(scenarios: Sequence[Scenario]) -> list[tuple[str, str]]:
    """Mechanism and type of store, each pair that the generator makes on purpose."""
    wanted: dict[tuple[str, str], None] = {}
    for scenario in scenarios:
        kinds = parts_of(scenario).kinds
        for settings in MECHANISMS:
            schedule = Schedule(scenario.name, settings=consistent({**settings, **scenario.settings}))
            for kind, how in _stores(scenario, config_of(schedule)):
                if kind in kinds:
                    wanted[how, kind] = None
    return list(wanted)
