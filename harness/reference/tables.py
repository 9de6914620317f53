"""The reference's own tables: what each type of store promises, said with dicts alone.

They are made from the documentation of the stores, not from their code, and share nothing with it. A table belongs to
one task. `rows` gives what a reader can see, named as `harness.history` names rows. Values are JSON; those of a
timestamped store are `[value, timestamp]`. A value may be changed in place, which changes no copy of its table. Times
are milliseconds since the epoch, and bounds are inclusive.

Nothing that expires is forgotten here. A table keeps the greatest time ever put, and a read leaves out what that time
has expired, so there are no segments but in one place: the order in which the stores list several keys.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from types import NoneType
from typing import Any, Final, NamedTuple, Protocol, Self, cast

from scenarios import Json, OneOf, ScenarioError
from store.suppliers import (
    KeyValueSupplier,
    ListValueSupplier,
    SessionSupplier,
    StoreBuilder,
    StoreSupplier,
    VersionedSupplier,
    WindowSupplier,
)


class Table(Protocol):
    """The expected contents of one store."""

    touched: set[str]
    """What was written or asked for by its key since this was last emptied: names of rows, or of keys for all their
    rows. A store's write that no record accounts for is known by it. Ranges do not count."""

    def rows(self) -> dict[str, Json]:
        """What a reader can see now."""

    def copy(self) -> Self:
        """Another table with the same contents, which changes on its own."""


class _Touched(dict[str, Json]):
    """A dict that knows which of its keys were used, see `Table.touched`."""

    __slots__ = ("touched",)

    def __init__(self, contents: Mapping[str, Json] | Iterable[tuple[str, Json]] = ()) -> None:
        super().__init__(contents)
        self.touched: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.touched.add(cast(str, key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Json:
        self.touched.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Json = None) -> Json:
        self.touched.add(key)
        return super().get(key, default)

    def __setitem__(self, key: str, value: Json) -> None:
        self.touched.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self.touched.add(key)
        super().__delitem__(key)

    def pop(self, key: str, *default: Json) -> Json:
        self.touched.add(key)
        return super().pop(key, *default)

    def setdefault(self, key: str, default: Json = None) -> Json:
        self.touched.add(key)
        return super().setdefault(key, default)

    def popitem(self) -> tuple[str, Json]:
        self.touched.update(self)
        return super().popitem()

    def clear(self) -> None:
        self.touched.update(self)
        super().clear()

    def update(self, *given: Any, **named: Json) -> None:
        values = dict(*given, **named)
        self.touched.update(values)
        super().update(values)

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        self.update(other)
        return self


class KeyValueTable(_Touched):
    """Key → value."""

    __slots__ = ()

    def rows(self) -> dict[str, Json]:
        return self

    def copy(self) -> KeyValueTable:
        return KeyValueTable({key: own(value) for key, value in self.items()})

    def between(self, lower: str | None, upper: str | None) -> list[tuple[str, Json]]:
        """Pairs in the order of keys."""
        return [pair for pair in sorted(self.items(), key=_key_of) if _between(pair[0], lower, upper)]


class ListTable(_Touched):
    """Key → the values that were put, in that order. There are no empty lists."""

    __slots__ = ()

    def rows(self) -> dict[str, Json]:
        return dict(self)

    def copy(self) -> ListTable:
        return ListTable({key: own(values) for key, values in self.items()})

    def put(self, key: str, value: Json) -> None:
        """Append; None removes the list."""
        if value is None:
            self.pop(key, None)
        else:
            self.setdefault(key, []).append(value)

    def between(self, lower: str | None, upper: str | None) -> list[tuple[str, Json]]:
        """A pair for each value, in the order of keys, then of puts."""
        return [
            (key, value)
            for key, values in sorted(self.items(), key=_key_of)
            if _between(key, lower, upper)
            for value in values
        ]


class _Expiring:
    """What rows that have a time share: one at `time` is visible while time > stream time - retention."""

    def __init__(self, retention_ms: int) -> None:
        self.retention_ms = retention_ms
        self.stream_time = -1
        """The greatest time ever put, -1 before the first."""
        self.dropped = 0
        """Puts that came when all of the time around theirs had expired."""
        self.touched: set[str] = set()

    def expired(self, name: str) -> bool:
        """Whether a row of this name is not visible, whether there is one or not."""
        return not self._visible(int(name.rpartition("@")[2].rpartition("..")[2]))

    def _observe(self, time: int) -> bool:
        """Take note of the time of a put; whether a row of this time is visible then."""
        self.dropped += self._segment(time) < self._segment(max(0, self.stream_time - self.retention_ms))
        self.stream_time = max(self.stream_time, time)
        return self._visible(time)

    def _visible(self, time: int) -> bool:
        return time > self.stream_time - self.retention_ms

    def _segment(self, time: int) -> int:
        """What the rows of several keys are ordered by first: half the retention, and at least a minute, of time."""
        return time // max(self.retention_ms // 2, 60_000)


class WindowTable(_Expiring):
    """Key and start of a window → value; with `retain_duplicates` → every value that was put."""

    def __init__(self, retention_ms: int, *, retain_duplicates: bool = False) -> None:
        super().__init__(retention_ms)
        self.retain_duplicates = retain_duplicates
        self._values: dict[tuple[str, int], tuple[Json, ...]] = {}

    def put(self, key: str, value: Json, start: int) -> None:
        """Write a window, None deletes it. One that has expired is dropped. Where duplicates are retained, None is
        ignored altogether; anywhere else it moves the stream time like any put."""
        if value is None and self.retain_duplicates:
            return
        self.touched.add(f"{key}@{start}")
        if not self._observe(start):
            return
        if value is None:
            self._values.pop((key, start), None)
        elif self.retain_duplicates:
            self._values[key, start] = (*self._values.get((key, start), ()), value)
        else:
            self._values[key, start] = (value,)

    def get(self, key: str, start: int) -> Json:
        """The value of a window, of duplicates the one put last; None where there is none."""
        self.touched.add(f"{key}@{start}")
        values = self._values.get((key, start))
        return values[-1] if values is not None and self._visible(start) else None

    def fetch(self, key: str, first: int, last: int) -> list[tuple[int, Json]]:
        """Windows of a key by their starts, duplicates in the order of their puts."""
        self.touched.add(key)
        return [
            (start, value)
            for (found, start), values in sorted(self._values.items(), key=lambda item: item[0][1])
            if found == key and first <= start <= last and self._visible(start)
            for value in values
        ]

    def fetch_range(
        self, lower: str | None, upper: str | None, first: int, last: int
    ) -> list[tuple[str, int, Json]]:
        """Key, start and value of the windows of several keys, in the order in which the store lists them."""

        def place(window: tuple[str, int]) -> tuple[int, bytes]:
            key, start = window
            return self._segment(start), key.encode() + struct.pack(">q", start)

        return [
            (key, start, value)
            for key, start in sorted(self._values, key=place)
            if _between(key, lower, upper) and first <= start <= last and self._visible(start)
            for value in self._values[key, start]
        ]

    def rows(self) -> dict[str, Json]:
        return {
            f"{key}@{start}": list(values) if self.retain_duplicates else values[0]
            for (key, start), values in self._values.items()
            if self._visible(start)
        }

    def restore(self, rows: Mapping[str, Json], stream_time: int) -> bool:
        """Take over what `rows` gave, and the greatest time ever put; whether no row is ahead of it."""
        self.stream_time = stream_time
        for name, value in rows.items():
            key, _, start = name.rpartition("@")
            self._values[key, int(start)] = tuple(value) if self.retain_duplicates else (value,)
        return all(start <= stream_time for _, start in self._values)

    def copy(self) -> WindowTable:
        other = WindowTable(self.retention_ms, retain_duplicates=self.retain_duplicates)
        other.stream_time = self.stream_time
        other.dropped = self.dropped
        other._values = {window: tuple(map(own, values)) for window, values in self._values.items()}
        return other


class Session(NamedTuple):
    """A session with its aggregate. Both times belong to it."""

    key: str
    start: int
    end: int
    value: Json


class SessionTable(_Expiring):
    """Key, start and end of a session → aggregate. A session expires by its end."""

    def __init__(self, retention_ms: int) -> None:
        super().__init__(retention_ms)
        self._values: dict[tuple[str, int, int], Json] = {}

    def put(self, key: str, start: int, end: int, value: Json) -> None:
        """Write a session, None deletes it. One that has expired is dropped."""
        self.touched.add(f"{key}@{start}..{end}")
        if not self._observe(end):
            return
        if value is None:
            self._values.pop((key, start, end), None)
        else:
            self._values[key, start, end] = value

    def remove(self, key: str, start: int, end: int) -> None:
        """Delete a session, which moves the stream time as `put` does."""
        self.put(key, start, end, None)

    def get(self, key: str, start: int, end: int) -> Json:
        """The aggregate of exactly this session, None if there is none."""
        self.touched.add(f"{key}@{start}..{end}")
        return self._values.get((key, start, end)) if self._visible(end) else None

    def find(self, key: str, earliest_end: int, latest_start: int) -> list[Session]:
        """Sessions of a key that end at the one time or later and start at the other or before, by end, then start."""
        self.touched.add(key)
        return self.find_range(key, key, earliest_end, latest_start)

    def find_range(
        self, lower: str | None, upper: str | None, earliest_end: int, latest_start: int
    ) -> list[Session]:
        """`find` for several keys, in the order in which the store lists them."""
        return sorted(
            (
                Session(key, start, end, value)
                for (key, start, end), value in self._values.items()
                if _between(key, lower, upper)
                and earliest_end <= end
                and start <= latest_start
                and self._visible(end)
            ),
            key=lambda found: (
                self._segment(found.end),
                found.key.encode() + struct.pack(">qq", found.end, found.start),
            ),
        )

    def rows(self) -> dict[str, Json]:
        return {
            f"{key}@{start}..{end}": value
            for (key, start, end), value in self._values.items()
            if self._visible(end)
        }

    def restore(self, rows: Mapping[str, Json], stream_time: int) -> bool:
        """Take over what `rows` gave, and the greatest time ever put; whether no row is ahead of it."""
        self.stream_time = stream_time
        for name, value in rows.items():
            key, _, times = name.rpartition("@")
            start, _, end = times.partition("..")
            self._values[key, int(start), int(end)] = value
        return all(end <= stream_time for _, _, end in self._values)

    def copy(self) -> SessionTable:
        other = SessionTable(self.retention_ms)
        other.stream_time = self.stream_time
        other.dropped = self.dropped
        other._values = {session: own(value) for session, value in self._values.items()}
        return other


class Version(NamedTuple):
    """A value that was valid from a time on, before another."""

    value: Json
    timestamp: int
    valid_to: int | None
    """None: it is the newest version of its key."""


class VersionedTable:
    """Key → its versions by timestamp. The newest one of a key never expires; an older one can be asked for while it
    was valid at a moment that is at most `history_retention_ms` before the stream time."""

    NEWEST: Final = -1
    """What `put` returns for the newest version of a key."""
    NOT_PUT: Final = -(2**63)
    """What `put` returns for one that is too late."""

    def __init__(self, history_retention_ms: int) -> None:
        self.history_retention_ms = history_retention_ms
        self.stream_time = -1
        """The greatest timestamp ever put, -1 before the first."""
        self.dropped = 0
        """Puts and deletions that came too late."""
        self.touched: set[str] = set()
        """Nothing: versions have times of their own."""
        self._versions: dict[str, dict[int, Json]] = {}
        """Tombstones are versions too, None."""

    def put(self, key: str, value: Json, timestamp: int) -> int:
        """Add a version, or replace the one of this timestamp; None is a tombstone. Returns the timestamp of the next
        version, tombstone or not, `NEWEST` if there is none, and `NOT_PUT`, having done nothing, if it is too late."""
        if timestamp < self._oldest():
            self.dropped += 1
            return self.NOT_PUT
        self.stream_time = max(self.stream_time, timestamp)
        versions = {**self._versions.get(key, {}), timestamp: value}
        self._versions[key] = versions
        return min((time for time in versions if time > timestamp), default=self.NEWEST)

    def delete(self, key: str, timestamp: int) -> Version | None:
        """Put a tombstone and return the version that it ended; None if there was none, or if it is too late."""
        if timestamp < self._oldest():
            self.dropped += 1
            return None
        present = self.get(key, timestamp)
        self.put(key, None, timestamp)
        return present

    def get(self, key: str, moment: int | None = None) -> Version | None:
        """The newest version, or the one that was valid at a moment; None if that is a tombstone or none."""
        found: Version | None = None
        for version in self._history(key):
            if version.valid_to is None:
                return version if moment is None or version.timestamp <= moment else found
            if moment is not None and version.timestamp <= moment < version.valid_to:
                found = version if moment >= self._oldest() else None
        return found

    def versions(self, key: str, first: int) -> list[Version]:
        """The versions that were valid at `first` or later, by timestamp. Those that ended before the history retention
        are left out, though a store may still know some of them: do not ask it for them."""
        oldest = max(first, self._oldest())
        return [
            version for version in self._history(key) if version.valid_to is None or version.valid_to > oldest
        ]

    def rows(self) -> dict[str, Json]:
        """Of each version its value, and until when it is valid."""
        return {
            f"{key}@{version.timestamp}": [version.value, version.valid_to]
            for key in self._versions
            for version in self.versions(key, self._oldest())
        }

    def outdated(self) -> set[str]:
        """The names of the versions that ended before the history retention. A store may still know some of them."""
        oldest = self._oldest()
        return {
            f"{key}@{version.timestamp}"
            for key in self._versions
            for version in self._history(key)
            if version.valid_to is not None and version.valid_to <= oldest
        }

    def newest(self) -> dict[str, Json]:
        """The newest version of each key that has a value, as a row."""
        found = ((key, self.get(key)) for key in self._versions)
        return {
            f"{key}@{version.timestamp}": [version.value, None]
            for key, version in found
            if version is not None
        }

    def copy(self) -> VersionedTable:
        other = VersionedTable(self.history_retention_ms)
        other.stream_time = self.stream_time
        other.dropped = self.dropped
        other._versions = {key: own(versions) for key, versions in self._versions.items()}
        return other

    def _oldest(self) -> int:
        """The oldest moment that may be asked for, and the oldest timestamp that is not too late."""
        return self.stream_time - self.history_retention_ms

    def _history(self, key: str) -> Iterator[Version]:
        """All versions that there ever were but tombstones, by timestamp."""
        versions = self._versions.get(key, {})
        times = sorted(versions)
        for time, valid_to in zip_longest(times, times[1:]):
            if versions[time] is not None:
                yield Version(versions[time], time, valid_to)


class GlobalTable(dict[str, Json]):
    """Key → value of a whole topic, which runs on its own beside the task: no reader knows how far it is.

    Written with `put` alone. As a dict it is at its end; what a task may have read is in `ever`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.touched: set[str] = set()
        self._ever: dict[str, tuple[Json, ...]] = {}

    def put(self, key: str, value: Json) -> None:
        """Write; None deletes."""
        self._ever[key] = (*self.ever(key), value)
        if value is None:
            self.pop(key, None)
        else:
            self[key] = value

    def ever(self, key: str) -> tuple[Json, ...]:
        """Every value that the key ever had, in order; the first is None."""
        return self._ever.get(key, (None,))

    def rows(self) -> dict[str, Json]:
        return dict(self)

    def copy(self) -> GlobalTable:
        other = GlobalTable()
        other.update(self)
        other._ever = dict(self._ever)
        return other


def table_of(supplier: StoreSupplier[Any], retention_ms: int | None = None) -> Table:
    """An empty table for what a supplier or a builder opens, whose windows, sessions or versions are kept as long as it
    says, or as long as is given. Raises `ValueError` for a store of a user's own."""
    while isinstance(supplier, StoreBuilder):
        supplier = supplier.supplier
    match supplier:
        case KeyValueSupplier():
            return KeyValueTable()
        case WindowSupplier():
            kept_ms = supplier.retention_ms if retention_ms is None else retention_ms
            return WindowTable(kept_ms, retain_duplicates=supplier.retain_duplicates)
        case SessionSupplier():
            return SessionTable(supplier.retention_ms if retention_ms is None else retention_ms)
        case VersionedSupplier():
            return VersionedTable(supplier.history_retention_ms if retention_ms is None else retention_ms)
        case ListValueSupplier():
            return ListTable()
    raise ValueError(f"store {supplier.name}: there is no table for what {type(supplier).__name__} opens")


def fill(table: Table, rows: Mapping[str, Json], stream_time: int | None) -> bool:
    """Put into an empty table what a look at its store has shown. False where that does not tell what the store does
    next: the rows of versions leave tombstones out, and a row ahead of the stream time, which a process leaves that
    died between the two writes, is seen from some time on."""
    match table:
        case KeyValueTable() | ListTable():
            table.update(own(rows))
            return True
        case WindowTable() | SessionTable():
            return table.restore(own(rows), -1 if stream_time is None else stream_time)
    return False


_ATOMS = frozenset({str, int, float, bool, NoneType})


def own(value: Json) -> Json:
    """A value that nobody else can change: a copy of what can be changed in place, such as a list that a reference
    function appends to. A tuple is a list, as in JSON.

    Raises `ScenarioError` for what JSON does not have, which could equal nothing that is read.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return [own(item) for item in value]
    if kind is dict:
        return {key: own(item) for key, item in value.items()}
    if isinstance(value, str | int | float | OneOf):
        return value
    raise ScenarioError(
        f"a value or a part of one is {value!r}, a {kind.__name__}: JSON has None, bool, int, float, str, list and dict"
    )


def _key_of(pair: tuple[str, Json]) -> str:
    return pair[0]


def _between(key: str, lower: str | None, upper: str | None) -> bool:
    return (lower is None or key >= lower) and (upper is None or key <= upper)
