"""Records whose times an extractor says: their order, what goes by these, and what is known of them after a crash.

What is expected follows from Kafka Streams' RecordQueue: the extractor is given the largest time of the records before
in the partition, one of a negative time is neither processed nor counted there, and internal topics keep their times.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.worlds.sim.broker import SimLog
from store.config import StreamsConfig
from store.errors import ConfigError
from store.serdes import LongSerde, StrSerde
from store.state.windowed import LATEST
from store.streams.context import Context
from store.streams.dsl import PunctuationType, StreamsBuilder, TimeWindowedSerde, TimeWindows
from store.streams.timestamps import (
    ConsumedRecord,
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    TimestampExtractor,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from store.streams.topology import Topology
from store.types import IsolationLevel, Record, TopicPartition
from tests.clusters import Cluster
from tests.streams.dsl.running import UNCACHED, driver, output, pipe, results

RC = IsolationLevel.READ_COMMITTED


class OfValue:
    """The number that the value is, or has as its last one."""

    def extract(self, record: ConsumedRecord, partition_time: int) -> int:  # noqa: ARG002
        return int(record.value[-1] if isinstance(record.value, list) else record.value)


class Asked:
    """The number that the value is, and what it was asked with."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def extract(self, record: ConsumedRecord, partition_time: int) -> int:
        self.asked.append((record.offset, partition_time))
        return int(record.value)


def passed_on(extractor: Any) -> Any:
    return lambda made: made.stream("in", timestamp_extractor=extractor).to("out")


def test_a_record_that_cannot_be_read_has_no_time_that_counts() -> None:
    told: list[int] = []

    class Ticks:
        def init(self, context: Any) -> None:
            context.schedule(10, PunctuationType.STREAM_TIME, told.append)

        def process(self, record: Any) -> None: ...

    def build(made: StreamsBuilder) -> None:
        made.stream("in", timestamp_extractor=OfValue).process(Ticks)

    with driver(build, UNCACHED | {"deserialization.exception.handler": "continue"}) as running:
        pipe(running, [("in", "a", 100, 1)])
        running.pipe_input("in", b"a", b"no json", 1_000_000)
        pipe(running, [("in", "a", time, 2) for time in (120, 140)])
    assert told == [100, 120, 140]


def test_a_record_goes_on_with_its_extracted_time() -> None:
    records = [("in", "a", 70, 1), ("in", "b", 50, 2)]
    assert results(passed_on(OfValue), records) == [("a", 70, 70), ("b", 50, 50)]
    assert results(passed_on(OfValue()), records) == [("a", 70, 70), ("b", 50, 50)]
    assert results(passed_on(lambda record, _: record.timestamp + 5), records) == [("a", 70, 6), ("b", 50, 7)]
    assert results(passed_on(f"{__name__}:OfValue"), records) == [("a", 70, 70), ("b", 50, 50)]


def test_an_extractor_is_given_the_record_as_it_was_read() -> None:
    seen: list[ConsumedRecord] = []

    def extract(record: ConsumedRecord, _: int) -> int:
        seen.append(record)
        return 3

    with driver(passed_on(extract)) as running:
        running.pipe_input("in", "k", b"[1]", 9, (("h", b"x"),))
    assert seen == [ConsumedRecord("in", 0, 0, "k", [1], 9, (("h", b"x"),))]


def test_the_partition_time_is_the_largest_so_far_and_no_record_that_is_skipped_counts() -> None:
    asked = Asked()
    with driver(passed_on(asked)) as running:
        pipe(running, [("in", "k", time, 1) for time in (5, 3, -7, 9, 1)])
        assert [time for _, _, time in output(running)] == [5, 3, 9, 1]
        assert running.metrics.tasks_as_dict()["0_0"]["dropped-records-total"] == 1
    assert asked.asked == [(0, -1), (1, 5), (2, 5), (3, 5), (4, 9)]


def test_of_records_that_are_read_at_once_each_is_given_the_partition_time_before_it() -> None:
    asked = Asked()
    with driver(passed_on(asked), auto_commit=False) as running:
        pipe(running, [("in", "k", time, 1) for time in (5, 3, -7, 9, 1)])
        asked.asked.clear()
        running.crash()
        running.process()
    assert asked.asked == [(0, -1), (1, 5), (2, 5), (3, 5), (4, 9)]


def test_each_topic_has_its_own_partition_time() -> None:
    asked = Asked()
    with driver(lambda made: made.stream(("in", "in2"), timestamp_extractor=asked).to("out")) as running:
        pipe(running, [("in", "k", 8, 1), ("in2", "k", 2, 1), ("in", "k", 9, 1), ("in2", "k", 3, 1)])
    assert asked.asked == [(0, -1), (0, -1), (1, 8), (1, 2)]


def test_the_partition_time_outlives_a_crash_and_goes_back_with_what_was_not_committed() -> None:
    asked = Asked()
    with driver(passed_on(asked), auto_commit=False) as running:
        pipe(running, [("in", "k", 5, 1)])
        running.commit()
        pipe(running, [("in", "k", 8, 1), ("in", "k", 4, 1)])
        running.crash()
        running.process()
        running.commit()
        running.crash()
        pipe(running, [("in", "k", 6, 1)])
    assert asked.asked == [(0, -1), (1, 5), (2, 8), (1, 5), (2, 8), (3, 8)]


def test_windows_go_by_the_extracted_time_and_so_does_what_is_late() -> None:
    def counted(made: StreamsBuilder) -> None:
        windowed = (
            made.stream("in", timestamp_extractor=OfValue).group_by_key().windowed_by(TimeWindows.of_size(10))
        )
        windowed.count().to_stream().to("out", value_serde=LongSerde())

    records = [("in", "a", time, 500 - time) for time in (3, 12, 14, 9)]
    found = results(counted, records, key_serde=TimeWindowedSerde(StrSerde(), 10), value_serde=LongSerde())
    assert [(row.window.start, count, time) for row, count, time in found] == [
        (0, 1, 3),
        (10, 1, 12),
        (10, 2, 14),
    ]


def test_inputs_are_taken_in_the_order_of_their_extracted_times() -> None:
    def looking_up(made: StreamsBuilder) -> None:
        table = made.table("users", timestamp_extractor=OfValue)
        stream = made.stream("clicks", timestamp_extractor=OfValue)
        stream.join_table(table, lambda click, user: [click[0], user[0]]).to("out")

    records = [
        ("clicks", "k", ["early", 1], 100),
        ("clicks", "k", ["late", 4], 101),
        ("users", "k", ["ann", 2], 300),
        ("users", "k", ["bob", 9], 1),
    ]
    with driver(looking_up, auto_commit=False) as running:
        running.crash()
        writer = running.log.plain_producer()
        for topic, key, value, time in records:
            writer.produce(topic, key.encode(), json.dumps(value).encode(), partition=0, timestamp=time)
        running.process()
        running.commit()
        assert output(running) == [("k", ["late", "ann"], 4)]


def test_the_changelog_has_the_extracted_time() -> None:
    def kept(made: StreamsBuilder) -> None:
        made.table("in", timestamp_extractor=OfValue, materialized="t")

    with driver(kept) as running:
        pipe(running, [("in", "a", 70, 1)])
        (change,) = running.log.records("app-t-changelog")
        assert change.timestamp == 70
        assert running.get_store("t").get("a") == (70, 70)


def test_punctuators_of_the_stream_time_go_by_the_extracted_times() -> None:
    class Ticking:
        def init(self, context: Any) -> None:
            self.context = context
            context.schedule(10, PunctuationType.STREAM_TIME, self.tick)

        def tick(self, now: int) -> None:
            self.context.forward("tick", now)

        def process(self, record: Any) -> None: ...

    def ticking(made: StreamsBuilder) -> None:
        made.stream("in", timestamp_extractor=OfValue).process(Ticking).to("out")

    assert results(ticking, [("in", "k", time, 1) for time in (5, -20, 9, 17)]) == [
        ("tick", 5, 5),
        ("tick", 17, 17),
    ]


def test_the_default_extractor_is_for_inputs_without_one_of_their_own() -> None:
    def two(made: StreamsBuilder) -> None:
        made.stream("in").to("out")
        made.stream("in2", timestamp_extractor=lambda *_: 7).to("out")

    config = UNCACHED | {"default.timestamp.extractor": OfValue}
    assert results(two, [("in", "a", 70, 1), ("in2", "b", 50, 2)], config) == [("a", 70, 70), ("b", 50, 7)]


def test_topics_between_sub_topologies_keep_their_times() -> None:
    def twice(made: StreamsBuilder) -> None:
        made.stream("in").map_values(lambda value: value + 1).repartition().to("out")

    config = UNCACHED | {"default.timestamp.extractor": OfValue}
    assert results(twice, [("in", "a", 70, 1)], config) == [("a", 71, 70)]


def forward(context: Context, record: Record) -> None:
    assert context.timestamp == record.timestamp
    context.forward("out", record.key, record.value)


def of_bytes(record: ConsumedRecord, partition_time: int) -> int:
    return int(record.value) if record.value else partition_time


def test_the_default_extractor_is_for_functions_too_and_outlives_crashes_there() -> None:
    cluster = Cluster(Topology("app", ("in",), ("out",), (), forward))
    config = StreamsConfig.of({"default.timestamp.extractor": f"{__name__}:of_bytes", "commit.records": 1})

    def feed(*values: bytes) -> None:
        for value in values:
            cluster.broker.append("in", b"k", value, partition=0, timestamp=1_000)

    feed(b"30", b"-2", b"20")
    worker = cluster.worker(config)
    while worker.poll():
        pass
    worker.close()
    feed(b"", b"10")
    cluster.host.release(cluster._processes)
    worker = cluster.worker(config)
    while worker.poll():
        pass
    worker.close()
    made = cluster.broker.visible(TopicPartition("out", 0), RC)
    assert [(one.value, one.timestamp) for one in made] == [(b"30", 30), (b"20", 20), (b"", 30), (b"10", 10)]
    assert SimLog(cluster.broker).reader().committed("app", TopicPartition("in", 0)) == 5


def test_what_an_extractor_raises_about_ends_the_task_when_its_turn_has_come() -> None:
    def picky(record: ConsumedRecord, _: int) -> int:
        if record.value == "bad":
            raise ValueError("no time")
        return record.timestamp

    with driver(passed_on(picky), UNCACHED | {"processing.guarantee": "exactly_once_v2"}) as running:
        pipe(running, [("in", "a", "good", 1)])
        writer = running.log.plain_producer()
        for value in (b'"good"', b'"bad"', b'"good"'):
            writer.produce("in", b"k", value, partition=0, timestamp=2)
        with pytest.raises(ValueError, match="no time") as raised:
            running.process()
        assert raised.value.__notes__ == ["while the time of in-0 offset 2 was asked for"]
        # The driver goes on without it.
        running.process()
        running.commit()
        assert len(output(running)) == 3


def test_no_later_record_of_another_input_comes_before_one_that_an_extractor_raises_about() -> None:
    def picky(record: ConsumedRecord, _: int) -> int:
        if record.value == "bad":
            raise ValueError("no time")
        return record.timestamp

    def merged(made: StreamsBuilder) -> None:
        both = made.stream("in", timestamp_extractor=picky).merge(made.stream("in2"))
        both.peek(lambda _, value: seen.append(value)).to("out")

    seen: list[str] = []
    with driver(merged) as running:
        writer = running.log.plain_producer()
        for topic, value, time in (("in", b'"good"', 1), ("in", b'"bad"', 2), ("in2", b'"later"', 5)):
            writer.produce(topic, b"k", value, partition=0, timestamp=time)
        with pytest.raises(ValueError, match="no time"):
            running.process()
    assert seen == ["good"]


def test_what_is_no_time_is_refused() -> None:
    with (
        driver(passed_on(lambda *_: "now")) as running,
        pytest.raises(TypeError, match="says 'now' for a time"),
    ):
        pipe(running, [("in", "a", 1, 1)])


def test_a_time_later_than_the_last_one_is_refused_where_it_is_returned_and_the_last_one_is_taken() -> None:
    with driver(passed_on(lambda record, _: record.value)) as running:
        pipe(running, [("in", "a", LATEST, 1)])
        for later in (LATEST + 1, 2**70):
            with pytest.raises(ValueError, match=f"an extractor says {later} for a time"):
                pipe(running, [("in", "a", later, 1)])
        assert [time for _, _, time in output(running)] == [LATEST]


def test_a_record_that_cannot_be_read_is_the_handlers_and_no_extractor_is_asked() -> None:
    asked = Asked()
    config = UNCACHED | {
        "deserialization.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    with driver(passed_on(asked), config) as running:
        running.pipe_input("in", "k", b"8", 1)
        running.pipe_input("in", "k", b"{", 90)
        running.pipe_input("in", "k", b"4", 1)
        assert [time for _, _, time in output(running)] == [8, 4]
        assert [record.timestamp for record in running.read_output("dead")] == [90]
    assert asked.asked == [(0, -1), (2, 8)]


def test_one_whose_processing_raises_and_that_is_passed_over_counts_for_the_partition_time() -> None:
    asked = Asked()

    def build(made: StreamsBuilder) -> None:
        made.stream("in", timestamp_extractor=asked).map_values(lambda value: 1 // (50 - value)).to("out")

    with driver(build, UNCACHED | {"processing.exception.handler": "continue"}) as running:
        pipe(running, [("in", "k", 10, 1), ("in", "k", 50, 1)])
        running.crash()
        pipe(running, [("in", "k", 20, 1)])
        assert [time for _, _, time in output(running)] == [10, 20]
    assert asked.asked[-1] == (2, 50)


def test_a_skipped_record_between_updates_that_are_held_back_does_no_harm() -> None:
    def counted(made: StreamsBuilder) -> None:
        made.stream("in", timestamp_extractor=OfValue).group_by_key().count().to_stream().to(
            "out", value_serde=LongSerde()
        )

    with driver(counted, {"statestore.cache.max.bytes": 1 << 20}, auto_commit=False) as running:
        pipe(running, [("in", "k", 5, 1), ("in", "k", -1, 1)])
        running.commit()
        assert output(running, value_serde=LongSerde()) == [("k", 1, 5)]
        pipe(running, [("in", "k", -1, 1)])
        running.commit()
        running.crash()
        running.process()
        assert not output(running, value_serde=LongSerde())


def record(timestamp: int) -> ConsumedRecord:
    return ConsumedRecord("in", 0, 4, None, None, timestamp)


def test_the_extractors_for_invalid_times() -> None:
    extractors: list[TimestampExtractor] = [
        FailOnInvalidTimestamp(),
        LogAndSkipOnInvalidTimestamp(),
        UsePartitionTimeOnInvalidTimestamp(),
    ]
    assert [one.extract(record(7), 9) for one in extractors] == [7, 7, 7]
    fail, skip, use = extractors
    assert skip.extract(record(-1), 9) == -1
    assert use.extract(record(-1), 9) == 9
    with pytest.raises(ValueError, match="in-0 offset 4 has the invalid timestamp -1"):
        fail.extract(record(-1), 9)
    with pytest.raises(ValueError, match="no record before it has another"):
        use.extract(record(-1), -1)


def test_without_an_extractor_an_invalid_time_ends_the_task_when_its_turn_has_come() -> None:
    with driver(lambda made: made.table("in", materialized="t").filter(lambda *_: False)) as running:
        pipe(running, [("in", "a", 1, 5)])
        with pytest.raises(ValueError, match="in-0 offset 1 has the invalid timestamp -1"):
            pipe(running, [("in", "b", 2, -1)])


def test_the_wall_clock_is_that_of_the_task() -> None:
    with driver(passed_on(WallclockTimestampExtractor), wall_clock_ms=4_000) as running:
        pipe(running, [("in", "a", 1, 7)])
        running.advance_wall_clock(500)
        pipe(running, [("in", "a", 2, 7)])
        assert output(running) == [("a", 1, 4_000), ("a", 2, 4_500)]


def test_the_same_topic_with_the_same_extractor_is_the_same_stream() -> None:
    made = StreamsBuilder("app")
    stream = made.stream("in", timestamp_extractor=OfValue)
    assert made.stream("in", timestamp_extractor=OfValue) is stream
    with pytest.raises(ConfigError, match="in one way only"):
        made.stream("in")


def test_what_is_no_extractor_is_refused() -> None:
    for wrong in (7, int, "store.types:Nothing", "store.types:IsolationLevel"):
        with pytest.raises(ConfigError, match="timestamp_extractor"):
            StreamsBuilder("app").stream("in", timestamp_extractor=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"default\.timestamp\.extractor"):
        StreamsConfig.of({"default.timestamp.extractor": 7})
    with (
        pytest.raises(ConfigError, match=r"default\.timestamp\.extractor"),
        driver(passed_on(None), {"default.timestamp.extractor": "store.types:Nothing"}),
    ):
        pass


def test_no_operator_takes_the_name_of_a_partition_time() -> None:
    with pytest.raises(ConfigError, match=r"partition-time\.in"):
        StreamsBuilder("app").stream("in", name="partition-time.in")
