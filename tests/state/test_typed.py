from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.engine.memory import MemoryEngine
from store.serdes import BytesSerde, IntSerde, JsonSerde, Serde, StrSerde
from store.state.keyvalue import KeyValueStore
from store.state.typed import TypedKeyValueStore

int64 = st.integers(-(2**63), 2**63 - 1)


@given(int64, int64)
def test_integers_sort_as_their_bytes_do_and_come_back(one: int, other: int) -> None:
    serde = IntSerde()
    assert (one < other) == (serde.serialize(one) < serde.serialize(other))
    assert serde.deserialize(serde.serialize(one)) == one


@given(st.text(), st.text())
def test_text_sorts_as_its_bytes_do_and_comes_back(one: str, other: str) -> None:
    serde = StrSerde()
    assert (one < other) == (serde.serialize(one) < serde.serialize(other))
    assert serde.deserialize(serde.serialize(one)) == one


@given(
    st.recursive(
        st.none() | st.booleans() | int64 | st.text(), lambda inner: st.dictionaries(st.text(), inner)
    )
)
def test_json_comes_back_and_equal_values_have_equal_bytes(value: Any) -> None:
    serde: JsonSerde[Any] = JsonSerde()
    assert serde.deserialize(serde.serialize(value)) == value
    if isinstance(value, dict):
        assert serde.serialize(dict(reversed(value.items()))) == serde.serialize(value)
    assert json.loads(serde.serialize(value)) == value


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (IntSerde(), 2**63),
        (IntSerde(), -(2**63) - 1),
        (IntSerde(), True),
        (IntSerde(), "1"),
        (StrSerde(), b"bytes"),
        (StrSerde(), "\ud800"),
        (BytesSerde(), bytearray(b"reused")),
        (JsonSerde(), object()),
    ],
)
def test_what_a_serde_cannot_write_it_refuses(serde: Serde[Any], value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        serde.serialize(value)


@pytest.mark.parametrize(
    ("serde", "data"),
    [(IntSerde(), b"1234567"), (StrSerde(), b"\xff"), (JsonSerde(int), b'"text"'), (JsonSerde(), b"{")],
)
def test_what_a_serde_cannot_read_it_refuses(serde: Serde[Any], data: bytes) -> None:
    with pytest.raises(ValueError):
        serde.deserialize(data)


@pytest.fixture
def store() -> TypedKeyValueStore[int, dict[str, int]]:
    return TypedKeyValueStore(KeyValueStore("typed", MemoryEngine()), IntSerde(), JsonSerde(dict[str, int]))


@pytest.mark.requirement("x.1")
def test_a_typed_store_reads_ranges_in_the_order_of_its_keys(
    store: TypedKeyValueStore[int, dict[str, int]],
) -> None:
    store.put_all((number, {"n": number}) for number in (5, -3, 0, 7, -8))
    assert [key for key, _ in store.all()] == [-8, -3, 0, 5, 7]
    assert [key for key, _ in store.reverse_range(-3, 5)] == [5, 0, -3]
    with store.range(None, 0) as iterator:
        assert iterator.peek_next_key() == -8
        assert next(iterator) == (-8, {"n": -8})


def test_none_deletes_in_a_typed_store(store: TypedKeyValueStore[int, dict[str, int]]) -> None:
    store.put(1, {"n": 1})
    assert store.put_if_absent(1, {"n": 2}) == {"n": 1}
    store.put(1, None)
    assert store.get(1) is None
    assert store.delete(1) is None


def test_a_typed_store_refuses_none_as_a_key(store: TypedKeyValueStore[Any, Any]) -> None:
    with pytest.raises(TypeError, match="typed"):
        store.put(None, {"n": 1})
