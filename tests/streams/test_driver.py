"""`TestDriver` itself: what it does once an application has raised, and once it is closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store.errors import LogError, ProtocolError
from store.serdes import JsonSerde, StrSerde
from store.state.timestamped import ValueAndTimestamp
from store.streams.dsl import ProcessorContext, PunctuationType, StreamsBuilder
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.streams.handlers import ErrorHandlerContext, Response, dead_letter
from store.suppliers import key_value_store_builder, persistent_key_value_store
from store.testing.driver import TestDriver
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe

GUARANTEES = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])


def at_once(made: StreamsBuilder) -> None:
    made.stream("in").map_values(lambda value: 12 / value).to("out")


def behind_a_repartition_topic(made: StreamsBuilder) -> None:
    grouped = made.stream("in").group_by(lambda _, value: str(value))
    grouped.reduce(lambda _, new: new).to_stream().map_values(lambda value: 12 / value).to("out")


@GUARANTEES
@pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["without a cache", "with a cache"])
@pytest.mark.parametrize("build", [at_once, behind_a_repartition_topic])
def test_after_a_record_that_raised_the_others_go_on(
    build: Callable[[StreamsBuilder], None], config: dict[str, object], guarantee: str
) -> None:
    with driver(build, config | {"processing.guarantee": guarantee}) as running:
        pipe(running, [("in", "a", 1, 1)])
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                pipe(running, [("in", "a", 0, 2)])
        pipe(running, [("in", "a", 2, 3)])
        running.crash()
        pipe(running, [("in", "a", 3, 4)])
        assert [value for _, value, _ in output(running)] == [12, 6, 4]


@GUARANTEES
def test_a_commit_that_a_processor_has_asked_for_and_that_raises_is_blamed_on_what_it_commits(
    guarantee: str,
) -> None:
    class Asking:
        def init(self, context: FixedKeyContext) -> None:
            self.context = context

        def process(self, record: StreamRecord) -> None:
            self.context.forward(record.value)
            self.context.commit()

    def build(made: StreamsBuilder) -> None:
        reduced = made.stream("in").process_values(Asking).group_by_key().reduce(lambda _, new: new)
        reduced.to_stream().map_values(lambda value: 12 / value).to("out")

    with driver(build, CACHED | {"processing.guarantee": guarantee}) as running:
        with pytest.raises(ZeroDivisionError):
            pipe(running, [("in", "a", 0, 1)])
        pipe(running, [("in", "a", 3, 2)])
        assert [value for _, value, _ in output(running)] == [4]


def test_exactly_once_nothing_of_a_record_that_raised_is_left_in_a_store() -> None:
    def build(made: StreamsBuilder) -> None:
        counts = made.stream("in").group_by_key().count(materialized="counts").to_stream()
        counts.map_values(lambda count: 12 / (count - 2)).to("out")

    with driver(build, UNCACHED | {"processing.guarantee": "exactly_once_v2"}) as running:
        pipe(running, [("in", "a", "x", 1)])
        with pytest.raises(ZeroDivisionError):
            pipe(running, [("in", "a", "x", 2)])
        assert running.get_store("counts").get("a") == (1, 1)


def test_a_commit_that_is_asked_for_and_raises_leaves_the_input_there() -> None:
    config = CACHED | {"processing.guarantee": "exactly_once_v2"}
    with driver(behind_a_table, config, auto_commit=False) as running:
        pipe(running, [("in", "a", 0, 1)])
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                running.commit()
            running.process()
        pipe(running, [("in", "a", 3, 2)])
        running.commit()
        assert [value for _, value, _ in output(running)] == [4]


def behind_a_table(made: StreamsBuilder) -> None:
    reduced = made.stream("in").group_by_key().reduce(lambda _, new: new)
    reduced.to_stream().map_values(lambda value: 12 / value).to("out")


def test_a_timestamp_that_is_not_whole_is_refused_before_anything_is_written() -> None:
    with driver(at_once) as running:
        with pytest.raises(TypeError, match=r"timestamp 1\.5 of a record for in: milliseconds as an int"):
            pipe(running, [("in", "a", 1, 1.5)])  # type: ignore[list-item]
        assert not list(running.log.records("in"))


def test_a_negative_timestamp_is_raised_once() -> None:
    with driver(at_once) as running:
        with pytest.raises(Exception, match="-1"):
            pipe(running, [("in", "a", 1, -1)])
        pipe(running, [("in", "a", 2, 1)])
        assert [value for _, value, _ in output(running)] == [6]


@pytest.mark.parametrize(
    "call",
    [
        lambda running: running.pipe_input("in", b"k", b"1"),
        lambda running: running.process(),
        lambda running: running.advance_wall_clock(1),
        lambda running: running.commit(),
        lambda running: running.read_output("out"),
        lambda running: running.get_store("counts"),
        lambda running: running.crash(),
    ],
)
def test_a_driver_that_is_closed_says_so(call: Callable[[TestDriver], object]) -> None:
    with driver(at_once) as running:
        pass
    running.close()
    with pytest.raises(ProtocolError, match="this TestDriver is closed"):
        call(running)


class Clocked:
    """Forwards each record, and the wall clock's time every second, as does the one that asks for a commit then."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        context.schedule(1_000, PunctuationType.WALL_CLOCK_TIME, self.tick)

    def process(self, record: StreamRecord) -> None:
        self.context.forward(record.key, record.value)

    def tick(self, now: int) -> None:
        self.context.forward("clock", now, timestamp=1_000_000 + now)


class Committing(Clocked):
    def tick(self, now: int) -> None:
        super().tick(now)
        self.context.commit()


@GUARANTEES
def test_a_punctuator_that_asks_for_a_commit_gets_one(guarantee: str) -> None:
    def build(made: StreamsBuilder) -> None:
        made.stream("in").process(Committing).to("out")

    with driver(build, UNCACHED | {"processing.guarantee": guarantee}, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 5)])
        running.advance_wall_clock(1_000)
        running.crash()
        running.process()
        running.commit()
        assert output(running) == [("a", 1, 5), ("clock", 1_000, 1_001_000)]


def but_for(bad: int) -> Callable[[object, int], None]:
    def check(_key: object, value: int) -> None:
        if value == bad:
            raise ValueError(value)

    return check


GOES_ON: dict[str, object] = {
    **UNCACHED,
    "processing.exception.handler": "continue",
    "errors.dead.letter.queue.topic.name": "dead",
}


@pytest.mark.parametrize("processor", [Committing, Clocked])
def test_a_punctuator_whose_call_a_failed_commit_takes_back_is_called_again_before_the_next_one(
    processor: type[Clocked],
) -> None:
    def build(made: StreamsBuilder) -> None:
        stream = made.stream("in")
        held_back = stream.group_by_key().reduce(lambda _, new: new).to_stream()
        held_back.peek(but_for(5)).to("out")
        stream.process(processor).to("clocked")

    with driver(build, GOES_ON | CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 5, 5), ("in", "b", 2, 6)])
        running.advance_wall_clock(1_000)
        if processor is Clocked:
            running.commit()
        assert output(running) == [("b", 2, 6)]
        assert output(running, "clocked") == [("b", 2, 6), ("clock", 1_000, 1_001_000)]
        assert [record.key for record in running.read_output("dead")] == [b"a"]


def test_a_punctuator_whose_call_a_later_record_takes_back_is_called_again_with_what_is_processed_again() -> (
    None
):
    def build(made: StreamsBuilder) -> None:
        made.stream("in").process(Clocked).peek(but_for(5)).to("out")

    with driver(build, GOES_ON, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 5)])
        running.advance_wall_clock(1_000)
        pipe(running, [("in", "a", 5, 6), ("in", "a", 2, 7)])
        running.commit()
        assert output(running) == [("a", 1, 5), ("clock", 1_000, 1_001_000), ("a", 2, 7)]


def test_headers_that_are_none_are_refused_before_anything_is_written() -> None:
    with driver(at_once) as running:
        with pytest.raises(TypeError, match="headers are pairs of a name and of bytes or None"):
            running.pipe_input("in", b"k", b"1", 1, (("h", "text"),))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="from 0 to"):
            running.pipe_input("in", b"k", b"1", 1 << 63)
        assert not list(running.log.records("in"))


@GUARANTEES
@pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["without a cache", "with a cache"])
def test_a_table_goes_on_with_what_a_test_has_written_to_its_store(
    config: dict[str, object], guarantee: str
) -> None:
    def build(made: StreamsBuilder) -> None:
        made.stream("in").group_by_key().reduce(int.__add__, materialized="sums").to_stream().to("out")

    with driver(build, config | {"processing.guarantee": guarantee}) as running:
        sums = running.get_store("sums")
        sums.put("a", ValueAndTimestamp(10, 3))
        pipe(running, [("in", "a", 1, 5)])
        sums.put("a", ValueAndTimestamp(100, 6))
        assert output(running) == [("a", 11, 5)]
        pipe(running, [("in", "a", 2, 7)])
        assert output(running) == [("a", 102, 7)]
        assert sums.get("a") == (102, 7)
        running.crash()
        assert running.get_store("sums").get("a") == (102, 7)


@GUARANTEES
def test_a_processor_finds_what_a_test_has_written_to_its_store(guarantee: str) -> None:
    class Finding:
        def init(self, context: FixedKeyContext) -> None:
            self.context = context
            self.names = context.store("names")

        def process(self, record: StreamRecord) -> None:
            self.context.forward(self.names.get(record.key))

    def build(made: StreamsBuilder) -> None:
        made.add_state_store(
            key_value_store_builder(persistent_key_value_store("names"), StrSerde(), JsonSerde())
        )
        made.stream("in").process_values(Finding, "names").to("out")

    with driver(build, {"processing.guarantee": guarantee}) as running:
        names = running.get_store("names")
        names.put_all([("a", "Ann"), ("b", "Bob")])
        assert names.delete("b") == "Bob"
        pipe(running, [("in", "a", 1, 5), ("in", "b", 1, 6)])
        assert output(running) == [("a", "Ann", 5), ("b", None, 6)]


def test_what_a_test_has_written_and_not_committed_a_crash_takes_back() -> None:
    def build(made: StreamsBuilder) -> None:
        made.stream("in").group_by_key().reduce(int.__add__, materialized="sums").to_stream().to("out")

    with driver(build, auto_commit=False) as running:
        running.get_store("sums").put("a", ValueAndTimestamp(10, 3))
        assert running.get_store("sums").get("a") == (10, 3)
        running.crash()
        assert running.get_store("sums").get("a") is None


class _Sorted:
    """Sends what has a key elsewhere than what has none."""

    def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
        topic = "without-key" if context.source_raw_key is None else "with-key"
        return Response.resume([dead_letter(topic, context, error)])


def test_dead_letters_of_a_handler_of_ones_own_are_read_from_each_topic_that_the_driver_was_told_of() -> None:
    config = {"deserialization.exception.handler": _Sorted}
    with driver(at_once, config, topics=["with-key", "without-key"]) as running:
        running.pipe_input("in", "a", b"{bad", 1)
        running.pipe_input("in", None, b"[bad", 2)
        keyed, keyless = running.read_output("with-key"), running.read_output("without-key")
    assert [(one.key, one.value) for one in keyed] == [(b"a", b"{bad")]
    assert [(one.key, one.value) for one in keyless] == [(None, b"[bad")]


def test_a_topic_of_dead_letters_that_the_driver_was_not_told_of_is_named() -> None:
    config = {"deserialization.exception.handler": _Sorted}
    with driver(at_once, config) as running, pytest.raises(LogError, match="topic with-key does not exist"):
        running.pipe_input("in", "a", b"{bad", 1)
