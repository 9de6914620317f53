"""Mutants of standbys, of those that take over from them, and of global stores."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_STANDBY = "store.recovery.standby:Standby"
_GLOBAL = "store.recovery.global_store:GlobalStore"

MUTANTS = (
    Mutant(
        "standby-applies-open-transactions",
        "KAFKA-5474",
        "A standby applies what is not committed.",
        (
            Edit(
                f"{_STANDBY}._follow",
                "bounds = self._reader.offsets(copy.changelog, IsolationLevel.READ_COMMITTED)",
                "bounds = self._reader.offsets(copy.changelog, IsolationLevel.READ_UNCOMMITTED)",
                (
                    (
                        "self._batch, IsolationLevel.READ_COMMITTED",
                        "self._batch, IsolationLevel.READ_UNCOMMITTED",
                    ),
                ),
            ),
        ),
    ),
    Mutant(
        "standby-skips-a-record",
        OWN,
        "A standby leaves out the first record of each update.",
        (
            Edit(
                f"{_STANDBY}._follow",
                "place.begin(decision.first_offset(), bounds)",
                "place.begin(decision.first_offset() + (place.position > 0), bounds)",
            ),
        ),
        oracle="standby",
    ),
    Mutant(
        "standby-stands-still",
        OWN,
        "A standby applies the first batch of a changelog, and nothing later.",
        (
            Edit(
                f"{_STANDBY}._follow",
                "while place.position < bounds.end:",
                "while place.position < bounds.end and place.committed is None:",
            ),
        ),
        oracle="standby",
    ),
    Mutant(
        "standby-lacks-the-last-marker-for-ever",
        OWN,
        "A standby says that it lacks what follows its last record, though it has read on from there.",
        (
            Edit(
                f"{_STANDBY}.lag",
                "max(held + 1, place.position, bounds.earliest)",
                "max(held + 1, bounds.earliest)",
            ),
        ),
        oracle="standby",
    ),
    Mutant(
        "standby-keeps-a-time-that-is-to-come",
        OWN,
        "A standby does not note its time anew when the wall clock was set back.",
        (
            Edit(
                f"{_STANDBY}._follow",
                "abs(began - place.kept_ms) >= KEEP_TIME_EVERY_MS",
                "began - place.kept_ms >= KEEP_TIME_EVERY_MS",
            ),
        ),
        oracle="clocks",
    ),
    Mutant(
        "standby-drops-deletions",
        "KAFKA-9891",
        "A standby skips records without a value.",
        (
            Edit(
                f"{_STANDBY}._follow",
                "            place.take(fetch, began, self._clock.time_ms())\n",
                "            place.take(fetch._replace(records=[one for one in fetch.records "
                "if one.value is not None]), began, self._clock.time_ms())\n",
            ),
        ),
    ),
    Mutant(
        "standby-keeps-an-offset-ahead-of-its-data",
        "KAFKA-9169",
        "A standby writes down an offset that it has not reached.",
        (
            Edit(
                f"{_STANDBY}._keep",
                "            place.keep()\n",
                "            place.keep()\n"
                "            if place.committed is not None and place._own:\n"
                "                from store.engine.protocol import Family\n"
                "                from store.state import metadata\n"
                "                from store.recovery.offsets import engine_store\n"
                "                below = engine_store(place.store)\n"
                "                end = self._reader.offsets(place.changelog, IsolationLevel.READ_COMMITTED).end\n"
                "                if below is not None:\n"
                "                    row = metadata.row(metadata.Kind.OFFSET, place.changelog, end - 1)\n"
                "                    below._engine.write([row])\n",
            ),
        ),
    ),
    Mutant(
        "global-store-has-one-partition",
        OWN,
        "A global store follows the first partition of its topic alone.",
        (Edit(f"{_GLOBAL}._begin", "range(number)", "range(1)"),),
    ),
    Mutant(
        "global-store-stands-still",
        OWN,
        "A global store applies what its topic has when it is opened, and nothing later.",
        (
            Edit(
                f"{_GLOBAL}.update",
                "applied, reason = self._follow(None), None",
                "applied, reason = 0, None",
            ),
        ),
    ),
    Mutant(
        "global-store-shows-aborted-records",
        OWN,
        "A global store applies the records of aborted transactions.",
        (
            Edit(
                f"{_GLOBAL}._commit_some",
                "self._batch, IsolationLevel.READ_COMMITTED",
                "self._batch, IsolationLevel.READ_UNCOMMITTED",
            ),
        ),
    ),
    Mutant(
        "global-store-forgets-its-offsets",
        OWN,
        "A global store writes no offsets with its data, and reads its topic anew at every start over what is there.",
        (
            Edit(f"{_GLOBAL}._read_held", "if store.manages_offsets():", "if False:"),
            Edit(
                f"{_GLOBAL}._first_offset",
                "strange=lambda: not self._held and not self._opened().is_empty()",
                "strange=lambda: False",
            ),
        ),
    ),
    Mutant(
        "global-store-set-aside-and-left-empty",
        OWN,
        "A global store whose rows cannot be read is set aside, and the new one does not catch up.",
        (Edit(f"{_GLOBAL}.rebuild_if_damaged", "self._rebuild_and(self._catch_up, ", "self._rebuild("),),
        oracle="global",
    ),
    Mutant(
        "global-store-opened-and-left-empty",
        OWN,
        "A global store that is set aside when it is opened does not catch up.",
        (
            Edit(
                f"{_GLOBAL}.open",
                "self._rebuild_and(partial(self._catch_up, self._breaks_off), reason)",
                "self._rebuild(reason)",
            ),
        ),
        oracle="global",
    ),
    Mutant(
        "global-store-entry-before-its-data",
        OWN,
        "The checkpoint of a global store speaks of data that is not on the disk yet.",
        (Edit(f"{_GLOBAL}._keep", "            store.sync()\n", ""),),
        oracle="global",
    ),
    Mutant(
        "global-store-that-nothing-vouches-for",
        OWN,
        "A global store without transactions that is closed in order writes no checkpoint, so that every start sets it "
        "aside.",
        (
            Edit(
                "store.recovery.global_store:GlobalStore._keep",
                "self._storage.write_checkpoint(self.task_id, self._held)",
                "pass",
            ),
        ),
        oracle="global",
    ),
    Mutant(
        "global-store-goes-on-behind-another-one",
        OWN,
        "A global store that takes the place of one that was set aside goes on behind the offsets of that one.",
        (
            Edit(
                f"{_GLOBAL}._load",
                "self._positions, self._held, self._kept = {}, {}, {}\n        self._held_is_known = False",
                "self._positions = {}",
            ),
        ),
    ),
    Mutant(
        "global-store-is-restored-one-short",
        OWN,
        "A global store is restored up to the last offset of its topic, and without the record there.",
        (
            Edit(
                f"{_GLOBAL}._begin",
                "ends[tp] = bounds.end",
                "ends[tp] = bounds.end - 1",
            ),
        ),
        oracle="global",
    ),
)
