"""Writes that are not atomic are found, and a crash of the simulated disk leaves what a real one would leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest

from harness.history import Injected, Moment, StateObserved
from harness.replay import simulate
from harness.schedule import Input, Schedule, Step
from harness.verdict import Outcome
from harness.worlds.sim.disk import File
from store.engine import Family, Write
from store.engine.memory import MemoryEngine
from store.engine.protocol import NO_DATA, KeyRange
from store.state.keyvalue import KeyValueStore
from store.transaction.indexed_batch import IndexedBatchTransaction
from store.types import Record, TopicPartition
from tests.harness.pipelines import BALANCES, first_violated

RECORDS = tuple(Input(0, "ann", 1) for _ in range(4))


class Splitting:
    """An engine whose writes arrive in two parts."""

    def __init__(self, engine: MemoryEngine, first: Family) -> None:
        self._engine = engine
        self._first = first

    def write(
        self,
        writes: Iterable[Write],
        *,
        data: Mapping[bytes, bytes | None] = NO_DATA,
        drop: Sequence[KeyRange] = (),
        sync: bool = False,
    ) -> None:
        batch: list[Write] = [(Family.DATA, key, value) for key, value in data.items()]
        batch += writes
        for part in (
            [write for write in batch if write[0] is self._first],
            [write for write in batch if write[0] is not self._first],
        ):
            self._engine.write(part, drop=drop, sync=sync)


def split_commit(first: Family) -> AbstractContextManager[object]:
    real = IndexedBatchTransaction.commit

    def commit(
        self: IndexedBatchTransaction,
        meta: Iterable[Write] = (),
        *,
        drop: Sequence[KeyRange] = (),
        sync: bool = False,
    ) -> None:
        engine = self._engine
        self._engine = Splitting(engine, first)  # type: ignore[assignment,arg-type]
        try:
            real(self, meta, drop=drop, sync=sync)
        finally:
            self._engine = engine

    return patch.object(IndexedBatchTransaction, "commit", commit)


def split_restore(first: Family) -> AbstractContextManager[object]:
    real = KeyValueStore.restore_batch

    def restore_batch(
        self: KeyValueStore, records: Sequence[Record], offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        engine = self._engine
        self._engine = Splitting(engine, first)  # type: ignore[assignment,arg-type]
        try:
            real(self, records, offsets)
        finally:
            self._engine = engine

    return patch.object(KeyValueStore, "restore_batch", restore_batch)


@pytest.mark.parametrize("split", [split_commit, split_restore])
@pytest.mark.parametrize("first", Family)
def test_data_and_offset_written_one_after_the_other_are_found(
    split: Callable[[Family], AbstractContextManager[object]], first: Family
) -> None:
    with split(first):
        assert first_violated(500) is not None


def test_a_crash_within_a_write_leaves_the_write_and_holds() -> None:
    schedule = Schedule(
        "balances", RECORDS, (Step("kill_after_write", wait=1),), settings={"commit.records": 2}
    )
    history, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    (struck,) = (index for index, event in enumerate(history.events) if isinstance(event, Injected))
    opened = next(event for event in history.events[struck:] if isinstance(event, StateObserved))
    assert opened.moment is Moment.OPENED
    image = opened.stores["accounts"]
    assert (image.rows, image.positions) == ({"ann": 2}, {"input": 1})


def test_a_power_cut_leaves_nothing_a_part_or_all_of_what_was_not_synced() -> None:
    left = set()
    for chance in range(6):
        file = File()
        for number in range(3):
            file.append([(Family.DATA, b"%d" % number, b"")])
            if number == 0:
                file.sync()
        file.lose_power(chance)
        left.add(tuple(key for _, key, _ in file.load()))
    assert left == {(b"0",), (b"0", b"1"), (b"0", b"1", b"2")}


def test_power_cuts_of_a_campaign_leave_nothing_a_part_and_all() -> None:
    real = File.lose_power
    left = set()

    def lose_power(file: File, chance: int) -> None:
        before = len(list(file.load()))
        real(file, chance)
        after = len(list(file.load()))
        if before:
            left.add("all" if after == before else "nothing" if not after else "a part")

    with patch.object(File, "lose_power", lose_power):
        assert first_violated(600) is None
    assert left == {"all", "nothing", "a part"}
