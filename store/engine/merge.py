"""Two sources as one, the newer of which may delete what the older has: a range, and the number of keys.

The older one is read in chunks, and the newer one as far as each of them goes. What neither has in between comes as it
was read, without a look at each pair, since most ranges meet few uncommitted writes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter

from store.engine.protocol import Chunk, Family, Overlay, Pairs, View

_FIRST_CHUNK = 4
_LARGEST_CHUNK = 512

_KEY = itemgetter(0)


class Merging:
    """The overlay of a range, beside the chunks of the older source."""

    def __init__(self, overlay: Overlay, *, reverse: bool) -> None:
        """Both must come in the order asked for."""
        self._overlay = overlay
        self._reverse = reverse
        self._newer = next(overlay, None)
        self._at_once = 1

    def parts(self, chunk: Chunk, *, more: bool) -> Iterator[Chunk]:
        """The chunk with the overlay's pairs in it and, unless there is `more`, behind it. Each key is there once, the
        overlay's value wins, and its deletions are left out."""
        end = chunk[-1][0] if more else None
        length, done, reverse = len(chunk), 0, self._reverse
        while entries := self._until(end):
            part: Chunk = []
            for key, value in entries:
                if done < length:
                    found = chunk[done][0]
                    if found > key if reverse else found < key:
                        at = self._position(chunk, key, done)
                        part += chunk[done:at]
                        done = at
                    if done < length and chunk[done][0] == key:
                        done += 1
                if value is not None:
                    part.append((key, value))
            yield part
        yield chunk[done:] if done else chunk

    def _until(self, end: bytes | None) -> list[tuple[bytes, bytes | None]]:
        """The next entries up to that key, which may be among them; None has no end. Few at first: most ranges are read
        to see their first pairs."""
        entries: list[tuple[bytes, bytes | None]] = []
        newer, overlay, reverse, most = self._newer, self._overlay, self._reverse, self._at_once
        while newer is not None and len(entries) < most:
            if end is not None and (newer[0] < end if reverse else newer[0] > end):
                break
            entries.append(newer)
            newer = next(overlay, None)
        self._newer = newer
        self._at_once = min(most * 2, _LARGEST_CHUNK)
        return entries

    def _position(self, chunk: Chunk, key: bytes, done: int) -> int:
        """Where the key is in the rest of the chunk, or would be."""
        if self._reverse:
            return bisect_left(chunk, True, done, key=lambda pair: pair[0] <= key)
        return bisect_left(chunk, key, done, key=_KEY)


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
