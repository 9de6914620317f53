"""A schedule is plain data: the input, how the pipeline runs, and a sparse list of faults.

It determines a run completely; seeds are never what is stored. A step that cannot apply is skipped and
recorded as skipped, so that deleting any part of a schedule leaves a schedule, which is what makes shrinking easy.

Steps apply in order. A step waits until `wait` more records were processed anywhere (counted from the moment the
step before it was done) and then, if it names a point, until the newest incarnation of its task reaches that
point. When nothing is left to process, waiting is over: steps without a point apply at once, steps whose point
can no longer be reached are skipped.

A fault of the next commit or of the next write (`refuse`, `lose_reply`, `lose_request`, `crash_write`) is done, for the
steps after it, as soon as it lies in wait. It counts as struck when the newest incarnation of the task meets it, and
as skipped when that never happens.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from store.points import Point

VERSION = 1
MAX_BYTES = 4_000_000
MAX_INPUT = 10_000
MAX_STEPS = 1_000
MAX_PARTITIONS = 16
MAX_HOSTS = 8


class ScheduleError(Exception):
    """A schedule file that cannot be used: says which file, where in it, and what is allowed."""


class Runtime(StrEnum):
    """What drives the tasks."""

    WORKER = "worker"
    """One plain process per task, started again by a supervisor when it dies."""
    SPARK = "spark"
    """Spark Structured Streaming: micro-batches, a Python worker per task attempt, retries."""


class Operation(StrEnum):
    KILL = "kill"
    """SIGKILL the process that runs the task (at the points `batch_*`: Spark's driver). It is started again."""
    WIPE = "wipe"
    """The same, and the state of that task on that host is gone when it starts again."""
    POWER = "power"
    """The same, and the host's disk forgets some suffix of what was not yet synced: nothing, a part, or all of it,
    as the moment has it (simulation only)."""
    CRASH_WRITE = "crash_write"
    """The process that runs the task dies right after the next write of its stores reached the operating system, before
    that write returns (simulation only). It is started again."""
    PAUSE = "pause"
    """Stop the process that runs the task (SIGSTOP), and start a new incarnation on another host: a zombie."""
    RESUME = "resume"
    """Let the longest paused zombie of the task go on (SIGCONT)."""
    TAKE = "take"
    """Start a second incarnation of the task on another host while the first one runs on."""
    EXPIRE = "expire"
    """Let the transaction timeout pass: the coordinator aborts what is open (simulation only)."""
    REFUSE = "refuse"
    """The next commit of the task is answered with an error that requires an abort."""
    LOSE_REPLY = "lose_reply"
    """The next commit of the task happens, and its answer is lost."""
    LOSE_REQUEST = "lose_request"
    """The next commit of the task never reaches the broker, and the client cannot know."""
    LAG = "lag"
    """From now on commits are acknowledged before their markers are written (simulation only)."""


AT_POINT = frozenset({Operation.KILL, Operation.WIPE, Operation.POWER, Operation.PAUSE, Operation.TAKE})
SIMULATION_ONLY = frozenset({Operation.POWER, Operation.CRASH_WRITE, Operation.EXPIRE, Operation.LAG})


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Wait, operation, argument."""

    op: Operation
    task: int = 0
    """The partition whose task is meant."""
    at: Point | None = None
    """The protocol point at which the operation strikes; None: as soon as the wait is over."""
    wait: int = 0
    """Records processed, by all tasks together, before the step is armed."""

    def __str__(self) -> str:
        words = [str(self.op), f"task {self.task}"]
        if self.at is not None:
            words.append(f"at {self.at}")
        if self.wait:
            words.append(f"after {self.wait} more record{'s' if self.wait > 1 else ''}")
        return " ".join(words)


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One input record; `aborted` ones are written in a transaction that is aborted and must not count."""

    partition: int
    key: str
    value: Any = None
    aborted: bool = False


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    scenario: str
    input: tuple[Input, ...] = ()
    steps: tuple[Step, ...] = ()
    runtime: Runtime = Runtime.WORKER
    partitions: int = 1
    hosts: int = 2
    commit_records: int = 3
    """A task commits after this many records, and when its input runs dry."""
    batch_records: int = 6
    """Spark: records per partition in one micro-batch."""
    mutant: str | None = None
    """The planted bug that this schedule was found with; a note, not an instruction."""
    version: int = VERSION

    def faults(self) -> int:
        return len(self.steps)

    def describe(self) -> list[str]:
        return [str(step) for step in self.steps]


def encode(schedule: Schedule) -> bytes:
    """The JSON text of a schedule file, the version first."""
    data = {"version": schedule.version, **msgspec.to_builtins(schedule)}
    return msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n"


def decode(text: bytes, source: str = "the schedule") -> Schedule:
    """Parse and check; `ScheduleError` names `source`, the place and what is allowed. Nothing is executed."""
    text = text.removeprefix(BOM_UTF8)
    if len(text) > MAX_BYTES:
        raise ScheduleError(f"{source}: {len(text)} bytes; a schedule has at most {MAX_BYTES}")
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ScheduleError(f"{source}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ScheduleError(f"{source}: a schedule is a JSON object, this is {type(raw).__name__}")
    version = raw.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ScheduleError(f"{source}: no usable version; this release writes and reads version {VERSION}")
    if version > VERSION:
        raise ScheduleError(
            f"{source}: version {version} is newer than this release, which reads up to {VERSION}; "
            "upgrade crashproof to replay it"
        )
    try:
        schedule = msgspec.convert(raw, Schedule)
    except msgspec.ValidationError as error:
        raise ScheduleError(f"{source}: {error}{_allowed(str(error))}") from None
    for name, value, low, high in (
        ("partitions", schedule.partitions, 1, MAX_PARTITIONS),
        ("hosts", schedule.hosts, 1, MAX_HOSTS),
        ("commit_records", schedule.commit_records, 1, 1_000_000),
        ("batch_records", schedule.batch_records, 1, 1_000_000),
        ("number of input records", len(schedule.input), 0, MAX_INPUT),
        ("number of steps", len(schedule.steps), 0, MAX_STEPS),
    ):
        if not low <= value <= high:
            raise ScheduleError(f"{source}: {name} is {value}, allowed are {low} to {high}")
    for index, item in enumerate(schedule.input):
        if not 0 <= item.partition < schedule.partitions:
            raise ScheduleError(
                f"{source}: input[{index}].partition is {item.partition}, there are {schedule.partitions}"
            )
    for index, step in enumerate(schedule.steps):
        if not 0 <= step.task < schedule.partitions:
            raise ScheduleError(
                f"{source}: steps[{index}].task is {step.task}, there are {schedule.partitions}"
            )
        if step.wait < 0:
            raise ScheduleError(f"{source}: steps[{index}].wait is {step.wait}, it cannot be negative")
        if step.at is not None and step.op not in AT_POINT:
            raise ScheduleError(f"{source}: steps[{index}]: {step.op} takes no point")
    return schedule


def _allowed(message: str) -> str:
    """The values that the field could have, when a name was not one of them."""
    if "enum value" not in message:
        return ""
    names = {"op`": Operation, "at`": Point, "runtime`": Runtime}
    kind = next((kind for field, kind in names.items() if message.endswith(field)), None)
    return "" if kind is None else f"; there are {', '.join(kind)}"


def load(path: Path) -> Schedule:
    """Read a schedule file; `ScheduleError` names the file and what is wrong with it."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ScheduleError(f"{path}: {error.strerror}") from None
    return decode(text, str(path))
