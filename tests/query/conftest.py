from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from store.state.protocol import StateStore, StoreContext
from tests.engine.engines import open_engine_for
from tests.state.opening import context_over

S = TypeVar("S", bound=StateStore)

Open = Callable[..., Any]


@pytest.fixture(params=["memory", "rocksdb"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens a store of a type over an engine of its own: `open_store(make, **fields of the context)`."""
    opened: list[StateStore] = []

    def open_one(make: Callable[[StoreContext], S], **options: Any) -> S:
        engine = open_engine_for(request.param, tmp_path / str(len(opened)))
        store = make(context_over(engine, **options))
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()
