"""What lies on a disk says of which type it is, and no store of another type is opened over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store.engine.memory import MemoryEngine
from store.engine.protocol import Engine, Family
from store.errors import StoreTypeError
from store.standalone import open_store, read_store
from store.state.timestamped import pack
from store.state.windowed import Window, Windowed
from store.suppliers import (
    StoreSupplier,
    persistent_key_value_store,
    persistent_list_value_store,
    persistent_session_store,
    persistent_timestamped_key_value_store,
    persistent_timestamped_window_store,
    persistent_versioned_key_value_store,
    persistent_window_store,
)
from store.transaction import Mechanism
from store.types import Record, TopicPartition
from tests.state.opening import context_over

SUPPLIERS: dict[str, StoreSupplier[Any]] = {
    "key-value": persistent_key_value_store("things"),
    "versioned key-value": persistent_versioned_key_value_store("things", 600_000),
    "window": persistent_window_store("things", 600_000, 60_000),
    "session": persistent_session_store("things", 600_000),
    "timestamped key-value": persistent_timestamped_key_value_store("things"),
    "timestamped window": persistent_timestamped_window_store("things", 600_000, 60_000),
    "list-value": persistent_list_value_store("things"),
}


def put(name: str, store: Any) -> None:
    match name:
        case "versioned key-value" | "window":
            store.put(b"a key that is long enough", b"1", 100)
        case "timestamped window":
            store.put(b"a key that is long enough", pack(b"1", 100), 100)
        case "timestamped key-value":
            store.put(b"a key that is long enough", pack(b"1", 100))
        case "session":
            store.put(Windowed(b"a key that is long enough", Window(100, 200)), b"1")
        case _:
            store.put(b"a key that is long enough", b"1")


def files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.suffix == ".sst" or path.is_dir()}


@pytest.mark.parametrize("mechanism", [*Mechanism, None])
@pytest.mark.parametrize("wanted", SUPPLIERS)
@pytest.mark.parametrize("there", SUPPLIERS)
def test_a_store_of_another_type_is_refused_by_its_type_and_stays_as_it_is(
    there: str, wanted: str, mechanism: Mechanism | None, tmp_path: Path
) -> None:
    with open_store(SUPPLIERS[there], tmp_path, mechanism=mechanism) as store:
        put(there, store)
        store.commit()
    if there == wanted:
        with open_store(SUPPLIERS[wanted], tmp_path, mechanism=mechanism) as store:
            assert not store.is_empty()
        return
    before = files(tmp_path)
    for on_corruption in ("raise", "set_aside"):
        with (
            pytest.raises(StoreTypeError) as raised,
            open_store(SUPPLIERS[wanted], tmp_path, on_corruption=on_corruption),
        ):
            pass
        for part in (
            "things",
            f"to be a {wanted} store",
            f"a {there} store",
            "another name",
            "Nothing was changed",
        ):
            assert part in str(raised.value)
    with pytest.raises(StoreTypeError):
        read_store(SUPPLIERS[wanted], tmp_path)
    assert {path for path in before if path.is_dir()} == {path for path in files(tmp_path) if path.is_dir()}
    with open_store(SUPPLIERS[there], tmp_path) as store:
        assert not store.is_empty()


def as_written_before_types_were_noted(name: str) -> Engine:
    engine = MemoryEngine()
    store = SUPPLIERS[name]._open(context_over(engine, name="things"))  # type: ignore[attr-defined]
    put(name, store)
    store.commit()
    engine.write([(Family.META, b"store-type", None)])
    return engine


@pytest.mark.parametrize("name", SUPPLIERS)
def test_rows_of_before_are_read_and_their_type_is_noted_with_the_next_commit(name: str) -> None:
    engine = as_written_before_types_were_noted(name)
    again = SUPPLIERS[name]._open(context_over(engine, name="things"))  # type: ignore[attr-defined]
    assert not again.is_empty()
    assert engine.get(Family.META, b"store-type") is None
    again.commit()
    assert engine.get(Family.META, b"store-type") is not None


def test_a_store_that_was_only_restored_says_of_which_type_it_is() -> None:
    engine = MemoryEngine()
    store = SUPPLIERS["key-value"]._open(context_over(engine, name="things"))  # type: ignore[attr-defined]
    store.restore_batch([Record("changelog", 0, 4, b"a", b"1", 100)], {TopicPartition("changelog", 0): 4})
    with pytest.raises(StoreTypeError, match="a key-value store"):
        SUPPLIERS["versioned key-value"]._open(context_over(engine, name="things"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("wanted", ["window", "session"])
@pytest.mark.parametrize("there", ["key-value", "list-value"])
def test_rows_of_before_that_are_in_no_segment_are_of_another_type(there: str, wanted: str) -> None:
    for one, other in ((there, wanted), (wanted, there)):
        engine = as_written_before_types_were_noted(one)
        with pytest.raises(StoreTypeError, match=f"to be a {other} store"):
            SUPPLIERS[other]._open(context_over(engine, name="things"))  # type: ignore[attr-defined]
