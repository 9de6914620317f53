"""Mutants of what becomes of stores that are found damaged."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

MUTANTS = (
    Mutant(
        "corrupt-stores-go-on-empty",
        OWN,
        "A store that cannot be read is set aside, and the new one has the offset of the old one.",
        (
            Edit(
                "store.recovery.offsets:TaskOffsets.set_aside",
                "self._forget([changelog])",
                "pass",
            ),
            Edit("store.recovery.decision:origin", "    if empty():\n", "    if False:\n"),
        ),
    ),
)
