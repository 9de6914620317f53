"""What every engine promises, on both."""

from __future__ import annotations

import gc

import pytest

from store.engine import Engine, Family, Write
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


def test_a_bound_that_is_freed_after_the_call_still_bounds_the_scan(engine: Engine) -> None:
    fill(engine, range(1000))
    scan = engine.scan(DATA, None, bytes(bytearray(b"0500")))
    garbage = [b"%d" % number for number in range(1000)]
    gc.collect()
    assert len(list(scan)) == 500
    assert len(garbage) == 1000


@pytest.mark.requirement("844.3")
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
