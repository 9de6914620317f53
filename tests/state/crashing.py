"""Models of logged stores: places that crash or are lost, and the changelog that the store is restored from."""

from __future__ import annotations

import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from store.state.protocol import StoreContext
from store.state.store import EngineStore
from store.transaction.protocol import Mechanism
from store.types import Record, TopicPartition
from tests.engine.engines import Place, place_for
from tests.state.opening import MECHANISMS, context_over

CHANGELOG = TopicPartition("changelog", 0)

S = TypeVar("S", bound=EngineStore)


class LoggedStoreMachine(RuleBasedStateMachine, Generic[S]):
    """A logged store under commits, aborts, crashes and restores. The subclass writes, keeps a model, and compares.

    Without transactions the log is that of a plain producer: what was sent is there, and a store that comes back
    is given again what it had taken since the last commit.
    """

    mechanism: Mechanism | None
    kind: str

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.lives = 0
        self.place: Place | None = None
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
        self.place = self.new_place()
        self.reopen()

    def new_place(self) -> Place:
        """One where nothing is."""
        self.lives += 1
        root = Path(self.directory.name, str(self.lives))
        root.mkdir()
        return place_for(self.kind, root)

    def reopen(self) -> None:
        assert self.place is not None
        self.store: S = self.open_store(
            context_over(
                self.place.open,
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
        assert self.place is not None
        self.kafka_commit()
        self.store.close()
        self.place = self.new_place()
        self.checkpoint = -1
        self.reopen()
        self.restore(size)

    def crash(self) -> None:
        assert self.place is not None
        self.place = self.place.after_kill()
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
        if self.place is not None:
            self.store.close()
        self.directory.cleanup()


def cases(
    machine: type[LoggedStoreMachine[Any]], *, in_memory: int, on_disk: int
) -> Iterator[tuple[str, type[unittest.TestCase]]]:
    """A test case for each engine and mechanism, with so many examples, by name."""
    for kind, examples, steps in (("memory", in_memory, 30), ("rocksdb", on_disk, 20)):
        for of in MECHANISMS:
            attributes = {"mechanism": of, "kind": kind}
            name = f"{machine.__name__}{kind.title()}{of.name.title().replace('_', '') if of else 'Direct'}"
            case: type[unittest.TestCase] = type(name, (machine,), attributes).TestCase  # type: ignore[attr-defined]
            case.settings = settings(  # type: ignore[attr-defined]
                max_examples=examples,
                stateful_step_count=steps,
            )
            yield f"Test{name}", case
