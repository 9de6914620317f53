"""A schedule is plain data: the input, the settings of the run, and a sparse list of faults and queries.

It determines a run completely; seeds are never what is stored. A step that cannot apply is skipped and
recorded as skipped, so that deleting any part of a schedule leaves a schedule, which is what makes shrinking easy.

Steps apply in order. A step waits until `wait` more records were processed anywhere (counted from the moment the
step before it was done) and then, if it names a point, until the newest incarnation of its task reaches that
point. When nothing is left to process, waiting is over: steps without a point apply at once, steps whose point
can no longer be reached are skipped.

A fault that lies in wait for something the task does (`Where.OCCASION`) is done, for the steps after it, as soon as it
lies there. It counts as injected when the newest incarnation of the task meets it, and as skipped when that never
happens.

Version 1 knew one input topic without time, tasks by partition, no settings but two and no queries; it is still read.
"""

from __future__ import annotations

import re
import warnings
from codecs import BOM_UTF8
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from harness.faults import FAULTS, Occasion, Where
from store.config import StreamsConfig
from store.errors import ConfigError
from store.points import Point
from store.types import IsolationLevel

VERSION = 2
MAX_BYTES = 4_000_000
MAX_INPUT = 10_000
MAX_STEPS = 1_000
MAX_PARTITIONS = 16
MAX_HOSTS = 8
NO_TIME = -1
"""Of an input record without a time of its own. Clients of real systems write it with an early one."""
LATEST_INPUT = 1 << 62
"""Timestamps of input are below, in milliseconds since the epoch."""
MAX_AMOUNT = 1 << 42
"""A hundred years and more, in milliseconds: what a clock and a store can still hold."""

INPUT = "input"
"""The topic of an input record that names none."""

TASK = "0_0"
"""The task of a step that names none: the first partition of the first sub-topology."""

_TASK = re.compile(r"(0|[1-9][0-9]{0,3})_(0|[1-9][0-9]{0,3})")
_BYTE = re.compile(r"\(byte (\d+)\)")
_SETTING_OF_V1 = "commit.records"
_FAULT_OF_V1 = {
    "power": "power_loss",
    "crash_write": "kill_after_write",
    "take": "second_incarnation",
    "expire": "transaction_timeout",
    "refuse": "abort_commit",
    "lag": "delay_markers",
}
"""How version 1 called some faults."""

TRANSACTION_TIMEOUT_MS = 60_000
MAX_TRANSACTION_TIMEOUT_MS = 900_000
"""`transaction.max.timeout.ms` of the brokers of all worlds, which is Kafka's default."""


MIN_TRANSACTION_TIMEOUT_MS = 1_000
"""In the time of a simulated run, which goes on by some milliseconds with each turn, and more with what is waited for,
transactions of a shorter one would end by themselves."""


class ScheduleError(Exception):
    """A schedule file that cannot be used: says which file, where in it, and what is allowed."""


class Runtime(StrEnum):
    """What drives the tasks."""

    WORKER = "worker"
    """One plain process per task, started again by a supervisor when it dies."""
    SPARK = "spark"
    """Spark Structured Streaming: micro-batches, a Python worker per task attempt, retries."""
    STREAMS = "streams"
    """Members of a consumer group, one process per host, each with the tasks that the group gives it."""


class Edge(StrEnum):
    """A side of a call of the client to the broker, where processes may switch or be struck as at a protocol point."""

    BEFORE = "before"
    """The request was not sent."""
    AFTER = "after"
    """The broker has answered, and the client has not taken the answer."""


class QueryKind(StrEnum):
    """What a query asks of a store."""

    KEY = "key"
    """One row: of a versioned, window or session store the newest of the key."""
    RANGE = "range"
    """All rows between two keys, both included."""
    ALL = "all"
    """All rows."""


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A question to a store of a running task, as another thread of its process asks it."""

    store: str
    """Its name in the topology."""
    kind: QueryKind = QueryKind.ALL
    """`key`, `range` or `all`."""
    key: str = ""
    """The key, or the lower bound of a range, which an empty one has not."""
    upper: str = ""
    """The upper bound of a range; empty: none."""
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    """`READ_COMMITTED` or `READ_UNCOMMITTED`."""
    backward: bool = False
    """Whether from the greatest key to the least."""
    bound: int | None = None
    """An input offset of each source that the store must have reached, or the answer is that it has not."""
    hold: int = 0
    """Records that are processed while the iterator stays open, after its first row was read."""
    first: int = 0
    """Milliseconds since the epoch: the first time asked for, of a versioned or window store."""
    last: int | None = None
    """The last time asked for, of a versioned or window store; of one row the moment that it is to be of. Absent: no
    bound."""
    slow: bool = False
    """At READ_COMMITTED: whether the thread that asks makes one call of the store at every other protocol point of the
    task and no more, so that commits come in between."""
    elsewhere: bool = False
    """Of stores in real files, in the simulation: whether another process asks, which follows the files of the task's
    host. It sees what is committed. Elsewhere the task's own process is asked all the same."""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fault or a query, with when and where: exactly one of `fault` and `query` is given."""

    fault: str = ""
    """A name of `harness.faults.FAULTS`."""
    query: Query | None = None
    """What is asked instead."""
    task: str = TASK
    """Sub-topology and partition."""
    at: Point | None = None
    """The protocol point at which the fault strikes; None: as soon as the wait is over."""
    call: Occasion | None = None
    """The client call at whose `edge` the fault strikes; or what a fault lies in wait for."""
    edge: Edge | None = None
    """`before` the request is sent, or `after` the broker has answered."""
    wait: int = 0
    """Records processed, by all tasks together, before the step is armed."""
    amount: int = 0
    """Of a fault that has an amount: that, 0 for its usual one."""
    topic: str = ""
    """Of a fault that strikes a topic: its name without the application id."""
    settings: Mapping[str, Any] = {}
    """Of a fault that changes settings: those that change."""

    def __str__(self) -> str:
        if self.query is not None:
            query = self.query
            words = [f"query {query.kind} of {query.store} at {query.isolation}", f"task {self.task}"]
        else:
            words = [self.fault, self.topic or f"task {self.task}"]
        if self.at is not None:
            words.append(f"at {self.at}")
        if self.call is not None:
            words.append(f"{self.edge or 'on'} {self.call}")
        if self.amount:
            words.append(f"by {self.amount}")
        words += [f"{name}={value}" for name, value in self.settings.items()]
        if self.wait:
            words.append(f"after {self.wait} more record{'s' if self.wait > 1 else ''}")
        return " ".join(words)


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One input record; `aborted` ones are written in a transaction that is aborted and must not count."""

    partition: int
    """Of the topic."""
    key: str
    """Empty for a record without one."""
    value: Any = None
    """What the scenario takes; null is a deletion."""
    aborted: bool = False
    """Whether it is written in a transaction that is aborted."""
    topic: str = INPUT
    """Without the application id."""
    timestamp: int = 0
    """Milliseconds since the epoch; may go backward from record to record."""
    headers: tuple[tuple[str, str | None], ...] = ()
    """Names and values; a value may be null."""


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One run: what goes in, how it runs, and what happens to it."""

    scenario: str
    """A name, a file (from the directory of the schedule's file, or else from the current one), or a module."""
    input: tuple[Input, ...] = ()
    """Records, in the order in which they are written."""
    steps: tuple[Step, ...] = ()
    """Faults and queries, in the order in which they come."""
    runtime: Runtime = Runtime.WORKER
    """`worker`, `spark` or `streams`."""
    partitions: int = 1
    """Of every topic: so many tasks has each sub-topology."""
    hosts: int = 2
    """Machines, each with a disk of its own."""
    batch_records: int = 6
    """Spark: records per partition in one micro-batch."""
    waves: int = 1
    """The input comes in so many parts, alike in size: the first before the run begins, each other one when everything
    before it was processed."""
    shared: bool = False
    """In the simulation, by workers: the tasks of a sub-topology that run on one host, and the warm copies there, share
    a process, which takes tasks in and lets them go while it runs. Other worlds have a process for each task."""
    static: bool = False
    """Streams: members have an instance id, so one that comes back in time has its tasks again without a rebalance."""
    replaced: bool = False
    """In the simulation, by streams: where a process would be started again because a thread of it has failed, that
    thread is replaced, and the process goes on."""
    plain: bool = False
    """The input is written without transactions, but for records that are `aborted`: what ends with a record has no
    marker behind it."""
    files: bool = False
    """In the simulation: stores lie in RocksDB, in real files, and not on a disk that is simulated too. Other worlds
    have real files anyway."""
    settings: Mapping[str, Any] = {}
    """Configuration of the tasks, by the dotted names of `store.config.StreamsConfig`, where it is not that of
    `config_of`."""
    choices: tuple[int, ...] = ()
    """Answers to the first questions of the simulation in which it could go on in more than one way; 0 for the rest."""
    mutant: str | None = None
    """The planted bug that this schedule was found with; a note, not an instruction."""
    version: int = VERSION

    def faults(self) -> int:
        return sum(step.query is None for step in self.steps)

    def parts(self) -> list[tuple[Input, ...]]:
        """The input, wave by wave."""
        size = max(1, -(-len(self.input) // self.waves))
        return [self.input[at : at + size] for at in range(0, max(1, len(self.input)), size)]

    def describe(self) -> list[str]:
        return [str(step) for step in self.steps]


_BASE: Mapping[str, Any] = {
    # By count only, so that a run does not depend on how fast it is, and below every transaction timeout that is drawn.
    "commit.interval.ms": TRANSACTION_TIMEOUT_MS // 4 - 1,
    "commit.records": 3,
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    "restore.batch.records": 2,
    "task.timeout.ms": 4 * TRANSACTION_TIMEOUT_MS,
    "statestore.cache.max.bytes": 0,
    "num.commit.threads": 1,
}


MOST_CONFIGS = 1_000
_CONFIGS: dict[str, StreamsConfig] = {}
"""By the settings that they were made from, which differ little from run to run."""


def config_of(schedule: Schedule, changed: Mapping[str, Any] | None = None) -> StreamsConfig:
    """The configuration of the tasks of a run; `changed` are settings that a step of it has changed since.

    Raises `ConfigError` for one that cannot be, or that no world's broker would take.
    """
    name = repr((schedule.settings, changed or {}))
    config = _CONFIGS.get(name)
    if config is None:
        given = {**schedule.settings, **(changed or {})}
        values = {**_BASE, **given}
        timeout = values["transaction.timeout.ms"]
        if "commit.interval.ms" not in given and type(timeout) is int and timeout > 1:
            values["commit.interval.ms"] = min(values["commit.interval.ms"], timeout - 1)
        values.setdefault("poll.records", values["commit.records"])
        with warnings.catch_warnings():
            # Exactly once raises an isolation level that is too low, and a deprecated setting is one that is drawn:
            # right here, and not worth a word.
            warnings.simplefilter("ignore")
            config = StreamsConfig.of(values)
        if config.exactly_once and config.transaction_timeout_ms < MIN_TRANSACTION_TIMEOUT_MS:
            raise ConfigError(
                "transaction.timeout.ms",
                timeout,
                f"at least {MIN_TRANSACTION_TIMEOUT_MS} in a schedule, whose transactions would end before their "
                "commits",
            )
        if config.exactly_once and config.transaction_timeout_ms > MAX_TRANSACTION_TIMEOUT_MS:
            raise ConfigError(
                "transaction.timeout.ms",
                timeout,
                f"at most {MAX_TRANSACTION_TIMEOUT_MS}, the transaction.max.timeout.ms of the brokers that schedules "
                "run on",
            )
        if len(_CONFIGS) == MOST_CONFIGS:
            _CONFIGS.clear()
        _CONFIGS[name] = config
    return config


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
        raise ScheduleError(f"{source}: not JSON: {_BYTE.sub(partial(_line, text), str(error))}") from None
    if not isinstance(raw, dict):
        raise ScheduleError(f"{source}: a schedule is a JSON object, this is {type(raw).__name__}")
    version = raw.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ScheduleError(f"{source}: no usable version; this release writes version {VERSION}")
    if version > VERSION:
        raise ScheduleError(
            f"{source}: version {version} is newer than this release, which reads up to {VERSION}; "
            "upgrade crashproof to replay it"
        )
    if version == 1:
        raw = _from_version_1(raw)
    try:
        schedule = msgspec.convert(raw, Schedule)
    except msgspec.ValidationError as error:
        raise ScheduleError(f"{source}: {error}{_allowed(str(error))}") from None
    validate(schedule, source)
    return schedule


def _line(text: bytes, byte: re.Match[str]) -> str:
    """Where a byte of a text is, as editors count."""
    lines = text[: int(byte[1])].split(b"\n")
    return f"(line {len(lines)}, column {len(lines[-1].decode(errors='replace')) + 1})"


def _from_version_1(raw: dict[str, Any]) -> dict[str, Any]:
    """The same run in the words of this version. What is malformed stays, to be refused like any other."""
    new = {**raw, "version": VERSION}
    commit_records = new.pop("commit_records", None)
    if commit_records is not None:
        new["settings"] = {_SETTING_OF_V1: commit_records}
    steps = new.get("steps")
    if isinstance(steps, list):
        new["steps"] = [_step_from_version_1(step) if isinstance(step, dict) else step for step in steps]
    return new


def _step_from_version_1(step: dict[str, Any]) -> dict[str, Any]:
    new = dict(step)
    if "op" in new:
        op = new.pop("op")
        new["fault"] = _FAULT_OF_V1.get(op, op) if isinstance(op, str) else op
    task = new.get("task")
    if isinstance(task, int) and not isinstance(task, bool):
        new["task"] = f"0_{task}"
    return new


def validate(schedule: Schedule, source: str = "the schedule") -> None:
    """Check what the types do not say; `ScheduleError` names `source`, the place and what is allowed."""
    for name, value, low, high in (
        ("partitions", schedule.partitions, 1, MAX_PARTITIONS),
        ("hosts", schedule.hosts, 1, MAX_HOSTS),
        ("waves", schedule.waves, 1, MAX_INPUT),
        ("batch_records", schedule.batch_records, 1, 1_000_000),
        ("number of input records", len(schedule.input), 0, MAX_INPUT),
        ("number of steps", len(schedule.steps), 0, MAX_STEPS),
    ):
        if not low <= value <= high:
            raise ScheduleError(f"{source}: {name} is {value}, allowed are {low} to {high}")
    try:
        config_of(schedule)
    except ConfigError as error:
        raise ScheduleError(f"{source}: settings: {error}") from None
    for index, item in enumerate(schedule.input):
        if not 0 <= item.partition < schedule.partitions:
            raise ScheduleError(
                f"{source}: input[{index}].partition is {item.partition}, there are {schedule.partitions}"
            )
        if not NO_TIME <= item.timestamp < LATEST_INPUT:
            raise ScheduleError(
                f"{source}: input[{index}].timestamp is {item.timestamp}, allowed are {NO_TIME} to {LATEST_INPUT - 1}"
            )
    for index, choice in enumerate(schedule.choices):
        if choice < 0:
            raise ScheduleError(f"{source}: choices[{index}] is {choice}, it cannot be negative")
    for index, step in enumerate(schedule.steps):
        wrong = _wrong(step, schedule)
        if wrong:
            raise ScheduleError(f"{source}: steps[{index}]{wrong}")


def _wrong(step: Step, schedule: Schedule) -> str:
    """What is wrong with a step, to be put after its name; empty if nothing is."""
    match = _TASK.fullmatch(step.task)
    if match is None:
        return f".task is {step.task!r}, a task is named by sub-topology and partition, such as 0_1"
    if int(match[2]) >= schedule.partitions:
        return f".task is {step.task}, and partitions is {schedule.partitions}"
    if step.wait < 0:
        return f".wait is {step.wait}, it cannot be negative"
    if bool(step.fault) == (step.query is not None):
        return ": a step has either a fault or a query"
    if step.query is not None:
        unused = step.call or step.edge or step.amount or step.topic or step.settings
        return ": a query takes task, at and wait alone" if unused else _wrong_query(step.query)
    fault = FAULTS.get(step.fault)
    if fault is None:
        return f".fault is {step.fault!r}; there are {', '.join(FAULTS)}"
    if step.at is not None and fault.where is not Where.POINT:
        return f": {step.fault} takes no point"
    if (step.edge is not None) and fault.where is not Where.POINT:
        return f": {step.fault} takes no edge"
    if fault.where is Where.POINT and (step.edge is None) != (step.call is None):
        return ": call and edge come together"
    if step.at is not None and step.call is not None:
        return ": a point and a call exclude each other"
    if fault.where is Where.OCCASION and step.call is not None and step.call not in fault.occasions:
        return f".call is {step.call}, {step.fault} lies in wait for {', '.join(fault.occasions)}"
    if fault.where is Where.NOW and step.call is not None:
        return f": {step.fault} takes no call"
    if step.amount and (not fault.amount or not 0 < step.amount <= MAX_AMOUNT):
        takes = f"a positive one of at most {MAX_AMOUNT}" if fault.amount else "none"
        return f".amount is {step.amount}: {step.fault} takes {takes}"
    if bool(step.topic) != fault.on_topics:
        return f": {step.fault} {'strikes a topic, name it' if fault.on_topics else 'takes no topic'}"
    if bool(step.settings) != fault.changes_settings:
        return f": {step.fault} {'needs settings' if fault.changes_settings else 'takes no settings'}"
    try:
        config_of(schedule, step.settings)
    except ConfigError as error:
        return f".settings: {error}"
    return ""


def _wrong_query(query: Query) -> str:
    if not 0 <= query.first <= (LATEST_INPUT if query.last is None else query.last) <= LATEST_INPUT:
        return f".query asks from time {query.first} to {query.last}, which cannot be"
    if query.hold < 0:
        return f".query.hold is {query.hold}, it cannot be negative"
    if query.elsewhere and query.isolation is not IsolationLevel.READ_COMMITTED:
        return ".query.elsewhere: another process sees READ_COMMITTED alone"
    if query.slow and query.isolation is not IsolationLevel.READ_COMMITTED:
        return ".query.slow: what is not committed may be another between two calls"
    if query.bound is not None and query.bound < 0:
        return f".query.bound is {query.bound}, it cannot be negative"
    return ""


def _allowed(message: str) -> str:
    """The values that the field could have, when a name was not one of them."""
    if "unknown field" in message:
        return "; `crashproof format` lists those that there are"
    if "enum value" not in message:
        return ""
    names = {
        "at`": Point,
        "runtime`": Runtime,
        "call`": Occasion,
        "edge`": Edge,
        "kind`": QueryKind,
        "isolation`": IsolationLevel,
    }
    kind = next((kind for field, kind in names.items() if message.endswith(field)), None)
    return "" if kind is None else f"; there are {', '.join(kind)}"


def load(path: Path) -> Schedule:
    """Read a schedule file; `ScheduleError` names the file and what is wrong with it."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ScheduleError(f"{path}: {error.strerror}") from None
    return decode(text, str(path))
