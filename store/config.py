"""Configuration of tasks and their stores, under the names of the Kafka Streams pages, checked when it is made.

Values may be typed, or strings as a properties file has them. Whatever is not exactly one of the allowed ones is
a `ConfigError` that names the key, the value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from warnings import warn

from store.errors import ConfigError
from store.metrics import RecordingLevel
from store.state.protocol import Sync
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, is_kafka_name

if TYPE_CHECKING:
    from store.streams.dsl.suppliers import (
        DslKeyValueParams,
        DslSessionParams,
        DslStoreSuppliers,
        DslWindowParams,
    )
    from store.suppliers import StoreSupplier

S = TypeVar("S", bound=StrEnum)


class Guarantee(StrEnum):
    """`processing.guarantee`."""

    AT_LEAST_ONCE = "at_least_once"
    """No record of an input is lost; after a crash some are processed again, with their effects and outputs. Where
    stores write straight to their database, they may have those effects before."""
    EXACTLY_ONCE = "exactly_once"
    """The older name of the next."""
    EXACTLY_ONCE_V2 = "exactly_once_v2"
    """State, outputs and input positions are of the same records, each once."""


class StoreType(StrEnum):
    """`default.dsl.store`: what keeps a store that is declared by its name alone. Each value is a supplier of stores
    too (`store.streams.dsl.suppliers.DslStoreSuppliers`)."""

    ROCKS_DB = "rocksDB"
    """RocksDB without transactions: a crash under exactly once costs a restore of the whole store."""
    IN_MEMORY = "in_memory"
    """In the memory of the process: restored from the changelog at every start."""
    TXN_ROCKS_DB = "txn_rocksDB"
    """RocksDB with transactions."""

    def key_value_store(self, params: DslKeyValueParams) -> StoreSupplier[Any]:
        return self._suppliers().key_value_store(params)

    def window_store(self, params: DslWindowParams) -> StoreSupplier[Any]:
        return self._suppliers().window_store(params)

    def session_store(self, params: DslSessionParams) -> StoreSupplier[Any]:
        return self._suppliers().session_store(params)

    def _suppliers(self) -> DslStoreSuppliers:
        # Imported where it is used: suppliers need this module.
        from store.streams.dsl.suppliers import built_in

        return built_in(self)


_BY_GUARANTEE: Any = None
"""Stands for a default that depends on other settings."""

_DEFAULT_STORE = StoreType.TXN_ROCKS_DB

_WHOLE = re.compile(r"-?[0-9]{1,19}")

_MISSPELT = {"rockdb_indexbatch": Mechanism.INDEXED_BATCH.value}
"""Spellings of KIP-844 that are accepted."""


@dataclass(frozen=True)
class StreamsConfig:
    """How tasks commit and what their stores do. All times are milliseconds, all sizes bytes."""

    processing_guarantee: Guarantee = Guarantee.EXACTLY_ONCE_V2
    """`processing.guarantee`. Kafka Streams' default is `at_least_once`; here it is, for now, the one that loses
    and doubles nothing."""
    commit_interval_ms: int = _BY_GUARANTEE
    """`commit.interval.ms`: the longest a processed record stays uncommitted while input keeps coming. By default
    30000, and 100 under exactly once."""
    commit_records: int = 10_000
    """`commit.records`: commit after this many records at the latest; 1 commits every record."""
    transaction_timeout_ms: int = 60_000
    """`transaction.timeout.ms`: after this the broker aborts an open transaction. Above the commit interval."""
    task_timeout_ms: int = 300_000
    """`task.timeout.ms`: how long a retriable error is retried before it becomes fatal for the task."""
    restore_batch_records: int = 10_000
    """`restore.batch.records`: changelog records per atomic write while restoring; of large ones fewer, about 8 MiB."""
    poll_records: int = 1_000
    """`poll.records`: records asked for in one read of the input; of large ones fewer, about 8 MiB."""
    dsl_store_suppliers_class: DslStoreSuppliers | type | str | None = None
    """`dsl.store.suppliers.class`: what makes the stores whose kind the topology leaves open: a class, its path
    (`module:Class` or `module.Class`), or suppliers. See `store.streams.dsl.suppliers` for what beats it. By default,
    what `default.dsl.store` says."""
    default_dsl_store: StoreType = _DEFAULT_STORE
    """`default.dsl.store`, deprecated: the kind of those stores where there is no `dsl.store.suppliers.class`. Kafka
    Streams' default is `rocksDB`, which has no transactions."""
    default_state_isolation_level: IsolationLevel = _BY_GUARANTEE
    """`default.state.isolation.level`: what queries see that do not say it themselves. READ_UNCOMMITTED
    by default; READ_COMMITTED under exactly once, where the other one is raised to it with a warning. Under
    `at_least_once` READ_UNCOMMITTED also means that stores write straight to their database."""
    statestore_uncommitted_max_bytes: int = 67_108_864
    """`statestore.uncommitted.max.bytes`: memory for uncommitted writes of all stores of a process, shared out
    evenly over its tasks. A task beyond its share commits, after the record that took it there. -1: no limit.

    Counted is what `approximate_num_uncommitted_bytes` of the stores says: keys, values and the tables that hold them.
    In the secondary mechanism that is at most one write buffer of 8 MiB a store, and the disk is not bounded. Caches
    have a bound of their own; what open iterators keep and what RocksDB takes during a commit comes on top."""
    statestore_transactional_enabled: bool = True
    """`statestore.transactional.enabled`: false turns the transactions of every store off, whatever it says itself."""
    statestore_transactional_mechanism: Mechanism = Mechanism.INDEXED_BATCH
    """`statestore.transactional.mechanism`."""
    statestore_sync: Sync = Sync.NEVER
    """`statestore.sync`: when commits become power-safe: `commit`, `none`, or milliseconds such as `250ms`."""
    statestore_cache_max_bytes: int = 10_485_760
    """`statestore.cache.max.bytes`: memory for the caches of all stores of a process that have one, shared out
    evenly over its tasks, and over the stores of each; counted as `num_cached_bytes` of a store says. When tasks come
    and go the others get their new shares at once, and let go of what is too much with their next writes. 0: no store
    has a cache."""
    deserialization_exception_handler: Any = None
    """`deserialization.exception.handler`: what becomes of an input record that cannot be turned into objects:
    `fail` (by default), `continue`, or a class with `handle_error` or its path, see `store.streams.handlers`."""
    processing_exception_handler: Any = None
    """`processing.exception.handler`: the same of one whose processing raised."""
    production_exception_handler: Any = None
    """`production.exception.handler`: the same of an output that cannot be turned into bytes, or is refused."""
    errors_dead_letter_queue_topic_name: str | None = None
    """`errors.dead.letter.queue.topic.name`: where `continue` sends records that it goes on without."""
    default_timestamp_extractor: Any = None
    """`default.timestamp.extractor`: what says when the records of an input are: a class with `extract`, its path, or a
    function, see `store.streams.timestamps`. By default the topic, as FailOnInvalidTimestamp has it."""
    num_standby_replicas: int = 0
    """`num.standby.replicas`: how many hosts beside the one of a task keep warm copies of its stores; what
    `store.streams.assignment.assign` is given, for `Worker.assign`."""
    automatic_state_relocation: bool = True
    """`automatic.state.relocation`: a start moves stores whose sub-topology has another ordinal than before to where
    they belong (`store.recovery.relocation`), and tasks fence the ordinal that theirs was. False: such a start is an
    error that says what to do."""
    num_stream_threads: int = 1
    """`num.stream.threads`: how many threads of `Streams` process in one process; each is a member of the group."""
    num_commit_threads: int = 16
    """`num.commit.threads`: how many tasks of a stream thread, or of a task host, may wait for the broker at once while
    they commit; others go on meanwhile. 1: they commit one after the other."""
    repartition_purge_interval_ms: int = 30_000
    """`repartition.purge.interval.ms`: how often `Streams` deletes the records of repartition topics that are processed
    and committed."""
    metrics_recording_level: RecordingLevel = RecordingLevel.INFO
    """`metrics.recording.level`: DEBUG also measures single reads and writes of stores."""

    def __post_init__(self) -> None:
        defaults = {field.name: field.default for field in fields(self)}
        for key, parse in _KEYS.items():
            value = getattr(self, _field(key))
            if value is not None or defaults[_field(key)] is not None:
                self._set(key, parse(key, value))
        given = {key for key in _KEYS if getattr(self, _field(key)) is not _BY_GUARANTEE}
        if self.default_dsl_store is not _DEFAULT_STORE:
            warn(
                "default.dsl.store is deprecated; use dsl.store.suppliers.class",
                DeprecationWarning,
                stacklevel=3,
            )
        if "commit.interval.ms" not in given:
            self._set("commit.interval.ms", 100 if self.exactly_once else 30_000)
        isolation = "default.state.isolation.level"
        if isolation not in given:
            self._set(isolation, IsolationLevel.READ_UNCOMMITTED)
        if not self.exactly_once:
            return
        if isolation in given and self.default_state_isolation_level is IsolationLevel.READ_UNCOMMITTED:
            warn(
                f"{isolation}=READ_UNCOMMITTED is raised to READ_COMMITTED, because processing.guarantee is "
                f"{self.processing_guarantee}",
                stacklevel=3,
            )
        self._set(isolation, IsolationLevel.READ_COMMITTED)
        if self.transaction_timeout_ms <= self.commit_interval_ms:
            raise ConfigError(
                "transaction.timeout.ms",
                self.transaction_timeout_ms,
                f"it must be longer than commit.interval.ms ({self.commit_interval_ms}), "
                "or the broker aborts transactions before the task commits them",
            )

    def resolve_dsl_store_suppliers(self) -> DslStoreSuppliers | None:
        """The suppliers that were configured, by either key; None where neither says other than by default."""
        if self.dsl_store_suppliers_class is not None:
            # Imported where it is used: suppliers need this module.
            from store.streams.dsl.suppliers import suppliers_of

            return suppliers_of(self.dsl_store_suppliers_class)
        return None if self.default_dsl_store is _DEFAULT_STORE else self.default_dsl_store

    @property
    def dsl_store_suppliers(self) -> DslStoreSuppliers:
        """What makes the stores whose kind a topology leaves open."""
        return self.resolve_dsl_store_suppliers() or _DEFAULT_STORE

    def _set(self, key: str, value: object) -> None:
        object.__setattr__(self, _field(key), value)

    @property
    def exactly_once(self) -> bool:
        """Whether tasks commit in Kafka transactions."""
        return self.processing_guarantee is not Guarantee.AT_LEAST_ONCE

    @property
    def handles_errors(self) -> bool:
        """Whether any exception handler may go on without a record."""
        handlers = (
            self.deserialization_exception_handler,
            self.processing_exception_handler,
            self.production_exception_handler,
        )
        return any(one not in (None, "fail") for one in handlers)

    @property
    def mechanism(self) -> Mechanism | None:
        """How stores keep uncommitted writes; None: they write straight to the database."""
        direct = (
            not self.exactly_once and self.default_state_isolation_level is IsolationLevel.READ_UNCOMMITTED
        )
        if direct or not self.statestore_transactional_enabled:
            return None
        return self.statestore_transactional_mechanism

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """The configuration with these dotted names. An unknown key is an error that lists the known ones."""
        if not isinstance(values, Mapping):
            raise ConfigError("config", ..., "a mapping of dotted names to their values")
        for key, value in values.items():
            if key not in _KEYS:
                # Not the value: what is for the client may be a secret.
                raise ConfigError(
                    str(key),
                    ...,
                    f"unknown key{_nearest(str(key))}; known are {', '.join(_KEYS)}. Properties of the client are "
                    "given as `kafka`",
                )
            if value is _BY_GUARANTEE:
                raise ConfigError(key, value, "leave the key out to have its default")
        return cls(**{_field(key): cast(Any, value) for key, value in values.items()})

    def as_dict(self) -> dict[str, Any]:
        """The dotted names and their values; `of` makes an equal configuration of it. None of what has none."""
        values = {field.name.replace("_", "."): getattr(self, field.name) for field in fields(self)}
        return {key: value for key, value in values.items() if value is not None}


_ELSEWHERE: Mapping[str, str] = {
    "application.id": "it is the first argument of StreamsBuilder",
    "bootstrap.servers": "it is the argument bootstrap of Streams and SparkStreams",
    "state.dir": "it is the argument state_dir of Streams and SparkStreams",
    "group.instance.id": "it is the argument instance_id of Streams",
    "session.timeout.ms": "it is the argument session_timeout_ms of Streams",
    "max.poll.interval.ms": "it is the argument rebalance_timeout_ms of Streams",
    "default.key.serde": "it is the argument key_serde of StreamsBuilder",
    "default.value.serde": "it is the argument value_serde of StreamsBuilder",
    "cache.max.bytes.buffering": "its newer name is statestore.cache.max.bytes",
    "default.deserialization.exception.handler": "its newer name is deserialization.exception.handler",
    "default.production.exception.handler": "its newer name is production.exception.handler",
}
"""Settings of Kafka Streams that are none here, and what takes their place."""


def _nearest(key: str) -> str:
    if key in _ELSEWHERE:
        return f", {_ELSEWHERE[key]}"
    close = get_close_matches(key, _KEYS, n=1)
    return f", {close[0]} may be meant" if close else ""


def _field(key: str) -> str:
    return key.replace(".", "_")


def _whole(lowest: int, *, or_no_limit: bool = False) -> Callable[[str, object], int]:
    allowed = f"a whole number of at least {lowest}" + (", or -1 for no limit" if or_no_limit else "")

    def parse(key: str, value: object) -> int:
        number = value
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            number = int(value)
        if type(number) is not int or not (lowest <= number < 1 << 63 or (or_no_limit and number == -1)):
            raise ConfigError(key, value, allowed)
        return number

    return parse


def _one_of(kind: type[S], misspelt: Mapping[str, str] = MappingProxyType({})) -> Callable[[str, object], S]:
    def parse(key: str, value: object) -> S:
        if isinstance(value, str):
            wanted = misspelt.get(value, value)
            for member in kind:
                if member.value == wanted:
                    return member
        raise ConfigError(key, value, f"one of {', '.join(kind)}")

    return parse


def _flag(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ConfigError(key, value, "true or false")


def _sync(key: str, value: object) -> Sync:
    if isinstance(value, Sync):
        return value
    if isinstance(value, str):
        return Sync.of(value)
    raise ConfigError(key, value, "commit, none, or milliseconds such as 250ms")


def _is_path(value: object) -> bool:
    """Whether it may name a class, which is looked for at the start, where it has to be."""
    return isinstance(value, str) and (":" in value or "." in value)


def _handler(key: str, value: object) -> object:
    if (
        value in ("fail", "continue")
        or _is_path(value)
        or isinstance(value, type)
        or callable(getattr(value, "handle_error", None))
    ):
        return value
    raise ConfigError(key, value, "fail, continue, or a class with handle_error(context, error) or its path")


def _extractor(key: str, value: object) -> object:
    if _is_path(value) or (
        not isinstance(value, str) and (callable(value) or callable(getattr(value, "extract", None)))
    ):
        return value
    raise ConfigError(
        key, value, "a class with extract(record, partition_time), such a function, or the path of either"
    )


def kafka_name(key: str, value: object) -> str:
    """`value`, if a topic may have it for a name. Raises `ConfigError` for another one."""
    if is_kafka_name(value):
        return value
    raise ConfigError(
        key, value, "1 to 249 letters, digits, dots, underscores and hyphens, and no dots alone"
    )


def _suppliers(key: str, value: object) -> object:
    if (
        _is_path(value)
        or isinstance(value, type)
        or all(
            callable(getattr(value, name, None))
            for name in ("key_value_store", "window_store", "session_store")
        )
    ):
        return value
    raise ConfigError(key, value, "a class path such as module:Class, a class, or suppliers")


_KEYS: Mapping[str, Callable[[str, Any], object]] = {
    "processing.guarantee": _one_of(Guarantee),
    "commit.interval.ms": _whole(0),
    "commit.records": _whole(1),
    "transaction.timeout.ms": _whole(1),
    "task.timeout.ms": _whole(1),
    "restore.batch.records": _whole(1),
    "poll.records": _whole(1),
    "dsl.store.suppliers.class": _suppliers,
    "default.dsl.store": _one_of(StoreType),
    "default.state.isolation.level": _one_of(IsolationLevel),
    "statestore.uncommitted.max.bytes": _whole(1, or_no_limit=True),
    "statestore.transactional.enabled": _flag,
    "statestore.transactional.mechanism": _one_of(Mechanism, _MISSPELT),
    "statestore.sync": _sync,
    "statestore.cache.max.bytes": _whole(0),
    "deserialization.exception.handler": _handler,
    "processing.exception.handler": _handler,
    "production.exception.handler": _handler,
    "errors.dead.letter.queue.topic.name": kafka_name,
    "default.timestamp.extractor": _extractor,
    "num.standby.replicas": _whole(0),
    "automatic.state.relocation": _flag,
    "num.stream.threads": _whole(1),
    "num.commit.threads": _whole(1),
    "repartition.purge.interval.ms": _whole(1),
    "metrics.recording.level": _one_of(RecordingLevel),
}
