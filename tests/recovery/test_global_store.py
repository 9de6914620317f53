"""A global store over topics written out by hand, on disks that crash, against what the topic holds."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.engine import Engine, Family
from store.engine.memory import MemoryEngine
from store.engine.protocol import Storage
from store.errors import (
    ProtocolError,
    RestoreBrokenOffError,
    RetriableError,
    StateLockedError,
    StoreClosedError,
    StoreCorruptedError,
    StoreIOError,
)
from store.log.protocol import Fetch, Offsets
from store.log.size import MAX_FETCH_BYTES
from store.points import Point, arm
from store.recovery.directory import StateDirectory
from store.recovery.global_store import GlobalStore
from store.recovery.restore import RestoreSettings
from store.serdes import StrSerde
from store.state import metadata
from store.state.keyvalue import KeyValueStore, ReadOnlyKeyValueStore
from store.suppliers import (
    StoreSupplier,
    global_store,
    persistent_versioned_key_value_store,
    versioned_key_value_store_builder,
)
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, TopicPartition
from tests.recovery.disks import Crash, CrashDisk
from tests.recovery.logs import Cleaned, StepClock, WrittenLog
from tests.state.opening import context_over

DAY = 86_400.0
"""Seconds: the default of `delete.retention.ms`."""

Prices = GlobalStore[ReadOnlyKeyValueStore]


class Topic:
    """All partitions of the topic `prices` as one reader."""

    def __init__(self, partitions: int = 1) -> None:
        self.logs: list[WrittenLog] = []
        self.failures = 0
        """So many reads fail first."""
        self.silences = 0
        """So many questions for the number of partitions have no answer first."""
        self.lags = 0
        """So many are answered by a broker that has not heard of the last partition."""
        for _ in range(partitions):
            self.add_partition()

    def add_partition(self) -> WrittenLog:
        self.logs.append(WrittenLog({}, end=0, tp=tp(len(self.logs))))
        return self.logs[-1]

    def __getitem__(self, partition: int) -> WrittenLog:
        return self.logs[partition]

    def values(self) -> dict[bytes, bytes]:
        return {key: value for log in self.logs for key, value in log.values().items()}

    def partitions(self, topic: str) -> int:
        assert topic == "prices"
        if self.silences:
            self.silences -= 1
            raise RetriableError("no broker answers")
        if self.lags:
            self.lags -= 1
            return len(self.logs) - 1
        return len(self.logs)

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        return self.logs[tp.partition].offsets(tp, isolation)

    def offsets_of(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, Offsets]:
        return {tp: self.offsets(tp, isolation) for tp in places}

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        if self.failures:
            self.failures -= 1
            raise RetriableError("no broker answers")
        return self.logs[tp.partition].read(tp, offset, max_records, isolation)

    def committed(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> int | None:  # noqa: ARG002
        raise AssertionError((group_id, tp))

    def close(self) -> None: ...


def tp(partition: int) -> TopicPartition:
    return TopicPartition("prices", partition)


def over(
    storage: Storage,
    topic: Topic,
    settings: RestoreSettings | None = None,
    *,
    mechanism: Mechanism | None = Mechanism.INDEXED_BATCH,
    task: str = "global-prices",
    kept_ms: int = int(DAY * 1_000),
) -> Prices:

    def open_store() -> KeyValueStore:
        return KeyValueStore(
            context_over(lambda: storage.open(task, "prices"), name="prices", mechanism=mechanism)
        )

    return GlobalStore(
        storage,
        "prices",
        "prices",
        open_store,
        topic,
        settings,
        task_id=task,
        tombstone_retention_ms=lambda: kept_ms,
    )


def shown(store: Prices) -> dict[bytes, bytes]:
    return dict(store.view().all())


@pytest.fixture(params=["memory", "rocksdb"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return CrashDisk() if request.param == "memory" else StateDirectory(tmp_path, "app")


@pytest.mark.requirement("x.1")
def test_it_holds_all_partitions_of_the_topic_and_the_offset_of_each(storage: Storage) -> None:
    topic = Topic(3)
    topic[0].append((b"a", b"1"), (b"b", b"1"))
    topic[2].append((b"c", b"1"), (b"c", None), (b"d", b"2"))
    with over(storage, topic) as store:
        assert shown(store) == {b"a": b"1", b"b": b"1", b"d": b"2"}
        assert store.offsets() == {tp(0): 1, tp(2): 2}


@pytest.mark.requirement("892.3")
def test_records_of_several_partitions_are_one_commit_with_all_their_offsets() -> None:
    disk, topic = CrashDisk(), Topic(3)
    for partition in range(3):
        topic[partition].append((b"key %d" % partition, b"1"))
    with over(disk, topic):
        data = [batch for batch in disk.files["prices"].batches if batch[0][0] is Family.DATA]
    assert [len(batch) for batch in data] == [7], "three rows, three offsets and the type"


@pytest.mark.requirement("892.11")
def test_an_update_and_a_restart_read_only_what_is_new(storage: Storage) -> None:
    topic = Topic(2)
    topic[0].append((b"a", b"1"))
    with over(storage, topic) as store:
        assert store.update() == 0
        topic[1].append((b"b", b"1"), (b"b", b"2"))
        assert store.update() == 2
        assert shown(store) == {b"a": b"1", b"b": b"2"}
    topic[0].reads.clear()
    topic[1].reads.clear()
    topic[0].append((b"a", b"2"))
    with over(storage, topic) as store:
        assert shown(store) == topic.values()
    assert (topic[0].reads, topic[1].reads) == ([1], [2]), (
        "from behind the last record of each, markers included"
    )


def test_records_of_open_transactions_wait_for_their_commit(storage: Storage) -> None:
    topic = Topic()
    topic[0].append((b"a", b"1"))
    stable = topic[0].end
    topic[0].append((b"a", b"open"))
    topic[0].stable = stable
    with over(storage, topic) as store:
        assert shown(store) == {b"a": b"1"}
        topic[0].stable = topic[0].end
        assert store.update() == 1
        assert shown(store) == {b"a": b"open"}


def test_partitions_that_are_added_are_followed_too(storage: Storage) -> None:
    topic = Topic()
    topic[0].append((b"a", b"1"))
    with over(storage, topic) as store:
        topic.add_partition().append((b"b", b"1"))
        assert store.update() == 1
        assert store.offsets() == {tp(0): 0, tp(1): 0}
    topic.add_partition().append((b"c", b"1"))
    with over(storage, topic) as store:
        assert shown(store) == topic.values()


def test_records_without_a_key_are_passed_over(storage: Storage) -> None:
    topic = Topic()
    keyless: Any = (None, b"1")
    topic[0].append(keyless, (b"a", b"1"), keyless)
    with over(storage, topic) as store:
        assert shown(store) == {b"a": b"1"}
        assert store.offsets() == {tp(0): 2}


def test_a_commit_takes_about_a_batch_whatever_the_number_of_partitions() -> None:
    disk, topic = CrashDisk(), Topic(4)
    for log in topic.logs:
        log.append(*[(b"%d %d" % (log.tp.partition, number), b"1") for number in range(5)])
    with over(disk, topic, RestoreSettings(batch=3)) as store:
        data = [sum(row[0] is Family.DATA for row in batch) for batch in disk.files["prices"].batches]
        assert sum(data) == 20
        assert max(data) < 2 * 3
        assert shown(store) == topic.values()


def test_a_commit_of_large_values_takes_about_the_bytes_of_a_fetch_whatever_the_number_of_partitions() -> (
    None
):
    disk, topic = CrashDisk(), Topic(6)
    for log in topic.logs:
        log.append((b"%d" % log.tp.partition, bytes(3_000_000)))
    with over(disk, topic) as store:
        sizes = [sum(len(row[2] or b"") for row in batch) for batch in disk.files["prices"].batches]
        assert max(sizes) < MAX_FETCH_BYTES + 3_000_000
        assert shown(store) == topic.values()


@pytest.mark.parametrize("first", [True, False])
def test_a_topic_that_is_cut_while_it_is_read_is_followed_as_one_that_was_cut_before(
    storage: Storage, first: bool
) -> None:
    topic = Topic(2)
    topic[0].append((b"a", b"1"), (b"b", b"1"))
    topic[1].append((b"c", b"1"))
    if first:
        topic[0].cut_to = 1
    with over(storage, topic) as store:
        if not first:
            topic[0].append((b"a", b"2"), (b"b", b"2"))
            topic[0].cut_to = 4
            store.update()
        assert shown(store) == topic.values()


@pytest.mark.parametrize("running", [True, False])
def test_a_rebuild_that_is_overtaken_by_retention_begins_once_more(storage: Storage, running: bool) -> None:
    topic = Topic()
    topic[0].append((b"a", b"1"))
    with over(storage, topic, RestoreSettings(batch=2)) as store:
        topic[0].append(*[(b"%d" % number, b"1") for number in range(18)])
        topic[0].cuts = {1: 8, 2: 8, 10: 14}
        if running:
            store.update()
            assert shown(store) == topic.values()
    with over(storage, topic, RestoreSettings(batch=2)) as store:
        assert shown(store) == topic.values()
    assert topic[0].earliest == 14


def lose_the_start(topic: Topic) -> None:
    topic[0].earliest = topic[0].end - 2
    topic[0].records = {
        offset: pair for offset, pair in topic[0].records.items() if offset >= topic[0].earliest
    }


def truncate(topic: Topic) -> None:
    topic.logs[0] = WrittenLog({0: (b"new", b"1")}, end=2, tp=tp(0))


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("mechanism", [Mechanism.INDEXED_BATCH, None])
def test_a_broker_that_has_not_heard_of_a_partition_yet_does_not_have_the_topic_read_anew(
    running: bool, mechanism: Mechanism | None
) -> None:
    disk, topic, settings = CrashDisk(), Topic(2), RestoreSettings(clock=StepClock())
    topic[0].append((b"a", b"1"))
    topic[1].append((b"b", b"1"))
    store = over(disk, topic, settings, mechanism=mechanism)
    store.open()
    if not running:
        store.close()
    topic[1].append((b"c", b"1"))
    topic.lags = 3
    if running:
        store.update()
    else:
        store.open()
    assert shown(store) == topic.values()
    store.close()
    assert disk.aside == []


def elect_a_leader_without_the_last(topic: Topic) -> None:
    topic[0].part(2, *[(b"new %d" % number, b"1") for number in range(10)])


def make_anew_with_fewer_partitions(topic: Topic) -> None:
    topic.logs.pop()


@pytest.mark.parametrize(
    "cut", [lose_the_start, truncate, elect_a_leader_without_the_last, make_anew_with_fewer_partitions]
)
@pytest.mark.parametrize("running", [True, False])
def test_a_topic_that_cannot_be_followed_is_read_anew_and_the_store_is_kept_aside(
    storage: Storage, cut: Callable[[Topic], None], running: bool, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic(2)
    topic[0].append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    topic[1].append((b"c", b"1"))
    store = over(storage, topic)
    store.open()
    try:
        view = store.view()
        if not running:
            store.close()
        topic[0].append((b"lost", b"1"))
        topic[0].append((b"d", b"1"))
        cut(topic)
        with caplog.at_level(logging.WARNING):
            if running:
                store.update()
                with pytest.raises(StoreClosedError):
                    view.get(b"a")
            else:
                store.open()
        assert shown(store) == topic.values()
        assert store.update() == 0
    finally:
        store.close()
    assert "global store prices is rebuilt from the start of topic prices" in caplog.text
    assert "What was there is kept in" in caplog.text


@pytest.mark.parametrize(("days", "rebuilt"), [(0.4, False), (0.6, True)])
def test_a_store_that_lacks_records_and_was_closed_for_too_long_is_rebuilt(
    days: float, rebuilt: bool
) -> None:
    """Compaction may have removed deletions that it never heard of."""
    disk, topic, clock = CrashDisk(), Topic(), StepClock()
    topic[0].append((b"deleted", b"1"), (b"kept", b"1"))
    with over(disk, topic, RestoreSettings(clock=clock)):
        pass
    topic[0].append((b"deleted", None))
    topic[0].append((b"a", b"1"), (b"a", b"2"))
    del topic[0].records[0], topic[0].records[3]
    clock.now += days * DAY
    with over(disk, topic, RestoreSettings(clock=clock)) as store:
        assert (b"deleted" not in shown(store)) == rebuilt
    assert len(disk.aside) == rebuilt


@pytest.mark.parametrize("mechanism", [Mechanism.INDEXED_BATCH, None], ids=["own", "direct"])
def test_a_store_whose_restore_was_broken_off_is_as_old_as_it_was_before(mechanism: Mechanism | None) -> None:
    disk, topic, clock = CrashDisk(), Topic(), StepClock()
    topic[0].append((b"deleted", b"1"), (b"kept", b"1"))
    with over(disk, topic, RestoreSettings(clock=clock), mechanism=mechanism):
        pass
    topic[0].append((b"a", b"1"), (b"a", b"2"), (b"deleted", None))
    clock.now += 0.4 * DAY
    broken_off = RestoreSettings(batch=2, clock=clock, breaks_off=lambda _: True)
    with pytest.raises(RestoreBrokenOffError):
        over(disk, topic, broken_off, mechanism=mechanism).open()
    clock.now += 0.4 * DAY
    del topic[0].records[0], topic[0].records[3], topic[0].records[5]
    with over(disk, topic, RestoreSettings(clock=clock), mechanism=mechanism) as store:
        assert shown(store) == {b"kept": b"1", b"a": b"2"}


def test_a_store_that_is_updated_stays_young_however_long_it_runs_and_is_killed() -> None:
    disk, topic, clock = CrashDisk(), Topic(), StepClock()
    topic[0].append((b"a", b"1"))
    store = over(disk, topic, RestoreSettings(clock=clock))
    store.open()
    for _ in range(30):
        clock.now += DAY / 10
        assert store.update() == 0
    disk.restart(power_lost=False)
    topic[0].append((b"a", b"2"), (b"b", b"1"))
    with over(disk, topic, RestoreSettings(clock=clock)) as store:
        assert shown(store) == topic.values()
    assert disk.aside == []


@pytest.mark.parametrize("mechanism", [Mechanism.INDEXED_BATCH, None], ids=["own", "direct"])
def test_a_store_that_is_killed_after_the_wall_clock_was_set_back_is_not_rebuilt(
    mechanism: Mechanism | None,
) -> None:
    """What it had noted was of the time that the clock was ahead."""
    disk, topic, clock = CrashDisk(), Topic(), StepClock()
    topic[0].append((b"a", b"1"))
    clock.now = 100 * DAY
    store = over(disk, topic, RestoreSettings(clock=clock), mechanism=mechanism)
    store.open()
    clock.now = DAY
    assert store.update() == 0
    disk.restart(power_lost=False)
    topic[0].append((b"a", b"2"), (b"b", b"1"))
    with over(disk, topic, RestoreSettings(clock=clock), mechanism=mechanism) as store:
        assert shown(store) == topic.values()
    assert disk.aside == []


def test_a_corrupt_store_is_set_aside_and_rebuilt(storage: Storage) -> None:
    topic = Topic(2)
    topic[0].append((b"a", b"1"))
    topic[1].append((b"b", b"1"))
    with over(storage, topic):
        pass
    with storage.lock("global-prices"):
        engine = storage.open("global-prices", "prices")
        engine.write([(Family.META, metadata.row(metadata.Kind.OFFSET, tp(1), 1)[1], b"rot")])
        engine.close()
    with over(storage, topic) as store:
        assert shown(store) == topic.values()


def test_data_of_an_unknown_offset_is_set_aside() -> None:
    disk, topic = CrashDisk(), Topic()
    topic[0].append((b"a", b"1"))
    with disk.lock("global-prices"):
        engine = disk.open("global-prices", "prices")
        engine.write([(Family.DATA, b"of whom", b"1")])
        engine.close()
    with over(disk, topic) as store:
        assert shown(store) == {b"a": b"1"}
    assert len(disk.aside) == 1


def test_only_one_process_has_the_store(storage: Storage) -> None:
    topic = Topic()
    first, second = over(storage, topic), over(storage, topic)
    with first:
        with pytest.raises(StateLockedError):
            second.open()
        with pytest.raises(ProtocolError, match="is open"):
            first.open()
    with second:
        assert shown(second) == {}


def test_two_global_stores_of_one_process_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    storage, topic = StateDirectory(tmp_path, "app"), Topic()
    topic[0].append((b"a", b"1"))

    def make(name: str) -> Prices:
        return GlobalStore(
            storage,
            name,
            "prices",
            lambda: KeyValueStore(context_over(lambda: storage.open(f"global-{name}", name), name=name)),
            topic,
        )

    with make("one") as one, make("two") as two:
        assert shown(one) == shown(two) == {b"a": b"1"}


def test_a_store_that_is_not_open_says_so(storage: Storage) -> None:
    store = over(storage, Topic())
    for call in (store.update, store.view, store.offsets):
        with pytest.raises(ProtocolError, match="global store prices is not open"):
            call()
    with store:
        pass
    store.close()
    with pytest.raises(ProtocolError):
        store.update()


@pytest.mark.requirement("892.10")
def test_a_store_without_transactions_goes_on_from_the_checkpoint(storage: Storage) -> None:
    topic = Topic(2)
    topic[0].append((b"a", b"1"))
    with over(storage, topic, mechanism=None) as store:
        topic[1].append((b"b", b"1"))
        store.update()
    for log in topic.logs:
        log.reads.clear()
    with over(storage, topic, mechanism=None) as store:
        assert shown(store) == topic.values()
        assert store.offsets() == {tp(0): 0, tp(1): 0}
    assert topic[0].reads + topic[1].reads == [1, 1]


def test_a_store_whose_data_is_gone_does_not_believe_the_checkpoint() -> None:
    disk, topic = CrashDisk(), Topic()
    topic[0].append((b"a", b"1"))
    with over(disk, topic, mechanism=None):
        pass
    del disk.files["prices"]
    topic[0].append((b"b", b"1"))
    with over(disk, topic, mechanism=None) as store:
        assert shown(store) == topic.values()


def test_a_checkpoint_whose_data_is_gone_is_not_believed_of_the_data_of_a_start_that_dies() -> None:
    disk, topic = CrashDisk(), Topic()
    topic[0].append((b"a", b"1"), (b"b", b"1"))
    with over(disk, topic, mechanism=None):
        pass
    del disk.files["prices"]

    def die(point: Point) -> None:
        if point is Point.RESTORE_BATCH:
            disk.crash_at = 0
            raise Crash

    armed = arm(die)
    try:
        with pytest.raises(Crash), over(disk, topic, RestoreSettings(batch=1), mechanism=None):
            pass
    finally:
        arm(armed)
    disk.restart(power_lost=False)
    with over(disk, topic, mechanism=None) as store:
        assert shown(store) == topic.values()


def test_a_checkpoint_is_true_after_a_power_cut() -> None:
    disk, topic = CrashDisk(), Topic()
    for power_lost in (False, True):
        topic[0].append((b"lost" if power_lost else b"kept", b"1"))
        with over(disk, topic, mechanism=None):
            pass
        disk.restart(power_lost=power_lost)
    with over(disk, topic, mechanism=None) as store:
        assert shown(store) == topic.values()


def test_a_topic_with_fewer_partitions_is_noticed_by_a_store_without_transactions_too() -> None:
    disk, topic = CrashDisk(), Topic(2)
    topic[0].append((b"a", b"1"))
    topic[1].append((b"b", b"1"))
    with over(disk, topic, mechanism=None):
        pass
    topic.logs.pop()
    with over(disk, topic, mechanism=None) as store:
        assert shown(store) == {b"a": b"1"}


@pytest.mark.parametrize("mechanism", [Mechanism.INDEXED_BATCH, None], ids=["own", "direct"])
@pytest.mark.parametrize("running", [True, False])
def test_rows_of_a_partition_that_is_gone_do_not_stay_whichever_it_is(
    storage: Storage, mechanism: Mechanism | None, running: bool
) -> None:
    topic = Topic(5)
    topic[0].append((b"a", b"1"))
    topic[4].append((b"gone", b"1"))
    with over(storage, topic, mechanism=mechanism) as store:
        if not running:
            store.close()
        topic.logs = Topic(3).logs
        topic[0].append((b"a", b"2"), (b"b", b"2"))
        if running:
            store.update()
        else:
            store.open()
        assert shown(store) == topic.values()


def test_a_store_in_memory_is_filled_anew_by_every_start() -> None:
    disk, topic = CrashDisk(), Topic()
    topic[0].append((b"a", b"1"))
    for _ in range(2):
        store: Prices = GlobalStore(
            disk,
            "prices",
            "prices",
            lambda: KeyValueStore(context_over(MemoryEngine(), persistent=False)),
            topic,
        )
        with store:
            assert shown(store) == {b"a": b"1"}
    assert topic[0].reads == [0, 0]


@pytest.mark.parametrize("typed", [False, True], ids=["bytes", "typed"])
def test_a_versioned_store_is_refused_since_partitions_are_read_in_any_order(typed: bool) -> None:
    supplier: StoreSupplier[Any] = persistent_versioned_key_value_store("prices", 1000)
    if typed:
        supplier = versioned_key_value_store_builder(supplier, StrSerde(), StrSerde())
    with pytest.raises(ValueError, match="a versioned store cannot be global"):
        global_store(supplier, "prices")


def test_opening_waits_for_brokers_that_do_not_answer_as_long_as_it_has_patience() -> None:
    topic, clock = Topic(), StepClock()
    topic[0].append((b"a", b"1"))
    topic.failures, topic.silences = 5, 3
    with over(CrashDisk(), topic, RestoreSettings(clock=clock)) as store:
        assert shown(store) == {b"a": b"1"}
    topic.failures = 10**6
    disk = CrashDisk()
    with pytest.raises(RetriableError):
        over(disk, topic, RestoreSettings(clock=clock, patience_s=1.0)).open()
    assert disk.locked is None


def test_an_update_that_fails_has_lost_nothing(storage: Storage) -> None:
    topic = Topic(2)
    with over(storage, topic) as store:
        topic[0].append((b"a", b"1"))
        topic[1].append((b"b", b"1"))
        topic.failures = 1
        with pytest.raises(RetriableError):
            store.update()
        assert store.update() == 2
        assert shown(store) == topic.values()


def test_a_store_that_stands_still_on_its_way_through_the_topic_is_rebuilt(storage: Storage) -> None:
    clock, topic = StepClock(), Topic()
    topic.logs = [Cleaned(clock, 2 * DAY, tp(0))]
    with over(storage, topic, RestoreSettings(batch=1, clock=clock)) as store:
        assert shown(store) == topic.values() == {b"b": b"1", b"c": b"1"}


@pytest.mark.parametrize("seconds", [5, 40])
def test_a_topic_that_keeps_deletions_for_a_second_is_read_anew_however_soon_they_are_gone(
    storage: Storage, seconds: float
) -> None:
    clock, topic = StepClock(), Topic()
    topic.logs = [Cleaned(clock, seconds, tp(0))]
    settings = RestoreSettings(batch=1, clock=clock)
    with over(storage, topic, settings, kept_ms=1_000) as store:
        assert shown(store) == topic.values() == {b"b": b"1", b"c": b"1"}


@pytest.mark.parametrize("mechanism", [None, Mechanism.INDEXED_BATCH])
def test_a_store_whose_rebuild_gets_no_answer_is_closed_and_opened_again_it_has_all_of_the_topic(
    storage: Storage, mechanism: Mechanism | None
) -> None:
    topic = Topic()
    topic[0].append((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    with over(storage, topic, mechanism=mechanism) as store:
        topic.logs = []
        topic.add_partition().append((b"d", b"1"))

        def be_silent_once(point: Point) -> None:
            if point is Point.STORE_OPENED:
                topic.silences = 1

        before = arm(be_silent_once)
        try:
            with pytest.raises(RetriableError):
                store.update()
        finally:
            arm(before)
        assert not store.is_open
        topic[0].append((b"e", b"1"), (b"f", b"1"), (b"g", b"1"))
        store.open()
        assert shown(store) == topic.values()


@pytest.mark.requirement("x.3")
def test_listeners_hear_of_each_partition() -> None:
    heard: list[tuple[Any, ...]] = []

    class Listener:
        def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None:
            heard.append(("start", changelog.partition, store_name, start, end))

        def on_batch_restored(
            self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
        ) -> None:
            heard.append(("batch", changelog.partition, store_name, position, num_restored))

        def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
            heard.append(("end", changelog.partition, store_name, total_restored))

    topic = Topic(2)
    keyless: Any = (None, b"2")
    topic[1].append((b"a", b"1"), keyless, (b"b", b"1"))
    with over(CrashDisk(), topic, RestoreSettings(batch=2, listener=Listener())):
        pass
    assert heard == [
        ("start", 0, "prices", 0, 0),
        ("start", 1, "prices", 0, 4),
        # What has no key is read, and is none of the records that are restored.
        ("batch", 1, "prices", 2, 1),
        ("batch", 1, "prices", 4, 1),
        ("end", 0, "prices", 0),
        ("end", 1, "prices", 2),
    ]


def a_life(disk: CrashDisk, topic: Topic, mechanism: Mechanism | None) -> None:
    """Fill, follow, and find the topic cut off."""
    with over(disk, topic, RestoreSettings(batch=2), mechanism=mechanism) as store:
        topic[0].append((b"a", b"2"), (b"d", b"1"))
        topic[1].append((b"b", None))
        store.update()
        topic[1].earliest = topic[1].end + 1
        topic[1].end = topic[1].stable = topic[1].earliest
        topic[1].records.clear()
        topic[1].append((b"e", b"1"))
        store.update()


def agrees(engine: Engine, history: Topic) -> None:
    """What is there is, for each partition, what the records up to its offset make."""
    rows = dict(engine.scan(Family.DATA, None, None))
    for log in history.logs:
        offset = metadata.read(engine, metadata.Kind.OFFSET, log.tp, where="")
        last = {
            key: value
            for at, (key, value) in sorted(log.records.items())
            if offset is not None and at <= offset
        }
        keys = {key for key, _ in log.records.values()}
        assert {key: value for key, value in rows.items() if key in keys} == {
            key: value for key, value in last.items() if value is not None
        }


@pytest.mark.parametrize("mechanism", [Mechanism.INDEXED_BATCH, None])
@pytest.mark.parametrize("power_lost", [False, True])
def test_a_crash_at_any_moment_costs_nothing(mechanism: Mechanism | None, power_lost: bool) -> None:
    def a_topic() -> Topic:
        topic = Topic(2)
        topic[0].append((b"a", b"1"), (b"c", b"1"))
        topic[1].append((b"b", b"1"))
        return topic

    crash_at = 0
    while True:
        crash_at += 1
        disk, topic = CrashDisk(), a_topic()
        disk.crash_at = crash_at
        try:
            a_life(disk, topic, mechanism)
            break
        except Crash:
            disk.restart(power_lost=power_lost)
        with over(disk, topic, mechanism=mechanism) as store:
            assert shown(store) == topic.values()
            offsets = {log.tp: max(log.records) for log in topic.logs}
            assert store.offsets() == offsets
    assert crash_at > 5


@pytest.mark.requirement("892.3")
@pytest.mark.parametrize("power_lost", [False, True])
def test_a_crash_leaves_data_and_offsets_of_one_commit(power_lost: bool) -> None:
    crash_at = 0
    while True:
        crash_at += 1
        disk, topic = CrashDisk(), Topic(3)
        for log in topic.logs:
            number = log.tp.partition
            log.append(*[(b"%d %d" % (number, at % 2), None if at == 3 else b"%d" % at) for at in range(5)])
        disk.crash_at = crash_at
        try:
            with over(disk, topic, RestoreSettings(batch=2)):
                pass
            break
        except Crash:
            disk.restart(power_lost=power_lost)
        with disk.lock("global-prices"):
            agrees(disk.open("global-prices", "prices"), topic)
        with over(disk, topic) as store:
            assert shown(store) == topic.values()
        assert disk.aside == [], "what was restored counts"
    assert crash_at > 10


@pytest.mark.parametrize("error", [StoreIOError, StoreCorruptedError])
def test_a_write_that_fails_while_updating(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is corrupt is rebuilt; after an error of the disk it is for its owner to close it."""
    disk, topic = CrashDisk(), Topic()
    with over(disk, topic) as store:
        topic[0].append((b"a", b"1"))

        def fail(*_: object, **__: object) -> None:
            monkeypatch.undo()
            raise error("broken")

        monkeypatch.setattr(KeyValueStore, "restore_batch", fail)
        if error is StoreIOError:
            with pytest.raises(StoreIOError):
                store.update()
        else:
            assert store.update() == 1
            assert len(disk.aside) == 1


def test_a_rebuild_while_others_read_it_is_not_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner has it open, and would go on with a part of the topic."""
    disk, topic = CrashDisk(), Topic()
    topic[0].append(*[(b"%d" % number, b"1") for number in range(6)])
    leaving: list[bool] = []
    with over(disk, topic, RestoreSettings(batch=2, breaks_off=lambda _: bool(leaving))) as store:
        leaving.append(True)

        def fail(*_: object, **__: object) -> None:
            monkeypatch.undo()
            raise StoreCorruptedError("broken")

        monkeypatch.setattr(MemoryEngine, "scan", fail)
        assert store.rebuild_if_damaged()
        assert len(disk.aside) == 1
        assert shown(store) == topic.values()


class Following(RuleBasedStateMachine):
    """Any topic, cut and extended at any moment, and any crashes: after an update the store is the topic."""

    @initialize(partitions=st.integers(1, 3))
    def begin(self, partitions: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.topic = Topic(partitions)
        self.disk: Storage = self.make_storage()
        self.clock = StepClock()
        self.store = self.opened()

    def make_storage(self) -> Storage:
        raise NotImplementedError

    def crash(self) -> None:
        raise NotImplementedError

    def opened(self) -> Prices:
        store = over(self.disk, self.topic, RestoreSettings(batch=2, clock=self.clock))
        store.open()
        return store

    @rule(
        partition=st.integers(0, 2),
        pairs=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"1", b"2", b"", None])), max_size=4),
    )
    def append(self, partition: int, pairs: list[tuple[int, bytes | None]]) -> None:
        log = self.topic[partition % len(self.topic.logs)]
        log.append(*[(b"%d %d" % (log.tp.partition, key), value) for key, value in pairs])

    @precondition(lambda self: len(self.topic.logs) < 3)
    @rule()
    def add_partition(self) -> None:
        self.topic.add_partition()

    @rule(partition=st.integers(0, 2), keep=st.integers(0, 3))
    def cut_off_the_start(self, partition: int, keep: int) -> None:
        log = self.topic[partition % len(self.topic.logs)]
        log.earliest = max(log.earliest, log.end - keep)
        log.records = {offset: pair for offset, pair in log.records.items() if offset >= log.earliest}

    @rule(partition=st.integers(0, 2))
    def compact(self, partition: int) -> None:
        log = self.topic[partition % len(self.topic.logs)]
        last = {key: offset for offset, (key, _) in sorted(log.records.items())}
        log.records = {offset: log.records[offset] for offset in last.values()}

    @rule()
    def update(self) -> None:
        self.store.update()
        self.compare()

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self.store = self.opened()
        self.compare()

    @rule()
    def crash_and_open(self) -> None:
        self.crash()
        self.store = self.opened()
        self.compare()

    def compare(self) -> None:
        kept = shown(self.store)
        for log in self.topic.logs:
            prefix = b"%d " % log.tp.partition
            mine = {key: value for key, value in kept.items() if key.startswith(prefix)}
            # What was applied before the start of the log was cut off is still there.
            assert {key: mine.get(key) for key, _ in log.records.values()} == {
                key: log.values().get(key) for key, _ in log.records.values()
            }

    @invariant()
    def offsets_are_in_the_topic(self) -> None:
        if hasattr(self, "store"):
            for place, offset in self.store.offsets().items():
                assert offset < self.topic[place.partition].end

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)


class FollowingInMemory(Following):
    def make_storage(self) -> Storage:
        return CrashDisk()

    def crash(self) -> None:
        assert isinstance(self.disk, CrashDisk)
        self.disk.restart(power_lost=False)


class FollowingOnDisk(Following):
    def make_storage(self) -> Storage:
        return StateDirectory(self.directory, "app")

    def crash(self) -> None:
        """Without what a clean close would write."""
        self.store._held = dict(self.store._kept)
        self.store.close()


TestFollowingInMemory = FollowingInMemory.TestCase
TestFollowingInMemory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestFollowingOnDisk = FollowingOnDisk.TestCase
TestFollowingOnDisk.settings = settings(
    max_examples=6, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("gone", [False, True])
def test_offsets_of_a_time_without_transactions_are_not_believed_when_they_are_switched_off_again(
    gone: bool,
) -> None:
    disk, topic = CrashDisk(), Topic()
    for number in range(4):
        topic[0].append((b"%d" % number, b"1"))
    with over(disk, topic, mechanism=None):
        pass
    if gone:
        del disk.files["prices"]
    store = over(disk, topic, RestoreSettings(batch=1))
    before, killed = arm(_killed_at_its_second_batch()), False
    try:
        store.open()
    except Crash:
        killed = True
    finally:
        arm(before)
    assert killed
    disk.restart(power_lost=False)
    with over(disk, topic, mechanism=None) as again:
        assert shown(again) == topic.values()


def _killed_at_its_second_batch() -> Callable[[Point], None]:
    left = [Point.RESTORE_BATCH, Point.RESTORE_BATCH]

    def hook(point: Point) -> None:
        if point is left[-1]:
            left.pop()
            if not left:
                left.append(Point.TASK_CLOSED)
                raise Crash

    return hook


def test_a_store_whose_checkpoint_cannot_be_read_is_rebuilt(tmp_path: Path) -> None:
    directory, topic = StateDirectory(tmp_path, "app"), Topic()
    topic[0].append((b"a", b"1"))
    with over(directory, topic, mechanism=None):
        pass
    (tmp_path / "app" / "global-prices" / ".checkpoint").write_bytes(b"damaged")
    with over(directory, topic, mechanism=None) as store:
        assert shown(store) == topic.values()


def test_a_topic_that_keeps_deletions_for_a_moment_is_followed_and_not_read_anew_at_each_update(
    storage: Storage,
) -> None:
    topic, clock = Topic(), StepClock()
    topic[0].append(*((b"%d" % number, b"") for number in range(100)))
    with over(storage, topic, RestoreSettings(clock=clock), kept_ms=100) as store:
        clock.sleep(0.2)
        topic[0].append((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
        assert store.update() == 3
