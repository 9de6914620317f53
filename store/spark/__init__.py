"""Exactly-once Kafka to Kafka on PySpark: `SparkStreams`.

It is imported on first use: `store.spark.host`, which the simulation runs thousands of times a second, must not cost
the import of PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.spark.streams import SparkStreams, SparkStreamsQuery

__all__ = ["SparkStreams", "SparkStreamsQuery"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from store.spark import streams

        return getattr(streams, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
