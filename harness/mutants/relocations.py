"""Mutants of what a start does whose sub-topologies have other ordinals than before."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_RELOCATION = "store.recovery.relocation:_Relocation"
_FENCE = "store.streams.ordinals:fence_former"

MUTANTS = (
    Mutant(
        "a-store-moves-without-its-entry",
        OWN,
        "The offset of a store that keeps none itself stays out of the checkpoint of its new task.",
        (
            Edit(
                f"{_RELOCATION}._apply",
                "                    self._edit(edit, add=True)\n",
                "                    pass\n",
            ),
        ),
    ),
    Mutant(
        "a-move-that-was-broken-off-is-forgotten",
        OWN,
        "A start that finds the journal of another one removes it, and plans anew from what lies there.",
        (Edit(f"{_RELOCATION}.run", "self._apply(begun)", "self._remove_journal()"),),
    ),
    Mutant(
        "the-notes-of-ordinals-stay",
        OWN,
        "Stores are moved, and what is noted of the ordinals on the disk speaks of the former sub-topologies.",
        (
            Edit(
                f"{_RELOCATION}._apply",
                "self._directory.remember(note.ordinal, note.after, instead_of=note.before)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "the-stream-time-stays-with-the-former-ordinal",
        OWN,
        "Who takes positions over from a former ordinal forgets the times that are noted beside them.",
        (
            Edit(
                _FENCE,
                "_NOTED.sub(note(topology.ordinal), said, count=1)",
                "note(topology.ordinal)",
            ),
        ),
    ),
    Mutant(
        "stores-stay-where-they-are",
        OWN,
        "Nothing is moved: the stores of sub-topologies with other ordinals are restored from their changelogs.",
        (Edit("store.recovery.relocation:moves_of", "if last.ordinal != there:", "if False:"),),
    ),
)
