"""Store suppliers and builders: values that describe stores, and what they refuse."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from store.engine.memory import MemoryEngine
from store.serdes import IntSerde, StrSerde
from store.standalone import open_store
from store.state.keyvalue import KeyValueStore
from store.state.metered import (
    MeteredKeyValueStore,
    MeteredListValueStore,
    MeteredSessionStore,
    MeteredTimestampedKeyValueStore,
    MeteredTimestampedWindowStore,
    MeteredVersionedKeyValueStore,
    MeteredWindowStore,
)
from store.state.protocol import StoreContext
from store.suppliers import (
    StoreBuilder,
    StoreSupplier,
    custom_store,
    in_memory_key_value_store,
    in_memory_session_store,
    in_memory_window_store,
    key_value_store_builder,
    list_value_store_builder,
    persistent_key_value_store,
    persistent_list_value_store,
    persistent_session_store,
    persistent_timestamped_key_value_store,
    persistent_timestamped_window_store,
    persistent_versioned_key_value_store,
    persistent_window_store,
    session_store_builder,
    timestamped_key_value_store_builder,
    timestamped_window_store_builder,
    versioned_key_value_store_builder,
    window_store_builder,
)
from store.transaction import Mechanism
from tests.conformance.stores import FileStore
from tests.state.opening import context_over

HOUR = timedelta(hours=1)
SERDES = (StrSerde(), IntSerde())

Made = Callable[..., StoreSupplier[Any]]

WITH_FLAG: dict[str, tuple[Made, tuple[Any, ...]]] = {
    "persistent_key_value_store": (persistent_key_value_store, ()),
    "persistent_timestamped_key_value_store": (persistent_timestamped_key_value_store, ()),
    "persistent_window_store": (persistent_window_store, (HOUR, 60_000)),
    "persistent_timestamped_window_store": (persistent_timestamped_window_store, (HOUR, 60_000)),
    "persistent_session_store": (persistent_session_store, (HOUR,)),
    "persistent_versioned_key_value_store": (persistent_versioned_key_value_store, (HOUR,)),
    "persistent_list_value_store": (persistent_list_value_store, ()),
}
IN_MEMORY: dict[str, tuple[Made, tuple[Any, ...]]] = {
    "in_memory_key_value_store": (in_memory_key_value_store, ()),
    "in_memory_window_store": (in_memory_window_store, (HOUR, 60_000)),
    "in_memory_session_store": (in_memory_session_store, (HOUR,)),
}
ALL = {**WITH_FLAG, **IN_MEMORY}


@pytest.mark.requirement("844.6")
@pytest.mark.parametrize("name", WITH_FLAG)
@pytest.mark.parametrize("transactional", [True, False])
def test_a_persistent_store_is_transactional_as_its_supplier_says(
    name: str, transactional: bool, tmp_path: Path
) -> None:
    make, durations = WITH_FLAG[name]
    with open_store(make("s", *durations, transactional=transactional), tmp_path) as store:
        assert (store.transactional(), store.persistent()) == (transactional, True)


@pytest.mark.requirement("844.6", "844.1")
@pytest.mark.parametrize("name", WITH_FLAG)
def test_a_persistent_store_is_transactional_unless_told_otherwise(name: str, tmp_path: Path) -> None:
    make, durations = WITH_FLAG[name]
    with open_store(make("s", *durations), tmp_path) as store:
        assert store.transactional()
        assert store.manages_offsets()


@pytest.mark.requirement("844.2")
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("mechanism", [*Mechanism, None])
def test_any_store_opens_with_any_mechanism(name: str, mechanism: Mechanism | None, tmp_path: Path) -> None:
    make, durations = ALL[name]
    with open_store(make("s", *durations), tmp_path, mechanism=mechanism) as store:
        assert store.transactional() is (mechanism is not None)
        store.commit()


@pytest.mark.parametrize("name", IN_MEMORY)
def test_a_store_in_memory_does_not_outlive_its_process_and_keeps_no_offsets(
    name: str, tmp_path: Path
) -> None:
    make, durations = IN_MEMORY[name]
    with open_store(make("s", *durations), tmp_path) as store:
        assert (store.persistent(), store.manages_offsets()) == (False, False)
    assert not list(tmp_path.rglob("CURRENT"))


@pytest.mark.parametrize("name", ALL)
def test_a_supplier_is_a_frozen_value_that_can_be_sent_to_another_process(name: str) -> None:
    make, durations = ALL[name]
    supplier = make("s", *durations)
    assert supplier == make("s", *durations)
    assert hash(supplier) == hash(make("s", *durations))
    assert supplier != make("t", *durations)
    assert pickle.loads(pickle.dumps(supplier)) == supplier
    with pytest.raises(FrozenInstanceError):
        supplier.name = "t"  # type: ignore[misc]


def test_a_duration_is_the_same_in_milliseconds_and_as_a_timedelta() -> None:
    as_numbers = persistent_window_store("s", 3_600_000, 60_000)
    assert as_numbers == persistent_window_store("s", HOUR, timedelta(minutes=1))


@pytest.mark.requirement("844.6")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: persistent_key_value_store(None), "name=None is not allowed"),  # type: ignore[arg-type]
        (lambda: persistent_key_value_store(""), "name='' is not allowed"),
        (lambda: persistent_key_value_store("a/b"), "name='a/b' is not allowed: 1 to 200 ASCII letters"),
        (lambda: persistent_key_value_store(".."), "name='..' is not allowed"),
        (lambda: custom_store("ä", KeyValueStore), "name='ä' is not allowed"),
        (
            lambda: persistent_window_store("s", 9, 10),
            "retention_period_ms=9 is not allowed: at least the window's size, which is 10 ms",
        ),
        (
            lambda: persistent_timestamped_window_store("s", timedelta(0), timedelta(seconds=1)),
            "at least the window's size, which is 1000 ms",
        ),
        (lambda: in_memory_window_store("s", 9, 10), "retention_period_ms=9 is not allowed"),
        (lambda: persistent_window_store("s", -1, 10), "retention_period_ms=-1 is not allowed"),
        (lambda: persistent_window_store("s", 10, -1), "window_size_ms=-1 is not allowed"),
        (
            lambda: persistent_window_store("s", 1 << 63, 10),
            f"retention_period_ms={1 << 63} is not allowed: milliseconds from 0 to 2**63-1",
        ),
        (lambda: persistent_session_store("s", timedelta.max), "whole milliseconds"),
        (lambda: persistent_session_store("s", timedelta(days=-1)), "retention_period_ms=datetime"),
        (lambda: persistent_session_store("s", timedelta(microseconds=1)), "whole milliseconds"),
        (lambda: persistent_session_store("s", 1.5), "retention_period_ms=1.5"),  # type: ignore[arg-type]
        (lambda: persistent_session_store("s", True), "retention_period_ms=True"),
        (lambda: persistent_session_store("s", None), "retention_period_ms=None"),  # type: ignore[arg-type]
        (lambda: in_memory_session_store("s", -5), "retention_period_ms=-5"),
        (lambda: persistent_versioned_key_value_store("s", -5), "history_retention_ms=-5"),
        (
            lambda: persistent_versioned_key_value_store("s", 5, 0),
            "segment_interval_ms=0 is not allowed: milliseconds from 1",
        ),
    ],
)
def test_what_no_store_could_have_is_refused_by_argument_value_and_what_is_allowed(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert message in str(caught.value)


BUILDERS: dict[str, tuple[Callable[..., StoreBuilder[Any]], StoreSupplier[Any], type]] = {
    "key-value": (key_value_store_builder, persistent_key_value_store("s"), MeteredKeyValueStore),
    "timestamped key-value": (
        timestamped_key_value_store_builder,
        persistent_timestamped_key_value_store("s"),
        MeteredTimestampedKeyValueStore,
    ),
    "window": (window_store_builder, persistent_window_store("s", HOUR, 10), MeteredWindowStore),
    "timestamped window": (
        timestamped_window_store_builder,
        persistent_timestamped_window_store("s", HOUR, 10),
        MeteredTimestampedWindowStore,
    ),
    "session": (session_store_builder, persistent_session_store("s", HOUR), MeteredSessionStore),
    "versioned": (
        versioned_key_value_store_builder,
        persistent_versioned_key_value_store("s", HOUR),
        MeteredVersionedKeyValueStore,
    ),
    "list-value": (list_value_store_builder, persistent_list_value_store("s"), MeteredListValueStore),
}


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_builder_opens_the_typed_store_of_its_supplier(kind: str, tmp_path: Path) -> None:
    build, supplier, expected = BUILDERS[kind]
    with open_store(build(supplier, *SERDES), tmp_path) as store:
        assert type(store) is expected


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_builder_is_a_value_and_its_changes_are_copies(kind: str) -> None:
    build, supplier, _ = BUILDERS[kind]
    builder = build(supplier, *SERDES)
    assert builder == build(supplier, StrSerde(), IntSerde())
    assert pickle.loads(pickle.dumps(builder)) == builder
    without = builder.with_logging_disabled()
    assert (builder.logged, without.logged) == (True, False)
    assert without.with_logging_enabled() == builder


def test_caching_is_off_until_it_is_enabled() -> None:
    builder = key_value_store_builder(persistent_key_value_store("s"), *SERDES)
    assert not builder.cached
    assert builder.with_caching_enabled().cached
    assert builder.with_caching_enabled().with_caching_disabled() == builder


@pytest.mark.parametrize(
    ("caching", "max_bytes", "cached"),
    [(False, None, False), (True, None, True), (False, 100_000, True), (True, 0, False)],
)
def test_a_store_alone_has_a_cache_where_its_builder_or_its_opening_says_so(
    caching: bool, max_bytes: int | None, cached: bool, tmp_path: Path
) -> None:
    builder = key_value_store_builder(persistent_key_value_store("s"), *SERDES)
    if caching:
        builder = builder.with_caching_enabled()
    with open_store(builder, tmp_path, cache_max_bytes=max_bytes) as store:
        store.put("a", 1)
        assert (store.num_cached_bytes() > 0) is cached


def test_a_versioned_store_has_no_cache() -> None:
    builder = versioned_key_value_store_builder(persistent_versioned_key_value_store("s", HOUR), *SERDES)
    with pytest.raises(ValueError, match=r"caching=True is not allowed: store s is versioned"):
        builder.with_caching_enabled()


@pytest.mark.parametrize(
    "build",
    [
        lambda: key_value_store_builder(persistent_timestamped_key_value_store("s"), *SERDES),
        lambda: timestamped_key_value_store_builder(persistent_key_value_store("s"), *SERDES),
        lambda: window_store_builder(persistent_timestamped_window_store("s", HOUR, 10), *SERDES),
        lambda: timestamped_window_store_builder(persistent_window_store("s", HOUR, 10), *SERDES),
    ],
)
def test_a_builder_refuses_values_of_the_other_format(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="supplier='s' is not allowed: the supplier of a store that is"):
        build()


def test_a_builder_refuses_a_store_class_that_has_not_the_calls_of_its_type_where_it_is_given() -> None:
    with pytest.raises(ValueError, match=r"FileStore.* is not allowed: a subclass of KeyValueStore"):
        key_value_store_builder(custom_store("s", FileStore), *SERDES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a subclass of WindowStore"):
        window_store_builder(custom_store("s", KeyValueStore), *SERDES)  # type: ignore[arg-type]


def test_a_builder_refuses_a_store_of_a_function_that_has_not_the_calls_of_its_type_and_closes_it(
    tmp_path: Path,
) -> None:
    opened: list[FileStore] = []

    def made(context: StoreContext) -> Any:
        opened.append(FileStore(context))
        return opened[0]

    builder = key_value_store_builder(custom_store("s", made), *SERDES)
    with (
        pytest.raises(TypeError, match=r"store s: .* such as KeyValueStore, which FileStore is not"),
        open_store(builder, tmp_path),
    ):
        pass
    assert not opened[0].is_open()


def test_a_builder_takes_a_class_that_is_derived_from_the_store_of_its_type(tmp_path: Path) -> None:
    class Derived(KeyValueStore):
        pass

    with open_store(key_value_store_builder(custom_store("s", Derived), *SERDES), tmp_path) as store:
        store.put("a", 1)
        assert store.get("a") == 1


def test_a_builder_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    class Broken:
        def __init__(self, *_: object) -> None:
            raise ZeroDivisionError

    supplier = persistent_key_value_store("s")
    builder = StoreBuilder[Any](
        "s", supplier=supplier, key_serde=SERDES[0], value_serde=SERDES[1], metered=Broken
    )
    with pytest.raises(ZeroDivisionError) as raised, open_store(builder, tmp_path):
        pass
    with open_store(supplier, tmp_path) as store:
        assert store.is_open()
    # Until here it has kept all that the failed opening had at hand.
    assert raised.tb is not None


FOR_EVER = 2**63 - 1


@pytest.mark.parametrize(
    ("supplier", "setting"),
    [
        (persistent_window_store("w", FOR_EVER, 10), "retention.ms"),
        (persistent_session_store("s", FOR_EVER), "retention.ms"),
        (persistent_versioned_key_value_store("v", FOR_EVER), "min.compaction.lag.ms"),
    ],
    ids=["window", "session", "versioned"],
)
def test_what_is_kept_for_ever_has_a_changelog_that_kafka_takes(
    supplier: StoreSupplier[Any], setting: str
) -> None:
    assert supplier.changelog_config()[setting] == str(FOR_EVER)


def test_duplicates_of_a_window_are_not_compacted_unless_somebody_says_so() -> None:
    duplicates = persistent_window_store("w", 100, 10, retain_duplicates=True)
    made = window_store_builder(duplicates, StrSerde(), StrSerde())
    said = made.with_logging_enabled({"cleanup.policy": "compact,delete"})
    of_one_each = window_store_builder(persistent_window_store("w", 100, 10), StrSerde(), StrSerde())
    assert [one.changelog_config()["cleanup.policy"] for one in (made, said, of_one_each)] == [
        "delete",
        "compact,delete",
        "compact,delete",
    ]


def test_a_window_may_be_kept_for_just_its_size() -> None:
    assert persistent_window_store("w", 10, 10).retention_ms == 10
    with pytest.raises(ValueError, match="at least the window's size, which is 10 ms"):
        persistent_window_store("w", 9, 10)


def test_a_name_leaves_room_for_that_of_its_changelog() -> None:
    """A topic's name has 249 characters at most, and an application id and `-changelog` are in it too."""
    assert persistent_session_store("s" * 200, 10).name == "s" * 200
    with pytest.raises(ValueError, match="1 to 200 ASCII letters"):
        persistent_session_store("s" * 201, 10)


@pytest.mark.parametrize("cached", [True, False])
def test_a_built_store_holds_writes_back_only_where_its_caching_is_enabled(cached: bool) -> None:
    builder = key_value_store_builder(in_memory_key_value_store("s"), StrSerde(), StrSerde())
    if cached:
        builder = builder.with_caching_enabled()
    store = builder.build(context_over(MemoryEngine(), cache_max_bytes=1 << 20))
    store.put("k", "v")
    assert (store.num_cached_bytes() > 0) is cached
    store.close()
