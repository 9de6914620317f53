from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import pytest

from store.engine.memory import MemoryEngine
from store.errors import SerdeError, StoreClosedError
from store.metrics import Metrics, RecordingLevel
from store.serdes import IntSerde, JsonSerde, StrSerde
from store.state.keyvalue import KeyValueStore
from store.state.listvalue import ListValueStore
from store.state.metered import (
    MeteredKeyValueStore,
    MeteredListValueStore,
    MeteredSessionStore,
    MeteredStore,
    MeteredTimestampedKeyValueStore,
    MeteredTimestampedWindowStore,
    MeteredVersionedKeyValueStore,
    MeteredWindowStore,
)
from store.state.protocol import StateStore
from store.state.session import SessionStore
from store.state.store import EngineStore
from store.state.timestamped import ValueAndTimestamp
from store.state.versioned import VersionedKeyValueStore, VersionedRecord
from store.state.window import WindowStore
from store.state.windowed import Window, Windowed
from store.types import IsolationLevel, Record, TopicPartition
from tests.state.opening import context_over
from tests.transaction.stacks import Changelog

HOUR = 3_600_000
CHANGELOG = TopicPartition("orders-changelog", 0)

INNER: dict[type[MeteredStore[Any, Any, Any]], Any] = {
    MeteredKeyValueStore: KeyValueStore,
    MeteredTimestampedKeyValueStore: lambda context: KeyValueStore(context, timestamped=True),
    MeteredWindowStore: lambda context: WindowStore(context, retention_ms=HOUR, window_size_ms=10),
    MeteredTimestampedWindowStore: lambda context: WindowStore(
        context, retention_ms=HOUR, window_size_ms=10, timestamped=True
    ),
    MeteredSessionStore: lambda context: SessionStore(context, retention_ms=HOUR),
    MeteredVersionedKeyValueStore: lambda context: VersionedKeyValueStore(context, history_retention_ms=HOUR),
    MeteredListValueStore: ListValueStore,
}
every_type = pytest.mark.parametrize("kind", INNER, ids=lambda kind: kind.__name__)


def over(kind: type[MeteredStore[Any, Any, Any]], **options: Any) -> Any:
    """A store of this type with keys that are integers and values that are text."""
    inner = INNER[kind](context_over(MemoryEngine(), **options))
    return kind(inner, IntSerde(), StrSerde())


def write(store: Any, key: Any, value: Any) -> None:
    """Put by whatever name and arguments the type has."""
    if "Timestamped" in type(store).__name__ and value is not None:
        value = ValueAndTimestamp(value, 5)
    if isinstance(store, MeteredSessionStore):
        store.put(Windowed(key, Window(5, 6)), value)
    elif isinstance(store, MeteredWindowStore | MeteredVersionedKeyValueStore):
        store.put(key, value, 5)
    else:
        store.put(key, value)


def read(store: Any, key: Any) -> Any:
    """The value that `write` put, whatever the type adds to it."""
    if hasattr(store, "fetch_session"):
        return store.fetch_session(key, 5, 6)
    found = store.fetch(key, 5) if hasattr(store, "fetch") else store.get(key)
    if isinstance(found, list):
        return found[0]
    return found.value if isinstance(found, VersionedRecord | ValueAndTimestamp) else found


def reads(store: Any) -> Iterator[Any]:
    """Every read of every key, as its type has it, by its method's name."""
    arguments: dict[str, tuple[Any, ...]] = {
        "range": (1, 2),
        "reverse_range": (1, 2),
        "get": (1,),
        "get_versions": (1,),
        "fetch_all": (0, 9),
        "backward_fetch_all": (0, 9),
        "fetch_session": (1, 5, 6),
        "find_sessions": (1, 0, 9),
        "backward_find_sessions": (1, 0, 9),
        "find_sessions_range": (1, 2, 0, 9),
        "backward_find_sessions_range": (1, 2, 0, 9),
        "find_sessions_ending": (0, 9),
        "backward_find_sessions_ending": (0, 9),
        "prefix_scan": (IntSerde().serialize(1)[:7],),
    }
    if hasattr(store, "fetch_session"):
        arguments |= {
            "fetch": (1,),
            "backward_fetch": (1,),
            "fetch_range": (1, 2),
            "backward_fetch_range": (1, 2),
        }
    else:
        arguments |= {
            "fetch": (1, 0, 9),
            "backward_fetch": (1, 0, 9),
            "fetch_range": (1, 2, 0, 9),
            "backward_fetch_range": (1, 2, 0, 9),
        }
    for name, method in inspect.getmembers(store, callable):
        if name in arguments or name in ("all", "reverse_all", "backward_all"):
            found: Any = method(*arguments.get(name, ()))
            yield name, list(found) if hasattr(found, "__next__") else found


@pytest.mark.requirement("x.2")
def test_a_metered_store_forwards_everything_that_a_state_store_is() -> None:
    asked = {name for name in vars(StateStore) if not name.startswith("_")} - {"name", "written"}
    assert asked >= {"commit", "discard", "recover", "get_committed_offset", "last_caught_up_ms"}
    assert asked <= set(vars(MeteredStore))
    store = over(MeteredKeyValueStore)
    assert store.written is store.inner.written is not None
    calls = []

    def answer(name: str, *arguments: str) -> str:
        calls.append((name, arguments))
        return f"answer of {name}"

    for name in sorted(asked):
        signature = inspect.signature(getattr(store, name))
        arguments = tuple(f"argument {at}" for at in range(len(signature.parameters)))
        setattr(store.inner, name, partial(answer, name))
        returned = getattr(store, name)(*arguments)
        assert calls.pop() == (name, arguments)
        assert returned == (None if signature.return_annotation == "None" else f"answer of {name}")


@pytest.mark.requirement("x.1")
@pytest.mark.requirement("x.2")
@every_type
def test_a_typed_store_has_every_method_of_its_bytes_store(kind: type[MeteredStore[Any, Any, Any]]) -> None:
    store = over(kind)
    ours = {name for name in dir(store) if not name.startswith("_")}
    theirs = {name for name in dir(store.inner) if not name.startswith("_")}
    fixed_at_open = {name for name in theirs if not callable(getattr(store.inner, name))}
    assert theirs - fixed_at_open - ours == set()


@pytest.mark.requirement("x.2")
@every_type
def test_a_commit_a_discard_and_isolation_reach_every_type(kind: type[MeteredStore[Any, Any, Any]]) -> None:
    store = over(kind, changelog=CHANGELOG)
    write(store, 1, "committed")
    store.commit({CHANGELOG: 3})
    write(store, 2, "uncommitted")
    committed = store.view(IsolationLevel.READ_COMMITTED)
    uncommitted = store.view(IsolationLevel.READ_UNCOMMITTED)
    assert (read(store, 2), read(uncommitted, 2), read(committed, 2)) == ("uncommitted", "uncommitted", None)
    store.discard()
    assert (read(store, 1), read(committed, 1), read(uncommitted, 2)) == ("committed", "committed", None)
    assert store.get_committed_offset(CHANGELOG) == 3
    store.close()
    assert not store.is_open()
    assert not store.inner.is_open()


@pytest.mark.requirement("892.7")
@every_type
def test_a_view_of_a_snapshot_stays_at_its_commit(kind: type[MeteredStore[Any, Any, Any]]) -> None:
    store = over(kind)
    write(store, 1, "before")
    store.commit()
    snapshot = store.snapshot()
    write(store, 2, "after")
    store.commit()
    view = store.view(IsolationLevel.READ_COMMITTED, snapshot)
    assert (read(view, 1), read(view, 2), read(store, 2)) == ("before", None, "after")
    snapshot.close()
    store.close()


@pytest.mark.requirement("x.2")
@every_type
def test_a_changelog_restores_a_typed_store(kind: type[MeteredStore[Any, Any, Any]]) -> None:
    changelog = Changelog()
    store = over(kind, log_change=changelog)
    write(store, 1, "one")
    write(store, 2, "two")
    replica = over(kind, changelog=CHANGELOG)
    records = [
        Record("orders-changelog", 0, offset, key, value, 5 if time is None else time)
        for offset, (key, value, time) in enumerate(changelog.records)
    ]
    replica.restore_batch(records, {CHANGELOG: 1})
    assert (read(replica, 1), read(replica, 2)) == ("one", "two")
    assert dict(reads(replica)) == dict(reads(store))


@pytest.mark.requirement("x.1")
@every_type
def test_every_read_gives_typed_keys_and_values(kind: type[MeteredStore[Any, Any, Any]]) -> None:
    store = over(kind)
    for key, value in ((1, "one"), (2, "two"), (3, "three")):
        write(store, key, value)
    found = dict(reads(store))
    assert len(found) >= 2
    for name, answer in found.items():
        assert answer, name
        assert not _holds_bytes(answer), name
    store.commit()
    assert dict(reads(store.view(IsolationLevel.READ_COMMITTED))) == found


@pytest.mark.requirement("x.1")
@every_type
def test_every_backward_read_is_the_reverse_of_the_forward_one(
    kind: type[MeteredStore[Any, Any, Any]],
) -> None:
    store = over(kind)
    for key, value in ((1, "one"), (2, "two"), (3, "three")):
        write(store, key, value)
    if kind is MeteredSessionStore:
        store.put(Windowed(1, Window(7, 8)), "later")
    elif issubclass(kind, MeteredWindowStore):
        store.put(1, ValueAndTimestamp("later", 7) if store.inner.timestamped else "later", 7)
    elif kind is MeteredListValueStore:
        store.put(1, "later")
    else:
        store.put(*((1, "later", 7) if kind is MeteredVersionedKeyValueStore else (4, store.get(1))))
    found = dict(reads(store))
    for name, answer in found.items():
        way, _, forward = name.partition("_")
        if way in ("backward", "reverse"):
            assert len(answer) > 1, name
            assert answer == found[forward][::-1], name
    if kind is MeteredVersionedKeyValueStore:
        versions = list(store.get_versions(1))
        assert len(versions) == 2
        assert list(store.get_versions(1, ascending=False)) == versions[::-1]


def _holds_bytes(answer: object) -> bool:
    if isinstance(answer, list | tuple):
        return any(_holds_bytes(part) for part in answer)
    return isinstance(answer, bytes)


@every_type
def test_none_as_a_key_is_refused_by_name_of_the_store(kind: type[MeteredStore[Any, Any, Any]]) -> None:
    store = over(kind)
    with pytest.raises(TypeError, match="store orders: a key must not be None"):
        write(store, None, "value")
    with pytest.raises(TypeError, match="store orders: a key must not be None"):
        read(store, None)


@every_type
def test_what_no_serde_can_write_is_refused_by_name_and_nothing_is_written(
    kind: type[MeteredStore[Any, Any, Any]],
) -> None:
    store = over(kind)
    with pytest.raises(
        TypeError, match="store orders: IntSerde cannot serialize the key 'one': expected int"
    ):
        write(store, "one", "value")
    with pytest.raises(SerdeError, match=f"store orders: IntSerde cannot serialize the key {2**63}"):
        write(store, 2**63, "value")
    with pytest.raises(
        TypeError,
        match=r"store orders: StrSerde cannot serialize the value .*7.*: expected str.*Materialized",
    ):
        write(store, 1, 7)
    assert store.approximate_num_uncommitted_bytes() == 0
    assert read(store, 1) is None


@every_type
def test_what_no_serde_can_read_is_an_error_that_says_where(kind: type[MeteredStore[Any, Any, Any]]) -> None:
    store = over(kind)
    write(store, 1, "value")
    other = kind(store.inner, IntSerde(), JsonSerde(int))
    with pytest.raises(SerdeError, match=r"store orders: \w+ cannot deserialize the value b'.*value"):
        read(other, 1)
    assert read(store, 1) == "value"


@pytest.mark.parametrize(
    "kind", [kind for kind in INNER if hasattr(kind, "delete")], ids=lambda kind: kind.__name__
)
def test_what_no_serde_can_read_is_not_deleted(kind: type[MeteredStore[Any, Any, Any]]) -> None:
    store = over(kind)
    write(store, 1, "x")
    typed = kind(store.inner, IntSerde(), IntSerde())
    at = (5,) if kind is MeteredVersionedKeyValueStore else ()
    with pytest.raises(SerdeError, match="orders"):
        typed.delete(1, *at)  # type: ignore[attr-defined]
    assert read(store, 1) == "x"


def test_a_version_that_comes_too_late_to_be_deleted_is_not_told_as_if_it_was() -> None:
    store = over(MeteredVersionedKeyValueStore)
    write(store, 1, "x")
    store.put(2, "y", 6 + HOUR)
    assert store.delete(1, 5) is None
    assert store.get(1).value == "x"


@every_type
def test_operations_are_measured_once_and_under_known_methods(
    kind: type[MeteredStore[Any, Any, Any]],
) -> None:
    metrics = Metrics(level=RecordingLevel.DEBUG)
    handle = metrics.store("orders", task_id="0_0")
    store = over(kind, metrics=handle)
    assert all(callable(getattr(store, method)) for method in kind.OPERATIONS)
    write(store, 1, "one")
    names = [name for name, _ in reads(store)]
    assert set(names) <= set(kind.OPERATIONS)
    if hasattr(store, "fetch") and not hasattr(store, "fetch_session"):
        store.fetch(1, 2, 0, 9).close()
        store.backward_fetch(1, 2, 0, 9).close()
        names += ["fetch", "backward_fetch"]
    for operation in set(kind.OPERATIONS.values()):
        methods = [name for name in names if kind.OPERATIONS[name] == operation]
        calls = sum(sample.count for sample in handle._operations[operation]._samples)
        assert calls == len(methods) + (operation == "put")
    store.close()


@every_type
def test_every_call_that_reads_or_writes_is_measured(kind: type[MeteredStore[Any, Any, Any]]) -> None:
    of_the_type = {name for name in vars(EngineStore) | vars(StateStore) if not name.startswith("_")}
    calls = {
        name
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in of_the_type
    }
    assert set(kind.OPERATIONS) == calls - {"approximate_num_entries"}


@pytest.mark.requirement("x.1")
def test_ranges_come_in_the_order_of_the_keys_if_the_serde_keeps_it() -> None:
    store = over(MeteredKeyValueStore)
    store.put_all((number, str(number)) for number in (5, -3, 0, 7, -8))
    assert [key for key, _ in store.all()] == [-8, -3, 0, 5, 7]
    assert [key for key, _ in store.reverse_range(-3, 5)] == [5, 0, -3]
    with store.range(None, 0) as iterator:
        assert iterator.has_next()
        assert iterator.peek_next_key() == -8
        assert next(iterator) == (-8, "-8")
    with pytest.raises(StoreClosedError):
        next(iterator)


def test_of_two_pairs_of_one_key_the_later_one_stays() -> None:
    store = MeteredKeyValueStore(KeyValueStore(context_over(MemoryEngine())), StrSerde(), IntSerde())
    store.put_all([("a", 1), ("b", 2), ("a", 3)])
    assert list(store.all()) == [("a", 3), ("b", 2)]


def test_a_value_of_zero_is_deleted_as_any_other_is() -> None:
    store = MeteredKeyValueStore(KeyValueStore(context_over(MemoryEngine())), StrSerde(), IntSerde())
    store.put("a", 0)
    assert (store.delete("a"), store.get("a")) == (0, None)


def test_a_prefix_is_serialized_by_a_serde_of_its_own() -> None:
    store = MeteredKeyValueStore(KeyValueStore(context_over(MemoryEngine())), StrSerde(), IntSerde())
    store.put_all([("ab", 1), ("abc", 2), ("b", 3)])
    assert (
        list(store.prefix_scan("ab", StrSerde())) == list(store.prefix_scan(b"ab")) == [("ab", 1), ("abc", 2)]
    )
    with pytest.raises(TypeError, match="prefix must be bytes, not str"):
        store.prefix_scan("ab")
    with pytest.raises(TypeError, match="store orders: StrSerde cannot serialize the prefix 1"):
        store.prefix_scan(1, cast("Any", StrSerde()))


def test_none_deletes_and_reaches_no_serde() -> None:
    store: MeteredKeyValueStore[int, Any] = MeteredKeyValueStore(
        KeyValueStore(context_over(MemoryEngine())), IntSerde(), JsonSerde()
    )
    store.put(1, {"n": 1})
    assert store.put_if_absent(1, {"n": 2}) == {"n": 1}
    assert store.put_if_absent(2, {"n": 2}) is None
    assert store.delete(2) == {"n": 2}
    assert store.delete(2) is None
    store.put(1, None)
    assert store.get(1) is None
    assert list(store.all()) == []


@every_type
def test_an_empty_value_is_a_value_in_every_type(kind: type[MeteredStore[Any, Any, Any]]) -> None:
    store = over(kind)
    write(store, 1, "")
    assert read(store, 1) == ""
    store.commit()
    assert read(store.view(IsolationLevel.READ_COMMITTED), 1) == ""


def test_of_many_pairs_none_is_written_when_a_serde_refuses_one() -> None:
    store = over(MeteredKeyValueStore)
    with pytest.raises(TypeError, match="orders"):
        store.put_all([(1, "one"), (2, 2)])
    assert store.get(1) is None


@pytest.mark.requirement("x.1")
def test_a_timestamped_store_keeps_the_time_and_logs_the_plain_value_with_it() -> None:
    changelog = Changelog()
    store = over(MeteredTimestampedKeyValueStore, log_change=changelog)
    store.put(1, ValueAndTimestamp("one", 70))
    assert store.get(1) == ValueAndTimestamp("one", 70)
    assert changelog.records == [(IntSerde().serialize(1), b"one", 70)]
    with pytest.raises(TypeError, match="expected ValueAndTimestamp, got str"):
        store.put(1, "one")


def test_windows_are_read_by_time_and_by_key() -> None:
    store = over(MeteredWindowStore)
    for key, start in ((1, 10), (1, 20), (2, 10)):
        store.put(key, f"{key}@{start}", start)
    assert store.fetch(1, 10) == "1@10"
    assert list(store.fetch(1, 0, 99)) == [(10, "1@10"), (20, "1@20")]
    assert list(store.backward_fetch(1, 0, 99)) == [(20, "1@20"), (10, "1@10")]
    everything = [
        (Windowed(1, Window(10, 20)), "1@10"),
        (Windowed(1, Window(20, 30)), "1@20"),
        (Windowed(2, Window(10, 20)), "2@10"),
    ]
    assert list(store.fetch(None, None, 0, 99)) == list(store.fetch_range(1, 2, 0, 99)) == everything
    assert list(store.backward_fetch(1, None, 0, 99)) == list(store.backward_all()) == everything[::-1]
    store.put(1, None, 10)
    assert list(store.all()) == everything[1:]
    for arguments in ((), (1,), (1, 2, 3, 4, 5)):
        with pytest.raises(TypeError, match="arguments"):
            store.fetch(*arguments)


def test_sessions_are_found_by_key_and_time_and_removed() -> None:
    store = over(MeteredSessionStore)
    one, two = Windowed(1, Window(10, 20)), Windowed(1, Window(40, 50))
    store.put(one, "one")
    store.put(two, "two")
    assert list(store.find_sessions(1, 15, 45)) == [(one, "one"), (two, "two")]
    assert list(store.backward_find_sessions(1, 25, 45)) == [(two, "two")]
    store.remove(one)
    assert list(store.fetch(1)) == [(two, "two")]
    with pytest.raises(TypeError, match="store orders: a session's key must be Windowed, not int"):
        store.put(1, "one")


def test_versions_are_typed_and_keep_their_times() -> None:
    store = over(MeteredVersionedKeyValueStore)
    store.put(1, "old", 10)
    store.put(1, "new", 20)
    assert store.get(1) == VersionedRecord("new", 20)
    assert store.get(1, 15) == VersionedRecord("old", 10, 20)
    assert [version.value for version in store.get_versions(1)] == ["old", "new"]
    assert store.delete(1, 30) == VersionedRecord("new", 20)
    assert store.get(1) is None


def test_lists_are_typed_value_by_value() -> None:
    store = over(MeteredListValueStore)
    for value in ("one", "uno", "one"):
        store.put(1, value)
    assert store.get(1) == ["one", "uno", "one"]
    assert list(store.all()) == [(1, "one"), (1, "uno"), (1, "one")]
    assert store.delete(1) == ["one", "uno", "one"]
    assert store.get(1) is None


def test_the_context_of_the_inner_store_is_that_of_the_typed_one() -> None:
    store = over(MeteredKeyValueStore)
    assert isinstance(store.inner, EngineStore)
    assert store.context is store.inner.context
    assert (store.name, store.persistent(), store.is_empty()) == ("orders", True, True)


@pytest.mark.parametrize("kind", [MeteredTimestampedKeyValueStore, MeteredTimestampedWindowStore])
def test_a_value_with_a_time_that_is_none_or_becomes_none_deletes(
    kind: type[MeteredStore[Any, Any, Any]],
) -> None:
    class Optional(StrSerde):
        def serialize(self, value: str) -> bytes:
            return cast(bytes, None) if value == "" else super().serialize(value)

    inner = INNER[kind](context_over(MemoryEngine()))
    store = cast(Any, kind(inner, IntSerde(), Optional()))
    for gone in ("", None):
        write(store, 1, "there")
        store.put(
            *(
                (1, ValueAndTimestamp(gone, 6))
                if kind is MeteredTimestampedKeyValueStore
                else (1, ValueAndTimestamp(gone, 6), 5)
            )
        )
        assert read(store, 1) is None
