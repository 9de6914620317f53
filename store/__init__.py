"""A transactional state store, and exactly-once stream processing over it, for Kafka and Spark.

What a pipeline needs by name is here; the other words of the DSL are in `store.streams.dsl`. Queries are in
`store.query`, the adapter to Kafka is `store.log.kafka`, tasks on Spark are in `store.spark`. `store.testing.driver`
runs an application in memory for its unit tests, and `store.testing.conformance` tests a store of your own.
"""

from store.config import Guarantee, StoreType, StreamsConfig
from store.metrics import Metrics
from store.recovery.directory import StateDirectory
from store.recovery.progress import ProgressListener
from store.recovery.restore import RestoreListener
from store.recovery.standby import Standby
from store.serdes import BytesSerde, IntSerde, JsonSerde, Serde, StrSerde
from store.standalone import open_store, read_store
from store.state.protocol import StateStore, StoreContext, Sync
from store.state.timestamped import ValueAndTimestamp
from store.state.versioned import VersionedRecord
from store.state.windowed import Window, Windowed
from store.streams.application import Application
from store.streams.dsl import Materialized, SessionWindows, SlidingWindows, StreamsBuilder, TimeWindows
from store.streams.topology import Context, Topology
from store.streams.worker import Worker
from store.suppliers import (
    StoreBuilder,
    StoreSupplier,
    custom_store,
    in_memory_key_value_store,
    in_memory_session_store,
    in_memory_window_store,
    key_value_store_builder,
    list_value_store_builder,
    persistent_key_value_store,
    persistent_list_value_store,
    persistent_session_store,
    persistent_timestamped_key_value_store,
    persistent_timestamped_window_store,
    persistent_versioned_key_value_store,
    persistent_window_store,
    session_store_builder,
    timestamped_key_value_store_builder,
    timestamped_window_store_builder,
    versioned_key_value_store_builder,
    window_store_builder,
)
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, Record, TopicPartition

__all__ = [
    "Application",
    "BytesSerde",
    "Context",
    "Guarantee",
    "IntSerde",
    "IsolationLevel",
    "JsonSerde",
    "Materialized",
    "Mechanism",
    "Metrics",
    "ProgressListener",
    "Record",
    "RestoreListener",
    "Serde",
    "SessionWindows",
    "SlidingWindows",
    "Standby",
    "StateDirectory",
    "StateStore",
    "StoreBuilder",
    "StoreContext",
    "StoreSupplier",
    "StoreType",
    "StrSerde",
    "StreamsBuilder",
    "StreamsConfig",
    "Sync",
    "TimeWindows",
    "TopicPartition",
    "Topology",
    "ValueAndTimestamp",
    "VersionedRecord",
    "Window",
    "Windowed",
    "Worker",
    "custom_store",
    "in_memory_key_value_store",
    "in_memory_session_store",
    "in_memory_window_store",
    "key_value_store_builder",
    "list_value_store_builder",
    "open_store",
    "persistent_key_value_store",
    "persistent_list_value_store",
    "persistent_session_store",
    "persistent_timestamped_key_value_store",
    "persistent_timestamped_window_store",
    "persistent_versioned_key_value_store",
    "persistent_window_store",
    "read_store",
    "session_store_builder",
    "timestamped_key_value_store_builder",
    "timestamped_window_store_builder",
    "versioned_key_value_store_builder",
    "window_store_builder",
]
