"""What is no function, and functions that a call does not run, async ones and generators, are refused by every operator
that would call them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from store.errors import ConfigError
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import JoinWindows, PunctuationType, SessionWindows, StreamsBuilder, TimeWindows
from store.streams.topology import Topology
from store.testing.driver import TestDriver
from tests.streams.dsl.running import driver, output, pipe

Use = Callable[[Any, Any, Any], object]
WINDOWS, SESSIONS = TimeWindows.of_size(10), SessionWindows.with_inactivity_gap(10)
NEAR = JoinWindows.of_time_difference(10)

USES: dict[str, Use] = {
    "filter": lambda s, _, f: s.filter(f),
    "filter_not": lambda s, _, f: s.filter_not(f),
    "map": lambda s, _, f: s.map(f),
    "map_values": lambda s, _, f: s.map_values(f),
    "map_values with keys": lambda s, _, f: s.map_values(f, with_key=True),
    "select_key": lambda s, _, f: s.select_key(f),
    "peek": lambda s, _, f: s.peek(f),
    "foreach": lambda s, _, f: s.foreach(f),
    "branch": lambda s, _, f: s.split().branch(f),
    "to": lambda s, _, f: s.to(f),
    "partitioner": lambda s, _, f: s.to("out", partitioner=f),
    "repartition": lambda s, _, f: s.repartition(partitioner=f),
    "group_by": lambda s, _, f: s.group_by(f).count(),
    "reduce": lambda s, _, f: s.group_by_key().reduce(f),
    "initializer": lambda s, _, f: s.group_by_key().aggregate(f, max),
    "aggregator": lambda s, _, f: s.group_by_key().aggregate(int, f),
    "aggregator of windows": lambda s, _, f: s.group_by_key().windowed_by(WINDOWS).aggregate(int, f),
    "merger": lambda s, _, f: s.group_by_key().windowed_by(SESSIONS).aggregate(int, max, f),
    "cogroup": lambda s, _, f: s.group_by_key().cogroup(f).aggregate(int),
    "join": lambda s, _, f: s.join(s, f, NEAR),
    "outer_join": lambda s, _, f: s.outer_join(s.filter(bool), f, NEAR),
    "join_table": lambda s, t, f: s.join_table(t, f),
    "left_join_table": lambda s, t, f: s.left_join_table(t, f),
    "table filter": lambda _, t, f: t.filter(f),
    "table map_values": lambda _, t, f: t.map_values(f),
    "to_stream": lambda _, t, f: t.to_stream(f),
    "table group_by": lambda _, t, f: t.group_by(f).count(),
    "adder": lambda _, t, f: t.group_by(lambda k, v: (k, v)).reduce(f, max),
    "subtractor": lambda _, t, f: t.group_by(lambda k, v: (k, v)).aggregate(int, max, f),
    "table join": lambda _, t, f: t.join(t.filter(bool), f),
    "foreign key": lambda _, t, f: t.join(t, f, max),
    "foreign key's joiner": lambda _, t, f: t.left_join(t, str, f),
}


async def never_run(*_: object) -> Any:
    """What a call of it makes is a coroutine, which nobody awaits."""


def never_gone_through(*_: object) -> Any:
    yield


class Async:
    async def __call__(self, *_: object) -> Any: ...


def builder() -> tuple[StreamsBuilder, Any, Any]:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    return made, made.stream("in"), made.table("table")


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("function", [never_run, never_gone_through])
def test_an_operator_refuses_a_function_that_a_call_does_not_run(use: Use, function: Any) -> None:
    made, stream, table = builder()
    use(stream, table, function)
    with pytest.raises(ConfigError, match=f"{function.__name__}.* nobody would run, for [A-Z]"):
        made.build()


MAY_BE_LEFT_OUT = {"partitioner", "repartition", "to_stream"}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_an_operator_refuses_what_is_no_function_where_it_is_given(use: Use) -> None:
    _, stream, table = builder()
    with pytest.raises(ConfigError, match=r"=5 is not allowed: .*function"):
        use(stream, table, 5)


@pytest.mark.parametrize("use", [use for name, use in USES.items() if name not in MAY_BE_LEFT_OUT])
def test_an_operator_refuses_to_go_without_the_function_that_it_is_to_call(use: Use) -> None:
    _, stream, table = builder()
    with pytest.raises(ConfigError, match="=None is not allowed"):
        use(stream, table, None)


def test_a_reducer_of_none_does_not_count() -> None:
    _, stream, _ = builder()
    for group in (stream.group_by_key(), stream.group_by_key().windowed_by(WINDOWS)):
        with pytest.raises(ConfigError, match="reducer=None is not allowed"):
            group.reduce(None)


def test_a_join_with_a_global_table_refuses_what_is_no_function() -> None:
    made, stream, _ = builder()
    everyone = made.global_table("everyone")
    for functions, argument in (((None, max), "key_of"), ((max, None), "joiner")):
        with pytest.raises(ConfigError, match=f"{argument}=None is not allowed: a function"):
            stream.join_global(everyone, *functions)


def test_a_cogroup_refuses_what_is_no_group() -> None:
    _, stream, _ = builder()
    with pytest.raises(ConfigError, match="group=None is not allowed"):
        stream.group_by_key().cogroup(max).cogroup(None, max)


def test_a_join_with_a_global_table_refuses_them() -> None:
    for functions in ((never_run, max), (max, never_gone_through)):
        made, stream, _ = builder()
        everyone = made.global_table("everyone")
        stream.join_global(everyone, *functions)
        with pytest.raises(ConfigError, match="nobody would run"):
            made.build()


@pytest.mark.parametrize("function", [partial(never_run, 1), Async()])
def test_a_function_is_looked_at_wherever_it_is(function: Any) -> None:
    made, stream, _ = builder()
    stream.map_values(function)
    with pytest.raises(ConfigError, match="nobody would run"):
        made.build()


def test_what_makes_several_values_may_be_a_generator_and_not_an_async_one() -> None:
    def twice(value: int) -> Any:
        yield value
        yield value

    with driver(lambda b: b.stream("in").flat_map_values(twice).to("out")) as running:
        pipe(running, [("in", "k", 1, 5)])
        assert [value for _, value, _ in output(running)] == [1, 1]
    made, stream, _ = builder()
    stream.flat_map_values(never_run)
    with pytest.raises(ConfigError, match="nobody would run"):
        made.build()


@pytest.mark.parametrize("function", [never_run, never_gone_through])
def test_a_processor_is_refused_whose_records_nobody_would_process(function: Any) -> None:
    class Processor:
        process = function

    made, stream, _ = builder()
    stream.process(Processor, name="mine")
    with pytest.raises(ConfigError, match=r"process=.* nobody would run, for mine"), TestDriver(made.build()):
        pass


def test_a_punctuator_is_refused_that_nobody_would_run() -> None:
    class Processor:
        def init(self, context: Any) -> None:
            context.schedule(10, PunctuationType.STREAM_TIME, never_run)

        def process(self, record: Any) -> None: ...

    made, stream, _ = builder()
    stream.process(Processor, name="mine")
    with (
        pytest.raises(ConfigError, match=r"callback=.* nobody would run, for mine"),
        TestDriver(made.build()),
    ):
        pass


@pytest.mark.parametrize("function", [never_run, never_gone_through])
def test_a_topology_of_such_a_function_is_refused(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"process=.* nobody would run"):
        Topology("app", ("in",), (), (), function)
