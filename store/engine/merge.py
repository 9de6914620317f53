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


class Merging:
    """The overlay of a range, beside the chunks of the older source."""

    def __init__(self, overlay: Overlay, *, reverse: bool) -> None:
        """Both must come in the order asked for."""
        self._overlay = overlay
        self._reverse = reverse
        self._newer = next(overlay, None)
        self._most = _FIRST_CHUNK
        """How many entries are taken at once: few at first, since most ranges are read to see their first pairs."""

    def parts(self, chunk: Chunk, *, more: bool) -> Iterator[Chunk]:
        """The chunk, which is changed, with the overlay's pairs in it and, unless there is `more`, behind it. Each key
        is there once, the overlay's value wins, and its deletions are left out."""
        end = chunk[-1][0] if more else None
        while entries := self._until(end):
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
            if len(entries) < self._most:
                break
            self._most = min(self._most * 2, _LARGEST_CHUNK)
            yield chunk[:done]
            del chunk[:done]
        yield chunk

    def _until(self, end: bytes | None) -> list[tuple[bytes, bytes | None]]:
        """The next entries up to that key, which may be among them; None has no end. As many as `_most`, unless there
        are fewer."""
        entries: list[tuple[bytes, bytes | None]] = []
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
