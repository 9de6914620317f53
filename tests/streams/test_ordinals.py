"""The ordinal of a sub-topology, which its transactional ids and directories are named by, is its own and stays it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog, SimProducer
from harness.worlds.sim.disk import Host, HostStorage
from store.clock import SystemClock
from store.config import Guarantee, StreamsConfig
from store.engine import Storage
from store.errors import AbortRequiredError, ConfigError, FatalLogError, FencedError, OutcomeUnknownError
from store.log import Log, TopicSpec
from store.log.kafka import KafkaLog
from store.recovery.directory import StateDirectory
from store.streams.task import Task, apply
from store.streams.topology import Context, Topology
from store.streams.worker import Worker
from store.types import IsolationLevel, Record, TopicPartition

RC = IsolationLevel.READ_COMMITTED
EXACTLY_ONCE = StreamsConfig()


def storing(store: str) -> Callable[[Context, Record], None]:
    def keep(context: Context, record: Record) -> None:
        context.store(store).put(record.key, record.value)
        context.forward("out", record.key, record.value)

    return keep


def topology(ordinal: int = 0, source: str = "in", store: str = "kept", application: str = "app") -> Topology:
    return Topology(application, (source,), ("out",), (store,), storing(store), ordinal)


@pytest.fixture
def cluster() -> SimBroker:
    made = SimBroker()
    for topic in ("in", "other-in", "out", "app-kept-changelog", "app-other-changelog"):
        made.create_topic(topic, 2)
    for topic in ("in", "other-in"):
        made.append(topic, b"k", b"v", partition=0)
    return made


def storage(host: Host | None = None) -> Storage:
    return HostStorage(host or Host(0), 0)


def run(
    log: Log, made: Topology, where: Storage, partition: int = 0, config: StreamsConfig = EXACTLY_ONCE
) -> int:
    """Process and commit all input of one partition. Returns how many records were new."""
    reader = log.reader()
    try:
        with Task(made, partition, log, where, config, SystemClock()) as task:
            records = reader.read(TopicPartition(made.sources[0], partition), 0, 100, RC).records
            count = apply(task, records)
            task.commit()
            return count
    finally:
        reader.close()


GUARANTEES = [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.requirement("13627.5")
def test_a_sub_topology_whose_ordinal_was_changed_does_not_start(
    cluster: SimBroker, guarantee: Guarantee
) -> None:
    config = StreamsConfig(processing_guarantee=guarantee, automatic_state_relocation=False)
    run(SimLog(cluster), topology(0), storage(), config=config)
    with pytest.raises(ConfigError, match=r"ordinal=1 .* app in in-0 was committed by the ordinal 0"):
        run(SimLog(cluster), topology(1), storage(), config=config)
    assert run(SimLog(cluster), topology(0), storage(), config=config) == 0


def test_a_changed_ordinal_is_allowed_once_the_note_of_the_old_one_is_gone(cluster: SimBroker) -> None:
    run(SimLog(cluster), topology(0), storage())
    cluster.commit_offsets("app", {TopicPartition("in", 0): 1})
    config = StreamsConfig(automatic_state_relocation=False)
    assert run(SimLog(cluster), topology(1), storage(), config=config) == 0


@pytest.mark.parametrize("partition", [0, 1])
def test_two_sub_topologies_with_one_ordinal_do_not_both_start_on_one_host(
    cluster: SimBroker, partition: int
) -> None:
    host = Host(0)
    with Task(topology(), 0, SimLog(cluster), storage(host), EXACTLY_ONCE, SystemClock()):
        other = topology(source="other-in", store="other")
        with pytest.raises(
            ConfigError,
            match=r"^ordinal=0 is not allowed: if a store or a source was renamed, give it its former name\. In this "
            r".* with source in, store kept, and this one has source other-in",
        ):
            run(SimLog(cluster), other, storage(host), partition)


def test_a_refused_sub_topology_has_fenced_nobody(cluster: SimBroker) -> None:
    host = Host(0)
    records = cluster.visible(TopicPartition("in", 0), RC)
    with Task(topology(), 0, SimLog(cluster), storage(host), EXACTLY_ONCE, SystemClock()) as task:
        apply(task, records)
        with pytest.raises(ConfigError):
            run(SimLog(cluster), topology(source="other-in", store="other"), storage(host))
        task.commit()


def test_two_sub_topologies_with_one_ordinal_on_two_hosts_fence_each_other_and_say_so(
    cluster: SimBroker,
) -> None:
    records = cluster.visible(TopicPartition("in", 0), RC)
    with Task(topology(), 0, SimLog(cluster), storage(), EXACTLY_ONCE, SystemClock()) as task:
        run(SimLog(cluster), topology(source="other-in", store="other"), storage(Host(1)))
        apply(task, records)
        with pytest.raises(
            FencedError, match=r"another sub-topology of the application app has the ordinal 0"
        ):
            task.commit()


@pytest.mark.parametrize("changed", [topology(store="other"), topology(source="other-in")])
def test_a_sub_topology_may_change_its_stores_or_its_sources(cluster: SimBroker, changed: Topology) -> None:
    host = Host(0)
    with Task(topology(), 0, SimLog(cluster), storage(host), EXACTLY_ONCE, SystemClock()):
        pass
    run(SimLog(cluster), changed, storage(host))
    run(SimLog(cluster), changed, storage(host))
    assert host.sub_topologies[0].splitlines() == sorted(changed.content)


def test_a_state_directory_remembers_what_was_written_first(tmp_path: Path) -> None:
    first, second = StateDirectory(tmp_path, "app"), StateDirectory(tmp_path, "app")
    assert first.remember(0, "a") == "a"
    assert second.remember(0, "b") == "a"
    assert second.remember(1, "b") == "b"
    assert second.remember(0, "b", instead_of="c") == "a"
    assert second.remember(0, "b", instead_of="a") == "b"
    assert first.remember(0, "a") == "b"
    assert StateDirectory(tmp_path, "another").remember(0, "c") == "c"


@pytest.mark.parametrize(
    "error",
    [OutcomeUnknownError("no answer"), AbortRequiredError("to be aborted"), FatalLogError("broken")],
    ids=["unknown outcome", "abort required", "fatal"],
)
def test_a_worker_goes_on_after_an_error_of_the_commit_that_fences_the_former_ordinal(
    cluster: SimBroker, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[SimProducer] = []
    log, commit = SimLog(cluster), SimProducer.commit_transaction
    assert run(log, topology(0), storage()) == 1
    cluster.append("in", b"k", b"v", partition=0)
    worker = Worker(topology(1), [0], log, storage(Host(1)), EXACTLY_ONCE, SystemClock())

    def fail_once(producer: SimProducer) -> None:
        if not failed:
            failed.append(producer)
            raise error
        commit(producer)

    monkeypatch.setattr(SimProducer, "commit_transaction", fail_once)
    while worker.poll():
        pass
    worker.close()
    assert failed
    assert len(cluster.visible(TopicPartition("out", 0), RC)) == 2


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_real_broker_keeps_the_ordinal_beside_the_positions(
    guarantee: Guarantee, log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, source = unique("app"), unique("in")
    config = StreamsConfig(processing_guarantee=guarantee, automatic_state_relocation=False)
    old, new = (topology(ordinal, source, application=name) for ordinal in (0, 1))
    admin = log.admin()
    admin.create_topics([TopicSpec("out", 1), TopicSpec(source, 1), *old.internal_topics(1)])
    admin.close()
    producer = log.plain_producer()
    producer.produce(source, b"k", b"v", partition=0)
    producer.flush()
    assert run(log, old, StateDirectory(tmp_path / "old", name), config=config) == 1
    with pytest.raises(ConfigError, match=r"was committed by the ordinal 0"):
        run(log, new, StateDirectory(tmp_path / "new", name), config=config)
    producer.commit_offsets(name, {TopicPartition(source, 0): 1})
    producer.close()
    assert run(log, new, StateDirectory(tmp_path / "new", name), config=config) == 0
