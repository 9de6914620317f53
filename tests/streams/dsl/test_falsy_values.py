"""A value that Python takes for false is a value like any other, and a key of no bytes a key, to every operator.

Each application runs twice over the same numbers: once in a form in which 0 is such a value, and once in one in which
it is not. What comes out stands for the same numbers. Crashes restore every store from its changelog on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from store.serdes import JsonSerde, Serde, StrSerde
from store.streams.dsl import (
    BuiltInDslStoreSuppliers,
    CogroupedKStream,
    EmitStrategy,
    JoinWindows,
    KStream,
    KTable,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from store.testing.driver import TestDriver

pytestmark = pytest.mark.requirement("x.4")


class Form(NamedTuple):
    """How numbers from 0 on are written."""

    serde: Serde[Any]
    value: Callable[[int], Any]
    number: Callable[[Any], int]


BARE = {
    "zero": Form(JsonSerde(), lambda number: number, lambda value: value),
    "no text": Form(StrSerde(), lambda number: "n" * number, len),
}
WRAPPED = {
    "zero": Form(JsonSerde(), lambda number: [number], lambda value: value[0]),
    "no text": Form(StrSerde(), lambda number: "-" + "n" * number, lambda value: len(value) - 1),
}
Build = Callable[[StreamsBuilder, Form, str], Any]
"""Builder, form of values, and the key that stands for no text."""


def flat(key: Any) -> str:
    """Key, start and end of a windowed key."""
    return f"{key.key}@{key.window.start}-{key.window.end}"


def folded(form: Form) -> dict[str, Any]:
    """An aggregate that begins with 1, and comes to 0 on its way."""
    return {
        "initializer": lambda: form.value(1),
        "aggregator": lambda _, new, old: form.value(abs(form.number(new) - form.number(old))),
    }


def both(form: Form) -> Callable[[Any, Any], Any]:
    """What a join makes of two values, of which one may be missing."""
    return lambda one, other: form.value(
        (0 if one is None else 1 + form.number(one)) * (0 if other is None else 1 + form.number(other)) % 4
    )


def aggregated(b: StreamsBuilder, form: Form, _: str) -> KTable:
    said = folded(form)
    return b.stream("one").group_by_key().aggregate(said["initializer"], said["aggregator"])


def reduced(b: StreamsBuilder, form: Form, _: str) -> KTable:
    return (
        b.stream("one")
        .group_by_key()
        .reduce(lambda old, new: form.value(abs(form.number(new) - form.number(old))))
    )


def counted(b: StreamsBuilder, form: Form, _: str) -> KStream:
    counts = b.stream("one").group_by_key().count()
    return counts.to_stream().map_values(lambda count: form.value(count % 3))


def windowed(windows: Any, *, close: bool = False) -> Build:
    def build(b: StreamsBuilder, form: Form, _: str) -> KStream:
        said = folded(form)
        grouped = b.stream("one").group_by_key().windowed_by(windows)
        if close:
            grouped = grouped.emit_strategy(EmitStrategy.on_window_close())
        if isinstance(windows, SessionWindows):
            table = grouped.aggregate(
                said["initializer"],
                said["aggregator"],
                lambda _, one, two: form.value(abs(2 * form.number(one) - form.number(two))),
            )
        else:
            table = grouped.aggregate(said["initializer"], said["aggregator"])
        return table.to_stream().map(lambda key, value: (flat(key), value))

    return build


def sessions_reduced(b: StreamsBuilder, form: Form, _: str) -> KStream:
    grouped = b.stream("one").group_by_key().windowed_by(SessionWindows.with_inactivity_gap(12, grace=20))
    table = grouped.reduce(lambda old, new: form.value(abs(form.number(new) - 2 * form.number(old) - 1)))
    return table.to_stream().map(lambda key, value: (flat(key), value))


def suppressed(b: StreamsBuilder, _: Form, __: str) -> KTable:
    return b.table("one").suppress(Suppressed.until_time_limit(10))


def mapped(b: StreamsBuilder, form: Form, _: str) -> KTable:
    table = b.table("one").map_values(lambda value: form.value(form.number(value) % 2))
    return table.filter(lambda _, value: form.number(value) < 2)


def looked_up(b: StreamsBuilder, form: Form, _: str) -> KStream:
    table = b.table("other").map_values(lambda value: form.value(form.number(value) // 2))
    inner = b.stream("one").join_table(table, both(form))
    return inner.merge(b.stream("one").left_join_table(b.table("third"), both(form)))


def globally(b: StreamsBuilder, form: Form, key: str) -> KStream:
    table = b.global_table("other")
    named = {0: key, 1: "m"}
    stream = b.stream("one").filter(lambda _, value: value is not None)
    inner = stream.join_global(table, lambda _, value: named.get(form.number(value)), both(form))
    return inner.merge(stream.left_join_global(table, lambda own, _: own, both(form)))


def tables_joined(kind: str) -> Build:
    def build(b: StreamsBuilder, form: Form, _: str) -> Any:
        one, other = b.table("one"), b.table("other")
        join: Any = {"inner": one.join, "left": one.left_join, "outer": one.outer_join}[kind]
        return join(other, both(form))

    return build


def streams_joined(kind: str) -> Build:
    def build(b: StreamsBuilder, form: Form, _: str) -> KStream:
        one, other = b.stream("one"), b.stream("other")
        join = {"inner": one.join, "left": one.left_join, "outer": one.outer_join}[kind]
        return join(other, both(form), JoinWindows(10, 10, 5))

    return build


def by_foreign_key(kind: str) -> Build:
    def build(b: StreamsBuilder, form: Form, key: str) -> Any:
        one, other = b.table("one"), b.table("other")
        named = {0: key, 1: "m", 2: None}
        join: Any = {"inner": one.join, "left": one.left_join}[kind]
        return join(other, lambda value: named.get(form.number(value) % 3), both(form))

    return build


def regrouped(b: StreamsBuilder, form: Form, key: str) -> KTable:
    named = {0: key, 1: "m"}
    grouped = b.table("one").group_by(lambda _, value: (named.get(form.number(value) % 3), value))
    return grouped.aggregate(
        lambda: form.value(1),
        lambda _, new, old: form.value((form.number(old) + form.number(new) + 2) % 5),
        lambda _, gone, old: form.value((form.number(old) + 3 * form.number(gone) + 1) % 5),
    )


def cogrouped(b: StreamsBuilder, form: Form, _: str) -> KTable:
    one, other = b.stream("one").group_by_key(), b.stream("other").group_by_key()
    add = folded(form)["aggregator"]
    made: CogroupedKStream = one.cogroup(add).cogroup(
        other, lambda _, new, old: form.value(2 * form.number(new)) if form.number(old) else new
    )
    return made.aggregate(lambda: form.value(1))


def stateless(b: StreamsBuilder, form: Form, key: str) -> KStream:
    stream = (
        b.stream("one")
        .filter(lambda _, value: value is not None)
        .flat_map_values(lambda value: [value, form.value(0)])
    )
    keyed = stream.select_key(lambda own, value: key if form.number(value) else own)
    return keyed.repartition(name="again").filter_not(lambda _, value: form.number(value) == 3)


APPLICATIONS: dict[str, Build] = {
    "aggregate": aggregated,
    "reduce": reduced,
    "count": counted,
    "time windows": windowed(TimeWindows.of_size(20, grace=20)),
    "time windows when they close": windowed(TimeWindows.of_size(20, grace=5), close=True),
    "sliding windows": windowed(SlidingWindows.of_time_difference(10, grace=20)),
    "sessions": windowed(SessionWindows.with_inactivity_gap(12, grace=20)),
    "sessions reduced": sessions_reduced,
    "suppress": suppressed,
    "map and filter of a table": mapped,
    "stream with table": looked_up,
    "stream with global table": globally,
    **{f"{kind} join of tables": tables_joined(kind) for kind in ("inner", "left", "outer")},
    **{f"{kind} join of streams": streams_joined(kind) for kind in ("inner", "left", "outer")},
    **{f"{kind} join by a foreign key": by_foreign_key(kind) for kind in ("inner", "left")},
    "group of a table": regrouped,
    "cogroup": cogrouped,
    "without state": stateless,
}

NUMBERS = (0, 5, 0, 1, 3, None, 0, 2, 1, 4, 0, 1)


def outputs(build: Build, form: Form, key: str, cache: int) -> list[tuple[str, int | None, int]]:
    """Keys, with `a` for the one that stands for no text, numbers and times, with a crash after every other input."""
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=form.serde)
    made = build(builder, form, key)
    (made if isinstance(made, KStream) else made.to_stream()).to("out")
    config = {
        "statestore.cache.max.bytes": cache,
        "dsl.store.suppliers.class": BuiltInDslStoreSuppliers.IN_MEMORY,
    }
    found: list[tuple[str, int | None, int]] = []
    with TestDriver(builder.build(), config) as running:
        there = [topic for topic in ("one", "other", "third") if topic in running.log.topics]
        for at, number in enumerate(NUMBERS * 2):
            for turn, topic in enumerate(there):
                own = (key, "m")[(at + turn) % 2]
                value = None if number is None else form.value((number + turn) % 6 if turn else number)
                time = 100 + 7 * at - (20 if at % 5 == 4 else 0)
                running.pipe_input(topic, own, value, time, key_serde=StrSerde(), value_serde=form.serde)
            if at % 2:
                running.crash()
        for record in running.read_output("out", StrSerde(), form.serde):
            named = record.key
            if key == "" and (not named or named.startswith("@")):
                named = f"a{named}"
            found.append(
                (named, None if record.value is None else form.number(record.value), record.timestamp)
            )
    return found


@pytest.mark.parametrize("cache", [0, 1 << 20], ids=["without a cache", "with a cache"])
@pytest.mark.parametrize("form", BARE)
@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_value_that_is_false_is_a_value_like_any_other(name: str, form: str, cache: int) -> None:
    bare, wrapped = (outputs(APPLICATIONS[name], forms[form], "a", cache) for forms in (BARE, WRAPPED))
    assert bare == wrapped
    assert any(number == 0 for _, number, _ in bare)


@pytest.mark.parametrize("cache", [0, 1 << 20], ids=["without a cache", "with a cache"])
@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_key_of_no_bytes_is_a_key_like_any_other(name: str, cache: int) -> None:
    empty, named = (outputs(APPLICATIONS[name], WRAPPED["zero"], key, cache) for key in ("", "a"))
    assert empty == named
    assert {key[0] for key, _, _ in empty} == {"a", "m"}
