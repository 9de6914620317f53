"""Processors of one's own within the DSL: stores by name, forwarding, punctuators, and what ends them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from store.config import StreamsConfig
from store.errors import ConfigError, ProtocolError
from store.serdes import IntSerde, JsonSerde, StrSerde
from store.streams.dsl import (
    ProcessorContext,
    PunctuationType,
    StreamRecord,
    StreamsBuilder,
    Suppressed,
)
from store.streams.dsl.processors import FixedKeyContext
from store.suppliers import key_value_store_builder, persistent_key_value_store
from store.testing.driver import TestDriver
from store.types import Headers
from tests.clusters import SINK, SOURCE, Cluster
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe, results

pytestmark = pytest.mark.requirement("x.4")

NUMBERS = key_value_store_builder(persistent_key_value_store("numbers"), StrSerde(), IntSerde())


class Numbering:
    """Numbers the records of each key, in a store."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.store("numbers")

    def process(self, record: StreamRecord) -> None:
        number = (self.store.get(record.key) or 0) + 1
        self.store.put(record.key, number)
        self.context.forward(record.key, [number, record.value])


class Calling:
    """A processor of functions."""

    def __init__(
        self,
        process: Callable[[Any, StreamRecord], None] = lambda *_: None,
        begin: Callable[[Any], None] = lambda _: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._process = process
        self._begin = begin
        self.close = end

    def init(self, context: Any) -> None:
        self.context = context
        self._begin(context)

    def process(self, record: StreamRecord) -> None:
        self._process(self.context, record)


def test_a_processor_uses_a_store_by_its_name() -> None:
    def build(b: StreamsBuilder) -> None:
        b.add_state_store(NUMBERS).stream("in").process(Numbering, "numbers").to("out")

    got = results(build, [("in", "a", "x", 1), ("in", "a", "y", 2)])
    assert got == [("a", [1, "x"], 1), ("a", [2, "y"], 2)]


def test_two_processors_that_share_a_store_are_in_one_sub_topology() -> None:
    b = StreamsBuilder("app")
    b.add_state_store(NUMBERS)
    b.stream("one").process(Numbering, "numbers")
    b.stream("two").process(Numbering, "numbers")
    b.stream("three").to("out")
    assert [one.sources for one in b.build().sub_topologies] == [("one", "two"), ("three",)]


def test_a_store_that_nobody_added_is_refused() -> None:
    b = StreamsBuilder("app")
    b.stream("in").process(Numbering, "numbers")
    with pytest.raises(ConfigError, match="numbers"):
        b.build()


def test_a_store_that_the_processor_is_not_connected_to_is_refused() -> None:
    def build(b: StreamsBuilder) -> None:
        b.add_state_store(NUMBERS).stream("in").process(Numbering)

    with pytest.raises(ProtocolError, match="not connected"):
        driver(build)


def test_a_global_store_that_the_processor_did_not_name_is_refused_with_the_way_to_name_it() -> None:
    def build(b: StreamsBuilder) -> None:
        b.global_table("numbers", name="numbers")
        b.stream("in").process(Numbering)

    with pytest.raises(ProtocolError, match=r"as in process\(…, 'numbers'\), also if it is a global one"):
        driver(build)


def test_what_follows_a_processor_is_repartitioned_before_it_is_counted() -> None:
    b = StreamsBuilder("app")
    b.add_state_store(NUMBERS).stream("in").process(Numbering, "numbers").group_by_key().count()
    assert len(b.build().sub_topologies) == 2


def test_a_processor_of_values_keeps_the_key_and_needs_no_repartitioning() -> None:
    def build(b: StreamsBuilder) -> None:
        def process(context: Any, record: StreamRecord) -> None:
            context.forward(record.value + 1)

        b.stream("in").process_values(lambda: Calling(process)).group_by_key().reduce(
            lambda one, two: one + two
        ).to_stream().to("out")

    assert results(build, [("in", "a", 1, 1), ("in", "a", 2, 2)]) == [("a", 2, 1), ("a", 5, 2)]


def test_a_record_is_forwarded_to_one_child_by_its_name() -> None:
    def build(b: StreamsBuilder) -> None:
        def process(context: ProcessorContext, record: StreamRecord) -> None:
            context.forward(record.key, record.value, to="two", timestamp=7, headers=(("h", b"1"),))

        stream = b.stream("in").process(lambda: Calling(process))
        stream.map_values(lambda v: v, name="one").to("out")
        stream.map_values(lambda v: -v, name="two").to("out")

    with driver(build) as running:
        pipe(running, [("in", "a", 1, 1)])
        (record,) = running.read_output("out")
    assert (record.value, record.timestamp, record.headers) == (b"-1", 7, (("h", b"1"),))


def test_the_time_0_is_a_time_that_a_processor_may_give_to_what_it_forwards() -> None:
    def build(b: StreamsBuilder) -> None:
        def first(context: ProcessorContext, record: StreamRecord) -> None:
            context.forward(record.key, record.value, timestamp=0)

        def second(context: ProcessorContext, record: StreamRecord) -> None:
            context.forward(record.key, record.timestamp, timestamp=7)

        b.stream("in").process(lambda: Calling(first)).process(lambda: Calling(second)).to("out")

    assert results(build, [("in", "a", 5, 9)]) == [("a", 0, 7)]


def test_an_error_of_what_is_forwarded_to_counts_though_the_processor_swallows_it() -> None:
    def fail(*_: object) -> None:
        raise ValueError("downstream")

    def build(b: StreamsBuilder) -> None:
        def process(context: ProcessorContext, record: StreamRecord) -> None:
            try:
                context.forward(record.key, record.value)
            except ValueError:
                pass

        b.stream("in").process(lambda: Calling(process)).foreach(fail)

    with driver(build) as running, pytest.raises(ValueError, match="downstream"):
        pipe(running, [("in", "a", 1, 1)])


def test_an_error_that_a_processor_swallows_counts_also_where_a_commit_has_it_called() -> None:
    def fail(*_: object) -> None:
        raise ValueError("downstream")

    def build(b: StreamsBuilder) -> None:
        def process(context: ProcessorContext, record: StreamRecord) -> None:
            with suppress(ValueError):
                context.forward(record.key, record.value)

        counts = b.stream("in").group_by_key().count()
        counts.to_stream().process(lambda: Calling(process)).foreach(fail)

    with driver(build, CACHED) as running, pytest.raises(ValueError, match="downstream"):
        pipe(running, [("in", "a", 1, 1)])


def test_a_processor_is_made_begun_and_ended_with_its_task() -> None:
    seen: list[str] = []

    def make() -> Calling:
        seen.append("made")
        return Calling(begin=lambda _: seen.append("begun"), end=lambda: seen.append("ended"))

    with driver(lambda b: b.stream("in").process(make)):
        assert seen == ["made", "begun"]
    assert seen == ["made", "begun", "ended"]


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_processor_that_is_not_made_anew_for_each_task_is_refused(partitions: int) -> None:
    """Two tasks would forward through the context of one of them, into its transaction."""
    builder = StreamsBuilder("app")
    processor = Calling()
    builder.stream("in").process(lambda: processor, name="shared")
    application = builder.build()
    with (
        pytest.raises(ConfigError, match="makes a new processor each time, for shared"),
        TestDriver(application, partitions=partitions) as running,
    ):
        running.crash()


@pytest.mark.parametrize("made", [None, object()])
def test_a_supplier_that_makes_no_processor_is_refused(made: Any) -> None:
    builder = StreamsBuilder("app")
    builder.stream("in").process(lambda: made, name="mine")
    application = builder.build()
    with pytest.raises(ConfigError, match=r"one that makes an object with process\(\), for mine, not "):
        TestDriver(application)


def test_an_application_that_was_bound_still_goes_to_other_processes() -> None:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    builder.add_state_store(NUMBERS).stream("in").process(Numbering, "numbers").to("out")
    application = builder.build()
    for again in range(2):
        with TestDriver(application) as running:
            pipe(running, [("in", "a", again, 1)])
            assert output(running) == [("a", [1, again], 1)]
        application = pickle.loads(pickle.dumps(application))


def test_a_processor_that_writes_before_there_is_a_transaction_is_told() -> None:
    def build(b: StreamsBuilder) -> None:
        make = lambda: Calling(begin=lambda context: context.store("numbers").put("a", 1))  # noqa: E731
        b.add_state_store(NUMBERS).stream("in").process(make, "numbers")

    with pytest.raises(ProtocolError) as caught:
        driver(build)
    assert "only from the first record, or punctuator, on" in caught.value.__notes__[-1]


@pytest.mark.parametrize(
    "headers",
    [(("a", "text"),), (("a", 5),), ((b"a", b"x"),), (("a",),), {"a": b"x"}, "ab", (["a", b"x"],), (None,)],
    ids=repr,
)
def test_headers_that_could_not_be_read_again_are_refused(headers: Any) -> None:
    """`suppress` would have committed them, and no task could have been opened over that."""

    def build(b: StreamsBuilder) -> None:
        forward = b.stream("in").process(
            lambda: Calling(lambda context, record: context.forward(record.key, 1, headers=headers))
        )
        late = Suppressed.until_time_limit(1_000)
        forward.group_by_key().count().suppress(late).to_stream().to("out")

    with driver(build) as running:
        with pytest.raises(TypeError, match="headers are pairs of a name and of bytes or None"):
            pipe(running, [("in", "a", 1, 1)])
        running.crash()


@pytest.mark.parametrize(
    ("timestamp", "error"), [(5.5, TypeError), (True, TypeError), (-1, ValueError), (1 << 63, ValueError)]
)
def test_a_time_that_could_not_be_read_again_is_refused(timestamp: Any, error: type[Exception]) -> None:
    def build(b: StreamsBuilder) -> None:
        forwarded = b.stream("in").process_values(
            lambda: Calling(lambda context, _: context.forward(1, timestamp=timestamp))
        )
        forwarded.to_table().suppress(Suppressed.until_time_limit(1_000)).to_stream().to("out")

    with driver(build) as running:
        with pytest.raises(error, match=r"timestamp .*milliseconds"):
            pipe(running, [("in", "a", 1, 1)])
        running.crash()


def test_headers_may_come_in_any_sequence() -> None:
    given = [("a", b"x"), ("a", None)]

    def build(b: StreamsBuilder) -> None:
        make = lambda: Calling(lambda context, record: context.forward(record.key, 1, headers=given))  # noqa: E731
        b.stream("in").process(make).to("out")

    with driver(build) as running:
        pipe(running, [("in", "a", 1, 1)])
        assert [record.headers for record in running.read_output("out")] == [tuple(given)]


class Forwarding:
    def __init__(self, headers: Headers | None = None) -> None:
        self.headers = headers

    def init(self, context: FixedKeyContext) -> None:
        self.context = context

    def process(self, record: StreamRecord) -> None:
        self.context.forward(record.value, headers=self.headers)


def test_a_processor_forwards_at_the_time_of_the_result_that_it_was_given() -> None:
    def build(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count().to_stream().process_values(Forwarding).to("out")

    assert results(build, [("in", "a", 1, 100), ("in", "a", 1, 50)]) == [("a", 1, 100), ("a", 2, 100)]


def test_a_processor_forwards_with_the_headers_that_it_was_given() -> None:
    signed = (("signed", b"yes"),)

    def build(builder: StreamsBuilder) -> None:
        first = builder.stream("in").process_values(lambda: Forwarding(signed))
        first.process_values(Forwarding).to("out")

    with driver(build) as tested:
        pipe(tested, [("in", "a", 1, 100)])
        assert [one.headers for one in tested.read_output("out", StrSerde(), JsonSerde())] == [signed]


def test_a_processor_sees_where_its_record_comes_from() -> None:
    seen: list[object] = []

    def process(context: ProcessorContext, _: StreamRecord) -> None:
        seen.append((context.record_metadata, context.stream_time_ms, context.wall_clock_ms))

    with driver(lambda b: b.stream("in").process(lambda: Calling(process)), wall_clock_ms=99) as running:
        pipe(running, [("in", "a", 1, 5), ("in", "a", 1, 3)])
    assert seen == [(("in", 0, 0), 5, 99), (("in", 0, 1), 5, 99)]


def punctuated(
    kind: PunctuationType, seen: list[int], start_ms: int | None = None
) -> Callable[[StreamsBuilder], None]:
    def build(b: StreamsBuilder) -> None:
        def begin(context: ProcessorContext) -> None:
            def punctuate(now: int) -> None:
                seen.append(now)
                context.forward("tick", now)

            context.schedule(10, kind, punctuate, start_ms=start_ms)

        b.stream("in").process(lambda: Calling(begin=begin)).to("out")

    return build


def test_stream_time_punctuators_run_at_the_first_record_and_then_at_multiples() -> None:
    seen: list[int] = []
    with driver(punctuated(PunctuationType.STREAM_TIME, seen)) as running:
        pipe(running, [("in", "a", 1, time) for time in (7, 9, 10, 19, 35, 36, 20, 40)])
        assert seen == [7, 10, 35, 40]
        assert output(running) == [("tick", 7, 7), ("tick", 10, 10), ("tick", 35, 35), ("tick", 40, 40)]


def test_wall_clock_punctuators_run_an_interval_after_they_were_scheduled() -> None:
    seen: list[int] = []
    with driver(punctuated(PunctuationType.WALL_CLOCK_TIME, seen), wall_clock_ms=5) as running:
        for step in (9, 1, 9, 25, 6):
            running.advance_wall_clock(step)
        assert seen == [15, 49, 55]
        assert [value for _, value, _ in output(running)] == [15, 49, 55]


@pytest.mark.parametrize(
    ("start_ms", "calls"),
    [
        (0, [1, 12, 33, 45]),
        (3, [4, 13, 33, 45]),
        (7, [7, 17, 33, 45]),
        (15, [17, 33, 45]),
        (100, []),
    ],
)
def test_stream_time_punctuators_that_have_a_start_run_then_and_at_multiples_after_it(
    start_ms: int, calls: list[int]
) -> None:
    """What Kafka Streams 4.3.1 does."""
    seen: list[int] = []
    with driver(punctuated(PunctuationType.STREAM_TIME, seen, start_ms)) as running:
        pipe(running, [("in", "a", 1, time) for time in (1, 4, 7, 12, 13, 17, 33, 45)])
    assert seen == calls


@pytest.mark.parametrize(
    ("start_ms", "calls"),
    [
        (0, [1012, 1020, 1057, 1061]),
        (3, [1004, 1016, 1057, 1065]),
        (993, [1004, 1016, 1057, 1065]),
        (997, [1008, 1020, 1057]),
        (1000, [1004, 1012, 1020, 1057, 1061]),
        (1015, [1016, 1057, 1065]),
        (1100, []),
    ],
)
def test_wall_clock_punctuators_that_have_a_start_run_then_and_at_multiples_after_it(
    start_ms: int, calls: list[int]
) -> None:
    """What Kafka Streams 4.3.1 does."""
    seen: list[int] = []
    with driver(punctuated(PunctuationType.WALL_CLOCK_TIME, seen, start_ms), wall_clock_ms=1000) as running:
        for step in (4, 4, 4, 4, 4, 37, 4, 4):
            running.advance_wall_clock(step)
    assert seen == calls


@pytest.mark.parametrize(
    ("start_ms", "calls"), [(0, [33]), (3, [13, 33]), (7, [17, 33]), (15, [17, 33]), (100, [])]
)
def test_a_start_that_has_passed_when_it_is_asked_for_is_not_made_up_for(
    start_ms: int, calls: list[int]
) -> None:
    """What Kafka Streams 4.3.1 does."""
    seen: list[int] = []

    def process(context: ProcessorContext, record: StreamRecord) -> None:
        if record.value == 1:
            context.schedule(10, PunctuationType.STREAM_TIME, seen.append, start_ms=start_ms)

    with driver(lambda b: b.stream("in").process(lambda: Calling(process))) as running:
        pipe(running, [("in", "a", int(time == 12), time) for time in (1, 12, 13, 17, 33)])
    assert seen == calls


def test_wall_clock_punctuators_wait_for_their_start_when_the_clock_is_set_back() -> None:
    seen: list[int] = []
    with driver(punctuated(PunctuationType.WALL_CLOCK_TIME, seen, 1_000), wall_clock_ms=900) as running:
        for step in (105, -500, 490, 10, 10):
            running.clock.advance(step)
            running.advance_wall_clock(0)
    assert seen == [1005, 1005, 1015]


def test_a_start_before_the_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="start_ms=-1 is not allowed"):
        driver(punctuated(PunctuationType.STREAM_TIME, [], -1))


def test_wall_clock_punctuators_go_on_when_the_clock_is_set_back_or_far_ahead() -> None:
    seen: list[int] = []
    with driver(punctuated(PunctuationType.WALL_CLOCK_TIME, seen), wall_clock_ms=100_000) as running:
        running.advance_wall_clock(10)
        running.clock.advance(-50_000)
        for step in (0, 10, 50_000, 10):
            running.advance_wall_clock(step)
        assert seen == [100_010, 50_020, 100_020, 100_030]


@pytest.mark.parametrize("kind", PunctuationType)
def test_what_a_punctuator_writes_has_the_time_of_the_call(kind: PunctuationType) -> None:
    """Also where no record came since the task was opened: then there is none that would have a time."""
    seen: list[object] = []

    def build(b: StreamsBuilder) -> None:
        def begin(context: ProcessorContext) -> None:
            def punctuate(_: int) -> None:
                store = context.store("numbers")
                store.put("a", (store.get("a") or 0) + 1)
                seen.append((context.task_id, *context.record_metadata))
                context.forward("a", store.get("a"))

            context.schedule(10, kind, punctuate)

        b.add_state_store(NUMBERS).stream("in").process(lambda: Calling(begin=begin), "numbers").to("out")

    with driver(build, wall_clock_ms=1_000) as running:
        running.advance_wall_clock(10)
        pipe(running, [("in", "b", 1, 70), ("in", "b", 1, 60)])
        running.crash()
        running.advance_wall_clock(10)
        changes = [record.timestamp for record in running.log.records("app-numbers-changelog")]
        times = [time for _, _, time in output(running)]
    by_records = kind is PunctuationType.STREAM_TIME
    assert (changes, times) == (([70], [70]) if by_records else ([1_010, 1_020], [1_010, 70]))
    assert set(seen) == {(0, "", -1, -1)}


@pytest.mark.parametrize("config", [UNCACHED, CACHED])
def test_what_a_processor_writes_has_the_time_of_the_record_that_it_was_given(
    config: dict[str, object],
) -> None:
    def build(b: StreamsBuilder) -> None:
        def put(context: ProcessorContext, record: StreamRecord) -> None:
            store = context.store("numbers")
            store.put(record.key, record.value)
            context.forward(record.key, record.value, timestamp=record.timestamp + 5)
            store.put("z", record.value)

        def later(context: ProcessorContext, record: StreamRecord) -> None:
            context.forward(record.key, record.value, timestamp=record.timestamp + 100)

        def last(context: ProcessorContext, record: StreamRecord) -> None:
            context.store("numbers").put("last", record.value)

        stream = b.add_state_store(NUMBERS.with_caching_enabled()).stream("in")
        stream = stream.process(lambda: Calling(later))
        stream.process(lambda: Calling(put), "numbers").process(lambda: Calling(last), "numbers")

    with driver(build, config) as running:
        pipe(running, [("in", "a", 1, 70)])
        changes = {record.key: record.timestamp for record in running.log.records("app-numbers-changelog")}
    assert changes == {b"a": 170, b"last": 175, b"z": 170}


def test_what_a_cached_table_leads_a_processor_with_a_cached_store_to_write_is_there_after_a_restore() -> (
    None
):
    def build(b: StreamsBuilder) -> None:
        def keep(context: ProcessorContext, record: StreamRecord) -> None:
            context.store("numbers").put(record.key, record.value)

        b.add_state_store(NUMBERS.with_caching_enabled())
        counts = b.stream("in").group_by_key().count()
        counts.to_stream().process(lambda: Calling(keep), "numbers")

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 1, 2)])
        running.commit()
        running._storage = type(running._storage)()
        running.crash()
        assert running.get_store("numbers").get("a") == 2


@pytest.mark.parametrize("kind", PunctuationType)
def test_of_punctuators_that_are_due_at_once_the_earliest_runs_first(kind: PunctuationType) -> None:
    seen: list[int] = []

    def build(b: StreamsBuilder) -> None:
        def begin(context: ProcessorContext) -> None:
            def schedule(start_ms: int) -> None:
                context.schedule(100, kind, lambda _: seen.append(start_ms), start_ms=start_ms)

            for start_ms in (30, 20, 40):
                schedule(start_ms)

        b.stream("in").process(lambda: Calling(begin=begin))

    with driver(build, wall_clock_ms=5) as running:
        running.advance_wall_clock(45)
        pipe(running, [("in", "a", 1, 50)])
    assert seen == [20, 30, 40]


@pytest.mark.parametrize("kind", PunctuationType)
def test_punctuators_that_are_due_at_the_same_time_run_in_the_order_in_which_they_were_asked_for(
    kind: PunctuationType,
) -> None:
    """Each time, and after a restart too."""
    seen: list[int] = []

    def build(b: StreamsBuilder) -> None:
        def begin(context: ProcessorContext) -> None:
            def schedule(number: int) -> None:
                context.schedule(10, kind, lambda _: seen.append(number))

            for number in range(5):
                schedule(number)

        b.stream("in").process(lambda: Calling(begin=begin))

    with driver(build) as running:
        for time in (10, 20, 30):
            running.advance_wall_clock(10)
            pipe(running, [("in", "a", 1, time)])
            if time == 20:
                running.crash()
    assert seen == [*range(5)] * 3


def test_a_punctuator_that_is_cancelled_runs_no_more() -> None:
    seen: list[int] = []

    def build(b: StreamsBuilder) -> None:
        def begin(context: ProcessorContext) -> None:
            def punctuate(now: int) -> None:
                seen.append(now)
                cancel()

            cancel = context.schedule(10, PunctuationType.STREAM_TIME, punctuate)

        b.stream("in").process(lambda: Calling(begin=begin))

    with driver(build) as running:
        pipe(running, [("in", "a", 1, time) for time in (7, 20, 30)])
    assert seen == [7]


MINUTE = 60_000


def passing_over(
    kind: PunctuationType, seen: list[int] | None = None, start_ms: int | None = None
) -> Callable[[StreamsBuilder], None]:
    """Forwards a tick each minute, and raises for a bad key."""

    def build(b: StreamsBuilder) -> None:
        def begin(context: ProcessorContext) -> None:
            def punctuate(now: int) -> None:
                if seen is not None:
                    seen.append(now)
                context.forward("tick", now)

            context.schedule(MINUTE, kind, punctuate, start_ms=start_ms)

        def process(_: ProcessorContext, record: StreamRecord) -> None:
            if record.key == "bad":
                raise ValueError("bad record")

        b.stream("in").process(lambda: Calling(process, begin)).to("out")

    return build


PASSING = {"statestore.cache.max.bytes": 0, "processing.exception.handler": "continue"}


@pytest.mark.parametrize("start_s", [None, 0, 20, 1_000])
@pytest.mark.parametrize("between", [300, 50, 30])
@pytest.mark.parametrize("what", ["bad records", "crashes"])
def test_stream_time_punctuators_run_as_often_whatever_goes_wrong(
    what: str, between: int, start_s: int | None
) -> None:
    start_ms = None if start_s is None else start_s * 1_000
    with driver(passing_over(PunctuationType.STREAM_TIME, start_ms=start_ms), PASSING) as running:
        for second in range(0, 3_601, 10):
            if second % between == 0:
                if what == "crashes":
                    running.crash()
                else:
                    pipe(running, [("in", "bad", 1, second * 1_000)])
            pipe(running, [("in", "a", 1, second * 1_000)])
        calls = range(start_ms or 0, 3_600_001, MINUTE)
        assert [value for _, value, _ in output(running)] == list(calls)


def test_a_stream_time_punctuator_that_a_bad_record_made_due_runs_after_a_crash() -> None:
    with driver(passing_over(PunctuationType.STREAM_TIME), PASSING) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "bad", 1, MINUTE)])
        running.crash()
        pipe(running, [("in", "a", 1, MINUTE + 7)])
        assert [value for _, value, _ in output(running)] == [1, MINUTE + 7]


def test_what_a_stream_time_punctuator_did_in_a_transaction_that_was_aborted_is_done_again() -> None:
    seen: list[int] = []
    with driver(passing_over(PunctuationType.STREAM_TIME, seen), PASSING, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1)])
        running.commit()
        pipe(running, [("in", "a", 1, MINUTE), ("in", "bad", 1, MINUTE + 1)])
        running.commit()
        assert seen == [1, MINUTE, MINUTE]
        assert [value for _, value, _ in output(running)] == [1, MINUTE]


def test_a_stream_time_punctuator_that_raises_ends_the_application_whatever_a_handler_says_of_records() -> (
    None
):
    def fail(_: int) -> None:
        raise ValueError("a punctuator's")

    def begin(context: ProcessorContext) -> None:
        context.schedule(MINUTE, PunctuationType.STREAM_TIME, fail)

    builder = StreamsBuilder("app")
    builder.stream(SOURCE.topic).process(lambda: Calling(lambda *_: None, begin)).to(SINK.topic)
    cluster = Cluster(builder.build().sub_topologies[0], [b"a"])
    worker = cluster.worker(StreamsConfig.of({"processing.exception.handler": "continue"}))

    def work() -> None:
        for _ in range(100):
            worker.poll()

    with pytest.raises(ValueError, match="a punctuator's"):
        work()
    worker.close()


@pytest.mark.parametrize("transactional", [True, False])
def test_wall_clock_punctuators_run_as_often_whatever_bad_records_come(transactional: bool) -> None:
    """Without transactions another incarnation of the task follows each."""

    def build(b: StreamsBuilder) -> None:
        supplier = persistent_key_value_store("numbers", transactional=transactional)
        b.add_state_store(key_value_store_builder(supplier, StrSerde(), IntSerde()))
        b.stream("in").process(Numbering, "numbers")
        passing_over(PunctuationType.WALL_CLOCK_TIME)(b)

    with driver(build, PASSING) as running:
        for _ in range(72):
            pipe(running, [("in", "bad", 1, 1)])
            running.advance_wall_clock(50_000)
        assert len(output(running)) == 60


def test_what_a_wall_clock_punctuator_did_in_a_transaction_that_was_aborted_is_done_at_once() -> None:
    with driver(passing_over(PunctuationType.WALL_CLOCK_TIME), PASSING, auto_commit=False) as running:
        running.advance_wall_clock(MINUTE)
        pipe(running, [("in", "bad", 1, 1)])
        running.commit()
        assert [value for _, value, _ in output(running)] == [MINUTE]


def test_wall_clock_punctuators_run_after_an_abort_when_the_clock_was_set_back() -> None:
    with driver(
        passing_over(PunctuationType.WALL_CLOCK_TIME), PASSING, wall_clock_ms=100 * MINUTE
    ) as running:
        running.clock.advance(-50 * MINUTE)
        for _ in range(6):
            pipe(running, [("in", "bad", 1, 1)])
            running.advance_wall_clock(50_000)
        assert len(output(running)) == 5


def test_after_a_crash_wall_clock_punctuators_begin_their_interval_anew() -> None:
    with driver(passing_over(PunctuationType.WALL_CLOCK_TIME), PASSING) as running:
        running.advance_wall_clock(50_000)
        running.crash()
        running.advance_wall_clock(50_000)
        assert output(running) == []
        running.advance_wall_clock(10_000)
        assert [value for _, value, _ in output(running)] == [110_000]


def test_a_stream_time_punctuator_that_asks_for_the_next_one_each_time_comes_to_an_end() -> None:
    """The first one that is asked for runs at once, as in Kafka Streams; there one that asks for another never ends."""
    calls: list[int] = []

    class Renewing:
        def init(self, context: ProcessorContext) -> None:
            self.context = context
            self.renew()

        def renew(self) -> None:
            self.cancel = self.context.schedule(10, PunctuationType.STREAM_TIME, self.punctuate)

        def punctuate(self, time: int) -> None:
            calls.append(time)
            assert len(calls) < 100
            self.cancel()
            self.renew()

        def process(self, record: object) -> None: ...

    with driver(lambda made: made.stream("in").process(Renewing)) as running:
        pipe(running, [("in", "k", 1, 5)])
        assert calls == [5, 5]
        pipe(running, [("in", "k", 1, 6)])
        assert calls == [5, 5, 6, 6]


def test_a_processor_may_schedule_while_it_processes() -> None:
    seen: list[int] = []

    def build(b: StreamsBuilder) -> None:
        def process(context: ProcessorContext, _: StreamRecord) -> None:
            if not seen:
                context.schedule(10, PunctuationType.STREAM_TIME, seen.append)

        b.stream("in").process(lambda: Calling(process))

    with driver(build) as running:
        pipe(running, [("in", "a", 1, 7)])
    assert seen == [7]


WRITES: dict[str, Callable[[Any], object]] = {
    "put": lambda store: store.put("a", 1),
    "put_all": lambda store: store.put_all([("a", 1)]),
    "delete": lambda store: store.delete("a"),
}


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_a_processor_that_writes_as_it_begins_or_ends_is_refused_whatever_its_store_is(
    write: str, logged: bool, cached: bool, guarantee: str
) -> None:
    made = NUMBERS.with_caching_enabled() if cached else NUMBERS
    made = made if logged else made.with_logging_disabled()
    refused: list[str] = []

    def writes(store: Any) -> None:
        with pytest.raises(ProtocolError, match=f"called {write} of store numbers as it began or ended"):
            WRITES[write](store)
        refused.append(write)

    def build(b: StreamsBuilder) -> None:
        b.add_state_store(made)
        kept: list[Any] = []

        def begin(context: ProcessorContext) -> None:
            kept[:] = [context.store("numbers")]
            assert kept[0].get("a") is None
            writes(kept[0])

        b.stream("in").process(
            lambda: Calling(lambda *_: None, begin, lambda: writes(kept[0])), "numbers"
        ).to("out")

    with driver(build, {"processing.guarantee": guarantee}) as running:
        pipe(running, [("in", "a", 1, 7)])
        assert running.get_store("numbers").get("a") is None
    assert refused == [write, write]


@pytest.mark.parametrize("raises", ["first", "second"])
def test_a_processor_that_raises_as_it_ends_keeps_no_other_from_ending(raises: str) -> None:
    ended: list[str] = []

    def end(name: str) -> None:
        ended.append(name)
        if name == raises:
            raise ValueError("cannot end")

    def build(b: StreamsBuilder) -> None:
        first = b.stream("in").process(lambda: Calling(end=lambda: end("first")))
        first.process(lambda: Calling(end=lambda: end("second")))

    with pytest.raises(ValueError, match="cannot end"), driver(build):
        pass
    assert sorted(ended) == ["first", "second"]


class UnableError(Exception):
    """What a processor raises that cannot begin."""


def unable(*_: Any) -> None:
    raise UnableError


def three(ended: list[str], end: Callable[[str], None] = lambda _: None) -> Callable[[StreamsBuilder], None]:
    """Processors one after the other, of which the last cannot begin."""

    def ends(name: str) -> None:
        ended.append(name)
        end(name)

    def build(b: StreamsBuilder) -> None:
        first = b.stream("in").process(lambda: Calling(end=lambda: ends("first")))
        second = first.process(lambda: Calling(end=lambda: ends("second")))
        second.process(lambda: Calling(begin=unable, end=lambda: ends("third")))

    return build


def test_processors_that_had_begun_are_closed_in_the_order_of_any_close_when_another_cannot_begin() -> None:
    ended: list[str] = []
    with pytest.raises(UnableError):
        driver(three(ended))
    assert ended == ["second", "first"]


def test_what_a_processor_raises_as_it_is_closed_is_noted_when_another_cannot_begin() -> None:
    def end(name: str) -> None:
        if name == "second":
            raise ValueError("cannot end")

    ended: list[str] = []
    with pytest.raises(UnableError) as raised:
        driver(three(ended, end))
    assert ended == ["second", "first"]
    assert "closing what had begun failed too: ValueError('cannot end')" in raised.value.__notes__


def test_a_processor_is_closed_once_for_each_time_it_begins_however_often_another_cannot() -> None:
    ended: list[str] = []
    builder = StreamsBuilder("app")
    three(ended)(builder)
    (topology,) = builder.build().sub_topologies
    worker = Cluster(topology).worker()
    for _ in range(3):
        with pytest.raises(UnableError):
            worker.poll()
    worker.close()
    assert ended == ["second", "first"] * 3


def test_the_tasks_of_a_driver_are_closed_when_another_cannot_begin() -> None:
    ended: list[str] = []
    begun: list[int] = []

    def begin(_: Any) -> None:
        begun.append(1)
        if len(begun) == 2:
            raise UnableError

    def build(b: StreamsBuilder) -> None:
        b.stream("in").process(lambda: Calling(begin=begin, end=lambda: ended.append("ended")))

    with pytest.raises(UnableError):
        driver(build, partitions=2)
    assert ended == ["ended"]


def test_a_write_that_a_processor_keeps_as_it_begins_is_made_when_records_come() -> None:
    def build(b: StreamsBuilder) -> None:
        b.add_state_store(NUMBERS)
        kept: list[Any] = []

        def process(_: ProcessorContext, record: StreamRecord) -> None:
            kept[0](record.key, record.value)

        b.stream("in").process(
            lambda: Calling(process, lambda context: kept.append(context.store("numbers").put)), "numbers"
        )

    with driver(build) as running:
        pipe(running, [("in", "a", 5, 7)])
        assert running.get_store("numbers").get("a") == 5


def test_a_processor_reads_a_tables_store_with_what_is_held_back() -> None:
    def build(b: StreamsBuilder) -> None:
        def process(context: ProcessorContext, record: StreamRecord) -> None:
            found = context.store("counts").get(record.key)
            context.forward(record.key, None if found is None else found.value)

        stream = b.stream("in")
        stream.group_by_key().count(materialized="counts").to_stream().to("counted", value_serde=IntSerde())
        stream.process(lambda: Calling(process), "counts").to("out")

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 1, 2), ("in", "b", 1, 3)])
        running.commit()
        assert [value for _, value, _ in output(running)] == [1, 2, 1]
        assert [record.value for record in running.read_output("counted", StrSerde(), IntSerde())] == [2, 1]


def test_what_a_processor_writes_to_a_tables_store_is_what_the_table_goes_on_with() -> None:
    def build(b: StreamsBuilder) -> None:
        def process(context: ProcessorContext, record: StreamRecord) -> None:
            if record.value == "reset":
                context.store("counts").put(record.key, None)

        stream = b.stream("in")
        stream.process(lambda: Calling(process), "counts")
        stream.group_by_key().count(materialized="counts").to_stream().to("out")

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 1, 2), ("in", "a", "reset", 3)])
        assert running.get_store("counts").get("a").value == 1
        pipe(running, [("in", "a", 1, 4)])
        assert running.get_store("counts").get("a").value == 2


def test_a_processor_may_ask_for_a_commit() -> None:
    def build(b: StreamsBuilder) -> None:
        def process(context: ProcessorContext, record: StreamRecord) -> None:
            context.forward(record.key, record.value)
            if record.value == 2:
                context.commit()

        b.stream("in").process(lambda: Calling(process)).to("out")

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1)])
        assert output(running) == []
        pipe(running, [("in", "a", 2, 1)])
        assert [value for _, value, _ in output(running)] == [1, 2]


def test_each_wall_clock_punctuator_of_a_processor_goes_on_where_it_was_after_records_are_passed_over() -> (
    None
):
    seen: list[tuple[str, int]] = []

    def build(b: StreamsBuilder) -> None:
        def begin(context: ProcessorContext) -> None:
            for name, interval_ms in (("fast", 10), ("slow", 30)):
                schedule(context, name, interval_ms)

        def schedule(context: ProcessorContext, name: str, interval_ms: int) -> None:
            context.schedule(
                interval_ms, PunctuationType.WALL_CLOCK_TIME, lambda now: seen.append((name, now))
            )

        def process(_context: ProcessorContext, _record: StreamRecord) -> None:
            raise ValueError

        b.stream("in").process(lambda: Calling(process, begin))

    with driver(build, UNCACHED | {"processing.exception.handler": "continue"}) as running:
        for _ in range(7):
            running.advance_wall_clock(5)
            pipe(running, [("in", "a", 1, 1)])
    assert seen == [("fast", 10), ("fast", 20), ("fast", 30), ("slow", 30)]
