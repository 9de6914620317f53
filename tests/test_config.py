"""The configuration: defaults, what is refused and how, and what one key means for another."""

from __future__ import annotations

import inspect
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from store.config import _ELSEWHERE, _KEYS, Guarantee, StoreType, StreamsConfig
from store.errors import ConfigError
from store.metrics import RecordingLevel
from store.state.protocol import Sync
from store.streams.dsl import StreamsBuilder
from store.streams.streams import Streams
from store.transaction import Mechanism
from store.types import IsolationLevel

ISOLATION = "default.state.isolation.level"
MOST = "statestore.uncommitted.max.bytes"
MECHANISM = "statestore.transactional.mechanism"


def test_what_maps_no_names_to_values_is_no_configuration() -> None:
    values: Any = [1]
    with pytest.raises(ConfigError, match="config is not allowed: a mapping of dotted names"):
        StreamsConfig.of(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"commit.interval.ms": -1}, "commit.interval.ms=-1 is not allowed: a whole number of at least 0"),
        ({"commit.interval.ms": None}, "commit.interval.ms=None is not allowed: leave the key out"),
        ({"commit.records": 0}, "commit.records=0 is not allowed: a whole number of at least 1"),
        ({"commit.records": "three"}, "commit.records='three' is not allowed"),
        ({"commit.records": "3.0"}, "commit.records='3.0' is not allowed"),
        ({"commit.records": True}, "commit.records=True is not allowed"),
        pytest.param(
            {"transaction.timeout.ms": 100},
            "it must be longer than commit.interval.ms",
            marks=pytest.mark.requirement("129.2"),
        ),
        ({1: 2}, "1 is not allowed: unknown key"),
        ({"sasl.password": "secret"}, "sasl.password is not allowed: unknown key"),
        ({"nothing.like.it": 1}, "unknown key; known are processing.guarantee, commit.interval.ms"),
        (
            {"bootstrap.servers": "h:9092"},
            "bootstrap.servers is not allowed: unknown key, it is the argument bootstrap of Streams and SparkStreams; ",
        ),
        (
            {"state.dir": "/s"},
            "unknown key, it is the argument state_dir of Streams and SparkStreams; known are",
        ),
        ({"application.id": "app"}, "unknown key, it is the first argument of StreamsBuilder; known are"),
        ({"cache.max.bytes.buffering": 1}, "its newer name is statestore.cache.max.bytes; known are"),
        ({"commit.intervall.ms": 1}, "unknown key, commit.interval.ms may be meant; known are"),
        (
            {"processing.exception.handler": "contineu"},
            "processing.exception.handler='contineu' is not allowed: fail, continue, or a class",
        ),
        ({"default.timestamp.extractor": "event_time"}, "'event_time' is not allowed: a class with extract"),
        ({"dsl.store.suppliers.class": "in_memory"}, "'in_memory' is not allowed: a class path"),
        pytest.param(
            {"processing.guarantee": "exactly_twice"},
            "processing.guarantee='exactly_twice' is not allowed: one of at_least_once, exactly_once, exactly_once_v2",
            marks=pytest.mark.requirement("129.1"),
        ),
        (
            {ISOLATION: "read_committed"},
            f"{ISOLATION}='read_committed' is not allowed: one of READ_UNCOMMITTED, READ_COMMITTED",
        ),
        pytest.param(
            {"default.dsl.store": "rocksdb"},
            "one of rocksDB, in_memory, txn_rocksDB",
            marks=pytest.mark.requirement("844.6"),
        ),
        ({MECHANISM: "rocksdb"}, "one of rocksdb_indexbatch, rocksdb_secondary"),
        ({"statestore.transactional.enabled": "yes"}, "true or false"),
        ({"statestore.transactional.enabled": 1}, "true or false"),
        pytest.param(
            {"automatic.state.relocation": "no"}, "true or false", marks=pytest.mark.requirement("13627.5")
        ),
        ({"statestore.sync": "always"}, "commit, none, or milliseconds such as 250ms"),
        ({"statestore.sync": 250}, "commit, none, or milliseconds such as 250ms"),
        ({"statestore.cache.max.bytes": -1}, "a whole number of at least 0"),
        ({"metrics.recording.level": "TRACE"}, "one of INFO, DEBUG"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_key_value_and_what_is_allowed(
    values: Mapping[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        StreamsConfig.of(values)
    assert message in str(caught.value)


def test_what_takes_the_place_of_a_setting_of_kafka_streams_is_there() -> None:
    arguments = {made.__name__: inspect.signature(made).parameters for made in (Streams, StreamsBuilder)}
    for key, said in _ELSEWHERE.items():
        assert key not in _KEYS
        named = re.fullmatch(r"it is the argument (\w+) of (\w+)(?: and SparkStreams)?", said)
        if named is not None:
            assert named[1] in arguments[named[2]]
        elif (newer := re.fullmatch(r"its newer name is (.*)", said)) is not None:
            assert newer[1] in _KEYS
        else:
            assert key == "application.id"


@pytest.mark.parametrize(
    "field", [field.name for field in fields(StreamsConfig) if field.default is not None]
)
def test_none_is_no_value_where_it_is_not_the_default(field: str) -> None:
    nothing: dict[str, Any] = {field: None}
    with pytest.raises(ConfigError, match="=None is not allowed"):
        StreamsConfig(**nothing)


@pytest.mark.requirement("892.2")
@pytest.mark.parametrize("value", [0, -2, -67108864, "0", "-2"])
def test_a_limit_of_uncommitted_bytes_that_nothing_could_keep_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"statestore\.uncommitted\.max\.bytes=.*or -1 for no limit"):
        StreamsConfig.of({MOST: value})


@pytest.mark.requirement("892.2")
def test_the_limit_of_uncommitted_bytes_is_64_mb_by_default_and_can_be_lifted() -> None:
    assert StreamsConfig().statestore_uncommitted_max_bytes == 67_108_864
    assert StreamsConfig.of({MOST: "-1"}).statestore_uncommitted_max_bytes == -1


@pytest.mark.requirement("129.2", "129.1")
@pytest.mark.parametrize(
    ("guarantee", "interval"), [("at_least_once", 30_000), ("exactly_once", 100), ("exactly_once_v2", 100)]
)
def test_the_commit_interval_depends_on_the_guarantee_unless_it_is_given(
    guarantee: str, interval: int
) -> None:
    assert StreamsConfig.of({"processing.guarantee": guarantee}).commit_interval_ms == interval
    given = StreamsConfig.of({"processing.guarantee": guarantee, "commit.interval.ms": "7"})
    assert given.commit_interval_ms == 7


def test_a_transaction_timeout_means_nothing_where_there_are_no_transactions() -> None:
    values = {"processing.guarantee": "at_least_once", "transaction.timeout.ms": 1}
    assert not StreamsConfig.of(values).exactly_once


@pytest.mark.requirement("892.1")
def test_read_uncommitted_under_exactly_once_is_raised_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=rf"{ISOLATION}=READ_UNCOMMITTED is raised to READ_COMMITTED"):
        config = StreamsConfig.of({ISOLATION: "READ_UNCOMMITTED"})
    assert config.default_state_isolation_level is IsolationLevel.READ_COMMITTED


@pytest.mark.requirement("892.1")
def test_the_default_isolation_level_is_that_of_the_guarantee_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert StreamsConfig().default_state_isolation_level is IsolationLevel.READ_COMMITTED
        plain = StreamsConfig(processing_guarantee=Guarantee.AT_LEAST_ONCE)
        assert plain.default_state_isolation_level is IsolationLevel.READ_UNCOMMITTED


@pytest.mark.requirement("844.2", "892.9")
@pytest.mark.parametrize(
    ("values", "mechanism"),
    [
        ({}, Mechanism.INDEXED_BATCH),
        ({MECHANISM: "rocksdb_secondary"}, Mechanism.SECONDARY),
        ({MECHANISM: "rockdb_indexbatch"}, Mechanism.INDEXED_BATCH),
        ({"statestore.transactional.enabled": "false"}, None),
        ({"processing.guarantee": "at_least_once"}, None),
        ({"processing.guarantee": "at_least_once", ISOLATION: "READ_COMMITTED"}, Mechanism.INDEXED_BATCH),
    ],
)
def test_stores_write_straight_to_the_database_when_nothing_needs_their_transactions(
    values: Mapping[str, object], mechanism: Mechanism | None
) -> None:
    assert StreamsConfig.of(values).mechanism is mechanism


@pytest.mark.parametrize("made_of", [int, str])
def test_a_number_may_have_63_bits_and_no_more(made_of: Callable[[int], object]) -> None:
    assert StreamsConfig.of({"commit.records": made_of(2**63 - 1)}).commit_records == 2**63 - 1
    with pytest.raises(ConfigError, match=r"commit\.records=.*a whole number of at least 1"):
        StreamsConfig.of({"commit.records": made_of(2**63)})


def test_a_transaction_may_be_open_for_longer_than_the_commit_interval_and_not_just_as_long() -> None:
    values = {"commit.interval.ms": 5_000, "transaction.timeout.ms": 5_001}
    assert StreamsConfig.of(values).transaction_timeout_ms == 5_001
    with pytest.raises(ConfigError, match=r"longer than commit\.interval\.ms \(5000\)"):
        StreamsConfig.of({**values, "transaction.timeout.ms": 5_000})


def test_values_may_be_strings_as_a_properties_file_has_them() -> None:
    config = StreamsConfig.of(
        {
            "commit.records": "7",
            "default.dsl.store": "in_memory",
            "statestore.sync": "250ms",
            "statestore.transactional.enabled": "true",
            "metrics.recording.level": "DEBUG",
        }
    )
    assert config == StreamsConfig(
        commit_records=7,
        default_dsl_store=StoreType.IN_MEMORY,
        statestore_sync=Sync.every(250),
        metrics_recording_level=RecordingLevel.DEBUG,
    )


def test_a_configuration_reads_back_under_the_names_of_the_pages() -> None:
    config = StreamsConfig.of({"commit.records": 7, "processing.guarantee": "at_least_once"})
    assert config.as_dict()["commit.records"] == 7
    assert StreamsConfig.of(config.as_dict()) == config


def test_a_configuration_can_be_sent_to_another_process() -> None:
    config = StreamsConfig.of({"statestore.sync": "commit"})
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.requirement("13627.1")
def test_state_is_relocated_by_default_and_that_can_be_switched_off() -> None:
    assert StreamsConfig().automatic_state_relocation
    assert not StreamsConfig.of({"automatic.state.relocation": "false"}).automatic_state_relocation


def test_the_page_of_settings_has_each_of_them_with_its_defaults() -> None:
    page = Path(__file__).parent.parent / "docs" / "settings.md"
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in page.read_text().splitlines()
        if line.startswith("| `")
    ]
    assert all(len(row) == 3 and row[2] for row in rows), rows
    told = {row[0].strip("`"): re.findall("`([^`]+)`", row[1]) for row in rows}
    defaults = [
        StreamsConfig(processing_guarantee=one)
        for one in (Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE)
    ]
    assert list(told) == [field.name.replace("_", ".") for field in fields(StreamsConfig)]
    for key, texts in told.items():
        if key == "processing.guarantee":
            assert texts == [StreamsConfig().processing_guarantee]
            continue
        values = [getattr(config, key.replace(".", "_")) for config in defaults]
        if values == [None, None]:
            assert texts == [], key
        else:
            stated = [StreamsConfig.of({key: text}).as_dict()[key] for text in texts[:1]]
            if len(texts) > 1:
                under = {"processing.guarantee": "at_least_once", key: texts[1]}
                stated.append(StreamsConfig.of(under).as_dict()[key])
            assert stated == (values if values[0] != values[1] else values[:1]), key
