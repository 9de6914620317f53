"""The comparison itself: it sees a broken broker, reduces what it found, and reaches every kind of answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from harness.worlds.sim import broker as sim
from harness.worlds.sim import partition
from harness.worlds.sim.group import Group
from harness.worlds.sim.partition import Partition
from store.errors import AbortRequiredError
from store.log.protocol import Fetch
from store.types import IsolationLevel, TopicPartition
from tests.sim.differential import (
    Answer,
    Comparison,
    Op,
    Recording,
    closing,
    compare,
    generate,
    read_recording,
    script,
    shrink,
)
from tests.sim.sequences import FACTS, RECORDING, SEEDS, of_seeds, recorded_sequences

RECORDED = read_recording(RECORDING)


def first_difference() -> Comparison | None:
    """Compare the simulation, as it is now, with what the real broker once answered."""
    for ops, answers in RECORDED:
        comparison = compare(ops, Recording(answers))
        if comparison.differs:
            return comparison
    return None


def test_the_simulation_answers_what_the_real_broker_answered() -> None:
    difference = first_difference()
    assert difference is None, script(difference)


def forget_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "last_stable", lambda log: len(log.records))


def look_at_the_latest_open_transaction_only(patch: pytest.MonkeyPatch) -> None:
    def last_stable(log: Partition) -> int:
        return list(log.open.values())[-1][0] if log.open else len(log.records)

    patch.setattr(Partition, "last_stable", last_stable)


def fence_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sim.SimProducer, "_owned", lambda producer: producer._transaction)


def show_aborted_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition, "_ABORTED", partition._COMMITTED)


def write_no_markers(patch: pytest.MonkeyPatch) -> None:
    mark = Partition.mark

    def without_marker(log: Partition, commit: bool, writer: partition.Writer, now: int) -> None:
        mark(log, commit, writer, now)
        log.records.pop()
        log.writers.pop()
        log.fates.pop()

    patch.setattr(Partition, "mark", without_marker)


def mark_one_partition_only(patch: pytest.MonkeyPatch) -> None:
    prepare = sim.SimBroker._prepare

    def first_partition(broker: sim.SimBroker, txn: sim._Transaction, phase: sim.Phase) -> None:
        for tp in list(txn.partitions)[1:]:
            del txn.partitions[tp]
        prepare(broker, txn, phase)

    patch.setattr(sim.SimBroker, "_prepare", first_partition)


def commit_what_the_predecessor_left(patch: pytest.MonkeyPatch) -> None:
    init = sim.SimBroker._init

    def committing(broker: sim.SimBroker, transactional_id: str, timeout_ms: int) -> sim._Transaction:
        txn = broker._transactions.get(transactional_id)
        if txn is not None and txn.phase is sim.Phase.ONGOING:
            broker._prepare(txn, sim.Phase.PREPARE_COMMIT)
        return init(broker, transactional_id, timeout_ms)

    patch.setattr(sim.SimBroker, "_init", committing)


def leave_what_the_predecessor_left(patch: pytest.MonkeyPatch) -> None:
    init = sim.SimBroker._init

    def leaving(broker: sim.SimBroker, transactional_id: str, timeout_ms: int) -> sim._Transaction:
        txn = broker._transactions.get(transactional_id)
        if txn is None or txn.phase is not sim.Phase.ONGOING:
            return init(broker, transactional_id, timeout_ms)
        txn.epoch += 1
        return txn

    patch.setattr(sim.SimBroker, "_init", leaving)


def commit_offsets_when_they_are_sent(patch: pytest.MonkeyPatch) -> None:
    hold = sim.SimBroker._hold_offsets

    def at_once(
        broker: sim.SimBroker,
        group: Group,
        producer_id: int,
        offsets: Mapping[TopicPartition, int],
        metadata: str = "",
    ) -> None:
        hold(broker, group, producer_id, offsets, metadata)
        broker._settle_offsets(group, producer_id, True)
        group.pending[producer_id] = {}

    patch.setattr(sim.SimBroker, "_hold_offsets", at_once)


def commit_the_offsets_of_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    settle = sim.SimBroker._settle_offsets

    def always(broker: sim.SimBroker, group: Group, producer_id: int, _commit: bool) -> None:
        settle(broker, group, producer_id, True)

    patch.setattr(sim.SimBroker, "_settle_offsets", always)


def let_the_offset_committed_last_win(patch: pytest.MonkeyPatch) -> None:
    settle = sim.SimBroker._settle_offsets

    def sent_now(broker: sim.SimBroker, group: Group, producer_id: int, commit: bool) -> None:
        broker._hold_offsets(
            group, producer_id, {tp: at for tp, (_, at) in group.pending[producer_id].items()}
        )
        settle(broker, group, producer_id, commit)

    patch.setattr(sim.SimBroker, "_settle_offsets", sent_now)


def show_the_old_position_while_one_is_pending(patch: pytest.MonkeyPatch) -> None:
    def committed(reader: sim.SimReader, group_id: str, tp: TopicPartition, **_: bool) -> int | None:
        return reader._broker.committed_offsets(group_id).get(tp)

    patch.setattr(sim.SimReader, "committed", committed)


def let_a_timed_out_producer_go_on(patch: pytest.MonkeyPatch) -> None:
    def advance(broker: sim.SimBroker, ms: int) -> None:
        broker.now += ms
        for txn in broker._transactions.values():
            if txn.phase is sim.Phase.ONGOING and broker.now - txn.began_ms >= txn.timeout_ms:
                broker._prepare(txn, sim.Phase.PREPARE_ABORT)

    patch.setattr(sim.SimBroker, "advance", advance)


def never_time_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sim.SimBroker, "advance", lambda _broker, _ms: None)


def stop_before_the_markers(patch: pytest.MonkeyPatch) -> None:
    read = Partition.read

    def short(log: Partition, offset: int, max_records: int | None, isolation: IsolationLevel) -> Fetch:
        fetch = read(log, offset, max_records, isolation)
        return fetch._replace(next_offset=fetch.records[-1].offset + 1) if fetch.records else fetch

    patch.setattr(Partition, "read", short)


def lose_what_was_not_flushed(patch: pytest.MonkeyPatch) -> None:
    commit = sim.SimProducer.commit_transaction

    def hasty(producer: sim.SimProducer) -> None:
        producer._queue.clear()
        commit(producer)

    patch.setattr(sim.SimProducer, "commit_transaction", hasty)


def put_every_key_into_one_partition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sim, "partition_for", lambda _key, _partitions: 0)


def let_a_missing_record_pass(patch: pytest.MonkeyPatch) -> None:
    abort = sim.SimProducer.abort_transaction

    def forgiving(producer: sim.SimProducer) -> None:
        producer._gaps.clear()
        abort(producer)

    patch.setattr(sim.SimProducer, "abort_transaction", forgiving)


def commit_without_the_refused_records(patch: pytest.MonkeyPatch) -> None:
    deliver = sim.SimProducer.deliver

    def careless(producer: sim.SimProducer) -> None:
        deliver(producer)
        if isinstance(producer._error, AbortRequiredError):
            producer._error = None

    patch.setattr(sim.SimProducer, "deliver", careless)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    forget_the_last_stable_offset,
    look_at_the_latest_open_transaction_only,
    fence_nobody,
    show_aborted_records,
    write_no_markers,
    mark_one_partition_only,
    commit_what_the_predecessor_left,
    leave_what_the_predecessor_left,
    commit_offsets_when_they_are_sent,
    commit_the_offsets_of_aborted_transactions,
    let_the_offset_committed_last_win,
    show_the_old_position_while_one_is_pending,
    let_a_timed_out_producer_go_on,
    never_time_out,
    stop_before_the_markers,
    lose_what_was_not_flushed,
    put_every_key_into_one_partition,
    let_a_missing_record_pass,
    commit_without_the_refused_records,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_broker_differs_from_the_recorded_answers(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert first_difference() is not None


class Listening:
    """Agrees with the simulation and keeps what it answered."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def answer(self, _step: int, _op: Op, expected: Answer, _ends: Sequence[int], _once: bool, /) -> Answer:
        self.answers.append(expected)
        return expected


def healthy(ops: Sequence[Op]) -> Recording:
    """What the simulation as it is now answers, to be compared with another one."""
    listening = Listening()
    compare(ops, listening)
    return Recording(listening.answers)


def test_the_recording_holds_the_facts_and_the_first_seeds() -> None:
    assert [ops for ops, _ in RECORDED] == recorded_sequences()


@pytest.mark.parametrize("linger", [1, 2, 3])
def test_records_sent_early_change_no_answer(linger: int) -> None:
    for ops in [*FACTS.values(), *of_seeds(SEEDS)]:
        comparison = compare(ops, healthy(ops), sim.SimBroker(linger_records=linger))
        assert not comparison.differs, script(comparison)


def test_markers_that_come_late_change_no_answer_once_they_are_written() -> None:
    class Settling(Recording):
        def answer(self, step: int, *rest: Any) -> Answer:
            broker.settle()
            return super().answer(step, *rest)

    for ops in [*FACTS.values(), *of_seeds(SEEDS)]:
        broker = sim.SimBroker(hold_markers=True)
        comparison = compare(ops, Settling(healthy(ops).answers), broker)
        assert not comparison.differs, script(comparison)


def test_a_difference_is_reduced_to_the_steps_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    ops: list[Op] = [
        ("append", 1, 2),
        ("open", 0, 0),
        ("open", 1, 1),
        ("begin", 0),
        ("begin", 1),
        ("produce_flush", 1, 0, 1),
        ("send_offsets", 0, 1, 3),
        ("read", 1, 0, 10, 0),
        ("abort", 0),
        ("commit", 1),
    ]

    def differs(fewer: Sequence[Op]) -> bool:
        right = healthy(fewer)
        with monkeypatch.context() as patch:
            commit_the_offsets_of_aborted_transactions(patch)
            return compare(fewer, right).differs

    assert differs(ops)
    assert shrink(ops, differs) == [("open", 0, 0), ("begin", 0), ("send_offsets", 0, 1, 3)]


def test_a_difference_is_printed_with_both_answers() -> None:
    ops: list[Op] = [("append", 0, 1)]
    right = healthy(ops)
    comparison = compare(ops, Recording([right.answers[0], ("ok", 0, 7)]))
    assert script(comparison) == (
        "  0  append(0, 1)                                ok\n"
        "  1  scan(0, 10000, 0)\n"
        "       simulated: ok (((0, b'k', b'0.0'),), 1)\n"
        "       real:      ok 0 7"
    )


def test_a_comparison_ends_at_the_first_difference() -> None:
    ops: list[Op] = [("append", 0, 1), ("append", 1, 1)]
    comparison = compare(ops, Recording([("error", "LogError")]))
    assert (comparison.ops, comparison.differs) == (ops[:1], True)


def test_every_sequence_is_closed_by_new_incarnations_of_its_ids() -> None:
    assert closing([("open", 2, 1), ("expire", 0, 0, 0, 1, 1)])[:2] == [("open", 3, 0), ("open", 3, 1)]


def test_generation_depends_on_the_seed_alone() -> None:
    assert [generate(Random(seed)) for seed in range(50)] == [generate(Random(seed)) for seed in range(50)]


def test_the_seeds_of_the_comparison_reach_every_kind_of_step_and_answer() -> None:
    reached: set[tuple[object, object, object]] = set()
    for ops in of_seeds(SEEDS):
        for op, answer in zip(ops, healthy(ops).answers, strict=False):
            reached.add((op[0], answer[0], answer[1] if answer[0] == "error" else None))
    assert {op for op, kind, _ in reached if kind == "ok"} == {
        *("open", "begin", "produce", "produce_flush", "produce_commit", "produce_keyed", "flush"),
        *("send_offsets", "commit", "abort", "close", "drop", "expire"),
        *("append", "commit_offsets", "read", "scan", "offsets", "committed"),
    }
    fenced = {op for op, _, error in reached if error == "FencedError"}
    assert fenced >= {"begin", "produce_flush", "produce_commit", "send_offsets", "commit", "abort", "flush"}
    assert {op for op, _, error in reached if error == "RecordRefusedError"} >= {"produce_large", "commit"}
    assert ("committed", "error", "RetriableError") in reached
