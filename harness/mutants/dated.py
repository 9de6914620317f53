"""Mutants of the DSL's versioned tables: joins as of a record's time, at once and with a grace period, outdated
updates, what is made of such tables; and of windowed cogroups."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_TABLE = "store.streams.dsl.record_cache:VersionedTable"
_OPERATORS = "store.streams.dsl.operators"
_WAITING = "store.streams.dsl.delayed:_Waiting"
_DELAYED = "store.streams.dsl.delayed:DelayedLookUp.bind"

MUTANTS = (
    Mutant(
        "a-versioned-table-is-joined-as-it-is-now",
        OWN,
        "A stream that is joined with a versioned table finds the latest value, not that of the record's time.",
        (Edit(f"{_TABLE}.as_of", "self.store.get(row, time)", "self.store.get(row)"),),
    ),
    Mutant(
        "outdated-updates-are-news",
        OWN,
        "An update of a versioned table that has a later value of the key makes a result of a join.",
        (Edit(f"{_TABLE}.put", "code != PUT_RETURN_CODE_VALID_TO_UNDEFINED", "False"),),
    ),
    Mutant(
        "updates-that-are-too-late-go-on",
        OWN,
        "An update that is older than the history retention of a versioned table is forwarded.",
        (Edit(f"{_TABLE}.put", "            return\n", "            pass\n"),),
    ),
    Mutant(
        "outdated-updates-are-filtered-away",
        OWN,
        "An update of a filtered versioned table that does not pass the filter is not forwarded.",
        (
            Edit(
                f"{_OPERATORS}:TableMap.bind",
                "sends_old = self.function, self.filters, self.sends_old",
                "sends_old = self.function, True, self.sends_old",
            ),
        ),
    ),
    Mutant(
        "a-mapped-versioned-table-is-joined-as-it-is",
        OWN,
        "A stream that is joined with a filtered versioned table finds what it is made of.",
        (
            Edit(
                f"{_OPERATORS}:Mapped.as_of",
                "value = None if found is None else function(key, found[0])",
                "value = None if found is None else found[0]",
            ),
        ),
    ),
    Mutant(
        "records-wait-for-less-than-the-grace-period",
        OWN,
        "A delayed join lets records go with the first one that comes after them in time.",
        (Edit(_DELAYED, "observe(timestamp) - grace)", "observe(timestamp) - 1)"),),
    ),
    Mutant(
        "records-wait-one-too-long",
        OWN,
        "A delayed join lets a record go when the stream time is beyond its grace period, not with it.",
        (Edit(f"{_WAITING}.let_go", "if time > until:", "if time >= until:"),),
    ),
    Mutant(
        "records-that-wait-are-forgotten-by-a-restart",
        OWN,
        "A delayed join lets go of nothing that waits from before a restart until another record waits as long.",
        (Edit(f"{_WAITING}.__init__", "self._first: float = -inf", "self._first: float = inf"),),
    ),
    Mutant(
        "records-that-were-let-go-wait-on",
        OWN,
        "A delayed join lets a record go again with the next one.",
        (Edit(f"{_WAITING}._leaves", "        self._store.put(row, None)\n", ""),),
    ),
    Mutant(
        "records-that-were-refused-end-the-worker",
        OWN,
        "Under at least once a record that a delayed join cannot join is raised, whatever a handler says.",
        (
            Edit(
                f"{_WAITING}._join_as_it_came",
                "            if task.record is not came or not task.goes_on_without(error):\n                raise\n",
                "            raise\n",
            ),
        ),
    ),
    Mutant(
        "records-that-wait-lose-their-headers",
        OWN,
        "A delayed join lets a record go without its headers, if it came since the last commit.",
        (
            Edit(
                f"{_WAITING}._let_go",
                "time, headers)\n        else:",
                "time, ())\n        else:",
            ),
        ),
    ),
    Mutant(
        "one-record-waits-for-each-key-and-time",
        OWN,
        "A record that waits takes the place of one of the same key and time.",
        (Edit(f"{_WAITING}._free_row", "if self._store.get(first) is None:", "if True:"),),
    ),
    Mutant(
        "deletions-are-not-transformed",
        OWN,
        "A transformer of a table's values is not asked for what a deletion becomes.",
        (
            Edit(
                "store.streams.dsl.processors:TransformTable.bind",
                "put(key, transform(key, new, timestamp, headers), timestamp, headers)",
                "put(key, None if new is None else transform(key, new, timestamp, headers), timestamp, headers)",
            ),
        ),
    ),
    Mutant(
        "all-groups-fold-alike",
        OWN,
        "The groups of a windowed cogroup share the aggregator of the first one.",
        (
            Edit(
                "store.streams.dsl.builder:CogroupedKStream.aggregate",
                "store_name, windows, initializer, aggregator, merger, clock",
                "store_name, windows, initializer, next(iter(self.groups.values())), merger, clock",
            ),
        ),
    ),
)
