"""Mutants that take a value which Python holds for false, such as 0 or no text, for none."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

MUTANTS = (
    Mutant(
        "falsy-reduced-values-begin-anew",
        OWN,
        "A reduced value that is 0 or empty is replaced by the next value.",
        (
            Edit(
                "store.streams.dsl.operators:folding",
                "value if old is None else aggregator(old, value)",
                "aggregator(old, value) if old else value",
            ),
        ),
    ),
    Mutant(
        "falsy-values-are-not-aggregated",
        OWN,
        "A record whose value is 0 or empty is dropped by an aggregate.",
        (
            Edit(
                "store.streams.dsl.operators:Aggregate.bind",
                "or value is None:\n                dropped()\n                return\n            row",
                "or not value:\n                dropped()\n                return\n            row",
                (
                    (
                        "                if key is None or value is None:",
                        "                if key is None or not value:",
                    ),
                ),
            ),
        ),
    ),
    Mutant(
        "falsy-values-are-in-no-window",
        OWN,
        "A record whose value is 0 or empty is in no time window.",
        (
            Edit(
                "store.streams.dsl.windowed:TimeWindowAggregate.bind",
                "if key is None or value is None:",
                "if key is None or not value:",
            ),
        ),
    ),
    Mutant(
        "falsy-values-are-in-no-session",
        OWN,
        "A record whose value is 0 or empty is in no session.",
        (
            Edit(
                "store.streams.dsl.windowed:SessionAggregate.bind",
                "if key is None or value is None:",
                "if key is None or not value:",
            ),
        ),
    ),
    Mutant(
        "falsy-values-in-tables-delete",
        OWN,
        "A table deletes a row whose value is 0 or empty.",
        (
            Edit(
                "store.streams.dsl.operators:TableSource.bind",
                "                put(key, value, timestamp, headers)",
                "                put(key, value or None, timestamp, headers)",
            ),
        ),
    ),
    Mutant(
        "falsy-values-are-not-joined",
        OWN,
        "A record whose value is 0 or empty is not joined with another stream's.",
        (
            Edit(
                "store.streams.dsl.joins:JoinSide.bind",
                "            if key is None or value is None:",
                "            if key is None or not value:",
            ),
        ),
    ),
    Mutant(
        "falsy-values-look-nothing-up",
        OWN,
        "A record whose value is 0 or empty is not joined with a table.",
        (
            Edit(
                "store.streams.dsl.operators:LookUp.bind",
                "if value is None or (wanted",
                "if not value or (wanted",
            ),
        ),
    ),
    Mutant(
        "falsy-mapped-values-are-none",
        OWN,
        "A mapped table has no row where the mapped value is 0 or empty.",
        (
            Edit(
                "store.streams.dsl.operators:Mapped._mapping",
                "None if value is None else (value, found[1])",
                "(value, found[1]) if value else None",
            ),
        ),
    ),
    Mutant(
        "falsy-table-values-are-not-mapped",
        OWN,
        "A mapped table deletes what is mapped from 0 or from empty.",
        (
            Edit(
                "store.streams.dsl.operators:TableMap.bind",
                "            mapped = None if new is None else function(key, new)\n            before",
                "            mapped = function(key, new) if new else None\n            before",
            ),
        ),
    ),
    Mutant(
        "falsy-sides-are-missing",
        OWN,
        "A join of tables takes 0 or an empty value for none.",
        (
            Edit(
                "store.streams.dsl.operators:TableJoin.bind",
                "            if this is None and (needs_this or other is None):",
                "            if not this and (needs_this or other is None):",
            ),
        ),
    ),
    Mutant(
        "falsy-old-values-in-groups",
        OWN,
        "A change whose old value is 0 or empty has none.",
        (Edit("store.streams.dsl.operators:ChangeSerde.serialize", "if old is None:", "if not old:"),),
    ),
    Mutant(
        "falsy-partners",
        OWN,
        "A partner whose value is 0 or empty is none.",
        (
            Edit(
                "store.streams.dsl.foreign:AnswerSerde.serialize",
                "(_NO_VALUE if found is None else 0)",
                "(0 if found else _NO_VALUE)",
            ),
        ),
    ),
    Mutant(
        "falsy-values-delete-the-list",
        OWN,
        "A list is deleted where an empty value is put to it.",
        (
            Edit(
                "store.state.listvalue:ListValueStore.put",
                "        if value is None:\n",
                "        if not value:\n",
            ),
        ),
    ),
)
