"""Serdes of extras: Avro and Protobuf, without a registry."""

from __future__ import annotations

import io
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from google.protobuf import struct_pb2, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from store.avro import AvroSerde
from store.protobuf import ProtobufSerde
from store.serdes import StrSerde
from store.streams.dsl import StreamsBuilder
from store.testing.driver import TestDriver

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
ONE = {"id": 7, "customer": "é", "price": Decimal("12.34"), "at": AT, "note": None}


def test_avro_values_come_back_as_they_were() -> None:
    serde = AvroSerde(ORDER)
    assert serde.deserialize(serde.serialize(ONE)) == ONE
    assert serde.serialize({**ONE, "note": "n"}) != serde.serialize(ONE)


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_avro_has_primitive_schemas_by_name(value: int) -> None:
    serde = AvroSerde("long")
    assert serde.deserialize(serde.serialize(value)) == value
    assert serde == AvroSerde('"long"')


def test_avro_reads_with_another_schema_by_the_rules_of_resolution() -> None:
    wider: dict[str, Any] = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "double"},
            {"name": "channel", "type": "string", "default": "web"},
        ],
    }
    assert AvroSerde(ORDER, wider).deserialize(AvroSerde(ORDER).serialize(ONE)) == {
        "id": 7.0,
        "channel": "web",
    }
    with pytest.raises(ValueError, match="nothing that the Avro schema has written"):
        AvroSerde("string", "long").deserialize(AvroSerde("string").serialize("x"))


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "namespace": "shop",
        "fields": [{"name": field, "type": kind} for field, kind in fields.items()],
    }


CREATED, CANCELLED = record("Created", id="string"), record("Cancelled", id="string")
KIND = {"type": "enum", "name": "Kind", "symbols": ["A"], "namespace": "shop"}


def written_by_java(schema: Any, value: object) -> bytes:
    """A value whose branches are named, as other writers of Avro have them."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ([CREATED, CANCELLED], ("shop.Cancelled", {"id": "1"})),
        (["null", CREATED, CANCELLED], ("shop.Cancelled", {"id": "1"})),
        (
            record("Batch", events={"type": "array", "items": [CREATED, CANCELLED]}, one="shop.Created"),
            {"events": [("shop.Cancelled", {"id": "1"})], "one": {"id": "2"}},
        ),
        (
            record("Both", first=CREATED, kind=KIND, then=["null", "shop.Kind", "shop.Created", CANCELLED]),
            {"first": {"id": "1"}, "kind": "A", "then": ("shop.Cancelled", {"id": "1"})},
        ),
        (
            record("Kinds", kind=KIND, first=CREATED, then=["null", "shop.Kind", "shop.Created", CANCELLED]),
            {"first": {"id": "1"}, "kind": "A", "then": "A"},
        ),
    ],
)
def test_an_avro_record_of_a_union_stays_the_one_that_it_is(schema: Any, value: object) -> None:
    serde, came = AvroSerde(schema), written_by_java(schema, value)
    assert serde.serialize(serde.deserialize(came)) == came


def test_an_avro_record_of_a_union_says_which_it_is_and_may_say_another() -> None:
    serde = AvroSerde([CREATED, CANCELLED])
    read = serde.deserialize(written_by_java([CREATED, CANCELLED], ("shop.Created", {"id": "1"})))
    assert read == {"-type": "shop.Created", "id": "1"}
    assert (
        serde.deserialize(serde.serialize({**read, "-type": "shop.Cancelled"}))["-type"] == "shop.Cancelled"
    )
    with pytest.raises(ValueError):
        serde.serialize({**read, "-type": "shop.Changed"})


def test_an_avro_record_that_a_union_has_alone_is_a_plain_dict() -> None:
    serde = AvroSerde(["null", CREATED])
    assert serde.deserialize(serde.serialize({"id": "1"})) == {"id": "1"}


@pytest.mark.parametrize("value", [{"id": 7}, {**ONE, "id": "seven"}, {**ONE, "id": 2**70}, None, 7])
def test_avro_refuses_values_that_do_not_fit(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        AvroSerde(ORDER).serialize(value)


@given(cut=st.integers(0, 30))
def test_avro_refuses_bytes_that_end_early_or_go_on(cut: int) -> None:
    serde = AvroSerde({"type": "array", "items": "string"})
    whole = serde.serialize(["one", "two", "three"])
    assert cut >= len(whole) or not whole[cut:] or whole[:cut] != whole
    if cut < len(whole):
        with pytest.raises(ValueError):
            serde.deserialize(whole[:cut])
    with pytest.raises(ValueError, match="goes on"):
        serde.deserialize(whole + b"\0")


def test_avro_refuses_what_is_no_schema() -> None:
    for schema in ("longer", {"type": "enum", "name": "x"}, [{"type": "nothing"}], {}):
        with pytest.raises(ValueError, match="is no Avro schema"):
            AvroSerde(schema)


LINK: dict[str, Any] = {
    "type": "record",
    "name": "Link",
    "fields": [{"name": "next", "type": ["null", "Link"]}],
}
TREE: dict[str, Any] = {
    "type": "record",
    "name": "shop.Tree",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "below", "type": {"type": "map", "values": {"type": "array", "items": "Tree"}}},
    ],
}


def links(number: int) -> Any:
    value: Any = None
    for _ in range(number):
        value = {"next": value}
    return value


def test_avro_has_schemas_that_refer_to_themselves() -> None:
    tree = {"name": "a", "below": {"x": [{"name": "b", "below": {}}, {"name": "c", "below": {"y": []}}]}}
    for serde, value in ((AvroSerde(TREE), tree), (AvroSerde(LINK), links(100))):
        assert serde.deserialize(serde.serialize(value)) == value
    assert AvroSerde(TREE, {**TREE, "fields": TREE["fields"][:1]}).deserialize(
        AvroSerde(TREE).serialize(tree)
    ) == {"name": "a"}


@pytest.mark.parametrize("levels", [101, 100_000])
def test_avro_refuses_what_is_nested_too_deep(levels: int) -> None:
    serde = AvroSerde(["null", LINK])
    with pytest.raises(ValueError, match=r"nested more than 100 levels|RecursionError"):
        serde.deserialize(b"\2" * levels + b"\0")
    with pytest.raises(ValueError, match="nested more than 100 levels"):
        serde.serialize(links(levels))


def test_avro_refuses_a_value_that_contains_itself() -> None:
    ring: dict[str, Any] = {}
    ring["next"] = ring
    with pytest.raises(ValueError, match="nested more than 100 levels"):
        AvroSerde(LINK).serialize(ring)


def test_serdes_are_equal_by_what_they_are_and_can_be_sent() -> None:
    for serde, other in (
        (AvroSerde(ORDER, "long"), AvroSerde(ORDER)),
        (AvroSerde(ORDER), AvroSerde("long")),
        (ProtobufSerde(wrappers_pb2.Int64Value), ProtobufSerde(wrappers_pb2.StringValue)),
    ):
        copy: Any = pickle.loads(pickle.dumps(serde))
        assert copy == serde
        assert hash(copy) == hash(serde)
        assert serde != other
        assert copy.__class__.__name__ in repr(copy)


@given(seconds=st.integers(-(10**9), 10**9), nanos=st.integers(0, 999_999_999))
def test_protobuf_messages_come_back_as_they_were(seconds: int, nanos: int) -> None:
    serde = ProtobufSerde(timestamp_pb2.Timestamp)
    message = timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos)
    assert serde.deserialize(serde.serialize(message)) == message


def test_protobuf_writes_maps_the_same_in_any_order() -> None:
    serde = ProtobufSerde(struct_pb2.Struct)
    one, two = struct_pb2.Struct(), struct_pb2.Struct()
    entries = [(f"key-{number}", number) for number in range(50)]
    one.update(dict(entries))
    two.update(dict(reversed(entries)))
    assert one == two
    assert serde.serialize(one) == serde.serialize(two)


def test_protobuf_refuses_other_messages_and_broken_bytes() -> None:
    serde = ProtobufSerde(wrappers_pb2.StringValue)
    with pytest.raises(TypeError, match="expected StringValue, got Int64Value"):
        serde.serialize(wrappers_pb2.Int64Value(value=1))
    with pytest.raises(ValueError, match="is no message of StringValue"):
        serde.deserialize(b"\x0a\xff")
    with pytest.raises(TypeError, match="a class of Protobuf messages"):
        ProtobufSerde(int)


def test_a_pipeline_counts_what_they_have_read() -> None:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=AvroSerde(ORDER))
    spent = (
        builder.stream("orders")
        .group_by_key()
        .aggregate(
            lambda: wrappers_pb2.Int64Value(),
            lambda _key, order, total: wrappers_pb2.Int64Value(value=total.value + order["id"]),
            value_serde=ProtobufSerde(wrappers_pb2.Int64Value),
        )
    )
    spent.to_stream().to("spent")
    with TestDriver(builder.build()) as driver:
        for _ in range(2):
            driver.pipe_input("orders", "c", ONE, 1, key_serde=StrSerde(), value_serde=AvroSerde(ORDER))
        found = driver.read_output("spent", StrSerde(), ProtobufSerde(wrappers_pb2.Int64Value))
    assert [record.value.value for record in found] == [7, 14]
