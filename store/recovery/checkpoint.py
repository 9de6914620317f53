"""The checkpoint file of a task: the changelog offsets of its stores that do not keep their own.

    1                                        the format's version
    2                                        how many entries follow
    app-orders-changelog 0 4711 1700000000000 exact
    app-totals-changelog 0 12 - loose        topic, partition, then the fields of `Checkpointed`
    9ae0daaf                                 CRC-32 of all before, in hexadecimal

Version 0 is that of Kafka Streams: topic, partition and offset, and no checksum. It is read and never written.
Databases of Kafka Streams itself that lie beside it are not continued, see `store.engine.rocksdb`.
Offsets below zero stand there for unknown ones and are left out (KAFKA-19712).

Must survive: a crash or power cut at any moment of a write (the old file or the new one is there, whole), and a file
that was torn, truncated, damaged, or written by a newer version: `StoreCorruptedError`, and never a map with
less in it than was written. Version 0 has no checksum, so only damage to its form is noticed there.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from store.engine.protocol import Checkpointed
from store.engine.staged import sync_path
from store.errors import StoreCorruptedError, StoreIOError
from store.types import TopicPartition

_KAFKA_STREAMS = 0
_VERSION = 1
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NUMBER = re.compile(r"-?[0-9]{1,20}")
_MOST_PARTITIONS = 2**31
_MOST_OFFSETS = 2**63
_NO_TIME = "-"
_EXACT = {"exact": True, "loose": False}


def encode(checkpoint: Mapping[TopicPartition, Checkpointed]) -> bytes:
    """The file's bytes, the same for equal maps. Raises `ValueError` for what no partition could have."""
    lines = [str(_VERSION), str(len(checkpoint))]
    for tp, (offset, last_caught_up_ms, exact) in sorted(checkpoint.items()):
        time = _NO_TIME if last_caught_up_ms is None else str(last_caught_up_ms)
        pieces = [tp.topic, str(tp.partition), str(offset), time, "exact" if exact else "loose"]
        if offset < 0 or _entry(pieces) is None:
            raise ValueError(
                f"{tp} at offset {offset} and time {last_caught_up_ms} is nowhere a store could be"
            )
        lines.append(" ".join(pieces))
    body = "".join(f"{line}\n" for line in lines).encode("ascii")
    return body + b"%08x\n" % zlib.crc32(body)


def decode(data: bytes, where: str) -> dict[TopicPartition, Checkpointed]:
    """What the bytes say. Raises `StoreCorruptedError` naming `where` and what is wrong."""

    def wrong(what: str) -> StoreCorruptedError:
        return StoreCorruptedError(f"checkpoint {where} cannot be trusted: {what}")

    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        raise wrong(f"byte {error.start} is no ASCII") from None
    *lines, rest = text.split("\n")
    if rest or not lines:
        raise wrong("it is cut off" if text else "it is empty")
    version = lines[0].removesuffix("\r")
    if version == str(_KAFKA_STREAMS):
        lines = [line.removesuffix("\r") for line in lines]
    elif version == str(_VERSION):
        *lines, checksum = lines
        if checksum != f"{zlib.crc32(data[: -len(checksum) - 1]):08x}":
            raise wrong("its checksum does not match")
    elif _NUMBER.fullmatch(version) and int(version) > _VERSION:
        raise wrong(f"it has format {version}, and this version reads formats up to {_VERSION}")
    else:
        raise wrong(f"{lines[0][:40]!r} is no version of its format")
    if len(lines) < 2 or _NUMBER.fullmatch(lines[1]) is None:
        raise wrong("it does not say how many entries it has")
    if int(lines[1]) != len(lines) - 2:
        raise wrong(f"it has {len(lines) - 2} entries and says that there are {lines[1]}")
    found: dict[TopicPartition, Checkpointed] = {}
    for number, line in enumerate(lines[2:], 3):
        pieces = line.split(" ") if version == str(_VERSION) else [*line.split(), _NO_TIME, "exact"]
        entry = _entry(pieces)
        if entry is None:
            raise wrong(f"line {number} is no entry: {line[:300]!r}")
        tp, at = entry
        if tp in found:
            raise wrong(f"line {number} is a second entry of {tp}")
        found[tp] = at
    return {tp: at for tp, at in found.items() if at.offset >= 0}


def read(path: Path) -> dict[TopicPartition, Checkpointed]:
    """The map in the file, empty when there is none.

    Raises `StoreCorruptedError` when it cannot be read whole, `StoreIOError` when the system refuses.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreIOError(f"checkpoint {path} cannot be read: {error}") from error
    return decode(data, str(path))


def write(path: Path, checkpoint: Mapping[TopicPartition, Checkpointed]) -> None:
    """Replace the file. One writer at a time.

    At return the new one is power-safe. Before, and when this raises `StoreIOError`, it is the old or the new one.
    """
    data = encode(checkpoint)
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_path(path.parent)
    except OSError as error:
        raise StoreIOError(f"checkpoint {path} cannot be written: {error}") from error


def _entry(pieces: Sequence[str]) -> tuple[TopicPartition, Checkpointed] | None:
    """What the words of a line say, None if they cannot be one."""
    if len(pieces) != 5:
        return None
    topic, *numbers, time, exact = pieces
    if _TOPIC.fullmatch(topic) is None or topic in {".", ".."} or exact not in _EXACT:
        return None
    if time != _NO_TIME:
        numbers.append(time)
    if not all(_NUMBER.fullmatch(number) for number in numbers):
        return None
    partition, offset, *times = map(int, numbers)
    if not 0 <= partition < _MOST_PARTITIONS or abs(offset) >= _MOST_OFFSETS:
        return None
    if times and not 0 <= times[0] < _MOST_OFFSETS:
        return None
    return TopicPartition(topic, partition), Checkpointed(offset, times[0] if times else None, _EXACT[exact])
