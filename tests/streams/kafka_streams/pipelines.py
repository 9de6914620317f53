"""Pipelines of the DSL as data: made at random, and run by `TestDriver`. `Pipelines.java` runs the same ones.

A pipeline is a list of steps, each with what it `do`es, the earlier steps that it is made `of`, and its settings.
Keys and values are text, and each output is compared as it says. What
`docs/kafka-streams-differences.md` says is done otherwise here is not generated.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, cast

from store.config import StoreType, StreamsConfig
from store.errors import BufferFullError, ConfigError
from store.serdes import StrSerde
from store.state.windowed import LATEST, Windowed
from store.streams.application import Application
from store.streams.dsl import (
    BufferConfig,
    EmitStrategy,
    JoinWindows,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    Materialized,
    ProcessorContext,
    PunctuationType,
    SessionWindowedSerde,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamRecord,
    StreamsBuilder,
    Suppressed,
    TimeWindowedSerde,
    TimeWindows,
    UnlimitedWindows,
)
from store.streams.dsl.processors import FixedKeyContext
from store.streams.timestamps import (
    ConsumedRecord,
    Extractor,
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    UsePartitionTimeOnInvalidTimestamp,
)
from store.suppliers import (
    StoreSupplier,
    key_value_store_builder,
    persistent_key_value_store,
    persistent_versioned_key_value_store,
    persistent_window_store,
)
from store.testing.driver import TestDriver
from store.types import Headers

Step = dict[str, Any]
Pipeline = dict[str, Any]

TEXT = StrSerde()
LONGEST = 12
HOUR_MS = 3_600_000
BEGIN_MS = 1_000_000

_OPERATOR = re.compile(
    r"^ +(?:Source|Processor|Sink): (\S+) \((?:stores: \[(.*)\])?.*\)(?:\n +--> (?:none|(.*)))?$",
    re.MULTILINE,
)
"""Where a description names one, its stores and its children."""

_WRITTEN_OTHERWISE = re.compile(
    "KSTREAM-(JOIN|OUTER)(THIS|OTHER)-.*|.*-(this|other)-join-store-.*|(this|other)-of-.*|KTABLE-SUPPRESS-.*|"
    "named-[0-9]+-store-changelog|.*-Buffer-changelog|.*-positions|.*-topic|.*SUBSCRIPTION.*|.*-subscription-store-.*"
)
"""Internal topics that have other bytes: duplicates are counted otherwise, and what is suppressed, waits, or is joined
by a foreign key is nobody else's."""

KINDS = ("inner", "left", "outer")
AGGREGATES = ("count", "reduce", "aggregate")


# -- run -------------------------------------------------------------------------------------------------------


def run(
    pipeline: Pipeline,
    *,
    commit_every: int | None = None,
    crash_every: int = HOUR_MS,
    together: bool = False,
) -> dict[str, Any]:
    """The names of operators, stores and topics, what the operators have and lead to, the settings of internal topics
    and what tells their records, and the records of each output, in order: key, value, timestamp, and the number of the
    input record in its headers, if it was `numbered`. `stopped` is the number of the record that ended it, which is the
    last one then; what that had led to is left out. Commits and crashes come after so many steps of the input, commits
    after `every` of the pipeline where nothing else is said; a crash takes back what was not committed. `together`: all
    between two commits is one batch."""
    commit_every = commit_every or pipeline.get("every", 1)
    application = build(pipeline["steps"])
    # Those who read global tables are not said to have them there.
    globals_ = {one.name for topology in application.sub_topologies for one in topology.global_stores}
    answer: dict[str, Any] = {
        "operators": {
            name: f"{_sorted(stores, but=globals_)}>{_sorted(children)}"
            for name, stores, children in sorted(_OPERATOR.findall(application.describe()))
        },
        "stores": sorted(
            store if isinstance(store, str) else store.name
            for topology in application.sub_topologies
            for store in topology.stores
        ),
        "sources": sorted(
            topic.removeprefix("app-")
            for topology in application.sub_topologies
            for topic in topology.sources
        ),
        "topics": _internal(application),
    }
    partitions = _partitions(application, pipeline["partitions"])
    if partitions is not None:
        answer["partitions"] = partitions
    with (_CommittingEach if commit_every == 1 else TestDriver)(
        application, _config(pipeline), auto_commit=False
    ) as driver:
        produce = driver.log.plain_producer().produce
        outputs: dict[str, list[Any]] = {topic: [] for topic in pipeline["outputs"]}
        for number, record in enumerate([*pipeline["records"], []], 1):
            try:
                if len(record) == 1:
                    driver.advance_wall_clock(record[0])
                elif record:
                    topic, key, value, timestamp = record
                    headers = _headers(number) if pipeline["numbered"] else ()
                    if together:
                        data = None if value is None else TEXT.serialize(value)
                        named = None if key is None else TEXT.serialize(key)
                        produce(topic, named, data, partition=0, timestamp=timestamp, headers=headers)
                    else:
                        driver.pipe_input(topic, key, value, timestamp, headers)
                    if number % crash_every == 0:
                        driver.crash()
                if not record or number % commit_every == 0:
                    driver.process()
                    driver.commit()
            except (BufferFullError, ValueError):
                answer["stopped"] = number
                break
            for topic, records in outputs.items():
                if topic in driver.log.topics:
                    records += [_read(topic, *record) for record in driver.read_output(topic)]
        answer["outputs"] = {topic: records for topic, records in outputs.items() if records}
        if "stopped" not in answer:
            answer["written"] = _written(driver, pipeline["steps"])
    return answer


def _sorted(names: str, *, but: Collection[str] = ()) -> str:
    return " ".join(sorted(name for name in names.split(", ") if name and name not in but))


def _written(driver: TestDriver, steps: list[Step]) -> dict[str, str]:
    """What tells the records of each internal topic: all of them, or of a changelog the last one of each key. Of those
    that have the bytes that Kafka Streams writes; a version that is not the newest is logged with that one here."""
    versioned = {f"{step['stored']}-changelog" for step in steps if "history" in step}
    written = {}
    for topic in sorted(driver.log.topics):
        name = topic.removeprefix("app-")
        records = list(driver.log.records(topic))
        if name == topic or not records or name in versioned or _WRITTEN_OTHERWISE.fullmatch(name):
            continue
        said = [
            (record.key or b"").hex()
            + ("-" if record.value is None else f"={record.value.hex()}")
            + f"@{record.timestamp}\n"
            for record in records
        ]
        if name.endswith("-changelog"):
            last = {
                (record.key or b"").hex(): "" if record.value is None else line
                for record, line in zip(records, said, strict=True)
            }
            said = [last[key] for key in sorted(last)]
        written[name] = hashlib.sha256("".join(said).encode()).hexdigest()[:12]
    return written


def _internal(application: Application) -> dict[str, list[str]]:
    """The internal topics of each kind of settings."""
    topics: dict[str, list[str]] = {}
    for spec in application.internal_topics(lambda _topic: 1):
        if not spec.name.endswith("-positions"):
            ours = _OF_CHANGELOGS if spec.name.endswith("-changelog") else frozenset()
            settings = sorted(
                f"{name}={value}"
                for name, value in spec.config.items()
                if name not in _OF_ALL and (name, value) not in ours
            )
            topics.setdefault(" ".join(settings), []).append(spec.name.removeprefix("app-"))
    return topics


def _partitions(application: Application, inputs: dict[str, int]) -> dict[str, int] | None:
    """How many each repartition topic has where the inputs have those; None where they do not fit together."""
    try:
        topics = application.internal_topics(inputs.__getitem__)
    except ConfigError:
        return None
    return {
        spec.name.removeprefix("app-"): spec.partitions
        for spec in topics
        if spec.name in application.repartition_topics
    }


def _config(pipeline: Pipeline) -> dict[str, Any]:
    config: dict[str, Any] = {"statestore.cache.max.bytes": pipeline["cache"]}
    if any(step.get("raises") for step in pipeline["steps"]):
        config |= {"processing.exception.handler": "continue", "processing.guarantee": "at_least_once"}
    timed = _timed(pipeline)
    return config if timed is None else config | {"default.timestamp.extractor": timed}


def _headers(number: int) -> Headers:
    """Those of the input record of that number: some have several, or one without a value."""
    numbered = ("n", str(number).encode())
    return ((numbered,), (numbered, ("m", None)), (("m", b""), numbered, numbered))[number % 3]


def _read(topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> list[Any]:
    """A record of an output: bytes of keys that have a window as they are."""
    return [
        None if key is None else key.hex() if topic.startswith("windowed") else key.decode(),
        None if value is None else value.decode(),
        timestamp,
        "".join(f"{k}{'-' if v is None else v.decode()}" for k, v in headers),
    ]


_OF_ALL = {
    "message.timestamp.type",
    "delete.retention.ms",
    "retention.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
}
"""Settings that say the same of all internal topics that have them; all but the first one only here."""
_OF_CHANGELOGS = frozenset({("segment.ms", str(2**63 - 1)), ("segment.bytes", str(50 << 20))})
"""What is said only here, of the changelogs of windows, sessions and versions, unless a pipeline says otherwise."""


class _CommittingEach(TestDriver):
    """Commits after each record, those of repartition topics too, as Kafka Streams' test driver does."""

    def _open(self) -> None:
        self._config = StreamsConfig.of(self._config.as_dict() | {"commit.records": 1})
        super()._open()


def build(steps: list[Step]) -> Application:
    builder = StreamsBuilder("app", key_serde=TEXT, value_serde=TEXT)
    made: list[Any] = []
    for step in steps:
        made.append(_make(builder, [made[index] for index in step["of"]], step))
    return builder.build()


def _make(builder: StreamsBuilder, of: list[Any], step: Step) -> Any:
    how = step.get("how", "")
    kept = _stored(step) if "stored" in step else None
    name = step.get("called")
    keyed = bool(step.get("keyed"))
    joined: Callable[..., str | None] = _joined
    joiner: Callable[..., str | None] = _joined_of_key if keyed else _joined
    if step.get("nothing"):
        joined, joiner = _but_for_x(joined), _but_for_x(joiner)
    match step["do"], *of:
        case ["stream"]:
            return builder.stream(how.split("+"), timestamp_extractor=_timed(step), name=name)
        case ["table"]:
            return builder.table(how, timestamp_extractor=_timed(step), materialized=kept, name=name)
        case ["global"]:
            return builder.global_table(how)
        case "to", one:
            topic: Any = (lambda _key, _value, _context: how) if step.get("found") else how
            return one.to(topic, partitioner=_first_partition if step.get("sent") else None, name=name)
        case "filter", one:
            return one.filter(_PREDICATES[how], name=name)
        case "filter_not", one:
            return one.filter_not(_PREDICATES[how], name=name)
        case "map_values", one:
            mark: Any = _marked_of_key if keyed else _marked
            return one.map_values(_checked(step, mark), with_key=keyed, name=name)
        case "flat_map_values", one:
            letters: Any = (lambda key, value: [_said(key), *_letters(value)]) if keyed else _letters
            return one.flat_map_values(_checked(step, letters), with_key=keyed, name=name)
        case "flat_map", one:
            return one.flat_map(
                lambda key, value: [(letter, f"{_said(key)}{letter}") for letter in _letters(value)],
                name=name,
            )
        case "peek", one:
            return one.peek(_checked(step, lambda _key, _value: None), name=name)
        case "foreach", one:
            return one.foreach(lambda _key, _value: None, name=name)
        case "select_key", one:
            none = step.get("none", b"never")
            return one.select_key(
                _checked(step, lambda _key, value: None if value == none else _first(value)), name=name
            )
        case "map", one:
            return one.map(
                _checked(step, lambda key, value: (_first(value), _last(f"{_said(key)}:{_said(value)}"))),
                name=name,
            )
        case "repartition", one:
            return one.repartition(
                name=name,
                number_of_partitions=step.get("partitions"),
                partitioner=_first_partition if step.get("sent") else None,
            )
        case "through", one:
            one.to(how, name=name)
            return builder.stream(how, timestamp_extractor=_timed(step))
        case "merge", one, other:
            return one.merge(other, name=name)
        case "split", one:
            split = one.split(name=name).branch(_PREDICATES["even"], name=step.get("branch"))
            split = split.branch(_PREDICATES["not_a"])
            branches = split.default_branch() if step["default"] else split.no_default_branch()
            first, second, *_ = dict(sorted(branches.items())).values()
            return first.merge(second)
        case "process", one:
            builder.add_state_store(_state_store(step))
            processed = one.process(partial(_Punctuated, step), step["store"], name=name)
            if not step.get("parted"):
                return processed
            marked = processed.map_values(_marked, name=f"{step['store']}-marked")
            return marked.merge(processed.filter(_PREDICATES["valued"], name=f"{step['store']}-valued"))
        case "process_values", one:
            builder.add_state_store(_state_store(step))
            return one.process_values(partial(_AddedUp, step), step["store"], name=name)
        case "look", one:
            return one.process_values(partial(_Looking, step), step["store"])
        case "to_table", one:
            return one.to_table(materialized=kept, name=name)
        case "group", one:
            return _aggregate(one.group_by_key(name=name), how, step)
        case "group_by", one:
            return _aggregate(one.group_by(lambda _key, value: _first(value), name=name), how, step)
        case "cogroup", one, *others:
            adder = _adding(step)
            cogrouped = one.group_by_key(name=name).cogroup(adder)
            for other in others:
                cogrouped = cogrouped.cogroup(other.group_by_key(), adder)
            said: Any = {"materialized": _stored(step), "name": step.get("operator"), "value_serde": TEXT}
            if "windows" not in step:
                return cogrouped.aggregate(_begun(step), **said)
            table = cogrouped.windowed_by(_windows(step)).aggregate(_begun(step), _merger(step), **said)
            return table.to_stream(lambda key, _value: _named(key))
        case "window", one:
            return _windowed(one.group_by_key(name=name), how, step)
        case "join_windows", *both:
            left, right = (one.group_by_key().windowed_by(_windows(step)).reduce(_added) for one in both)
            join = {"inner": left.join, "left": left.left_join, "outer": left.outer_join}[how]
            return join(right, _joined, name=name).to_stream(lambda key, _value: _named(key))
        case "join_streams", one, other:
            windows = JoinWindows.of_time_difference(max(0, step["before"]), grace=step["grace"])
            windows = windows.after(step["after"]).before(step["before"])
            join = {"inner": one.join, "left": one.left_join, "outer": one.outer_join}[how]
            said = _logged(step, StreamJoined(name=name, store_name=step.get("stored")))
            if step.get("in_memory"):
                said = said.with_dsl_store_suppliers(StoreType.IN_MEMORY)
            duration, size = windows.retention_ms, windows.size_ms
            for side in step.get("suppliers", ()):
                supplier = persistent_window_store(
                    f"{side}-of-{step['number']}", duration, size, retain_duplicates=True
                )
                said = (
                    said.with_this_store_supplier(supplier)
                    if side == "this"
                    else said.with_other_store_supplier(supplier)
                )
            return join(other, joiner, windows, with_key=keyed, joined=said)
        case "join_table", one, other:
            join = one.join_table if how == "inner" else one.left_join_table
            return join(other, joiner, with_key=keyed, grace=step.get("grace"), name=name)
        case "join_global", one, other:
            join = one.join_global if how == "inner" else one.left_join_global
            return join(other, lambda _key, value: _first(value), joiner, with_key=keyed, name=name)
        case "filter_rows", one:
            return one.filter(_PREDICATES[how], materialized=kept, name=name)
        case "filter_rows_not", one:
            return one.filter_not(_PREDICATES[how], materialized=kept, name=name)
        case "map_rows", one:
            mark = _marked_of_key if keyed else _marked
            return one.map_values(mark, with_key=keyed, materialized=kept, name=name)
        case "transform_rows", one:
            return one.transform_values(partial(_Transformer, step), materialized=kept, name=name)
        case "group_rows", one:
            lost = step.get("lost")
            return _aggregate_rows(
                one.group_by(
                    lambda _key, value: (
                        None if lost == "key" and value == "b" else _first(value),
                        None if lost == "value" and value == "b" else value,
                    ),
                    name=name,
                ),
                how,
                step,
            )
        case "suppress", one:
            return one.suppress(Suppressed.until_time_limit(step["wait"], _buffer(step), name=name))
        case "join_tables", one, other:
            return {"inner": one.join, "left": one.left_join, "outer": one.outer_join}[how](
                other, joined, materialized=kept, name=name
            )
        case "join_foreign", one, other:
            none = step.get("none", "")

            def foreign(*row: str) -> str | None:
                return None if row[-1] == none else _first(row[-1])

            join = one.join if how == "inner" else one.left_join
            sent = {f"{which}partitioner": _first_partition for which in step.get("sent_by", ())}
            return join(other, foreign, joined, with_key=keyed, materialized=kept, name=name, **sent)
        case "to_stream", one:
            mapper = (lambda _key, value: _first(value)) if step.get("mapped") else None
            return one.to_stream(mapper, name=name)
    raise ValueError(step["do"])


def _checked(step: Step, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but that it may raise for some values."""

    def checked(*row: Any) -> Any:
        if row[-1] == "bc":
            raise ValueError(row)
        return function(*row)

    return checked if step.get("raises") else function


def _timed(step: Step) -> Extractor | None:
    """What says when records are: the topic's time, moved by what the value says, or none."""
    how = step.get("times")
    if how is None:
        return None
    on_invalid: Any = (
        LogAndSkipOnInvalidTimestamp() if how == "skip" else UsePartitionTimeOnInvalidTimestamp()
    )

    def extract(record: ConsumedRecord, partition_time: int) -> int:
        length = len(record.value or "")
        if how == "moved":
            return record.timestamp - 4 * length or 1
        if how == "fail":
            moved = record._replace(timestamp=-1) if length == 3 else record
            return FailOnInvalidTimestamp().extract(moved, partition_time)
        if length == 3 and (how == "skip" or partition_time >= 0):
            record = record._replace(timestamp=-1)
        found: int = on_invalid.extract(record, partition_time)
        return found

    return extract


def _first_partition(_key: str, _value: str) -> int:
    return 0


def _state_store(step: Step) -> StoreSupplier[Any]:
    return key_value_store_builder(persistent_key_value_store(step["store"]), TEXT, TEXT)


class _AddedUp:
    """Adds up the values of each key, and forwards those of two letters twice."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.store = context.store(self.step["store"])

    def process(self, record: StreamRecord) -> None:
        if record.key is None:
            self.context.forward(record.value)
            return
        total = _last((self.store.get(record.key) or "") + _said(record.value))
        self.store.put(record.key, total)
        marked = (*record.headers, ("p", record.key.encode())) if record.value == "b" else record.headers
        self.context.forward(total, headers=marked)
        if len(record.value or "") == 2:
            self.context.forward(None, timestamp=record.timestamp + 1)


class _Looking:
    """Says what a store of another operator has, held back or not: of the record's key, and in all."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.store = context.store(self.step["store"])

    def process(self, record: StreamRecord) -> None:
        if record.key is not None:
            self.context.forward(f"{self.one(record)}|{self.all(record)}"[-200:])

    def one(self, record: StreamRecord) -> str:
        """The rows of the key."""
        if "windows" not in self.step:
            found = self.store.get(record.key)
            return "" if found is None else f"{found.value}@{found.timestamp % 1000}"
        if self.step["windows"] == "session":
            return ",".join(
                f"{session.window.start}-{session.window.end}={value}"
                for session, value in self.store.find_sessions(
                    record.key, record.timestamp - 20, record.timestamp
                )
            )
        return ",".join(
            f"{start}={found.value}@{found.timestamp % 1000}"
            for start, found in self.store.fetch(record.key, record.timestamp - 20, record.timestamp)
        )

    def all(self, record: StreamRecord) -> str:
        """The rows of several keys."""
        if "windows" in self.step:
            return ""
        return ",".join(
            f"{key}={found.value}@{found.timestamp % 1000}"
            for key, found in (self.store.range("b", None) if record.key == "b" else self.store.all())
        )


class _Transformer:
    """The value of a table after its key."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def transform(self, key: str, value: str | None) -> str | None:
        return None if value is None and self.step["deletes"] else _last(f"{key}{_said(value)}")


class _Punctuated:
    """Adds up the values of each key, and forwards all of them now and then, by either clock."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.calls = 0
        self.cancel: list[Callable[[], None]] = []

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.store(self.step["store"])
        self.schedule("s")
        self.schedule("w")

    def schedule(self, clock: str) -> None:
        interval, kind, begin = (
            ("stream", PunctuationType.STREAM_TIME, BEGIN_MS)
            if clock == "s"
            else ("wall", PunctuationType.WALL_CLOCK_TIME, 0)
        )
        start = begin + self.step["start"] if "start" in self.step else None
        self.cancel.append(
            self.context.schedule(self.step[interval], kind, partial(self.report, clock), start_ms=start)
        )

    def process(self, record: StreamRecord) -> None:
        total = _last((self.store.get(record.key) or "") + _said(record.value) + self.told())
        self.store.put(record.key, total)
        self.send(record.key, total)

    def send(self, key: str, value: str, timestamp: int | None = None) -> None:
        """Send a record on, to all that come after it or, where these are parted, to one of them."""
        to = None
        if self.step.get("parted") and value != "x":
            to = f"{self.step['store']}-{'valued' if len(value) % 2 else 'marked'}"
        self.context.forward(key, value, timestamp=timestamp, to=to)

    def told(self) -> str:
        """Where the input record comes from, if that is told."""
        if not self.step.get("told"):
            return ""
        topic, _, offset = self.context.record_metadata
        return f"{topic}{offset}:{self.context.stream_time_ms % 1000}"

    def report(self, clock: str, now: int) -> None:
        self.calls += 1
        if self.calls == self.step.get("cancels"):
            self.cancel["sw".index(clock)]()
        elif self.calls == self.step.get("again"):
            self.schedule("s")
            self.schedule("w")
        for key, total in self.store.all():
            said = _last(f"{clock}{now}{self.told()}{total}")
            self.send(key, said, timestamp=max(1, self.context.stream_time_ms))


def _stored(step: Step) -> Materialized:
    """What is said of the store of a table."""
    name = step.get("stored")
    stored = Materialized.with_() if name is None else Materialized.as_(name)
    if "history" in step:
        stored = Materialized.as_(persistent_versioned_key_value_store(step["stored"], step["history"]))
    if "retention" in step:
        stored = stored.with_retention(step["retention"])
    if step.get("uncached"):
        stored = stored.with_caching_disabled()
    stored = cast(Materialized, _logged(step, stored))
    if step.get("in_memory"):
        stored = stored.with_store_type(StoreType.IN_MEMORY)
    return stored


def _buffer(step: Step) -> BufferConfig:
    """What holds back what is suppressed."""
    buffer = BufferConfig.unbounded()
    if "records" in step:
        buffer = buffer.with_max_records(step["records"])
    if "bytes" in step:
        buffer = buffer.with_max_bytes(step["bytes"])
    buffer = buffer.shut_down_when_full() if step.get("strict") else buffer.emit_early_when_full()
    return cast(BufferConfig, _logged(step, buffer))


def _logged(step: Step, said: Any) -> Any:
    """The same, with what is said of its changelog."""
    if "logged" in step:
        said = said.with_logging_enabled(step["logged"])
    return said.with_logging_disabled() if step.get("unlogged") else said


def _begun(step: Step) -> Callable[[], str | None]:
    """What begins an aggregate, which may be nothing."""
    return (lambda: None) if step.get("unbegun") else str


def _adder(_key: str, value: str, total: str | None) -> str:
    return _added(_said(total), value)


def _subtractor(_key: str, value: str, total: str | None) -> str:
    return _taken(_said(total), value)


def _adding(step: Step) -> Callable[[str, str, str], str | None]:
    return _but_for_x_of_value(_adder) if step.get("nothing") else _adder


def _reducer(step: Step) -> Callable[..., str | None]:
    return _but_for_x(_added) if step.get("nothing") else _added


def _aggregate(group: KGroupedStream, how: str, step: Step) -> KTable:
    said: Any = {"materialized": _stored(step), "name": step.get("operator")}
    if how == "count":
        return group.count(**said).map_values(str)
    if how == "reduce":
        return group.reduce(_reducer(step), **said)
    return group.aggregate(
        _begun(step),
        lambda _key, value, total: None if value == "x" else _added(_said(total), value),
        value_serde=TEXT,
        **said,
    )


def _aggregate_rows(group: KGroupedTable, how: str, step: Step) -> KTable:
    said: Any = {"materialized": _stored(step), "name": step.get("operator")}
    if how == "count":
        return group.count(**said).map_values(str)
    if how == "reduce":
        return group.reduce(_reducer(step), _but_for_x(_taken) if step.get("nothing") else _taken, **said)
    subtractor = _but_for_x_of_value(_subtractor) if step.get("nothing") else _subtractor
    return group.aggregate(_begun(step), _adding(step), subtractor, value_serde=TEXT, **said)


def _windows(step: Step) -> Any:
    size, grace = step["size"], step["grace"]
    match step["windows"]:
        case "session":
            return SessionWindows.with_inactivity_gap(size, grace=grace)
        case "sliding":
            return SlidingWindows.of_time_difference(size, grace=grace)
        case "unlimited":
            return UnlimitedWindows.of().start_on(BEGIN_MS + step["from"])
    return TimeWindows.of_size(size, grace=grace).advance_by(step["advance"])


def _merger(step: Step) -> Any:
    def merge(_key: str, one: str | None, other: str | None) -> str | None:
        said = _said(one) + _said(other)
        return None if step.get("unmerged") and len(said) % 2 == 0 else _last(f"{_said(one)}/{_said(other)}")

    return merge if step["windows"] == "session" else None


def _windowed(group: KGroupedStream, how: str, step: Step) -> KStream:
    said: Any = {"materialized": _stored(step), "name": step.get("operator")}
    grouped = group.windowed_by(_windows(step))
    if step["on_close"]:
        grouped = grouped.emit_strategy(EmitStrategy.on_window_close())
    if how == "count":
        table = grouped.count(**said).map_values(str)
    elif how == "reduce":
        table = grouped.reduce(_reducer(step), **said)
    else:
        table = grouped.aggregate(_begun(step), _adding(step), _merger(step), value_serde=TEXT, **said)
    if "rows" in step:
        table = table.filter(_PREDICATES["even"]) if step["rows"] == "filter" else table.map_values(_marked)
    if step["suppressed"]:
        table = table.suppress(Suppressed.until_window_closes(_buffer(step)))
    if "held" in step:
        table = table.suppress(Suppressed.until_time_limit(step["held"], _buffer(step)))
    if step.get("regrouped"):
        regrouped = table.group_by(lambda key, value: (key.key, value), key_serde=TEXT)
        return regrouped.reduce(_added, _taken).to_stream()
    if "written" in step:
        table.to_stream().to(step["written"])
        serde = (
            SessionWindowedSerde(TEXT)
            if step["windows"] == "session"
            else TimeWindowedSerde(TEXT, LATEST if step["windows"] == "unlimited" else step["size"])
        )
        back = table.builder.stream(step["written"], key_serde=serde)
        return back.select_key(lambda key, _value: _named(key))
    return table.to_stream(lambda key, _value: _named(key))


def _named(key: Windowed[str]) -> str:
    return f"{key.key}@{key.window.start}-{key.window.end}"


def _last(said: str) -> str:
    return said[-LONGEST:]


def _said(value: str | None) -> str:
    return "null" if value is None else value


def _marked(value: str | None) -> str:
    return _last(f"{_said(value)}'")


def _marked_of_key(key: str | None, value: str | None) -> str:
    return _last(f"{_said(key)}{_said(value)}'")


def _letters(value: str | None) -> list[str]:
    return list((value or "")[:3])


def _first(value: str | None) -> str:
    return "z" if value is None else value[:1]


def _joined(left: str | None, right: str | None) -> str:
    return _last(f"{_said(left)}+{_said(right)}")


def _joined_of_key(key: str | None, left: str | None, right: str | None) -> str:
    return _last(f"{_said(key)}{_said(left)}+{_said(right)}")


def _but_for_x(joiner: Callable[..., str | None]) -> Callable[..., str | None]:
    """The same, but that it makes nothing of an x of the other side."""
    return lambda *row: None if row[-1] == "x" else joiner(*row)


def _but_for_x_of_value(adder: Callable[[str, str, str], str]) -> Callable[[str, str, str], str | None]:
    """The same, but that it makes nothing of an x that comes."""
    return lambda key, value, total: None if value == "x" else adder(key, value, total)


def _added(total: str, value: str) -> str:
    return _last(total + value)


def _taken(total: str, value: str) -> str:
    return _last(f"{total}-{value}")


_BY_A_TOPIC = {
    "select_key",
    "map",
    "flat_map",
    "window",
    "join_windows",
    "repartition",
    "group_by",
    "group_rows",
    "through",
}
"""What sends records by a topic, or has them sent before they are joined."""

_STORED = {"group", "group_by", "group_rows", "window", "cogroup"}
"""What always has a store, which may have a name."""

_KEPT = {
    "table",
    "to_table",
    "filter_rows",
    "filter_rows_not",
    "map_rows",
    "transform_rows",
    "join_tables",
    "join_foreign",
}
"""What has a store if it is given one."""

_MAKING = {
    "join_streams",
    "join_table",
    "join_global",
    "join_tables",
    "join_foreign",
    "group",
    "group_by",
    "group_rows",
    "window",
    "cogroup",
}
"""What may have a joiner, or a fold, that makes nothing of some values."""

_RAISING = {"map_values", "flat_map_values", "select_key", "map", "peek"}
"""What may raise."""

_KEYED = {
    "map_values",
    "flat_map_values",
    "join_streams",
    "join_table",
    "join_global",
    "map_rows",
    "join_foreign",
}
"""What may be given a function that takes the key too."""

_PREDICATES = {
    "even": lambda _key, value: value is not None and len(value) % 2 == 0,
    "keyed": lambda key, _value: key is not None,
    "valued": lambda _key, value: value is not None,
    "not_a": lambda key, _value: key != "a",
}


_TIMES = (
    ((0, 0, 1, 2, 3, 5, 8, 13, 30), (0, 0, 0, 0, 1, 3, 7, 12, 25)),
    ((0, 0, 1, 2, 3, 5, 8, 13, 30), (0, 0, 0, 0, 1, 3, 7, 12, 25)),
    ((0, 1, 5, 20, 400, 5_000, 50_000), (0, 0, 0, 5, 20, 400, 5_000)),
    ((0, 0, 5, 10, 20), (0, 0, 5, 10, 15, 20)),
    ((0,), (0, 0, 0, 5)),
)
"""How far the time goes on from one record to the next, and how late each is: mixed, with jumps, at the borders of
windows, standing still."""


_LOGGED: tuple[dict[str, str], ...] = (
    {},
    {"segment.bytes": "1048576"},
    {"cleanup.policy": "delete"},
    {"cleanup.policy": "compact"},
    {"retention.ms": "77", "segment.bytes": "1048576"},
    {"retention.ms": "777777777"},
    {"min.compaction.lag.ms": "5"},
)
"""What is said of changelogs."""


def compared(records: list[list[Any]], how: str) -> list[Any]:
    """What of an output's records has to be equal."""
    if how == "in any order":
        # Those that are forwarded alone have the headers of whichever record came then there.
        return sorted((record[:3] for record in records), key=str)
    if how == "each of them":
        return sorted({tuple(record) for record in records}, key=str)
    if how == "in the end":
        last = {key: value for key, value, *_ in records}
        return sorted(((key, value) for key, value in last.items() if value is not None), key=str)
    if how == "but for times of deletions":
        return [record if record[1] is not None else [record[0], None] for record in records]
    return [record for record in records if how != "but for deletions" or record[1] is not None]


# -- make ------------------------------------------------------------------------------------------------------


def generate(seed: int) -> Pipeline:
    """The pipeline of that number."""
    handled, looking = random.Random(f"{seed} handled"), random.Random(f"{seed} looking")
    shifted = random.Random(f"{seed} shifted")
    made = _Making(random.Random(seed))
    pipeline = made.pipeline(handled if handled.random() < 0.2 else None)
    if looking.random() < 0.3:
        made.look(looking, pipeline["outputs"])
    for step in pipeline["steps"]:
        if step["do"] == "join_streams" and shifted.random() < 0.2:
            # All partners are later than the record itself.
            step |= {"before": shifted.choice((-5, -3)), "after": shifted.choice((5, 6, 20))}
    return pipeline


def batches(number: int, every: int) -> Pipeline | None:
    """The pipeline of that number, with a commit after so many of its records, and without the clock; None where that
    changes nothing, and for one that stops in the middle, sends at once, or joins tables, which lets a cache go in
    another order there."""
    pipeline = generate(number)
    steps = pipeline["steps"]
    done = {step["do"] for step in steps}
    stops = any(one.get("strict") or one.get("times") == "fail" for one in (*steps, pipeline))
    if (
        stops
        or any(step.get("raises") for step in steps)
        or not done.isdisjoint({"join_tables", "join_foreign"})
        or not (pipeline["cache"] or done & {"look", "process"} or build(steps).repartition_topics)
    ):
        return None
    records = [record for record in pipeline["records"] if len(record) > 1]
    return {**pipeline, "every": every, "records": records}


class _Making:
    """One pipeline while it is made."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.steps: list[Step] = []
        self.even = rng.random() < 0.3
        """Whether all times are even numbers."""
        self.single = rng.random() < 0.15
        """Whether all is one sub-topology, so that the time of the stream is that of its task there too."""
        self.named = rng.random() < 0.5
        """Whether some operators and stores have names of their own."""
        self.keyless = not self.single and rng.random() < 0.2
        """Whether some records have no key."""
        self.streams: list[int] = []
        self.tables: list[int] = []
        self.globals: list[int] = []
        self.origins: dict[int, frozenset[int]] = {}
        """Which sources a table is made of."""
        self.versioned: set[int] = set()
        """Tables that have what their keys had before."""
        self.ends: list[int] = []
        """What is not read any more, since it would go by a topic."""
        self.alone: list[int] = []
        """Joins of streams that forward records without a partner, in an order of its own."""
        self.twice: list[int] = []
        """Sliding windows, which may be forwarded twice alike there."""
        self.by_foreign_key: list[int] = []
        """Inner joins by a foreign key, which delete rows here that there were none of."""
        self.used: set[int] = set()
        self.rekeyed: set[int] = set()
        """What comes by a repartition topic, or will before it is joined. What comes by two of those has no order."""
        self.joined: set[int] = set()
        """Tables that come of a join of tables, or of an aggregate: their old values are other ones here."""

    def pipeline(self, handled: random.Random | None = None) -> Pipeline:
        """`handled`: where some operators may raise, and a handler goes on without them."""
        rng = self.rng
        for number in range(1 if self.single else rng.randint(1, 2)):
            self.streams.append(self.add("stream", how=f"s{number}", **self.times()))
        if not self.single and rng.random() < 0.1:
            self.streams.append(self.add("stream", how="s2+s3", **self.times()))
        if not self.single and "times" not in self.steps[0] and rng.random() < 0.1:
            self.streams.append(self.add("stream", how="s0"))
        for number in range(0 if self.single else rng.randint(0, 2)):
            settings = self.times() | self.history(0.2)
            if "history" in settings:
                settings["stored"] = f"t{number}-kept"
            self.table(self.add("table", how=f"t{number}", **settings))
        if not self.single and rng.random() < 0.2:
            self.globals.append(self.add("global", how="g"))
        if handled and not self.single:
            for do in handled.sample(sorted(_RAISING), 2):
                self.streams.append(self.add(do, handled.choice(self.streams)))
        for _ in range(rng.randint(2, 8)):
            rng.choice(self.choices())()
        outputs: dict[str, str] = {}
        chained = len(self.tables) > 1 and rng.random() < 0.4
        for index in [*self.tables]:
            if index not in self.used or rng.random() < 0.3:
                self.streams.append(self.add("to_stream", index))
        late = any(step["do"] == "join_foreign" and step["how"] == "left" for step in self.steps)
        how = "but for times of deletions" if late else "as they came"
        for index in [*self.streams]:
            if self.steps[index]["do"] != "stream" and (index not in self.used or rng.random() < 0.3):
                self.to(index, outputs, how)
        for index in self.ends:
            self.to(index, outputs, "as they came")
        for index in self.alone:
            self.to(index, outputs, "in any order")
        for index in self.twice:
            self.to(index, outputs, "each of them")
        for step in self.steps:
            if "written" in step:
                each = step["windows"] == "sliding" and not step["on_close"]
                outputs[step["written"]] = "each of them" if each else "as they came"
        if chained:
            self.chain(outputs)
        for index in self.by_foreign_key:
            self.to(self.add("to_stream", index), outputs, "but for deletions")
        topics = [
            topic
            for index, step in enumerate(self.steps)
            if step["do"] in {"stream", "table"} or (step["do"] == "global" and index in self.used)
            for topic in step["how"].split("+")
        ]
        for step in self.steps:
            if step["do"] in _MAKING and rng.random() < 0.2:
                step["nothing"] = True
            if step["do"] in _STORED and step.get("how", "aggregate") == "aggregate":
                step |= self.flags(*["unbegun"] * 4)
                if step.get("windows") == "session":
                    step |= self.flags(*["unmerged"] * 10)
        # With a cache deletions have other times there.
        deletes = any(
            (step["do"] in {"group", "group_by"} and step["how"] == "aggregate")
            or (step["do"] in _STORED and step.get("nothing"))
            for step in self.steps
        )
        # Windows that are joined are forwarded in another order.
        joins = any(step["do"] == "join_windows" for step in self.steps)
        cache = 0 if deletes or joins or chained or handled else rng.choice((0, 10_000_000))
        pipeline = {
            "steps": self.steps,
            "cache": cache,
            **self.times(0.1),
            # Sessions without a cache have no headers there.
            "numbered": all(
                step.get("windows") != "session" or (cache > 0 and not step.get("uncached"))
                for step in self.steps
            ),
            "records": self.records(topics),
            "outputs": outputs,
        }
        if handled and not self.holds_back():
            for step in self.steps:
                if step["do"] in _RAISING and handled.random() < 0.5:
                    step["raises"] = True
        return {**pipeline, "partitions": self.partitions()}

    def look(self, rng: random.Random, outputs: dict[str, str]) -> None:
        """Perhaps a processor that reads the store of another operator."""
        stores = [
            step
            for step in self.steps
            if step["do"] in _STORED | _KEPT and isinstance(step.get("stored"), str) and "history" not in step
        ]
        streams = [index for index, step in enumerate(self.steps) if step["do"] == "stream"]
        if stores and streams:
            seen = rng.choice(stores)
            index = len(self.steps)
            settings = {"windows": seen["windows"]} if "windows" in seen else {}
            self.steps += [
                {"do": "look", "of": [rng.choice(streams)], "store": seen["stored"], **settings},
                {"do": "to", "of": [index], "how": f"out{index}"},
            ]
            outputs[f"out{index}"] = "as they came"

    def holds_back(self) -> bool:
        """Whether results are forwarded by other records than those that they are of."""
        return any(
            step["do"] in {"suppress", "process", "join_foreign"}
            or step.get("on_close")
            or step.get("suppressed")
            or "held" in step
            or (step["do"] == "join_table" and "grace" in step)
            or (step["do"] == "join_streams" and step["how"] != "inner")
            for step in self.steps
        )

    def partitions(self) -> dict[str, int]:
        """How many the inputs have, and what is sent to and read again: alike where what is joined is another matter
        there, or sub-topologies write for each other, which are counted in any order there."""
        rng = self.rng
        read = [
            *[
                topic
                for step in self.steps
                if step["do"] in {"stream", "table", "global", "through"}
                for topic in step["how"].split("+")
            ],
            *[step["written"] for step in self.steps if "written" in step],
        ]
        count = rng.randint(1, 5)
        done = {step["do"] for step in self.steps}
        alike = (
            not done.isdisjoint({"cogroup", "suppress", "join_foreign"})
            or read.count("s0") > 1
            or rng.random() < 0.3
        )
        return {topic: count if alike else rng.randint(1, 5) for topic in read}

    def to(self, index: int, outputs: dict[str, str], how: str) -> None:
        """`how` says how an output is to be compared."""
        outputs[f"out{index}"] = how
        self.add("to", index, how=f"out{index}", **self.flags("found", "sent"))

    def flags(self, *names: str) -> dict[str, Any]:
        """Some of those options."""
        return {name: True for name in names if self.rng.random() < 0.1}

    def history(self, often: float) -> dict[str, Any]:
        """Perhaps how long a table has what its keys had before."""
        rng = self.rng
        return {"history": rng.choice((0, 20, 60, HOUR_MS))} if rng.random() < often else {}

    def times(self, often: float = 0.15) -> dict[str, Any]:
        """Perhaps an extractor of times."""
        rng = self.rng
        return (
            {"times": rng.choice((*("moved", "skip", "partition") * 3, "fail"))}
            if rng.random() < often
            else {}
        )

    def logged(self) -> dict[str, Any]:
        """Perhaps settings of a changelog."""
        rng = self.rng
        return {"logged": rng.choice(_LOGGED)} if rng.random() < 0.1 else {}

    def records(self, topics: list[str]) -> list[list[Any]]:
        rng = self.rng
        steps, lates = rng.choice(_TIMES)
        now = BEGIN_MS if rng.random() < 0.85 else 2
        keys: tuple[str, ...] = rng.choice(
            (tuple("abc"), tuple("abc"), tuple("abcefghijklm"), ("a", "", "b"))
        )
        values: tuple[str, ...] = ("a", "b", "ab", "bc", "x", "xyz", "c")
        if rng.random() < 0.25 and all(step["do"] != "join_foreign" for step in self.steps):
            # What a join by a foreign key finds is taken for none there where it is empty.
            values += ("", "")
        records: list[list[Any]] = []
        for _ in range(rng.randint(5, 40) if rng.random() < 0.9 else rng.randint(100, 150)):
            now += rng.choice(steps)
            value = None if rng.random() < 0.12 else rng.choice(values)
            at = max(2, now - rng.choice(lates))
            if self.single and rng.random() < 0.3:
                records.append([rng.choice((1, 5, 20, 90))])
            key = None if self.keyless and rng.random() < 0.15 else rng.choice(keys)
            topic, at = rng.choice(topics), at - at % 2 if self.even else at
            if (
                value is None
                and self.versioned
                and [topic, key, at] in [[*one[:2], one[-1]] for one in records]
            ):
                # A deletion at the time of the newest version is another matter there.
                value = "a"
            records.append([topic, key, value, at])
        # All windows of joins are closed: when those are forwarded that found no partner is another matter there.
        return records + [
            [topic, "d", "d", now - now % 2 + HOUR_MS + last] for last in (0, 1000) for topic in topics
        ]

    def add(self, do: str, *of: int, **settings: Any) -> int:
        self.used.update(of)
        index = len(self.steps)
        rng = self.rng
        if self.named and do != "global" and rng.random() < 0.5:
            settings["called"] = f"named-{index:02}"
        if self.named and do in _STORED and rng.random() < 0.5:
            settings["operator"] = f"operator-{index}"
        if "stored" not in settings and (
            (do in _STORED | {"join_streams"} and self.named and rng.random() < 0.5)
            or (do in _KEPT and rng.random() < 0.4)
        ):
            settings["stored"] = f"stored-{index}"
        elif do in _KEPT and do != "table" and not self.versioned.intersection(of) and rng.random() < 0.1:
            # What is made of a table with versions has none itself then there.
            settings["stored"] = None
        if do in _STORED or settings.get("stored"):
            settings |= self.flags("unlogged", "uncached")
            if settings.get("stored") and do not in {"table", "join_streams"} and "windows" not in settings:
                settings |= self.history(0.1)
            if "history" not in settings and do != "join_streams":
                settings |= self.flags("in_memory")
        if "suppliers" in settings:
            # What is said of changelogs is not applied to what a supplier makes there.
            settings.pop("unlogged", None)
        elif "unlogged" not in settings and (
            do in _STORED | {"join_streams", "suppress"} or settings.get("stored")
        ):
            settings |= self.logged()
        if do in _KEYED:
            settings |= self.flags("keyed")
        if do in _BY_A_TOPIC or self.rekeyed.intersection(of):
            self.rekeyed.add(index)
        self.steps.append({"do": do, "of": list(of), **settings})
        return index

    def table(self, index: int) -> int:
        of = self.steps[index]["of"]
        self.origins[index] = frozenset({index}).union(
            *[self.origins.get(one, frozenset({one})) for one in of]
        )
        self.tables.append(index)
        if "history" in self.steps[index]:
            self.versioned.add(index)
        return index

    def choices(self) -> list[Any]:
        if self.single:
            return [self.stateless, self.group, self.process, self.process]
        made: list[Any] = [
            self.stateless,
            self.stateless,
            self.process_values,
            self.to_table,
            self.group,
            self.cogroup,
            self.window,
            self.window,
            self.join_windows,
            self.join_streams,
            self.join_streams,
        ]
        if self.tables:
            made += [self.join_table, *[self.rows] * 4, *[self.join_tables] * 4]
        if self.globals:
            made += [self.join_global, self.join_global]
        return made

    def stateless(self) -> None:
        rng = self.rng
        one = rng.choice(self.streams)
        same_key = ("filter", "filter_not", "map_values", "flat_map_values", "merge", "peek", "foreach")
        other_key = (
            "select_key",
            "map",
            "flat_map",
            "split",
            "through",
            *(() if self.keyless else ("repartition",)),
        )
        match rng.choice(same_key if self.single else (*same_key, *other_key)):
            case "filter" | "filter_not" as do:
                made = self.add(do, one, how=rng.choice(tuple(_PREDICATES)))
            case "merge":
                made = self.add("merge", one, rng.choice(self.streams))
            case "foreach":
                self.add("foreach", one)
                return
            case "select_key":
                made = self.add("select_key", one, **({"none": "x"} if self.keyless else {}))
            case "repartition":
                partitions = {"partitions": 1} if rng.random() < 0.3 else {}
                made = self.add("repartition", one, **partitions, **self.flags("sent"))
            case "through":
                made = self.add("through", one, how=f"through{len(self.steps)}", **self.times())
            case "split":
                branch = {"branch": "-even"} if rng.random() < 0.3 else {}
                made = self.add("split", one, default=rng.random() < 0.6, **branch)
            case do:
                made = self.add(do, one)
        self.streams.append(made)

    def process(self) -> None:
        rng = self.rng
        settings: dict[str, Any] = {"stream": rng.choice((3, 10, 40)), "wall": rng.choice((3, 10, 40))}
        if rng.random() < 0.3:
            settings["start"] = rng.choice((0, 7, 25, 90))
        if rng.random() < 0.4:
            settings[rng.choice(("cancels", "again"))] = rng.choice((1, 2, 5))
        settings |= self.flags("parted", "parted", "told", "told")
        one = rng.choice(self.streams)
        self.ends.append(self.add("process", one, store=f"store-{len(self.steps)}", **settings))

    def process_values(self) -> None:
        one = self.rng.choice(self.streams)
        self.streams.append(self.add("process_values", one, store=f"store-{len(self.steps)}"))

    def to_table(self) -> None:
        self.table(self.add("to_table", self.rng.choice(self.streams)))

    def group(self) -> None:
        do = "group" if self.single else self.rng.choice(("group", "group_by"))
        how = self.rng.choice(AGGREGATES)
        made = self.table(self.add(do, self.rng.choice(self.streams), how=how))
        if how != "reduce":
            self.joined.add(made)

    def cogroup(self) -> None:
        one, other = self.rng.choice(self.streams), self.rng.choice(self.streams)
        if {one, other} <= self.rekeyed or one == other:
            return
        third = [self.rng.choice(self.streams)] if self.rng.random() < 0.2 else []
        if {one, other} & {*third} or (self.rekeyed & {one, other} and self.rekeyed & {*third}):
            return
        if self.rng.random() < 0.4:
            settings = self.windows()
            if settings["windows"] == "session":
                # Where one group's time is behind the other's, sessions are in the store for longer here.
                return
            if settings["windows"] != "unlimited":
                # With a cache windows are found there that have expired by the time of the other group.
                settings["retention"] = 2 * HOUR_MS
            valued = [self.add("filter", each, how="valued") for each in (one, other, *third)]
            made = self.add("cogroup", *valued, **settings)
            (self.twice if settings["windows"] == "sliding" else self.streams).append(made)
            return
        self.joined.add(self.table(self.add("cogroup", one, other, *third)))

    def windows(self, *, on_close: bool = False) -> dict[str, Any]:
        rng = self.rng
        kinds = ("time", "time", "sliding", "session" if self.even else "time", "unlimited")
        kind = rng.choice(kinds[:4] if on_close else kinds)
        size, grace = rng.choice((5, 10, 20)), rng.choice((0, 0, 5, 15))
        if kind == "session":
            # Its end is never just this and the gap before an even time.
            size, grace = rng.choice((5, 9, 21)), rng.choice((0, 0, 6, 16))
            size, grace = (size, grace) if rng.random() < 0.85 else (0, rng.choice((5, 15)))
        settings = {"windows": kind, "size": size, "grace": grace}
        settings["advance"] = rng.choice((size, size, max(1, size // 2), 3))
        if kind == "unlimited":
            settings["from"] = rng.choice((-BEGIN_MS, 0, 50))
        elif on_close:
            # Long enough for nothing that is closed to expire before it is forwarded, as it does there.
            settings["retention"] = 2 * HOUR_MS
        elif kind == "sliding":
            # Long enough for the windows before a late record, which are gone there by default.
            settings["retention"] = rng.choice((3 * size + grace + 2, HOUR_MS))
        elif rng.random() < 0.5:
            least = size + grace
            # A session that the store has for longer is joined there after it is closed.
            longer = () if kind == "session" else (3 * least, HOUR_MS)
            settings["retention"] = rng.choice((least, *longer))
        return settings

    def window(self) -> None:
        rng = self.rng
        on_close = rng.random() < 0.25
        settings = self.windows(on_close=on_close)
        how = rng.choice(AGGREGATES)
        if rng.random() < 0.2:
            # The old values, which a filter sees, are other ones there where windows are new.
            known = how == "reduce" and settings["windows"] != "sliding"
            settings["rows"] = rng.choice(("filter", "map")) if known else "map"
        suppressed = not on_close and settings["windows"] == "time" and rng.random() < 0.3
        if suppressed:
            settings |= {"strict": True, **self.limits(strict=True)}
        elif not on_close and rng.random() < 0.1:
            settings |= {"held": rng.choice((0, 5, 20)), **self.limits(strict=rng.random() < 0.1)}
        elif not on_close and settings["windows"] in {"time", "unlimited"} and rng.random() < 0.2:
            # Old values of what is not reduced are other ones there.
            how = "reduce"
            settings.pop("rows", None)
            settings["regrouped"] = True
        if "regrouped" not in settings and rng.random() < 0.25:
            settings["written"] = f"windowed{len(self.steps)}"
        valued = self.add("filter", rng.choice(self.streams), how="valued")
        made = self.add("window", valued, how=how, on_close=on_close, suppressed=suppressed, **settings)
        (self.twice if settings["windows"] == "sliding" and not on_close else self.streams).append(made)

    def join_windows(self) -> None:
        rng = self.rng
        one, other = rng.choice(self.streams), rng.choice(self.streams)
        if {one, other} <= self.rekeyed or one == other:
            return
        settings = self.windows()
        if settings["windows"] not in {"time", "unlimited"}:
            return
        settings.pop("retention", None)
        valued = [self.add("filter", each, how="valued") for each in (one, other)]
        self.streams.append(self.add("join_windows", *valued, how=rng.choice(KINDS), **settings))

    def join_streams(self) -> None:
        rng = self.rng
        one, other = rng.choice(self.streams), rng.choice(self.streams)
        if {one, other} <= self.rekeyed:
            return
        how, before = rng.choice(KINDS), rng.choice((0, 5, 10))
        settings: dict[str, Any] = {}
        if rng.random() < 0.1:
            # A record without a value moves the stream time of stores there if they are in memory.
            one, other = (self.add("filter", each, how="valued") for each in (one, other))
            settings["in_memory"] = True
        elif rng.random() < 0.15:
            settings["suppliers"] = rng.choice((["this"], ["other"], ["this", "other"]))
            settings["number"] = len(self.steps)
        made = self.add(
            "join_streams",
            one,
            other,
            how=how,
            before=before,
            after=rng.choice((0, 5, 10, -before)),
            grace=rng.choice((0, 0, 5, 15)),
            **settings,
        )
        (self.streams if how == "inner" else self.alone).append(made)

    def join_table(self) -> None:
        rng = self.rng
        one, other = rng.choice(self.streams), rng.choice(self.tables)
        if {one, other} <= self.rekeyed or self.steps[other]["do"] == "suppress":
            return
        history = self.steps[other].get("history", 0)
        grace = {"grace": rng.randint(0, min(history, 30))} if history and rng.random() < 0.6 else {}
        # Without a key one that waits is an error there.
        how = "inner" if grace and self.keyless else rng.choice(KINDS[:2])
        self.streams.append(self.add("join_table", one, other, how=how, **grace))

    def join_global(self) -> None:
        rng = self.rng
        one, other = rng.choice(self.streams), rng.choice(self.globals)
        self.streams.append(self.add("join_global", one, other, how=rng.choice(KINDS[:2])))

    def rows(self) -> None:
        rng = self.rng
        one = rng.choice(self.tables)
        match rng.choice(
            (
                "filter_rows",
                "filter_rows_not",
                "map_rows",
                "transform_rows",
                "group_rows",
                "suppress",
                "to_stream",
            )
        ):
            case "filter_rows" | "filter_rows_not" as do if one not in self.joined:
                made = self.table(self.add(do, one, how=rng.choice(tuple(_PREDICATES))))
            case "map_rows":
                made = self.table(self.add("map_rows", one))
            case "transform_rows":
                made = self.table(self.add("transform_rows", one, deletes=rng.random() < 0.7))
            case "group_rows" if one not in self.joined:
                lost = {"lost": rng.choice(("key", "value"))} if rng.random() < 0.2 else {}
                made = self.table(self.add("group_rows", one, how=rng.choice(AGGREGATES), **lost))
                self.joined.add(made)
                return
            case "suppress" if one not in self.joined | self.versioned:
                limits = self.limits(strict=rng.random() < 0.1) | self.flags("unlogged")
                made = self.table(self.add("suppress", one, wait=rng.choice((0, 5, 20)), **limits))
                self.joined.add(made)
                return
            case _:
                mapped = rng.random() < 0.2
                made = self.add("to_stream", one, **({"mapped": True} if mapped else {}))
                if mapped:
                    self.rekeyed.add(made)
                self.streams.append(made)
                return
        if one in self.joined:
            self.joined.add(made)
        if one in self.versioned and self.steps[made].get("stored") is None:
            self.versioned.add(made)

    def chain(self, outputs: dict[str, str]) -> None:
        """Joins and filters of tables one upon the other: their old values are other ones there, but what they come to
        is not."""
        rng = self.rng
        other_ones = {"suppress", "join_foreign", "filter_rows", "filter_rows_not"}
        tables: list[int] = []
        made = []
        for one in sorted(self.tables):
            parents = {index for index in self.steps[one]["of"] if index in self.tables}
            if one not in self.versioned and self.steps[one]["do"] not in other_ones and parents <= {*tables}:
                tables.append(one)
        for _ in range(rng.randint(2, 5) if tables else 0):
            one, other = rng.choice(tables), rng.choice(tables)
            if self.origins[one] & self.origins[other] or {one, other} <= self.rekeyed:
                do = rng.choice(("filter_rows", "filter_rows_not", "map_rows", "transform_rows"))
                settings = {"how": rng.choice(tuple(_PREDICATES))} if do.startswith("filter") else {}
                table = self.add(do, one, **({"deletes": True} if do == "transform_rows" else settings))
            else:
                table = self.add("join_tables", one, other, how=rng.choice(KINDS))
            self.origins[table] = self.origins[one] | self.origins[self.steps[table]["of"][-1]]
            if "history" not in self.steps[table]:
                tables.append(table)
                made.append(table)
        for table in made:
            self.to(self.add("to_stream", table), outputs, "in the end")

    def limits(self, *, strict: bool) -> dict[str, Any]:
        """Perhaps how much is held back. What counts as a byte is another matter there."""
        rng = self.rng
        limits: dict[str, Any] = {"strict": True} if strict else {}
        if rng.random() < 0.4:
            limits["records"] = rng.choice((3, 5, 8) if strict else (0, 1, 2))
        if rng.random() < 0.2:
            limits["bytes"] = 10_000_000 if strict else rng.choice((0, 1, 10_000_000))
        return limits

    def join_tables(self) -> None:
        rng = self.rng
        one, other = rng.choice(self.tables), rng.choice(self.tables)
        if self.origins[one] & self.origins[other]:
            return
        if {one, other} & self.joined or {one, other} <= self.rekeyed:
            return
        if rng.random() < 0.5:
            how = rng.choice(KINDS[:2])
            settings: dict[str, Any] = {"none": "x"} if rng.random() < 0.3 else {}
            if rng.random() < 0.2:
                settings["sent_by"] = rng.choice(([""], ["other_"], ["", "other_"]))
            made = self.add("join_foreign", one, other, how=how, **settings)
            if how == "inner":
                self.by_foreign_key.append(made)
                return
        else:
            made = self.add("join_tables", one, other, how=rng.choice(KINDS))
        self.joined.add(self.table(made))
