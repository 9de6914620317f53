"""The DSL: streams and tables with their operators, as in Kafka Streams."""

from store.streams.dsl.builder import KGroupedStream, KGroupedTable, KStream, KTable, StreamsBuilder
from store.streams.dsl.processors import ProcessorContext, PunctuationType, StreamRecord
from store.streams.dsl.stores import Materialized
from store.streams.dsl.windows import (
    SessionWindowedSerde,
    SessionWindows,
    SlidingWindows,
    TimeWindowedSerde,
    TimeWindows,
)

__all__ = [
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "Materialized",
    "ProcessorContext",
    "PunctuationType",
    "SessionWindowedSerde",
    "SessionWindows",
    "SlidingWindows",
    "StreamRecord",
    "StreamsBuilder",
    "TimeWindowedSerde",
    "TimeWindows",
]
