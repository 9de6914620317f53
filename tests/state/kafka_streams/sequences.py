"""Sequences of store operations for Kafka Streams and for our stores, drawn from a seed.

They aim at where the two could part: keys that are prefixes of each other or sort like our own rows, times at
the edges of segments and of the retention, puts that come too late, deletions, duplicates, one after another out
of order, and bounds that are open, empty or the wrong way round.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

Operation = list[Any]
"""Its name, then its arguments: bytes in hexadecimal, milliseconds, None."""

MAX_TIME = 2**63 - 1

_KEYS = [b"a", b"a", b"a\x00", b"a\x00\x00", b"ab", b"b", b"\xff", b"\x00", b""]
_ODD_KEYS = [b"\x00\x00", b"\x00\x01", b"\x00\x00\x01", b"\xff\xff", b"a\xff", b"a\x00\x01"]


class Sequence(NamedTuple):
    """What one store is asked, one operation after the other."""

    type: str
    parameters: dict[str, Any]
    operations: list[Operation]


def generate(type_name: str, count: int, length: int) -> list[Sequence]:
    """The same sequences whenever it is asked for the same."""
    return [
        _WRITERS[type_name](type_name, random.Random(f"{type_name} {n}"), n, length) for n in range(count)
    ]


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _key(rng: random.Random) -> str:
    return rng.choice(_KEYS if rng.random() < 0.9 else _ODD_KEYS).hex()


def _bounds(rng: random.Random) -> list[str | None]:
    """Two keys, mostly in order; each may be open."""
    low, high = _key(rng), _key(rng)
    if bytes.fromhex(low) > bytes.fromhex(high) and rng.random() < 0.85:
        low, high = high, low
    return [low if rng.random() < 0.8 else None, high if rng.random() < 0.8 else None]


class _Values:
    """Short values, no two alike, so that a wrong row is seen. Timestamped ones start with their time."""

    def __init__(self, rng: random.Random, timestamped: bool, empty: bool = True) -> None:
        self._rng = rng
        self._timestamped = timestamped
        self._empty = empty
        self._number = 0

    def next(self, null: float) -> str | None:
        if self._rng.random() < null:
            return None
        self._number += 1
        value = self._number.to_bytes(1 + self._number // 256, "big")
        if self._empty and self._rng.random() < 0.04:
            value = b""
        time = self._rng.choice([0, 1, self._number * 1000, MAX_TIME])
        return (time.to_bytes(8, "big") + value if self._timestamped else value).hex()


def _keyvalue(type_name: str, rng: random.Random, _number: int, length: int) -> Sequence:
    values = _Values(rng, type_name.startswith("timestamped"))
    operations: list[Operation] = []

    def key() -> str | None:
        return None if rng.random() < 0.01 else _key(rng)

    draws: list[tuple[int, Callable[[], Operation]]] = [
        (26, lambda: ["put", key(), values.next(0.2)]),
        (6, lambda: ["put_if_absent", key(), values.next(0.15)]),
        (4, lambda: ["put_all", [[_key(rng), values.next(0.2)] for _ in range(rng.randrange(5))]]),
        (6, lambda: ["delete", key()]),
        (10, lambda: ["get", key()]),
        (6, lambda: ["range", *_bounds(rng)]),
        (6, lambda: ["reverse_range", *_bounds(rng)]),
        (2, lambda: ["all"]),
        (2, lambda: ["reverse_all"]),
        (5, lambda: ["prefix_scan", _key(rng)]),
    ]
    for _ in range(length):
        operations.append(_draw(rng, draws))
    return Sequence(type_name, {}, operations)


def _listvalue(type_name: str, rng: random.Random, _number: int, length: int) -> Sequence:
    # Kafka Streams cannot read a list again that ends with an empty value, and offers no more than this; only its
    # put_if_absent is there too, which appends if there is a list, and does nothing if there is none.
    values = _Values(rng, timestamped=False, empty=False)
    draws: list[tuple[int, Callable[[], Operation]]] = [
        (30, lambda: ["put", _key(rng), values.next(0.15)]),
        (10, lambda: ["get", _key(rng)]),
        (4, lambda: ["all"]),
    ]
    return Sequence(type_name, {}, [_draw(rng, draws) for _ in range(length)])


class _Times:
    """A stream that moves on, stands still and comes late, with a liking for the edges."""

    def __init__(self, rng: random.Random, retention: int, interval: int) -> None:
        self._rng = rng
        self._retention = retention
        self._interval = interval
        self._cursor = rng.choice([0, interval - 1, interval, 3 * interval + 7])
        self.observed = -1

    def put(self) -> int:
        """The time of a write, 0 or later."""
        rng, cursor, retention, interval = self._rng, self._cursor, self._retention, self._interval
        kind = rng.random()
        if kind < 0.45:
            self._cursor = time = cursor + rng.choice([0, 0, 1, 10, retention // 50, retention // 15])
        elif kind < 0.5:
            self._cursor = time = (cursor // interval + 1) * interval + rng.choice([-1, 0, 1])
        elif kind < 0.51:
            self._cursor = time = cursor + retention + rng.choice([-1, 0, 1, interval])
        elif kind < 0.78:
            time = cursor - rng.choice([0, 1, retention // 9, retention // 3, retention // 2])
        elif kind < 0.92:
            time = self.observed - retention + rng.choice([-1, 0, 1, 2, 100, retention // 20])
        else:
            time = self.observed - retention - rng.choice([1, interval // 2, interval, 3 * interval])
        return max(0, time)

    def wrote(self, time: int) -> None:
        self.observed = max(self.observed, time)

    def read(self) -> int:
        kind = self._rng.random()
        if kind < 0.75:
            return self.put_without_moving()
        return self._rng.choice([-1, 0, MAX_TIME, self.observed, self.observed + 1])

    def put_without_moving(self) -> int:
        cursor = self._cursor
        time = self.put()
        self._cursor = cursor
        return time

    def span(self) -> list[int]:
        """From and to, mostly in order, often wide."""
        low, high = self.read(), self.read()
        if self._rng.random() < 0.4:
            low = self._rng.choice([-1, 0])
        if self._rng.random() < 0.4:
            high = self._rng.choice([self.observed, MAX_TIME])
        if low > high and self._rng.random() < 0.85:
            low, high = high, low
        return [low, high]


_RETENTIONS = [60_000, 120_000, 180_001, 300_000, 240_000, 1_000]


def _window(type_name: str, rng: random.Random, number: int, length: int) -> Sequence:
    retention = _RETENTIONS[number % len(_RETENTIONS)]
    times = _Times(rng, retention, max(retention // 2, 60_000))
    duplicates = number % 4 in {2, 3}
    values = _Values(rng, type_name.startswith("timestamped"))
    size = rng.choice([1, 500, retention])
    written: list[tuple[str, int]] = []

    def put() -> Operation:
        if written and rng.random() < 0.3:
            key, time = rng.choice(written[-12:])
        else:
            key, time = _key(rng), times.put()
        value = values.next(0.15)
        if value is not None or not duplicates:
            times.wrote(time)
        written.append((key, time))
        return ["put", key, value, time]

    def fetch_one() -> Operation:
        if written and rng.random() < 0.85:
            return ["fetch_one", *rng.choice(written[-10:])]
        return ["fetch_one", _key(rng), max(0, times.read())]

    draws: list[tuple[int, Callable[[], Operation]]] = [
        (45, put),
        (9, fetch_one),
        (6, lambda: ["fetch", _key(rng), *times.span()]),
        (6, lambda: ["backward_fetch", _key(rng), *times.span()]),
        (4, lambda: ["fetch_range", *_bounds(rng), *times.span()]),
        (4, lambda: ["backward_fetch_range", *_bounds(rng), *times.span()]),
        (2, lambda: ["fetch_all", *times.span()]),
        (2, lambda: ["backward_fetch_all", *times.span()]),
        (1, lambda: ["all"]),
        (1, lambda: ["backward_all"]),
    ]
    parameters = {"retention_ms": retention, "window_size_ms": size, "retain_duplicates": duplicates}
    return Sequence(type_name, parameters, [_draw(rng, draws) for _ in range(length)])


def _session(type_name: str, rng: random.Random, number: int, length: int) -> Sequence:
    retention = _RETENTIONS[number % len(_RETENTIONS)]
    times = _Times(rng, retention, max(retention // 2, 60_000))
    values = _Values(rng, timestamped=False)
    written: list[tuple[str, int, int]] = []

    def window() -> tuple[str, int, int]:
        if written and rng.random() < 0.25:
            return rng.choice(written[-10:])
        end = times.put()
        if written and rng.random() < 0.3:
            end = written[-1][2]
        return _key(rng), max(0, end - rng.choice([0, 0, 1, 50, 30_000, retention, 2 * retention])), end

    def put() -> Operation:
        key, start, end = window()
        times.wrote(end)
        written.append((key, start, end))
        return ["put", key, start, end, values.next(0.1)]

    def remove() -> Operation:
        key, start, end = window()
        times.wrote(end)
        return ["remove", key, start, end]

    def fetch_session() -> Operation:
        key, start, end = window()
        return ["fetch_session", key, start, end]

    draws: list[tuple[int, Callable[[], Operation]]] = [
        (42, put),
        (6, remove),
        (9, fetch_session),
        (3, lambda: ["fetch", _key(rng)]),
        (3, lambda: ["backward_fetch", _key(rng)]),
        (1, lambda: ["fetch_range", *_bounds(rng)]),
        (1, lambda: ["backward_fetch_range", *_bounds(rng)]),
        (6, lambda: ["find_sessions", _key(rng), *_any_order(rng, times.span())]),
        (6, lambda: ["backward_find_sessions", _key(rng), *_any_order(rng, times.span())]),
        (4, lambda: ["find_sessions_range", *_bounds(rng), *_any_order(rng, times.span())]),
        (4, lambda: ["backward_find_sessions_range", *_bounds(rng), *_any_order(rng, times.span())]),
        (2, lambda: ["find_sessions_ending", *times.span()]),
        (2, lambda: ["backward_find_sessions_ending", *times.span()]),
    ]
    return Sequence(type_name, {"retention_ms": retention}, [_draw(rng, draws) for _ in range(length)])


def _any_order(rng: random.Random, span: list[int]) -> list[int]:
    """An earliest end may well lie after a latest start."""
    return span[::-1] if rng.random() < 0.2 else span


_HISTORIES = [60_000, 300_000, 30_000, 3_600_000, 1_000]


def _versioned(type_name: str, rng: random.Random, number: int, length: int) -> Sequence:
    history = _HISTORIES[number % len(_HISTORIES)]
    interval = rng.choice([max(history // 3, 2_000), history, 1_000])
    times = _Times(rng, history, interval)
    values = _Values(rng, timestamped=False)
    keys = rng.sample(sorted({key.hex() for key in (*_KEYS, *_ODD_KEYS)}), 3)
    written: list[int] = [0]
    newest: dict[str, int] = {}

    def time() -> int:
        if rng.random() < 0.3:
            return max(0, rng.choice(written[-12:]) + rng.choice([-1, 0, 0, 1]))
        return times.put()

    def write(deletion: bool) -> tuple[str, int]:
        key, at = rng.choice(keys), time()
        if deletion and at == newest.get(key):
            # Kafka Streams forgets a deletion at the very time of the newest version: a put of an earlier time
            # then counts as the newest.
            at += 1
        times.wrote(at)
        written.append(at)
        newest[key] = max(at, newest.get(key, -1))
        return key, at

    def put() -> Operation:
        value = values.next(0.2)
        key, at = write(deletion=value is None)
        return ["put", key, value, at]

    def delete() -> Operation:
        return ["delete", *write(deletion=True)]

    def versions() -> Operation:
        low, high = times.span()
        bounds = [low if rng.random() < 0.7 else None, high if rng.random() < 0.7 else None]
        return ["versions", rng.choice(keys), *bounds, rng.random() < 0.5]

    draws: list[tuple[int, Callable[[], Operation]]] = [
        (45, put),
        (8, delete),
        (8, lambda: ["get", rng.choice(keys)]),
        (24, lambda: ["get_as_of", rng.choice(keys), time() if rng.random() < 0.7 else times.read()]),
        (12, versions),
    ]
    parameters = {"history_retention_ms": history}
    if number % 4 != 3:
        # Else Kafka Streams takes an interval of its own.
        parameters["segment_interval_ms"] = interval
    return Sequence(type_name, parameters, [_draw(rng, draws) for _ in range(length)])


def _draw(rng: random.Random, draws: list[tuple[int, Callable[[], Operation]]]) -> Operation:
    return rng.choices([draw for _, draw in draws], [weight for weight, _ in draws])[0]()


_WRITERS: dict[str, Callable[[str, random.Random, int, int], Sequence]] = {
    "keyvalue": _keyvalue,
    "timestamped_keyvalue": _keyvalue,
    "listvalue": _listvalue,
    "window": _window,
    "timestamped_window": _window,
    "session": _session,
    "versioned": _versioned,
}
