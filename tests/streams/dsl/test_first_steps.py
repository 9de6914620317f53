"""What a new user stumbles over says what is wrong, and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from store.errors import ConfigError
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe, results


def fail(*_: object) -> Any:
    raise ValueError("no good")


def mapping(made: StreamsBuilder) -> None:
    made.stream("in").map_values(lambda value: value).map_values(fail, name="second").to("out")


def filtering(made: StreamsBuilder) -> None:
    made.stream("in").filter(fail).to("out")


def folding(made: StreamsBuilder) -> None:
    made.stream("in").group_by_key().aggregate(int, fail).to_stream().to("out")


def in_windows(made: StreamsBuilder) -> None:
    windows = SlidingWindows.of_time_difference_and_grace(10, 5)
    made.stream("in").group_by_key().windowed_by(windows).aggregate(int, fail).to_stream().foreach(print)


def behind_a_cache(made: StreamsBuilder) -> None:
    made.stream("in").group_by_key().count().to_stream().map_values(fail).to("out")


def in_a_processor(made: StreamsBuilder) -> None:
    class Failing:
        process = fail

    made.stream("in").process(Failing, name="mine")


@pytest.mark.parametrize(
    ("build", "operator"),
    [
        (mapping, "second"),
        (filtering, "KSTREAM-FILTER-0000000001"),
        (folding, "KSTREAM-AGGREGATE-0000000002"),
        (in_windows, "KSTREAM-AGGREGATE-0000000002"),
        (behind_a_cache, "KSTREAM-MAPVALUES-0000000004"),
        (in_a_processor, "mine"),
    ],
)
@pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["uncached", "cached"])
def test_what_a_function_raises_names_the_operator(
    build: Callable[[StreamsBuilder], None], operator: str, config: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match="no good") as raised:
        results(build, [("in", "k", 1, 5)], config)
    assert raised.value.__notes__[0].endswith(f", in operator {operator}")


def test_what_has_no_windows_to_wait_for_is_refused_at_the_operator_that_waits() -> None:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    counts = made.stream("in").group_by_key().count()
    with pytest.raises(ConfigError, match=r"suppress='KTABLE-SUPPRESS-\d+'.*not KSTREAM-AGGREGATE-"):
        counts.suppress(Suppressed.until_window_closes())


def test_a_builder_that_reads_nothing_builds_nothing() -> None:
    with pytest.raises(ConfigError, match="reads at least one topic"):
        StreamsBuilder("app").build()


def test_windows_have_the_names_of_the_field() -> None:
    assert TimeWindows.of_size_and_grace(10, 5) == TimeWindows.of_size(10, grace=5)
    assert TimeWindows.of_size_with_no_grace(10) == TimeWindows.of_size(10)
    assert SlidingWindows.of_time_difference_with_no_grace(10) == SlidingWindows.of_time_difference(10)
    assert SlidingWindows.of_time_difference_and_grace(10, 5).grace_ms == 5
    assert SessionWindows.of_inactivity_gap_and_grace(10, 5) == SessionWindows.with_inactivity_gap(
        10, grace=5
    )
    assert SessionWindows.of_inactivity_gap_with_no_grace(10).grace_ms == 0
    assert JoinWindows.of_time_difference_and_grace(10, 5) == JoinWindows.of_time_difference(10, grace=5)


def test_a_record_without_a_time_has_one_that_kafka_takes() -> None:
    with driver(lambda made: made.stream("in").to("out")) as running:
        running.pipe_input("in", "k", "1")
        assert output(running) == [("k", 1, 1)]


def test_what_a_store_can_do_is_to_be_seen() -> None:
    seen: list[Any] = []

    class Looking:
        def init(self, context: Any) -> None:
            seen.append(context.store("counts"))

        def process(self, record: Any) -> None:
            pass

    def looking(made: StreamsBuilder) -> None:
        stream = made.stream("in")
        stream.group_by_key().count(materialized="counts")
        stream.process(Looking, "counts")

    with driver(looking) as running:
        pipe(running, [("in", "k", 1, 5)])
        for store in (seen[0], running.get_store("counts")):
            assert {"get", "put", "all", "name"} <= set(dir(store))
            assert "commit" not in dir(store)
            assert repr(store) == "<store counts of a task, a MeteredTimestampedKeyValueStore>"


@pytest.mark.parametrize(
    "config", [{"commit.interval.ms": "1e3"}, {"commit.records": 0}, {"transaction.timeout.ms": 100}]
)
def test_the_driver_refuses_settings_that_it_does_not_need_as_a_cluster_would(config: dict[str, Any]) -> None:
    with (
        pytest.raises(ConfigError, match=re.escape(next(iter(config)))),
        driver(lambda b: b.stream("in").to("out"), config=config),
    ):
        pass
