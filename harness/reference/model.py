"""The reference model: what state, changelog and output must be, computed from the input alone.

It knows no store, no transaction and no crash. Everything is a function of how far each partition was read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

from harness.history import Row
from scenarios import Output, Scenario, ScenarioError, State


class Prefix(NamedTuple):
    """What holds once every record up to and including `offset` was processed."""

    offset: int
    state: State
    outputs: int
    """How many outputs were produced so far."""


class PartitionModel:
    """The expectation for one partition, at every offset."""

    def __init__(self, scenario: Scenario, stores: Sequence[str], rows: Sequence[Row]) -> None:
        self.rows = rows
        self.outputs: list[Output] = []
        self._scenario = scenario
        self._stores = stores
        state: State = {store: {} for store in stores}
        self._prefixes = [Prefix(-1, deepcopy(state), 0)]
        for row in rows:
            try:
                self.outputs += scenario.reference(state, row.key, row.value)
            except Exception as error:
                raise ScenarioError(
                    f"the reference function of scenario {scenario.name} does not take {row.key!r}={row.value!r}, "
                    f"the record at offset {row.offset} of partition {row.partition}: {type(error).__name__}: {error}"
                ) from error
            self._prefixes.append(Prefix(row.offset, deepcopy(state), len(self.outputs)))
        self._offsets = [prefix.offset for prefix in self._prefixes]

    @property
    def last(self) -> int:
        """The offset of the last record, -1 if there is none."""
        return self._offsets[-1]

    def at(self, offset: int) -> Prefix:
        """The expectation once the record at `offset`, and all before it, were processed."""
        return self._prefixes[bisect_right(self._offsets, offset) - 1]

    def replay(self, rows: Sequence[Row]) -> State:
        """The state that another sequence of records would lead to; used to explain, never to judge."""
        state: State = {store: {} for store in self._stores}
        for row in rows:
            self._scenario.reference(state, row.key, row.value)
        return state
