"""Avro serde, over fastavro. Needs the extra `avro`.

A value is written by its schema alone, in Avro's binary encoding: no file header, and no schema or id of a registry in
front of it. Who reads has to know the schema that it was written with; another one to read it as may be given.

Must survive: values and bytes of a schema that refers to itself, nested deeper than fastavro's compiled code can
follow, which would end the process; and records of a union of several, which only pass through and are to stay what
they are, though as dicts they look alike.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping
from struct import error as StructError  # noqa: N812
from typing import Any

import fastavro
from fastavro import _read_py
from fastavro._schema_common import PRIMITIVES

Schema = dict[str, Any] | list[Any] | str

_BROKEN = (EOFError, IndexError, KeyError, AttributeError, OverflowError, StructError)
"""What fastavro raises of values and bytes that do not fit a schema, besides `ValueError` and `TypeError`."""

_DEEPEST = 100
"""How many dicts and lists may lie in each other by a schema that refers to itself. The reader takes some five of
Python's frames for each."""


class AvroSerde:
    """What fastavro makes of a schema: records as dicts, logical types as Python's. Equal by schemas, and picklable.

    Equal values have equal bytes, but for maps, whose entries are written in their order; the bytes have no order.

    Where a union has several records, a dict that was read says in `"-type"` which of them it is, by its full name, and
    is written as that one; one without is written as the first that has most of its fields, and so is one that was read
    by a `reader_schema`. An int is written as the first number of a union, be it `double`: `("long", 1)` names another.

    A schema may refer to itself, as that of a tree does. At most 100 dicts and lists lie in each other then, and bytes
    are read by the reader in Python, which is slower.
    """

    def __init__(self, schema: Schema, reader_schema: Schema | None = None) -> None:
        """`schema`: what values are written with, as JSON or as what JSON stands for. `reader_schema`: what they are
        read as, where that differs, by Avro's rules of resolution.

        Raises `ValueError` for what is no schema.
        """
        self._text = _text(schema)
        self._reader_text = None if reader_schema is None else _text(reader_schema)
        self._schema = _parsed(self._text)
        self._nests = _refers(self._schema, frozenset())
        self._read = _read_py.schemaless_reader if self._nests else fastavro.schemaless_reader
        self._reader_schema = None if self._reader_text is None else _parsed(self._reader_text)
        self._tells_records = self._reader_schema is None and _has_several_records(self._schema)

    def __reduce__(self) -> tuple[object, ...]:
        reader = None if self._reader_text is None else json.loads(self._reader_text)
        return AvroSerde, (json.loads(self._text), reader)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AvroSerde) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return f"AvroSerde({self._text})"

    def _identity(self) -> tuple[str, str | None]:
        return self._text, self._reader_text

    def serialize(self, value: Any) -> bytes:
        if self._nests and not _within(value, _DEEPEST):
            raise ValueError(f"the value is nested more than {_DEEPEST} levels deep")
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self._schema, value)
        except _BROKEN as error:
            raise ValueError(f"{value!r} does not fit the Avro schema: {error!r}") from error
        return out.getvalue()

    def deserialize(self, data: bytes) -> Any:
        source = io.BytesIO(data)
        try:
            value = self._read(
                source,
                self._schema,
                self._reader_schema,
                return_record_name=self._tells_records,
                return_record_name_override=self._tells_records,
            )
        except (*_BROKEN, RecursionError, fastavro.read.SchemaResolutionError) as error:
            raise ValueError(f"{data!r} is nothing that the Avro schema has written: {error!r}") from error
        if self._nests and not _within(value, _DEEPEST):
            raise ValueError(f"{data!r} is nested more than {_DEEPEST} levels deep")
        if source.tell() != len(data):
            raise ValueError(f"{data!r} goes on after what the Avro schema has written")
        return _typed(value) if self._tells_records else value


def _text(schema: Schema) -> str:
    """The schema as JSON, the same for equal ones."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError:
            # The name of a primitive type, such as long.
            pass
    return json.dumps(schema, sort_keys=True)


def _parsed(text: str) -> Any:
    try:
        return fastavro.parse_schema(json.loads(text), named_schemas={})
    except (fastavro.schema.SchemaParseException, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{text} is no Avro schema: {error!r}") from error


def _refers(schema: Any, around: frozenset[str]) -> bool:
    """Whether a parsed schema refers to itself, or to one of those `around` it."""
    if isinstance(schema, list):
        return any(_refers(each, around) for each in schema)
    if not isinstance(schema, dict):
        return schema in around
    if "fields" in schema:
        around |= {schema["name"]}
    return any(_refers(each, around) for each in _within_schema(schema))


def _within_schema(schema: dict[str, Any]) -> list[Any]:
    """The schemas that a parsed one has in it."""
    fields = [field["type"] for field in schema.get("fields", [])]
    return fields + [schema[name] for name in ("type", "items", "values") if name in schema]


def _has_several_records(schema: Any) -> bool:
    """Whether a parsed schema has a union of several records in it."""
    if isinstance(schema, list):
        return sum(map(_is_record, schema)) > 1 or any(map(_has_several_records, schema))
    return isinstance(schema, dict) and any(map(_has_several_records, _within_schema(schema)))


def _is_record(schema: Any) -> bool:
    """Whether it is one, or a name, which may be that of one."""
    return schema["type"] in ("record", "error") if isinstance(schema, dict) else schema not in PRIMITIVES


def _typed(value: Any) -> Any:
    """The value with the names in its records that fastavro puts beside them."""
    if isinstance(value, tuple):
        name, named = value
        return {"-type": name, **_typed(named)} if isinstance(named, dict) else named
    if isinstance(value, dict):
        return {key: _typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each) for each in value]
    return value


def _within(value: Any, levels: int) -> bool:
    """Whether no more than so many dicts and lists lie in each other."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Collection):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return levels > 0 and all(_within(each, levels - 1) for each in inner)
