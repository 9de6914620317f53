"""Exactly-once Kafka to Kafka on PySpark: `SparkStreams`, and a sink for queries without state of ours.

They are imported on first use: `store.spark.host`, which the simulation runs thousands of times a second, must not cost
the import of PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.spark.sink import NewCheckpointError, StaleCheckpointError, exactly_once_kafka_sink
    from store.spark.streams import SparkStreams, SparkStreamsQuery

_WHERE = {
    "SparkStreams": "streams",
    "SparkStreamsQuery": "streams",
    "exactly_once_kafka_sink": "sink",
    "NewCheckpointError": "sink",
    "StaleCheckpointError": "sink",
}

__all__ = [
    "NewCheckpointError",
    "SparkStreams",
    "SparkStreamsQuery",
    "StaleCheckpointError",
    "exactly_once_kafka_sink",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(import_module(f"store.spark.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
