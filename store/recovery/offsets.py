"""Which changelog offset each store of a task is at, wherever that is kept, and how it moves between the places.

Four ways of keeping an offset (`store.recovery.decision.OffsetKeeping`):

* OWN: the store keeps its offset itself, written with the data (`manages_offsets`), and has no entry in the checkpoint.
* CHECKPOINTED: it is transactional and keeps no offset. Its entry is always there, and follows each commit.
* DIRECT: it is not transactional, so writes are in the database before they are in Kafka. Under exactly once its entry
  is taken out before the first write, and put back at a clean close. Under at-least-once it stays and follows each
  commit, but says from the first write to a clean close that it is not exact.
* VOLATILE: it does not outlive the process. It has no entry, and what a database of that name once had is left alone.

The rule that all of it rests on: *an entry is there only while the data on disk holds every change up to its offset,
and, if it is exact, nothing that the changelog does not hold.* Changes beyond the offset that are in the changelog
do no harm: restoring applies them again, in order, to the same end. So the data is synced before an entry is
written, and an entry is gone or inexact, power-safe, before the data changes in a way that the changelog may never
have. Data without an entry is of no known offset. So is data with an inexact one, when the task is to process
exactly once or the store is to be transactional from then on; a restore does not make it exact again.
`store.recovery.decision` says what is done with it.

| a crash | leaves | who repairs it |
|---|---|---|
| DIRECT, exactly once: after `begin_unclean`, before `close` | data without entry | the next start sets it aside |
| DIRECT, exactly once: in `close`, before the entry is written | the same | the same, needlessly |
| DIRECT, at least once: before `close` | an entry behind the data, not exact | restore applies the rest |
| CHECKPOINTED: after its commit, before the entry | an entry behind the data | restore applies the rest again |
| while a store is restored | entry behind the data, or none and some data | restore goes on, or begins anew |
| OWN with an old entry: before its offset is committed | as before | the next start moves it |
| OWN with an old entry: after that, before the entry is gone | both | its own counts, the entry goes |
| transactions switched off: the store gave its offset up, no entry yet | no offset | set aside, needlessly |
| `set_aside`: after the entry is gone, before the rename | data without entry | the next start sets it aside |
| `set_aside`: after the rename | nothing | restored from the start |

The entry goes first in `set_aside`: left there, it would be taken for the offset of the new, empty store, once that
holds its first record. For the same reason the entry of a store found empty is removed before anything is restored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from store.clock import Clock, SystemClock
from store.engine.protocol import Checkpointed, Storage
from store.errors import StoreCorruptedError
from store.recovery.decision import OffsetKeeping, Origin, origin
from store.state.metered import MeteredStore
from store.state.protocol import StateStore
from store.state.store import EngineStore
from store.types import TopicPartition

_log = logging.getLogger(__name__)
_RECORDS_BETWEEN_ENTRIES = 200_000
"""While restoring: how many records a crash may cost to be applied again."""
_OUTDATED_MS = 6 * 3_600_000
"""How often the entry of a store that does not change is written, so that it is not rebuilt for its age after a crash.
"""


class Keeps(Protocol):
    """What of a store says how it keeps its offset, see `store.state.protocol.StateStore`."""

    def persistent(self) -> bool: ...
    def manages_offsets(self) -> bool: ...
    def transactional(self) -> bool: ...


def offset_keeping(store: Keeps) -> OffsetKeeping:
    """Where the offset of an open store is kept."""
    if not store.persistent():
        return OffsetKeeping.VOLATILE
    if store.manages_offsets():
        return OffsetKeeping.OWN
    return OffsetKeeping.CHECKPOINTED if store.transactional() else OffsetKeeping.DIRECT


def engine_store(store: object) -> EngineStore | None:
    """The store over an engine that this one is, or that it gives types to; None for one with a format of its own."""
    inner = store.inner if isinstance(store, MeteredStore) else store
    return inner if isinstance(inner, EngineStore) else None


def of_another_topic(store: object) -> bool:
    """Whether what a store holds is known to come from another topic than the one that has the name now. What has a
    format of its own does not say."""
    below = engine_store(store)
    return below is not None and below.of_another_topic


def without_changelog(store: object) -> bool:
    """Whether a store is known to hold writes that no changelog has. What has a format of its own does not say."""
    below = engine_store(store)
    return below is not None and below.without_changelog


class TaskOffsets:
    """The offsets of one incarnation of a task, which holds its lock. One thread.

    Raises `StoreIOError` from every call that writes the checkpoint and cannot.
    """

    def __init__(
        self, storage: Storage, task_id: str, clock: Clock | None = None, *, exactly_once: bool = True
    ) -> None:
        """Read the checkpoint. One that cannot be read is set aside with a warning, and its stores are rebuilt."""
        self.task_id = task_id
        self._storage = storage
        self._clock = clock or SystemClock()
        self.exactly_once = exactly_once
        self._held: dict[TopicPartition, Checkpointed] = {}
        """What the stores hold that do not keep their own offsets, at the last commit."""
        self._stores: dict[TopicPartition, StateStore] = {}
        """Stores that are CHECKPOINTED or DIRECT."""
        self._reasons: dict[TopicPartition, str] = {}
        self._since_entry: dict[TopicPartition, int] = {}
        self._in_transaction = False
        self._entries: dict[TopicPartition, Checkpointed] = {}
        """What the file says."""
        try:
            self._entries.update(storage.read_checkpoint(task_id))
        except StoreCorruptedError as error:
            _log.warning(
                "task %s: stores that do not keep their own offsets are rebuilt from their changelogs: %s",
                task_id,
                error,
            )
            # Left there, it might be read again by a version that can, and tell of stores that were rebuilt since.
            storage.write_checkpoint(task_id, {})

    def adopt(self, store: StateStore, changelog: TopicPartition) -> None:
        """Take a store in that was just opened, and move its offset to where this store keeps it."""
        entry = self._entries.get(changelog)
        keeping = offset_keeping(store)
        below = engine_store(store)
        inherited = None if below is None else below.inherited_offsets.get(changelog)
        found, self._reasons[changelog] = origin(
            keeping,
            own=keeping is OffsetKeeping.OWN and store.get_committed_offset(changelog) is not None,
            inherited=inherited is not None,
            entry=entry,
            empty=store.is_empty,
            exactly_once=self.exactly_once,
            recovers=store.recover,
        )
        self._held.pop(changelog, None)
        self._stores.pop(changelog, None)
        if keeping in (OffsetKeeping.CHECKPOINTED, OffsetKeeping.DIRECT):
            self._stores[changelog] = store
        if found is Origin.INHERITED and inherited is not None:
            self._held[changelog] = Checkpointed(inherited, store.last_caught_up_ms(changelog))
            self._write_entries([changelog])
        elif found is Origin.ENTRY and entry is not None and keeping is not OffsetKeeping.OWN:
            self._held[changelog] = entry
        elif keeping is not OffsetKeeping.VOLATILE:
            if found is Origin.ENTRY and entry is not None:
                self._move_in(store, changelog, entry)
            self._forget([changelog])

    def why(self, changelog: TopicPartition) -> str:
        """Why the offset of an adopted store can be believed, or why there is none."""
        return self._reasons.get(changelog, "")

    def known(self, changelog: TopicPartition) -> Checkpointed | None:
        """What a store that does not keep its offset holds; None if that is nothing, or unknown."""
        return self._held.get(changelog)

    def restoring(self, changelog: TopicPartition, at: Checkpointed, records: int) -> None:
        """So many more records of the changelog are in the store, which now is `at`."""
        self._held[changelog] = at
        if changelog in self._stores:
            unwritten = self._since_entry.get(changelog, 0) + records
            self._since_entry[changelog] = unwritten
            if unwritten >= _RECORDS_BETWEEN_ENTRIES:
                self._write_entries([changelog])

    def restored(self, changelog: TopicPartition, at: Checkpointed) -> None:
        """The store has reached the end of the changelog and is `at`."""
        self._held[changelog] = at
        if changelog in self._stores and at != self._entries.get(changelog):
            self._write_entries([changelog])

    def begin_unclean(self) -> None:
        """Stores are about to be written to. Call it before the first write of every transaction."""
        self._in_transaction = True
        if not self._entries or not self._stores:
            return
        direct = self._direct()
        if self.exactly_once:
            self._forget(direct)
        else:
            inexact = {tp: self._entries[tp]._replace(exact=False) for tp in direct if tp in self._entries}
            self._replace({**self._entries, **inexact})

    def committed(self, ends: Mapping[TopicPartition, int], began_ms: int | None = None) -> None:
        """All stores have committed. `ends` has the last offset of each changelog that the transaction wrote to.

        `began_ms`: when the transaction began, up to when the stores are known to have been up to date, in
        milliseconds since the epoch. The clock's time now without it: a process that stood still since then would
        take its stores for younger than they are.
        """
        self._in_transaction = False
        if not self._stores:
            return
        now = max(0, self._clock.time_ms() if began_ms is None else began_ms)
        for tp in self._stores:
            held = self._held.get(tp)
            exact = held is None or held.exact
            if tp in ends:
                self._held[tp] = Checkpointed(ends[tp], now, exact)
            elif held is not None and self.exactly_once:
                # Nobody else can have written to its changelog: without changes it is as young as the commit.
                self._held[tp] = held._replace(last_caught_up_ms=now)
        direct = self._direct()
        self._write_entries(
            [tp for tp in self._stores if tp not in direct and (tp in ends or self._outdated(tp, now))]
        )
        if not self.exactly_once:
            self._write_entries([tp for tp in direct if tp in ends], exact=False)

    def _outdated(self, tp: TopicPartition, now: int) -> bool:
        """Whether the entry of a store without changes makes it look so old that it is worth a write to disk."""
        entry, held = self._entries.get(tp), self._held.get(tp)
        return (
            entry is not None
            and entry.last_caught_up_ms is not None
            and held is not None
            and held.last_caught_up_ms == now
            and now - entry.last_caught_up_ms >= _OUTDATED_MS
        )

    def close(self) -> None:
        """The task ends: before its stores are closed. Entries are written if all that was written is committed."""
        if not self._in_transaction:
            self._write_entries(
                [tp for tp in self._stores if tp in self._held and self._held[tp] != self._entries.get(tp)]
            )
        self._stores = {}

    def set_aside(self, store_name: str, changelog: TopicPartition) -> str | None:
        """Put a closed store out of the way, its entry first. Returns where it went, None if it had left nothing."""
        self._held.pop(changelog, None)
        self._stores.pop(changelog, None)
        self._forget([changelog])
        if not self._storage.exists(self.task_id, store_name):
            return None
        return self._storage.set_aside(self.task_id, store_name)

    def _move_in(self, store: StateStore, changelog: TopicPartition, entry: Checkpointed) -> None:
        if entry.last_caught_up_ms is not None:
            store.set_last_caught_up_ms(changelog, entry.last_caught_up_ms)
        store.commit({changelog: entry.offset})
        store.sync()
        _log.info(
            "store %s of task %s keeps its own offset now: %s of %s, from the checkpoint",
            store.name,
            self.task_id,
            entry.offset,
            changelog,
        )

    def _forget(self, changelogs: list[TopicPartition]) -> None:
        self._replace({tp: entry for tp, entry in self._entries.items() if tp not in changelogs})

    def _direct(self) -> list[TopicPartition]:
        """Changelogs of the stores that are DIRECT."""
        return [tp for tp, store in self._stores.items() if not store.transactional()]

    def _write_entries(self, changelogs: list[TopicPartition], *, exact: bool = True) -> None:
        entries = dict(self._entries)
        for tp in changelogs:
            self._stores[tp].sync()
            self._since_entry[tp] = 0
            held = self._held[tp]
            entries[tp] = held if exact else held._replace(exact=False)
        self._replace(entries)

    def _replace(self, entries: dict[TopicPartition, Checkpointed]) -> None:
        if entries != self._entries:
            self._storage.write_checkpoint(self.task_id, entries)
            self._entries = entries
