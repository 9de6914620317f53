"""The benchmark of relocation measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bench.relocation import SUB_TOPOLOGIES, measure


@pytest.mark.requirement("13627.4")
def test_all_stores_are_moved_once(tmp_path: Path) -> None:
    measured = measure(tmp_path, 80)
    assert (measured.stores, measured.tasks) == (80, 2 * SUB_TOPOLOGIES)
    assert {path.parents[1].name[0] for path in (tmp_path / "bench").glob("*_*/rocksdb/store-0-*")} == {"3"}
