"""Mutants of queries: isolation of each type of store, position bounds, and the order of what they return."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_TYPES = {
    "key-value": ("store.state.keyvalue:KeyValueStore.view", "ReadOnlyKeyValueStore"),
    "list": ("store.state.listvalue:ListValueStore.view", "ReadOnlyListValueStore"),
    "window": ("store.state.window:WindowStore.view", "ReadOnlyWindowStore"),
    "session": ("store.state.session:SessionStore.view", "ReadOnlySessionStore"),
    "version": ("store.state.versioned:VersionedKeyValueStore.view", "ReadOnlyVersionedKeyValueStore"),
}

MUTANTS = (
    *(
        Mutant(
            f"uncommitted-{kind}-rows-in-queries",
            "KAFKA-20497",
            f"A query of a {kind} store at READ_COMMITTED sees uncommitted rows.",
            (Edit(target, "self._reads_at(isolation, snapshot)", "self._rows"),),
            oracle="queries",
        )
        for kind, (target, _) in _TYPES.items()
    ),
    Mutant(
        "queries-read-the-cache",
        "KAFKA-20497",
        "A query at READ_COMMITTED reads the cache of a store that has one.",
        (
            Edit(
                "store.state.store:EngineStore._reads_at",
                "if isolation is IsolationLevel.READ_COMMITTED:",
                "if isolation is IsolationLevel.READ_COMMITTED and not isinstance(self._rows, CachingLayer):",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "uncommitted-queries-see-the-last-commit",
        OWN,
        "A query at READ_UNCOMMITTED sees what is committed.",
        (
            Edit(
                "store.state.store:EngineStore._reads_at",
                "if isolation is IsolationLevel.READ_COMMITTED:",
                "if True:",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "position-bound-ignored",
        OWN,
        "A query is answered by a store that has not come as far as asked.",
        (Edit("store.query.answer:_answer", "    if missing:\n", "    if False:\n"),),
        oracle="queries",
    ),
    Mutant(
        "position-bound-one-too-low",
        OWN,
        "A query is answered by a store that lacks the last record asked for.",
        (
            Edit(
                "store.query.position:PositionBound.missing",
                "reached.get(tp, -1) < offset",
                "reached.get(tp, -1) < offset - 1",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "merged-positions-go-back",
        OWN,
        "A position that is merged with an earlier one is the earlier one.",
        (
            Edit(
                "store.query.position:Position.merge",
                "max(offset, merged.get(tp, offset))",
                "offset",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "uncommitted-position-behind-its-data",
        OWN,
        "An answer at READ_UNCOMMITTED has the position of the last commit.",
        (
            Edit(
                "store.query.answer:_uncommitted_position",
                "{**store.position(), **reached}",
                "store.position()",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "uncommitted-position-behind-its-data-in-a-commit",
        OWN,
        "An answer at READ_UNCOMMITTED has the position of the last commit while Kafka has the next one and the stores "
        "have not.",
        (
            Edit(
                "store.streams.task:Task._open_store",
                "_last_records(dict(self._positions))",
                "_last_records({} if self._state is _State.MUST_CLOSE else dict(self._positions))",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "committed-position-ahead-of-its-data",
        "KAFKA-13249",
        "An answer at READ_COMMITTED has the position of what is processed and not committed.",
        (
            Edit(
                "store.query.answer:_ask",
                "position = Position(inner.position(snapshot))",
                "position = _uncommitted_position(inner)",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "position-of-another-moment-than-the-rows",
        OWN,
        "An answer at READ_COMMITTED has the position of the last commit, and the rows of the one at its snapshot.",
        (Edit("store.query.answer:_ask", "inner.position(snapshot)", "inner.position()"),),
        oracle="queries",
    ),
    Mutant(
        "rows-of-another-moment-than-the-position",
        OWN,
        "An answer at READ_COMMITTED has the rows of the last commit, and the position of the one at its snapshot.",
        (
            Edit(
                "store.query.answer:_ask",
                "store.view(isolation, snapshot), timestamped, snapshot.close",
                "store.view(isolation), timestamped, snapshot.close",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "readers-elsewhere-stand-still",
        OWN,
        "Another process that reads a store goes on seeing the commit at which it began.",
        (Edit("store.query.reader:_Followed.refreshed", "self._reader.refresh()", "pass"),),
        files=True,
        oracle="queries",
    ),
    Mutant(
        "backward-queries-come-forward",
        OWN,
        "A range that a query asks for backward comes forward.",
        (
            Edit(
                "store.query.views:_range",
                "asked.view.range if query.ascending else asked.view.reverse_range",
                "asked.view.range",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "expiry-at-the-last-commit-without-transactions",
        OWN,
        "A query at READ_COMMITTED of a store without transactions sees all rows, and expires them by the last commit.",
        (
            Edit(
                "store.state.segments:SegmentedReads._stream_time",
                "max(committed, view.stream_time if isinstance(view, _SnapshotAt) else store._time_there())",
                "committed",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "position-bound-of-another-partition",
        OWN,
        "A store is held to the part of a bound that concerns another partition.",
        (
            Edit(
                "store.query.position:PositionBound.missing",
                "(partition is None or tp.partition == partition) and ",
                "",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "time-in-plain-answers",
        OWN,
        "A query of one key for the value alone gets the value with its time.",
        (
            Edit(
                "store.query.views:Asked.without_time",
                "return value.value if self.timestamped and isinstance(value, ValueAndTimestamp) else value",
                "return value",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "times-in-plain-ranges",
        OWN,
        "A query of a range for the values alone gets them with their times.",
        (
            Edit(
                "store.query.views:_of_key_value",
                "return _KEY_VALUE.get(type(query))",
                "plain = type(query) is RangeQuery and asked.timestamped\n"
                "    return _KEY_VALUE.get(TimestampedRangeQuery if plain else type(query))",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "all-partitions-are-the-first",
        OWN,
        "A query that names no partition is answered by the first one that is here.",
        (
            Edit(
                "store.query.answer:query_all",
                "sorted(stores) if partitions is None",
                "sorted(stores)[:1] if partitions is None",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "snapshots-of-queries-stay",
        OWN,
        "A query at READ_COMMITTED of a single value leaves its snapshot open.",
        (
            Edit(
                "store.query.answer:_ask",
                "held = isinstance(result.value, QueryIterator)",
                "held = True",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "the-default-isolation-is-ignored",
        OWN,
        "Queries that say no isolation level see what is uncommitted, whatever the configuration says.",
        (
            Edit(
                "store.streams.task:Task._open_store",
                "            isolation=config.default_state_isolation_level,\n",
                "",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "read-committed-is-answered-uncommitted",
        OWN,
        "A query that asks for what is committed is answered as if it had asked for all, position and rows alike.",
        (
            Edit(
                "store.query.answer:query",
                "level = inner.context.isolation if isolation is None else isolation",
                "level = IsolationLevel.READ_UNCOMMITTED",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "rewritten-keys-count-twice",
        OWN,
        "The number of entries of a store counts each uncommitted write as a new key.",
        (
            Edit(
                "store.transaction.indexed_batch:IndexedBatchTransaction.approximate_num_keys",
                "growth(self._engine, list(batch.entries.items()))",
                "len(batch.entries)",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "one-reader-is-not-kept-from-the-writer",
        OWN,
        "A single snapshot in memory is changed by commits, and two keep their view.",
        (Edit("store.engine.memory:_Contents.writable", "if not self._readers:", "if self._readers < 2:"),),
    ),
    Mutant(
        "ranges-without-an-upper-bound-begin-anywhere",
        OWN,
        "A query of a range with a lower bound alone has all rows.",
        (
            Edit(
                "store.query.views:_range",
                "return read(query.lower, query.upper)",
                "return read(None if query.upper is None else query.lower, query.upper)",
            ),
        ),
        oracle="queries",
    ),
)
