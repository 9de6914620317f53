"""Two sources as one, the newer of which may delete what the older has: a range, and the number of keys.

The older one is read in chunks, and the newer one as far as each of them goes. What neither has in between comes as it
was read, without a look at each pair, since most ranges meet few uncommitted writes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice

from store.engine.protocol import Chunk, Family, Overlay, Pairs, View

_FIRST_CHUNK = 4
_LARGEST_CHUNK = 512

_Entries = list[tuple[bytes, bytes | None]]


class Merging:
    """The overlay of a range, beside the chunks of the older source."""

    __slots__ = ("_most", "_newer", "_overlay", "_reverse")

    def __init__(self, overlay: Overlay, *, reverse: bool) -> None:
        """Both must come in the order asked for."""
        self._overlay = overlay
        self._reverse = reverse
        self._newer = next(overlay, None)
        self._most = _FIRST_CHUNK
        """How many entries are taken at once: few at first, since most ranges are read to see their first pairs."""

    def parts(self, chunk: Chunk, *, more: bool) -> Iterable[Chunk]:
        """The chunk, which is changed, with the overlay's pairs in it and, unless there is `more`, behind it. Each key
        is there once, the overlay's value wins, and its deletions are left out."""
        newer = self._newer
        if newer is None or (more and self._is_behind(newer[0], chunk[-1][0])):
            return (chunk,)
        end = chunk[-1][0] if more else None
        entries = self._until(end)
        if len(entries) == self._most:
            return self._parts_of_many(chunk, entries, end)
        self._put_into(chunk, entries)
        return (chunk,)

    def _parts_of_many(self, chunk: Chunk, entries: _Entries, end: bytes | None) -> Iterator[Chunk]:
        while len(entries) == self._most:
            self._most = min(self._most * 2, _LARGEST_CHUNK)
            done = self._put_into(chunk, entries)
            yield chunk[:done]
            del chunk[:done]
            entries = self._until(end)
        self._put_into(chunk, entries)
        yield chunk

    def _put_into(self, chunk: Chunk, entries: _Entries) -> int:
        """The place behind the last of them."""
        done = 0
        for key, value in entries:
            at = self._position(chunk, key, done)
            there = at < len(chunk) and chunk[at][0] == key
            done = at + (value is not None)
            if value is None:
                if there:
                    del chunk[at]
            elif there:
                chunk[at] = key, value
            else:
                chunk.insert(at, (key, value))
        return done

    def _is_behind(self, key: bytes, end: bytes) -> bool:
        return key < end if self._reverse else key > end

    def _until(self, end: bytes | None) -> _Entries:
        """The next entries up to that key, which may be among them; None has no end. As many as `_most`, unless there
        are fewer."""
        entries: _Entries = []
        newer, overlay, reverse, most = self._newer, self._overlay, self._reverse, self._most
        while newer is not None and (end is None or (newer[0] >= end if reverse else newer[0] <= end)):
            entries.append(newer)
            newer = next(overlay, None)
            if len(entries) == most:
                break
        self._newer = newer
        return entries

    def _position(self, chunk: Chunk, key: bytes, done: int) -> int:
        """Where the key is in the rest of the chunk, or would be."""
        if self._reverse:
            return bisect_left(chunk, True, done, key=lambda pair: pair[0] <= key)
        # Without a value it is less than the pair of that key, whatever that one's value.
        return bisect_left(chunk, (key,), done)


def growth(base: View, overlay: Iterable[tuple[bytes, bytes | None]]) -> int:
    """How many keys the overlay, each of whose keys is there once, adds to the data of `base`; negative: takes away."""
    return sum((value is not None) - (base.get(Family.DATA, key) is not None) for key, value in overlay)


def merge(base: Pairs, overlay: Overlay, *, reverse: bool = False) -> Pairs:
    """All pairs of both, each key once, the overlay's value winning, its deletions left out.

    Both must come in the order asked for. Closing the result closes both.
    """
    pairs = _merged(base, overlay, reverse)
    next(pairs)
    return pairs


def _merged(base: Pairs, overlay: Overlay, reverse: bool) -> Pairs:
    """The pairs after a first one that only starts the generator, so that `finally` runs in any case."""
    try:
        yield b"", b""
        merging = Merging(overlay, reverse=reverse)
        size, more = _FIRST_CHUNK, True
        while more:
            chunk = list(islice(base, size))
            more = len(chunk) == size
            for part in merging.parts(chunk, more=more):
                yield from part
            size = min(size * 2, _LARGEST_CHUNK)
    finally:
        base.close()
        overlay.close()
