"""What a processing function sees of its task: its stores without the calls that are the task's, and the sinks.

Must survive: a function that swallows the error of a failed write and returns as if nothing had happened. Its
record must not be committed, so the first error is kept and raised again when the function returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from store.errors import LogError, ProtocolError
from store.log import Headers, Producer, TopicPartition
from store.state.keyvalue import KeyValueStore


class ProcessorStore:
    """A task's key-value store as its processing function may use it: reads and uncommitted writes.

    The methods are those of `KeyValueStore`. Committing, discarding, restoring and closing belong to the task;
    each raises `ProtocolError` naming `context.commit()` (KIP-892, row 892.6).
    """

    def __init__(self, store: KeyValueStore) -> None:
        self.name = store.name
        # Bound once: a call here costs what it costs on the store.
        self.get = store.get
        self.put = store.put
        self.put_if_absent = store.put_if_absent
        self.put_all = store.put_all
        self.delete = store.delete
        self.range = store.range
        self.reverse_range = store.reverse_range
        self.all = store.all
        self.reverse_all = store.reverse_all
        self.prefix_scan = store.prefix_scan
        self.approximate_num_entries = store.approximate_num_entries
        self.approximate_num_uncommitted_bytes = store.approximate_num_uncommitted_bytes

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ProtocolError(
            f"store {self.name}: a processor does not commit, discard or close a store; "
            "call context.commit() to have the whole task committed after this record"
        )

    commit = discard = restore_batch = close = flush = _refuse


class Context(Protocol):
    """What the processing function may do. Valid only during the call that received it."""

    def store(self, name: str) -> ProcessorStore:
        """The task's store of that name. Writes are uncommitted until the task commits."""

    def forward(self, topic: str, key: bytes | None, value: bytes | None, *, headers: Headers = ()) -> None:
        """Send a record to an output topic, in the task's transaction. The record's key picks the partition."""

    def commit(self) -> None:
        """Ask for a commit of the whole task after this record. The only way for a processor to commit."""


class TaskContext:
    """The context of one task, and the way of its stores' changes to the changelog."""

    def __init__(self, producer: Producer, sinks: tuple[str, ...]) -> None:
        self._producer = producer
        self._sinks = frozenset(sinks)
        self._stores: dict[str, ProcessorStore] = {}
        self.timestamp = 0
        self.commit_requested = False
        self.failure: LogError | None = None

    def offer(self, stores: Mapping[str, KeyValueStore]) -> None:
        """The stores that `store` hands out."""
        self._stores = {name: ProcessorStore(store) for name, store in stores.items()}

    def store(self, name: str) -> ProcessorStore:
        try:
            return self._stores[name]
        except KeyError:
            raise ProtocolError(
                f"the topology has no store {name!r}; it declares {', '.join(self._stores) or 'none'}"
            ) from None

    def forward(self, topic: str, key: bytes | None, value: bytes | None, *, headers: Headers = ()) -> None:
        if topic not in self._sinks:
            raise ProtocolError(
                f"the topology has no sink {topic!r}; it declares {', '.join(sorted(self._sinks)) or 'none'}"
            )
        try:
            self._producer.produce(topic, key, value, timestamp=self.timestamp, headers=headers)
        except LogError as error:
            self.failure = self.failure or error
            raise

    def commit(self) -> None:
        self.commit_requested = True

    def change_logger(self, changelog: TopicPartition) -> Callable[[bytes, bytes | None], None]:
        """What a store calls with each write, before it takes it."""
        topic, partition = changelog

        def log_change(key: bytes, value: bytes | None) -> None:
            try:
                self._producer.produce(topic, key, value, partition=partition, timestamp=self.timestamp)
            except LogError as error:
                self.failure = self.failure or error
                raise

        return log_change

    def reset(self) -> None:
        """A new transaction begins."""
        self.commit_requested = False
        self.failure = None
