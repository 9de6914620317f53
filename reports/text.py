"""Data from outside as text: any value as JSON, with nothing in it that acts on what displays it.

Must survive: control characters and escape sequences, characters that reorder a line, lone surrogates (which
UTF-8 cannot hold), numbers that JSON does not know, objects of any type, texts of any length.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import msgspec

_DEEPEST = 200
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff\ud800-\udfff]"
)
"""What XML forbids, what moves a cursor or reorders a line, and what cannot be seen. Tab and newline stay."""


def visible(text: str) -> str:
    r"""`text` with every such character written as `\u0000`; an astral character is left as it is."""
    return _ACTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plain(value: object, depth: int = 0) -> object:
    """`value` as strict JSON data. What JSON cannot hold (NaN, bytes, an unknown object) becomes a string."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth == _DEEPEST:
        return "… (nested deeper than this report goes)"
    if isinstance(value, msgspec.Struct):
        kind = value.__struct_config__
        value = {
            **({} if kind.tag_field is None else {kind.tag_field: kind.tag}),
            **msgspec.structs.asdict(value),
        }
    if isinstance(value, Mapping):
        return {
            str(key) if isinstance(key, str) else show(key): plain(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item, depth + 1) for item in value), key=show)
    return repr(value)


def dump(value: object, indent: int | None = None, *, ascii: bool = False) -> str:
    """JSON text of anything, its strings escaped so that they are encoded, shown and copied without loss; with `ascii`
    in any encoding."""
    separators = (",", ": ") if indent else (", ", ": ")
    return visible(json.dumps(plain(value), ensure_ascii=ascii, indent=indent, separators=separators))


def show(value: object) -> str:
    """One line for people: the JSON text with members in name order, so that equal values read the same."""
    return visible(json.dumps(plain(value), ensure_ascii=False, sort_keys=True))


def show_key(key: str) -> str:
    """A key as it is where that is unambiguous, otherwise (empty, blank at an end, quotes) as JSON."""
    quoted = show(key)
    bare = quoted[1:-1]
    return bare if bare == key and bare.strip() == key and key else quoted


def shorten(text: str, limit: int) -> str:
    """At most about `limit` characters: the beginning, the end and the true length."""
    if len(text) <= limit:
        return text
    return f"{text[: limit * 3 // 4]} … {text[len(text) - limit // 4 :]} ({len(text):,} characters)"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 schedule`, `2,000 schedules`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listing(items: list[str], most: int = 1_000) -> str:
    """`a, b and c`; what is beyond `most` is only counted."""
    if len(items) > most:
        items = [*items[:most], f"{len(items) - most:,} more"]
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else "none"


def write_atomically(path: Path, content: str) -> None:
    """Put `content` at `path` as UTF-8, whole or not at all; makes the directory. Raises OSError.

    It is not synced: a report that a power cut takes can be made again. One writer per path at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(content, encoding="utf-8", newline="\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
