"""The caching layer: writes are held back in memory, so that only the last one of a row goes on.

Rows written again and again reach the changelog and the transaction once per commit, or once each time they
have to leave because the cache is full: the row that was used least recently goes first, alone. The cache holds
writes only, never what was read: RocksDB caches reads itself, and nothing that a restore or another owner of
the task changed can then be hidden by an older copy (KAFKA-14172).

Must survive: a changelog that refuses a row in the middle of a flush (that row and those behind it stay in the
cache, to be passed on by the next flush); reads by other threads while the one writer writes, evicts, flushes
and discards; ranges that stay open across all of these; deleted rows, which a range must not return although
the layers below still have them (KAFKA-4283, KAFKA-15302).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from itertools import islice
from threading import Lock
from typing import Final

from sortedcontainers import SortedList

from store.engine.footprint import OBJECT_BYTES
from store.engine.merge import merge
from store.engine.protocol import KeyRange, Pairs, Write
from store.transaction.changelogging import ChangeloggingLayer
from store.transaction.protocol import Transaction

ROW_OVERHEAD = 168
"""Bytes of memory that a cached row takes beyond its key and value: record time, places in two dicts and a list.

That of the tables at their average fill on 64-bit CPython 3.11. A constant, although tables grow in steps, so that
a row that leaves makes room for another one, and the same rows leave on every machine.
"""


class _Absent(Enum):
    ABSENT = 0


_ABSENT: Final = _Absent.ABSENT


class CachingLayer:
    """A `store.transaction.protocol.Transaction` that caches the writes of a `ChangeloggingLayer` or of another one.

    Each row goes on with the record time that it had when it was put. A flush passes rows on in the order of
    their last writes, as Kafka Streams does. Reading a row at READ_UNCOMMITTED is a use of it, by any thread.
    """

    _rows: OrderedDict[bytes, bytes | None]
    """Every row held back, None for a deletion, in the order of their last uses."""
    _times: dict[bytes, int]
    """When each was put, in milliseconds since the epoch, in the order of their last writes."""
    _keys: SortedList | None
    """Their keys in order; made by the first range, so that writes without ranges never pay for it."""
    _num_bytes: int

    def __init__(self, inner: Transaction, max_bytes: int, record_time: Callable[[], int]) -> None:
        """Hold at most `max_bytes`, see `num_cached_bytes`; a row larger than that is passed on at once."""
        self._inner = inner
        self.written = inner.written
        self._pass_on: Callable[[bytes, bytes | None, int | None], None] = (
            inner.put if isinstance(inner, ChangeloggingLayer) else self._pass_on_untimed
        )
        self._max_bytes = max_bytes
        self._record_time = record_time
        self._lock = Lock()
        """Held for moments that call nothing else. Only the writer adds and removes rows; readers move them."""
        self._drops = 0
        """Moves with each row that is dropped. While it stands still, what was held back is as new as what is below, or
        newer."""
        self._clear()

    def resize(self, max_bytes: int) -> None:
        """Hold at most so many bytes from now on. What is too much leaves before the next row that is held back."""
        self._max_bytes = max_bytes

    def tell(self, passed: Callable[[bytes], None], lock: AbstractContextManager[object]) -> None:
        """Have `passed` called with the key of each row that was passed on, with the lock held from before that."""
        pass_on = self._pass_on

        def told(key: bytes, value: bytes | None, time: int | None) -> None:
            with lock:
                pass_on(key, value, time)
                passed(key)

        self._pass_on = told

    def get(self, key: bytes) -> bytes | None:
        rows = self._rows
        value = rows.get(key, _ABSENT)
        if value is _ABSENT:
            return self._inner.get(key)
        with self._lock:
            if key in rows:
                rows.move_to_end(key)
        return value

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs:
        """See `Transaction.scan`. Costs a copy of the cached rows in the range, which `max_bytes` keeps few."""
        while True:
            drops = self._drops
            # The cache comes before the layers below: should another thread flush in between, both have the rows.
            held = self._range(lower, upper, reverse)
            pairs = self._inner.scan(lower, upper, reverse=reverse)
            if self._drops == drops:
                return merge(pairs, (row for row in held), reverse=reverse) if held else pairs
            # Below there may be newer rows than these were, so both are taken anew.
            pairs.close()

    def put(self, key: bytes, value: bytes | None, /) -> None:
        """Hold the row back. Raises what passing on another one raises, and then does not take this one."""
        time = self._record_time()
        size = row_bytes(key, value)
        if size > self._max_bytes:
            self._pass_on(key, value, time)
            if key in self._rows:
                self._forget(key)
            return
        replaced = row_bytes(key, self._rows[key]) if key in self._rows else 0
        while self._num_bytes - replaced + size > self._max_bytes:
            self._evict(key)
        with self._lock:
            if replaced:
                self._rows.move_to_end(key)
                del self._times[key]
            elif self._keys is not None:
                self._keys.add(key)
            self._rows[key] = value
            self._times[key] = time
            self._num_bytes += size - replaced

    def flush_cache(self) -> None:
        """Pass every row on, in the order of the last writes. When it raises, those not passed on stay."""
        passed = 0
        try:
            for key, time in self._times.items():
                self._pass_on(key, self._rows[key], time)
                passed += 1
        except BaseException:
            for key in list(islice(self._times, passed)):
                self._forget(key)
            raise
        self._clear()

    def commit(
        self, meta: Iterable[Write] = (), *, drop: Sequence[KeyRange] = (), sync: bool = False
    ) -> None:
        """See `Transaction.commit`. The cache is flushed first; if that raises, nothing is committed."""
        self.flush_cache()
        self._inner.commit(meta, drop=drop, sync=sync)

    def discard(self) -> None:
        self._clear()
        self._inner.discard()
        self._drops += 1

    def transactional(self) -> bool:
        return self._inner.transactional()

    def approximate_num_uncommitted_bytes(self) -> int:
        """The bytes of the transaction under it; cached rows have a bound of their own, see `num_cached_bytes`."""
        return self._inner.approximate_num_uncommitted_bytes()

    def approximate_num_keys(self) -> int:
        """The estimate of the layers below: whether a cached row is new is not known before it gets there."""
        return self._inner.approximate_num_keys()

    def num_cached_bytes(self) -> int:
        """The bytes of the rows held back, `row_bytes` of each; 0 when there are none. Never more than `max_bytes`, but
        after a resize until the next write.

        Within three tenths of the memory that a hundred rows or more take (as `tracemalloc` measures it): the smaller
        rows are, the more it matters how full their tables are. Tables do not shrink when rows leave one by one, but
        with the next flush.
        """
        return self._num_bytes

    def close(self) -> None:
        """Drop the rows held back: what they stand for is not committed, and their input is read again."""
        self._clear()
        self._inner.close()

    def _pass_on_untimed(self, key: bytes, value: bytes | None, _: int | None) -> None:
        self._inner.put(key, value)

    def _range(
        self, lower: bytes | None, upper: bytes | None, reverse: bool
    ) -> list[tuple[bytes, bytes | None]]:
        with self._lock:
            rows = self._rows
            if self._keys is None:
                # From here until the rows are cleared, every write keeps the list up to date.
                self._keys = SortedList(self._times)
            return [(key, rows[key]) for key in self._keys.irange(lower, upper, (True, False), reverse)]

    def _evict(self, kept: bytes) -> None:
        """Pass on and drop the row that was used least recently, unless it is `kept`, then the next one."""
        with self._lock:
            oldest = next(key for key in self._rows if key != kept)
        self._pass_on(oldest, self._rows[oldest], self._times[oldest])
        self._forget(oldest)

    def _forget(self, key: bytes) -> None:
        """Drop a row, once the layers below have it: a reader finds it here or there at any moment."""
        with self._lock:
            self._drops += 1
            self._num_bytes -= row_bytes(key, self._rows.pop(key))
            del self._times[key]
            if self._keys is not None:
                self._keys.remove(key)

    def _clear(self) -> None:
        with self._lock:
            self._drops += 1
            self._rows = OrderedDict()
            self._times = {}
            self._keys = None
            self._num_bytes = 0


def row_bytes(key: bytes, value: bytes | None) -> int:
    """The bytes that a row has in the bound of a cache; a value of less than two bytes is no object of its own."""
    of_value = 0 if value is None or len(value) < 2 else OBJECT_BYTES + len(value)
    return ROW_OVERHEAD + OBJECT_BYTES + len(key) + of_value
