"""For models of logged stores: engines that crash or are lost, and the changelog that the store is restored from."""

from __future__ import annotations

import shutil
import tempfile
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from store.engine import Engine
from store.engine.memory import MemoryEngine
from store.engine.rocksdb import RocksEngine
from store.state.protocol import StoreContext
from store.state.store import EngineStore
from store.transaction.protocol import Mechanism
from store.types import Record, TopicPartition
from tests.engine.engines import ListJournal, copy_running
from tests.state.opening import MECHANISMS, context_over

CHANGELOG = TopicPartition("changelog", 0)

S = TypeVar("S", bound=EngineStore)


class Medium(Protocol):
    def open(self) -> Engine:
        """What is there now."""

    def crash(self) -> None:
        """From here on `open` finds what a process that was killed at this moment leaves behind."""

    def wipe(self) -> None:
        """From here on `open` finds nothing."""

    def remove(self) -> None: ...


class Journaled:
    def __init__(self) -> None:
        self.journal = ListJournal()

    def open(self) -> Engine:
        return MemoryEngine(self.journal)

    def crash(self) -> None:
        survived = ListJournal()
        survived.batches = list(self.journal.batches)
        self.journal = survived

    def wipe(self) -> None:
        self.journal = ListJournal()

    def remove(self) -> None: ...


class OnDisk:
    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.lives = 0

    @property
    def database(self) -> Path:
        return self.directory / str(self.lives)

    def open(self) -> Engine:
        return RocksEngine(self.database)

    def crash(self) -> None:
        running = self.database
        self.lives += 1
        copy_running(running, self.database)

    def wipe(self) -> None:
        self.lives += 1

    def remove(self) -> None:
        shutil.rmtree(self.directory)


class LoggedStoreMachine(RuleBasedStateMachine, Generic[S]):
    """A logged store under commits, aborts, crashes and restores. The subclass writes, keeps a model, and compares.

    Without transactions the log is that of a plain producer: what was sent is there, and a store that comes back
    is given again what it had taken since the last commit.
    """

    mechanism: Mechanism | None
    new_medium: Callable[[], Medium]

    def __init__(self) -> None:
        super().__init__()
        self.medium: Medium | None = None
        self.log: list[Record] = []
        self.pending: list[Record] = []
        self.next_offset = 0
        self.checkpoint = -1
        """The last offset of the last commit."""

    def open_store(self, context: StoreContext) -> S:
        raise NotImplementedError

    def model_committed(self) -> None:
        """What is in the model is committed."""
        raise NotImplementedError

    def model_discarded(self) -> None:
        """The model goes back to the last commit."""
        raise NotImplementedError

    def check(self) -> None:
        """Compare everything that the store shows with the model."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.medium = self.new_medium()
        self.reopen()

    def reopen(self) -> None:
        assert self.medium is not None
        self.store: S = self.open_store(
            context_over(
                self.medium.open,
                changelog=CHANGELOG,
                mechanism=self.mechanism,
                log_change=self.send,
                record_time=lambda: 0,
            )
        )

    def send(self, key: bytes, value: bytes | None, timestamp: int | None = None) -> None:
        record = Record(*CHANGELOG, self.next_offset, key, value, timestamp or 0)
        self.next_offset += 1
        (self.pending if self.mechanism else self.log).append(record)
        if not self.mechanism:
            self.model_committed()

    def kafka_commit(self) -> None:
        self.log += self.pending
        self.pending = []
        self.model_committed()

    @rule()
    def commit(self) -> None:
        self.store.flush_cache()
        self.kafka_commit()
        last = self.log[-1].offset if self.log else None
        self.store.commit({} if last is None else {CHANGELOG: last})
        self.checkpoint = -1 if last is None else last

    @precondition(lambda self: self.mechanism is not None)
    @rule()
    def abort(self) -> None:
        self.pending = []
        self.store.discard()
        self.model_discarded()
        self.check()

    @precondition(lambda self: self.mechanism is not None)
    @rule()
    def crash_before_the_kafka_commit(self) -> None:
        self.pending = []
        self.model_discarded()
        self.crash()
        self.restore(10)

    @rule(size=st.integers(1, 4))
    def crash_between_the_kafka_commit_and_the_store_commit(self, size: int) -> None:
        self.kafka_commit()
        self.crash()
        self.restore(size)

    @rule(size=st.integers(1, 4))
    def crash_after_the_commit(self, size: int) -> None:
        self.commit()
        self.crash()
        self.restore(size)

    @rule(size=st.integers(1, 9))
    def lose_the_disk(self, size: int) -> None:
        assert self.medium is not None
        self.kafka_commit()
        self.store.close()
        self.medium.wipe()
        self.checkpoint = -1
        self.reopen()
        self.restore(size)

    def crash(self) -> None:
        assert self.medium is not None
        self.medium.crash()
        self.store.close()
        self.reopen()

    def restore(self, size: int) -> None:
        if self.mechanism:
            committed = self.store.get_committed_offset(CHANGELOG)
            assert (-1 if committed is None else committed) == self.checkpoint
        missing = [record for record in self.log if record.offset > self.checkpoint]
        for start in range(0, len(missing), size):
            records = missing[start : start + size]
            self.store.restore_batch(records, {CHANGELOG: records[-1].offset})
            self.checkpoint = records[-1].offset
        self.check()

    def teardown(self) -> None:
        if self.medium is not None:
            self.store.close()
            self.medium.remove()


def cases(
    machine: type[LoggedStoreMachine[Any]], *, in_memory: int, on_disk: int
) -> Iterator[tuple[str, type[unittest.TestCase]]]:
    """A test case for each engine and mechanism, with so many examples, by name."""
    for medium, examples, steps in ((Journaled, in_memory, 30), (OnDisk, on_disk, 20)):
        for of in MECHANISMS:
            attributes = {"mechanism": of, "new_medium": medium}
            name = (
                f"{machine.__name__}{medium.__name__}{of.name.title().replace('_', '') if of else 'Direct'}"
            )
            case: type[unittest.TestCase] = type(name, (machine,), attributes).TestCase  # type: ignore[attr-defined]
            case.settings = settings(  # type: ignore[attr-defined]
                max_examples=examples,
                stateful_step_count=steps,
            )
            yield f"Test{name}", case
