"""The caches of schedules: the small ones hold a row or some, so that rows are held back, and leave, in every run."""

from __future__ import annotations

import pytest

from harness.generate.settings import VALUES
from harness.schedule import Schedule, config_of
from scenarios import load_all, topologies
from store.streams.dsl.stores import TableStore
from store.transaction.caching import row_bytes

SETTING = "statestore.cache.max.bytes"
SMALLEST, LARGE = row_bytes(b"a", b"1"), row_bytes(b"anna", b"1") * 6


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, scenario in load_all().items()
        if scenario.settings.get(SETTING) != 0 and not scenario.joins
    ],
)
def test_a_small_cache_has_room_for_a_row_and_not_for_all(name: str) -> None:
    """A table of the DSL holds back one row at least, however small its share."""
    scenario = load_all()[name]
    small = scenario.settings.get(SETTING, VALUES[SETTING][1])
    config = config_of(Schedule(name, settings={**scenario.settings, SETTING: small}))
    for topology in topologies(scenario, "a", config):
        cached = [one for one in topology.suppliers(config.dsl_store_suppliers).values() if one.cached]
        if cached:
            share = small // len(cached)
            assert share <= LARGE
            assert share >= SMALLEST or all(isinstance(one, TableStore) for one in cached)
