"""Mutants that take keys and values for less than any bytes: empty ones, those that begin with 255, rows of lists."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

MUTANTS = (
    Mutant(
        "keys-of-255-are-not-escaped-in-bulk",
        OWN,
        "A RocksDB commit of several rows and no deletion does not escape keys that begin with 255.",
        (
            Edit(
                "store.engine.rocksdb:_put_all",
                "if len(keys) > 1 and keys[-1] < _RESERVED and None not in data.values():",
                "if len(keys) > 1 and None not in data.values():",
            ),
        ),
        files=True,
    ),
    Mutant(
        "an-empty-value-is-absent-to-an-offer",
        OWN,
        "An empty value counts as none in `put_if_absent`, which replaces it.",
        (
            Edit(
                "store.state.keyvalue:KeyValueStore.put_if_absent",
                "if present is None:",
                "if not present:",
            ),
        ),
    ),
    Mutant(
        "an-empty-value-is-restored-as-a-deletion",
        OWN,
        "A changelog record with an empty value deletes its key when it is restored.",
        (
            Edit(
                "store.state.keyvalue:KeyValueStore.restore_batch",
                "(Family.DATA, record.key, record.value) for record",
                "(Family.DATA, record.key, record.value or None) for record",
            ),
        ),
    ),
    Mutant(
        "an-empty-value-is-uncommitted-as-a-deletion",
        OWN,
        "A range over the uncommitted writes of the secondary mechanism takes an empty value for a deletion.",
        (
            Edit(
                "store.transaction.secondary:_overlay",
                "yield key, value[1:] if value[0] else None",
                "yield key, value[1:] or None",
            ),
        ),
    ),
    Mutant(
        "lists-are-backward-by-key-alone",
        OWN,
        "A descending range of a list store with bounds gives the values of each key as they were put.",
        (
            Edit(
                "store.state.listvalue:ReadOnlyListValueStore.reverse_range",
                "self._flat(self._lists.reverse_range(lower, upper), reverse=True)",
                "self._flat(self._lists.reverse_range(lower, upper), reverse=False)",
            ),
        ),
    ),
    Mutant(
        "what-was-peeked-at-comes-last",
        OWN,
        "A pair that was peeked at within a loop over an iterator comes after all others.",
        (
            Edit(
                "store.state.iterator:StoreIterator.__iter__",
                "                if self._head is not None or not store._open:\n",
                "                if not store._open:\n",
            ),
        ),
    ),
    Mutant(
        "an-empty-value-is-absent-until-its-secondary-commit",
        OWN,
        "An uncommitted empty value of the secondary mechanism is none to who asks for its key.",
        (
            Edit(
                "store.transaction.secondary:SecondaryTransaction.get",
                "return flagged[1:] if flagged[0] else None",
                "return flagged[1:] or None",
            ),
        ),
    ),
)
