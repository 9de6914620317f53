"""Runs small applications for the tests of the DSL."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from sys import getsizeof
from typing import Any

from store.serdes import JsonSerde, Serde, StrSerde
from store.streams.dsl import StreamsBuilder
from store.testing.driver import TestDriver

CACHED = {"statestore.cache.max.bytes": 1 << 20}
UNCACHED = {"statestore.cache.max.bytes": 0}

Input = tuple[str, Any, Any, int]
"""Topic, key, value, timestamp."""


def driver(
    build: Callable[[StreamsBuilder], object], config: Mapping[str, object] | None = None, **options: Any
) -> TestDriver:
    """An application over text keys and JSON values. Without a cache unless the configuration says otherwise."""
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    build(builder)
    return TestDriver(builder.build(), UNCACHED if config is None else config, **options)


def pipe(running: TestDriver, records: Iterable[Input]) -> None:
    for topic, key, value, timestamp in records:
        running.pipe_input(topic, key, value, timestamp, key_serde=StrSerde(), value_serde=JsonSerde())


def output(
    running: TestDriver,
    topic: str = "out",
    key_serde: Serde[Any] | None = None,
    value_serde: Serde[Any] | None = None,
) -> list[tuple[Any, Any, int]]:
    """Key, value and time of what came since the last call."""
    records = running.read_output(topic, key_serde or StrSerde(), value_serde or JsonSerde())
    return [(record.key, record.value, record.timestamp) for record in records]


def results(
    build: Callable[[StreamsBuilder], object],
    records: Iterable[Input],
    config: Mapping[str, object] | None = None,
    **serdes: Any,
) -> list[tuple[Any, Any, int]]:
    """What such an application writes to `out` for that input."""
    with driver(build, config) as running:
        pipe(running, records)
        return output(running, **serdes)


def bytes_held(objects: Iterable[Any]) -> int:
    """What these objects keep in memory, each object once."""
    seen, found, todo = set(), 0, list(objects)
    while todo:
        one = todo.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen.add(id(one))
            found += getsizeof(one)
            todo.extend(gc.get_referents(one))
    return found
