r"""Ask Kafka Streams' own stores, and keep what they answer: python -m tests.state.kafka_streams.record

Writes `recorded/<type>.json` anew, for each store type, or for those named as arguments. Needs a JDK, 17 or
newer, and the network the first time: the jars of `ivy.xml` come through Ivy and are checked against `jars.lock`
(`--lock` writes that anew). The tests read the recordings alone and need neither.

A recording holds the version of Kafka Streams, and sequences with their answers as the persistent store gave
them. Where that answer cannot be right, `corrected` holds another one beside it, by the operation's number, which
is made of Kafka Streams' answers too:
* A range of keys loses rows of a key that is a prefix of the upper bound, since the bound's bytes are joined with
  a time and compared with a key's bytes joined with another. The same question without bounds on keys, narrowed
  down here, is complete.
* A scan of a prefix that ends in b"\xff" brings the key after it too: the prefix, counted up by one, keeps its
  length. The range from the prefix on, narrowed down here, does not.
* A window store that retains duplicates looks for the one of a key and time under the sequence number of its last
  put, whatever that put was of. The last of the duplicates that the window has is the answer here.
* The sessions of one key that start before time 0 raise an error, those of a range of keys are none. And sessions
  by their end alone are not offered: they are all sessions, narrowed down here.
* A query for the versions up to some time loses a version that ends in a later segment than that time's. The same
  question without an end, narrowed down here, is complete.
`memory` counts, by operation, how often the in-memory store answered differently; what it answered is not kept. Its
order is another one (time before key; of sessions that end together the latest start first), a removed session does
not move its time and a null among duplicates does, it cannot count up an empty prefix, and its ranges lose no rows.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from harness.provision.cache import cache_directory
from harness.provision.jars import resolve_into
from harness.provision.java import java
from tests.state.kafka_streams.sequences import Operation, Sequence, generate

_HERE = Path(__file__).parent
_LOCK = _HERE / "jars.lock"
RECORDED = _HERE / "recorded"

_COUNTS = {
    "keyvalue": 10,
    "timestamped_keyvalue": 4,
    "listvalue": 6,
    "window": 24,
    "timestamped_window": 8,
    "session": 24,
    "versioned": 24,
}
_LENGTH = 80
_IN_MEMORY = frozenset({"keyvalue", "listvalue", "window", "session"})


def main(arguments: list[str]) -> None:
    """Record the store types named, all without a name."""
    jars = jars_of_kafka_streams(write_lock="--lock" in arguments)
    for name in [argument for argument in arguments if argument != "--lock"] or _COUNTS:
        sequences = generate(name, _COUNTS[name], _LENGTH)
        recording = _record(sequences, jars)
        text = json.dumps(recording, separators=(",", ":")).replace('{"parameters"', '\n{"parameters"')
        RECORDED.mkdir(exist_ok=True)
        (RECORDED / f"{name}.json").write_text(text + "\n")
        operations = sum(len(sequence.operations) for sequence in sequences)
        sys.stderr.write(f"{name}: {operations} operations, {len(text):,} bytes\n")


def _record(sequences: list[Sequence], jars: list[Path]) -> dict[str, Any]:
    asked = [sequence._replace(operations=_with_complete_questions(sequence)) for sequence in sequences]
    version, persistent = _judge(asked, memory=False, jars=jars)
    in_memory = None
    if sequences[0].type in _IN_MEMORY:
        in_memory = _judge(asked, memory=True, jars=jars)[1]
    differing: Counter[str] = Counter()
    recorded = []
    for number, sequence in enumerate(sequences):
        answers: list[Any] = []
        corrected: dict[str, Any] = {}
        given = iter(persistent[number])
        remembered = iter(in_memory[number] if in_memory is not None else persistent[number])
        for index, operation in enumerate(sequence.operations):
            answer = next(given)
            if next(remembered) != answer:
                differing[operation[0]] += 1
            answers.append(answer)
            if _complete_question(sequence, index) is not None:
                complete = _narrowed(operation, next(given))
                next(remembered)
                if complete != answer:
                    corrected[str(index)] = complete
        recorded.append(
            {
                "parameters": sequence.parameters,
                "operations": sequence.operations,
                "answers": answers,
                "corrected": corrected,
            }
        )
    return {
        "kafka_streams": version,
        "type": sequences[0].type,
        "memory": dict(sorted(differing.items())),
        "sequences": recorded,
    }


def _with_complete_questions(sequence: Sequence) -> list[Operation]:
    operations: list[Operation] = []
    for index, operation in enumerate(sequence.operations):
        operations.append(operation)
        question = _complete_question(sequence, index)
        if question is not None:
            operations.append(question)
    return operations


def _complete_question(sequence: Sequence, index: int) -> Operation | None:
    """A question whose answer, narrowed down, is this operation's, and which is asked another way."""
    operation = sequence.operations[index]
    match operation:
        case [name, low, str(high), *rest] if name.endswith("_range") and name != "reverse_range":
            # Where the lower bound is above the upper, the answer is empty and right.
            if low is None or bytes.fromhex(low) <= bytes.fromhex(high):
                return [name, None, None, *rest]
        case ["fetch_one", key, time] if sequence.parameters["retain_duplicates"]:
            return ["backward_fetch", key, time, time]
        case ["find_sessions" | "backward_find_sessions", key, end, start] if start < 0:
            return [f"{operation[0]}_range", key, key, end, start]
        case ["find_sessions_ending" | "backward_find_sessions_ending", *_]:
            return ["fetch_range" if operation[0].startswith("find") else "backward_fetch_range", None, None]
        case ["prefix_scan", str(prefix)]:
            return ["range", prefix, None]
        case ["versions", key, low, int(high), ascending]:
            # Up to a time that has expired the answer is the newest version at most, and comes from one place.
            observed = max(
                (o[-1] for o in sequence.operations[:index] if o[0] in {"put", "delete"}), default=-1
            )
            if (low is None or low <= high) and high >= observed - sequence.parameters[
                "history_retention_ms"
            ]:
                return ["versions", key, low, None, ascending]
    return None


def _narrowed(operation: Operation, rows: list[Any]) -> Any:
    if operation[0] == "versions":
        return [row for row in rows if row[1] <= operation[3]]
    if operation[0] == "fetch_one":
        return rows[0][1] if rows else None
    if operation[0] in {"find_sessions", "backward_find_sessions"}:
        return rows
    if operation[0].endswith("_sessions_ending"):
        return [row for row in rows if operation[1] <= row[2] <= operation[2]]
    if operation[0] == "prefix_scan":
        return [row for row in rows if row[0].startswith(operation[1])]
    low = bytes.fromhex(operation[1] or "")
    high = bytes.fromhex(operation[2])
    return [row for row in rows if low <= bytes.fromhex(row[0]) <= high]


def _judge(sequences: list[Sequence], *, memory: bool, jars: list[Path]) -> tuple[str, list[list[Any]]]:
    """The version of Kafka Streams, and the answers of each sequence."""
    lines = [json.dumps({**sequence._asdict(), "memory": memory}) + "\n" for sequence in sequences]
    with tempfile.TemporaryDirectory(prefix="kafka-streams-") as directory:
        return ask_kafka_streams(_HERE / "Judge.java", lines, directory, jars=jars)


def ask_kafka_streams(
    program: Path, lines: list[str], *arguments: str, jars: list[Path]
) -> tuple[str, list[Any]]:
    """What a program in Java says to these lines, in JSON: the version of Kafka Streams, and an answer to each."""
    done = subprocess.run(
        [str(java().executable), "-cp", ":".join(map(str, jars)), str(program), *arguments],
        input="".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(
            f"{program.name} does not run; a JRE without compiler cannot start it.\n{done.stderr[-4000:]}"
        )
    version, *answers = [json.loads(line) for line in done.stdout.splitlines()]
    return version, answers


def jars_of_kafka_streams(*, write_lock: bool = False) -> list[Path]:
    """Those of the lock, fetched where they are not there."""
    directory = cache_directory() / "kafka-streams"
    if write_lock or not _LOCK.is_file() or _checked(directory) is None:
        _fetch(directory, write_lock=write_lock)
    jars = _checked(directory)
    if jars is None:
        sys.exit(f"The jars in {directory} are not those of {_LOCK}. Move them away and try again.")
    return jars


def _fetch(directory: Path, *, write_lock: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        fetched = resolve_into(Path(scratch), _HERE / "ivy.xml", "judge")
        if write_lock:
            _LOCK.write_text("".join(f"{_digest(jar)}  {jar.name}\n" for jar in fetched))
        for jar in fetched:
            shutil.move(jar, directory / jar.name)


def _checked(directory: Path) -> list[Path] | None:
    """The jars of the lock; None when one is missing or another file than it was."""
    jars = []
    for line in _LOCK.read_text().splitlines():
        digest, _, name = line.partition("  ")
        jar = directory / name
        if not jar.is_file() or _digest(jar) != digest:
            return None
        jars.append(jar)
    return jars


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
