"""Mutants of the DSL's tables: what they hold back until the commit, suppress, joins and groups."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_OPERATORS = "store.streams.dsl.operators"
_JOIN = "store.streams.dsl.operators:TableJoin.bind"
_WAITING = "store.streams.dsl.joins:Waiting"
_TABLE = "store.streams.dsl.record_cache:Table"
_TASK = "store.streams.task:Task"
_BUFFER = "store.streams.dsl.suppress:Buffer"
_SUPPRESS = "store.streams.dsl.suppress:Suppress.bind"

MUTANTS = (
    Mutant(
        "tables-are-flushed-by-the-next-commit",
        OWN,
        "What tables hold back at a commit is written and forwarded by the next one, with the positions of this one.",
        (
            Edit(
                f"{_TASK}._flush_caches",
                "self._processing.flush()",
                "self._processed % 2 and self._processing.flush()",
            ),
        ),
    ),
    Mutant(
        "tables-are-flushed-behind-the-producer",
        "KAFKA-8204",
        "Tables are flushed once the producer has been, so that changelogs may end behind what a commit says.",
        (
            Edit(
                f"{_TASK}._commit_exactly_once",
                "    self._flush_caches()\n",
                "    pass\n",
                (("    reach(Point.FLUSHED)\n", "    self._flush_caches()\n        reach(Point.FLUSHED)\n"),),
            ),
        ),
    ),
    Mutant(
        "what-tables-hold-back-outlives-an-abort",
        "KAFKA-14172",
        "What tables held back in an aborted transaction is there when its input is read again.",
        (Edit(f"{_TASK}.abort", "self._bind(self._context)", "pass"),),
    ),
    Mutant(
        "an-update-that-leaves-a-full-table-is-not-forwarded",
        OWN,
        "An update that has to leave a full record cache is written to the store alone.",
        (
            Edit(
                f"{_TABLE}._make_room",
                "            self._forward_entry(entry)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "an-update-is-forwarded-again-by-the-next-commit",
        OWN,
        "A commit forwards what the one before has forwarded, if it is still at hand.",
        (
            Edit(
                f"{_TABLE}.flush",
                "    self._written_by_others = False\n",
                "    self._written_by_others = False\n        self._written.update(self._clean)\n",
            ),
        ),
    ),
    Mutant(
        "a-row-that-is-still-to-be-forwarded-is-put-as-if-it-was",
        OWN,
        "A row that is put when it is written and not yet forwarded loses the value that was forwarded before.",
        (
            Edit(
                f"{_TABLE}.put",
                "or key in self._written or key in self._clean",
                "or key in self._clean",
            ),
        ),
    ),
    Mutant(
        "held-back-updates-get-the-time-of-the-flush",
        OWN,
        "What a table held back is forwarded with the time of the last record, not with its own.",
        (
            Edit(
                f"{_TABLE}._forward_entry",
                "else None, time, headers)",
                "else None, self.task.record.timestamp, headers)",
                (("        self.task.record = record\n", ""),),
            ),
        ),
    ),
    Mutant(
        "an-evicted-row-is-folded-from-before",
        OWN,
        "A row that has left a full record cache is not written to the store.",
        (Edit(f"{_TABLE}._make_room", "                self._write_entry(entry)\n", ""),),
    ),
    Mutant(
        "a-partner-does-not-end-the-waiting",
        OWN,
        "A record that has found a partner comes out alone as well when its window is closed.",
        (Edit(f"{_WAITING}.found_partner", "self._store.put(row, None)", "pass"),),
    ),
    Mutant(
        "who-waits-is-forgotten-by-a-restart",
        OWN,
        "Records that a store has from before wait until another one comes that has to wait.",
        (Edit(f"{_WAITING}.__init__", "self._until.values(), -inf)", "self._until.values(), inf)"),),
    ),
    Mutant(
        "the-first-who-waits-is-passed-over",
        OWN,
        "Records that wait for a partner are looked for behind the first one that was left waiting.",
        (Edit(f"{_WAITING}._closed", "return closed, time", "return closed, time + 1"),),
    ),
    Mutant(
        "who-waits-comes-out-again",
        "KAFKA-10847",
        "A record that has come out alone goes on waiting.",
        (Edit(f"{_WAITING}.forward_closed", "self._store.put(row, None)", "pass"),),
    ),
    Mutant(
        "who-waits-goes-with-one-that-is-refused",
        OWN,
        "Under at least once a record that raises when it comes out alone takes all along that wait beside it.",
        (Edit(f"{_WAITING}.go_on", "[number:]", "[number:0]"),),
    ),
    Mutant(
        "an-update-is-joined-with-what-was-forwarded",
        OWN,
        "A joined update of a table whose key the other side has let go of, both held back, stays in the result.",
        (
            Edit(
                _JOIN,
                "if needs_other and other_before is not None:",
                "if needs_other and other_before is not None and new is not None:",
            ),
        ),
    ),
    Mutant(
        "a-suppressed-row-goes-with-the-value-before-it",
        OWN,
        "A row that was held back goes with the value before its last update, and not with that which went before it.",
        (
            Edit(
                f"{_BUFFER}.put",
                "time, prior = held[0], held[3]",
                "time, prior = held[0], None if old is None else self._value_bytes(old)",
            ),
        ),
    ),
    Mutant(
        "what-was-suppressed-is-logged-with-the-time-of-the-commit",
        OWN,
        "The changelog of a suppressed table has the time of the last record before the commit.",
        (Edit(f"{_BUFFER}.flush", "task.record = record", "pass"),),
    ),
    Mutant(
        "readers-of-what-is-suppressed-are-told-of-later-records",
        OWN,
        "A query of what is held back until the commit says that it is as of the last record.",
        (
            Edit(
                "store.streams.dsl.stores:TableStore.build",
                "self.at_commits or context.cache_max_bytes",
                "context.cache_max_bytes",
            ),
        ),
    ),
    Mutant(
        "readers-behind-a-table-are-told-of-what-it-holds-back",
        OWN,
        "A query of a store that is written with the updates of a table says that it is as of the last record, also "
        "while the table holds its update back.",
        (
            Edit(
                "store.streams.dsl.graph:BoundGraph._behind_caches",
                "if table.capacity",
                "if not table.capacity",
            ),
        ),
        oracle="queries",
    ),
    Mutant(
        "what-is-suppressed-waits-anew-with-each-update",
        OWN,
        "Each update of a key that is held back has it wait as long as a first one.",
        (Edit(f"{_BUFFER}.put", "time, prior = held[0], held[3]", "prior = held[3]"),),
    ),
    Mutant(
        "what-is-suppressed-is-due-one-too-late",
        OWN,
        "An update that is held back goes with the first record beyond its time.",
        (Edit(_SUPPRESS, "first + wait <= now", "first + wait < now"),),
    ),
    Mutant(
        "what-was-let-go-is-held-back-again",
        OWN,
        "What was held back over a commit stays in the store when it has gone, and goes again after a restart.",
        (
            Edit(
                f"{_BUFFER}.flush",
                "elif self._store.get(key) is not None:",
                "elif False:",
            ),
        ),
    ),
    Mutant(
        "a-full-buffer-holds-one-less",
        OWN,
        "A buffer of suppress lets an update go early for one that it could hold beside.",
        (
            Edit(
                "store.streams.dsl.suppress:Suppress._full", "len(buffer) > records", "len(buffer) >= records"
            ),
        ),
    ),
    Mutant(
        "streams-find-what-tables-have-written",
        OWN,
        "A stream that is joined with a table finds what the table had before the updates that are held back.",
        (
            Edit(
                "store.streams.dsl.operators:FromStore.bind",
                "return place.table(self.store).get",
                "return place.table(self.store).read",
            ),
        ),
    ),
    Mutant(
        "an-outer-join-of-tables-is-a-left-one",
        OWN,
        "An update of a table without a value on its side deletes the result of an outer join.",
        (Edit(_JOIN, "if this is None and (needs_this or other is None):", "if this is None:"),),
    ),
    Mutant(
        "what-leaves-a-group-stays-in-it",
        OWN,
        "A row of a grouped table that goes over to another group, or is deleted, stays in its former one.",
        (
            Edit(
                "store.streams.dsl.operators:Regroup.bind",
                "            if goes:\n                forward(old_key",
                "            if goes and new is old:\n                forward(old_key",
            ),
        ),
    ),
    Mutant(
        "a-group-goes-back-in-time",
        OWN,
        "What is added to a group of a table late gives the group its own time, although that has been later.",
        (
            Edit(
                "store.streams.dsl.operators:TableAggregate.bind",
                "value = add(key, new, value)\n                timestamp = max(timestamp, time)",
                "value = add(key, new, value)",
            ),
        ),
    ),
    Mutant(
        "rows-that-are-filtered-away-stay",
        OWN,
        "A row of a table that does not pass its filter any more is not deleted behind it.",
        (
            Edit(
                "store.streams.dsl.operators:TableMap.bind",
                "if filters and sends_old and mapped is None and before is None:",
                "if filters and sends_old and mapped is None:",
            ),
        ),
    ),
    Mutant(
        "cached-aggregate-keeps-first-headers",
        OWN,
        "An aggregate that is held back has the headers of the first record that has changed it.",
        (
            Edit(
                "store.streams.dsl.operators:Aggregate.bind",
                "entry[4] = headers\n                touch(row)\n",
                "entry[4] = entry[4] or headers\n                touch(row)\n",
            ),
        ),
    ),
    Mutant(
        "an-aggregate-that-begins-anew-keeps-the-time-of-its-end",
        OWN,
        "An aggregate of a key that had none any more has the time of its deletion, if that is later.",
        (
            Edit(
                f"{_OPERATORS}:Aggregate.bind",
                "                old = entry[0]\n"
                "                entry[0] = fold(key, value, old)\n"
                "                if timestamp > entry[1] or old is None:\n",
                "                old = entry[0]\n"
                "                entry[0] = fold(key, value, old)\n"
                "                if timestamp > entry[1]:\n",
            ),
        ),
    ),
    Mutant(
        "suppressed-table-sends-no-old-value",
        OWN,
        "A row that was held back goes without the value that went before, which stays in its group.",
        (Edit(_SUPPRESS, "old if sends_old else None", "None"),),
    ),
    Mutant(
        "suppressed-size-leaks",
        OWN,
        "A buffer of suppress goes on counting the bytes of what has left it.",
        (Edit(f"{_BUFFER}.take", "self.size -= self._sizes.pop(at)", "self._sizes.pop(at)"),),
    ),
    Mutant(
        "clean-entries-outlive-writes-by-others",
        OWN,
        "A table goes on with rows that it has at hand, whatever a processor has written.",
        (Edit(f"{_TABLE}.changed_by_others", "        self._clean.clear()\n", ""),),
    ),
    Mutant(
        "processor-reads-past-what-a-table-holds-back",
        OWN,
        "A processor that reads a table finds what was written, without what is held back.",
        (
            Edit(
                "store.streams.dsl.processors:SharedStore.__getattr__",
                "            table.write_through()\n",
                "",
            ),
        ),
    ),
    Mutant(
        "join-of-tables-forgets-old-results",
        OWN,
        "A joined row that changes goes without the result that it had, which stays in its group.",
        (Edit(_JOIN, "            if sends_old:\n", "            if sends_old and new is None:\n"),),
    ),
    Mutant(
        "mapped-table-sends-the-unmapped-old-value",
        OWN,
        "A mapped row that changes goes with the value that it had before it was mapped.",
        (
            Edit(
                "store.streams.dsl.operators:TableMap.bind",
                "not sends_old else function(key, old)",
                "not sends_old else old",
            ),
        ),
    ),
    Mutant(
        "mutable-aggregate-handed-out",
        OWN,
        "Who looks an aggregate up gets the object that later records are folded into.",
        (
            Edit(
                f"{_TABLE}.get",
                "            self.write_through()\n            return self.read(row)\n",
                "            return value, entry[1]\n",
            ),
        ),
    ),
    Mutant(
        "old-value-is-the-object-that-is-folded",
        OWN,
        "An aggregate that is folded in place goes as its own old value.",
        (
            Edit(
                f"{_TABLE}.find",
                "if self.sends_old and not immutable(value):",
                "if self.sends_old and value is None:",
            ),
        ),
    ),
    Mutant(
        "a-record-is-changed-where-an-aggregate-keeps-it",
        OWN,
        "An aggregate that is folded in place changes what it keeps of a record for all others that have the record.",
        (
            Edit(
                "store.streams.dsl.operators:folding",
                "return aggregator(lend(key), lend(value), old)",
                "return aggregator(key, value, old)",
            ),
        ),
    ),
    Mutant(
        "a-left-join-that-is-looked-up-is-an-inner-one",
        OWN,
        "What is joined with a left join of tables finds nothing where the right one has nothing.",
        (
            Edit(
                f"{_OPERATORS}:OfBoth._joining",
                '(two is None and kind == "inner")',
                '(two is None and kind != "outer")',
            ),
        ),
    ),
    Mutant(
        "rows-that-a-kept-filter-drops-stay",
        OWN,
        "A row that does not pass the filter of a table any more stays where what passes is kept.",
        (
            Edit(
                f"{_OPERATORS}:TableMap.bind",
                "if filters and sends_old and mapped is None and get(key) is None:",
                "if filters and mapped is None:",
            ),
        ),
    ),
    Mutant(
        "windows-that-are-held-back-are-not-found",
        OWN,
        "A record does not find the last window that it may be in where a cache holds that back.",
        (
            Edit(
                "store.streams.dsl.record_cache:WindowTable.windows",
                "self._pending(key, first, last)",
                "self._pending(key, first, last - 1)",
            ),
        ),
    ),
    Mutant(
        "what-a-join-has-seen-is-changed-before-it-is-forwarded",
        OWN,
        "An update that a cache holds back, and that a join has made a result with, is taken back without a word.",
        (
            Edit(
                "store.streams.dsl.record_cache:Table.put",
                "if self.looked_at and (self, key) in self.looked_at:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "a-full-buffer-lets-go-of-one-alone",
        OWN,
        "A buffer of suppress lets one update go for another one, however much room that takes.",
        (Edit(_SUPPRESS, "while full is not None and full():", "if full is not None and full():"),),
    ),
    Mutant(
        "what-was-held-back-before-has-no-size",
        OWN,
        "A buffer of suppress that begins with what its store has counts none of the bytes of that.",
        (
            Edit(
                f"{_BUFFER}.__init__",
                "self._hold(key, kept, len(row))",
                "self._hold(key, kept, 0)",
            ),
        ),
    ),
    Mutant(
        "tables-are-flushed-from-below",
        "KAFKA-8204",
        "Of two tables the one that gets updates of the other is flushed first.",
        (
            Edit(
                "store.streams.dsl.graph:Place.at_flush",
                "self.graph.flushes.insert(0, flush)",
                "self.graph.flushes.append(flush)",
            ),
        ),
    ),
    Mutant(
        "tables-are-flushed-behind-the-caches-of-stores",
        "KAFKA-8204",
        "The caches of stores are flushed before the tables, so what those write is still in a cache at the commit.",
        (
            Edit(
                f"{_TASK}._flush_caches",
                "        for store in self.stores.values():\n            store.flush_cache()\n",
                "",
                (
                    (
                        "        try:\n            self._processing.flush()\n",
                        "        for store in self.stores.values():\n"
                        "            store.flush_cache()\n"
                        "        try:\n"
                        "            self._processing.flush()\n",
                    ),
                ),
            ),
        ),
    ),
    Mutant(
        "an-update-that-is-settled-leaves-the-task-at-its-record",
        OWN,
        "Once a join has had an update of a table written and forwarded, the task goes on at the record of that one.",
        (Edit(f"{_TABLE}.settle", "        self.task.record = at\n", ""),),
    ),
    Mutant(
        "a-transformed-table-sends-the-old-value-as-it-was",
        OWN,
        "A row that a transformer of values has made goes with an old value that was not transformed.",
        (
            Edit(
                "store.streams.dsl.processors:TransformTable.bind",
                "before = transform(key, old, timestamp, headers) if sends_old else None",
                "before = old if sends_old else None",
            ),
        ),
    ),
    Mutant(
        "a-session-that-is-settled-is-held-back-still",
        OWN,
        "A session that a join has had written and forwarded stays among those of its key that a cache holds back.",
        (Edit(f"{_TABLE}.settle", "            self._left(row)\n", ""),),
    ),
    Mutant(
        "what-a-join-has-looked-at-comes-to-operators-at-work",
        OWN,
        "A join has an update forwarded at once that leads to the operator whose update has led to the join.",
        (
            Edit(
                "store.streams.dsl.record_cache:Flight.take",
                "if table.leads_to.isdisjoint(origin):",
                "if table is not None:",
            ),
        ),
    ),
    Mutant(
        "an-update-that-leaves-a-full-table-leaves-the-task-at-its-record",
        OWN,
        "Once a full record cache has let go of an update, the task goes on at the record of that one.",
        (
            Edit(
                f"{_TABLE}._make_room",
                "            self._forward_entry(entry)\n        self.task.record = at\n",
                "            self._forward_entry(entry)\n",
            ),
        ),
    ),
)
