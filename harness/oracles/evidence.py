"""What every oracle looks at: the history, and beside it the reference model for each partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from harness.history import Ended, Event, Final, Row, Skipped, Started, Struck
from harness.reference.model import PartitionModel
from harness.schedule import Schedule
from harness.verdict import Finding
from scenarios import Scenario


class Evidence:
    """One run, indexed."""

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        events: Sequence[Event],
        final: Final,
        *,
        caused: bool = True,
    ) -> None:
        """`caused`: nothing in this world goes wrong that the schedule did not cause."""
        self.caused = caused
        self.scenario = scenario
        self.schedule = schedule
        self.events = events
        self.final = final

    @cached_property
    def stores(self) -> tuple[str, ...]:
        return self.scenario.topology("model").store_names

    @cached_property
    def models(self) -> list[PartitionModel]:
        """By partition."""
        rows: list[list[Row]] = [[] for _ in range(self.schedule.partitions)]
        for row in self.final.input.rows:
            rows[row.partition].append(row)
        return [PartitionModel(self.scenario, self.stores, part) for part in rows]

    def input_differences(self) -> Iterator[Finding]:
        """The input topic must read back as it was written: committed records in order, aborted ones not at all."""
        for partition in range(self.schedule.partitions):
            written = [
                (item.key, item.value)
                for item in self.schedule.input
                if item.partition == partition and not item.aborted
            ]
            read = [(row.key, row.value) for row in self.models[partition].rows]
            if written != read:
                yield Finding(
                    "input",
                    f"Partition {partition} of the input reads back as {read!r}, but {written!r} was committed to it.",
                    task=partition,
                    expected=written,
                    actual=read,
                )

    def story_before(self, index: int, task: int | None) -> str:
        """The faults and restarts of `task` that came before event `index`, the last ones first, in words."""
        parts: list[str] = []
        for event in reversed(self.events[:index]):
            if isinstance(event, Started) and event.task == task and event.incarnation > 0 and not parts:
                parts.append(f"incarnation {event.incarnation} started on host {event.host}")
            elif isinstance(event, Struck) and (task is None or event.task == task):
                steps = self.schedule.steps
                named = event.step >= len(steps) or steps[event.step].at is not None
                where = (
                    ""
                    if event.point is None
                    else f" at {event.point}"
                    if named
                    else f" (it was at {event.point})"
                )
                parts.append(f"step {event.step}: {event.op}{where}")
            elif isinstance(event, Ended) and event.task == task:
                parts.append(f"incarnation {event.incarnation} {event.reason}")
            if len(parts) == 3:
                break
        return ", ".join(reversed(parts)) if parts else "before any fault"

    def skipped(self) -> int:
        return sum(isinstance(event, Skipped) for event in self.events)
