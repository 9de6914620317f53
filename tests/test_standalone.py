"""A store by itself: `open_store`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from rocksdict import Options, Rdict

from store.clock import SystemClock
from store.engine.rocksdb import RocksEngine
from store.errors import ConfigError, StateDirectoryError, StateLockedError, StoreCorruptedError
from store.metrics import Metrics, StateStoreMetrics
from store.serdes import IntSerde, StrSerde
from store.standalone import open_store
from store.state.keyvalue import KeyValueStore
from store.state.windowed import Window, Windowed
from store.suppliers import (
    StoreSupplier,
    custom_store,
    key_value_store_builder,
    persistent_key_value_store,
    persistent_window_store,
)
from store.transaction import Mechanism
from tests.conformance.stores import FileStore
from tests.waiting import LONGEST_S

SUPPLIER = persistent_key_value_store("words")
HOUR = 3_600_000


@pytest.mark.requirement("844.1")
@pytest.mark.parametrize("mechanism", Mechanism)
def test_what_was_committed_is_there_again_and_nothing_else(mechanism: Mechanism, tmp_path: Path) -> None:
    with open_store(SUPPLIER, tmp_path, mechanism=mechanism) as store:
        store.put(b"a", b"1")
        store.commit()
        store.put(b"b", b"2")
    with open_store(SUPPLIER, tmp_path, mechanism=mechanism) as store:
        assert dict(store.all()) == {b"a": b"1"}


def test_an_error_in_the_block_closes_the_store_and_is_raised(tmp_path: Path) -> None:
    def fail() -> None:
        with open_store(SUPPLIER, tmp_path) as store:
            store.put(b"a", b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with open_store(SUPPLIER, tmp_path) as store:
        assert dict(store.all()) == {}


def test_a_typed_store_takes_and_gives_values_of_its_types(tmp_path: Path) -> None:
    builder = key_value_store_builder(SUPPLIER, StrSerde(), IntSerde())
    with open_store(builder, tmp_path) as store:
        store.put("a", 1)
        assert list(store.all()) == [("a", 1)]


def test_a_store_that_is_open_elsewhere_is_refused(tmp_path: Path) -> None:
    with open_store(SUPPLIER, tmp_path) as store:
        with pytest.raises(StateLockedError, match="this process"), open_store(SUPPLIER, tmp_path):
            pass
        store.put(b"a", b"1")
        store.commit()


def test_a_directory_that_cannot_be_made_is_refused_by_its_name(tmp_path: Path) -> None:
    place = tmp_path / "file" / "stores"
    place.parent.touch()
    with pytest.raises(StateDirectoryError) as raised, open_store(SUPPLIER, place):
        pass
    assert str(raised.value).startswith(f"directory='{place}' cannot be used for state: [Errno")
    assert "has to be a directory that the user" in str(raised.value)


def test_stores_of_different_names_live_side_by_side(tmp_path: Path) -> None:
    with (
        open_store(SUPPLIER, tmp_path) as words,
        open_store(persistent_key_value_store("numbers"), tmp_path) as numbers,
    ):
        words.put(b"a", b"1")
        assert numbers.get(b"a") is None


@pytest.mark.requirement("892.3")
@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_process_that_is_killed_loses_what_it_did_not_commit_and_nothing_else(
    mechanism: Mechanism, tmp_path: Path
) -> None:
    program = f"""
import os, signal
from store.standalone import open_store
from store.suppliers import persistent_key_value_store
from store.transaction import Mechanism
words = persistent_key_value_store("words")
with open_store(words, {str(tmp_path)!r}, mechanism=Mechanism({mechanism.value!r})) as store:
    store.put(b"a", b"1")
    store.commit()
    store.put(b"b", b"2")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=LONGEST_S)
    assert ended.returncode == -9
    with open_store(SUPPLIER, tmp_path, mechanism=mechanism) as store:
        assert dict(store.all()) == {b"a": b"1"}


def damage(directory: Path) -> Path:
    """Make the database unreadable at open; returns where it lies."""
    with open_store(SUPPLIER, directory) as store:
        store.put(b"a", b"1")
        store.commit()
    [current] = directory.glob("**/CURRENT")
    current.write_bytes(b"nothing\n")
    return current.parent


def test_a_corrupt_store_is_refused_with_what_where_and_what_to_do(tmp_path: Path) -> None:
    place = damage(tmp_path)
    before = {path: path.read_bytes() for path in place.iterdir() if path.suffix == ".log"}
    for _ in range(2):
        with pytest.raises(StoreCorruptedError) as raised, open_store(SUPPLIER, tmp_path):
            pass
        for part in ("words", str(place), "backup", 'on_corruption="set_aside"'):
            assert part in str(raised.value)
    assert {path: path.read_bytes() for path in before} == before
    assert not list(tmp_path.glob("**/set-aside"))


def test_a_corrupt_store_is_set_aside_whole_when_the_caller_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = damage(tmp_path)
    files = {path.name for path in place.iterdir()}
    with open_store(SUPPLIER, tmp_path, on_corruption="set_aside") as store:
        assert dict(store.all()) == {}
        store.put(b"b", b"2")
        store.commit()
    [aside] = tmp_path.glob("**/set-aside/*/words")
    assert files <= {path.name for path in aside.iterdir()}
    [warning] = [record.getMessage() for record in caplog.records]
    assert str(aside) in warning
    with open_store(SUPPLIER, tmp_path) as store:
        assert dict(store.all()) == {b"b": b"2"}


def test_a_store_of_another_program_is_refused_or_set_aside_when_the_caller_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "standalone" / "words" / "rocksdb" / "words"
    place.mkdir(parents=True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(place), options=options)
    database[b"a"] = b"1"
    database.close()
    with pytest.raises(StoreCorruptedError, match="another program"), open_store(SUPPLIER, tmp_path):
        pass
    with open_store(SUPPLIER, tmp_path, on_corruption="set_aside") as store:
        assert list(store.all()) == []
    [aside] = tmp_path.glob("**/set-aside/*/words")
    assert "another program" in caplog.text
    assert str(aside) in caplog.text


@pytest.mark.parametrize("on_corruption", ["raise", "set_aside"])
def test_a_changed_retention_is_no_corruption(
    on_corruption: Literal["raise", "set_aside"], tmp_path: Path
) -> None:
    for number, hours in enumerate((1, 2, 1)):
        windows = persistent_window_store("clicks", hours * HOUR, 60_000)
        with open_store(windows, tmp_path, on_corruption=on_corruption) as store:
            assert len(list(store.all())) == number
            store.put(b"home", b"1", 2 * HOUR + number * 60_000)
            store.commit()
    assert not list(tmp_path.glob("**/set-aside"))


LATER = {
    "raise": 'words was found damaged .* as they were. Put a backup .*; or open it with on_corruption="set_aside": .*',
    "set_aside": r"words was found damaged .* are renamed as this use of it ends.* Open it again: it starts empty$",
}
"""What is said of damage that is found at a read."""


@pytest.mark.parametrize("on_corruption", ["raise", "set_aside"])
def test_damage_found_at_a_read_is_raised_and_the_store_is_set_aside_only_when_the_caller_says_so(
    on_corruption: Literal["raise", "set_aside"], tmp_path: Path
) -> None:
    with open_store(SUPPLIER, tmp_path) as store:
        for number in range(200):
            store.put(b"%d" % number, os.urandom(1000))
        store.commit()
        assert isinstance(store._engine, RocksEngine)
        store._engine._rdict.flush()
    [table] = tmp_path.glob("**/*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 3] ^= 1
    table.write_bytes(data)

    def read() -> int:
        with open_store(SUPPLIER, tmp_path, on_corruption=on_corruption) as store:
            return len(list(store.all()))

    with pytest.raises(StoreCorruptedError, match=LATER[on_corruption]):
        read()
    if on_corruption == "raise":
        assert table.read_bytes() == bytes(data)
    else:
        assert read() == 0
        [aside] = tmp_path.glob("**/set-aside/**/*.sst")
        assert aside.read_bytes() == bytes(data)


def test_an_unknown_way_with_corruption_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="raise or set_aside"),
        open_store(
            SUPPLIER,
            tmp_path,
            on_corruption="delete",  # type: ignore[arg-type]
        ),
    ):
        pass


class StepClock(SystemClock):
    """A second passes between two looks."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 1
        return self._now


@pytest.mark.requirement("892.8")
@pytest.mark.parametrize("supplier", [custom_store("own", FileStore), custom_store("own", KeyValueStore)])
def test_every_commit_of_a_store_of_ones_own_is_measured_once(
    supplier: StoreSupplier[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[float] = []
    report = StateStoreMetrics.committed

    def committed(metrics: StateStoreMetrics, seconds: float) -> None:
        reported.append(seconds)
        report(metrics, seconds)

    monkeypatch.setattr(StateStoreMetrics, "committed", committed)
    clock = StepClock()
    metrics = Metrics(clock)
    with open_store(supplier, tmp_path, metrics=metrics, clock=clock) as store:
        for number in range(30):
            store.put(b"a", b"%d" % number)
            assert (metrics.as_dict()["own"]["own"]["uncommitted-bytes"] > 0) == store.transactional()
            store.commit()
        measured = metrics.as_dict()["own"]["own"]
    assert len(reported) == 30
    assert measured["commit-rate"] > 0
    assert measured["commit-latency-avg"] == 1e9
    assert metrics.as_dict() == {}


@pytest.mark.parametrize("committed", [False, True])
def test_a_window_written_without_transactions_is_in_each_answer_of_a_store_with_them(
    tmp_path: Path, *, committed: bool
) -> None:
    supplier = persistent_window_store("w", 10 * HOUR, HOUR)
    time = 100 * HOUR + HOUR // 2
    with open_store(supplier, tmp_path, mechanism=None) as direct:
        if committed:
            direct.put(b"j", b"before", 100 * HOUR + 1)
            direct.commit()
        direct.put(b"k", b"v", time)
    with open_store(supplier, tmp_path) as store:
        assert store.fetch(b"k", time) == b"v"
        assert list(store.fetch(b"k", 0, 200 * HOUR)) == [(time, b"v")]
        assert (Windowed(b"k", Window(time, time + HOUR)), b"v") in list(store.all())


FORKER = """
import os, sys
from store import open_store, persistent_key_value_store
from store.errors import ProtocolError

def refused(call):
    try:
        call()
        return "allowed"
    except ProtocolError:
        return "refused"

with open_store(persistent_key_value_store("s"), sys.argv[1], mechanism=sys.argv[2] or None) as store:
    for key in (b"a", b"b"):
        store.put(key, b"parent")
        store.commit()
    store.put(b"c", b"parent")
    pairs = store.all()
    next(pairs)
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        left = [key.decode() for key, _ in pairs]
        store.commit()
        store.put(b"d", b"parent")
        store.commit()
        print(status, *left)
    else:
        def write():
            store.put(b"a", b"child")
            store.commit()
        print(*[refused(call) for call in (write, lambda: store.get(b"b"), lambda: list(pairs), store.all)], flush=True)
"""
"""The child leaves the block, and ends as any interpreter does."""


@pytest.mark.parametrize("mechanism", [*Mechanism, ""])
def test_a_process_that_is_forked_from_the_one_with_the_store_is_refused_and_leaves_it_alone(
    tmp_path: Path, mechanism: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKER, str(tmp_path), mechanism],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == ["refused refused refused refused", "0 b c"]
    with open_store(persistent_key_value_store("s"), tmp_path) as store:
        assert list(store.all()) == [(key, b"parent") for key in (b"a", b"b", b"c", b"d")]
