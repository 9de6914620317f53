"""Two sources as one, the newer of which may delete what the older has: a range, and the number of keys."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from store.engine.protocol import Family, Pairs, View

Overlay = Generator[tuple[bytes, bytes | None], None, None]
"""Pairs in which a value of None says that the key is deleted."""


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
    try:
        yield b"", b""
        newer = next(overlay, None)
        if newer is None:
            yield from base
            return
        limit, value = newer
        for pair in base:
            key = pair[0]
            if key > limit if reverse else key < limit:
                yield pair
                continue
            while key != limit and (limit > key if reverse else limit < key):
                if value is not None:
                    yield limit, value
                newer = next(overlay, None)
                if newer is None:
                    yield pair
                    yield from base
                    return
                limit, value = newer
            if key != limit:
                yield pair
                continue
            if value is not None:
                yield key, value
            newer = next(overlay, None)
            if newer is None:
                yield from base
                return
            limit, value = newer
        while newer is not None:
            if newer[1] is not None:
                yield newer[0], newer[1]
            newer = next(overlay, None)
    finally:
        base.close()
        overlay.close()
