"""Arguments of the entry points: what is of another kind is refused at once, by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.errors import ConfigError
from store.spark import SparkStreams, exactly_once_kafka_sink
from store.standalone import open_store, read_store
from store.streams.streams import Streams
from store.suppliers import global_store, persistent_key_value_store
from tests.clusters import pipeline

CLUSTER: list[tuple[str, object]] = [
    ("bootstrap", ["h:9092"]),
    ("bootstrap", 9092),
    ("bootstrap", None),
    ("kafka", "security.protocol=SSL"),
    ("kafka", [("client.id", "mine")]),
]
STREAMS: list[tuple[str, object]] = [
    *CLUSTER,
    ("state_dir", 5),
    ("state_dir", None),
    ("instance_id", 1),
    ("session_timeout_ms", "x"),
    ("session_timeout_ms", 0),
    ("session_timeout_ms", True),
    ("rebalance_timeout_ms", 2.5),
]
SPARK: list[tuple[str, object]] = [
    *CLUSTER,
    ("state_dir", 5),
    ("checkpoint", 5),
    ("spark_kafka", "x"),
    ("trigger", "10 seconds"),
    ("restarts", "3"),
]
SINK: list[tuple[str, object]] = [
    *CLUSTER,
    ("topic", 1),
    ("application_id", None),
    ("parts", "2"),
    ("continues", 1),
    ("transaction_timeout_ms", "x"),
]


def streams(**given: Any) -> object:
    return Streams(pipeline(), **{"bootstrap": "127.0.0.1:1", "state_dir": "/nowhere", **given})


def spark_streams(**given: Any) -> object:
    needed = {"bootstrap": "127.0.0.1:1", "state_dir": "/nowhere", "checkpoint": "/nowhere"}
    return SparkStreams(pipeline(), **{**needed, **given})


def sink(**given: Any) -> object:
    return exactly_once_kafka_sink(**{"bootstrap": "127.0.0.1:1", "application_id": "app", **given})


@pytest.mark.parametrize(
    ("entry", "argument", "given"),
    [
        pytest.param(entry, *one, id=f"{entry.__name__}-{one[0]}={one[1]}")
        for entry, ones in ((streams, STREAMS), (spark_streams, SPARK), (sink, SINK))
        for one in ones
    ],
)
def test_an_argument_of_another_kind_is_refused_by_its_name(
    entry: Callable[..., object], argument: str, given: object
) -> None:
    with pytest.raises(ConfigError, match=rf"^{argument}\b.* is not allowed: "):
        entry(**{argument: given})


@pytest.mark.parametrize("argument", ["kafka", "spark_kafka"])
def test_what_is_no_mapping_of_properties_is_not_shown_since_it_may_be_a_secret(argument: str) -> None:
    with pytest.raises(ConfigError) as raised:
        spark_streams(**{argument: "sasl.password=mine"})
    assert "mine" not in str(raised.value)


def opened(supplier: Any, directory: Any) -> None:
    with open_store(supplier, directory):
        pass


@pytest.mark.parametrize("entry", [opened, read_store])
@pytest.mark.parametrize(
    "supplier",
    ["k", None, persistent_key_value_store, global_store(persistent_key_value_store("k"), "topic")],
)
def test_what_opens_no_store_is_refused_as_the_supplier_of_one(
    entry: Callable[[Any, Any], object], supplier: object, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"(?s)^supplier=.* is not allowed: what opens a store, such as"):
        entry(supplier, tmp_path)


@pytest.mark.parametrize("entry", [opened, read_store])
def test_what_is_no_path_is_refused_as_the_directory_of_a_store(
    entry: Callable[[Any, Any], object],
) -> None:
    with pytest.raises(ConfigError, match=r"^directory=5 is not allowed: the path of a directory"):
        entry(persistent_key_value_store("k"), 5)
