from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.engine import Engine
from tests.engine.engines import OpenEngine, open_engine_for


@pytest.fixture(params=["memory", "rocksdb"])
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> OpenEngine:
    return open_engine_for(request.param, tmp_path)


@pytest.fixture
def engine(open_engine: OpenEngine) -> Iterator[Engine]:
    opened = open_engine()
    yield opened
    opened.close()
