"""The table of differences from Kafka Streams: what it says of this side is so, and it can be found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from store.config import StreamsConfig
from store.engine.memory import MemoryEngine
from store.errors import ConfigError, LogError
from store.log.kafka import KafkaLog
from store.query import FailureReason, KeyQuery, PositionBound, Query, WindowKeyQuery, query
from store.serdes import BytesSerde, StrSerde
from store.state.keyvalue import KeyValueStore
from store.state.session import SessionStore
from store.state.versioned import VersionedKeyValueStore
from store.state.window import WindowStore
from store.state.windowed import Window, Windowed
from store.streams.dsl import StreamsBuilder
from store.suppliers import (
    StoreSupplier,
    persistent_key_value_store,
    persistent_session_store,
    persistent_versioned_key_value_store,
    persistent_window_store,
    timestamped_key_value_store_builder,
)
from store.testing.driver import TestDriver
from store.types import TopicPartition
from tests.state.opening import context_over

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "kafka-streams-differences.md"
TEXT = PAGE.read_text()
DAY_MS = 24 * 60 * 60 * 1000


def rows() -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in TEXT.splitlines()
        if line.startswith("| ") and not line.startswith("| |")
    ]


def row(beginning: str) -> str:
    """What is said of this side."""
    (found,) = (cells for cells in rows() if cells[0].startswith(beginning))
    return found[1]


def test_the_readme_leads_to_it_and_each_row_says_where_it_is_from() -> None:
    assert "(docs/kafka-streams-differences.md)" in (ROOT / "README.md").read_text()
    assert rows()
    for cells in rows():
        assert len(cells) == 4, cells
        assert re.match(r"[RT]$|R, S: `|S: `", cells[3]), cells
    for path in re.findall(r"`((?:tests|store|docs)/[^`]+)`", TEXT):
        assert (ROOT / path).is_file(), path


def test_the_settings_are_those_of_the_configuration() -> None:
    defaults = StreamsConfig().as_dict()
    assert row("`processing.guarantee` by default") == f"`{defaults['processing.guarantee']}`"
    assert row("`default.dsl.store` by default").startswith(f"`{defaults['default.dsl.store']}`")
    assert row("`transaction.timeout.ms` by default") == str(defaults["transaction.timeout.ms"])
    own = next(cells[0] for cells in rows() if cells[0].startswith("`commit.records`"))
    assert set(re.findall(r"`([^`]+)`", own)) <= defaults.keys()
    assert StreamsConfig.of({"processing.guarantee": "exactly_once"}).exactly_once
    with pytest.raises(ConfigError):
        StreamsConfig.of({"transaction.timeout.ms": 1000, "commit.interval.ms": 1000})


def test_where_an_application_starts_to_read_is_no_setting() -> None:
    assert "`auto.offset.reset`" in row("Where a new application starts to read")
    with pytest.raises(ConfigError, match=r"unknown key"):
        StreamsConfig.of({"auto.offset.reset": "latest"})
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset"):
        KafkaLog("127.0.0.1:1", config={"auto.offset.reset": "latest"})


def test_the_settings_that_are_said_to_be_refused_are_unknown() -> None:
    refused = [cells[0] for cells in rows() if cells[1].startswith("are refused") and "`poll" in cells[0]]
    refused += [
        cells[0]
        for cells in rows()
        if cells[0].startswith(
            (
                "`processor.wrapper",
                "Stores that keep",
                "`application.id",
                "`metric.reporters",
                "The older names",
            )
        )
    ]
    names = re.findall(r"`([a-z]+(?:\.[a-z.]+)+)", " ".join(refused))
    assert {"poll.ms", "group.protocol", "dsl.store.format"} <= {*names}
    for name in names:
        with pytest.raises(ConfigError, match=r"unknown key"):
            StreamsConfig.of({name: "x"})


def test_the_values_that_are_said_to_be_refused_are() -> None:
    assert row("0 for `task.timeout.ms`") == "are refused"
    for refused in (
        {"task.timeout.ms": 0},
        {"repartition.purge.interval.ms": 0},
        {"num.stream.threads": 0},
        {"num.standby.replicas": -1},
        {"metrics.recording.level": "TRACE"},
    ):
        with pytest.raises(ConfigError, match=r"is not allowed: (a whole number|one of)"):
            StreamsConfig.of(refused)


def test_a_query_of_another_type_of_store_is_said_to_be_one_whatever_its_bound() -> None:
    store = KeyValueStore(context_over(MemoryEngine()))
    beyond = PositionBound.at({TopicPartition("in", 0): 7})
    asked: list[Query[Any]] = [WindowKeyQuery(b"a", 0, 1), KeyQuery(b"a")]
    reasons = [query(store, one, bound=beyond, partition=0).failure_reason for one in asked]
    assert reasons == [FailureReason.UNKNOWN_QUERY_TYPE, FailureReason.NOT_UP_TO_BOUND]
    assert row("A query that is none for this type of store").startswith(FailureReason.UNKNOWN_QUERY_TYPE)


def test_an_iterator_has_the_rows_that_were_there_when_it_was_opened() -> None:
    assert row("An iterator of an in-memory store").startswith("has the rows that were there")
    kept = KeyValueStore(context_over(MemoryEngine()))
    for key in (b"a", b"b", b"c"):
        kept.put(key, b"1")
    with kept.all() as found:
        first = next(found)
        kept.put(b"b", b"2")
        kept.delete(b"c")
        kept.put(b"d", b"2")
        assert [first, *found] == [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
    assert [*kept.all()] == [(b"a", b"1"), (b"b", b"2"), (b"d", b"2")]


@pytest.mark.parametrize("named", ["ab", "ba"])
def test_of_inputs_whose_next_records_have_one_time_the_first_that_is_named_is_read(named: str) -> None:
    assert "named first" in row("Inputs of one task whose next records have the same time")
    builder = StreamsBuilder("app")
    one, other = map(builder.stream, named)
    one.merge(other).to("out")
    with TestDriver(builder.build()) as driver:
        produce = driver.log.plain_producer().produce
        for topic in "abab":
            produce(topic, b"k", topic.encode(), partition=0, timestamp=5)
        driver.process()
        driver.commit()
        assert (
            b"".join(record.value for record in driver.read_output("out")).decode()
            == named[0] * 2 + named[1] * 2
        )


def test_what_has_expired_is_not_logged() -> None:
    logged: list[object] = []
    context = context_over(MemoryEngine(), log_change=lambda *change: logged.append(change))
    windows = WindowStore(context, retention_ms=100, window_size_ms=10, segment_interval_ms=50)
    windows.put(b"a", b"1", 1_000)
    logged.clear()
    windows.put(b"a", b"2", 100)
    assert not logged
    sessions = SessionStore(
        context_over(MemoryEngine(), log_change=lambda *change: logged.append(change)),
        retention_ms=100,
        segment_interval_ms=50,
    )
    sessions.put(Windowed(b"a", Window(1_000, 1_000)), b"1")
    logged.clear()
    sessions.put(Windowed(b"a", Window(100, 100)), b"2")
    sessions.remove(Windowed(b"a", Window(100, 100)))
    assert not logged


def test_what_has_expired_is_not_found_in_a_cache_either() -> None:
    context = context_over(MemoryEngine(), cache_max_bytes=10_000)
    windows = WindowStore(context, retention_ms=100, window_size_ms=10)
    sessions = SessionStore(context_over(MemoryEngine(), cache_max_bytes=10_000), retention_ms=100)
    assert [*sessions.backward_find_sessions(b"a", 0, 100)] == []
    for time in (850, 900):
        windows.put(b"a", b"1", time)
        sessions.put(Windowed(b"a", Window(time, time)), b"1")
    windows.put(b"b", b"1", 1_000)
    sessions.put(Windowed(b"b", Window(1_000, 1_000)), b"1")
    assert (windows.fetch(b"a", 850), windows.fetch(b"a", 900)) == (None, None)
    assert [key for (key, _), _ in windows.all()] == [b"b"]
    assert [*sessions.fetch(b"a")] == []


def test_what_a_cache_has_deleted_is_in_no_range_read_backward() -> None:
    rows = KeyValueStore(context_over(MemoryEngine(), cache_max_bytes=10_000))
    for key in (b"a", b"c"):
        rows.put(key, b"1")
    rows.commit()
    rows.put(b"c", None)
    rows.put(b"b", None)
    assert [*rows.reverse_all()] == [(b"a", b"1")]


def test_a_topic_may_be_a_global_table_and_a_stream_of_another_sub_topology() -> None:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    names = builder.global_table("names")
    builder.stream("in").join_global(names, lambda _, value: value, str.__add__).to("out")
    builder.stream("names").to("seen")
    with TestDriver(builder.build()) as driver:
        driver.pipe_input("names", "a", "b")
        driver.pipe_input("in", "k", "a")
        assert [record.value for record in driver.read_output("out")] == [b"ab"]
        assert [record.value for record in driver.read_output("seen")] == [b"b"]
    builder.stream("in").join_global(builder.global_table("in"), lambda _, value: value, str.__add__).to("x")
    with pytest.raises(ConfigError, match="topic in is named twice"):
        builder.build()


def test_a_repartition_topic_has_at_least_one_partition() -> None:
    with pytest.raises(
        ConfigError, match="number_of_partitions=0 is not allowed: a whole number of at least 1"
    ):
        StreamsBuilder("app").stream("in").repartition(number_of_partitions=0)


def test_an_older_version_is_logged_with_the_newest_after_it_and_an_expired_one_not_at_all() -> None:
    logged: list[tuple[object, ...]] = []
    context = context_over(MemoryEngine(), log_change=lambda *change: logged.append(change))
    versions = VersionedKeyValueStore(context, history_retention_ms=100)
    versions.put(b"a", b"new", 1_000)
    versions.put(b"a", b"old", 950)
    versions.put(b"a", b"expired", 1)
    assert [change[1:] for change in logged] == [(b"new", 1_000), (b"old", 950), (b"new", 1_000)]


@pytest.mark.parametrize(
    "supplier",
    [
        persistent_key_value_store("s"),
        persistent_window_store("s", 600_000, 60_000),
        persistent_session_store("s", 600_000),
        persistent_versioned_key_value_store("s", 600_000),
    ],
)
def test_changelogs_keep_deletions_for_as_long_as_it_says(supplier: StoreSupplier[Any]) -> None:
    days = int(supplier.changelog_config()["delete.retention.ms"]) // DAY_MS
    assert row("`delete.retention.ms` of a changelog") == f"{days} days"


def test_a_timestamped_builder_takes_no_plain_supplier() -> None:
    with pytest.raises(ValueError, match="timestamped"):
        timestamped_key_value_store_builder(persistent_key_value_store("s"), BytesSerde(), BytesSerde())


def test_a_version_says_until_when_it_was_valid_also_to_who_does_not_ask_by_a_query() -> None:
    assert row("A version that is asked for by its key and a time") == "says until when it was valid"
    store = VersionedKeyValueStore(context_over(MemoryEngine()), history_retention_ms=1_000)
    store.put(b"k", b"one", 10)
    store.put(b"k", b"two", 20)
    asked = store.get(b"k", 15)
    assert asked is not None
    assert (asked.value, asked.valid_to) == (b"one", 20)


def test_a_window_of_size_0_is_found_as_any_other() -> None:
    assert row("A window of size 0") == "is found as any other"
    store = WindowStore(context_over(MemoryEngine()), retention_ms=100, window_size_ms=0)
    store.put(b"a", b"1", 5)
    assert [(key.key, value) for key, value in store.all()] == [(b"a", b"1")]


def test_the_store_of_a_table_that_nobody_has_named_is_found_by_the_name_that_is_told() -> None:
    assert row("The name of a table's store").startswith("is told")
    builder = StreamsBuilder("app")
    counts = builder.stream("in").group_by_key().count()
    assert counts.queryable_store_name is not None
    with TestDriver(builder.build()) as driver:
        driver.pipe_input("in", "a", "x", timestamp=5)
        assert driver.get_store(counts.queryable_store_name).get(b"a") == (1, 5)


def test_an_output_topic_that_there_is_not_is_an_error_to_a_test() -> None:
    assert row("An output topic that there is not") == "is an error"
    builder = StreamsBuilder("app")
    builder.stream("in").to("out")
    with TestDriver(builder.build()) as driver:
        assert driver.read_output("out") == []
        with pytest.raises(LogError, match="topic outt does not exist"):
            driver.read_output("outt")
