"""Members of a group that are killed, stand still beyond their session, go, and come again, each at any protocol point.

Each member is a process on a host of its own: a greenlet that gives up its turn at every point, after every step, and
when it sleeps, so that one may be in the middle of a rebalance or a commit while others go on for minutes. What its
client does in a thread of its own, such as joining again, may come at any of these moments too. One of the two inputs
has a single partition, which the task of that number reads beside the other. Whatever
happened, in the end every record was counted once: in the outputs, in the positions, and in the store of every host
that opens the task again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from greenlet import getcurrent, greenlet
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.worlds.sim.broker import SimLog, SimMember
from harness.worlds.sim.disk import Host as SimHost
from store import points
from store.config import StreamsConfig
from store.errors import CrashproofError
from store.points import Point
from store.streams.application import Application
from store.streams.thread import Host, StreamThread
from store.types import TopicPartition
from tests.clusters import RC, SINK, SOURCE, Cluster, pipeline, rows

PARTITIONS = 3
NARROW = "narrow"
INPUTS = [*(TopicPartition(SOURCE.topic, number) for number in range(PARTITIONS)), TopicPartition(NARROW, 0)]
HOSTS = 3
SESSION_MS = 45_000

RUN, KILL, START, STOP, TIME, FEED, BEAT = "run", "kill", "start", "stop", "time", "feed", "beat"

ACTIONS = st.one_of(
    st.tuples(st.just(RUN), st.integers(0, HOSTS - 1), st.integers(1, 12)),
    st.tuples(st.just(RUN), st.integers(0, HOSTS - 1), st.integers(20, 80)),
    st.tuples(st.just(FEED), st.integers(0, PARTITIONS), st.integers(1, 4)),
    st.tuples(st.just(BEAT), st.integers(0, HOSTS - 1), st.just(0)),
    st.tuples(st.sampled_from((KILL, KILL, START, STOP)), st.integers(0, HOSTS - 1), st.just(0)),
    st.tuples(st.just(START), st.integers(0, HOSTS - 1), st.just(0)),
    st.tuples(st.just(TIME), st.just(0), st.sampled_from((1, 20, 46, 70))),
)

CONFIGS = st.fixed_dictionaries(
    {
        "commit.records": st.sampled_from((1, 2, 5)),
        "commit.interval.ms": st.just(50_000),
        "num.standby.replicas": st.integers(0, 1),
        "statestore.transactional.enabled": st.booleans(),
    }
)


class _Unwind(BaseException):
    """A process that was killed is taken apart, after the test."""


class Members:
    """A process for each host, or none, and the turns that they get."""

    def __init__(self, config: StreamsConfig) -> None:
        topology = replace(pipeline(), sources=(NARROW, SOURCE.topic), copartitioned=())
        self.cluster = Cluster(topology, partitions=PARTITIONS, fewer={NARROW: 1})
        self.clock = self.cluster.clock
        self.config = config
        self.hosts = [SimHost(number) for number in range(HOSTS)]
        self.living: dict[int, greenlet] = {}
        self.stopping: set[int] = set()
        self.fed: Counter[tuple[TopicPartition, bytes]] = Counter()
        self.threads: dict[int, StreamThread] = {}
        self._numbers: dict[int, int] = {}
        self._dead: list[greenlet] = []
        self._hub = getcurrent()
        self.over = False
        advance = self.clock._then

        def slept() -> None:
            advance()
            self._give_turn()

        self.clock._then = slept

    def reached(self, _: Point) -> None:
        self._give_turn()

    def _give_turn(self) -> None:
        if getcurrent() is not self._hub and not self.over:
            self._hub.switch()

    def start(self, number: int) -> None:
        if number not in self.living:
            self.living[number] = greenlet(lambda: self._live(number), parent=self._hub)
            self.stopping.discard(number)

    def _live(self, number: int) -> None:
        name = f"host-{number}"
        storage = self.cluster.storage(self.hosts[number])
        self._numbers[number] = self.cluster._processes
        thread = StreamThread(
            Application.of(self.cluster.topology),
            self.config,
            SimLog(self.cluster.broker, name),
            storage,
            self.clock,
            session_timeout_ms=SESSION_MS,
            host=Host(name),
        )
        self.threads[number] = thread
        try:
            while number not in self.stopping:
                thread.step()
                self._give_turn()
            thread.stop()
        except CrashproofError:
            # Such as a transaction that the broker gave up because its process stood still. Another one goes on.
            thread.close()

    def run(self, number: int, turns: int) -> None:
        for _ in range(turns):
            process = self.living.get(number)
            if process is None:
                return
            process.switch()
            if process.dead:
                self._ended(number)

    def kill(self, number: int) -> None:
        process = self.living.get(number)
        if process is not None:
            self._dead.append(process)
            self._ended(number)

    def beat(self, number: int) -> None:
        """What the client's own thread does."""
        if number in self.threads:
            member = self.threads[number]._member
            assert isinstance(member, SimMember)
            member.heartbeat()

    def _ended(self, number: int) -> None:
        del self.living[number]
        self.threads.pop(number, None)
        if number in self._numbers:
            self.hosts[number].release(self._numbers.pop(number))

    def feed(self, number: int, records: int) -> None:
        tp = INPUTS[number]
        for count in range(records):
            key = b"%d-%d" % (number, count % 2)
            self.cluster.broker.append(tp.topic, key, b"", partition=tp.partition)
            self.fed[tp, key] += 1

    def settle(self) -> None:
        """Everybody goes on until all input is committed, and then ends in order."""
        for number in range(HOSTS):
            self.start(number)
        for _ in range(3_000):
            for number in range(HOSTS):
                self.start(number)
                self.run(number, 5)
            self.clock.sleep(0.2)
            if self.done():
                break
        self.stopping = set(range(HOSTS))
        for _ in range(3_000):
            for number in list(self.living):
                self.run(number, 5)
            if not self.living:
                return
            self.clock.sleep(0.2)
        raise AssertionError("a member does not end")

    def done(self) -> bool:
        ends = Counter[TopicPartition]()
        for (tp, _), count in self.fed.items():
            ends[tp] += count
        committed = self.cluster.broker.committed_offsets(self.cluster.topology.application_id)
        return all(committed.get(tp, 0) == end for tp, end in ends.items())

    def outputs(self) -> dict[bytes | None, list[int]]:
        found: dict[bytes | None, list[int]] = {}
        for partition in range(PARTITIONS):
            for record in self.cluster.broker.visible(TopicPartition(SINK.topic, partition), RC):
                found.setdefault(record.key, []).append(int(record.value or b"0"))
        return found


@contextmanager
def members(config: StreamsConfig) -> Iterator[Members]:
    made = Members(config)
    before = points.arm(made.reached)
    try:
        yield made
    finally:
        points.arm(before)
        made.over = True
        for process in (*made._dead, *made.living.values()):
            if process and not process.dead:
                process.parent = getcurrent()
                with pytest.raises(_Unwind):
                    process.throw(_Unwind)


def play(config: dict[str, object], actions: list[tuple[str, int, int]]) -> None:
    with members(StreamsConfig.of(config)) as made:
        for number in range(HOSTS):
            made.start(number)
        for number in range(len(INPUTS)):
            made.feed(number, 3)
        for what, where, amount in actions:
            match what:
                case "run":
                    made.run(where, amount)
                case "kill":
                    made.kill(where)
                case "start":
                    made.start(where)
                case "stop":
                    made.stopping.add(where)
                case "time":
                    made.clock.sleep(amount)
                case "feed":
                    made.feed(where, amount)
                case "beat":
                    made.beat(where)
        made.settle()
        assert made.done()
        assert made.outputs() == {key: list(range(1, count + 1)) for (_, key), count in made.fed.items()}
        cluster = made.cluster
        for host in made.hosts:
            worker = cluster.worker(made.config, partitions=range(PARTITIONS), storage=cluster.storage(host))
            worker.poll()
            found = {
                (partition, key): int(value)
                for partition, task in worker.tasks.items()
                for key, value in rows(task).items()
            }
            worker.close()
            assert found == {(tp.partition, key): count for (tp, key), count in made.fed.items()}


@settings(max_examples=25, deadline=None)
@given(config=CONFIGS, actions=st.lists(ACTIONS, min_size=25, max_size=60))
def test_whatever_happens_to_members_every_record_counts_once(
    config: dict[str, object], actions: list[tuple[str, int, int]]
) -> None:
    play(config, actions)
