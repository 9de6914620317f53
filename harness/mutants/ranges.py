"""Mutants of key-value and list-value stores, of both mechanisms under them, and of the merge of ranges."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_MERGING = "store.engine.merge:Merging"
_BATCH = "store.transaction.indexed_batch:_Batch"
_INDEXED = "store.transaction.indexed_batch:IndexedBatchTransaction"
_SECONDARY = "store.transaction.secondary:SecondaryTransaction"
_KEY_VALUE = "store.state.keyvalue:KeyValueStore"
_READS = "store.state.keyvalue:ReadOnlyKeyValueStore"

MUTANTS = (
    Mutant(
        "windows-end-one-too-late",
        OWN,
        "Windows of a range are said to end a millisecond later than they do.",
        (
            Edit(
                "store.state.window:WindowStore._windowed",
                "Window(start, min(start + size, LATEST))",
                "Window(start, min(start + size + 1, LATEST))",
            ),
        ),
    ),
    Mutant(
        "deleted-keys-in-ranges",
        "KAFKA-4283",
        "Ranges show keys that the open transaction has deleted.",
        (
            Edit(
                f"{_INDEXED}.scan",
                "reverse=reverse, overlay=overlay)",
                "reverse=reverse, overlay=(pair for pair in overlay if pair[1] is not None))",
            ),
        ),
    ),
    Mutant(
        "backward-ranges-end-with-the-committed-rows",
        OWN,
        "A range that is read backward ends with the last committed row, whatever uncommitted ones follow.",
        (
            Edit(
                f"{_MERGING}.parts",
                "chunk[-1][0] if more else None",
                '(chunk[-1][0] if chunk else b"\\xff" * 64) if more or self._reverse else None',
            ),
        ),
    ),
    Mutant(
        "ranges-prefer-committed-rows",
        OWN,
        "A range shows the committed value of a row that the open transaction has replaced.",
        (
            Edit(
                f"{_MERGING}._put_into",
                "chunk[at] = key, value",
                "pass",
            ),
        ),
    ),
    Mutant(
        "open-iterators-see-later-writes",
        "KAFKA-15302",
        "An open iterator shows what was written after it was opened.",
        (Edit(f"{_BATCH}.put", "self._note(key)", "pass"),),
    ),
    Mutant(
        "second-open-iterator-sees-later-writes",
        OWN,
        "Of several open iterators only the first one keeps its view.",
        (Edit(f"{_BATCH}._note", "tuple(self._notes.values())", "tuple(self._notes.values())[:1]"),),
    ),
    Mutant(
        "range-repeats-at-chunks",
        OWN,
        "A range of more uncommitted rows than are fetched at once repeats one of them.",
        (Edit(f"{_BATCH}._range", "(False, inclusive[1])", "(True, inclusive[1])"),),
    ),
    Mutant(
        "writes-bypass-the-transaction",
        "KAFKA-7192",
        "Uncommitted writes reach the database, and a crash does not roll them back.",
        (
            Edit(
                f"{_KEY_VALUE}.put",
                "        self._rows.put(key, value)\n",
                "        self._rows.put(key, value)\n"
                "        from store.engine import Family\n"
                "        self._engine.write([(Family.DATA, key, value)])\n",
            ),
        ),
    ),
    Mutant(
        "secondary-commit-loses-deletions",
        OWN,
        "A commit of the secondary mechanism does not have the deletions.",
        (
            Edit(
                f"{_SECONDARY}._writes",
                "yield Family.DATA, key, flagged[1:] if flagged[0] else None",
                "yield from [(Family.DATA, key, flagged[1:])] if flagged[0] else []",
            ),
        ),
    ),
    Mutant(
        "secondary-commit-loses-offsets",
        "KAFKA-20749",
        "A commit of the secondary mechanism has the rows, and not the offsets that belong to them.",
        (Edit(f"{_SECONDARY}._writes", "yield family, key, rows[family, key]", "continue"),),
    ),
    Mutant(
        "secondary-outlives-an-abort",
        OWN,
        "The second database keeps the writes of an aborted transaction.",
        (Edit(f"{_SECONDARY}.discard", "self._begin()", "pass"),),
    ),
    Mutant(
        "secondary-marker-staged-and-forgotten",
        "KAFKA-20753",
        "A commit of the secondary mechanism is staged, and never applied.",
        (Edit(f"{_SECONDARY}.commit", "self._engine.apply_staged(drop=drop)", "pass"),),
    ),
    Mutant(
        "secondary-backward-ranges-miss-uncommitted-rows",
        OWN,
        "A range of the secondary mechanism that is read backward has only what is committed.",
        (Edit(f"{_SECONDARY}.scan", "if not self._written:", "if reverse or not self._written:"),),
    ),
    Mutant(
        "upper-bound-left-out",
        OWN,
        "A range does not have the key that is its upper bound.",
        (Edit(f"{_READS}._range", 'upper + b"\\0"', "upper"),),
    ),
    Mutant(
        "prefix-scan-runs-on",
        OWN,
        "A scan of a prefix goes on behind the keys that have it.",
        (Edit(f"{_READS}.prefix_scan", "prefix_end(prefix)", "None"),),
    ),
    Mutant(
        "put-if-absent-replaces",
        OWN,
        "A value that was there is replaced by one that is only to be put where there is none.",
        (Edit(f"{_KEY_VALUE}.put_if_absent", "if present is None:", "if True:"),),
    ),
    Mutant(
        "restored-rows-lose-their-time",
        OWN,
        "Restoring a store with timestamps keeps the time of the restore's first record for all.",
        (
            Edit(
                f"{_KEY_VALUE}.restore_batch",
                "row(record)) for record in records if record.key is not None]",
                "row(record._replace(timestamp=records[0].timestamp))) for record in records "
                "if record.key is not None]",
            ),
        ),
    ),
    Mutant(
        "lists-read-backward-keep-their-order",
        OWN,
        "A range of a list-value store that is read backward has the values of each key forward.",
        (
            Edit(
                "store.state.listvalue:_flattened",
                "reversed(values) if reverse else values",
                "values",
            ),
        ),
    ),
    Mutant(
        "restored-lists-are-never-deleted",
        "KAFKA-8446",
        "Restoring a list-value store skips the deletions of lists.",
        (
            Edit(
                "store.state.listvalue:ListValueStore._restore_record",
                "rows.put(record.key, record.value)",
                "record.value is None or rows.put(record.key, record.value)",
            ),
        ),
    ),
    Mutant(
        "lists-grow-from-the-committed-one",
        OWN,
        "A value is appended to the committed list of its key, and not to what was put since.",
        (
            Edit(
                "store.state.listvalue:ListValueStore.put",
                "row = self._rows.get(key)",
                "row = self._transaction._engine.get(__import__('store.engine').engine.Family.DATA, key)",
            ),
        ),
    ),
    Mutant(
        "open-iterators-see-the-second-write",
        OWN,
        "What an open iterator has noted of a row is replaced when the row is written for a second time.",
        (Edit(f"{_BATCH}._note", "notes.setdefault(key, entry)", "notes[key] = entry"),),
    ),
    Mutant(
        "prefix-ending-in-ff",
        OWN,
        "A scan of a prefix that ends with the highest byte fails.",
        (
            Edit(
                "store.state.keyvalue:prefix_end",
                'prefix.rstrip(b"\\xff")',
                'prefix[:-1] if prefix.endswith(b"\\xff") and len(prefix) > 4 else prefix.rstrip(b"\\xff")',
            ),
        ),
    ),
    Mutant(
        "a-backward-range-without-an-end-has-no-beginning",
        OWN,
        "A range without an upper bound that is read backward goes on below its lower one.",
        (
            Edit(
                "store.state.keyvalue:ReadOnlyKeyValueStore._range",
                "return self._iterator(lower, None, reverse=reverse)",
                "return self._iterator(None if reverse else lower, None, reverse=reverse)",
            ),
        ),
    ),
    Mutant(
        "the-last-row-of-a-chunk-comes-twice",
        OWN,
        "A range shows the committed value of the last row of a chunk, and the uncommitted one behind it.",
        (
            Edit(
                f"{_MERGING}._until",
                "(newer[0] >= end if reverse else newer[0] <= end)",
                "(newer[0] > end if reverse else newer[0] < end)",
            ),
        ),
    ),
    Mutant(
        "of-two-pairs-of-one-key-the-first-stays",
        OWN,
        "Of two pairs of one key in one call it is the first that is kept.",
        (
            Edit(
                "store.state.metered:MeteredKeyValueStore.put_all",
                "for key, value in pairs]",
                "for key, value in dict(reversed(list(pairs))).items()]",
            ),
        ),
    ),
    Mutant(
        "backward-ranges-lose-the-row-at-their-lower-bound",
        OWN,
        "A backward range of more uncommitted rows than are fetched at once lacks the one at its lower bound.",
        (
            Edit(
                f"{_BATCH}._range",
                "upper, inclusive = chunk[-1], (inclusive[0], False)",
                "upper, inclusive = chunk[-1], (False, False)",
            ),
        ),
    ),
    Mutant(
        "a-row-behind-a-deleted-one-comes-twice",
        OWN,
        "An uncommitted row right behind a deletion comes beside what is committed of it.",
        (Edit(f"{_MERGING}._put_into", "done = at + (value is not None)", "done = at + 1"),),
    ),
)
