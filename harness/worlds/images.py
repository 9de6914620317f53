"""What lies in a store's engine, and in its changelog, read by decoders that share nothing with the stores.

They are made from the formats that the modules of `store.state` document, and see raw rows of an engine and raw
records. What they cannot read they show as text, so that it differs from whatever was expected.

Rows are named as `harness.history` names them. A value of a timestamped store is `[value, timestamp]`, that of a window
store which retains duplicates the list of all values in the order of their puts, that of a list store its list. Of a
versioned store there is a row `[value, valid to]` for each version that can still be asked for, where the newest one of
its key is valid to null; tombstones are none. What has expired by
the stream time beside the rows is left out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import zip_longest
from typing import Any, NamedTuple

from harness.history import Row, StoreImage
from harness.worlds.process import ObservedStorage
from scenarios import Json, Scenario, readable_key, readable_value
from store.engine.memory import MemoryEngine
from store.engine.protocol import Family, View
from store.streams.topology import Topology
from store.suppliers import (
    GlobalStoreSupplier,
    KeyValueSupplier,
    ListValueSupplier,
    SessionSupplier,
    StoreBuilder,
    StoreSupplier,
    VersionedSupplier,
    WindowSupplier,
)
from store.types import Record, TopicPartition

_LONG = struct.Struct(">Q")
_SIGNED = struct.Struct(">q")
_WINDOW = struct.Struct(">qi")
_SESSION = struct.Struct(">qq")
_LENGTH = struct.Struct(">I")
_LIST = struct.Struct(">BI")
_NUMBER = struct.Struct(">Bq")
_FORMAT = 1
_NEWEST, _OLDER = 1, 2
_PARTITION = re.compile(r"(offset|position):(.+)-([0-9]+)")

Value = Callable[[bytes], Json]
Name = Callable[[bytes], str]


class Entry(NamedTuple):
    """One value of a row, before rows are put together and what has expired is left out."""

    row: str
    value: Json
    time: int = 0
    """By which it expires: the start of a window, the end of a session or of a version."""
    number: int = 0
    """Its place among several values of one row."""


class Raw(NamedTuple):
    """All rows of an engine, in order."""

    meta: list[tuple[bytes, bytes]]
    data: list[tuple[bytes, bytes]]

    @classmethod
    def of(cls, view: View) -> Raw:
        if isinstance(view, MemoryEngine):
            return cls(view.rows(Family.META), view.rows(Family.DATA))
        return cls(list(view.scan(Family.META, None, None)), list(view.scan(Family.DATA, None, None)))


Known = dict[tuple[str, int], tuple[Raw, StoreImage]]
"""Changelog topic and partition → the rows that were seen of that store last, and what they say. Most looks find what
the one before has found, and need not read it again."""


class Meta(NamedTuple):
    """What an engine says of itself."""

    offsets: dict[tuple[str, int], int]
    positions: dict[tuple[str, int], int]
    stream_time: int | None


def innermost(supplier: StoreSupplier[Any]) -> StoreSupplier[Any]:
    """The supplier under any builders."""
    # By the method resolution order: abstract base classes answer `isinstance` slowly.
    while StoreBuilder in type(supplier).__mro__:
        assert isinstance(supplier, StoreBuilder)
        supplier = supplier.supplier
    return supplier


def image(
    scenario: Scenario,
    supplier: StoreSupplier[Any],
    raw: Raw,
    *,
    partition: int,
    changelog: str,
    sources: Sequence[str],
    prefix: str,
) -> StoreImage:
    """What these rows say as committed. Topics have their full names; `prefix` is what they lose in the image."""
    inner = innermost(supplier)
    meta = metadata(raw.meta)
    entries = _entries(scenario, supplier.name, inner, raw.data)
    return StoreImage(
        put_together(inner, entries, meta.stream_time),
        {
            topic.removeprefix(prefix): offset
            for (topic, number), offset in meta.positions.items()
            if number == partition and topic in sources
        },
        meta.offsets.get((changelog, partition)),
        meta.stream_time,
        _in_expired_segments(inner, entries, meta.stream_time),
    )


def _entries(
    scenario: Scenario, store: str, inner: StoreSupplier[Any], rows: Iterable[tuple[bytes, bytes]]
) -> list[Entry]:
    value, name = _value_of(scenario, store), _name_of(scenario, store)
    return [entry for key, raw in rows if (entry := _readable(inner, name, value, key, raw)) is not None]


def metadata(rows: Iterable[tuple[bytes, bytes]]) -> Meta:
    """The rows of `Family.META`, those of an unknown kind or format left out."""
    offsets: dict[tuple[str, int], int] = {}
    positions: dict[tuple[str, int], int] = {}
    stream_time = None
    for raw, value in rows:
        if len(value) != _NUMBER.size or value[0] != _FORMAT:
            continue
        number: int = _NUMBER.unpack(value)[1]
        if raw == b"stream-time":
            stream_time = number
        elif (named := _named(raw)) is not None:
            kind, topic, partition = named
            (offsets if kind == "offset" else positions)[topic, partition] = number
    return Meta(offsets, positions, stream_time)


@lru_cache(1_000)
def _named(raw: bytes) -> tuple[str, str, int] | None:
    """What a row of `Family.META` is of: the kind, topic and partition; None for others."""
    match = _PARTITION.fullmatch(raw.decode("ascii", "replace"))
    return None if match is None else (match[1], match[2], int(match[3]))


def caught_up_ms(view: View, changelog: TopicPartition) -> int | None:
    """Since when the rows of a store that keeps its own offset are up to date, as it says itself; None if it does
    not."""
    return _number_of(view, "caught-up", changelog)


def kept_offset(view: View, changelog: TopicPartition) -> int | None:
    """The offset of the last record of a changelog in a store that keeps it itself; None if it does not."""
    return _number_of(view, "offset", changelog)


def _number_of(view: View, kind: str, changelog: TopicPartition) -> int | None:
    kept = view.get(Family.META, f"{kind}:{changelog.topic}-{changelog.partition}".encode())
    if kept is None or len(kept) != _NUMBER.size or kept[0] != _FORMAT:
        return None
    number: int = _NUMBER.unpack(kept)[1]
    return number


def put_together(
    supplier: StoreSupplier[Any], entries: Iterable[Entry], stream_time: int | None
) -> dict[str, Json]:
    """The rows that can still be seen at a stream time, by name."""
    retention = None if stream_time is None else _retention(supplier)
    oldest = None if retention is None or stream_time is None else stream_time - retention
    seen = [entry for entry in entries if oldest is None or entry.time > oldest]
    if not getattr(supplier, "retain_duplicates", False):
        return {entry.row: entry.value for entry in seen}
    rows: dict[str, Json] = {}
    for entry in sorted(seen, key=lambda entry: entry.number):
        rows.setdefault(entry.row, []).append(entry.value)
    return rows


def _in_expired_segments(
    supplier: StoreSupplier[Any], entries: Sequence[Entry], stream_time: int | None
) -> int:
    """How many rows lie in segments that end before all that can be seen at a stream time."""
    retention = None if stream_time is None else _retention(supplier)
    if retention is None or stream_time is None:
        return 0
    interval = _segment_interval(supplier, retention)
    first = max(0, stream_time - retention) // interval
    return sum(entry.time // interval < first for entry in entries)


def _segment_interval(supplier: StoreSupplier[Any], retention: int) -> int:
    """The length of a segment, as Kafka Streams has it where the supplier does not say."""
    given: int | None = getattr(supplier, "segment_interval_ms", None)
    if given is not None:
        return given
    if not isinstance(supplier, VersionedSupplier):
        return max(retention // 2, 60_000)
    for longest, parts, least in ((60_000, 3, 2_000), (300_000, 5, 20_000), (3_600_000, 12, 60_000)):
        if retention <= longest:
            return max(retention // parts, least)
    return max(retention // 24, 300_000)


def _retention(supplier: StoreSupplier[Any]) -> int | None:
    kept: int | None = getattr(supplier, "retention_ms", None)
    return getattr(supplier, "history_retention_ms", None) if kept is None else kept


# -- rows of an engine ----------------------------------------------------------------------------------------


def _readable(supplier: StoreSupplier[Any], name: Name, value: Value, key: bytes, raw: bytes) -> Entry | None:
    try:
        return _entry(supplier, name, value, key, raw)
    except (ValueError, struct.error):
        return Entry(repr(key), repr(raw), 1 << 63)


def _entry(supplier: StoreSupplier[Any], name: Name, value: Value, key: bytes, raw: bytes) -> Entry | None:
    """One row of `Family.DATA`; None for one that is only there for the store. Raises ValueError or struct.error."""
    match supplier:
        case KeyValueSupplier(timestamped=timestamped):
            return Entry(name(key), _timestamped(value, raw) if timestamped else value(raw))
        case WindowSupplier(timestamped=timestamped):
            return _windowed(key[_LONG.size :], _timestamped(value, raw) if timestamped else value(raw))
        case SessionSupplier():
            return _session(key[_LONG.size :], value(raw))
        case VersionedSupplier():
            return _version(value, key, raw)
        case ListValueSupplier():
            return Entry(key.decode(), _list(value, raw))
    return Entry(key.decode(), value(raw))


def _timestamped(value: Value, raw: bytes) -> Json:
    return [value(raw[_SIGNED.size :]), _SIGNED.unpack_from(raw)[0]]


def _windowed(key: bytes, value: Json) -> Entry:
    end = _end_of_key(key, _WINDOW.size)
    start, number = _WINDOW.unpack_from(key, end)
    return Entry(f"{key[:end].decode()}@{start}", value, start, number)


def _session(key: bytes, value: Json) -> Entry:
    suffix = _end_of_key(key, _SESSION.size)
    end, start = _SESSION.unpack_from(key, suffix)
    return Entry(f"{key[:suffix].decode()}@{start}..{end}", value, end)


def _end_of_key(key: bytes, suffix: int) -> int:
    if len(key) < suffix:
        raise ValueError("too short for a key with its time")
    return len(key) - suffix


def _version(value: Value, key: bytes, raw: bytes) -> Entry | None:
    if key[0] == _NEWEST:
        (timestamp,) = _LONG.unpack_from(raw)
        return Entry(f"{key[1:].decode()}@{timestamp}", [value(raw[_LONG.size :]), None], 1 << 63)
    if key[0] != _OLDER:
        raise ValueError("neither a newest nor an older version")
    (length,) = _LENGTH.unpack_from(key, 1 + _LONG.size)
    begin = 1 + _LONG.size + _LENGTH.size
    if len(key) != begin + length + _LONG.size:
        raise ValueError("a key of another length")
    (timestamp,) = _LONG.unpack_from(key, begin + length)
    (valid_to,) = _LONG.unpack_from(raw)
    if valid_to == timestamp:
        return None
    return Entry(
        f"{key[begin : begin + length].decode()}@{timestamp}", [value(raw[_LONG.size :]), valid_to], valid_to
    )


def _list(value: Value, raw: bytes) -> list[Json]:
    kind, count = _LIST.unpack_from(raw)
    if kind != 1:
        raise ValueError("no list of values of any size")
    place, values = _LIST.size, []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(raw, place)
        place += _LENGTH.size + length
        if place > len(raw):
            raise ValueError("ends before its list does")
        values.append(value(raw[place - length : place]))
    if place != len(raw):
        raise ValueError("goes on after its list")
    return values


def _value_of(scenario: Scenario, store: str) -> Value:
    return partial(readable_value, scenario, store)


def _name_of(scenario: Scenario, store: str) -> Name:
    """Of a row of a key-value store."""
    return partial(readable_key, scenario, store)


# -- records of a changelog -----------------------------------------------------------------------------------


def changelog_row(scenario: Scenario, supplier: StoreSupplier[Any]) -> Callable[[Record], Row]:
    """How a record of a store's changelog is shown: under the name of its row, of duplicates with `#` and the
    sequence number behind it. The timestamp is that of the record, or the one that it has beside it as a header."""
    inner = innermost(supplier)
    key_of = _changelog_key(inner, _name_of(scenario, supplier.name))
    value_of = _changed(inner, _value_of(scenario, supplier.name))

    def row(record: Record) -> Row:
        raw = record.key or b""
        beside = dict(record.headers).get("timestamp")
        timestamp = record.timestamp if beside is None else int.from_bytes(beside, "big", signed=True)
        try:
            name = key_of(raw, timestamp)
        except (ValueError, struct.error):
            name = repr(raw)
        value = None if record.value is None else value_of(record.value, timestamp)
        return Row(record.partition, record.offset, name, value, timestamp)

    return row


def _changelog_key(supplier: StoreSupplier[Any], name: Name) -> Callable[[bytes, int], str]:
    """The name of a row by key and timestamp of its record."""
    match supplier:
        case KeyValueSupplier():
            return lambda key, _: name(key)
        case WindowSupplier(retain_duplicates=True):
            return lambda key, _: "{0.row}#{0.number}".format(_windowed(key, None))
        case WindowSupplier():
            return lambda key, _: _windowed(key, None).row
        case SessionSupplier():
            return lambda key, _: _session(key, None).row
        case VersionedSupplier():
            return lambda key, timestamp: f"{key.decode()}@{timestamp}"
    return lambda key, _: key.decode()


def _changed(supplier: StoreSupplier[Any], value: Value) -> Callable[[bytes, int], Json]:
    """The value of a row by value and timestamp of its record."""

    def listed(raw: bytes, _: int) -> Json:
        try:
            return _list(value, raw)
        except (ValueError, struct.error):
            return repr(raw)

    match supplier:
        case KeyValueSupplier(timestamped=True) | WindowSupplier(timestamped=True):
            return lambda raw, timestamp: [value(raw), timestamp]
        case KeyValueSupplier():
            pass
        case ListValueSupplier():
            return listed
    return lambda raw, _: value(raw)


def fold(supplier: StoreSupplier[Any], rows: Iterable[Row]) -> dict[str, Json]:
    """What a store holds that was made from these rows of its changelog, given in offset order."""
    inner = innermost(supplier)
    match inner:
        case KeyValueSupplier():
            # Asked first, for it is the usual one, and to ask about an abstract base of others takes its time.
            pass
        case VersionedSupplier():
            return _fold_versions(rows, inner.history_retention_ms)
        case WindowSupplier() | SessionSupplier():
            return _fold_windows(inner, rows)
    folded: dict[str, Json] = {}
    for row in rows:
        if row.value is None:
            folded.pop(row.key, None)
        else:
            folded[row.key] = row.value
    return folded


def _fold_windows(supplier: WindowSupplier | SessionSupplier, rows: Iterable[Row]) -> dict[str, Json]:
    """The last record of each row, but for those that the greatest time so far has expired. Since that time only
    grows, it does not matter when a row expired."""
    entries: dict[str, Entry] = {}
    stream_time = -1
    for row in rows:
        name, _, number = row.key.rpartition("#") if retains_duplicates(supplier) else (row.key, "", "")
        time = _time_in(name, session=isinstance(supplier, SessionSupplier))
        stream_time = max(stream_time, time)
        if row.value is None:
            entries.pop(row.key, None)
        else:
            entries[row.key] = Entry(name, row.value, time, int(number or 0))
    return put_together(supplier, entries.values(), stream_time)


def retains_duplicates(supplier: StoreSupplier[Any]) -> bool:
    """Whether a row of the store's changelog has a number behind its name."""
    return isinstance(supplier, WindowSupplier) and supplier.retain_duplicates


def _time_in(name: str, *, session: bool) -> int:
    """The time that a row expires by; far ahead for one that could not be read."""
    text = name.rpartition("..")[2] if session else name.rpartition("@")[2]
    return int(text) if text.isdecimal() else 1 << 63


def _fold_versions(rows: Iterable[Row], history_retention_ms: int) -> dict[str, Json]:
    """Versions that came too late by the stream time before them do not count."""
    versions: dict[str, dict[int, Json]] = {}
    stream_time = -1
    for row in rows:
        if row.timestamp < stream_time - history_retention_ms:
            continue
        stream_time = max(stream_time, row.timestamp)
        key = row.key.removesuffix(f"@{row.timestamp}")
        versions.setdefault(key, {})[row.timestamp] = row.value
    folded: dict[str, Json] = {}
    for key, found in versions.items():
        times = sorted(found)
        for time, valid_to in zip_longest(times, times[1:]):
            if found[time] is not None and (
                valid_to is None or valid_to > stream_time - history_retention_ms
            ):
                folded[f"{key}@{time}"] = [found[time], valid_to]
    return folded


def of_store(
    scenario: Scenario,
    topology: Topology,
    partition: int,
    supplier: StoreSupplier[Any],
    view: View,
    known: Known | None = None,
) -> StoreImage:
    """What one store of a task holds. `known`: of looks with the same topology, kept by the caller."""
    changelog = topology.changelog_topic(supplier.name)
    raw = Raw.of(view)
    before = None if known is None else known.get((changelog, partition))
    if before is not None and before[0] == raw:
        return before[1]
    found = image(
        scenario,
        supplier,
        raw,
        partition=partition,
        changelog=changelog,
        sources=topology.sources,
        prefix=f"{topology.application_id}-",
    )
    if known is not None:
        known[changelog, partition] = raw, found
    return found


class GlobalImage(NamedTuple):
    """What a global store holds."""

    rows: dict[str, Json]
    offsets: dict[int, int] | None
    """By partition; None for a store that keeps none with its rows."""


def of_global_store(
    scenario: Scenario, store: GlobalStoreSupplier, storage: ObservedStorage, has: Callable[[str], bool]
) -> GlobalImage | None:
    """What a global store holds in the process, and the thread, that has it open; None if it is not open there. `has`:
    whether that has a place on the disk."""
    inner = innermost(store.supplier)
    engines = [
        engine for (place, name), engine in storage.engines.items() if name == store.name and has(place)
    ]
    if engines:
        view: View = engines[-1]
    else:
        open_ones = [
            one
            for (place, name), one in storage.stores.items()
            if name == store.name and has(place) and one.is_open()
        ]
        if not open_ones:
            return None
        view = open_ones[-1].snapshot()
    raw = Raw.of(view)
    meta = metadata(raw.meta)
    entries = _entries(scenario, store.name, inner, raw.data)
    rows = put_together(inner, entries, meta.stream_time)
    if not engines or not getattr(inner, "transactional", False):
        return GlobalImage(rows, None)
    offsets = {number: offset for (topic, number), offset in meta.offsets.items() if topic == store.topic}
    return GlobalImage(rows, offsets)


def of_storage(
    scenario: Scenario,
    topology: Topology,
    partition: int,
    storage: ObservedStorage,
    known: Known | None = None,
) -> dict[str, StoreImage]:
    """What the stores of a task hold as committed in the process that has them open; others are absent. For `known`
    see `of_store`."""
    task = topology.task_id(partition)
    found: dict[str, StoreImage] = {}
    for name, supplier in topology.suppliers().items():
        if (task, name) in storage.engines:
            found[name] = of_store(
                scenario, topology, partition, supplier, storage.engines[task, name], known
            )
        elif (task, name) in storage.stores and storage.stores[task, name].is_open():
            view = storage.stores[task, name].snapshot()
            found[name] = of_store(scenario, topology, partition, supplier, view, known)
            view.close()
    return found


def is_persistent(supplier: StoreSupplier[Any]) -> bool:
    """Whether a store leaves anything on a disk."""
    return getattr(getattr(supplier, "supplier", supplier), "persistent", True) is not False
