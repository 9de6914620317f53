"""Mutants of what only real systems run: the adapter to Kafka, the RocksDB engine, files and locks."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_LOCAL = ("local",)
_CONTAINERS = ("containers",)
_ERRORS = "store.log.kafka.errors"
_LINEAGE = "store.log.kafka.lineage"
_PRODUCER = "store.log.kafka.producer"
_READER = "store.log.kafka.reader"

MUTANTS = (
    Mutant(
        "records-go-to-any-partition",
        OWN,
        "The adapter lets the client pick the partition, also of changelog records.",
        (
            Edit(
                f"{_PRODUCER}:_Sender.produce",
                "-1 if partition is None else partition",
                "-1",
            ),
        ),
        worlds=_LOCAL,
    ),
    Mutant(
        "record-times-lost-by-the-adapter",
        OWN,
        "The adapter sends records with the time of sending.",
        (Edit(f"{_PRODUCER}:_Sender.produce", "0 if timestamp is None else timestamp", "0"),),
        worlds=_LOCAL,
    ),
    Mutant(
        "headers-lost-by-the-adapter",
        OWN,
        "The adapter sends records without their headers.",
        (
            Edit(
                f"{_PRODUCER}:_Sender.produce",
                "list(headers) if headers else None",
                "None",
            ),
        ),
        worlds=_LOCAL,
    ),
    Mutant(
        "adapter-reads-uncommitted",
        OWN,
        "The adapter reads what is not committed, whatever is asked for.",
        (
            Edit(
                f"{_READER}:KafkaReader._consumer",
                "isolation.value.lower()",
                "'read_uncommitted'",
            ),
        ),
        worlds=_LOCAL,
    ),
    Mutant(
        "positions-off-by-one-in-the-adapter",
        "Faust-streaming#176",
        "The adapter commits each position one further than it was given.",
        (
            Edit(
                f"{_LINEAGE}:as_committed",
                "_beside(place, position, metadata, lineages)",
                "_beside(place, position + 1, metadata, lineages)",
            ),
        ),
        worlds=_LOCAL,
    ),
    Mutant(
        "delivered-offset-of-the-first-record",
        OWN,
        "The adapter takes the first delivered offset of a partition for the last.",
        (
            Edit(
                f"{_PRODUCER}:_Deliveries.__call__",
                "self.reached[place] = offset",
                "self.reached.setdefault(place, offset)",
            ),
        ),
        worlds=_LOCAL,
    ),
    Mutant(
        "an-outage-is-taken-for-a-takeover",
        OWN,
        "The adapter says that a newer producer has the id when no broker answers.",
        (
            Edit(
                f"{_ERRORS}:translate",
                "    if code in FENCED:\n",
                "    if code in FENCED or code in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):\n",
            ),
        ),
        worlds=_CONTAINERS,
    ),
    Mutant(
        "database-forgets-deletions",
        OWN,
        "Deletions do not reach the files of the secondary mechanism.",
        (Edit("store.engine.staged:_write_files", "            del writer[key]\n", "            pass\n"),),
        files=True,
    ),
    Mutant(
        "staged-commit-dropped-at-open",
        "SPARK-18342",
        "A staged commit that a kill left marked is dropped and not applied.",
        (
            Edit(
                "store.engine.staged:StagedCommit.apply",
                "            self._ingest(self._files(), ingest)\n",
                "            pass\n",
            ),
        ),
        files=True,
    ),
)
