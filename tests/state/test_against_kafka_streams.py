"""Our stores answer as Kafka Streams' own persistent stores do: recorded sequences, replayed.

`tests/state/kafka_streams/record.py` says how the recordings came about, and which answers of Kafka Streams it
corrects. Each sequence runs over both engines, with each mechanism and through the cache. Nothing that Kafka Streams
knows nothing of may change an answer: commits in between, after which the committed view has to answer alike, writes
that are given up, and restarts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from store.state.keyvalue import KeyValueStore, ReadOnlyKeyValueStore
from store.state.listvalue import ListValueStore, ReadOnlyListValueStore
from store.state.protocol import StoreContext
from store.state.session import ReadOnlySessionStore, SessionStore
from store.state.versioned import ReadOnlyVersionedKeyValueStore, VersionedKeyValueStore
from store.state.window import ReadOnlyWindowStore, WindowStore
from store.state.windowed import Window, Windowed
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel
from tests.engine.engines import open_engine_for
from tests.state.kafka_streams.record import RECORDED
from tests.state.opening import context_over

TYPES = sorted(file.stem for file in RECORDED.glob("*.json"))
STACKS: dict[str, dict[str, Any]] = {
    "indexed-batch": {"mechanism": Mechanism.INDEXED_BATCH},
    "secondary": {"mechanism": Mechanism.SECONDARY},
    "direct": {"mechanism": None},
    "cached": {"mechanism": Mechanism.INDEXED_BATCH, "cache_max_bytes": 600},
}
SEQUENCES_APART = {
    (kind, stack): 1 if kind == "memory" else 2 for kind in ("memory", "rocksdb") for stack in STACKS
}
"""All on the memory engine, fewer where opening and committing cost disk writes."""
SEQUENCES_APART["rocksdb", "secondary"] = 5
OPERATIONS_PER_COMMIT = 11
COMMITS_PER_RESTART = 3
FAR_AHEAD = 2**40

ERRORS: dict[str, type[Exception]] = {
    "NullPointerException": TypeError,
    "IllegalArgumentException": ValueError,
}
"""What we raise where Kafka Streams raises."""

WRITES = frozenset({"put", "put_if_absent", "put_all", "delete", "remove"})


@cache
def recording(type_name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RECORDED / f"{type_name}.json").read_text())
    return loaded


def test_every_store_type_is_recorded() -> None:
    assert TYPES == [
        "keyvalue",
        "listvalue",
        "session",
        "timestamped_keyvalue",
        "timestamped_window",
        "versioned",
        "window",
    ]
    assert {recording(name)["kafka_streams"] for name in TYPES} == {"4.3.1"}


@pytest.mark.requirement("x.1")
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@pytest.mark.parametrize("type_name", TYPES)
def test_answers_are_those_of_kafka_streams(type_name: str, kind: str, stack: str, tmp_path: Path) -> None:
    sequences = recording(type_name)["sequences"]
    for number in range(0, len(sequences), SEQUENCES_APART[kind, stack]):
        directory = tmp_path / str(number)
        directory.mkdir()
        context = context_over(open_engine_for(kind, directory), **STACKS[stack])
        replay(f"{type_name}, sequence {number}", partial(opened, type_name, context), sequences[number])


def replay(what: str, open_store: Callable[[dict[str, Any]], Any], sequence: dict[str, Any]) -> None:
    store = open_store(sequence["parameters"])
    views = [store]
    commits = 0
    try:
        for index, (name, *arguments) in enumerate(sequence["operations"]):
            expected = sequence["corrected"].get(str(index), sequence["answers"][index])
            if name in WRITES:
                views = [store]
            for view in views:
                given = asked(view, name, arguments, expected)
                assert given == expected, f"{what}, operation {index}: {name} {arguments} of {view}"
            if index % OPERATIONS_PER_COMMIT == 0:
                store.commit()
                commits += 1
                if store.transactional():
                    write_far_ahead(store)
                    store.discard()
                if commits % COMMITS_PER_RESTART == 0:
                    store.close()
                    store = open_store(sequence["parameters"])
                views = [store, store.view(IsolationLevel.READ_COMMITTED)]
    finally:
        store.close()


def write_far_ahead(store: Any) -> None:
    """If it counted, everything with a time would have expired."""
    match store:
        case WindowStore():
            store.put(b"a", b"far ahead", FAR_AHEAD)
        case SessionStore():
            store.put(Windowed(b"a", Window(FAR_AHEAD, FAR_AHEAD)), b"far ahead")
        case VersionedKeyValueStore():
            store.put(b"a", b"far ahead", FAR_AHEAD)
        case _:
            store.put(b"a", b"far ahead")


def asked(target: Any, name: str, arguments: list[Any], expected: Any) -> Any:
    """Where Kafka Streams raised, its error if ours fits."""
    answer = next(answer for kind, answer in ANSWERS.items() if isinstance(target, kind))
    if not isinstance(expected, dict):
        return answer(target, name, arguments)
    with pytest.raises(ERRORS[expected["error"]]):
        answer(target, name, arguments)
    return expected


def opened(type_name: str, context: StoreContext, parameters: dict[str, Any]) -> Any:
    match type_name:
        case "keyvalue" | "timestamped_keyvalue":
            return KeyValueStore(context, timestamped=type_name != "keyvalue")
        case "window" | "timestamped_window":
            return WindowStore(context, timestamped=type_name != "window", **parameters)
        case "session":
            return SessionStore(context, **parameters)
        case "versioned":
            return VersionedKeyValueStore(context, **parameters)
        case "listvalue":
            return ListValueStore(context)
    raise AssertionError(f"no store for recordings of {type_name}")


def key_value(store: Any, name: str, arguments: list[Any]) -> Any:
    if name == "put_all":
        return store.put_all([(raw(key), raw(value)) for key, value in arguments[0]])
    given = getattr(store, name)(*map(raw, arguments))
    if name in {"put", "put_if_absent", "delete", "get"}:
        return text(given)
    return [[text(key), text(value)] for key, value in given]


def window(store: Any, name: str, arguments: list[Any]) -> Any:
    arguments = raws(arguments)
    if name == "put":
        return store.put(*arguments)
    if name == "fetch_one":
        return text(store.fetch(*arguments))
    pairs = getattr(store, name)(*arguments)
    if name in {"fetch", "backward_fetch"}:
        return [[time, text(value)] for time, value in pairs]
    return [[text(key), *span, text(value)] for (key, span), value in pairs]


def session(store: Any, name: str, arguments: list[Any]) -> Any:
    arguments = raws(arguments)
    if name in {"put", "remove"}:
        key, start, end, *value = arguments
        return getattr(store, name)(Windowed(key, Window(start, end)), *value)
    if name == "fetch_session":
        return text(store.fetch_session(*arguments))
    pairs = getattr(store, name)(*arguments)
    return [[text(key), *span, text(value)] for (key, span), value in pairs]


def versioned(store: Any, name: str, arguments: list[Any]) -> Any:
    match name, raws(arguments):
        case "put", [key, value, timestamp]:
            return store.put(key, value, timestamp)
        case "delete", [key, timestamp]:
            deleted = store.delete(key, timestamp)
            return None if deleted is None else [text(deleted.value), deleted.timestamp]
        case (("get" | "get_as_of"), wanted):
            return version(store.get(*wanted))
        case "versions", [key, low, high, ascending]:
            return [version(found) for found in store.get_versions(key, low, high, ascending=ascending)]
    raise AssertionError(name)


def list_value(store: Any, name: str, arguments: list[Any]) -> Any:
    """Kafka Streams answers `get` with the bytes of its `ListSerde`."""
    if name == "get":
        values = store.get(*raws(arguments))
        if values is None:
            return None
        entries = b"".join(len(value).to_bytes(4, "big") + value for value in values)
        return text(b"\x01" + len(values).to_bytes(4, "big") + entries)
    given = getattr(store, name)(*raws(arguments))
    return [[text(key), text(value)] for key, value in given] if name == "all" else given


def version(found: Any) -> Any:
    return None if found is None else [text(found.value), found.timestamp, found.valid_to]


def raws(arguments: list[Any]) -> list[Any]:
    return [raw(argument) if isinstance(argument, str) else argument for argument in arguments]


def raw(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)


def text(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


ANSWERS: dict[type, Callable[[Any, str, list[Any]], Any]] = {
    ReadOnlyKeyValueStore: key_value,
    ReadOnlyWindowStore: window,
    ReadOnlySessionStore: session,
    ReadOnlyVersionedKeyValueStore: versioned,
    ReadOnlyListValueStore: list_value,
}
