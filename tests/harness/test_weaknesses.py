"""Bugs that a checker can be blind to: each is put in, and has to be found within some schedules."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
from harness.worlds.incarnation import FaultyProducer

from harness.campaign import Plan, reduce, run_simulation, schedule_at
from harness.history import Ended, History, Reached, Seen, Skipped, Started, Struck
from harness.oracles import ORACLES, judge
from harness.oracles.evidence import Evidence
from harness.oracles.output import is_interleaving
from harness.replay import simulate, simulate_within, watchdog
from harness.schedule import Input, Operation, Runtime, Schedule, Step
from harness.verdict import Finding, Outcome, Verdict
from harness.worlds.sim.broker import SimBroker, SimProducer
from harness.worlds.sim.disk import File
from harness.worlds.sim.world import run
from scenarios import Scenario, load_all
from store.engine import Family, Write
from store.engine.memory import MemoryEngine
from store.engine.protocol import NO_DATA, KeyRange
from store.errors import AbortRequiredError, CrashproofError, FatalLogError, FencedError, RetriableError
from store.log.partitioner import partition_for
from store.points import Point, reach
from store.state.keyvalue import KeyValueStore
from store.streams.task import Task
from store.streams.topology import Context, Topology
from store.streams.worker import Worker
from store.transaction.indexed_batch import IndexedBatchTransaction
from store.types import IsolationLevel, Record, TopicPartition

BALANCES = load_all()["balances"]
RECORDS = tuple(Input(0, "ann", 1) for _ in range(4))
COMMIT_FAULTS = (Operation.REFUSE, Operation.LOSE_REPLY, Operation.LOSE_REQUEST)


def first_violated(schedules: int, scenario: Scenario = BALANCES) -> int | None:
    """The index of the first violated schedule of the campaign, the tours included; None if all hold."""
    for index in range(-len(Runtime), schedules):
        schedule = schedule_at(scenario, 0, index)
        if judge(scenario, schedule, run(scenario, schedule)).outcome is Outcome.VIOLATED:
            return index
    return None


def steps_of(history: History, kind: type[Struck] | type[Skipped]) -> list[int]:
    return [event.step for event in history.events if isinstance(event, kind)]


# -- writes that are not atomic -------------------------------------------------------------------------------


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
    schedule = Schedule("balances", RECORDS, (Step(Operation.CRASH_WRITE, wait=1),), commit_records=2)
    history, verdict = simulate(schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    assert steps_of(history, Struck) == [0]
    struck = next(index for index, event in enumerate(history.events) if isinstance(event, Struck))
    opened = next(event for event in history.events[struck:] if isinstance(event, Seen))
    assert (opened.when, opened.state, opened.positions) == (
        "opened",
        {"accounts": {"ann": 2}},
        {"accounts": 1},
    )


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
        assert first_violated(300) is None
    assert left == {"all", "nothing", "a part"}


# -- faults of commits ----------------------------------------------------------------------------------------


def test_a_worker_that_never_aborts_is_found() -> None:
    with patch.object(Task, "abort", lambda _task: None):
        assert first_violated(200) is not None


class RefusesOnce:
    def __init__(self) -> None:
        self.faults = [str(Operation.REFUSE)]

    def commit_fault(self) -> str | None:
        return self.faults.pop() if self.faults else None

    def turned(self) -> None: ...

    def idle(self) -> bool:
        return False


def test_after_a_refused_commit_a_producer_takes_nothing_but_an_abort() -> None:
    broker = SimBroker()
    broker.create_topic("out", 1)
    producer = FaultyProducer(SimProducer(broker, "id", 60_000), RefusesOnce())
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("out", b"a", b"1")
    calls: list[Callable[[], object]] = [
        producer.commit_transaction,
        lambda: producer.commit_transaction(),
        lambda: producer.produce("out", b"a", b"2"),
        lambda: producer.flush(),
        lambda: producer.send_offsets("group", {}),
        lambda: producer.begin_transaction(),
    ]
    for call in calls:
        with pytest.raises(AbortRequiredError):
            call()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.produce("out", b"a", b"3")
    producer.commit_transaction()
    visible = broker.visible(TopicPartition("out", 0), IsolationLevel.READ_COMMITTED)
    assert [record.value for record in visible] == [b"3"]


@pytest.mark.parametrize("fault", COMMIT_FAULTS)
def test_a_fault_of_a_commit_counts_when_it_is_met(fault: Operation) -> None:
    history, _ = simulate(Schedule("balances", RECORDS, (Step(fault),), commit_records=4))
    events = history.events
    struck = next(index for index, event in enumerate(events) if isinstance(event, Struck))
    before = events[struck - 1]
    assert isinstance(before, Reached)
    assert before.point is Point.OFFSETS_SENT


@pytest.mark.parametrize("fault", [*COMMIT_FAULTS, Operation.CRASH_WRITE])
def test_a_fault_that_is_never_met_is_skipped_with_the_reason(fault: Operation) -> None:
    schedule = Schedule("balances", RECORDS, (Step(fault, task=1),), partitions=2)
    history = run(BALANCES, schedule)
    assert steps_of(history, Struck) == []
    (skipped,) = (event for event in history.events if isinstance(event, Skipped))
    assert "came that could meet it" in skipped.reason


def test_a_fault_replaced_before_it_was_met_is_skipped() -> None:
    steps = (Step(Operation.REFUSE), Step(Operation.LOSE_REPLY))
    history, _ = simulate(Schedule("balances", RECORDS, steps))
    assert (steps_of(history, Skipped), steps_of(history, Struck)) == ([0], [1])


@pytest.mark.parametrize("error", [RetriableError, FatalLogError, AbortRequiredError, FencedError])
def test_a_commit_that_fails_without_a_cause_is_found(error: type[CrashproofError]) -> None:
    real = Task.commit
    commits = 0

    def commit(self: Task) -> None:
        nonlocal commits
        commits += self.uncommitted_records > 0
        if self.uncommitted_records and commits % 3 == 0:
            raise error("out of nothing")
        real(self)

    for runtime in Runtime:
        commits = 0
        schedule = Schedule("balances", RECORDS, (), runtime, commit_records=1, batch_records=1)
        with patch.object(Task, "commit", commit):
            _, verdict = simulate(schedule)
        assert verdict.outcome is Outcome.VIOLATED, (runtime, verdict)
        assert verdict.findings[0].oracle == "errors"


def judged(*events: Started | Struck | Reached | Ended) -> Verdict:
    return judge(BALANCES, Schedule("balances"), History("hand", list(events)))


def test_a_timeout_excuses_only_those_that_were_alive() -> None:
    timeout = Struck(0, "expire", 0, -1, None)
    ready, fenced = Reached(0, 0, Point.PRODUCER_READY), Ended(0, 0, "fenced", "why")
    assert judged(Started(0, 0, 0), ready, timeout, fenced).outcome is Outcome.INCONCLUSIVE
    assert judged(timeout, Started(0, 0, 0), ready, fenced).outcome is Outcome.VIOLATED


# -- state outside of stores ----------------------------------------------------------------------------------

TOTALS: dict[bytes, dict[int, int]] = {}
SEEN: list[tuple[bytes, int, int]] = []
QUEUE: deque[tuple[bytes, int, int]] = deque()
COUNT = 0


def _write(context: Context, record: Record, amounts: Iterable[int]) -> None:
    """What balances does, from a memory that replays and aborts do not disturb."""
    assert record.key is not None
    context.store("accounts").put(record.key, b"%d" % sum(amounts))
    context.forward("app-output", record.key, b"%d" % sum(amounts))


class InTheObject:
    def __init__(self) -> None:
        self.amounts: dict[bytes, dict[int, int]] = {}

    def __call__(self, context: Context, record: Record) -> None:
        amounts = self.amounts.setdefault(record.key or b"", {})
        amounts[record.offset] = int(record.value or 0)
        _write(context, record, [amounts[offset] for offset in amounts if offset <= record.offset])


KEPT = InTheObject()


def in_a_dict(context: Context, record: Record) -> None:
    amounts = TOTALS.setdefault(record.key or b"", {})
    amounts[record.offset] = int(record.value or 0)
    _write(context, record, [amounts[offset] for offset in amounts if offset <= record.offset])


def in_a_list(context: Context, record: Record) -> None:
    SEEN.append((record.key or b"", record.offset, int(record.value or 0)))
    known = {offset: amount for key, offset, amount in SEEN if key == record.key and offset <= record.offset}
    _write(context, record, list(known.values()))


def in_a_queue(context: Context, record: Record) -> None:
    QUEUE.append((record.key or b"", record.offset, int(record.value or 0)))
    known = {offset: amount for key, offset, amount in QUEUE if key == record.key and offset <= record.offset}
    _write(context, record, list(known.values()))


def in_a_number(context: Context, record: Record) -> None:
    """Right without faults: every key and every amount is the same in this test."""
    global COUNT
    COUNT = max(COUNT + 1, 1)
    _write(context, record, [COUNT])


def with_process(make: Callable[[], Callable[[Context, Record], None]]) -> Scenario:
    def topology(application: str) -> Topology:
        return replace(BALANCES.topology(application), process=make())

    return replace(BALANCES, topology=topology)


KEEPERS: dict[str, Callable[[], Callable[[Context, Record], None]]] = {
    "dict": lambda: in_a_dict,
    "list": lambda: in_a_list,
    "deque": lambda: in_a_queue,
    "number": lambda: in_a_number,
    "new object": InTheObject,
    "object of the module": lambda: KEPT,
}


@pytest.mark.parametrize("runtime", Runtime)
@pytest.mark.parametrize("keeper", KEEPERS)
def test_state_that_is_only_in_the_memory_of_the_process_is_found(keeper: str, runtime: Runtime) -> None:
    scenario = with_process(KEEPERS[keeper])
    steps = (Step(Operation.KILL, at=Point.STORE_COMMITTED),)
    for faults, outcome in (((), Outcome.HOLDS), (steps, Outcome.VIOLATED)):
        schedule = Schedule("balances", RECORDS, faults, runtime, commit_records=2, batch_records=20)
        assert judge(scenario, schedule, run(scenario, schedule)).outcome is outcome


def test_the_memory_of_one_process_is_not_seen_by_another() -> None:
    """A right pipeline with a cache in its module: each task fills it for itself."""
    scenario = with_process(lambda: in_a_dict)
    items = tuple(Input(partition, "ann", 1) for _ in range(4) for partition in (0, 1))
    schedule = Schedule("balances", items, partitions=2, commit_records=1)
    history = run(scenario, schedule)
    last = [event.state for event in history.events if isinstance(event, Seen) and event.when == "final"]
    assert last == [{"accounts": {"ann": 4}}] * 2
    assert not TOTALS


# -- order and place of outputs -------------------------------------------------------------------------------


@contextmanager
def outputs_sorted_by_key() -> Iterator[None]:
    """Outputs leave in key order at every commit, those of one key in the order of the input."""
    real = FaultyProducer.__init__

    def init(self: FaultyProducer, *args: object) -> None:
        real(self, *args)  # type: ignore[arg-type]
        queue: list[tuple[tuple[str, bytes, bytes | None], dict[str, object]]] = []
        produce, flush, abort = self.produce, self.flush, self.abort_transaction

        def keep(topic: str, key: bytes, value: bytes | None, **rest: object) -> None:
            if topic.endswith("-output"):
                queue.append(((topic, key, value), rest))
            else:
                produce(topic, key, value, **rest)  # type: ignore[arg-type]

        def send() -> Mapping[TopicPartition, int]:
            for arguments, rest in sorted(queue, key=lambda item: item[0][1]):
                produce(*arguments, **rest)  # type: ignore[arg-type]
            queue.clear()
            return flush()

        def drop() -> None:
            queue.clear()
            abort()

        self.produce, self.flush, self.abort_transaction = keep, send, drop  # type: ignore[assignment]

    with patch.object(FaultyProducer, "__init__", init):
        yield


def test_outputs_of_a_partition_in_another_order_are_found_although_each_key_is_in_order() -> None:
    items = (Input(0, "bob", 1), Input(0, "ann", 1), Input(0, "bob", 1))
    with outputs_sorted_by_key():
        _, verdict = simulate(Schedule("balances", items))
    (finding,) = verdict.findings
    assert finding.oracle == "output"
    assert "Partition 0 of topic output" in finding.sentence
    assert "the same records in another order" in finding.sentence


def test_outputs_in_another_partition_than_that_of_their_key_are_found() -> None:
    real = SimProducer.produce

    def produce(
        self: SimProducer, topic: str, key: bytes | None, value: bytes | None, **rest: object
    ) -> None:
        if topic.endswith("-output"):
            rest["partition"] = 1 - partition_for(key or b"", 2)
        real(self, topic, key, value, **rest)  # type: ignore[arg-type]

    with patch.object(SimProducer, "produce", produce):
        _, verdict = simulate(Schedule("balances", RECORDS, partitions=2))
    assert verdict.outcome is Outcome.VIOLATED
    assert {finding.oracle for finding in verdict.findings} == {"output"}


def test_a_commit_hidden_behind_the_open_transaction_of_another_task_is_not_called_lost() -> None:
    items = (Input(0, "ann", 1), Input(1, "ann", 2), Input(1, "ann", 2))
    # Task 1 is started again after task 0 and runs before it, so it commits while that transaction is open.
    steps = (Step(Operation.KILL, 0, Point.FLUSHED), Step(Operation.KILL, 1))
    _, verdict = simulate(Schedule("balances", items, steps, partitions=2, commit_records=1))
    assert verdict.outcome is Outcome.HOLDS, verdict


# -- the checker itself ---------------------------------------------------------------------------------------


@contextmanager
def looping_forever() -> Iterator[None]:
    def loop(_task: Task) -> None:
        while True:
            pass

    with patch.object(Task, "commit", loop):
        yield


def test_production_code_that_loops_between_two_points_is_a_violation() -> None:
    with looping_forever():
        history, verdict = simulate_within(0.2, Schedule("balances", RECORDS))
    assert verdict.outcome is Outcome.VIOLATED
    assert (verdict.findings[0].oracle, history.events) == ("errors", [])
    assert "did not end" in verdict.findings[0].sentence
    assert simulate(Schedule("balances", RECORDS))[1].outcome is Outcome.HOLDS


def test_a_campaign_ends_although_a_run_does_not_and_leaves_its_schedule_as_it_is() -> None:
    plan = Plan(("balances",), seed=0, schedules=1, seconds=None, mutant=None)
    with looping_forever(), patch("harness.campaign.WATCHDOG_SECONDS", 0.2):
        (found,) = run_simulation(plan, 1, lambda *_: None).found
        reduced = reduce(found, None)
    assert reduced.minimal == found.schedule
    assert "did not end" in reduced.verdict.findings[0].sentence


def test_a_timer_that_ran_before_goes_on_after_the_watchdog() -> None:
    previous = signal.setitimer(signal.ITIMER_REAL, 1_000)
    try:
        with watchdog(500):
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 500
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 500
    finally:
        signal.setitimer(signal.ITIMER_REAL, *previous)


def test_a_worker_that_turns_without_reaching_a_point_is_a_violation() -> None:
    with patch.object(Worker, "poll", lambda _worker: True):
        _, verdict = simulate(Schedule("balances", RECORDS))
    assert verdict.outcome is Outcome.VIOLATED
    assert "did not come to rest" in verdict.findings[0].sentence


def test_a_long_schedule_may_pass_as_many_points_as_it_needs() -> None:
    items = tuple(Input(0, f"key {number % 7}", 1) for number in range(3_500))
    history, verdict = simulate(Schedule("balances", items, commit_records=1))
    assert verdict.outcome is Outcome.HOLDS
    assert sum(isinstance(event, Reached) for event in history.events) > 20_000


def test_an_oracle_that_fails_makes_a_run_inconclusive_and_not_right() -> None:
    def fail(_evidence: Evidence) -> Iterator[Finding]:
        raise KeyError("oops")

    with patch.dict(ORACLES, {"progress": fail}):
        _, verdict = simulate(Schedule("balances", RECORDS))
    assert (verdict.outcome, verdict.reason) == (
        Outcome.INCONCLUSIVE,
        "the oracle progress failed: KeyError: 'oops'",
    )


def test_an_oracle_that_fails_does_not_hide_what_another_one_found() -> None:
    def fail(_evidence: Evidence) -> Iterator[Finding]:
        raise KeyError("oops")

    with patch.dict(ORACLES, {"progress": fail}), patch.object(KeyValueStore, "delete", lambda *_: None):
        _, verdict = simulate(Schedule("balances", (Input(0, "ann", 1), Input(0, "ann", None))))
    assert verdict.outcome is Outcome.VIOLATED


def test_a_task_that_never_fenced_its_predecessor_is_judged_by_the_other_oracles() -> None:
    def reach_others(point: Point) -> None:
        if point is not Point.PRODUCER_READY:
            reach(point)

    with patch("store.streams.task.reach", reach_others):
        _, verdict = simulate(
            Schedule("balances", RECORDS, (Step(Operation.KILL, at=Point.STORE_COMMITTED),))
        )
    assert "oracle" not in verdict.reason


def test_interleavings_of_long_outputs_are_judged() -> None:
    assert is_interleaving([[1] * 600, [1] * 600], [1] * 1_200)
    assert not is_interleaving([list(range(3_000)), [1, 0]], [*range(3_000), 0, 1])
