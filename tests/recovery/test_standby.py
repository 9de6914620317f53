from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from store.config import StreamsConfig
from store.engine.memory import MemoryEngine
from store.errors import (
    ChangelogLostError,
    LogError,
    ProtocolError,
    RetriableError,
    StateLockedError,
    StoreIOError,
)
from store.log.protocol import Fetch, Offsets
from store.recovery.directory import StateDirectory
from store.recovery.offsets import TaskOffsets
from store.recovery.restore import LoggedStore, RestoreResult, RestoreSettings, open_and_restore
from store.recovery.standby import Standby
from store.state.keyvalue import KeyValueStore
from store.state.protocol import StoreContext
from store.streams.task import Task, apply
from store.streams.topology import Context, Topology
from store.suppliers import StoreSupplier, persistent_key_value_store
from store.types import IsolationLevel, Record, TopicPartition
from tests.recovery.disks import Crash, CrashDisk
from tests.recovery.logs import Changelogs, Cleaned, Pair, StepClock, WrittenLog
from tests.recovery.test_offsets import (
    DAY,
    FIRST,
    SECOND,
    THIRD,
    Incarnation,
    JsonStore,
    Kind,
    contents,
    open_store,
)


def standby_over(
    disk: CrashDisk,
    changelogs: Changelogs,
    kinds: Mapping[str, Kind],
    *,
    clock: StepClock | None = None,
    exactly_once: bool = True,
    last_logged: Callable[[], int | None] = lambda: None,
) -> Standby:
    copies = [
        LoggedStore(
            name,
            changelogs[name].tp,
            lambda kind=kind, name=name: open_store(kind, disk, name),  # type: ignore[misc]
            last_logged=last_logged,
        )
        for name, kind in kinds.items()
    ]
    return Standby(
        disk,
        "0_0",
        copies,
        changelogs,
        RestoreSettings(batch=2, clock=clock or StepClock()),
        exactly_once=exactly_once,
    )


def held(standby: Standby, name: str) -> dict[bytes, bytes]:
    store = standby.stores[name]
    assert isinstance(store, KeyValueStore)
    return contents(store)


@pytest.mark.requirement("x.3")
@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct", "volatile"])
def test_each_update_applies_what_was_committed_since_the_last(kind: Kind) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    with standby_over(disk, changelogs, {"orders": kind}) as standby:
        assert standby.update() == 0
        for pairs in (FIRST, SECOND, THIRD):
            log.append(*pairs)
            assert standby.lag() == {log.tp: len(pairs) + 1}
            assert standby.update() == len(pairs)
            assert held(standby, "orders") == log.values()
            assert standby.lag() == {log.tp: 0}
        reads = len(log.reads)
        assert standby.update() == 0
        assert len(log.reads) == reads


@pytest.mark.requirement("x.3")
def test_nothing_beyond_the_last_stable_offset_is_applied_and_nothing_waits_for_it() -> None:
    disk, changelogs, clock = CrashDisk(), Changelogs("orders"), StepClock()
    log = changelogs["orders"]
    log.append(*FIRST)
    log.append(*SECOND)
    log.stable = 4
    with standby_over(disk, changelogs, {"orders": "own"}, clock=clock) as standby:
        assert standby.update() == 3
        assert standby.update() == 0
        assert held(standby, "orders") == dict(FIRST)
        assert clock.now == 0
        log.stable = log.end
        assert standby.update() == 2


@pytest.mark.requirement("892.11", "x.3")
@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_a_task_over_the_same_directory_takes_over_and_replays_only_the_rest(kind: Kind) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append(*FIRST)
    with standby_over(disk, changelogs, {"orders": kind}) as standby:
        standby.update()
    log.append(*SECOND)
    task = Incarnation(disk, changelogs, {"orders": kind})
    assert task.results["orders"] == RestoreResult(2, 3, 7)
    task.process(*THIRD)
    task.check()
    task.close()
    assert disk.aside == []


@pytest.mark.requirement("x.3")
def test_a_standby_goes_on_where_a_closed_task_stopped() -> None:
    disk, changelogs = CrashDisk(), Changelogs("a", "b", "c")
    kinds = {"a": "own", "b": "checkpointed", "c": "direct"}
    task = Incarnation(disk, changelogs, kinds)
    task.process(*FIRST)
    task.close()
    for name in kinds:
        changelogs[name].append(*SECOND)
    with standby_over(disk, changelogs, kinds) as standby:
        assert standby.update() == 6
        for name in kinds:
            assert held(standby, name) == changelogs[name].values()
    assert disk.aside == []


def test_a_standby_after_a_crashed_task_rebuilds_only_what_had_no_transactions() -> None:
    disk, changelogs = CrashDisk(), Changelogs("a", "b", "c")
    kinds = {"a": "own", "b": "checkpointed", "c": "direct"}
    task = Incarnation(disk, changelogs, kinds)
    task.process(*FIRST)
    task.write([(b"dirty", b"1")])
    disk.restart(power_lost=False)
    with standby_over(disk, changelogs, kinds) as standby:
        assert standby.update() == 3
        for name in kinds:
            assert held(standby, name) == changelogs[name].values()
    assert [name for name, _ in disk.aside] == ["c"]


@pytest.mark.requirement("x.3")
def test_a_standby_that_crashes_at_any_moment_leaves_what_a_task_takes_over() -> None:
    kinds = {"a": "own", "b": "checkpointed", "c": "direct", "d": "volatile"}

    def run(disk: CrashDisk, changelogs: Changelogs) -> None:
        lives: Sequence[Sequence[Sequence[Pair]]] = ((FIRST, SECOND), (THIRD, FIRST))
        for life in lives:
            # A crash runs no more of the process, so no `with`.
            standby = standby_over(disk, changelogs, kinds)
            standby.open()
            for pairs in life:
                disk.step()
                for name in kinds:
                    changelogs[name].append(*pairs)
                standby.update()
            standby.close()

    whole = CrashDisk()
    run(whole, Changelogs(*kinds))
    for crash_at, power_lost in product(range(1, whole.steps + 1), (False, True)):
        disk, changelogs = CrashDisk(), Changelogs(*kinds)
        disk.crash_at = crash_at
        with pytest.raises(Crash):
            run(disk, changelogs)
        disk.restart(power_lost=power_lost)
        task = Incarnation(disk, changelogs, kinds)
        task.check()
        assert {name for name, _ in disk.aside} <= {"b", "c"}
        task.process(*THIRD)
        task.close()
        with standby_over(disk, changelogs, kinds) as standby:
            standby.update()
            for name in kinds:
                assert held(standby, name) == changelogs[name].values()


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_a_copy_that_is_opened_again_lacks_what_came_meanwhile_and_the_marker_behind_its_last_record(
    kind: Kind,
) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append(*FIRST)
    with standby_over(disk, changelogs, {"orders": kind}) as standby:
        standby.update()
    log.append(*SECOND)
    with standby_over(disk, changelogs, {"orders": kind}) as standby:
        assert standby.lag() == {log.tp: 1 + len(SECOND) + 1}


def test_a_commit_that_is_acknowledged_before_it_is_stable_is_not_taken_for_a_lost_changelog() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    task = Incarnation(disk, changelogs, {"orders": "own"})
    task.process(*FIRST)
    task.close()
    log = changelogs["orders"]
    log.stable = 0
    with standby_over(disk, changelogs, {"orders": "own"}) as standby:
        assert standby.update() == 0
        assert standby.lag() == {log.tp: 0}
        log.append(*SECOND)
        assert standby.update() == 2


def test_a_changelog_that_ends_before_the_copy_is_lost() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    changelogs["orders"].append(*FIRST)
    with standby_over(disk, changelogs, {"orders": "own"}) as standby:
        standby.update()
    log = changelogs["orders"]
    log.records.clear()
    log.end = log.stable = 1
    with standby_over(disk, changelogs, {"orders": "own"}) as standby, pytest.raises(ChangelogLostError):
        standby.update()
    assert disk.aside == []


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct", "volatile"])
def test_a_copy_that_paused_so_long_that_deletions_may_be_gone_is_made_anew(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    disk, changelogs, clock = CrashDisk(), Changelogs("orders"), StepClock()
    log = changelogs["orders"]
    log.append(*FIRST)
    with standby_over(disk, changelogs, {"orders": kind}, clock=clock) as standby:
        standby.update()
        del log.records[0]
        log.append((b"d", b"1"))
        clock.sleep(DAY / 1000)
        with caplog.at_level(logging.WARNING):
            assert standby.update() == 3
        assert held(standby, "orders") == log.values()
        assert "compacted away" in caplog.text
        clock.sleep(1)
        log.append(*SECOND)
        assert standby.update() == 2


def test_a_copy_that_is_updated_with_nothing_new_for_days_stays_young() -> None:
    disk, changelogs, clock = CrashDisk(), Changelogs("orders"), StepClock()
    changelogs["orders"].append(*FIRST)
    standby = standby_over(disk, changelogs, {"orders": "own"}, clock=clock)
    standby.open()
    for _ in range(20):
        standby.update()
        clock.sleep(DAY / 4 / 1000)
    disk.restart(power_lost=False)
    changelogs["orders"].append(*SECOND)
    with standby_over(disk, changelogs, {"orders": "own"}, clock=clock) as standby:
        assert standby.update() == 2
    assert disk.aside == []


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_a_copy_is_as_old_as_its_last_update_however_soon_it_is_closed_after_another(kind: Kind) -> None:
    disk, changelogs, clock = CrashDisk(), Changelogs("orders"), StepClock()
    changelogs["orders"].append(*FIRST)
    with standby_over(disk, changelogs, {"orders": kind}, clock=clock) as standby:
        standby.update()
        clock.sleep(50)
        standby.update()
    clock.sleep(DAY / 2 / 1000 - 20)
    changelogs["orders"].append(*SECOND)
    with standby_over(disk, changelogs, {"orders": kind}, clock=clock) as standby:
        assert standby.update() == 2
    assert disk.aside == []


def test_a_copy_whose_next_record_is_no_longer_there_is_made_anew() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append(*FIRST)
    with standby_over(disk, changelogs, {"orders": "own"}) as standby:
        standby.update()
        log.append(*SECOND)
        log.append(*THIRD)
        log.earliest = 6
        log.records = {at: pair for at, pair in log.records.items() if at >= log.earliest}
        assert standby.update() == 2
        assert held(standby, "orders") == log.values()
    assert len(disk.aside) == 1


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct", "volatile"])
@pytest.mark.parametrize("first", [True, False])
def test_a_copy_under_which_the_log_is_cut_while_it_reads_is_made_anew(kind: Kind, first: bool) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append(*FIRST)
    with standby_over(disk, changelogs, {"orders": kind}) as standby:
        if not first:
            standby.update()
        log.append(*SECOND)
        log.append(*THIRD)
        log.cut_to = 6
        standby.update()
        assert held(standby, "orders") == log.values()
    assert len(disk.aside) == (0 if first or kind == "volatile" else 1)


def test_a_copy_of_records_that_a_leader_was_elected_without_is_kept_aside_and_made_anew() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append(*FIRST)
    with standby_over(disk, changelogs, {"orders": "own"}) as standby:
        standby.update()
        log.append(*SECOND)
        standby.update()
        log.part(2, *[(b"new %d" % number, b"1") for number in range(10)])
        standby.update()
        assert held(standby, "orders") == log.values()
    assert len(disk.aside) == 1


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_a_copy_whose_rebuild_is_overtaken_by_retention_is_made_anew_once_more(kind: Kind) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append((b"a", b"1"))
    with standby_over(disk, changelogs, {"orders": kind}) as standby:
        standby.update()
        log.append(*[(b"%d" % number, b"1") for number in range(18)])
        log.cuts = {2: 8, 10: 14}
        standby.update()
        assert held(standby, "orders") == log.values()
    assert log.cuts == {}


def test_markers_that_were_read_are_not_missed_when_the_log_no_longer_has_them() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append(*FIRST)
    log.end = log.stable = 9
    with standby_over(disk, changelogs, {"orders": "own"}) as standby:
        standby.update()
        log.earliest = 9
        log.append(*SECOND)
        assert standby.update() == 2
        assert contents_of_all(standby) == {b"b": b"2", b"c": b"1"}
    assert disk.aside == []


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_a_copy_goes_on_behind_a_log_of_which_retention_has_taken_all(kind: Kind) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append(*FIRST)
    for _ in range(2):
        with standby_over(disk, changelogs, {"orders": kind}) as standby:
            standby.update()
        log.records, log.earliest = {}, log.end
    log.append(*SECOND)
    with standby_over(disk, changelogs, {"orders": kind}) as standby:
        assert standby.update() == 2
        assert held(standby, "orders") == {b"b": b"2", b"c": b"1"}
    assert disk.aside == []


@pytest.mark.parametrize("kind", ["own", "checkpointed"])
@pytest.mark.parametrize(("more", "keeps"), [(0, True), (1, False), (None, False)])
def test_a_copy_that_has_all_that_was_committed_lacks_nothing_where_aborted_records_are_gone(
    kind: Kind, more: int | None, *, keeps: bool
) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append(*FIRST)
    with standby_over(disk, changelogs, {"orders": kind}) as standby:
        standby.update()
        last = None if more is None else max(log.records) + more
    log.records, log.earliest, log.end, log.stable = {}, 12, 14, 14
    with standby_over(disk, changelogs, {"orders": kind}, last_logged=lambda: last) as standby:
        standby.update()
        assert bool(held(standby, "orders")) is keeps
    assert (disk.aside == []) is keeps


@pytest.mark.parametrize(
    ("earliest", "appended", "offset", "writes"), [(0, (), 2, 0), (9, (), 8, 1), (9, SECOND, 10, 1)]
)
def test_that_markers_were_read_is_written_down_only_where_nothing_else_is_left(
    earliest: int, appended: tuple[Pair, ...], offset: int, writes: int
) -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append(*FIRST)
    log.end = log.stable = 9
    with standby_over(disk, changelogs, {"orders": "own"}) as standby:
        standby.update()
        before = len(disk.files["orders"].batches)
        log.earliest = earliest
        if appended:
            log.append(*appended)
        for _ in range(2):
            standby.update()
        assert standby.stores["orders"].get_committed_offset(log.tp) == offset
        assert len(disk.files["orders"].batches) - before == writes


def contents_of_all(standby: Standby) -> dict[bytes, bytes]:
    return {key: value for name in standby.stores for key, value in held(standby, name).items()}


def test_an_update_can_be_cut_into_pieces() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    log = changelogs["orders"]
    log.append(*((b"%d" % number, b"1") for number in range(9)))
    with standby_over(disk, changelogs, {"orders": "own"}) as standby:
        assert [standby.update(max_records=3) for _ in range(4)] == [4, 4, 1, 0]
        assert held(standby, "orders") == log.values()


def test_a_standby_that_is_behind_is_as_old_as_when_it_was_level_last() -> None:
    disk, changelogs, clock = CrashDisk(), Changelogs("orders"), StepClock()
    log = changelogs["orders"]
    log.append(*((b"%d" % number, b"1") for number in range(9)))
    with standby_over(disk, changelogs, {"orders": "own"}, clock=clock) as standby:
        assert standby.update(max_records=3)
        before = standby.stores["orders"].last_caught_up_ms(log.tp)
        clock.now += 36_000
        assert standby.update(max_records=3)
        assert standby.stores["orders"].last_caught_up_ms(log.tp) == before
        assert standby.update(max_records=3)
        assert standby.stores["orders"].last_caught_up_ms(log.tp) == clock.time_ms()


def test_a_standby_that_stands_still_in_an_update_begins_anew() -> None:
    disk, changelogs, clock = CrashDisk(), Changelogs("orders"), StepClock()
    tp = changelogs["orders"].tp
    log = changelogs.logs["orders"] = changelogs._by_tp[tp] = Cleaned(clock, 2 * 86_400, tp)
    with standby_over(disk, changelogs, {"orders": "own"}, clock=clock) as standby:
        standby.update()
        assert held(standby, "orders") == log.values() == {b"b": b"1", b"c": b"1"}


def test_a_read_that_may_be_repeated_loses_nothing() -> None:
    class Flaky(Changelogs):
        failing = False

        def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
            self.failing = not self.failing
            if self.failing:
                raise RetriableError("not now")
            return super().read(tp, offset, max_records, isolation)

        def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
            return super().offsets(tp, isolation)

    disk, changelogs = CrashDisk(), Flaky("orders")
    changelogs["orders"].append(*FIRST)
    with standby_over(disk, changelogs, {"orders": "own"}) as standby:
        for _ in range(4):
            try:
                standby.update()
            except RetriableError:
                continue
        assert held(standby, "orders") == dict(FIRST)


def test_an_error_of_a_log_that_begins_where_the_copy_is_is_raised() -> None:
    class Refusing(Changelogs):
        refuses = True

        def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
            if self.refuses:
                self.refuses = False
                raise LogError("not authorized")
            return super().read(tp, offset, max_records, isolation)

    changelogs = Refusing("orders")
    changelogs["orders"].append(*FIRST)
    with standby_over(CrashDisk(), changelogs, {"orders": "own"}) as standby:
        with pytest.raises(LogError, match="not authorized"):
            standby.update()
        assert standby.update() == len(FIRST)


def test_a_read_that_comes_no_further_ends_the_update_and_the_next_one_goes_on() -> None:
    class Slow(Changelogs):
        reads = 0

        def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
            self.reads += 1
            assert self.reads < 10
            if self.reads == 1:
                return Fetch([], offset, more=False)
            return super().read(tp, offset, max_records, isolation)

    changelogs = Slow("orders")
    changelogs["orders"].append(*FIRST)
    with standby_over(CrashDisk(), changelogs, {"orders": "own"}) as standby:
        assert [standby.update() for _ in range(2)] == [0, len(FIRST)]


def test_a_copy_that_cannot_be_closed_keeps_no_other_of_its_task_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = CrashDisk()
    standby = standby_over(disk, Changelogs("orders", "prices"), {"orders": "own", "prices": "own"})
    standby.open()
    stores = dict(standby.stores)

    for store in stores.values():
        close = store.close

        def closed_with_an_error(close: Callable[[], None] = close) -> None:
            close()
            raise StoreIOError("no space left")

        monkeypatch.setattr(store, "close", closed_with_an_error)
    with pytest.raises(StoreIOError, match="no space left"):
        standby.close()
    assert [store.is_open() for store in stores.values()] == [False, False]
    assert disk.locked is None


def test_a_copy_whose_offset_cannot_be_taken_over_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[KeyValueStore] = []
    disk, changelogs = CrashDisk(), Changelogs("orders")

    def open_and_keep() -> KeyValueStore:
        opened.append(open_store("own", disk, "orders"))
        return opened[-1]

    def fail(*_: object) -> None:
        raise StoreIOError("the device is gone")

    standby = Standby(
        disk, "0_0", [LoggedStore("orders", changelogs["orders"].tp, open_and_keep)], changelogs
    )
    monkeypatch.setattr(TaskOffsets, "adopt", fail)
    with pytest.raises(StoreIOError, match="device is gone"):
        standby.open()
    assert [store.is_open() for store in opened] == [False]
    assert disk.locked is None


def test_a_standby_and_a_task_do_not_share_a_directory() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    with standby_over(disk, changelogs, {"orders": "own"}):
        with pytest.raises(StateLockedError):
            Incarnation(disk, changelogs, {"orders": "own"})
        with pytest.raises(StateLockedError):
            standby_over(disk, changelogs, {"orders": "own"}).open()
    Incarnation(disk, changelogs, {"orders": "own"}).close()


def test_a_standby_that_is_not_open_says_so() -> None:
    disk, changelogs = CrashDisk(), Changelogs("orders")
    standby = standby_over(disk, changelogs, {"orders": "own"})
    with pytest.raises(ProtocolError, match="not open"):
        standby.update()
    with standby, pytest.raises(ProtocolError, match="before"):
        standby.open()
    standby.close()
    with pytest.raises(ProtocolError, match="not open"):
        standby.lag()


@pytest.mark.requirement("892.11", "x.3")
def test_a_task_takes_over_from_a_standby_on_disk(tmp_path: Path) -> None:
    directory, log = StateDirectory(tmp_path, "app"), WrittenLog({}, end=0)
    log.append(*FIRST)

    def make() -> KeyValueStore:
        return KeyValueStore(StoreContext(name="orders", open_engine=lambda: directory.open("0_0", "orders")))

    with Standby(directory, "0_0", [LoggedStore("orders", log.tp, make)], log) as standby:
        assert standby.update() == 3
    log.append(*SECOND)
    with directory.lock("0_0"):
        store, result = open_and_restore(
            LoggedStore("orders", log.tp, make), TaskOffsets(directory, "0_0"), log
        )
        assert (contents(store), result) == (log.values(), RestoreResult(2, 3, 7))
        store.close()


class Replayed:
    """Counts what tasks restore."""

    def __init__(self) -> None:
        self.records = 0

    def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None: ...

    def on_batch_restored(
        self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
    ) -> None: ...

    def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
        assert store_name in changelog.topic
        self.records += total_restored


@pytest.mark.requirement("892.11", "x.3")
def test_a_real_task_takes_over_stores_of_both_kinds_in_the_middle_of_its_predecessors_transaction(
    tmp_path: Path,
) -> None:
    suppliers = (
        persistent_key_value_store("transactional"),
        persistent_key_value_store("direct", transactional=False),
    )

    def count(context: Context, record: Record) -> None:
        assert record.key is not None
        for supplier in suppliers:
            store = context.store(supplier.name)
            store.put(record.key, b"%d" % (int(store.get(record.key) or 0) + 1))

    broker, topology = SimBroker(), Topology("app", ("in",), (), suppliers, count)
    for topic in ("in", *(topology.changelog(supplier.name, 0).topic for supplier in suppliers)):
        broker.create_topic(topic, 1)
    log, clock, replayed = SimLog(broker), StepClock(), Replayed()
    active, warm = (StateDirectory(tmp_path / name, "app") for name in ("active", "warm"))

    def task(directory: StateDirectory, listener: Replayed | None = None) -> Task:
        return Task(topology, 0, log, directory, StreamsConfig(), clock, listener=listener)

    def feed(*keys: bytes) -> list[Record]:
        for key in keys:
            broker.append("in", key, b"", partition=0)
        return list(broker.visible(TopicPartition("in", 0), IsolationLevel.READ_COMMITTED))

    def copy(supplier: StoreSupplier[KeyValueStore]) -> LoggedStore[KeyValueStore]:
        name = supplier.name
        context = StoreContext(name=name, open_engine=lambda: warm.open("0_0", name))
        return LoggedStore(name, topology.changelog(name, 0), lambda: supplier.open(context))

    copies = [copy(supplier) for supplier in suppliers]
    first = task(active)
    first.open()
    apply(first, feed(b"a", b"b", b"a"))
    first.commit()
    with Standby(warm, first.task_id, copies, log.reader(), RestoreSettings(clock=clock)) as standby:
        assert standby.update() == 6
        apply(first, feed(b"c")[3:])
        assert standby.update() == 0
        first.commit()
        apply(first, feed(b"a", b"d")[4:])
    # The first one is still alive when the second one takes the task over, and fences it.
    with task(warm, replayed) as second:
        apply(second, feed()[4:])
        second.commit()
        expected = {b"a": b"3", b"b": b"1", b"c": b"1", b"d": b"1"}
        for store in second.stores.values():
            assert isinstance(store, KeyValueStore)
            assert contents(store) == expected
    assert replayed.records == 2
    assert not list((tmp_path / "warm").glob("app/*/set-aside"))
    first.close()


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_a_copy_that_is_killed_after_the_wall_clock_was_set_back_is_not_rebuilt(kind: Kind) -> None:
    """What it had noted was of the time that the clock was ahead."""
    disk, changelogs, clock = CrashDisk(), Changelogs("orders"), StepClock()
    log = changelogs["orders"]
    log.append(*FIRST)
    clock.now = 100 * DAY / 1000
    standby = standby_over(disk, changelogs, {"orders": kind}, clock=clock)
    standby.__enter__()
    for clock.now in (100 * DAY / 1000, DAY / 1000):
        standby.update()
    disk.restart(power_lost=False)
    log.append(*SECOND)
    with standby_over(disk, changelogs, {"orders": kind}, clock=clock) as again:
        assert again.update() == len(SECOND)
    assert disk.aside == []


@pytest.mark.parametrize("kind", ["own", "checkpointed", "direct"])
def test_a_copy_that_was_noted_by_a_clock_ahead_is_noted_anew_by_the_next_standby(kind: Kind) -> None:
    """Who had it before ended while the clock was ahead; the next one is killed within the minute."""
    disk, changelogs, clock = CrashDisk(), Changelogs("orders"), StepClock()
    log = changelogs["orders"]
    log.append(*FIRST)
    clock.now = 100 * DAY / 1000
    with standby_over(disk, changelogs, {"orders": kind}, clock=clock) as standby:
        standby.update()
    clock.now = DAY / 1000
    standby_over(disk, changelogs, {"orders": kind}, clock=clock).__enter__().update()
    disk.restart(power_lost=False)
    log.append(*SECOND)
    with standby_over(disk, changelogs, {"orders": kind}, clock=clock) as last:
        assert last.update() == len(SECOND)
    assert disk.aside == []


class FullDisk(JsonStore):
    """What a batch has written before the disk is full stays."""

    room = 3

    def put(self, key: bytes, value: bytes | None) -> None:
        if len(self._rows) >= self.room:
            raise StoreIOError("no space left on device")
        super().put(key, value)


@pytest.mark.requirement("844.5")
@pytest.mark.parametrize("whole_batches", [0, 1])
def test_a_copy_that_keeps_no_offset_lacks_nothing_after_a_batch_that_failed_in_the_middle(
    tmp_path: Path, whole_batches: int
) -> None:
    changelogs, directory = Changelogs("own"), StateDirectory(tmp_path, "app")
    log = changelogs["own"]
    log.append(*((b"%d" % number, b"1") for number in range(10)))

    def logged(kind: type[JsonStore]) -> LoggedStore[JsonStore]:
        context = StoreContext(
            name="own", open_engine=MemoryEngine, directory=directory.directory("0_0", "own")
        )
        return LoggedStore("own", log.tp, lambda: kind(context))

    settings = RestoreSettings(batch=2 if whole_batches else 5, clock=StepClock())
    with directory.lock("0_0"):
        copy = logged(FullDisk)
    standby = Standby(directory, "0_0", [copy], changelogs, settings)
    standby.open()
    with pytest.raises(StoreIOError, match="no space left"):
        standby.update()
    standby.close()
    with directory.lock("0_0"):
        store, _ = open_and_restore(logged(JsonStore), TaskOffsets(directory, "0_0"), changelogs, settings)
    assert store._rows == {key.hex(): value.hex() for key, value in log.values().items()}
