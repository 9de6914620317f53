"""What every engine promises, on both."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.engine import Engine, Family, Write
from store.engine.protocol import Overlay
from store.errors import StoreClosedError
from tests.engine.engines import OpenEngine

DATA, META = Family.DATA, Family.META


def fill(engine: Engine, keys: range) -> None:
    engine.write((DATA, b"%04d" % number, b"value %d" % number) for number in keys)


def numbers(engine: Engine, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> list[int]:
    return [int(key) for key, _ in engine.scan(DATA, lower, upper, reverse=reverse)]


def test_a_key_never_written_has_no_value(engine: Engine) -> None:
    assert engine.get(DATA, b"absent") is None


def test_the_empty_key_and_the_empty_value_are_a_key_and_a_value(engine: Engine) -> None:
    engine.write([(DATA, b"", b"")])
    assert engine.get(DATA, b"") == b""
    assert list(engine.scan(DATA, None, None)) == [(b"", b"")]


def test_the_two_key_spaces_do_not_see_each_other(engine: Engine) -> None:
    engine.write([(DATA, b"key", b"data"), (META, b"key", b"meta")])
    engine.write([(META, b"key", None)])
    assert (engine.get(DATA, b"key"), engine.get(META, b"key")) == (b"data", None)
    assert list(engine.scan(META, None, None)) == []


def test_a_scan_of_one_key_space_has_nothing_of_the_other_however_much_is_there(engine: Engine) -> None:
    fill(engine, range(2000))
    engine.write([(META, b"0007", b"meta")])
    assert list(engine.scan(META, None, None)) == [(b"0007", b"meta")]
    assert list(engine.scan(META, b"0007", b"0008", reverse=True)) == [(b"0007", b"meta")]


def test_the_last_write_of_a_key_in_a_batch_counts(engine: Engine) -> None:
    engine.write([(DATA, b"a", b"1"), (DATA, b"a", None), (DATA, b"b", None), (DATA, b"b", b"2")])
    assert list(engine.scan(DATA, None, None)) == [(b"b", b"2")]


def test_a_scan_includes_its_lower_and_excludes_its_upper_bound(engine: Engine) -> None:
    fill(engine, range(10))
    assert numbers(engine, b"0003", b"0006") == [3, 4, 5]
    assert numbers(engine, b"0003", b"0006", reverse=True) == [5, 4, 3]


def test_an_unbounded_scan_has_every_key_in_both_directions(engine: Engine) -> None:
    fill(engine, range(2000))
    assert numbers(engine, None, None) == list(range(2000))
    assert numbers(engine, None, None, reverse=True) == list(reversed(range(2000)))


def test_bounds_need_not_be_keys(engine: Engine) -> None:
    fill(engine, range(0, 100, 10))
    assert numbers(engine, b"0011", b"00405") == [20, 30, 40]
    assert numbers(engine, b"0011", b"00405", reverse=True) == [40, 30, 20]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("lower", "upper"), [(b"0006", b"0003"), (b"0003", b"0003"), (b"9", None), (None, b"")]
)
def test_a_range_without_keys_is_empty(
    engine: Engine, lower: bytes | None, upper: bytes | None, reverse: bool
) -> None:
    fill(engine, range(10))
    assert numbers(engine, lower, upper, reverse=reverse) == []


def test_keys_sort_as_unsigned_bytes(engine: Engine) -> None:
    keys = [b"", b"\x00", b"\x00\x00", b"\x7f", b"\x80", b"\xff", b"\xff\x00", b"\xff\xff"]
    engine.write((DATA, key, b"") for key in reversed(keys))
    assert [key for key, _ in engine.scan(DATA, None, None)] == keys


def test_keys_that_begin_with_the_last_byte_are_found_that_were_put_together(engine: Engine) -> None:
    data: dict[bytes, bytes | None] = {b"a": b"1", b"\xff": b"2", b"\xff\xff": b"3"}
    engine.write((), data=data)
    assert {key: engine.get(DATA, key) for key in data} == data


def test_a_bound_that_is_freed_after_the_call_still_bounds_the_scan(engine: Engine) -> None:
    fill(engine, range(1000))
    scan = engine.scan(DATA, None, bytes(bytearray(b"0500")))
    garbage = [b"%d" % number for number in range(1000)]
    gc.collect()
    assert len(list(scan)) == 500
    assert len(garbage) == 1000


def overlay_of(rows: Mapping[int, bytes | None], *, reverse: bool, ended: list[bool]) -> Overlay:
    """Closed, or read to its end, it says so."""
    try:
        for number in sorted(rows, reverse=reverse):
            yield b"%04d" % number, rows[number]
    finally:
        ended.append(True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    held=st.sets(st.integers(0, 3000).map(lambda number: number // 2)),
    newer=st.dictionaries(st.integers(0, 1500), st.sampled_from([None, b"", b"newer"])),
    dense=st.booleans(),
    bounds=st.tuples(st.none() | st.integers(0, 1500), st.none() | st.integers(0, 1500)),
    reverse=st.booleans(),
)
def test_a_scan_shows_the_pairs_of_its_overlay_in_the_place_of_its_own(
    engine: Engine,
    held: set[int],
    newer: dict[int, bytes | None],
    dense: bool,
    bounds: tuple[int | None, int | None],
    reverse: bool,
) -> None:
    """Of several chunks, where it is `dense`."""
    if dense:
        held |= set(range(1200, 1500))
        newer = {number: newer.get(number, b"newer") for number in {*range(0, 1300, 2), *newer}}
    engine.write([], drop=[(b"", b"9999")])
    engine.write((DATA, b"%04d" % number, b"held") for number in held)
    lower, upper = bounds
    within = [
        number
        for number in range(1501)
        if (lower is None or number >= lower) and (upper is None or number < upper)
    ]
    rows = {number: newer.get(number, b"held") for number in held | newer.keys()}
    expected = [(b"%04d" % number, value) for number in within if (value := rows.get(number)) is not None]
    ended: list[bool] = []
    overlay = overlay_of({n: newer[n] for n in within if n in newer}, reverse=reverse, ended=ended)
    first, last = (None if bound is None else b"%04d" % bound for bound in bounds)
    found = list(engine.scan(DATA, first, last, reverse=reverse, overlay=overlay))
    assert found == (expected[::-1] if reverse else expected)
    assert ended == [True]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("value", [None, b"newer"])
def test_a_scan_shows_one_pair_of_an_overlay_wherever_a_chunk_ends(
    engine: Engine, value: bytes | None, reverse: bool
) -> None:
    """Of 300 even numbers; the chunks of each engine end somewhere among those that are tried."""
    held = {number * 2: b"held" for number in range(300)}
    engine.write((DATA, b"%04d" % number, b"held") for number in held)
    for number in (*range(30), *range(240, 270), *range(330, 360), *range(570, 600)):
        rows = {**held, number: value}
        expected = [(b"%04d" % key, there) for key in sorted(rows) if (there := rows[key]) is not None]
        overlay = overlay_of({number: value}, reverse=reverse, ended=[])
        found = list(engine.scan(DATA, None, None, reverse=reverse, overlay=overlay))
        assert found == (expected[::-1] if reverse else expected), number


def test_a_scan_that_is_closed_closes_its_overlay(engine: Engine) -> None:
    fill(engine, range(10))
    ended: list[bool] = []
    overlay = overlay_of(dict.fromkeys(range(2000), b"newer"), reverse=False, ended=ended)
    pairs = engine.scan(DATA, None, None, overlay=overlay)
    assert (next(pairs), ended) == ((b"0000", b"newer"), [])
    pairs.close()
    assert ended == [True]


def test_an_open_scan_keeps_its_view(engine: Engine) -> None:
    fill(engine, range(1000))
    scan = engine.scan(DATA, None, None)
    engine.write([(DATA, b"0000", None), (DATA, b"0999", b"changed"), (DATA, b"0500x", b"new")])
    assert list(scan) == [(b"%04d" % number, b"value %d" % number) for number in range(1000)]


def test_a_snapshot_does_not_change(engine: Engine) -> None:
    engine.write([(DATA, b"a", b"1"), (META, b"offset", b"1")])
    snapshot = engine.snapshot()
    engine.write([(DATA, b"a", None), (DATA, b"b", b"2"), (META, b"offset", b"2")])
    assert (snapshot.get(DATA, b"a"), snapshot.get(DATA, b"b")) == (b"1", None)
    assert snapshot.get(META, b"offset") == b"1"
    assert list(snapshot.scan(DATA, None, None)) == [(b"a", b"1")]
    snapshot.close()


@pytest.mark.parametrize("key", [b"", b"\xfe\xff", b"\xff", b"\xff\x00", b"\xff\xff"])
def test_a_snapshot_has_each_key_whatever_bytes_it_begins_with(engine: Engine, key: bytes) -> None:
    engine.write([(DATA, key, b"data"), (META, key, b"meta")])
    snapshot = engine.snapshot()
    assert (snapshot.get(DATA, key), snapshot.get(META, key)) == (b"data", b"meta")
    snapshot.close()


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_of_one_snapshot_do_not_disturb_each_other(engine: Engine, reverse: bool) -> None:
    fill(engine, range(2000))
    snapshot = engine.snapshot()
    engine.write((DATA, b"%04d" % number, None) for number in range(2000))
    scans = [snapshot.scan(DATA, b"0100", b"1900", reverse=reverse) for _ in range(2)]
    expected = range(1899, 99, -1) if reverse else range(100, 1900)
    for number, pairs in zip(expected, zip(*scans, strict=True), strict=True):
        assert pairs == ((b"%04d" % number, b"value %d" % number),) * 2
        assert snapshot.get(DATA, b"0000") == b"value 0"
    snapshot.close()


def test_a_closed_snapshot_refuses_reads(engine: Engine) -> None:
    snapshot = engine.snapshot()
    snapshot.close()
    with pytest.raises(StoreClosedError):
        snapshot.get(DATA, b"a")


def test_what_was_written_is_there_after_reopening(open_engine: OpenEngine) -> None:
    engine = open_engine()
    fill(engine, range(5))
    engine.write([(DATA, b"0001", None), (META, b"offset", b"7")], sync=True)
    engine.close()
    again = open_engine()
    assert numbers(again, None, None) == [0, 2, 3, 4]
    assert again.get(META, b"offset") == b"7"
    again.close()


def test_a_batch_that_fails_while_it_is_made_writes_nothing(engine: Engine) -> None:
    def writes() -> list[Write]:
        raise RuntimeError("while making the batch")

    def batch() -> object:
        yield (DATA, b"a", b"1")
        yield from writes()

    with pytest.raises(RuntimeError):
        engine.write(batch())  # type: ignore[arg-type]
    assert engine.get(DATA, b"a") is None
    engine.write([(DATA, b"b", b"2")])
    assert engine.get(DATA, b"b") == b"2"


def test_every_call_after_close_is_refused(open_engine: OpenEngine) -> None:
    engine = open_engine()
    engine.close()
    engine.close()
    for call in (
        lambda: engine.get(DATA, b"a"),
        lambda: engine.scan(DATA, None, None),
        lambda: engine.write([]),
        lambda: engine.write([(DATA, b"a", b"1")]),
        lambda: engine.write([(META, b"a", b"1")]),
        lambda: engine.snapshot(),
        lambda: engine.approximate_num_keys(DATA),
    ):
        with pytest.raises(StoreClosedError):
            call()


def test_closing_ends_open_scans_and_snapshots_and_frees_the_database(open_engine: OpenEngine) -> None:
    engine = open_engine()
    fill(engine, range(1000))
    scan, snapshot = engine.scan(DATA, None, None), engine.snapshot()
    within = snapshot.scan(DATA, None, None)
    next(scan)
    engine.close()
    for use in (lambda: next(scan), lambda: next(within), lambda: snapshot.get(DATA, b"0001")):
        with pytest.raises(StoreClosedError):
            use()
    open_engine().close()


def test_a_scan_that_has_only_to_end_says_that_its_engine_was_closed(open_engine: OpenEngine) -> None:
    engine = open_engine()
    fill(engine, range(3))
    scan = engine.scan(DATA, None, None)
    for _ in range(3):
        next(scan)
    engine.close()
    with pytest.raises(StoreClosedError):
        next(scan)


def test_a_batch_drops_what_it_writes_at_the_lower_bound_of_a_range_and_not_at_the_upper(
    engine: Engine,
) -> None:
    engine.write([(DATA, b"0002", b"new"), (DATA, b"0005", b"new")], drop=[(b"0002", b"0005")])
    assert numbers(engine, None, None) == [5]


def test_a_batch_drops_ranges_of_what_was_there_and_of_what_it_writes(engine: Engine) -> None:
    fill(engine, range(10))
    engine.write(
        [(DATA, b"0003x", b"new"), (DATA, b"0009", b"new"), (META, b"0003", b"kept")],
        drop=[(b"0002", b"0005"), (b"0007", b"0008")],
    )
    assert numbers(engine, None, None) == [0, 1, 5, 6, 8, 9]
    assert engine.get(META, b"0003") == b"kept"
    engine.write([(DATA, b"0003", b"again")])
    assert engine.get(DATA, b"0003") == b"again"


def test_dropped_ranges_are_gone_after_reopening(open_engine: OpenEngine) -> None:
    engine = open_engine()
    fill(engine, range(10))
    engine.write((), drop=[(b"", b"0009")])
    engine.close()
    again = open_engine()
    assert numbers(again, None, None) == [9]
    again.close()


def test_a_range_without_keys_or_the_wrong_way_round_drops_nothing_and_harms_nothing(
    open_engine: OpenEngine,
) -> None:
    engine = open_engine()
    fill(engine, range(3))
    engine.write((), drop=[(b"0002", b"0001"), (b"0001", b"0001"), (b"\xff", b"\x00"), (b"5", b"6")])
    engine.close()
    again = open_engine()
    assert numbers(again, None, None) == [0, 1, 2]
    again.close()


@pytest.mark.parametrize(
    ("lower", "upper"), [(b"", b"\xff\xff\xff"), (b"\xff", b"\xff\x01"), (b"\xfe", b"\xff\x00\x00")]
)
def test_ranges_of_keys_that_are_stored_in_another_form_are_dropped_and_scanned_alike(
    engine: Engine, lower: bytes, upper: bytes
) -> None:
    keys = [
        b"",
        b"\x00",
        b"\xfe\xff",
        b"\xff",
        b"\xff\x00",
        b"\xff\x00\x00",
        b"\xff\x01",
        b"\xff\xff",
        b"\xff\xff\xff",
    ]
    engine.write([(DATA, key, b"") for key in keys] + [(META, b"", b"kept"), (META, b"\xff", b"kept")])
    within = [key for key in keys if lower <= key < upper]
    assert [key for key, _ in engine.scan(DATA, lower, upper)] == within
    assert [key for key, _ in engine.scan(DATA, lower, upper, reverse=True)] == within[::-1]
    engine.write((), drop=[(lower, upper)])
    assert [key for key, _ in engine.scan(DATA, None, None)] == [key for key in keys if key not in within]
    assert [key for key, _ in engine.scan(META, None, None, reverse=True)] == [b"\xff", b""]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("read", [0, 1, 200, 2500])
def test_an_open_scan_keeps_its_view_across_drops_and_staged_commits(
    engine: Engine, reverse: bool, read: int
) -> None:
    fill(engine, range(3000))
    expected = list(engine.scan(DATA, None, None, reverse=reverse))
    scan = engine.scan(DATA, None, None, reverse=reverse)
    found = [next(scan) for _ in range(read)]
    engine.write([(DATA, b"0000a", b"new")], drop=[(b"0100", b"2900")])
    engine.stage([(DATA, b"0050", None), (DATA, b"2999", b"new")])
    engine.apply_staged(drop=[(b"0000", b"0010")])
    assert found + list(scan) == expected


@pytest.mark.requirement("844.2")
def test_a_staged_commit_is_seen_by_nobody_until_it_is_applied(engine: Engine) -> None:
    engine.write([(DATA, b"a", b"old"), (DATA, b"b", b"old"), (META, b"offset", b"1")])
    engine.stage([(META, b"offset", b"2"), (DATA, b"a", b"new"), (DATA, b"b", None), (DATA, b"\xff", b"new")])
    assert list(engine.scan(DATA, None, None)) == [(b"a", b"old"), (b"b", b"old")]
    assert engine.apply_staged()
    assert list(engine.scan(DATA, None, None)) == [(b"a", b"new"), (b"\xff", b"new")]
    assert engine.get(META, b"offset") == b"2"
    assert not engine.apply_staged()


def test_a_staged_commit_without_writes_is_a_commit(engine: Engine) -> None:
    engine.write([(DATA, b"a", b"1")])
    engine.stage([])
    assert engine.apply_staged(drop=[(b"a", b"b")])
    assert list(engine.scan(DATA, None, None)) == []


@pytest.mark.requirement("844.2")
@pytest.mark.parametrize("then", ["write", "stage"])
def test_what_is_written_after_a_commit_was_staged_comes_after_it(engine: Engine, then: str) -> None:
    engine.stage([(DATA, b"a", b"1"), (DATA, b"b", b"1")])
    if then == "write":
        engine.write([(DATA, b"a", b"2")])
    else:
        engine.stage([(DATA, b"a", b"2")])
        assert engine.apply_staged()
    assert list(engine.scan(DATA, None, None)) == [(b"a", b"2"), (b"b", b"1")]


def test_a_commit_that_fails_while_it_is_staged_leaves_nothing(open_engine: OpenEngine) -> None:
    def writes() -> Iterator[Write]:
        yield DATA, b"a", b"1"
        raise RuntimeError("while staging")

    engine = open_engine()
    with pytest.raises(RuntimeError, match="while staging"):
        engine.stage(writes())
    assert not engine.apply_staged()
    engine.stage([(DATA, b"b", b"2")])
    engine.apply_staged()
    engine.close()
    again = open_engine()
    assert list(again.scan(DATA, None, None)) == [(b"b", b"2")]
    again.close()


def test_a_scratch_holds_its_rows_in_order_apart_from_the_engine(engine: Engine) -> None:
    fill(engine, range(3))
    scratch = engine.scratch()
    for key in (b"c", b"", b"\xff\xff", b"b"):
        scratch.put(key, b"value of " + key)
    assert scratch.get(b"c") == b"value of c"
    assert scratch.get(b"0001") is None
    assert [key for key, _ in scratch.scan(None, None)] == [b"", b"b", b"c", b"\xff\xff"]
    assert [key for key, _ in scratch.scan(b"b", b"\xff\xff", reverse=True)] == [b"c", b"b"]
    assert numbers(engine, None, None) == [0, 1, 2]
    scratch.close()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_of_a_scratch_keeps_its_view_across_puts_and_clears(engine: Engine, reverse: bool) -> None:
    scratch = engine.scratch()
    for number in range(3000):
        scratch.put(b"%04d" % number, b"old")
    expected = list(scratch.scan(None, None, reverse=reverse))
    scans = [scratch.scan(None, None, reverse=reverse) for _ in range(2)]
    found = [[next(scan) for _ in range(read)] for read, scan in zip((0, 1500), scans, strict=True)]
    scratch.put(b"0001", b"new")
    scratch.clear()
    assert list(scratch.scan(None, None)) == []
    scratch.put(b"0001", b"newer")
    scratch.clear()
    scratch.put(b"0002", b"newest")
    assert [start + list(scan) for start, scan in zip(found, scans, strict=True)] == [expected, expected]
    assert list(scratch.scan(None, None)) == [(b"0002", b"newest")]
    scratch.close()


def test_a_scratch_is_empty_and_takes_no_memory_when_it_is_made_and_when_it_was_cleared(
    engine: Engine,
) -> None:
    for _ in range(2):
        scratch = engine.scratch()
        assert (scratch.get(b"a"), scratch.approximate_num_bytes()) == (None, 0)
        scratch.put(b"a", b"1")
        assert scratch.approximate_num_bytes() > 2
        scratch.clear()
        assert (scratch.get(b"a"), scratch.approximate_num_bytes()) == (None, 0)
        scratch.put(b"a", b"1")
        scratch.close()


def test_a_closed_scratch_refuses_calls_and_ends_its_scans(engine: Engine) -> None:
    scratch = engine.scratch()
    scratch.put(b"a", b"1")
    scratch.put(b"b", b"1")
    scan = scratch.scan(None, None)
    next(scan)
    scratch.close()
    scratch.close()
    calls: list[Callable[[], object]] = [
        lambda: next(scan),
        lambda: scratch.get(b"a"),
        lambda: scratch.put(b"a", b"1"),
        lambda: scratch.scan(None, None),
        lambda: scratch.clear(),
    ]
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()


def test_new_calls_after_close_are_refused(open_engine: OpenEngine) -> None:
    engine = open_engine()
    engine.close()
    calls: list[Callable[[], object]] = [
        engine.sync,
        engine.scratch,
        lambda: engine.stage([]),
        engine.apply_staged,
        lambda: engine.write((), drop=[(b"a", b"b")]),
    ]
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()
