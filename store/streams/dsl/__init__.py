"""The DSL: streams and tables with their operators, as in Kafka Streams."""

from store.streams.dsl.builder import (
    CogroupedKStream,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    StreamsBuilder,
)
from store.streams.dsl.joins import JoinWindows, StreamJoined
from store.streams.dsl.operators import RecordContext
from store.streams.dsl.processors import ProcessorContext, PunctuationType, StreamRecord
from store.streams.dsl.stores import Materialized
from store.streams.dsl.suppliers import (
    BuiltInDslStoreSuppliers,
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    EmitStrategy,
    TopologyConfig,
)
from store.streams.dsl.suppress import BufferConfig, Suppressed
from store.streams.dsl.windows import (
    SessionWindowedSerde,
    SessionWindows,
    SlidingWindows,
    TimeWindowedSerde,
    TimeWindows,
    UnlimitedWindows,
)

__all__ = [
    "BufferConfig",
    "BuiltInDslStoreSuppliers",
    "CogroupedKStream",
    "DslKeyValueParams",
    "DslSessionParams",
    "DslStoreSuppliers",
    "DslWindowParams",
    "EmitStrategy",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "Materialized",
    "ProcessorContext",
    "PunctuationType",
    "RecordContext",
    "SessionWindowedSerde",
    "SessionWindows",
    "SlidingWindows",
    "StreamJoined",
    "StreamRecord",
    "StreamsBuilder",
    "Suppressed",
    "TimeWindowedSerde",
    "TimeWindows",
    "TopologyConfig",
    "UnlimitedWindows",
]
