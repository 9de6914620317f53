"""Uncommitted writes, kept apart from the engine until a store commits."""

from __future__ import annotations

from store.engine.protocol import Engine
from store.transaction.direct import DirectTransaction
from store.transaction.indexed_batch import IndexedBatchTransaction
from store.transaction.protocol import Mechanism, Transaction
from store.transaction.secondary import SecondaryTransaction

__all__ = ["Mechanism", "Transaction", "open_transaction"]


def open_transaction(engine: Engine, mechanism: Mechanism | None) -> Transaction:
    """The first transaction over `engine`; without a mechanism, writes go straight to it."""
    if mechanism is None:
        return DirectTransaction(engine)
    if mechanism is Mechanism.SECONDARY:
        return SecondaryTransaction(engine)
    return IndexedBatchTransaction(engine)
