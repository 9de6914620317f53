"""The changelogging layer: every write goes to the changelog first, then to the transaction under it.

One implementation serves every store type, because all of them are rows of ordered bytes; `to_record` turns a
row into what its changelog record holds. Must survive: a changelog that refuses a record (the store then does
not keep the write, so what it kept is always in the changelog).
"""

from __future__ import annotations

from collections.abc import Callable

from store.state.protocol import LogChange
from store.transaction.protocol import Transaction

ToRecord = Callable[[bytes, bytes | None], tuple[bytes, bytes | None, int | None]]
"""Row key and value → key, value and time of the changelog record; a time of None is that of the input record."""


class ChangeloggingLayer:
    """A `store.transaction.protocol.Transaction` whose writes are logged; all but `put` is the inner one's."""

    def __init__(self, inner: Transaction, log_change: LogChange, to_record: ToRecord | None = None) -> None:
        """Without `to_record` rows are logged as they are."""
        self._inner = inner
        self.written = inner.written
        self._log_change = log_change
        self._to_record = to_record
        self.get = inner.get
        self.scan = inner.scan
        self.flush_cache = inner.flush_cache
        self.commit = inner.commit
        self.discard = inner.discard
        self.transactional = inner.transactional
        self.approximate_num_uncommitted_bytes = inner.approximate_num_uncommitted_bytes
        self.approximate_num_keys = inner.approximate_num_keys
        self.close = inner.close

    def put(self, key: bytes, value: bytes | None, timestamp: int | None = None, /) -> None:
        """Log the row and write it; `timestamp` is the time of the input record if that is not the current one.

        A row that carries a time of its own is logged with that.
        """
        if self._to_record is None:
            self._log_change(key, value, timestamp)
        else:
            logged_key, logged_value, own = self._to_record(key, value)
            self._log_change(logged_key, logged_value, timestamp if own is None else own)
        self._inner.put(key, value)
