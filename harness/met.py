"""Counts what the schedules of a campaign have met, and says what they had to meet and did not.

A run that never killed at some point, never varied some setting, or never struck some type of store, shows nothing of
it: it is inconclusive, whatever it has found right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from statistics import median
from typing import Any

from harness.faults import DEADLY, FAULTS, Capability, Figure, possible
from harness.generate.plain import MECHANISMS, faults_of
from harness.generate.settings import VALUES, consistent, effective, open_to, text, values_of
from harness.generate.vocabulary import KILL_POINTS, kind_of, passing
from harness.history import End, Ended, History, Injected, Queried, Reached, Skipped
from harness.reference import durability
from harness.result import Cell, Missing, Pair, Value, WorldResult
from harness.schedule import Runtime, Schedule, config_of
from harness.worlds.actors import is_driver, ordinal_of
from scenarios import Scenario, topologies
from store.config import StreamsConfig
from store.suppliers import StoreSupplier

SCHEDULES = "schedules that came to an end"
STRUCK = "faults"
"""Steps that came to their fault; what lets a zombie go on is none."""
FENCED = "zombies fenced"
"""Zombies that went on and then learnt from the broker that another process has their task."""


def with_stores(mechanism: str) -> str:
    """The figure of faults in schedules that have stores of a mechanism."""
    return f"faults where stores have {mechanism}"


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
        _count(result.scenarios, schedule.scenario)
        _count(result.runtimes, runtime)
        if history.seconds:
            result.took.setdefault(runtime, []).append(round(history.seconds, 2))
        for name, value in effective(schedule):
            _count(result.varied.setdefault(name, {}), value)
        for event in history.events:
            if isinstance(event, Reached):
                _count(result.reached, event.point)
            elif isinstance(event, Injected):
                self._injected(scenario, schedule, event)
            elif isinstance(event, Skipped):
                result.skipped += 1
            elif isinstance(event, Queried):
                result.queries += event.rows is not None
        if not history.inconclusive:
            self._figures(scenario, schedule, history)

    def _figures(self, scenario: Scenario, schedule: Schedule, history: History) -> None:
        """What a schedule that came to an end adds to the figures. A fault counts once, however many it struck."""
        runtime = str(schedule.runtime)
        config = config_of(schedule)
        mechanisms = {how for stores in _stores(scenario, config) for how, _ in stores}
        found = Counter({SCHEDULES: 1})
        struck: set[int] = set()
        zombies: set[tuple[str | None, int | None]] = set()
        for event in history.events:
            if isinstance(event, Injected):
                fault = FAULTS[event.fault]
                if Figure.ZOMBIES in fault.figures:
                    zombies.add((event.task, event.incarnation))
                # The first event of a step is that of its fault, those behind it say what else that has struck.
                if event.step in struck:
                    continue
                struck.add(event.step)
                _count(self.result.struck.setdefault(fault.name, {}), runtime)
                if not fault.after or fault.deadly:
                    found[STRUCK] += 1
                    found.update(str(figure) for figure in fault.figures)
                    found.update(with_stores(how) for how in mechanisms)
            elif isinstance(event, Ended) and event.reason is End.FENCED:
                found[FENCED] += (event.task, event.incarnation) in zombies
        for name, number in found.items():
            if number:
                figure = self.result.figures.setdefault(name, {})
                figure[runtime] = figure.get(runtime, 0) + number

    def _injected(self, scenario: Scenario, schedule: Schedule, event: Injected) -> None:
        runtime = str(schedule.runtime)
        _count(self.result.faults, event.fault)
        self._cells[runtime, event.fault, event.call or (event.point or "")] += 1
        # The end of Spark's driver is a query that fails, and no process under test.
        if event.fault in DEADLY and event.task is not None and not is_driver(event.task):
            _count(self.result.kills, runtime)
            for how, kind in _stores(scenario, config_of(schedule))[ordinal_of(event.task)]:
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
            *((result.struck.setdefault(name, {}), numbers) for name, numbers in other.struck.items()),
            *((result.figures.setdefault(name, {}), numbers) for name, numbers in other.figures.items()),
        ):
            for key, number in theirs.items():
                mine[key] = mine.get(key, 0) + number
        for runtime, seconds in other.took.items():
            result.took.setdefault(runtime, []).extend(seconds)
        for cell in other.cells:
            self._cells[cell.runtime, cell.fault, cell.point] += cell.count
        for pair in other.pairs:
            self._pairs[pair.mechanism, pair.store, pair.fault] += pair.count

    def close(self) -> WorldResult:
        """The figures, in a fixed order."""
        self.result.cells = sorted(Cell(*place, number) for place, number in self._cells.items())
        self.result.pairs = sorted(Pair(*place, number) for place, number in self._pairs.items())
        for name in ("varied", "struck", "figures"):
            counted = getattr(self.result, name)
            setattr(
                self.result,
                name,
                {each: dict(sorted(numbers.items())) for each, numbers in sorted(counted.items())},
            )
        self.result.medians = {
            runtime: round(median(seconds), 2) for runtime, seconds in sorted(self.result.took.items())
        }
        return self.result

    def missing(
        self,
        scenarios: Sequence[Scenario],
        capabilities: Iterable[Capability],
        *,
        whole: bool,
        faults: Sequence[str] = (),
    ) -> list[Missing]:
        """What had to be met and was not. `whole`: of a run that nobody has cut short, that is also each value of
        each setting, and each deadly fault with each mechanism and type of store. `faults`: those that it was asked
        for, which are all that it has to meet then."""
        if faults:
            can = {
                name: runtimes[0]
                for scenario in scenarios
                for name, runtimes in faults_of(scenario, capabilities).items()
            }
            return [
                Cell(can[name], name, "")
                for name in faults
                if name in can and not self.result.faults.get(name)
            ]
        # Whatever becomes of the settings that are left open.
        passable = {
            runtime: [
                passing(scenario, scenario.settings, runtime)
                for scenario in scenarios
                if runtime in scenario.runtimes
            ]
            for runtime in Runtime
            if self.result.runtimes.get(runtime)
        }
        missing: list[Missing] = [
            Cell(runtime, "kill", point)
            for runtime, each in passable.items()
            for point in KILL_POINTS[runtime]
            if any(passed[point] for passed in each)
            and not any(self._cells[runtime, fault, point] for fault in DEADLY)
        ]
        if whole:
            missing += [
                Value(name, value)
                for name, values in _wanted_settings(scenarios).items()
                for value in values
                if not self.result.varied.get(name, {}).get(value)
            ]
            deadly = [
                name
                for name, fault in possible(capabilities).items()
                if name in DEADLY and not fault.without_stores and not fault.placed
                # Another kill, after which a store may be of another mechanism, or one that moves.
                if not fault.reorders and not fault.changes_settings
            ]
            missing += [
                Pair(how, kind, fault)
                for how, kind in _wanted_stores(scenarios)
                for fault in deadly
                if not self._pairs[how, kind, fault]
            ]
        return missing


def _count(numbers: dict[str, int], key: str) -> None:
    numbers[key] = numbers.get(key, 0) + 1


@lru_cache(maxsize=512)
def _stores(scenario: Scenario, config: StreamsConfig) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Mechanism and type of each store of a run, sub-topology by sub-topology."""
    return tuple(
        tuple(
            (_mechanism(supplier, config), kind_of(supplier))
            for supplier in topology.suppliers(config.dsl_store_suppliers).values()
        )
        for topology in topologies(scenario, "a", config)
    )


def _mechanism(supplier: StoreSupplier[Any], config: StreamsConfig) -> str:
    match durability.kind_of(supplier, config):
        case durability.Kind.IN_MEMORY:
            return "in memory"
        case durability.Kind.DIRECT:
            return "none"
    return str(config.mechanism)


def _wanted_settings(scenarios: Sequence[Scenario]) -> dict[str, list[str]]:
    """The values that the generator can draw, for those settings that some scenario leaves open, where they have an
    effect beside the settings that it needs."""
    wanted = {
        name: [text(value) for value in values if any(_shows(one, name, value) for one in scenarios)]
        for name, values in VALUES.items()
    }
    return {name: values for name, values in wanted.items() if values}


@cache
def _shows(scenario: Scenario, name: str, value: object) -> bool:
    """Whether some schedule of a scenario has that value of a setting, see `effective`."""
    if name not in open_to(scenario) or value not in values_of(scenario)[name]:
        return False
    return any(
        (name, text(value)) in effective(Schedule(scenario.name, settings=settings))
        for guarantee in VALUES["processing.guarantee"]
        for settings in [
            consistent({"processing.guarantee": guarantee, **scenario.settings, name: value}),
        ]
    )


def _wanted_stores(scenarios: Sequence[Scenario]) -> list[tuple[str, str]]:
    """Mechanism and type of store, each pair that the generator makes on purpose."""
    wanted: dict[tuple[str, str], None] = {}
    for scenario in scenarios:
        for settings in MECHANISMS:
            schedule = Schedule(scenario.name, settings=consistent({**settings, **scenario.settings}))
            for stores in _stores(scenario, config_of(schedule)):
                wanted |= dict.fromkeys(stores)
    return list(wanted)
