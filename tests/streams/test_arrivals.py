"""Of what has come of several inputs the earliest is processed first."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store.config import StreamsConfig
from store.log.protocol import Fetch
from store.serdes import StrSerde
from store.streams.arrivals import Arrivals, in_time
from store.streams.dsl import JoinWindows, StreamsBuilder
from store.streams.worker import Worker
from store.types import IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock
from tests.streams.dsl.running import driver, output, pipe


def record(topic: str, offset: int, time: int) -> Record:
    return Record(topic, 0, offset, None, None, time)


def by_hand(inputs: list[list[Record]]) -> list[Record]:
    waiting = [list(records) for records in inputs]
    taken = []
    while any(waiting):
        first = min((one for one in waiting if one), key=lambda records: records[0].timestamp)
        taken.append(first.pop(0))
    return taken


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=4))
def test_inputs_are_taken_by_the_times_of_their_next_records(times: list[list[int]]) -> None:
    inputs = [
        [record(f"t{number}", offset, time) for offset, time in enumerate(of_one)]
        for number, of_one in enumerate(times)
    ]
    runs = list(in_time([(records, False) for records in inputs]))
    assert [one for run in runs for one in run] == by_hand(inputs)
    assert all(run and len({one.topic for one in run}) == 1 for run in runs)
    assert all(one[0].topic != two[0].topic for one, two in pairwise(runs))


def test_what_had_come_is_not_given_to_a_task_that_went_back_meanwhile() -> None:
    broker, at = SimBroker(), TopicPartition("in", 0)
    broker.create_topic("in", 1)
    for value in (b"a", b"b", b"c"):
        broker.append("in", None, value, partition=0, timestamp=1)
    arrivals = Arrivals(SimLog(broker).reader())
    assert arrivals.gather({at: 2}, 10, 0.0)
    assert arrivals.read(at, 0, 10, IsolationLevel.READ_COMMITTED) == Fetch((), 0, more=True)
    assert [one.offset for one in arrivals.read(at, 2, 10, IsolationLevel.READ_COMMITTED).records] == [2]


def test_after_a_crash_a_backlog_of_two_inputs_is_read_by_time() -> None:
    def looking_up(made: StreamsBuilder) -> None:
        made.stream("clicks").join_table(made.table("users"), lambda click, user: [click, user]).to("out")

    with driver(looking_up, auto_commit=False) as running:
        pipe(running, [("clicks", "k", "second", 2), ("users", "k", "ann", 1), ("users", "k", "bob", 3)])
        running.crash()
        running.process()
        running.commit()
        assert output(running) == [("k", ["second", "ann"], 2)]


def times_of(inputs: list[tuple[list[int], bool]]) -> list[int]:
    """The times of records of several inputs, each with whether it has more, as they are processed."""
    made = [
        ([record(f"t{number}", offset, time) for offset, time in enumerate(times)], more)
        for number, (times, more) in enumerate(inputs)
    ]
    return [one.timestamp for run in in_time(made) for one in run]


def test_what_is_later_than_the_last_record_of_an_input_with_more_waits() -> None:
    assert times_of([([1, 4, 9], False), ([2, 5], True)]) == [1, 2, 4, 5]


def test_nothing_is_processed_before_something_has_come_of_an_input_with_more() -> None:
    assert times_of([([1, 2], False), ([], True)]) == []


def test_an_input_that_has_no_more_is_not_waited_for() -> None:
    assert times_of([([1, 2], True), ([], False)]) == [1, 2]


def test_a_task_that_catches_up_joins_what_belongs_together_however_little_comes_at_once() -> None:
    """With one input ahead of the other, a left join would give up records whose partners are on their way."""

    def joining(made: StreamsBuilder) -> None:
        windows = JoinWindows.of_time_difference_and_grace(50, 0)
        paid = made.stream("paid")
        made.stream("orders").left_join(paid, lambda order, by: f"{order} {by}", windows).to("out")

    for given_at_once in (1, 2, 7):
        broker = SimBroker()
        log = SimLog(broker)
        builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
        joining(builder)
        (topology,) = builder.build().sub_topologies
        for topic in ("orders", "paid", "out"):
            broker.create_topic(topic, 1)
        log.admin().create_topics(topology.internal_topics(1))
        for number in range(40):
            broker.append("orders", b"k%d" % number, b"o", partition=0, timestamp=100 * number + 1)
        for number in range(40):
            broker.append("paid", b"k%d" % number, b"p", partition=0, timestamp=100 * number + 30)
        config = StreamsConfig.of({"poll.records": given_at_once, "commit.interval.ms": 50_000})
        worker = Worker(
            topology, [0], log, HostStorage(Host(0), 1), config, VirtualClock(), streaming=log.reader()
        )
        while worker.poll():
            pass
        worker.close()
        records = log.reader().read(TopicPartition("out", 0), 0, 1_000, IsolationLevel.READ_COMMITTED).records
        assert [one.value for one in records] == [b"o p"] * 40
