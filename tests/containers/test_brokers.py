"""Three brokers that replicate, and what becomes of a task when the one that coordinates it goes or is cut off."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest

from harness.faults import FAULTS, Link
from harness.history import Injected, Skipped
from harness.oracles import judge
from harness.schedule import Input, Schedule, Step
from harness.verdict import Outcome
from harness.worlds.cluster import Bounds
from harness.worlds.containers.broker import Broker
from harness.worlds.containers.network import BOTH, Disturbance
from harness.worlds.containers.run import CLIENT_WAITS_S, COORDINATOR, LEADER
from harness.worlds.containers.world import ContainerWorld
from harness.worlds.real.client import PlainCluster, leaders
from scenarios.balances import SCENARIO
from store.log.kafka import KafkaLog
from store.points import Point
from tests.deciding import decided
from tests.waiting import until

pytestmark = [pytest.mark.xdist_group("containers"), pytest.mark.requirement("card.2")]

INPUT = tuple(Input(0, key, amount) for amount, key in enumerate(("ann", "bob") * 4, 1))


@pytest.fixture(scope="module")
def cluster(
    world: ContainerWorld,  # noqa: ARG001 - it skips where there is no Docker
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ContainerWorld]:
    # `world` skips where there is no Docker.
    with ContainerWorld(tmp_path_factory.mktemp("cluster"), brokers=3) as entered:
        yield entered


@pytest.mark.parametrize("which", [COORDINATOR, LEADER])
@pytest.mark.parametrize("fault", ["kill_broker", pytest.param("cut_broker", marks=pytest.mark.long)])
def test_a_task_goes_on_when_others_have_to_take_a_broker_s_place(
    cluster: ContainerWorld, fault: str, which: int
) -> None:
    asked = Schedule("balances", INPUT, (Step(fault, at=Point.RECORD_PROCESSED, wait=1, amount=which),))
    history, verdict = decided(cluster, SCENARIO, asked)
    assert (verdict.outcome, verdict.reason, verdict.findings) == (Outcome.HOLDS, "", ())
    assert [event.fault for event in history.events if isinstance(event, Injected)] == [fault]


def test_a_broker_that_was_cut_off_is_waited_for_until_it_has_heard_of_the_leaders(
    cluster: ContainerWorld,
) -> None:
    brokers = cluster._brokers
    # One that leads: of another one the others have nothing to say that it does not know.
    one = brokers.by_node(max(leaders(brokers.outside).values()))
    others = [other for other in brokers.all if other is not one]
    cut = Disturbance(one.pid, [other.address for other in others], Link.CUT, BOTH)
    try:
        until(lambda: not brokers._agree())
    finally:
        cut.heal()
    # Returns once they do; leaders may move again after that.
    brokers.until_agreed()


def test_a_broker_that_ended_a_transaction_without_its_markers_has_said_so() -> None:
    broker = object.__new__(Broker)
    broker.container = Mock()
    broker.container.logs.return_value = (
        b"INFO [Transaction Marker Channel Manager 1]: Couldn't find leader endpoint for partitions Set(out-0) while "
        b"trying to send transaction markers for run-20-0_0, these partitions are likely deleted already"
    )
    began = datetime(2026, 1, 1, tzinfo=UTC)
    assert broker.left_out_markers("run-20", began)
    assert not broker.left_out_markers("run-2", began)


def test_a_broker_tells_how_long_it_was_gone() -> None:
    began = datetime.now(UTC).replace(tzinfo=None)
    broker = object.__new__(Broker)
    broker.container = Mock()
    broker._ended = [began - timedelta(hours=1), began, began + timedelta(seconds=60)]
    serves = [began + timedelta(seconds=50), began + timedelta(seconds=70)]
    broker.container.logs.return_value = b"".join(
        b"%s000Z INFO Kafka Server started (kafka.server.KafkaRaftServer)\n" % time.isoformat().encode()
        for time in serves
    )
    assert broker.longest_away_s(began) == 50


def test_a_pipeline_is_not_blamed_for_a_transaction_that_a_broker_ended_without_its_markers(
    world: ContainerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broker, "left_out_markers", lambda *_: True)
    bounds = PlainCluster.bounds

    def with_an_open_transaction(one: PlainCluster, topic: str, partition: int) -> Bounds:
        found = bounds(one, topic, partition)
        return found._replace(high=found.high + 1) if topic.endswith("-output") else found

    monkeypatch.setattr(PlainCluster, "bounds", with_an_open_transaction)
    monkeypatch.setattr(PlainCluster, "undecided", lambda *_: [])
    asked = Schedule("balances", INPUT, (Step("kill_broker", at=Point.RECORD_PROCESSED, wait=1),))
    history = world.run(SCENARIO, asked)
    verdict = judge(SCENARIO, asked, history)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == "a broker that came back has ended a transaction without its markers"


def test_a_client_of_the_pipeline_waits_as_long_as_is_said() -> None:
    assert inspect.signature(KafkaLog).parameters["timeout"].default == CLIENT_WAITS_S


def test_a_broker_that_is_alone_cannot_be_cut_off_from_others(world: ContainerWorld) -> None:
    asked = Schedule("balances", INPUT, (Step("cut_broker", at=Point.RECORD_PROCESSED),))
    history = world.run(SCENARIO, asked)
    (skipped,) = [event for event in history.events if isinstance(event, Skipped)]
    assert skipped.reason == "there is no other broker to cut it off from"


@pytest.mark.parametrize("fault", ["pause_broker", "kill_broker"])
def test_while_a_broker_stands_still_none_is_asked_for_another_one_to_strike(
    world: ContainerWorld, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(world.machines.cluster, "_patience_s", 20.0)
    steps = Step("pause_broker", at=Point.RECORD_PROCESSED, wait=1), Step(fault)
    history, verdict = decided(world, SCENARIO, Schedule("balances", INPUT, steps))
    assert (verdict.outcome, verdict.findings) == (Outcome.HOLDS, ())
    assert [event for event in history.events if isinstance(event, Skipped)] == [
        Skipped(1, "a broker stands still already")
    ]


def test_every_fault_of_brokers_can_strike_coordinator_and_leader() -> None:
    assert {tuple(fault.amount) for name, fault in FAULTS.items() if name.endswith("_broker")} == {
        (COORDINATOR, LEADER)
    }
