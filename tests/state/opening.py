"""How tests of store types open a store: over an engine, with what differs from the defaults."""

from __future__ import annotations

from typing import Any

from store.engine import Engine
from store.state.protocol import StoreContext
from store.transaction.protocol import Mechanism
from tests.engine.engines import OpenEngine

MECHANISMS: tuple[Mechanism | None, ...] = (*Mechanism, None)
"""The two of KIP-844, and none: writes go straight to the engine."""


def context_over(engine: Engine | OpenEngine, name: str = "orders", **options: Any) -> StoreContext:
    """A context with this engine, opened or still to be opened."""
    return StoreContext(name=name, open_engine=engine if callable(engine) else lambda: engine, **options)
