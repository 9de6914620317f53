"""Mutants of the offsets that a checkpoint file keeps for stores that do not keep their own."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_OFFSETS = "store.recovery.offsets:TaskOffsets"

MUTANTS = (
    Mutant(
        "the-interval-between-syncs-is-in-seconds",
        OWN,
        "A thousand times as much is committed before a commit is made power-safe as the setting says.",
        (
            Edit(
                "store.state.store:EngineStore._sync_due",
                "(now - self._last_sync) * 1000 < interval",
                "now - self._last_sync < interval",
            ),
        ),
        oracle="state",
    ),
    Mutant(
        "entry-written-before-the-data",
        "KAFKA-5474",
        "The checkpoint speaks of data that is not on the disk yet.",
        (Edit(f"{_OFFSETS}._write_entries", "self._stores[tp].sync()", "pass"),),
    ),
    Mutant(
        "entry-stays-while-data-changes",
        "KAFKA-7192",
        "A store without transactions keeps its entry while it is written to, so a crash does not show.",
        (Edit(f"{_OFFSETS}.begin_unclean", "self._forget(direct)", "pass"),),
    ),
    Mutant(
        "entry-outlives-its-store",
        "KAFKA-10391",
        "The offset of a store that was set aside stays in the checkpoint, and is believed of the new one.",
        (
            Edit(f"{_OFFSETS}.set_aside", "self._forget([changelog])", "pass"),
            # Either guard alone is enough.
            Edit("store.recovery.decision:origin", "    if empty():\n", "    if False:\n"),
        ),
    ),
    Mutant(
        "inexact-entry-believed",
        OWN,
        "Under exactly once a store is believed that ran under at least once and crashed.",
        (
            Edit(
                "store.recovery.decision:origin",
                "if not entry.exact and (exactly_once or keeping is OffsetKeeping.OWN):",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "entry-from-stale-offsets",
        "KAFKA-13249",
        "The checkpoint at a clean close has the offsets of the start.",
        (
            Edit(
                f"{_OFFSETS}.committed",
                "            if tp in ends:\n",
                "            if tp in ends and held is None:\n",
            ),
        ),
    ),
    Mutant(
        "no-entry-at-a-clean-close",
        "KAFKA-10166",
        "A clean close writes no checkpoint, so every start sets the store aside.",
        (Edit(f"{_OFFSETS}.close", "if not self._in_transaction:", "if False:"),),
        oracle="restore",
    ),
    Mutant(
        "entry-at-an-unclean-close",
        OWN,
        "A close in the middle of a transaction writes the checkpoint.",
        (Edit(f"{_OFFSETS}.close", "if not self._in_transaction:", "if True:"),),
    ),
    Mutant(
        "entry-one-too-far",
        "Faust-streaming#158",
        "The entry of a commit is one offset further than the last record.",
        (
            Edit(
                f"{_OFFSETS}.committed",
                "Checkpointed(ends[tp], now, exact)",
                "Checkpointed(ends[tp] + 1, now, exact)",
            ),
        ),
    ),
    Mutant(
        "given-up-offset-believed-again",
        OWN,
        "A store whose transactions are switched off keeps the offset that it had with them.",
        (
            Edit(
                "store.state.store:EngineStore._inherit",
                "        if kept:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "entries-of-other-stores-dropped",
        OWN,
        "Writing the entry of one store takes those of the others out.",
        (Edit(f"{_OFFSETS}._write_entries", "entries = dict(self._entries)", "entries = {}"),),
        oracle="restore",
    ),
    Mutant(
        "entry-stays-exact-at-least-once",
        OWN,
        "Under at least once an entry goes on saying that it is exact while its store is written to.",
        (Edit(f"{_OFFSETS}.begin_unclean", "_replace(exact=False)", "_replace(exact=True)"),),
        oracle="restore",
    ),
    Mutant(
        "entry-becomes-exact-with-the-next-commit",
        OWN,
        "Under at least once a commit makes an entry exact that was not, and a clean close writes it so.",
        (
            Edit(
                f"{_OFFSETS}.committed",
                "exact = held is None or held.exact",
                "exact = True",
            ),
        ),
        oracle="restore",
    ),
    Mutant(
        "entry-of-another-changelog",
        OWN,
        "Each store gets the offset of that changelog which ends last.",
        (
            Edit(
                f"{_OFFSETS}.committed",
                "Checkpointed(ends[tp], now, exact)",
                "Checkpointed(max(ends.values()), now, exact)",
            ),
        ),
    ),
    Mutant(
        "only-the-first-entry-is-taken-out",
        OWN,
        "Of several stores without transactions only the first one loses its entry before it is written to.",
        (Edit(f"{_OFFSETS}.begin_unclean", "self._forget(direct)", "self._forget(direct[:1])"),),
        oracle="restore",
    ),
    Mutant(
        "the-entry-of-a-store-that-is-gone-stays",
        OWN,
        "The checkpoint keeps what it says of a store that was found empty, while that is restored from the start.",
        (
            Edit(
                "store.recovery.offsets:TaskOffsets.adopt",
                "                self._move_in(store, changelog, entry)\n            self._forget([changelog])\n",
                "                self._move_in(store, changelog, entry)\n                self._forget([changelog])\n",
            ),
        ),
    ),
)
