"""Mutants of restoring, and of the decision what is done with a store that was found."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_RESTORE = "store.recovery.restore"
_DECIDE = "store.recovery.decision:decide"

MUTANTS = (
    Mutant(
        "restored-with-a-time-that-is-to-come",
        OWN,
        "A restore that finds the store at the end leaves the time that a clock ahead has noted.",
        (Edit("store.recovery.restore:Place.outdated", "abs(now_ms - time)", "(now_ms - time)"),),
        oracle="clocks",
    ),
    Mutant(
        "restore-drops-deletions",
        "KAFKA-8446",
        "Restoring skips records without a value, so deleted keys come back.",
        (
            Edit(
                "store.state.keyvalue:KeyValueStore.restore_batch",
                "        self._begin_restore(records)\n",
                "        self._begin_restore(records)\n"
                "        records = [record for record in records if record.value is not None]\n",
            ),
        ),
    ),
    Mutant(
        "restore-ends-after-a-batch",
        OWN,
        "Restoring ends with its first batch.",
        (
            Edit(
                f"{_RESTORE}:restore",
                "        total += len(fetch.records)\n",
                "        total += len(fetch.records)\n        if total:\n            break\n",
            ),
        ),
    ),
    Mutant(
        "what-was-of-no-commit-is-taken-for-lost",
        OWN,
        "A store is rebuilt where retention has taken aborted records behind its offset.",
        (
            Edit(
                "store.recovery.decision:decide",
                "if last is not None and held.offset >= last:",
                "if last is not None and held.offset > last:",
            ),
        ),
    ),
    Mutant(
        "restore-starts-over",
        "KAFKA-20753",
        "Every start replays the whole changelog over what is there.",
        (
            Edit(
                f"{_RESTORE}:restore",
                "    start = decision.first_offset()\n",
                "    start = bounds.earliest\n",
            ),
        ),
        oracle="restore",
    ),
    Mutant(
        "a-log-cut-under-a-restore-is-gone-on-with",
        OWN,
        "A restore behind which retention has cut the log goes on where that begins now.",
        (
            Edit(
                f"{_RESTORE}:restore",
                "place.position = decide_at(bounds).first_offset()",
                "place.position = bounds.earliest",
            ),
        ),
        oracle="restore",
    ),
    Mutant(
        "restored-stores-keep-their-positions",
        OWN,
        "A restored store that knows all its inputs keeps the position that it had before the restore.",
        (
            Edit(
                "store.streams.task:Task._restore",
                "if held[name] != position",
                "if held[name].keys() != position.keys()",
            ),
        ),
    ),
    Mutant(
        "restore-reads-uncommitted",
        OWN,
        "Restoring applies the records of aborted transactions.",
        (
            Edit(
                f"{_RESTORE}:_read",
                "batch, IsolationLevel.READ_COMMITTED",
                "batch, IsolationLevel.READ_UNCOMMITTED",
            ),
        ),
    ),
    Mutant(
        "restore-does-not-wait-for-markers",
        "KAFKA-6269",
        "Restoring ends at the last stable offset, though an acknowledged commit lies behind it.",
        (
            Edit(
                f"{_RESTORE}:_settled_bounds",
                "stable if stable.end >= end else None",
                "stable",
            ),
        ),
    ),
    Mutant(
        "restore-stuck-at-a-control-record",
        "KAFKA-20876",
        "Restoring waits for a record where only the marker of a transaction is left.",
        (
            Edit(
                f"{_RESTORE}:_read",
                "fetch if fetch.next_offset > position else None",
                "fetch if fetch.records else None",
            ),
        ),
    ),
    Mutant(
        "restored-offset-one-too-far",
        "Faust-streaming#155",
        "The offset that a restored batch is kept with is that of the next record.",
        (
            Edit(
                f"{_RESTORE}:Place.take",
                "last = fetch.records[-1].offset",
                "last = fetch.next_offset",
            ),
        ),
    ),
    Mutant(
        "restored-batches-lose-their-offset",
        OWN,
        "A restored batch is kept without the offset that it reaches.",
        (
            Edit(
                "store.state.store:EngineStore._offset_rows",
                "metadata.rows(Kind.OFFSET, offsets) if self._manages_offsets else []",
                "metadata.rows(Kind.OFFSET, offsets) if self._manages_offsets and self._now else []",
            ),
        ),
    ),
    Mutant(
        "long-absence-not-noticed",
        OWN,
        "A store that was away while deletions were compacted away goes on.",
        (Edit(_DECIDE, "if missed_deletions(age_ms, retention):", "if False:"),),
    ),
    Mutant(
        "strange-data-is-restored-over",
        "KAFKA-7192",
        "A store with data and without an offset is restored over what is there.",
        (Edit(_DECIDE, "        if known.strange():\n", "        if False:\n"),),
    ),
    Mutant(
        "early-stop-counts-as-caught-up",
        OWN,
        "A store counts as up to date from its first restored batch on.",
        (
            Edit(
                f"{_RESTORE}:Place.take",
                "self.committed = before._replace(offset=last)",
                "self.committed = before._replace(offset=last, last_caught_up_ms=began)\n"
                "        self._keep_time(began)",
            ),
        ),
    ),
    Mutant(
        "replays-from-the-start",
        OWN,
        "A restore reads its changelog from the beginning, whatever the store holds.",
        (
            Edit(
                f"{_RESTORE}:restore",
                "    place.begin(start, bounds)\n",
                "    place.begin(bounds.earliest, bounds)\n",
            ),
        ),
        oracle="restore",
    ),
    Mutant(
        "age-by-the-default-of-kafka",
        OWN,
        "How long deletions stay is taken from Kafka's default, not from the changelog's setting.",
        (
            Edit(
                _DECIDE,
                "    retention = known.tombstone_retention_ms()\n",
                "    retention = 86_400_000 if known.tombstone_retention_ms() else None\n",
            ),
        ),
        oracle="restore",
    ),
    Mutant(
        "caught-up-and-not-written-down",
        OWN,
        "A restore that has reached the end leaves the time at which the store was up to date as it was.",
        (Edit(f"{_RESTORE}:Place.reached_end", "    if self.committed is not None:", "    if False:"),),
        oracle="restore",
    ),
    Mutant(
        "stores-ahead-of-the-group-go-on",
        OWN,
        "A start under exactly once goes on with stores that hold input which the group has not committed.",
        (Edit("store.streams.task:Task._check_positions", "if not ahead and not lost:", "if True:"),),
        oracle="offsets",
    ),
    Mutant(
        "stores-one-record-ahead-of-the-group-go-on",
        OWN,
        "A start under exactly once goes on with stores that hold one record more than the group has committed.",
        (
            Edit(
                "store.streams.task:Task._check_positions",
                "last >= (committed[tp] or 0)",
                "last > (committed[tp] or 0)",
            ),
        ),
        oracle="offsets",
    ),
    Mutant(
        "changelogs-of-windows-are-kept-for-a-day",
        OWN,
        "The changelog of a store of windows or sessions is kept for a day, however long these are.",
        (
            Edit(
                "store.suppliers:_expiring",
                "min(retention_ms + CHANGELOG_SLACK_MS, _LONGEST_MS)",
                "CHANGELOG_SLACK_MS",
            ),
        ),
    ),
    Mutant(
        "changelogs-of-windows-are-kept-no-longer-than-these",
        OWN,
        "The changelog of a store of windows or sessions is kept for as long as these by the clock of the brokers.",
        (
            Edit(
                "store.suppliers:_expiring",
                "min(retention_ms + CHANGELOG_SLACK_MS, _LONGEST_MS)",
                "retention_ms",
            ),
        ),
    ),
    Mutant(
        "versions-are-compacted-after-a-day",
        OWN,
        "The changelog of a versioned store is compacted after a day, however long its history is.",
        (
            Edit(
                "store.suppliers:VersionedSupplier.changelog_config",
                "min(self.history_retention_ms + CHANGELOG_SLACK_MS, _LONGEST_MS)",
                "CHANGELOG_SLACK_MS",
            ),
        ),
    ),
    Mutant(
        "a-lost-position-begins-anew",
        OWN,
        "An input whose position the group has lost is read from its beginning by stores that were restored from "
        "nothing.",
        (
            Edit(
                "store.streams.task:Task._restore",
                "            self._check_all_positions(committed)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "values-are-restored-with-the-time-of-their-writing",
        OWN,
        "What was logged with the time of its writing, since a broker would take it for old, is restored with that.",
        (Edit("store.recovery.restore:Place.take", "with_own_times(fetch.records)", "fetch.records"),),
    ),
    Mutant(
        "changelogs-of-windows-have-the-times-of-the-input",
        OWN,
        "Windows are logged with their own time in topics that keep it, by which brokers delete at once what is read "
        "long after it was written.",
        (
            Edit(
                "store.suppliers:_expiring",
                "        **_BY_TIME,\n",
                '        **_BY_TIME,\n        "message.timestamp.type": "CreateTime",\n',
            ),
            Edit(
                "store.suppliers:StoreBuilder.changelog_config",
                "times = _BROKERS_TIME",
                "times = {}",
            ),
        ),
    ),
)
