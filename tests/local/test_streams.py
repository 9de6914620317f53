"""`Streams` on a real broker: processes that come, go, die and come back count every record once."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from harness.worlds.local.broker import LocalBroker
from store.errors import (
    InputChangedError,
    LogError,
    PositionLostError,
    ProtocolError,
    RetriableError,
    ShutdownRequestedError,
)
from store.log import Reader, TopicSpec
from store.log.kafka import KafkaLog
from store.query import FailureReason, KeyQuery, RangeQuery, StoreQueryParameters
from store.streams import thread
from store.streams.application import Application
from store.streams.streams import State, Streams, StreamThreadExceptionResponse
from store.streams.task import Task
from store.streams.topology import Context, Topology
from store.types import IsolationLevel, Record, TopicPartition
from tests.local import streaming
from tests.waiting import until

PARTITIONS = 4
KEYS = 20


@dataclass
class Place:
    """The topics of one application, what was fed to it, and the processes that run it."""

    bootstrap: str
    name: str
    directory: Path
    fed: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        admin = KafkaLog(self.bootstrap).admin()
        admin.create_topics([TopicSpec(f"{self.name}-{end}", PARTITIONS) for end in ("in", "out")])
        admin.close()
        self._producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 5, "enable.idempotence": True}
        )

    def feed(self, each: int = 200) -> None:
        """So many records of each key."""
        for _ in range(each):
            for key in range(KEYS):
                self._producer.produce(f"{self.name}-in", b"v", b"%d" % key, key % PARTITIONS)
        self._producer.flush()
        self.fed += each

    def start(
        self, host: str, instance: str = "", guarantee: str = "exactly_once_v2"
    ) -> subprocess.Popen[bytes]:
        """One without an instance id may be killed for good, and others soon get its tasks."""
        where = self.directory / host
        where.mkdir(exist_ok=True)
        with (where / "output").open("ab") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.local.streaming",
                    self.bootstrap,
                    str(where),
                    self.name,
                    instance,
                    guarantee,
                    str(streaming.LONG_MS if instance else 6_000),
                ],
                stdout=output,
                stderr=output,
            )
        self.processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Ask it to end, once it runs."""
        until(lambda: any(self.directory.glob(f"*/{process.pid}.runs")))
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0

    def streams(self, host: str, instance: str = "", guarantee: str = "exactly_once_v2") -> Streams:
        return streaming.streams(self.bootstrap, str(self.directory / host), self.name, instance, guarantee)

    def counts(self, topic: str | None = None, partitions: int = PARTITIONS) -> dict[bytes, list[int]]:
        """Key → the numbers that were forwarded for it, in the order of their partition."""
        found: dict[bytes, list[int]] = {}
        reader = KafkaLog(self.bootstrap).reader()
        for number in range(partitions):
            tp = TopicPartition(topic or f"{self.name}-out", number)
            for record in self._all_of(tp, reader):
                found.setdefault(record.key or b"", []).append(int(record.value or b""))
        reader.close()
        return found

    def _all_of(self, tp: TopicPartition, reader: Reader) -> Sequence[Record]:
        """The records of a partition. The broker may be too busy to tell them at once."""
        while True:
            with suppress(RetriableError):
                return reader.read(tp, 0, 1_000_000, IsolationLevel.READ_COMMITTED).records

    def total(self, topic: str | None = None, partitions: int = PARTITIONS) -> int:
        return sum(map(len, self.counts(topic, partitions).values()))

    def check_all_counted_once(self) -> None:
        until(lambda: self.total() >= self.fed * KEYS)
        assert self.counts() == {b"%d" % key: list(range(1, self.fed + 1)) for key in range(KEYS)}


@pytest.fixture
def place(broker: LocalBroker, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Place]:
    place = Place(broker.bootstrap, unique("streams"), tmp_path)
    yield place
    for process in place.processes:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.requirement("129.3", "129.4")
def test_processes_that_come_go_and_are_killed_count_every_record_once(place: Place) -> None:
    place.feed()
    first = place.start("a")
    until(lambda: place.total() > 0)
    place.feed()
    second = place.start("b")
    for _ in range(3):
        place.feed()
    until(lambda: place.total() >= place.fed * KEYS / 2)
    second.kill()
    place.feed()
    place.check_all_counted_once()
    third = place.start("b")
    place.feed()
    place.end(first)
    place.feed()
    place.check_all_counted_once()
    place.end(third)


def test_a_static_member_that_is_restarted_goes_on_where_it_was(place: Place) -> None:
    one, other = place.start("a", "one"), place.start("b", "other")
    place.feed()
    until(lambda: place.total() > 0)
    one.kill()
    one.wait()
    place.feed()
    one = place.start("a", "one")
    place.feed()
    place.check_all_counted_once()
    for process in (one, other):
        place.end(process)


def test_a_static_member_that_dies_before_it_has_given_up_a_task_leaves_none_without_a_member(
    place: Place,
) -> None:
    one = place.start("a", "one")
    place.feed()
    until(lambda: place.total() == place.fed * KEYS)
    dies = place.directory / "a" / "dies"
    dies.touch()
    other = place.start("b", "other")
    until(lambda: one.poll() is not None)
    assert one.returncode == -signal.SIGKILL
    dies.unlink()
    one = place.start("a", "one")
    place.feed()
    place.check_all_counted_once()
    for process in (one, other):
        place.end(process)


def test_at_least_once_loses_nothing_and_ends_with_the_right_counts_without_crashes(place: Place) -> None:
    place.feed()
    with place.streams("a", guarantee="at_least_once") as first:
        until(lambda: place.total() > 0)
        with place.streams("b", guarantee="at_least_once") as second:
            until(lambda: first.state == second.state == State.RUNNING and second.status.threads[0].active)
            place.feed()
            until(lambda: place.total() >= place.fed * KEYS)
        place.feed()
        place.check_all_counted_once()


def test_a_host_keeps_copies_of_the_tasks_of_another_and_takes_over_with_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "COPIES_S", 0.2)
    place.feed()

    def standbys(streams: Streams) -> int:
        return sum(len(one.standby) for one in streams.status.threads)

    def make(host: str) -> Streams:
        streams = place.streams(host)
        streams.config = replace(streams.config, num_standby_replicas=1)
        return streams

    with make("a") as first:
        with make("b") as second:
            until(lambda: standbys(first) == standbys(second) == PARTITIONS / 2)
            copied = next(int(task[2:]) for one in first.status.threads for task in one.standby)
            asked = StoreQueryParameters.from_name(streaming.STORE).with_partition(copied)
            copy = first.query(asked, KeyQuery(b"1")).partition_results[copied]
            assert copy.failure_reason is FailureReason.NOT_ACTIVE
            place.feed()
        place.feed()
        place.check_all_counted_once()
        assert second.status.error is None
    assert first.status.error is None


def test_sub_topologies_hand_on_through_a_topic_between_them(place: Place) -> None:
    first = streaming.application(place.name).sub_topologies[0]
    further = f"{place.name}-further"
    admin = KafkaLog(place.bootstrap).admin()
    admin.create_topics([TopicSpec(further, 2)])
    admin.close()
    second = Topology(
        place.name,
        (f"{place.name}-out",),
        (further,),
        ("further",),
        streaming.Count(further, "further"),
        ordinal=1,
    )
    streams = Streams(
        Application(place.name, (first, second)),
        {"num.stream.threads": 2},
        bootstrap=place.bootstrap,
        state_dir=place.directory / "a",
    )
    with streams:
        place.feed()
        until(lambda: place.total(further, 2) >= place.fed * KEYS)
    counts = place.counts(further, 2)
    assert counts == {b"%d" % key: list(range(1, place.fed + 1)) for key in range(KEYS)}


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_inputs_with_other_partitions_and_tasks_that_go_on_while_members_come_and_go(
    place: Place, guarantee: str
) -> None:
    narrow = f"{place.name}-narrow"
    log = KafkaLog(place.bootstrap)
    admin = log.admin()
    admin.create_topics([TopicSpec(narrow, 2)])
    whole = streaming.application(place.name).sub_topologies[0]
    topology = replace(whole, sources=(narrow, *whole.sources), copartitioned=())

    def make(host: str) -> Streams:
        return Streams(
            topology,
            {"processing.guarantee": guarantee, "num.stream.threads": 2, "commit.interval.ms": 100},
            bootstrap=place.bootstrap,
            state_dir=place.directory / host,
            session_timeout_ms=streaming.LONG_MS,
        )

    def tasks(streams: Streams) -> dict[str, Task]:
        return {
            task.task_id: task
            for member in tuple(streams._members.values())
            for worker in tuple(member._workers.values())
            for task in tuple(worker.tasks.values())
        }

    def feed() -> None:
        for number in range(100):
            for key in (0, 1):
                place._producer.produce(narrow, b"v", b"%d" % key, key, timestamp=number + 1)
        place.feed(100)

    earlier = log.member(place.name, [f"{place.name}-in"], Mock(), session_timeout_ms=streaming.LONG_MS)
    until(lambda: earlier.poll(0.1) or admin.group_members(place.name))  # type: ignore[func-returns-value]
    with make("a") as first:
        feed()
        until(lambda: all(one.rebalancing for one in first.status.threads))
        assert place.total() == 0
        earlier.close()
        until(lambda: [len(one.active) for one in first.status.threads] == [2, 2])
        before = tasks(first)
        feed()
        with make("b") as second:
            until(lambda: len(tasks(second)) == PARTITIONS // 2)
            stayed = {name: task for name, task in tasks(first).items() if before[name] is task}
            assert len(stayed) == PARTITIONS // 2
            feed()
            # A member that joins, and is not polled any more, holds up the group, and nobody's tasks.
            named = KafkaLog(place.bootstrap, config={"client.id": f"{place.name}-{'0' * 16}"})
            silent = named.member(place.name, [f"{place.name}-in"], Mock(), assignor="cooperative-sticky")
            silent.poll(0.5)
            feed()
            until(lambda: place.total() >= 4 * 100 * (KEYS + 2))
            silent.close()
            until(lambda: first.state is second.state is State.RUNNING)
        feed()
        until(lambda: place.total() >= 5 * 100 * (KEYS + 2))
        assert first.status.error is second.status.error is None
        assert all(tasks(first)[name] is task for name, task in stayed.items())
    expected = {b"%d" % key: list(range(1, 1_000 + 1 if key < 2 else 501)) for key in range(KEYS)}
    assert place.counts() == expected
    admin.close()


@contextmanager
def stranger(place: Place) -> Iterator[Consumer]:
    """A consumer with the application's id as its group.id, which commits what it reads."""
    consumer = Consumer(
        {
            "bootstrap.servers": place.bootstrap,
            "group.id": place.name,
            "client.id": "console",
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "latest",
        }
    )
    consumer.subscribe([f"{place.name}-in"])
    try:
        yield consumer
    finally:
        consumer.close()


def test_a_consumer_with_the_applications_id_as_its_group_ends_it_by_errors_that_say_where_it_stood(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.feed(10)
    streams = place.streams("a")
    with streams:
        until(lambda: place.total() == 10 * KEYS and streams.state is State.RUNNING)
        with stranger(place) as consumer:
            until(lambda: consumer.poll(0.1) or streams.state is State.ERROR)
        with pytest.raises(
            LogError, match=r"no instances of this application: console-.*client id 'console'"
        ):
            streams.wait()
    said: dict[int, int] = {}
    for number, at in re.findall(r"-in-([0-3]) at ([0-9]+)", caplog.text):
        # A thread that had the task before may have left it long ago.
        said[int(number)] = max(int(at), said.get(int(number), 0))
    assert said == dict.fromkeys(range(PARTITIONS), 10 * KEYS // PARTITIONS)


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_what_a_consumer_with_the_applications_id_has_committed_unseen_is_not_gone_on_behind(
    place: Place, guarantee: str
) -> None:
    place.feed(10)
    streams = place.streams("a", guarantee=guarantee)
    streams._host.kin = None
    with streams:
        until(lambda: place.total() == 10 * KEYS and streams.state is State.RUNNING)
        with stranger(place) as consumer:
            until(lambda: consumer.poll(0.1) or consumer.assignment())
            place.feed(10)
            until(consumer.poll)
        with pytest.raises(
            PositionLostError, match=f"another consumer has, or had, {place.name} as its group.id"
        ):
            streams.wait(60.0)


def test_it_tells_what_it_does_and_stops_when_asked(place: Place) -> None:
    place.feed(10)
    streams = place.streams("a")
    assert streams.state is State.CREATED
    streams.start()
    with pytest.raises(ProtocolError, match="started before"):
        streams.start()
    until(lambda: streams.state is State.RUNNING)
    place.check_all_counted_once()
    until(
        lambda: (
            sum(
                position
                for one in streams.status.threads
                for task in one.active
                for position in task.positions.values()
            )
            == 10 * KEYS
        )
    )
    assert sorted(task.task_id for one in streams.status.threads for task in one.active) == [
        f"0_{number}" for number in range(PARTITIONS)
    ]
    assert not streams.wait(0.01)
    streams.stop()
    assert streams.wait()
    assert (streams.state, streams.status.error) == (State.NOT_RUNNING, None)
    streams.close()


def test_its_stores_are_asked_by_name_wherever_their_partitions_are_in_the_process(place: Place) -> None:
    place.feed(3)
    with place.streams("a") as streams:
        with pytest.raises(ProtocolError, match="no store 'other' to ask; it has counts"):
            streams.query("other", KeyQuery(b"1"))
        until(lambda: streams.state is State.RUNNING)
        place.check_all_counted_once()
        asked = StoreQueryParameters.from_name(streaming.STORE)

        def rows() -> dict[bytes, bytes]:
            everything = streams.query(asked.with_read_committed(), RangeQuery.with_no_bounds())
            found: dict[bytes, bytes] = {}
            for result in everything.partition_results.values():
                with result.result as of_partition:
                    found |= dict(of_partition)
            return found

        # A member that a busy machine kept from its heartbeats is without its partitions for a while.
        until(lambda: rows() == {b"%d" % key: b"3" for key in range(KEYS)})
        one = streams.query(streaming.STORE, KeyQuery(b"1")).only_partition_result()
        assert one is not None
        assert one.result == b"3"
        nowhere = streams.query(asked.with_partition(99), KeyQuery(b"1")).partition_results[99]
        assert nowhere.failure_reason is FailureReason.NOT_PRESENT
    assert streams.query(streaming.STORE, KeyQuery(b"1")).partition_results == {}


def test_what_a_function_raises_ends_all_threads_and_is_raised(place: Place) -> None:
    numbers = count()

    def fail(*_: object) -> None:
        if next(numbers) == 5:
            raise ValueError("no good")

    place.feed(10)
    streams = place.streams("a")
    topology = streams.application.sub_topologies[0]
    object.__setattr__(topology, "process", fail)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            streams.run()
        except ValueError as error:
            caught.append(error)

    running = threading.Thread(target=run)
    running.start()
    running.join()
    assert [str(error) for error in caught] == ["no good"]
    assert streams.state is State.ERROR


def test_an_instance_whose_handler_says_so_ends_all_of_them(place: Place) -> None:
    poison = b"poison"
    raised = threading.Event()

    def process(context: Context, record: Record) -> None:
        if record.key == poison:
            # The other one may be given it before it hears that it is to end.
            if raised.is_set():
                return
            raised.set()
            raise ValueError("no good")
        streaming.Count(f"{place.name}-out")(context, record)

    def make(host: str) -> Streams:
        made = place.streams(host)
        made.application = Application.of(replace(made.application.sub_topologies[0], process=process))
        made.set_uncaught_exception_handler(lambda _: StreamThreadExceptionResponse.SHUTDOWN_APPLICATION)
        return made

    first, second = make("a"), make("b")
    first.start()
    second.start()
    place.feed(10)
    until(lambda: first.state is second.state is State.RUNNING)
    # What is not committed by then is nobody's: no instance is left that would process it again.
    until(lambda: place.total() >= place.fed * KEYS)
    place._producer.produce(f"{place.name}-in", b"v", poison, 0)
    place._producer.flush()
    until(lambda: first.state is second.state is State.ERROR)
    assert {type(one.status.error) for one in (first, second)} == {ValueError, ShutdownRequestedError}
    for one in (first, second):
        one.close()
    place.check_all_counted_once()


def test_a_changelog_that_is_not_compacted_is_refused(place: Place) -> None:
    admin = KafkaLog(place.bootstrap).admin()
    changelog = f"{place.name}-{streaming.STORE}-changelog"
    admin.create_topics([TopicSpec(changelog, PARTITIONS, {"cleanup.policy": "delete"})])
    admin.close()
    with pytest.raises(
        LogError, match=f"{changelog} .* exists with cleanup.policy=delete, and has to have compact"
    ):
        place.streams("a").start()


def test_partitions_that_an_input_gets_end_who_runs_and_who_starts_with_the_numbers_and_the_ways_out(
    place: Place,
) -> None:
    changelog = f"{place.name}-{streaming.STORE}-changelog"
    said = (
        f"{place.name}-in has {PARTITIONS + 1}; {changelog} exists with {PARTITIONS} partitions, "
        f"{PARTITIONS + 1} were asked for.* Start with another application_id; or"
    )
    place.feed(1)
    running = Streams(
        streaming.application(place.name),
        bootstrap=place.bootstrap,
        state_dir=place.directory,
        kafka={"topic.metadata.refresh.interval.ms": 200},
    )
    with running:
        until(lambda: running.state is State.RUNNING)
        more = NewPartitions(f"{place.name}-in", PARTITIONS + 1)
        admin = AdminClient({"bootstrap.servers": place.bootstrap})
        admin.create_partitions([more])[more.topic].result()
        until(lambda: running.state is State.ERROR)
        with pytest.raises(InputChangedError, match=said):
            running.wait()
    with pytest.raises(InputChangedError, match=said):
        place.streams("a").start()


def test_a_second_signal_to_stop_does_what_it_did_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = place.streams("a")
    stopped: list[bool] = []
    monkeypatch.setattr(running, "stop", lambda: stopped.append(True))
    before = signal.getsignal(signal.SIGTERM)
    with running._signals():
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is before
    assert stopped == [True]


def test_a_signal_that_comes_before_the_start_ends_a_run_in_order(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = place.streams("a")
    signals = running._signals

    @contextmanager
    def at_once() -> Iterator[None]:
        with signals():
            signal.raise_signal(signal.SIGTERM)
            yield

    monkeypatch.setattr(running, "_signals", at_once)
    running.run()
    assert running.state is State.NOT_RUNNING
    with pytest.raises(ProtocolError, match="make new ones"):
        running.run()


def test_topics_that_do_not_exist_are_named(place: Place, unique: Callable[[str], str]) -> None:
    name = unique("nothing")
    with pytest.raises(LogError, match=f"{name}-in, {name}-out"):
        streaming.streams(place.bootstrap, str(place.directory), name, "", "exactly_once").start()


def test_the_program_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (source,) = [
        text for text in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "Streams(builder" in text
    ]
    assert "/var/lib/words" in source

    def run(streams: Streams) -> None:
        with streams:
            until(lambda: streams.state is State.RUNNING)

    monkeypatch.setattr(Streams, "run", run)
    exec(compile(source.replace("/var/lib/words", str(tmp_path)), "README.md", "exec"), {})
