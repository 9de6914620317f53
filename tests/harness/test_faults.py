"""Faults: each happens as its description says, counts when it happened, and is made up for by the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from harness.faults import FAULTS, Capability, Fault, Occasion, Where, possible
from harness.generate import generate
from harness.generate.vocabulary import parts_of, topics_of
from harness.history import History, Injected, Reached, Skipped
from harness.replay import simulate
from harness.schedule import Edge, Input, Runtime, Schedule, Step
from harness.verdict import Outcome
from harness.worlds import WORLDS
from harness.worlds.director import FaultNotMadeError
from harness.worlds.process import Watch, WatchedLog
from harness.worlds.sim.broker import SimBroker, SimLog
from scenarios import load_all
from store.errors import AbortRequiredError, CrashproofError, FatalLogError, FencedError, RetriableError
from store.points import Point
from store.streams.steps import Steps
from store.streams.task import Task
from store.types import IsolationLevel, TopicPartition
from tests.harness.pipelines import BALANCES, first_violated

RECORDS = tuple(Input(0, "ann", 1) for _ in range(4))
COMMIT_FAULTS = ("abort_commit", "lose_reply", "lose_request")


def steps_of(history: History, kind: type[Injected] | type[Skipped]) -> list[int]:
    return [event.step for event in history.events if isinstance(event, kind)]


# -- the registry ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_a_description_is_whole(fault: Fault) -> None:
    assert fault.sentence[0].isupper()
    assert fault.sentence.endswith(".")
    assert fault.needs <= set(Capability)
    assert (fault.apply is None) != (fault.around is None)
    assert fault.after in ("", *FAULTS)
    assert fault.runtimes


@pytest.mark.parametrize(
    "half",
    [
        {"where": Where.POINT},
        {"where": Where.NOW, "apply": print, "occasions": (Occasion.WRITE,)},
        {"where": Where.OCCASION, "around": print},
        {"where": Where.OCCASION, "occasions": (Occasion.WRITE,)},
        {"where": Where.OCCASION, "occasions": (Occasion.FLUSH,), "apply": print},
    ],
)
def test_a_fault_that_could_not_strike_is_refused_when_it_is_described(half: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the fault half"):
        Fault("half", "Nothing happens.", **half)


def strikes(fault: Fault) -> list[Step]:
    """The ways in which a fault can strike: one for each occasion, or at a point that every run passes."""
    settings = {"statestore.cache.max.bytes": 300} if fault.changes_settings else {}
    if fault.where is Where.OCCASION:
        return [Step(fault.name, call=each if len(fault.occasions) > 1 else None) for each in fault.occasions]
    at = Point.RECORD_PROCESSED if fault.where is Where.POINT else None
    # There has to be a position that was committed.
    return [Step(fault.name, at=at, wait=6 if fault.of_several else 1, settings=settings)]


def in_turn(steps: list[Step], number: int) -> Step:
    return steps[number % len(steps)]


@pytest.mark.parametrize(
    ("fault", "runtime"),
    [
        (fault, runtime)
        for fault in possible(WORLDS["sim"].capabilities).values()
        for runtime in fault.runtimes
    ],
    ids=lambda each: each.name if isinstance(each, Fault) else each,
)
def test_every_fault_that_can_be_simulated_happens_wherever_it_may_and_the_pipeline_makes_up_for_it(
    fault: Fault, runtime: str
) -> None:
    """In every scenario of the package, whatever its stores, on one of its occasions each, by turns. Where there are
    files, which take ten times as long, each scenario is struck in one runtime, by turns too."""
    happened = 0
    before = (Step(fault.after, at=Point.RECORD_PROCESSED),) if fault.after else ()
    files = Capability.FILES in fault.needs
    for number, scenario in enumerate(load_all().values()):
        runtimes = [each for each in fault.runtimes if each in scenario.runtimes]
        if runtime not in runtimes or (files and runtime != runtimes[number % len(runtimes)]):
            continue
        step = in_turn(strikes(fault), number)
        if fault.on_topics:
            topics = topics_of(parts_of(scenario), fault)
            if not topics:
                continue
            step = msgspec.structs.replace(step, topic=topics[0])
        if fault.punctuates:
            ticking = parts_of(scenario).ticking
            if not ticking:
                continue
            step = msgspec.structs.replace(step, task=f"{ticking[0]}_0")
        # The input of a campaign, all in the task that is struck.
        items = tuple(
            msgspec.structs.replace(item, partition=0)
            for index in range(2)
            for item in generate(scenario, 1, index).input
        )
        copied = {"num.standby.replicas": 1} if Occasion.COPY in fault.occasions else {}
        settings = {"statestore.sync": "commit", **copied, **scenario.settings}
        shared = Capability.SHARED in fault.needs
        schedule = Schedule(
            scenario.name,
            items,
            (*before, step),
            Runtime(runtime),
            partitions=scenario.least_partitions,
            settings=settings,
            shared=shared,
            files=files,
        )
        history, verdict = simulate(scenario, schedule)
        assert verdict.outcome is Outcome.HOLDS, (step, verdict)
        happened += fault.name in {event.fault for event in history.events if isinstance(event, Injected)}
    assert happened > 0, f"{fault.name} never struck; if another fault has to come first, say `after`"


# -- commits that go wrong ------------------------------------------------------------------------------------


def test_a_worker_that_never_aborts_is_found() -> None:
    with patch.object(Task, "abort", lambda _task: None):
        assert first_violated(200) is not None


class RefusesOnce:
    """Lets the first commit be refused, and nothing else happen."""

    def __init__(self) -> None:
        self._faults = [FAULTS["abort_commit"]]

    def meet(self, occasion: Occasion) -> Fault | None:
        return self._faults.pop() if occasion is Occasion.COMMIT_TRANSACTION and self._faults else None

    def called(self, edge: Edge, call: Occasion) -> None: ...


def test_after_a_refused_commit_a_producer_takes_nothing_but_an_abort() -> None:
    broker = SimBroker()
    broker.create_topic("out", 1)
    control: Any = RefusesOnce()
    log = WatchedLog(SimLog(broker), control, Watch(frozenset({Occasion.COMMIT_TRANSACTION}), records=False))
    producer = log.producer("id", 60_000)
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
def test_a_fault_of_a_commit_counts_when_it_is_met(fault: str) -> None:
    history, _ = simulate(
        BALANCES, Schedule("balances", RECORDS, (Step(fault),), settings={"commit.records": 4})
    )
    events = history.events
    (struck,) = (index for index, event in enumerate(events) if isinstance(event, Injected))
    before = events[struck - 1]
    assert isinstance(before, Reached)
    assert before.point is Point.OFFSETS_SENT


@pytest.mark.parametrize("at", [None, Point.FLUSHED])
def test_an_error_while_a_fault_is_made_is_none_of_the_pipeline(at: Point | None) -> None:
    def broken(*_: object) -> None:
        raise AttributeError("there is no such ability")

    schedule = Schedule("balances", (Input(0, "ann", 1),), (Step("kill", at=at),))
    with (
        patch.dict(FAULTS, {"kill": replace(FAULTS["kill"], apply=broken)}),
        pytest.raises(FaultNotMadeError, match="the fault kill could not be made"),
    ):
        simulate(BALANCES, schedule)


@pytest.mark.parametrize("fault", [*COMMIT_FAULTS, "kill_after_write"])
def test_a_fault_that_is_never_met_is_skipped_with_the_reason(fault: str) -> None:
    schedule = Schedule("balances", RECORDS, (Step(fault, task="0_1"),), partitions=2)
    history, _ = simulate(BALANCES, schedule)
    assert steps_of(history, Injected) == []
    (skipped,) = (event for event in history.events if isinstance(event, Skipped))
    assert "came that could meet it" in skipped.reason


def test_a_fault_replaced_before_it_was_met_is_skipped() -> None:
    steps = (Step("abort_commit"), Step("lose_reply"))
    history, _ = simulate(BALANCES, Schedule("balances", RECORDS, steps))
    assert (steps_of(history, Skipped), steps_of(history, Injected)) == ([0], [1])


@pytest.mark.parametrize("error", [RetriableError, FatalLogError, AbortRequiredError, FencedError])
def test_a_commit_that_fails_without_a_cause_is_found(error: type[CrashproofError]) -> None:
    real = Task.commit_steps
    commits = 0

    def commit(self: Task) -> Steps[None]:
        nonlocal commits
        commits += self.uncommitted_records > 0
        if self.uncommitted_records and commits % 3 == 0:
            raise error("out of nothing")
        yield from real(self)

    for runtime in Runtime:
        commits = 0
        schedule = Schedule("balances", RECORDS, (), runtime, batch_records=1, settings={"commit.records": 1})
        with patch.object(Task, "commit_steps", commit):
            _, verdict = simulate(BALANCES, schedule)
        assert verdict.outcome is Outcome.VIOLATED, (runtime, verdict)
        assert verdict.findings[0].oracle == "errors"


@pytest.mark.requirement("129.5")
@pytest.mark.parametrize("runtime", Runtime)
@pytest.mark.parametrize("fault", COMMIT_FAULTS)
def test_a_commit_that_goes_wrong_is_made_up_for(fault: str, runtime: Runtime) -> None:
    schedule = Schedule(
        "balances", RECORDS, (Step(fault), Step(fault, wait=2)), runtime, settings={"commit.records": 2}
    )
    history, verdict = simulate(BALANCES, schedule)
    assert any(isinstance(event, Injected) and event.fault == fault for event in history.events)
    assert verdict.outcome is Outcome.HOLDS, verdict
