"""Joins of two streams: what Kafka Streams documents, their stores, and a naive reference with crashes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.config import StoreType, StreamsConfig
from store.errors import ConfigError
from store.serdes import JsonSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import (
    BuiltInDslStoreSuppliers,
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    JoinWindows,
    StreamJoined,
    StreamsBuilder,
    TopologyConfig,
)
from store.suppliers import (
    KeyValueSupplier,
    StoreSupplier,
    in_memory_window_store,
    persistent_window_store,
)
from tests.streams.dsl.crashing import CRASH, FATES, Input, run
from tests.streams.dsl.running import UNCACHED, driver, output, pipe

Kind = Literal["inner", "left", "outer"]
KINDS: tuple[Kind, ...] = ("inner", "left", "outer")

SECOND = 1_000


def joined(left: str | None, right: str | None) -> str:
    return f"{left},{right}"


def application(
    kind: Kind,
    windows: JoinWindows,
    said: StreamJoined | None = None,
    *,
    config: TopologyConfig | None = None,
) -> Application:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde(), config=config)
    left, right = builder.stream("left"), builder.stream("right")
    join = {"inner": left.join, "left": left.left_join, "outer": left.outer_join}[kind]
    join(right, joined, windows, joined=said).to("out")
    return builder.build()


def results(kind: Kind, windows: JoinWindows, records: Sequence[Input]) -> list[tuple[str, int]]:
    return [
        ((record.value or b"").decode(), record.timestamp)
        for record in run(application(kind, windows), records)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_records_with_an_empty_key_are_partners(kind: Kind) -> None:
    within = JoinWindows.of_time_difference(10)
    got = results(kind, within, [("left", b"", b"l", 1), ("right", b"", b"r", 2)])
    assert got == [("l,r", 2)]


def test_after_a_first_transaction_that_is_given_up_no_record_is_late_that_was_not_before() -> None:
    within = JoinWindows.of_time_difference(10, grace=1_000)

    def build(b: StreamsBuilder) -> None:
        b.stream("left").left_join(b.stream("right"), lambda left, right: [left, right], within).to("out")

    with driver(build, auto_commit=False) as running:
        pipe(running, [("left", "a", 1, 1), ("right", "b", 2, 100), ("right", "a", 3, 5)])
        running._tasks[0].abort()
        running.process()
        running.commit()
        assert output(running) == [("a", [1, 3], 5)]


# -- the table of Kafka Streams' developer guide ---------------------------------------------------------------

WITHIN_15_S = JoinWindows.of_time_difference(timedelta(seconds=15), grace=timedelta(seconds=5))

A, L, R = b"k", "left", "right"

TABLE: list[tuple[int, str, bytes | None, list[str], list[str], list[str]]] = [
    # time, side, value, inner, left, outer
    (1, L, None, [], [], []),
    (2, R, None, [], [], []),
    (3, L, b"A", [], [], []),
    (4, R, b"a", ["A,a"], ["A,a"], ["A,a"]),
    (5, L, b"B", ["B,a"], ["B,a"], ["B,a"]),
    (6, R, b"b", ["A,b", "B,b"], ["A,b", "B,b"], ["A,b", "B,b"]),
    (7, L, None, [], [], []),
    (8, R, None, [], [], []),
    (9, L, b"C", ["C,a", "C,b"], ["C,a", "C,b"], ["C,a", "C,b"]),
    (10, R, b"c", ["A,c", "B,c", "C,c"], ["A,c", "B,c", "C,c"], ["A,c", "B,c", "C,c"]),
    (11, R, None, [], [], []),
    (12, L, None, [], [], []),
    (13, R, None, [], [], []),
    (14, R, b"d", ["A,d", "B,d", "C,d"], ["A,d", "B,d", "C,d"], ["A,d", "B,d", "C,d"]),
    (15, L, b"D", ["D,a", "D,b", "D,c", "D,d"], ["D,a", "D,b", "D,c", "D,d"], ["D,a", "D,b", "D,c", "D,d"]),
    (40, L, b"E", [], [], []),
    (60, L, b"F", [], [], []),
    (61, L, b"F2", [], ["E,None"], ["E,None"]),
    (82, R, b"f", [], ["F,None", "F2,None"], ["F,None", "F2,None"]),
    (103, L, b"G", [], [], ["None,f"]),
]


@pytest.mark.requirement("x.4")
@pytest.mark.parametrize("kind", KINDS)
def test_the_documented_semantics(kind: Kind) -> None:
    records = [(side, A, value, time * SECOND) for time, side, value, *_ in TABLE]
    expected = [
        result
        for *_, inner, left, outer in TABLE
        for result in {"inner": inner, "left": left, "outer": outer}[kind]
    ]
    assert [value for value, _ in results(kind, WITHIN_15_S, records)] == expected


def test_a_window_is_closed_once_stream_time_is_past_its_end_and_grace() -> None:
    records: list[Input] = [(L, A, b"A", 1_000), (R, b"other", b"x", 21_000)]
    assert results("left", WITHIN_15_S, records) == []
    assert results("left", WITHIN_15_S, [*records, (R, b"other", b"y", 21_001)]) == [("A,None", 1_000)]


def test_results_have_the_later_time_of_the_two_and_alone_their_own() -> None:
    records: list[Input] = [
        (L, A, b"A", 5_000),
        (R, A, b"a", 3_000),
        (L, b"z", b"Z", 4_000),
        (L, A, b"B", 90_000),
    ]
    assert results("outer", WITHIN_15_S, records) == [("A,a", 5_000), ("Z,None", 4_000)]


def test_a_late_record_within_the_grace_period_still_finds_its_partner() -> None:
    records: list[Input] = [
        (L, A, b"A", 1_000),
        (L, b"z", b"Z", 20_000),
        (R, A, b"a", 2_000),
        (L, b"z", b"Y", 90_000),
    ]
    assert [value for value, _ in results("left", WITHIN_15_S, records)] == ["A,a", "Z,None"]


def test_a_record_whose_window_lies_behind_the_stream_time_does_not_wait() -> None:
    records: list[Input] = [(L, b"z", b"Z", 50_000), (L, A, b"A", 1_000)]
    assert results("left", WITHIN_15_S, records) == [("A,None", 1_000)]


def test_windows_need_not_be_symmetric() -> None:
    windows = JoinWindows.of_time_difference(0).after(5).with_grace(20)
    records: list[Input] = [
        (L, A, b"A", 10),
        (R, A, b"early", 9),
        (R, A, b"same", 10),
        (R, A, b"last", 15),
        (R, A, b"late", 16),
        (L, A, b"B", 4),
    ]
    assert results("inner", windows, records) == [("A,same", 10), ("A,last", 15), ("B,early", 9)]


def test_before_is_the_others_time_before_ones_own() -> None:
    windows = JoinWindows.of_time_difference(0).before(5)
    records: list[Input] = [(L, A, b"A", 10), (R, A, b"a", 4), (R, A, b"b", 5), (R, A, b"c", 11)]
    assert results("inner", windows, records) == [("A,b", 10)]


@pytest.mark.parametrize("first", [L, R])
def test_partners_that_are_all_earlier_are_found_however_far_the_time_has_gone_on_meanwhile(
    first: str,
) -> None:
    earlier = JoinWindows.of_time_difference(160)
    windows = earlier.before(-100) if first == L else earlier.after(-100)
    second = R if first == L else L
    records: list[Input] = [(first, A, b"a", 10_000), (first, b"b", b"x", 10_061), (second, A, b"A", 10_150)]
    pair = "a,A" if first == L else "A,a"
    assert results("inner", windows, records) == [(pair, 10_150)]


@pytest.mark.parametrize("grace", [0, 20])
@pytest.mark.parametrize("least", [-100, 0])
@pytest.mark.parametrize("first", [L, R])
def test_partners_at_the_limit_of_a_window_to_one_side_are_found_though_another_record_of_their_time_comes_first(
    first: str, least: int, grace: int
) -> None:
    limits = JoinWindows.of_time_difference(160, grace=grace)
    windows = limits.before(least) if first == L else limits.after(least)
    second = R if first == L else L
    records: list[Input] = [
        (first, A, b"a", 10_000),
        (first, b"b", b"x", 10_160 + grace),
        (second, A, b"A", 10_160),
    ]
    pair = "a,A" if first == L else "A,a"
    assert results("inner", windows, records) == [(pair, 10_160)]
    left = results("outer", windows, [*records, (L, b"z", b"", 99_999)])
    assert [value for value, _ in left if "A" in value] == [pair]


def test_a_late_record_within_the_grace_period_finds_its_partner_of_the_same_time() -> None:
    windows = JoinWindows.of_time_difference(0, grace=20)
    records: list[Input] = [(L, A, b"A", 100), (L, b"b", b"x", 120), (R, A, b"a", 100)]
    assert results("inner", windows, records) == [("A,a", 100)]


def test_windows_of_no_length_and_without_a_grace_period_are_over_when_their_partners_come() -> None:
    records: list[Input] = [(L, A, b"A", 100), (R, A, b"a", 100), (L, b"z", b"Z", 200)]
    assert results("inner", JoinWindows.of_time_difference(0), records) == []


@pytest.mark.parametrize(
    ("windows", "kept_ms"),
    [
        (JoinWindows(1, 1, 0), 2),
        (JoinWindows(15_000, 15_000, 5_000), 35_000),
        (JoinWindows(1, 600_000, 0), 600_001),
        (JoinWindows(0, 600_000, 0), 600_001),
        (JoinWindows(600_000, -600_000, 7), 600_008),
        (JoinWindows(0, 0, 0), 0),
    ],
)
def test_a_join_keeps_records_for_both_differences_and_no_shorter_than_to_the_last_partner(
    windows: JoinWindows, kept_ms: int
) -> None:
    assert windows.retention_ms == kept_ms


@pytest.mark.parametrize(
    ("kind", "expected"), [("inner", []), ("left", ["A,None"]), ("outer", ["A,None", "None,a"])]
)
def test_records_without_a_key_have_no_partner_and_are_not_lost_from_an_outer_side(
    kind: Kind, expected: list[str]
) -> None:
    """As in Kafka Streams since 3.7 (KIP-962)."""
    records: list[Input] = [(L, None, b"A", 1), (R, None, b"a", 1), (L, None, None, 2), (L, A, None, 2)]
    assert [value for value, _ in results(kind, WITHIN_15_S, records)] == expected


def test_at_least_once_one_that_is_passed_over_when_its_window_closes_keeps_nobody_back() -> None:
    def picky(value: int, _other: Any) -> int:
        return 1 // value

    def build(made: StreamsBuilder) -> None:
        windows = JoinWindows.of_time_difference(10)
        made.stream("left").left_join(made.stream("right"), picky, windows).to("out")

    config = UNCACHED | {
        "processing.guarantee": "at_least_once",
        "processing.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    waiting: list[Any] = [("left", "k", value, 5) for value in (1, 0, 1)]
    with driver(build, config) as running:
        pipe(running, [*waiting, ("left", "l", 1, 6), *[("left", "m", 1, time) for time in (40, 41, 60)]])
        assert output(running) == [("k", 1, 5), ("k", 1, 5), ("l", 1, 6), ("m", 1, 40), ("m", 1, 41)]
        (dead,) = running.read_output("dead", StrSerde(), JsonSerde())
        assert (dead.key, dead.value, dead.timestamp) == ("k", 0, 5)


@pytest.mark.requirement("x.4")
def test_a_stream_joins_itself() -> None:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    stream = builder.stream("left")
    stream.join(stream, joined, JoinWindows.of_time_difference(10)).to("out")
    records: list[Input] = [(L, A, b"A", 1), (L, A, b"B", 5), (L, A, b"C", 14)]
    values = [record.value for record in run(builder.build(), records)]
    assert values == [b"A,A", b"B,A", b"A,B", b"B,B", b"C,B", b"B,C", b"C,C"]


def test_a_joiner_may_have_the_key() -> None:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    builder.stream("left").outer_join(
        builder.stream("right"),
        lambda key, left, right: f"{key}:{left},{right}",
        JoinWindows.of_time_difference(10),
        with_key=True,
    ).to("out")
    records: list[Input] = [(R, A, b"a", 1), (L, A, b"A", 2), (R, b"z", b"z", 3), (R, A, b"b", 50)]
    assert [record.value for record in run(builder.build(), records)] == [b"k:A,a", b"z:None,z"]


# -- stores ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("954.4")
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("inner", ["KSTREAM-JOINTHIS-0000000004-store", "KSTREAM-JOINOTHER-0000000005-store"]),
        (
            "left",
            [
                "KSTREAM-JOINTHIS-0000000004-store",
                "KSTREAM-OUTEROTHER-0000000005-store",
                "KSTREAM-OUTERSHARED-0000000004-store",
            ],
        ),
        (
            "outer",
            [
                "KSTREAM-OUTERTHIS-0000000004-store",
                "KSTREAM-OUTEROTHER-0000000005-store",
                "KSTREAM-OUTERSHARED-0000000004-store",
            ],
        ),
    ],
)
def test_stores_are_named_and_made_as_in_kafka_streams(kind: Kind, names: list[str]) -> None:
    (topology,) = application(kind, WITHIN_15_S).sub_topologies
    assert sorted(topology.store_names) == sorted(names)
    seen: list[Any] = []

    class Recording(DslStoreSuppliers):
        def key_value_store(self, params: DslKeyValueParams) -> StoreSupplier[Any]:
            seen.append(params)
            return KeyValueSupplier(params.name)

        def window_store(self, params: DslWindowParams) -> StoreSupplier[Any]:
            seen.append(params)
            return BuiltInDslStoreSuppliers.IN_MEMORY.window_store(params)

        def session_store(self, params: DslSessionParams) -> StoreSupplier[Any]:
            raise AssertionError(params)

    topology.suppliers(Recording())
    windows = [
        DslWindowParams(name, retention_period=35_000, window_size=30_000, retain_duplicates=True)
        for name in names[:2]
    ]
    assert set(seen) == {*windows, *[DslKeyValueParams(name) for name in names[2:]]}


@pytest.mark.parametrize(
    ("kind", "suffixes"),
    [
        ("inner", ["this-join", "other-join"]),
        ("left", ["this-join", "outer-other-join", "left-shared-join"]),
        ("outer", ["outer-this-join", "outer-other-join", "outer-shared-join"]),
    ],
)
def test_the_users_name_is_in_the_names_of_stores_and_operators(kind: Kind, suffixes: list[str]) -> None:
    said = StreamJoined.as_("orders").with_name("pay")
    (topology,) = application(kind, WITHIN_15_S, said).sub_topologies
    assert sorted(topology.store_names) == sorted(f"orders-{suffix}-store" for suffix in suffixes)
    names = [vertex.name for vertex in topology.process.vertices]  # type: ignore[union-attr]
    assert {
        "pay-this-windowed",
        "pay-other-windowed",
        f"pay-{suffixes[0]}",
        f"pay-{suffixes[1]}",
        "pay-merge",
    } <= set(names)


def persistence(topology: Any, config: StreamsConfig) -> set[tuple[bool, bool]]:
    made = [supplier.supplier for supplier in topology.suppliers(config.dsl_store_suppliers).values()]
    assert len(made) == 3
    return {(one.transactional, one.persistent) for one in made}


TXN, ROCKS, MEMORY = (True, True), (False, True), (True, False)


@pytest.mark.requirement("954.3", "954.4")
@pytest.mark.parametrize(
    ("said", "override", "config", "expected"),
    [
        (None, None, None, TXN),
        (None, None, StoreType.IN_MEMORY, MEMORY),
        (None, StoreType.ROCKS_DB, StoreType.IN_MEMORY, ROCKS),
        (StreamJoined.with_(StoreType.TXN_ROCKS_DB), StoreType.ROCKS_DB, StoreType.IN_MEMORY, TXN),
        (StreamJoined().with_dsl_store_suppliers(StoreType.ROCKS_DB), None, StoreType.IN_MEMORY, ROCKS),
    ],
    ids=["default", "run time", "topology", "operator", "with_dsl_store_suppliers"],
)
def test_all_three_stores_come_from_what_has_precedence(
    said: StreamJoined | None,
    override: StoreType | None,
    config: StoreType | None,
    expected: tuple[bool, bool],
) -> None:
    built_with = TopologyConfig(None, {} if override is None else {"dsl.store.suppliers.class": override})
    (topology,) = application("outer", WITHIN_15_S, said, config=built_with).sub_topologies
    assert persistence(topology, StreamsConfig(dsl_store_suppliers_class=config)) == {expected}


@pytest.mark.requirement("954.3", "954.4")
def test_a_supplier_given_for_one_store_beats_the_suppliers_of_the_operator() -> None:
    mine = in_memory_window_store("mine", 35_000, 30_000, True)
    said = StreamJoined(this_supplier=mine)
    (topology,) = application("left", WITHIN_15_S, said).sub_topologies
    suppliers: dict[str, Any] = dict(topology.suppliers())
    assert {name: supplier.supplier.persistent for name, supplier in suppliers.items()} == {
        "mine": False,
        "KSTREAM-OUTEROTHER-0000000005-store": True,
        # As in Kafka Streams, it is like the store of this side where nothing else is said.
        "mine-left-shared-join-store": False,
    }
    said = said.with_dsl_store_suppliers(StoreType.ROCKS_DB)
    (topology,) = application("left", WITHIN_15_S, said).sub_topologies
    suppliers = dict(topology.suppliers())
    made = {name: supplier.supplier for name, supplier in suppliers.items()}
    assert made["mine"] == mine
    assert (
        made["mine-left-shared-join-store"].transactional,
        made["mine-left-shared-join-store"].persistent,
    ) == ROCKS


def test_the_changelog_of_a_joins_windows_is_not_compacted_unless_they_have_a_supplier() -> None:
    mine = persistent_window_store("mine", 35_000, 30_000, True)
    for said, supplied in (
        (StreamJoined(store_name="s"), "compact,delete"),
        (StreamJoined(store_name="s", topic_config={"cleanup.policy": "compact"}), "compact"),
    ):
        topics = application("outer", WITHIN_15_S, said).internal_topics(lambda _: 1)
        assert {spec.name: spec.config["cleanup.policy"] for spec in topics} == {
            "app-s-outer-this-join-store-changelog": "delete",
            "app-s-outer-other-join-store-changelog": "delete",
            "app-s-outer-shared-join-store-changelog": "compact",
        }
        topics = application("inner", WITHIN_15_S, said.with_this_store_supplier(mine)).internal_topics(
            lambda _: 1
        )
        assert {spec.name: spec.config["cleanup.policy"] for spec in topics} == {
            "app-mine-changelog": supplied,
            "app-s-other-join-store-changelog": "delete",
        }


@pytest.mark.requirement("954.4")
@pytest.mark.parametrize(
    "supplier",
    [
        persistent_window_store("mine", 35_000, 30_000),
        persistent_window_store("mine", 30_000, 30_000, True),
        persistent_window_store("mine", 35_000, 15_000, True),
    ],
    ids=["no duplicates", "retention", "size"],
)
def test_a_store_that_does_not_fit_the_windows_is_refused_with_what_would(
    supplier: StoreSupplier[Any],
) -> None:
    with pytest.raises(ConfigError, match="retention_period_ms=35000 and window_size_ms=30000"):
        application("inner", WITHIN_15_S, StreamJoined(this_supplier=supplier))
    with pytest.raises(ConfigError, match="another name"):
        StreamJoined.with_(supplier, supplier)


@pytest.mark.requirement("954.5")
def test_a_class_that_is_missing_is_named_with_the_operator() -> None:
    (topology,) = application("inner", WITHIN_15_S).sub_topologies
    config = StreamsConfig(dsl_store_suppliers_class="no.such:Stores")
    with pytest.raises(ConfigError, match=r"no\.such:Stores.* operator KSTREAM-WINDOWED-0000000002"):
        topology.suppliers(config.dsl_store_suppliers)


# -- a naive reference -------------------------------------------------------------------------------------------


def reference(
    kind: Kind, windows: JoinWindows, records: Sequence[Input]
) -> list[tuple[bytes | None, str, int]]:
    """Everything that came, gone through again for each record."""
    came: dict[str, list[tuple[int, bytes, bytes]]] = {L: [], R: []}
    waiting: list[tuple[int, str, bytes, bytes]] = []
    wait = {L: windows.after_ms + windows.grace_ms, R: windows.before_ms + windows.grace_ms}
    outer = {L: kind != "inner", R: kind == "outer"}
    out: list[tuple[bytes | None, str, int]] = []
    now = -1

    def result(side: str, one: bytes, other: bytes | None) -> str:
        pair = (one, other) if side == L else (other, one)
        return joined(*[None if value is None else value.decode() for value in pair])

    for side, key, value, time in records:
        now = max(now, time)
        if key is None or value is None:
            if outer[side] and value is not None:
                out.append((key, result(side, value, None), time))
            continue
        if time == now:
            closed = [one for one in waiting if one[0] + wait[one[1]] < now]
            waiting = [one for one in waiting if one not in closed]
            # Those of the right side come first among those of one time.
            for when, whose, of, what in sorted(closed, key=lambda one: (one[0], one[1] == L, one[2])):
                out.append((of, result(whose, what, None), when))
        other = R if side == L else L
        before, after = (windows.before_ms, windows.after_ms)
        if side == R:
            before, after = after, before
        newest = max([when for when, _, _ in came[other]], default=0)
        partners = [
            one
            for one in sorted(came[other], key=lambda one: one[0])
            if one[1] == key
            and time - before <= one[0] <= time + after
            and one[0] > newest - windows.retention_ms
        ]
        for when, of, what in partners:
            waiting = [one for one in waiting if one[:3] != (when, other, of)]
            out.append((key, result(side, value, what), max(time, when)))
        if not partners and outer[side]:
            if time + after < now:
                out.append((key, result(side, value, None), time))
            else:
                waiting.append((time, side, key, value))
        came[side].append((time, key, value))
    return out


RECORDS = st.lists(
    st.tuples(
        st.sampled_from([L, R]),
        st.sampled_from([b"a", b"a", b"b", b"ab", None]),
        st.sampled_from([b"1", b"2", b"3", None]),
        st.one_of(st.integers(1, 40), st.integers(1, 40), st.integers(100, 130), st.just(500)),
    ),
    max_size=14,
)

AROUND = st.builds(JoinWindows, st.integers(0, 12), st.integers(0, 12), st.integers(0, 8))
BEFORE = st.builds(
    lambda near, size, grace: JoinWindows(near + size, -near, grace), *[st.integers(0, 12)] * 3
)
AFTER = st.builds(lambda near, size, grace: JoinWindows(-near, near + size, grace), *[st.integers(0, 12)] * 3)
WINDOWS = AROUND | BEFORE | AFTER


@pytest.mark.requirement("x.4", "954.4")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(records=RECORDS, windows=WINDOWS)
def test_a_join_has_the_results_of_the_reference(
    kind: Kind, records: list[Input], windows: JoinWindows
) -> None:
    found = [
        (record.key, (record.value or b"").decode(), record.timestamp)
        for record in run(application(kind, windows), records)
    ]
    assert found == reference(kind, windows, records)


@pytest.mark.requirement("x.4", "954.4")
@pytest.mark.parametrize("store", list(StoreType))
@settings(max_examples=60, deadline=None)
@given(records=RECORDS, windows=WINDOWS, fates=st.lists(FATES, max_size=30), kind=st.sampled_from(KINDS))
def test_a_crash_after_any_record_changes_nothing(
    store: StoreType, kind: Kind, records: list[Input], windows: JoinWindows, fates: list[str]
) -> None:
    found = [
        (record.key, (record.value or b"").decode(), record.timestamp)
        for record in run(application(kind, windows), records, fates, dsl_store_suppliers_class=store)
    ]
    assert found == reference(kind, windows, records)


def test_stream_time_outlives_a_crash_also_where_only_records_without_a_value_moved_it() -> None:
    records: list[Input] = [(L, A, b"A", 10), (R, A, None, 60), (L, b"b", b"B", 12)]
    windows = JoinWindows.of_time_difference(10)
    assert reference("left", windows, records) == [(b"b", "B,None", 12)]
    for fates in ([], ["go on", "commit", CRASH], ["commit", "commit", CRASH]):
        found = run(application("left", windows), records, fates)
        assert [(record.key, record.value) for record in found] == [(b"b", b"B,None")]


def test_windows_of_a_join_may_lie_behind_or_ahead_as_long_as_they_have_any_time() -> None:
    windows = JoinWindows.of_time_difference(10).before(4)
    assert windows.after(-4) == JoinWindows(4, -4)
    with pytest.raises(ValueError, match="after=-5"):
        windows.after(-5)
    windows = JoinWindows.of_time_difference(10).after(4)
    assert windows.before(-4) == JoinWindows(-4, 4)
    with pytest.raises(ValueError, match="before=-5"):
        windows.before(-5)


def test_the_changelog_of_a_join_has_the_times_of_results_of_a_join_before_it() -> None:
    """It deletes by time, and an input may be days older than what a join has made of it."""

    def build(made: StreamsBuilder) -> None:
        first = made.stream("a").join(made.stream("b"), joined, JoinWindows(100, 100))
        first.join(
            made.stream("c"), joined, JoinWindows(100, 100), joined=StreamJoined(store_name="second")
        ).to("out")

    with driver(build) as running:
        pipe(running, [("b", "k", "1", 90), ("a", "k", "2", 20), ("c", "k", "3", 90)])
        changes = running.log.records("app-second-this-join-store-changelog")
        assert [change.timestamp for change in changes] == [90]
        assert output(running) == [("k", "2,1,3", 90)]


def test_what_is_said_of_a_join_by_anything_but_a_stream_joined_is_refused() -> None:
    stream = StreamsBuilder("app").stream("in")
    name: Any = "pairs"
    with pytest.raises(ConfigError, match="joined='pairs' is not allowed: a StreamJoined"):
        stream.join(stream, max, JoinWindows.of_time_difference(3), joined=name)
