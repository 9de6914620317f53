"""Mutants of records without a key, which joins hand on alone, groups and tables pass over, and partitioners send
anywhere."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_OPERATORS = "store.streams.dsl.operators"
_JOIN = "store.streams.dsl.joins:JoinSide.bind"
_WINDOWS = "store.streams.dsl.windowed"

MUTANTS = (
    Mutant(
        "first-of-several-partitions-alone",
        OWN,
        "A record whose partitioner names several partitions is sent to the first of them alone.",
        (
            Edit(
                "store.streams.dsl.operators:Sink._to",
                "                for one in partition:\n",
                "                for one in [*partition][:1]:\n",
            ),
        ),
    ),
    Mutant(
        "what-goes-to-several-partitions-has-no-headers",
        OWN,
        "A record whose partitioner names several partitions is sent without its headers.",
        (
            Edit(
                "store.streams.dsl.operators:Sink._to",
                "timestamp=timestamp, headers=headers, partition=one)",
                "timestamp=timestamp, partition=one)",
            ),
        ),
    ),
    Mutant(
        "no-partition-taken-for-that-of-the-key",
        OWN,
        "A record whose partitioner names no partition is sent to that of its key.",
        (
            Edit(
                "store.streams.dsl.operators:Sink._to",
                "elif partition is not None and isinstance(partition, Collection):",
                "elif isinstance(partition, Collection) and (partition or None):",
                (
                    (
                        "send(topic, keyed, valued, timestamp=timestamp, headers=headers, partition=partition)",
                        "send(topic, keyed, valued, timestamp=timestamp, headers=headers, partition=partition or None)",
                    ),
                ),
            ),
        ),
    ),
    Mutant(
        "an-outer-join-drops-what-has-no-key",
        OWN,
        "A record without a key finds no partner, and a left or outer join of streams forgets it.",
        (
            Edit(
                _JOIN,
                "if outer and value is not None:",
                "if outer and value is not None and key is not None:",
            ),
        ),
    ),
    Mutant(
        "an-inner-join-hands-on-what-has-no-key",
        OWN,
        "A record without a key comes out of an inner join of streams, alone.",
        (Edit(_JOIN, "if outer and value is not None:", "if value is not None:"),),
    ),
    Mutant(
        "what-has-no-key-does-not-move-the-time-of-a-join",
        OWN,
        "A record that is joined with nothing, for want of a key, closes no windows.",
        (
            Edit(
                _JOIN,
                "now = -1 if waiting is None else waiting.observe(timestamp)",
                "now = -1 if waiting is None or key is None else waiting.observe(timestamp)",
            ),
        ),
    ),
    Mutant(
        "a-left-join-with-a-table-drops-what-has-no-key",
        OWN,
        "A record without a key does not come out of a left join with a table.",
        (
            Edit(
                f"{_OPERATORS}:LookUp.bind",
                "if value is None or (wanted is None and not left):",
                "if value is None or wanted is None:",
            ),
        ),
    ),
    *(
        Mutant(
            f"what-has-no-key-moves-the-time-of-{windows}",
            OWN,
            "A record that is in no group, for want of a key, closes windows.",
            (
                Edit(
                    f"{_WINDOWS}:{aggregate}.bind",
                    "            if key is None or value is None:\n",
                    "            if key is None or value is None:\n                observe(timestamp)\n",
                ),
            ),
        )
        for windows, aggregate in (
            ("windows", "TimeWindowAggregate"),
            ("sliding-windows", "SlidingWindowAggregate"),
            ("sessions", "SessionAggregate"),
        )
    ),
    Mutant(
        "a-forwarded-record-without-a-key-has-an-empty-one",
        OWN,
        "A sink writes an empty key where there is none.",
        (
            Edit(
                f"{_OPERATORS}:Sink._to",
                "keyed = None if key is None else key_bytes(key)",
                'keyed = b"" if key is None else key_bytes(key)',
            ),
        ),
    ),
    Mutant(
        "a-global-store-has-no-empty-key",
        OWN,
        "A global store passes over a record whose key is empty, as if it had none.",
        (
            Edit(
                "store.recovery.global_store:GlobalStore._commit_some",
                "for record in fetch.records if record.key is not None]",
                "for record in fetch.records if record.key]",
            ),
        ),
    ),
)
