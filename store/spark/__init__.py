"""Exactly-once Kafka to Kafka on PySpark: `start_query`, `create_changelogs`.

They are imported on first use: `store.spark.executor`, which the simulation runs thousands of times a second, must
not cost the import of PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.spark.query import create_changelogs, start_query

__all__ = ["create_changelogs", "start_query"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from store.spark import query

        return getattr(query, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
