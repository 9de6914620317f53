"""Every way of an offset between store and checkpoint, cut off at every effect on the disk, with and without power."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from store.engine.memory import MemoryEngine
from store.engine.protocol import Checkpointed, Family, Overlay, Pairs
from store.errors import StoreCorruptedError
from store.recovery import checkpoint as checkpoint_file
from store.recovery.directory import StateDirectory
from store.recovery.offsets import TaskOffsets
from store.recovery.restore import (
    LoggedStore,
    RestoreResult,
    RestoreSettings,
    open_and_restore,
    restore,
    suspects,
)
from store.state import timestamped as timestamped_rows
from store.state.keyvalue import KeyValueStore
from store.state.protocol import StateStore, StoreContext
from store.state.window import WindowStore
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, Record, TopicPartition
from tests.recovery.disks import Crash, CrashDisk
from tests.recovery.logs import Changelogs, Pair, StepClock


class WithoutOffsets(KeyValueStore):
    """A transactional store as KIP-844 has it: the task keeps its offset."""

    def manages_offsets(self) -> bool:
        return False

    def recover(self, changelog_offset: int) -> bool:
        self.discard()
        return changelog_offset >= 0


Kind = str
"""The value of a `store.recovery.decision.OffsetKeeping`."""

KINDS = ("own", "checkpointed", "direct", "volatile")


def open_store(kind: Kind, disk: CrashDisk, name: str) -> KeyValueStore:
    make = WithoutOffsets if kind == "checkpointed" else KeyValueStore
    return make(
        StoreContext(
            name=name,
            open_engine=MemoryEngine if kind == "volatile" else lambda: disk.open("0_0", name),
            persistent=kind != "volatile",
            mechanism=None if kind == "direct" else Mechanism.INDEXED_BATCH,
        )
    )


class Incarnation:
    """What a task does with its stores, its offsets and (in `changelogs`) Kafka, in the order in which it does it."""

    def __init__(
        self, disk: CrashDisk, changelogs: Changelogs, kinds: Mapping[str, Kind], *, exactly_once: bool = True
    ) -> None:
        self.disk = disk
        self.changelogs = changelogs
        self.exactly_once = exactly_once
        self._lock = disk.lock("0_0")
        self._lock.__enter__()
        self.offsets = TaskOffsets(disk, "0_0", StepClock(), exactly_once=exactly_once)
        self.stores: dict[str, KeyValueStore] = {}
        self.results: dict[str, RestoreResult] = {}
        for name, kind in kinds.items():
            self.stores[name], self.results[name] = open_and_restore(
                LoggedStore(
                    name,
                    changelogs[name].tp,
                    lambda kind=kind, name=name: open_store(kind, disk, name),  # type: ignore[misc]
                ),
                self.offsets,
                changelogs,
                RestoreSettings(batch=2, clock=StepClock()),
            )

    def write(self, pairs: Sequence[Pair]) -> None:
        """Begin a transaction, and write the pairs to every store."""
        self.offsets.begin_unclean()
        for store in self.stores.values():
            for key, value in pairs:
                store.put(key, value)

    def commit(self, pairs: Sequence[Pair]) -> None:
        self.disk.step()
        ends = {self.changelogs[name].tp: self.changelogs[name].append(*pairs) for name in self.stores}
        for name, store in self.stores.items():
            tp = self.changelogs[name].tp
            store.commit({tp: ends[tp]})
        self.offsets.committed(ends)

    def process(self, *pairs: Pair) -> None:
        self.write(pairs)
        self.commit(pairs)

    def close(self) -> None:
        self.offsets.close()
        for store in self.stores.values():
            store.close()
        self._lock.__exit__(None, None, None)

    def check(self) -> None:
        """Stores hold what their changelogs say."""
        for name, store in self.stores.items():
            assert contents(store) == self.changelogs[name].values(), name


def contents(store: KeyValueStore) -> dict[bytes, bytes]:
    return dict(store.view(IsolationLevel.READ_COMMITTED).all())


FIRST: tuple[Pair, ...] = ((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
SECOND: tuple[Pair, ...] = ((b"a", None), (b"b", b"2"))
THIRD: tuple[Pair, ...] = ((b"c", None), (b"d", b"3"))


def lives(disk: CrashDisk, changelogs: Changelogs, *plans: tuple[Mapping[str, Kind], bool]) -> None:
    """One incarnation after the other, each with two transactions and a clean end."""
    for number, (kinds, exactly_once) in enumerate(plans):
        task = Incarnation(disk, changelogs, kinds, exactly_once=exactly_once)
        task.process(*FIRST, (b"%d" % number, b""))
        task.process(*(SECOND if number % 2 else THIRD))
        task.close()


def crash_everywhere(
    run: Callable[[CrashDisk, Changelogs], None],
    names: Sequence[str],
    check: Callable[[CrashDisk, Changelogs], None],
) -> None:
    """`run` until each of its effects in turn, with and without power; `check` what the next process finds."""
    whole = CrashDisk()
    run(whole, Changelogs(*names))
    assert whole.steps > 0
    for crash_at, power_lost in product(range(1, whole.steps + 1), (False, True)):
        disk, changelogs = CrashDisk(), Changelogs(*names)
        disk.crash_at = crash_at
        with pytest.raises(Crash):
            run(disk, changelogs)
        disk.restart(power_lost=power_lost)
        check(disk, changelogs)


def check_next(kinds: Mapping[str, Kind]) -> Callable[[CrashDisk, Changelogs], None]:
    """The next incarnation is right, goes on being right, and so is the one after it, which replays nothing."""

    def check(disk: CrashDisk, changelogs: Changelogs) -> None:
        task = Incarnation(disk, changelogs, kinds)
        task.check()
        task.process(*THIRD)
        task.check()
        task.close()
        last = Incarnation(disk, changelogs, kinds)
        last.check()
        for name, kind in kinds.items():
            assert last.results[name].records == 0 or kind == "volatile"
            assert last.results[name].set_aside is None
        last.close()

    return check


@pytest.mark.requirement("844.5")
@pytest.mark.requirement("892.10")
@pytest.mark.requirement("844.4")
@pytest.mark.parametrize("kinds", list(product(KINDS, repeat=3)), ids=" then ".join)
def test_a_store_of_any_kind_becomes_one_of_any_other_whatever_the_moment_of_a_crash(
    kinds: tuple[Kind, Kind, Kind],
) -> None:
    before, between, after = ({"orders": kind} for kind in kinds)
    crash_everywhere(
        lambda disk, changelogs: lives(disk, changelogs, (before, True), (between, True)),
        ["orders"],
        check_next(after),
    )


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_a_store_of_any_kind_goes_on_behind_a_changelog_of_which_retention_has_taken_all(kind: Kind) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    task = Incarnation(disk, changelogs, {"orders": kind})
    task.process(*FIRST)
    task.close()
    log.records, log.earliest = {}, log.end
    Incarnation(disk, changelogs, {"orders": kind}).close()
    log.append(*SECOND)
    last = Incarnation(disk, changelogs, {"orders": kind})
    assert contents(last.stores["orders"]) == {b"b": b"2", b"c": b"1"}
    assert disk.aside == []


@pytest.mark.parametrize("mechanism", [*Mechanism, None])
@pytest.mark.parametrize("hours", [1, 4])
def test_windows_go_on_with_another_retention_behind_a_changelog_that_has_lost_them(
    tmp_path: Path, mechanism: Mechanism | None, hours: int
) -> None:
    """The store is the only whole copy of what is still open."""
    changelogs, directory = Changelogs("own"), StateDirectory(tmp_path, "app")
    log, now = changelogs["own"], 5 * HOUR

    def life(hours: int, start: int) -> list[int]:
        context = StoreContext(
            name="own",
            open_engine=lambda: directory.open("0_0", "own"),
            changelog=log.tp,
            mechanism=mechanism,
        )
        with directory.lock("0_0"):
            offsets = TaskOffsets(directory, "0_0", StepClock())
            store, result = open_and_restore(
                LoggedStore(
                    "own", log.tp, lambda: WindowStore(context, retention_ms=hours * HOUR, window_size_ms=1)
                ),
                offsets,
                changelogs,
                RestoreSettings(clock=StepClock()),
            )
            assert result.set_aside is None
            offsets.begin_unclean()
            store.put(b"k", b"1", start)
            end = log.append((b"k" + start.to_bytes(8) + bytes(4), b"1"))
            store.commit({log.tp: end})
            offsets.committed({log.tp: end})
            offsets.close()
            starts = [start for start, _ in store.fetch(b"k", 0, now + 1)]
            store.close()
        return starts

    life(2, now)
    log.records, log.earliest = {}, log.end
    assert life(hours, now + 1) == [now, now + 1]


@pytest.mark.requirement("844.5")
def test_a_mix_of_all_kinds_in_one_task_is_right_after_a_crash_at_any_moment() -> None:
    mix = {kind: kind for kind in KINDS}
    crash_everywhere(
        lambda disk, changelogs: lives(disk, changelogs, (mix, True), (mix, True)), list(mix), check_next(mix)
    )


@pytest.mark.requirement("844.5")
def test_only_stores_without_transactions_are_ever_set_aside_after_a_crash() -> None:
    mix = {"a": "own", "b": "checkpointed", "c": "direct"}
    seen: set[str] = set()

    def check(disk: CrashDisk, changelogs: Changelogs) -> None:
        task = Incarnation(disk, changelogs, mix)
        task.check()
        seen.update(name for name, _ in disk.aside)

    def run(disk: CrashDisk, changelogs: Changelogs, crash_at: int) -> None:
        Incarnation(disk, changelogs, mix).process(*FIRST)
        disk.restart(power_lost=False)
        disk.steps = 0
        disk.crash_at = crash_at
        task = Incarnation(disk, changelogs, mix)
        task.process(*SECOND)
        task.process(*THIRD)
        task.close()

    for crash_at in range(1, 200):
        disk, changelogs = CrashDisk(), Changelogs(*mix)
        try:
            run(disk, changelogs, crash_at)
        except Crash:
            disk.restart(power_lost=False)
            check(disk, changelogs)
        else:
            break
    else:
        raise AssertionError("it never came to an end")
    assert seen == {"c"}


@pytest.mark.requirement("844.5")
def test_under_exactly_once_only_stores_without_transactions_lose_their_entries_and_get_them_back() -> None:
    disk, changelogs = CrashDisk(), Changelogs("b", "c")
    task = Incarnation(disk, changelogs, {"b": "checkpointed", "c": "direct"})
    assert disk.entries() == {}
    task.process(*FIRST)
    assert disk.entries() == {"b": 2}
    task.close()
    assert disk.entries() == {"b": 2, "c": 2}
    task = Incarnation(disk, changelogs, {"b": "checkpointed", "c": "direct"})
    assert disk.entries() == {"b": 2, "c": 2}
    task.write(SECOND)
    assert disk.entries() == {"b": 2}
    task.commit(SECOND)
    assert disk.entries() == {"b": 5}
    task.close()
    assert disk.entries() == {"b": 5, "c": 5}


def test_a_task_that_ends_in_the_middle_of_a_transaction_writes_no_entry() -> None:
    disk, changelogs = CrashDisk(), Changelogs("c")
    task = Incarnation(disk, changelogs, {"c": "direct"})
    task.process(*FIRST)
    task.write([(b"dirty", b"1")])
    task.close()
    assert disk.entries() == {}
    task = Incarnation(disk, changelogs, {"c": "direct"})
    assert task.results["c"].set_aside is not None
    task.check()


def test_a_clean_end_without_a_single_record_keeps_the_entry() -> None:
    disk, changelogs = CrashDisk(), Changelogs("c")
    lives(disk, changelogs, ({"c": "direct"}, True))
    before = disk.checkpoint
    Incarnation(disk, changelogs, {"c": "direct"}).close()
    assert disk.checkpoint == before


def test_the_entry_at_a_clean_close_is_that_of_the_last_commit() -> None:
    disk, changelogs = CrashDisk(), Changelogs("c")
    task = Incarnation(disk, changelogs, {"c": "direct"})
    for number in range(3):
        task.process((b"%d" % number, b"1"))
    task.offsets.begin_unclean()
    task.offsets.committed({})
    task.close()
    assert disk.entries() == {"c": 4}


@pytest.mark.parametrize("kind", ["checkpointed", "direct"])
def test_data_is_synced_before_an_entry_vouches_for_it(kind: Kind) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    task = Incarnation(disk, changelogs, {"orders": kind})
    task.process(*FIRST)
    task.close()
    disk.restart(power_lost=True)
    task = Incarnation(disk, changelogs, {"orders": kind})
    assert task.results["orders"] == RestoreResult(0, 3, 4)
    task.check()


@pytest.mark.requirement("892.10")
def test_a_store_that_now_keeps_its_offset_takes_it_over_once_and_replays_nothing() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    lives(disk, changelogs, ({"orders": "direct"}, True))
    task = Incarnation(disk, changelogs, {"orders": "own"})
    assert task.results["orders"].records == 0
    assert task.results["orders"].set_aside is None
    assert disk.entries() == {}
    assert task.stores["orders"].get_committed_offset(changelogs["orders"].tp) == changelogs["orders"].end - 2
    assert task.stores["orders"].last_caught_up_ms(changelogs["orders"].tp) == 0


@pytest.mark.requirement("892.10")
@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("into", ["own", "checkpointed"])
def test_a_crash_at_any_moment_of_taking_an_offset_over_costs_no_replay(into: Kind, power_lost: bool) -> None:
    for crash_at in range(1, 20):
        disk, changelogs = CrashDisk(), Changelogs("orders")
        lives(disk, changelogs, ({"orders": "direct"}, True))
        disk.restart(power_lost=True)
        disk.crash_at = disk.steps + crash_at
        try:
            Incarnation(disk, changelogs, {"orders": into})
        except Crash:
            disk.restart(power_lost=power_lost)
        else:
            assert crash_at > (3 if into == "own" else 0)
            disk.restart(power_lost=power_lost)
        task = Incarnation(disk, changelogs, {"orders": into})
        assert (task.results["orders"].records, disk.aside) == (0, [])


def test_a_store_whose_transactions_are_switched_off_goes_on_from_its_own_offset() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    lives(disk, changelogs, ({"orders": "own"}, True))
    last = changelogs["orders"].end - 2
    task = Incarnation(disk, changelogs, {"orders": "direct"})
    assert (task.results["orders"].records, disk.aside) == (0, [])
    assert disk.entries() == {"orders": last}
    task.process(*FIRST)
    disk.restart(power_lost=False)
    task = Incarnation(disk, changelogs, {"orders": "own"})
    assert [name for name, _ in disk.aside] == ["orders"]
    task.check()


def test_a_store_whose_transactions_are_switched_off_has_its_entry_before_it_is_restored() -> None:
    """Killed while it is, it would be of no known offset: it has given up its own."""
    disk, changelogs = CrashDisk(), Changelogs("orders")
    lives(disk, changelogs, ({"orders": "own"}, True))
    with disk.lock("0_0"):
        store = open_store("direct", disk, "orders")
        TaskOffsets(disk, "0_0", StepClock()).adopt(store, changelogs["orders"].tp)
    assert disk.entries() == {"orders": changelogs["orders"].end - 2}


DAY = 86_400_000
HOUR = DAY // 24


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_a_store_of_any_kind_that_was_away_too_long_is_rebuilt(kind: Kind) -> None:
    disk, changelogs, clock = CrashDisk(), Changelogs("orders"), StepClock()
    lives(disk, changelogs, ({"orders": kind}, True))
    log = changelogs["orders"]
    for offset in [offset for offset, (key, _) in log.records.items() if key == b"b"]:
        del log.records[offset]
    log.append((b"z", b"1"))
    clock.sleep(DAY / 1000)
    with disk.lock("0_0"):
        store, result = open_and_restore(
            LoggedStore("orders", log.tp, lambda: open_store(kind, disk, "orders")),
            TaskOffsets(disk, "0_0"),
            changelogs,
            RestoreSettings(clock=clock),
        )
    assert result.set_aside is not None
    assert contents(store) == log.values()


def idled(days: int, *, exactly_once: bool) -> RestoreResult:
    """A task that commits nothing for some days, four times a day, then one record, and dies before its entry."""
    disk, changelogs = CrashDisk(), Changelogs("orders")
    lives(disk, changelogs, ({"orders": "checkpointed"}, exactly_once))
    task = Incarnation(disk, changelogs, {"orders": "checkpointed"}, exactly_once=exactly_once)
    now = StepClock().time_ms()
    for _ in range(4 * days):
        now += DAY // 4
        task.offsets.begin_unclean()
        task.offsets.committed({}, now)
    task.write([(b"z", b"1")])
    changelogs["orders"].append((b"z", b"1"), (b"y", b"1"))
    disk.restart(power_lost=False)
    clock = StepClock()
    clock.sleep(now / 1000 - clock.time_ms() / 1000)
    with disk.lock("0_0"):
        store, result = open_and_restore(
            LoggedStore(
                "orders", changelogs["orders"].tp, lambda: open_store("checkpointed", disk, "orders")
            ),
            TaskOffsets(disk, "0_0", exactly_once=exactly_once),
            changelogs,
            RestoreSettings(clock=clock),
        )
    assert contents(store) == changelogs["orders"].values()
    return result


def test_a_store_of_a_task_that_is_idle_for_weeks_does_not_grow_old() -> None:
    assert idled(60, exactly_once=True).set_aside is None


def test_a_store_that_does_not_change_for_weeks_grows_old_at_least_once_where_others_may_write_its_changelog() -> (
    None
):
    assert idled(60, exactly_once=False).set_aside is not None


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_a_restore_that_is_cut_off_does_not_make_a_store_of_any_kind_younger(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.recovery.offsets._RECORDS_BETWEEN_ENTRIES", 1)
    disk, changelogs, clock = CrashDisk(), Changelogs("orders"), StepClock()
    lives(disk, changelogs, ({"orders": kind}, True))
    log = changelogs["orders"]
    log.append(*((b"%d" % number, b"1") for number in range(9)))
    clock.sleep(DAY / 4 / 1000)

    def start() -> RestoreResult:
        _, result = open_and_restore(
            LoggedStore("orders", log.tp, lambda: open_store(kind, disk, "orders")),
            TaskOffsets(disk, "0_0"),
            changelogs,
            RestoreSettings(batch=2, clock=clock),
        )
        return result

    disk.crash_at = disk.steps + 5
    with disk.lock("0_0"), pytest.raises(Crash):
        start()
    disk.restart(power_lost=False)
    clock.sleep(DAY / 3 / 1000)
    with disk.lock("0_0"):
        assert start().set_aside is not None


@pytest.mark.requirement("892.10")
def test_the_checkpoint_of_kafka_streams_is_taken_over(tmp_path: Path) -> None:
    changelogs = Changelogs("orders")
    changelogs["orders"].append(*FIRST)
    directory = StateDirectory(tmp_path, "app")
    tp = changelogs["orders"].tp

    def make() -> KeyValueStore:
        return KeyValueStore(StoreContext(name="orders", open_engine=lambda: directory.open("0_0", "orders")))

    with directory.lock("0_0"):
        engine = directory.open("0_0", "orders")
        engine.write([(Family.DATA, key, value) for key, value in FIRST])
        engine.close()
        (tmp_path / "app" / "0_0" / ".checkpoint").write_text(f"0\n2\n{tp.topic} 0 2\nother 0 -4\n")
        store, result = open_and_restore(
            LoggedStore("orders", tp, make), TaskOffsets(directory, "0_0"), changelogs
        )
        assert result == RestoreResult(0, 3, 4)
        assert store.get_committed_offset(tp) == 2
        assert directory.read_checkpoint("0_0") == {}
        store.close()


def made_by_kafka_streams(path: Path, rows: Sequence[Pair], *families: str) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    path.mkdir(parents=True)
    database = Rdict(
        str(path), options=options, column_families=dict.fromkeys(("default", *families), options)
    )
    family = database.get_column_family(families[-1] if families else "default")
    for key, value in rows:
        family[key] = value
    del family
    database.close()
    (path / "rocksdict-config.json").unlink()


@pytest.mark.parametrize("families", [(), ("keyValueWithTimestamp",)], ids=["plain", "timestamped"])
@pytest.mark.parametrize("timestamped", [False, True])
@pytest.mark.parametrize("mechanism", [*Mechanism, None])
@pytest.mark.parametrize("last_key", [b"\xff", b"\xff\x01abc", b"\xff\xff\xff\xff"])
def test_a_database_of_kafka_streams_is_set_aside_and_its_changelog_restored(
    tmp_path: Path,
    families: tuple[str, ...],
    timestamped: bool,
    mechanism: Mechanism | None,
    last_key: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its checkpoint is read and its database opens, but keys from the last byte on are escaped in one of ours."""
    changelogs, directory = Changelogs("own"), StateDirectory(tmp_path, "app")
    log = changelogs["own"]
    rows = [*FIRST, (b"\xff\x00k", b"2"), (last_key, b"3")]
    end = log.append(*rows)
    made_by_kafka_streams(directory.path("0_0", "own"), rows, *families)
    (tmp_path / "app" / "0_0" / ".checkpoint").write_text(f"0\n1\n{log.tp.topic} 0 {end}\n")
    context = StoreContext(name="own", open_engine=lambda: directory.open("0_0", "own"), mechanism=mechanism)
    with directory.lock("0_0"):
        offsets = TaskOffsets(directory, "0_0", StepClock())
        store, result = open_and_restore(
            LoggedStore("own", log.tp, lambda: KeyValueStore(context, timestamped=timestamped)),
            offsets,
            changelogs,
        )
        expected = {
            key: timestamped_rows.pack(value, 0) if timestamped else value
            for key, value in log.values().items()
        }
        assert contents(store) == {key: store.get(key) for key in expected} == expected
        assert result.set_aside is not None
        assert list(Path(result.set_aside).glob("CURRENT"))
        assert "rebuilt from the start" in caplog.text
        offsets.close()
        store.close()


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_an_entry_is_not_believed_for_a_store_that_holds_nothing(kind: Kind) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    changelogs["orders"].append(*FIRST)
    disk.checkpoint = checkpoint_file.encode({changelogs["orders"].tp: Checkpointed(2, 0)})

    def run(disk: CrashDisk, changelogs: Changelogs) -> None:
        changelogs["orders"].append(*FIRST, *SECOND, *THIRD)
        disk.checkpoint = checkpoint_file.encode({changelogs["orders"].tp: Checkpointed(6, 0)})
        Incarnation(disk, changelogs, {"orders": kind}).check()

    crash_everywhere(run, ["orders"], check_next({"orders": kind}))


def test_an_offset_of_its_own_counts_more_than_an_entry() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    lives(disk, changelogs, ({"orders": "own"}, True))
    disk.checkpoint = checkpoint_file.encode({changelogs["orders"].tp: Checkpointed(0, 0)})
    task = Incarnation(disk, changelogs, {"orders": "own"})
    assert task.results["orders"].records == 0
    assert disk.entries() == {}


def test_a_store_in_memory_is_restored_from_the_beginning_once_and_leaves_what_is_on_disk_alone() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    lives(disk, changelogs, ({"orders": "direct"}, True))
    before, steps = disk.checkpoint, disk.steps
    task = Incarnation(disk, changelogs, {"orders": "volatile"})
    assert (task.results["orders"].start, task.results["orders"].records) == (
        0,
        len(changelogs["orders"].records),
    )
    again = restore(task.stores["orders"], changelogs["orders"].tp, changelogs, offsets=task.offsets)
    assert again.records == 0
    task.check()
    task.close()
    assert (disk.checkpoint, disk.steps) == (before, steps)


def test_at_least_once_the_entry_follows_each_commit_and_is_exact_only_after_a_clean_end() -> None:
    disk, changelogs = CrashDisk(), Changelogs("c")
    tp = changelogs["c"].tp
    task = Incarnation(disk, changelogs, {"c": "direct"}, exactly_once=False)
    for end in (2, 6):
        task.process(*FIRST)
        assert disk.read_checkpoint("0_0") == {tp: Checkpointed(end, 0, exact=False)}
    task.close()
    with disk.lock("0_0"):
        assert disk.read_checkpoint("0_0") == {tp: Checkpointed(6, 0)}
    task = Incarnation(disk, changelogs, {"c": "direct"}, exactly_once=False)
    task.write([(b"dirty", b"1")])
    assert disk.read_checkpoint("0_0") == {tp: Checkpointed(6, 0, exact=False)}


@pytest.mark.parametrize("after", KINDS)
def test_writes_of_a_crashed_at_least_once_task_do_not_live_on_under_exactly_once(after: Kind) -> None:
    def run(disk: CrashDisk, changelogs: Changelogs) -> None:
        lives(disk, changelogs, ({"orders": "direct"}, False))
        Incarnation(disk, changelogs, {"orders": "direct"}, exactly_once=False).write([(b"dirty", b"1")])
        disk.locked = None
        lives(disk, changelogs, ({"orders": "direct"}, False))

    crash_everywhere(run, ["orders"], check_next({"orders": after}))
    disk, changelogs = CrashDisk(), Changelogs("orders")
    run(disk, changelogs)
    check_next({"orders": after})(disk, changelogs)


@pytest.mark.requirement("844.8")
def test_at_least_once_every_change_in_the_changelog_is_in_the_store_after_a_crash_at_any_moment() -> None:
    def check(disk: CrashDisk, changelogs: Changelogs) -> None:
        task = Incarnation(disk, changelogs, {"c": "direct"}, exactly_once=False)
        task.process(*FIRST, *SECOND)
        found, expected = contents(task.stores["c"]), changelogs["c"].values()
        assert expected.items() <= found.items()
        # Written, and then the crash came before they were in the changelog.
        assert found.keys() - expected.keys() <= {b"0", b"1", b"d"}

    crash_everywhere(
        lambda disk, changelogs: lives(disk, changelogs, ({"c": "direct"}, False), ({"c": "direct"}, False)),
        ["c"],
        check,
    )


def test_setting_a_store_aside_takes_its_entry_first_whatever_the_moment_of_a_crash() -> None:
    def run(disk: CrashDisk, changelogs: Changelogs) -> None:
        lives(disk, changelogs, ({"orders": "direct"}, True))
        task = Incarnation(disk, changelogs, {"orders": "direct"})
        tp = changelogs["orders"].tp
        assert suspects(task.stores) == []
        task.stores["orders"].close()
        assert task.offsets.set_aside("orders", tp) == "orders.1"
        assert disk.entries() == {}
        task._lock.__exit__(None, None, None)
        task = Incarnation(disk, changelogs, {"orders": "own"})
        assert task.results["orders"].start == 0
        task.check()

    for after in ("own", "direct"):
        crash_everywhere(run, ["orders"], check_next({"orders": after}))


def test_setting_aside_what_left_nothing_on_disk_is_no_error() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    task = Incarnation(disk, changelogs, {"orders": "volatile"})
    assert task.offsets.set_aside("orders", changelogs["orders"].tp) is None


def test_a_checkpoint_that_cannot_be_read_rebuilds_only_the_stores_that_depend_on_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changelogs = Changelogs("a", "c")
    directory = StateDirectory(tmp_path, "app")

    def run() -> dict[str, RestoreResult]:
        results = {}
        with directory.lock("0_0"):
            offsets = TaskOffsets(directory, "0_0")
            for name, mechanism in (("a", Mechanism.INDEXED_BATCH), ("c", None)):
                context = StoreContext(
                    name=name,
                    open_engine=lambda name=name: directory.open("0_0", name),  # type: ignore[misc]
                    mechanism=mechanism,
                )
                store, results[name] = open_and_restore(
                    LoggedStore(name, changelogs[name].tp, lambda context=context: KeyValueStore(context)),  # type: ignore[misc]
                    offsets,
                    changelogs,
                )
                assert contents(store) == changelogs[name].values()
                store.close()
            offsets.close()
        return results

    for name in ("a", "c"):
        changelogs[name].append(*FIRST)
    run()
    assert [result.records for result in run().values()] == [0, 0]
    path = tmp_path / "app" / "0_0" / ".checkpoint"
    path.write_bytes(path.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING):
        results = run()
    assert results["a"] == RestoreResult(0, 3, 4)
    assert results["c"].records == 3
    assert results["c"].set_aside is not None
    assert str(path) in caplog.text
    assert list((tmp_path / "app" / "0_0" / "set-aside").glob("*/.checkpoint"))
    assert [result.set_aside for result in run().values()] == [None, None]


def test_a_checkpoint_that_cannot_be_read_is_put_out_of_the_way_even_if_nothing_else_is_written(
    tmp_path: Path,
) -> None:
    directory = StateDirectory(tmp_path, "app")
    with directory.lock("0_0"):
        (tmp_path / "app" / "0_0" / ".checkpoint").write_bytes(b"2\n")
        TaskOffsets(directory, "0_0")
        assert directory.read_checkpoint("0_0") == {}


def test_the_suspect_is_the_store_that_cannot_be_read_and_else_none(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    stores = {}

    class Damaged(MemoryEngine):
        def scan(
            self,
            family: Family,
            lower: bytes | None,
            upper: bytes | None,
            *,
            reverse: bool = False,
            overlay: Overlay | None = None,
        ) -> Pairs:
            raise StoreCorruptedError(
                f"{family} {lower!r} {upper!r} {reverse} {overlay}: block checksum mismatch"
            )

    with directory.lock("0_0"):
        for name in ("orders", "totals"):
            stores[name] = KeyValueStore(
                StoreContext(name=name, open_engine=lambda name=name: directory.open("0_0", name))  # type: ignore[misc]
            )
            stores[name].put(b"a", b"1")
            stores[name].commit({})
        assert suspects(stores) == []
        stores["totals"]._engine.close()
        stores["totals"]._engine = Damaged()
        assert suspects(stores) == ["totals"]
        stores["orders"].close()


def test_a_long_restore_that_is_cut_off_goes_on_where_an_entry_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.recovery.offsets._RECORDS_BETWEEN_ENTRIES", 4)
    disk, changelogs = CrashDisk(), Changelogs("c")
    changelogs["c"].append(*((b"%d" % number, b"1") for number in range(20)))
    disk.crash_at = 12
    with pytest.raises(Crash):
        Incarnation(disk, changelogs, {"c": "direct"})
    disk.restart(power_lost=True)
    reached = disk.entries()["c"]
    task = Incarnation(disk, changelogs, {"c": "direct"})
    assert task.results["c"] == RestoreResult(19 - reached, reached + 1, 21)
    task.check()


CHILD = """
import sys
from pathlib import Path
from store.types import TopicPartition
from store.recovery.directory import StateDirectory
from tests.recovery.test_offsets import KilledTask

task = KilledTask(Path(sys.argv[1]))
task.open()
for number in range(100_000):
    task.process(number)
    print(number, flush=True)
"""


class KilledTask:
    """A task over RocksDB whose changelogs are a file: a line for each transaction, each there whole or not at all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = ("a", "c")
        self.file = root / "changelog"
        self.changelogs = Changelogs(*self.names)
        text = self.file.read_text() if self.file.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                for name in self.names:
                    self.changelogs[name].append(*self.pairs(int(line)))
        # What was cut off never was in Kafka.
        self.file.write_text("".join(line for line in text.splitlines(keepends=True) if line.endswith("\n")))
        self.directory = StateDirectory(root, "app")
        self.stores: dict[str, KeyValueStore] = {}

    @staticmethod
    def pairs(number: int) -> list[Pair]:
        return [
            (b"%d" % (number % 7), b"%d" % number),
            (b"%d" % (number % 5), None),
            (b"last", b"%d" % number),
        ]

    def open(self) -> None:
        self._lock = self.directory.lock("0_0")
        self._lock.__enter__()
        self.offsets = TaskOffsets(self.directory, "0_0")
        for name, mechanism in (("a", Mechanism.INDEXED_BATCH), ("c", None)):
            self.stores[name], _ = open_and_restore(
                LoggedStore(
                    name,
                    self.changelogs[name].tp,
                    lambda name=name, mechanism=mechanism: KeyValueStore(  # type: ignore[misc]
                        StoreContext(
                            name=name,
                            open_engine=lambda: self.directory.open("0_0", name),
                            mechanism=mechanism,
                        )
                    ),
                ),
                self.offsets,
                self.changelogs,
            )

    def process(self, number: int) -> None:
        self.offsets.begin_unclean()
        for store in self.stores.values():
            store.put_all(self.pairs(number))
        with self.file.open("a") as file:
            file.write(f"{number}\n")
        ends: dict[TopicPartition, int] = {}
        for name, store in self.stores.items():
            log = self.changelogs[name]
            ends[log.tp] = log.append(*self.pairs(number))
            store.commit({log.tp: ends[log.tp]})
        self.offsets.committed(ends)


@pytest.mark.requirement("844.5")
@pytest.mark.parametrize("transactions", [1, 40])
def test_a_task_of_both_kinds_that_is_killed_holds_what_its_changelogs_do(
    tmp_path: Path, transactions: int
) -> None:
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(transactions):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
    task = KilledTask(tmp_path)
    task.open()
    assert task.changelogs["a"].end > 0
    for name, store in task.stores.items():
        assert contents(store) == task.changelogs[name].values()
        store.close()


class JsonStore(StateStore):
    """A store as a user may bring it: a file, no transactions, nothing but what the interface demands."""

    def __init__(self, context: StoreContext) -> None:
        assert context.directory is not None
        self._name = context.name
        self._file = context.directory / "rows.json"
        self._rows: dict[str, str] = {}
        if self._file.exists():
            try:
                self._rows = json.loads(self._file.read_text())
            except ValueError as error:
                raise StoreCorruptedError(f"{self._file} is no JSON") from error

    @property
    def name(self) -> str:
        return self._name

    def persistent(self) -> bool:
        return True

    def is_open(self) -> bool:
        return True

    def is_empty(self) -> bool:
        return not self._rows

    def close(self) -> None: ...

    def put(self, key: bytes, value: bytes | None) -> None:
        self._rows.pop(key.hex(), None)
        if value is not None:
            self._rows[key.hex()] = value.hex()
        self.flush()

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        assert list(changelog_offsets.values()) == [records[-1].offset]
        for record in records:
            assert record.key is not None
            self.put(record.key, record.value)

    def flush(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._rows))


@pytest.mark.requirement("844.5")
@pytest.mark.requirement("892.10")
def test_a_store_of_ones_own_needs_no_more_than_the_interface_to_be_recovered(tmp_path: Path) -> None:
    changelogs, directory = Changelogs("own"), StateDirectory(tmp_path, "app")
    log = changelogs["own"]

    def life(pairs: Sequence[Pair], *, clean: bool) -> tuple[dict[str, str], RestoreResult]:
        with directory.lock("0_0"):
            context = StoreContext(
                name="own", open_engine=MemoryEngine, directory=directory.directory("0_0", "own")
            )
            offsets = TaskOffsets(directory, "0_0", StepClock())
            store, result = open_and_restore(
                LoggedStore("own", log.tp, lambda: JsonStore(context)),
                offsets,
                changelogs,
                RestoreSettings(clock=StepClock()),
            )
            found = dict(store._rows)
            offsets.begin_unclean()
            for key, value in pairs:
                store.put(key, value)
            if clean:
                store.commit()
                offsets.committed({log.tp: log.append(*pairs)})
                offsets.close()
            return found, result

    def expected() -> dict[str, str]:
        return {key.hex(): value.hex() for key, value in log.values().items()}

    life(FIRST, clean=True)
    before = expected()
    found, result = life(SECOND, clean=False)
    assert (found, result) == (before, RestoreResult(0, 3, 4))
    found, result = life(THIRD, clean=True)
    assert found == before
    assert result.set_aside is not None
    (tmp_path / "app" / "0_0" / "rocksdb" / "own" / "rows.json").write_text("{")
    before = expected()
    found, result = life((), clean=True)
    assert found == before
    assert result.records == len(log.records)
