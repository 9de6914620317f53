"""The memory of rows in a CPython process: their keys and values, and the dict and sorted list that hold them.

Who counts memory adds up the objects as they come and go, and asks for the size of the tables when the sum is
needed, since those grow in steps. Bytes are those that an object asks of the allocator, as `sys.getsizeof` and
`tracemalloc` report them; an allocator rounds up, by less than 16 bytes an object.

The same rows in the same order give the same number in every process of one version of Python, so a commit that
is forced by memory happens at the same record there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from sys import getsizeof
from typing import Final

OBJECT_BYTES: Final = getsizeof(b"")
"""What a `bytes` object takes beyond its bytes."""

_EMPTY_DICT: Final = getsizeof({})
_SORTED_LIST_BYTES: Final = 296
"""The object and its three empty lists."""
_FIRST_KEY_BYTES: Final = 120
"""The first list of keys while it is empty, and the first places in the other two."""
_SORTED_KEY_BYTES: Final = 8.5
"""A pointer, in lists of 1,000 to 2,000 that are full when they are made and grow by an eighth.

All three measured on 64-bit CPython 3.11, with nothing reused of what was freed before.
"""
_LONGEST_LIST: Final = 2_000
"""The keys of the longest list of a `SortedList`: with one more it is split."""


def _grown_lists() -> Iterator[int]:
    """The bytes for the pointers of a list that is made with one and grows one by one: for none, one, and so on."""
    empty = getsizeof([])
    yield 0
    pointers = [None]
    for _ in range(_LONGEST_LIST):
        yield getsizeof(pointers) - empty
        pointers.append(None)


_GROWN_LISTS: Final = tuple(_grown_lists())
"""A list grows in steps, which matter as long as there is one: of 9 pointers there is room for 16."""

_COUNTER_BYTES: Final = 32
_SHARED_NUMBERS: Final = range(-5, 257)

_ALL_BYTES: Final = bytes(range(256))
_SINGLE: Final = tuple(_ALL_BYTES[byte : byte + 1] for byte in _ALL_BYTES)


def shared(value: bytes) -> bytes:
    """A key or value to keep: of a single byte, the object that CPython has once.

    Some of these are objects of their own: what `int.to_bytes` makes, and a literal of a module that was read from a
    compiled file, though not of one that was compiled just now. What counted those would differ from run to run.
    """
    return _SINGLE[value[0]] if len(value) == 1 else value


def object_bytes(value: bytes | None) -> int:
    """The memory that a key or value takes, in bytes: nothing for None and for what is `shared`."""
    return 0 if value is None or len(value) < 2 else OBJECT_BYTES + len(value)


def counter_bytes(number: int) -> int:
    """The memory that a count of bytes takes itself: nothing for a small one, of which CPython has one for all."""
    return 0 if number in _SHARED_NUMBERS else _COUNTER_BYTES


def dict_bytes(rows: Sized) -> int:
    """The memory that the table of a dict takes beyond that of an empty one, in bytes. Constant time."""
    return getsizeof(rows) - _EMPTY_DICT


def sorted_list_bytes(num_keys: int) -> int:
    """The memory that a `SortedList` takes, in bytes, without its keys: those are counted where they are held."""
    if not num_keys:
        return _SORTED_LIST_BYTES
    pointers = _GROWN_LISTS[num_keys] if num_keys <= _LONGEST_LIST else int(_SORTED_KEY_BYTES * num_keys)
    return _SORTED_LIST_BYTES + _FIRST_KEY_BYTES + pointers
