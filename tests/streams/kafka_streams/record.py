r"""Ask Kafka Streams' test driver what pipelines forward, and keep it: python -m tests.streams.kafka_streams.record

Writes `recorded.json` anew: the version of Kafka Streams, and pipelines with what came of them. With
`--from N --count M` it writes nothing, compares those pipelines with ours, and says which differ; with `--every K`
too, with a commit after K records, so that a record cache holds back what they lead to. Needs what
`tests/state/kafka_streams/record.py` needs; the test reads the recording alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.state.kafka_streams.record import ask_kafka_streams, jars_of_kafka_streams
from tests.streams.kafka_streams.pipelines import Pipeline, batches, compared, generate, run

_HERE = Path(__file__).parent
RECORDED = _HERE / "recorded.json"
_COUNT = 100
_MORE = 30
_EVERY = 7
_BATCHED = 12
"""How many have a commit after so many records, and not after each."""

_LONGEST = 15_000
"""Pipelines that are longer with their answers are not kept, and some more are asked for instead."""

_FILTER = re.compile(r"KSTREAM-FILTER-\d{10}|.*-repartition-filter")
"""What drops records without a key before a topic of a join, there; the join does it here."""

_LONGER_MS = 50
"""The largest difference and gap of the pipelines, and a bit."""


def main() -> None:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="first", type=int, help="compare from this pipeline on")
    parser.add_argument("--count", type=int, default=_COUNT)
    parser.add_argument(
        "--every", type=int, help="compare with a commit after so many records, where that can be"
    )
    said = parser.parse_args()
    if said.first is None:
        _record()
        return
    pipelines = _made(range(said.first, said.first + said.count), said.every)
    _, answers = _judge(pipelines)
    different = [
        number
        for (number, pipeline), answer in zip(pipelines.items(), answers, strict=True)
        if differences(pipeline, answer, run(pipeline))
    ]
    sys.stderr.write(f"{len(pipelines)} pipelines, of which {len(different)} differ: {different}\n")
    sys.exit(bool(different))


def _record() -> None:
    kept = []
    for numbers, every, count in (
        (range(_COUNT + _MORE), None, _COUNT),
        (range(_COUNT + _MORE, 3 * _COUNT), _EVERY, _BATCHED),
    ):
        pipelines = _made(numbers, every)
        version, answers = _judge(pipelines)
        rows = [{**one, "answer": answer} for one, answer in zip(pipelines.values(), answers, strict=True)]
        kept += [row for row in rows if len(json.dumps(row)) <= _LONGEST][:count]
    recording = {"kafka_streams": version, "pipelines": kept}
    text = json.dumps(recording, separators=(",", ":")).replace('{"steps"', '\n{"steps"')
    RECORDED.write_text(text + "\n")
    sys.stderr.write(f"{len(kept)} pipelines, {len(text):,} bytes\n")


def _made(numbers: Iterable[int], every: int | None) -> dict[int, Pipeline]:
    """The pipelines of those numbers; with `every` those that can have several records between two commits."""
    if every is None:
        return {number: generate(number) for number in numbers}
    batched = {number: batches(number, every) for number in numbers}
    return {number: pipeline for number, pipeline in batched.items() if pipeline is not None}


def differences(pipeline: Pipeline, theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """What is not alike, by name: operators, stores, topics that are read, partitions, internal topics, outputs."""
    found = [what for what in ("stores", "sources", "stopped") if theirs.get(what) != ours.get(what)]
    if not _alike(_by_topic(theirs), _by_topic(ours)):
        found.append("topics")
    # Inputs that do not fit together are not always refused there.
    if "partitions" in ours and theirs.get("partitions") != ours["partitions"]:
        found.append("partitions")
    if _without_filters(theirs["operators"], ours["operators"]) != ours["operators"]:
        found.append("operators")
    found += [
        topic
        for topic, records in ours.get("written", {}).items()
        if theirs.get("written", {}).get(topic) != records
    ]
    # Sessions without a cache have no headers there.
    kept = slice(4 if pipeline["numbered"] else 3)
    records = [
        {
            topic: [record[kept] for record in answer["outputs"].get(topic, [])]
            for topic in pipeline["outputs"]
        }
        for answer in (theirs, ours)
    ]
    return found + [
        topic
        for topic, how in pipeline["outputs"].items()
        if compared(records[0][topic], how) != compared(records[1][topic], how)
    ]


def _without_filters(theirs: dict[str, str], ours: dict[str, str]) -> dict[str, str]:
    """The operators, without those that drop records before a topic of a join: their parents lead to that here."""
    only = {
        name: of.partition(">")[2]
        for name, of in theirs.items()
        if name not in ours and _FILTER.fullmatch(name)
    }

    def leads_to(child: str) -> str:
        return only.get(child, child)

    left = {}
    for name, of in theirs.items():
        stores, _, children = of.partition(">")
        if name not in only:
            left[name] = f"{stores}>{' '.join(sorted(map(leads_to, children.split())))}"
    return left


def _by_topic(answer: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {
        topic: dict(setting.split("=") for setting in settings.split())
        for settings, topics in answer["topics"].items()
        for topic in topics
    }


def _alike(theirs: dict[str, dict[str, str]], ours: dict[str, dict[str, str]]) -> bool:
    """Whether internal topics are, but for the time that sliding windows, sessions, and records of a join
    whose windows lie to one side are kept longer here."""
    return theirs.keys() == ours.keys() and all(
        theirs[topic].keys() == ours[topic].keys()
        and all(
            value == theirs[topic][setting]
            or (setting == "retention.ms" and 0 < int(value) - int(theirs[topic][setting]) <= _LONGER_MS)
            for setting, value in ours[topic].items()
        )
        for topic in ours
    )


def _judge(pipelines: dict[int, Pipeline]) -> tuple[str, list[dict[str, Any]]]:
    """The version of Kafka Streams, and the answer of each pipeline. Ends where it refuses one of them, and says
    which."""
    with tempfile.TemporaryDirectory(prefix="kafka-streams-") as directory:
        lines = [
            json.dumps({**pipeline, "directory": f"{directory}/{number}"}) + "\n"
            for number, pipeline in pipelines.items()
        ]
        version, answers = ask_kafka_streams(_HERE / "Pipelines.java", lines, jars=jars_of_kafka_streams())
    failed = [
        f"{number}: {answer['error']}"
        for number, answer in zip(pipelines, answers, strict=True)
        if "error" in answer
    ]
    if failed:
        sys.exit("\n".join([f"Kafka Streams refuses {len(failed)} of the pipelines:", *failed]))
    return version, answers


if __name__ == "__main__":
    main()
