"""Pipelines of the DSL as data: made at random, and run by `TestDriver`. `Pipelines.java` runs the same ones.

A pipeline is a list of steps, each with what it `do`es, the earlier steps that it is made `of`, and its settings.
Keys and values are text, and each output is compared as it says. What
`docs/kafka-streams-differences.md` says is done otherwise here is not generated.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from store.serdes import StrSerde
from store.state.windowed import Windowed
from store.streams.application import Application
from store.streams.dsl import (
    EmitStrategy,
    JoinWindows,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    Materialized,
    ProcessorContext,
    PunctuationType,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamRecord,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from store.suppliers import (
    key_value_store_builder,
    persistent_key_value_store,
    persistent_versioned_key_value_store,
)
from store.testing.driver import TestDriver

Step = dict[str, Any]
Pipeline = dict[str, Any]

TEXT = StrSerde()
LONGEST = 12
HOUR_MS = 3_600_000
BEGIN_MS = 1_000_000

KINDS = ("inner", "left", "outer")
AGGREGATES = ("count", "reduce", "aggregate")


# -- run -------------------------------------------------------------------------------------------------------


def run(
    pipeline: Pipeline, *, commit_every: int = 1, crash_every: int = HOUR_MS, together: bool = False
) -> dict[str, Any]:
    """The names of stores and topics, and the records of each output, in order: key, value, timestamp, and
    the number of the input record in its headers, if it was `numbered`. Commits and crashes come after so many
    steps of the input; a crash takes back what was not committed. `together`: all between two commits is one batch."""
    application = build(pipeline["steps"])
    answer: dict[str, Any] = {
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
    }
    with TestDriver(
        application, {"statestore.cache.max.bytes": pipeline["cache"]}, auto_commit=False
    ) as driver:
        produce = driver.log.plain_producer().produce
        for number, record in enumerate(pipeline["records"], 1):
            headers = (("n", str(number).encode()),) if pipeline["numbered"] else ()
            if len(record) == 1:
                driver.advance_wall_clock(record[0])
                continue
            topic, key, value, timestamp = record
            if together:
                data = None if value is None else TEXT.serialize(value)
                produce(topic, TEXT.serialize(key), data, partition=0, timestamp=timestamp, headers=headers)
            else:
                driver.pipe_input(topic, key, value, timestamp, headers)
            if number % crash_every == 0:
                driver.crash()
            if number % commit_every == 0:
                driver.process()
                driver.commit()
        driver.process()
        driver.commit()
        answer["outputs"] = {
            topic: [
                [*record[:3], "".join(f"{k}{(v or b'').decode()}" for k, v in record.headers)]
                for record in driver.read_output(topic, TEXT, TEXT)
            ]
            for topic in pipeline["outputs"]
        }
    return answer


def build(steps: list[Step]) -> Application:
    builder = StreamsBuilder("app", key_serde=TEXT, value_serde=TEXT)
    made: list[Any] = []
    for step in steps:
        made.append(_make(builder, [made[index] for index in step["of"]], step))
    return builder.build()


def _make(builder: StreamsBuilder, of: list[Any], step: Step) -> Any:
    how = step.get("how", "")
    kept = Materialized.as_(step["name"]) if step.get("kept") and "name" in step else None
    name = step.get("called")
    match step["do"], *of:
        case ["stream"]:
            return builder.stream(how)
        case ["table"]:
            stored: Any = f"{how}-kept" if step["kept"] else None
            if "history" in step:
                stored = persistent_versioned_key_value_store(stored, step["history"])
            return builder.table(how, materialized=None if stored is None else Materialized.as_(stored))
        case ["global"]:
            return builder.global_table(how)
        case "to", one:
            return one.to(how)
        case "filter", one:
            return one.filter(_PREDICATES[how], name=name)
        case "filter_not", one:
            return one.filter_not(_PREDICATES[how], name=name)
        case "map_values", one:
            return one.map_values(_marked, name=name)
        case "flat_map_values", one:
            return one.flat_map_values(lambda value: list((value or "")[:3]), name=name)
        case "select_key", one:
            return one.select_key(lambda _key, value: _first(value), name=name)
        case "map", one:
            return one.map(
                lambda key, value: (_first(value), _last(f"{_said(key)}:{_said(value)}")), name=name
            )
        case "repartition", one:
            return one.repartition(name=name)
        case "merge", one, other:
            return one.merge(other, name=name)
        case "split", one:
            split = one.split(name=name).branch(_PREDICATES["even"]).branch(_PREDICATES["not_a"])
            first, second, *_ = dict(sorted(split.default_branch().items())).values()
            return first.merge(second)
        case "process", one:
            supplier = key_value_store_builder(persistent_key_value_store(step["name"]), TEXT, TEXT)
            builder.add_state_store(supplier)
            return one.process(partial(_Punctuated, step), step["name"], name=name)
        case "to_table", one:
            return one.to_table(materialized=kept, name=name)
        case "group", one:
            return _aggregate(one.group_by_key(name=name), how, step)
        case "group_by", one:
            return _aggregate(one.group_by(lambda _key, value: _first(value), name=name), how, step)
        case "cogroup", one, other:
            return (
                one.group_by_key(name=name)
                .cogroup(_adder)
                .cogroup(other.group_by_key(), _adder)
                .aggregate(str, value_serde=TEXT)
            )
        case "window", one:
            return _windowed(one.group_by_key(name=name), how, step)
        case "join_streams", one, other:
            windows = JoinWindows.of_time_difference(step["before"], grace=step["grace"]).after(step["after"])
            join = {"inner": one.join, "left": one.left_join, "outer": one.outer_join}[how]
            said = StreamJoined(name=name, store_name=step.get("stored"))
            return join(other, _joined, windows, joined=said)
        case "join_table", one, other:
            join = one.join_table if how == "inner" else one.left_join_table
            return join(other, _joined, grace=step.get("grace"), name=name)
        case "join_global", one, other:
            join = one.join_global if how == "inner" else one.left_join_global
            return join(other, lambda _key, value: _first(value), _joined, name=name)
        case "filter_rows", one:
            return one.filter(_PREDICATES[how], materialized=kept, name=name)
        case "map_rows", one:
            return one.map_values(_marked, materialized=kept, name=name)
        case "group_rows", one:
            return _aggregate_rows(
                one.group_by(lambda _key, value: (_first(value), value), name=name), how, step
            )
        case "suppress", one:
            return one.suppress(Suppressed.until_time_limit(step["wait"], name=name))
        case "join_tables", one, other:
            return {"inner": one.join, "left": one.left_join, "outer": one.outer_join}[how](
                other, _joined, name=name
            )
        case "join_foreign", one, other:
            return (one.join if how == "inner" else one.left_join)(other, _first, _joined, name=name)
        case "to_stream", one:
            return one.to_stream(name=name)
    raise ValueError(step["do"])


class _Punctuated:
    """Adds up the values of each key, and forwards all of them now and then, by either clock."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.store(self.step["name"])
        context.schedule(self.step["stream"], PunctuationType.STREAM_TIME, partial(self.report, "s"))
        context.schedule(self.step["wall"], PunctuationType.WALL_CLOCK_TIME, partial(self.report, "w"))

    def process(self, record: StreamRecord) -> None:
        total = _last((self.store.get(record.key) or "") + _said(record.value))
        self.store.put(record.key, total)
        self.context.forward(record.key, total)

    def report(self, clock: str, now: int) -> None:
        for key, total in self.store.all():
            said = _last(f"{clock}{now}{total}")
            self.context.forward(key, said, timestamp=max(1, self.context.stream_time_ms))


def _stored(step: Step) -> Materialized:
    stored = Materialized.as_(step["stored"]) if "stored" in step else Materialized.with_()
    return stored.with_retention(step["retention"]) if "retention" in step else stored


def _adder(_key: str, value: str, total: str) -> str:
    return _added(total, value)


def _aggregate(group: KGroupedStream, how: str, step: Step) -> KTable:
    stored = _stored(step)
    if how == "count":
        return group.count(materialized=stored).map_values(str)
    if how == "reduce":
        return group.reduce(_added, materialized=stored)
    return group.aggregate(
        str,
        lambda _key, value, total: None if value == "x" else _added(total, value),
        materialized=stored,
        value_serde=TEXT,
    )


def _aggregate_rows(group: KGroupedTable, how: str, step: Step) -> KTable:
    stored = _stored(step)
    if how == "count":
        return group.count(materialized=stored).map_values(str)
    if how == "reduce":
        return group.reduce(_added, _taken, materialized=stored)
    return group.aggregate(
        str,
        _adder,
        lambda _key, value, total: _taken(total, value),
        materialized=stored,
        value_serde=TEXT,
    )


def _windowed(group: KGroupedStream, how: str, step: Step) -> KStream:
    size, grace = step["size"], step["grace"]
    kind = step["windows"]
    kept = _stored(step)
    if kind == "session":
        grouped = group.windowed_by(SessionWindows.with_inactivity_gap(size, grace=grace))
    elif kind == "sliding":
        grouped = group.windowed_by(SlidingWindows.of_time_difference(size, grace=grace))
    else:
        grouped = group.windowed_by(TimeWindows.of_size(size, grace=grace).advance_by(step["advance"]))
    if step["on_close"]:
        grouped = grouped.emit_strategy(EmitStrategy.on_window_close())
    if how == "count":
        table = grouped.count(materialized=kept).map_values(str)
    elif how == "reduce":
        table = grouped.reduce(_added, materialized=kept)
    else:
        merger = (lambda _key, one, other: _last(f"{one}/{other}")) if kind == "session" else None
        table = grouped.aggregate(
            str,
            _adder,
            merger,
            materialized=kept,
            value_serde=TEXT,
        )
    if step["suppressed"]:
        table = table.suppress(Suppressed.until_window_closes())
    return table.to_stream(lambda key, _value: _named(key))


def _named(key: Windowed[str]) -> str:
    return f"{key.key}@{key.window.start}-{key.window.end}"


def _last(said: str) -> str:
    return said[-LONGEST:]


def _said(value: str | None) -> str:
    return "null" if value is None else value


def _marked(value: str | None) -> str:
    return _last(f"{_said(value)}'")


def _first(value: str | None) -> str:
    return "z" if value is None else value[:1]


def _joined(left: str | None, right: str | None) -> str:
    return _last(f"{_said(left)}+{_said(right)}")


def _added(total: str, value: str) -> str:
    return _last(total + value)


def _taken(total: str, value: str) -> str:
    return _last(f"{total}-{value}")


_BY_A_TOPIC = {"select_key", "map", "window", "repartition", "group_by", "group_rows"}
"""What sends records by a topic, or has them sent before they are joined."""

_STORED = {"group", "group_by", "group_rows", "window", "join_streams"}
"""What has stores that may be named beside the operator."""

_PREDICATES = {
    "even": lambda _key, value: value is not None and len(value) % 2 == 0,
    "valued": lambda _key, value: value is not None,
    "not_a": lambda key, _value: key != "a",
}


def compared(records: list[list[Any]], how: str) -> list[Any]:
    """What of an output's records has to be equal."""
    if how == "in any order":
        # Those that are forwarded alone have the headers of whichever record came then there.
        return sorted((record[:3] for record in records), key=str)
    if how == "each of them":
        return sorted({tuple(record) for record in records})
    return [record for record in records if how != "but for deletions" or record[1] is not None]


# -- make ------------------------------------------------------------------------------------------------------


def generate(seed: int) -> Pipeline:
    """The pipeline of that number."""
    return _Making(random.Random(seed)).pipeline()


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

    def pipeline(self) -> Pipeline:
        rng = self.rng
        for number in range(1 if self.single else rng.randint(1, 2)):
            self.streams.append(self.add("stream", how=f"s{number}"))
        for number in range(0 if self.single else rng.randint(0, 2)):
            kept = rng.random() < 0.4
            history = {"history": rng.choice((0, 20, 60, HOUR_MS))} if kept and rng.random() < 0.5 else {}
            index = self.table(self.add("table", how=f"t{number}", kept=kept, **history))
            if history:
                self.versioned.add(index)
        if not self.single and rng.random() < 0.2:
            self.globals.append(self.add("global", how="g"))
        for _ in range(rng.randint(1, 7)):
            rng.choice(self.choices())()
        outputs: dict[str, str] = {}
        for index in [*self.tables]:
            if index not in self.used or rng.random() < 0.3:
                self.streams.append(self.add("to_stream", index))
        for index in [*self.streams]:
            if self.steps[index]["do"] != "stream" and (index not in self.used or rng.random() < 0.3):
                self.to(index, outputs, "as they came")
        for index in self.ends:
            self.to(index, outputs, "as they came")
        for index in self.alone:
            self.to(index, outputs, "in any order")
        for index in self.twice:
            self.to(index, outputs, "each of them")
        for index in self.by_foreign_key:
            self.to(self.add("to_stream", index), outputs, "but for deletions")
        topics = [
            step["how"]
            for index, step in enumerate(self.steps)
            if step["do"] in {"stream", "table"} or (step["do"] == "global" and index in self.used)
        ]
        # There a cache is flushed after each record of a repartition topic; and deletions have other times.
        deletes = any(
            step["do"] in {"group", "group_by"} and step["how"] == "aggregate" for step in self.steps
        )
        cache = 0 if self.rekeyed or deletes else rng.choice((0, 10_000_000))
        return {
            "steps": self.steps,
            "cache": cache,
            # Sessions without a cache have no headers there.
            "numbered": all(step.get("windows") != "session" for step in self.steps),
            "records": self.records(topics),
            "outputs": outputs,
        }

    def to(self, index: int, outputs: dict[str, str], how: str) -> None:
        """`how` says how an output is to be compared."""
        outputs[f"out{index}"] = how
        self.add("to", index, how=f"out{index}")

    def records(self, topics: list[str]) -> list[list[Any]]:
        rng = self.rng
        now = BEGIN_MS
        records: list[list[Any]] = []
        for _ in range(rng.randint(5, 40)):
            now += rng.choice((0, 0, 1, 2, 3, 5, 8, 13, 30))
            late = rng.choice((0, 0, 0, 0, 1, 3, 7, 12, 25))
            value = None if rng.random() < 0.12 else rng.choice(("a", "b", "ab", "bc", "x", "xyz", "c"))
            at = now - late
            if self.single and rng.random() < 0.3:
                records.append([rng.choice((1, 5, 20, 90))])
            records.append([rng.choice(topics), rng.choice("abc"), value, at - at % 2 if self.even else at])
        # All windows of joins are closed: when those are forwarded that found no partner is another matter there.
        return records + [
            [topic, "d", "d", now - now % 2 + HOUR_MS + last] for last in (0, 1000) for topic in topics
        ]

    def add(self, do: str, *of: int, **settings: Any) -> int:
        self.used.update(of)
        index = len(self.steps)
        if self.named and do not in {"stream", "table", "global", "to"} and self.rng.random() < 0.5:
            settings["called"] = f"named-{index}"
        if self.named and do in _STORED and self.rng.random() < 0.5:
            settings["stored"] = f"stored-{index}"
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
        return index

    def choices(self) -> list[Any]:
        if self.single:
            return [self.stateless, self.group, self.process, self.process]
        made: list[Any] = [
            self.stateless,
            self.stateless,
            self.to_table,
            self.group,
            self.cogroup,
            self.window,
            self.window,
            self.join_streams,
            self.join_streams,
        ]
        if self.tables:
            made += [self.join_table, self.rows, self.rows, *[self.join_tables] * 4]
        if self.globals:
            made += [self.join_global, self.join_global]
        return made

    def stateless(self) -> None:
        rng = self.rng
        one = rng.choice(self.streams)
        same_key = ("filter", "filter_not", "map_values", "flat_map_values", "merge")
        match rng.choice(
            same_key if self.single else (*same_key, "select_key", "map", "repartition", "split")
        ):
            case "filter" | "filter_not" as do:
                made = self.add(do, one, how=rng.choice(tuple(_PREDICATES)))
            case "merge":
                made = self.add("merge", one, rng.choice(self.streams))
            case do:
                made = self.add(do, one)
        self.streams.append(made)

    def process(self) -> None:
        rng = self.rng
        settings = {"stream": rng.choice((3, 10, 40)), "wall": rng.choice((3, 10, 40))}
        one = rng.choice(self.streams)
        self.ends.append(self.add("process", one, name=f"store-{len(self.steps)}", **settings))

    def name(self) -> dict[str, Any]:
        return {"kept": self.rng.random() < 0.4, "name": f"kept-{len(self.steps)}"}

    def to_table(self) -> None:
        self.table(self.add("to_table", self.rng.choice(self.streams), **self.name()))

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
        self.joined.add(self.table(self.add("cogroup", one, other)))

    def window(self) -> None:
        rng = self.rng
        kind = rng.choice(("time", "time", "sliding", "session" if self.even else "time"))
        size, grace = rng.choice((5, 10, 20)), rng.choice((0, 0, 5, 15))
        if kind == "session":
            # Its end is never just this and the gap before an even time.
            size, grace = rng.choice((5, 9, 21)), rng.choice((0, 0, 6, 16))
        valued = self.add("filter", rng.choice(self.streams), how="valued")
        on_close = kind != "session" and rng.random() < 0.25
        made = self.add(
            "window",
            valued,
            how=rng.choice(AGGREGATES),
            windows=kind,
            size=size,
            advance=rng.choice((size, size, max(1, size // 2), 3)),
            grace=grace,
            # Long enough for nothing that is closed to expire before it is forwarded, as it does there.
            retention=2 * HOUR_MS
            if on_close
            else {"sliding": 2 * size, "session": size}.get(kind, size) + grace,
            on_close=on_close,
            suppressed=not on_close and kind == "time" and rng.random() < 0.3,
        )
        (self.twice if kind == "sliding" and not on_close else self.streams).append(made)

    def join_streams(self) -> None:
        rng = self.rng
        one, other = rng.choice(self.streams), rng.choice(self.streams)
        if {one, other} <= self.rekeyed:
            return
        how, before = rng.choice(KINDS), rng.choice((0, 5, 10))
        made = self.add(
            "join_streams",
            one,
            other,
            how=how,
            before=before,
            after=rng.choice((0, 5, 10)) if how == "inner" else before,
            grace=rng.choice((0, 0, 5, 15)),
        )
        (self.streams if how == "inner" else self.alone).append(made)

    def join_table(self) -> None:
        rng = self.rng
        one, other = rng.choice(self.streams), rng.choice(self.tables)
        if {one, other} <= self.rekeyed or self.steps[other]["do"] == "suppress":
            return
        history = self.steps[other].get("history", 0)
        grace = {"grace": rng.randint(0, min(history, 30))} if history and rng.random() < 0.6 else {}
        self.streams.append(self.add("join_table", one, other, how=rng.choice(KINDS[:2]), **grace))

    def join_global(self) -> None:
        rng = self.rng
        one, other = rng.choice(self.streams), rng.choice(self.globals)
        self.streams.append(self.add("join_global", one, other, how=rng.choice(KINDS[:2])))

    def rows(self) -> None:
        rng = self.rng
        one = rng.choice(self.tables)
        match rng.choice(("filter_rows", "map_rows", "group_rows", "suppress", "to_stream")):
            case "filter_rows" if one not in self.joined:
                made = self.table(
                    self.add("filter_rows", one, how=rng.choice(tuple(_PREDICATES)), **self.name())
                )
            case "map_rows":
                made = self.table(self.add("map_rows", one, **self.name()))
            case "group_rows" if one not in self.joined:
                made = self.table(self.add("group_rows", one, how=rng.choice(AGGREGATES)))
                self.joined.add(made)
                return
            case "suppress" if one not in self.joined | self.versioned:
                made = self.table(self.add("suppress", one, wait=rng.choice((0, 5, 20))))
                self.joined.add(made)
                return
            case _:
                self.streams.append(self.add("to_stream", one))
                return
        if one in self.joined:
            self.joined.add(made)
        if one in self.versioned and not self.steps[made]["kept"]:
            self.versioned.add(made)

    def join_tables(self) -> None:
        rng = self.rng
        one, other = rng.choice(self.tables), rng.choice(self.tables)
        if self.origins[one] & self.origins[other]:
            return
        if {one, other} & self.joined or {one, other} <= self.rekeyed:
            return
        if rng.random() < 0.5:
            how = rng.choice(KINDS[:2])
            made = self.add("join_foreign", one, other, how=how)
            if how == "inner":
                self.by_foreign_key.append(made)
                return
        else:
            made = self.add("join_tables", one, other, how=rng.choice(KINDS))
        self.joined.add(self.table(made))
