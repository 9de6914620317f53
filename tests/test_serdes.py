from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.serdes import BoolSerde, BytesSerde, FloatSerde, IntSerde, JsonSerde, LongSerde, Serde, StrSerde

int64 = st.integers(-(2**63), 2**63 - 1)
ordered = st.one_of(
    st.tuples(st.just(IntSerde()), int64, int64),
    st.tuples(st.just(FloatSerde()), st.floats(allow_nan=False), st.floats(allow_nan=False)),
    st.tuples(st.just(BoolSerde()), st.booleans(), st.booleans()),
    st.tuples(st.just(StrSerde()), st.text(), st.text()),
    st.tuples(st.just(BytesSerde()), st.binary(), st.binary()),
)


@given(ordered)
def test_values_sort_as_their_bytes_do_and_come_back(drawn: tuple[Serde[Any], Any, Any]) -> None:
    serde, one, other = drawn
    first, second = serde.serialize(one), serde.serialize(other)
    assert first < second if one < other else first >= second or one == other == 0
    assert serde.deserialize(first) == one


@given(st.floats())
def test_every_float_comes_back_with_its_sign(value: float) -> None:
    back = FloatSerde().deserialize(FloatSerde().serialize(value))
    assert back == value or (math.isnan(back) and math.isnan(value))
    assert math.copysign(1, back) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "0000000000000000"),
        (1, "0000000000000001"),
        (-1, "ffffffffffffffff"),
        (-(2**63), "8000000000000000"),
        (2**63 - 1, "7fffffffffffffff"),
    ],
)
def test_a_long_has_the_bytes_that_kafka_gives_it(value: int, data: str) -> None:
    assert LongSerde().serialize(value).hex() == data
    assert LongSerde().deserialize(bytes.fromhex(data)) == value


@given(
    st.recursive(
        st.none() | st.booleans() | int64 | st.text(), lambda inner: st.dictionaries(st.text(), inner)
    ).filter(lambda value: value is not None)
)
def test_json_comes_back_and_equal_values_have_equal_bytes(value: Any) -> None:
    serde: JsonSerde[Any] = JsonSerde()
    assert serde.deserialize(serde.serialize(value)) == value
    if isinstance(value, dict):
        assert serde.serialize(dict(reversed(value.items()))) == serde.serialize(value)
    assert json.loads(serde.serialize(value)) == value


@dataclass
class Order:
    buyer: str
    amount: int


def test_what_json_comes_back_as_has_the_same_bytes() -> None:
    serde: JsonSerde[Any] = JsonSerde()
    data = serde.serialize(Order("ann", 3))
    assert serde.serialize(serde.deserialize(data)) == data


@pytest.mark.parametrize("serde", [JsonSerde(), JsonSerde(dict[int, int])], ids=["any", "typed"])
def test_keys_that_are_numbers_are_sorted_as_the_text_that_they_become(serde: JsonSerde[Any]) -> None:
    assert serde.serialize({9: 1, 10: 2}) == serde.serialize({10: 2, 9: 1}) == b'{"10":2,"9":1}'


@dataclass
class Basket:
    owner: str
    held: dict[int, set[int]]


def those_that_come_in_another_order() -> tuple[set[int], set[int]]:
    """Equal sets, of which one was larger once."""
    shrunk = set(range(30))
    for number in set(range(30)) - {9, 16}:
        shrunk.discard(number)
    assert list(shrunk) != list({9, 16}), "these come in the same order"
    return shrunk, {9, 16}


@pytest.mark.parametrize(
    "around",
    [
        lambda held: {1: held},
        lambda held: {"1": held},
        lambda held: [{1.5: {2: frozenset(held)}}],
        lambda held: Basket("ann", {1: held}),
    ],
    ids=["number", "text", "nested", "dataclass"],
)
def test_equal_sets_have_equal_bytes_whatever_the_keys_around_them_are(around: Callable[[Any], Any]) -> None:
    one, other = those_that_come_in_another_order()
    serde: JsonSerde[Any] = JsonSerde()
    assert serde.serialize(around(one)) == serde.serialize(around(other))


@pytest.mark.parametrize("around", [lambda held: {1: held}, lambda held: {"1": held}])
def test_a_set_without_an_order_is_refused_for_its_bytes_would_be_any(around: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        JsonSerde().serialize(around({1, "1"}))


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({1: "a", "1": "b"}, "1"),
        ({2: {1.5: "a", "1.5": "a"}}, "1.5"),
        ([{"x": {b"a": 1, "YQ==": 2, 3: 4}}], "YQ=="),
    ],
)
def test_keys_that_are_one_in_json_are_refused_by_name(value: Any, key: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(key))):
        JsonSerde().serialize(value)


scalars = st.one_of(st.booleans(), int64, st.floats(), st.text(), st.binary(max_size=9), st.datetimes())


@given(
    st.dictionaries(int64, st.dictionaries(st.floats(allow_nan=False, allow_infinity=False) | int64, scalars))
)
def test_keys_that_are_numbers_are_refused_only_where_they_are_one_in_json(value: Any) -> None:
    assert len(json.loads(JsonSerde().serialize(value))) == len(value)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_json_refuses_what_would_be_no_value(value: Any) -> None:
    with pytest.raises(ValueError, match="null"):
        JsonSerde().serialize(value)


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (IntSerde(), 2**63),
        (IntSerde(), -(2**63) - 1),
        (IntSerde(), True),
        (IntSerde(), "1"),
        (LongSerde(), 2**63),
        (LongSerde(), -(2**63) - 1),
        (LongSerde(), True),
        (FloatSerde(), 1),
        (BoolSerde(), 1),
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
    [
        (IntSerde(), b"1234567"),
        (LongSerde(), b"123456789"),
        (FloatSerde(), b"1234"),
        (BoolSerde(), b"\2"),
        (BoolSerde(), b""),
        (StrSerde(), b"\xff"),
        (JsonSerde(int), b'"text"'),
        (JsonSerde(), b"{"),
    ],
)
def test_what_a_serde_cannot_read_it_refuses(serde: Serde[Any], data: bytes) -> None:
    with pytest.raises(ValueError):
        serde.deserialize(data)


@pytest.mark.parametrize(
    "serde", [BytesSerde(), StrSerde(), IntSerde(), LongSerde(), FloatSerde(), BoolSerde(), JsonSerde(int)]
)
def test_a_serde_sent_to_another_process_is_equal_to_the_one_that_was_sent(serde: Serde[Any]) -> None:
    assert pickle.loads(pickle.dumps(serde)) == serde
