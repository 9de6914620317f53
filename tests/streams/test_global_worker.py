"""Global stores that a worker runs, over the simulated broker: opened before tasks, followed in `poll`, only read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog, SimReader
from harness.worlds.sim.disk import Host, HostStorage
from store.config import StreamsConfig
from store.engine import Storage
from store.engine.rocksdb import RocksEngine
from store.errors import ConfigError, LogError, ProtocolError, RetriableError, StoreError, StoreIOError
from store.recovery.directory import StateDirectory
from store.recovery.offsets import engine_store
from store.serdes import IntSerde, StrSerde
from store.state.protocol import Sync
from store.streams.context import GlobalReads
from store.streams.task import Task
from store.streams.topology import Context, Topology
from store.streams.worker import Worker
from store.suppliers import (
    StoreSupplier,
    custom_store,
    global_store,
    in_memory_key_value_store,
    key_value_store_builder,
    persistent_key_value_store,
)
from store.types import IsolationLevel, Record, TopicPartition
from tests.conformance.stores import FileStore
from tests.streams.test_standby_worker import Clock, settle

RC = IsolationLevel.READ_COMMITTED
PRICES = persistent_key_value_store("prices")
DIRECT = persistent_key_value_store("prices", transactional=False)
IN_MEMORY = in_memory_key_value_store("prices")


def enrich(context: Context, record: Record) -> None:
    """Forward each order with the price of its item, and count the orders of each."""
    assert record.key is not None
    orders = context.store("orders")
    orders.put(record.key, b"%d" % (int(orders.get(record.key) or 0) + 1))
    context.forward("out", record.key, context.store("prices").get(record.key))


class Shop:
    def __init__(
        self,
        supplier: StoreSupplier[Any] = PRICES,
        process: Any = enrich,
        storage: Storage | None = None,
    ) -> None:
        self.broker, self.host, self.clock = SimBroker(), Host(0), Clock()
        self.topology = Topology(
            "app", ("in",), ("out",), ("orders",), process, global_stores=(global_store(supplier, "table"),)
        )
        for topic, partitions in (("in", 2), ("out", 1), ("table", 3)):
            self.broker.create_topic(topic, partitions)
        for spec in self.topology.internal_topics(2):
            self.broker.create_topic(*spec)
        self.storage = storage
        self.config = StreamsConfig(commit_interval_ms=50_000)
        self._incarnations = 0

    def worker(self, *partitions: int) -> Worker:
        self._incarnations += 1
        storage = self.storage or HostStorage(self.host, self._incarnations)
        return Worker(self.topology, partitions, SimLog(self.broker), storage, self.config, self.clock)

    def price(self, item: bytes, price: bytes | None) -> None:
        self.broker.append("table", item, price)

    def order(self, *items: bytes, partition: int = 0) -> None:
        for item in items:
            self.broker.append("in", item, b"", partition=partition)

    def output(self) -> list[tuple[bytes | None, bytes | None]]:
        records = self.broker.visible(TopicPartition("out", 0), RC)
        return [(record.key, record.value) for record in records]


@pytest.mark.requirement("x.1")
@pytest.mark.parametrize("supplier", [PRICES, DIRECT, IN_MEMORY], ids=["own", "direct", "in memory"])
def test_the_first_record_of_a_task_sees_the_whole_table_and_later_ones_what_was_added(
    supplier: StoreSupplier[Any],
) -> None:
    shop = Shop(supplier)
    for number in range(9):
        shop.price(b"%d" % number, b"cheap")
    shop.order(*(b"%d" % number for number in range(9)))
    worker = shop.worker(0, 1)
    settle(worker)
    assert shop.output() == [(b"%d" % number, b"cheap") for number in range(9)]
    shop.price(b"1", b"dear")
    shop.price(b"2", None)
    settle(worker)
    shop.order(b"1", b"2", b"3")
    settle(worker)
    assert shop.output()[9:] == [(b"1", b"dear"), (b"2", None), (b"3", b"cheap")]
    worker.close()
    assert shop.host.locks == {}


def test_a_worker_that_is_told_how_far_to_go_sees_what_was_added_to_the_table_before() -> None:
    shop = Shop()
    worker = shop.worker(0)
    for number, price in enumerate((b"cheap", b"dear"), 1):
        shop.price(b"a", price)
        shop.order(b"a")
        assert worker.advance({TopicPartition("in", 0): number}) == {0: 1}
    assert shop.output() == [(b"a", b"cheap"), (b"a", b"dear")]
    worker.close()


@pytest.mark.parametrize("supplier", [PRICES, DIRECT], ids=["own", "direct"])
def test_a_restarted_worker_reads_only_what_is_new_in_the_topic(supplier: StoreSupplier[Any]) -> None:
    shop = Shop(supplier)
    shop.price(b"a", b"1")
    first = shop.worker(0)
    settle(first)
    first.close()
    shop.price(b"b", b"2")
    heard: list[tuple[str, int]] = []

    class Listener:
        def on_restore_start(
            self, changelog: TopicPartition, store_name: str, start: int, end: int
        ) -> None: ...

        def on_batch_restored(
            self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
        ) -> None: ...

        def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
            if total_restored and changelog.topic == "table":
                heard.append((store_name, total_restored))

    second = Worker(
        shop.topology,
        [0],
        SimLog(shop.broker),
        HostStorage(shop.host, 9),
        StreamsConfig(),
        shop.clock,
        listener=Listener(),
    )
    shop.order(b"a", b"b")
    settle(second)
    assert shop.output() == [(b"a", b"1"), (b"b", b"2")]
    assert heard == [("prices", 1)]
    assert shop.host.aside == []
    second.close()


@pytest.mark.parametrize("supplier", [PRICES, DIRECT], ids=["own", "direct"])
def test_a_table_that_was_made_anew_as_long_as_it_was_is_read_from_its_start(
    supplier: StoreSupplier[Any],
) -> None:
    shop = Shop(supplier)
    for item in (b"a", b"b", b"c"):
        shop.broker.append("table", item, b"cheap", partition=0)
    first = shop.worker(0)
    settle(first)
    first.close()
    shop.broker.delete_topic("table")
    shop.broker.create_topic("table", 3)
    for item in (b"c", b"d", b"e", b"f"):
        shop.broker.append("table", item, b"dear", partition=0)
    second = shop.worker(0)
    shop.order(b"a", b"c", b"f")
    settle(second)
    assert shop.output() == [(b"a", None), (b"c", b"dear"), (b"f", b"dear")]
    assert len(shop.host.aside) == 1
    second.close()
    shop.worker(0).close()
    assert len(shop.host.aside) == 1


def test_records_of_an_aborted_transaction_are_never_seen() -> None:
    shop = Shop()
    producer = SimLog(shop.broker).producer("upstream", 60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("table", b"a", b"never")
    producer.flush()
    worker = shop.worker(0)
    shop.order(b"a")
    settle(worker)
    producer.abort_transaction()
    shop.order(b"a")
    settle(worker)
    assert shop.output() == [(b"a", None), (b"a", None)]
    worker.close()


@pytest.mark.parametrize("call", ["put", "delete", "commit", "restore_batch", "close", "nothing"])
def test_a_processor_cannot_write_to_a_global_store(call: str) -> None:
    def write(context: Context, record: Record) -> None:
        getattr(context.store("prices"), call)(record.key, b"1")

    shop = Shop(process=write)
    worker = shop.worker(0)
    shop.order(b"a")
    with pytest.raises(ProtocolError, match=f"prices has no '{call}' .* follows topic table"):
        settle(worker)
    worker.close()


def test_a_typed_global_store_gives_values_of_its_types() -> None:
    def typed(context: Context, record: Record) -> None:
        assert record.key is not None
        context.forward("out", record.key, b"%d" % (context.store("prices").get(record.key.decode()) + 1))

    shop = Shop(key_value_store_builder(PRICES, StrSerde(), IntSerde()), typed)
    shop.price(b"a", IntSerde().serialize(41))
    shop.order(b"a")
    worker = shop.worker(0)
    settle(worker)
    assert shop.output() == [(b"a", b"42")]
    worker.close()


@pytest.mark.parametrize("disk", [True, False])
def test_two_workers_of_a_host_have_a_global_store_each(disk: bool, tmp_path: Path) -> None:
    shop = Shop(storage=StateDirectory(tmp_path, "app") if disk else None)
    shop.price(b"a", b"1")
    one, two = shop.worker(0), shop.worker(1)
    settle(one, two)
    shop.order(b"a", partition=0)
    shop.order(b"a", partition=1)
    settle(one, two)
    assert shop.output() == [(b"a", b"1")] * 2
    places = [worker.replicas.global_stores["prices"].task_id for worker in (one, two)]
    assert places == ["global-0-prices", "global-1-prices"]
    one.close()
    two.close()


def reading(context: Context, record: Record) -> None:
    assert record.key is not None
    context.forward("out", record.key, b"%d" % sum(len(value) for _, value in context.store("prices").all()))


def swallowing(context: Context, record: Record) -> None:
    assert record.key is not None
    value: bytes | None
    try:
        value = b"%d" % sum(len(context.store("prices").get(b"%d" % number) or b"") for number in range(200))
    except StoreError:
        value = b"swallowed"
    context.forward("out", record.key, value)


@pytest.mark.parametrize("process", [reading, swallowing])
def test_a_global_store_found_damaged_by_a_processor_is_rebuilt_and_the_record_processed_again(
    process: Any, tmp_path: Path
) -> None:
    directory = StateDirectory(tmp_path, "app")
    shop = Shop(process=process, storage=directory)
    for number in range(200):
        shop.price(b"%d" % number, os.urandom(1000))
    first = shop.worker(0)
    settle(first)
    below = engine_store(first.replicas.global_stores["prices"]._store)
    assert below is not None
    assert isinstance(below._engine, RocksEngine)
    below._engine._rdict.flush()
    first.close()
    [table] = directory.path("global-0-prices", "prices").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 3] ^= 1
    table.write_bytes(data)
    again = shop.worker(0)
    shop.order(b"all")
    settle(again)
    assert shop.output() == [(b"all", b"200000")]
    [aside] = tmp_path.glob("app/global-0-prices/set-aside/*/prices")
    assert any(aside.iterdir())
    again.close()


def test_a_method_of_a_global_store_that_a_processor_keeps_is_of_the_store_that_was_rebuilt() -> None:
    kept: dict[str, Any] = {}

    def keeping(context: Context, record: Record) -> None:
        if not kept:
            prices = context.store("prices")
            kept.update({name: getattr(prices, name) for name in ("get", "all")})
        rows = [key for key, _ in kept["all"]()]
        context.forward("out", record.key, b"%s %d" % (kept["get"](record.key), len(rows)))

    shop = Shop(process=keeping)
    shop.price(b"a", b"1")
    shop.order(b"a")
    worker = shop.worker(0)
    settle(worker)
    store = worker.replicas.global_stores["prices"]
    store.close()
    shop.price(b"a", b"2")
    store.open()
    shop.order(b"a")
    settle(worker)
    assert shop.output() == [(b"a", b"1 1"), (b"a", b"2 1")]
    worker.close()


def test_a_worker_that_polls_on_after_its_global_store_could_not_follow_reads_the_one_that_it_opens_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop()
    shop.price(b"a", b"1")
    shop.order(b"a")
    worker = shop.worker(0)
    settle(worker)

    def full(*_: object) -> int:
        raise StoreIOError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(worker.replicas.global_stores["prices"], "_follow", full)
        with pytest.raises(StoreIOError, match="no space left"):
            settle(worker)
    assert "global-0-prices" not in shop.host.locks
    shop.price(b"a", b"2")
    shop.order(b"a")
    settle(worker)
    assert shop.output() == [(b"a", b"1"), (b"a", b"2")]
    worker.close()


def test_a_global_store_is_opened_with_the_settings_of_its_worker() -> None:
    shop = Shop()
    shop.config = replace(shop.config, statestore_sync=Sync.every(7))
    worker = shop.worker(0)
    settle(worker)
    below = engine_store(worker.replicas.global_stores["prices"]._store)
    assert below is not None
    context = below.context
    assert (context.sync, context.isolation) == (Sync.every(7), shop.config.default_state_isolation_level)
    assert (context.clock, context.task_id) == (shop.clock, "global-0-prices")
    worker.close()


def test_a_global_store_that_could_not_follow_is_said_to_be_not_open_until_it_is_again() -> None:
    with pytest.raises(ProtocolError, match="global store prices is not open"):
        GlobalReads({}, "prices", lambda _: None).get(b"a")


def test_a_topic_that_does_not_answer_for_a_while_leaves_the_table_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop()
    shop.price(b"a", b"1")
    worker = shop.worker(0)
    settle(worker)
    shop.price(b"a", b"2")
    with monkeypatch.context() as patch:

        def silent(*_: object) -> int:
            raise RetriableError("no broker answers")

        patch.setattr(worker.replicas.global_stores["prices"], "_follow", silent)
        shop.order(b"a")
        settle(worker)
    settle(worker)
    shop.order(b"a")
    settle(worker)
    assert shop.output() == [(b"a", b"1"), (b"a", b"2")]
    worker.close()


@pytest.mark.parametrize("runs", ["by itself", "to given ends"])
@pytest.mark.parametrize("supplier", [PRICES, DIRECT, IN_MEMORY], ids=["own", "direct", "in memory"])
def test_no_record_is_looked_up_in_a_part_of_a_table_whose_rebuild_got_no_answer(
    supplier: StoreSupplier[Any], runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(supplier)
    shop.broker.delete_topic("table")
    shop.broker.create_topic("table", 3, {"cleanup.policy": "compact"})
    for number in range(9):
        shop.price(b"%d" % number, b"cheap")
    worker = shop.worker(0)
    settle(worker)
    read, answers = SimReader.read, iter([True, False])

    def read_once(*asked: Any) -> Any:
        if asked[1].topic == "table" and not next(answers, True):
            raise RetriableError("no leader")
        return read(*asked)

    # Longer than half of the time that the topic keeps deletions: what is there may have been deleted meanwhile.
    shop.clock.sleep(13 * 3600)
    for number in range(12):
        shop.broker.append("table", b"new %d" % number, b"dear", partition=number % 3)
    monkeypatch.setattr(SimReader, "read", read_once)
    shop.order(b"1", b"2", b"new 2")
    if runs == "by itself":
        worker.replicas.update(busy=False)
        settle(worker)
    else:
        worker.advance({TopicPartition("in", 0): 3})
    assert not next(answers, False)
    assert shop.output() == [(b"1", b"cheap"), (b"2", b"cheap"), (b"new 2", b"dear")]
    worker.close()
    assert shop.host.locks == {}


def test_no_record_is_looked_up_in_a_part_of_a_damaged_table_whose_rebuild_got_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop()
    for number in range(9):
        shop.price(b"%d" % number, b"cheap")
    worker = shop.worker(0)
    settle(worker)
    with monkeypatch.context() as patch:

        def silent(*_: object) -> int:
            raise RetriableError("no broker answers")

        patch.setattr("store.recovery.global_store.readable", lambda _: False)
        patch.setattr(worker.replicas.global_stores["prices"], "_follow", silent)
        with pytest.raises(RetriableError, match="no broker answers"):
            worker.replicas.rebuild_damaged()
    shop.order(b"1", b"2")
    settle(worker)
    assert shop.output() == [(b"1", b"cheap"), (b"2", b"cheap")]
    worker.close()


def test_a_topic_that_does_not_exist_is_named_before_any_task_runs() -> None:
    shop = Shop()
    shop.broker.delete_topic("table")
    worker = shop.worker(0)
    for _ in range(2):
        with pytest.raises(LogError, match="table"):
            worker.poll()
    assert (worker.tasks, shop.host.locks) == ({}, {})
    worker.close()


def test_a_task_by_itself_refuses_a_topology_with_global_stores() -> None:
    shop = Shop()
    with pytest.raises(ConfigError, match=r"prices.*only a Worker"):
        Task(shop.topology, 0, SimLog(shop.broker), HostStorage(shop.host, 1), StreamsConfig(), shop.clock)


def test_a_store_that_nobody_can_be_given_a_view_of_is_refused() -> None:
    class Viewless(FileStore):
        def __init__(self, context: Any) -> None:
            self._context = context
            self._rows = {}

    shop = Shop(custom_store("prices", Viewless))
    worker = shop.worker(0)
    with pytest.raises(ConfigError, match="view"):
        worker.poll()
    assert shop.host.locks == {}
    worker.close()


@pytest.mark.parametrize(
    ("supplier", "topic"),
    [(persistent_key_value_store("orders"), "table"), (PRICES, "in"), (PRICES, "app-orders-changelog")],
    ids=["the name of a store", "a source", "a changelog"],
)
def test_a_topology_refuses_a_global_store_that_would_mix_topics_or_names(
    supplier: StoreSupplier[Any], topic: str
) -> None:
    with pytest.raises(ConfigError, match="named twice"):
        Topology(
            "app", ("in",), ("out",), ("orders",), enrich, global_stores=(global_store(supplier, topic),)
        )


def test_a_pipeline_may_write_to_the_topic_of_its_own_global_store() -> None:
    topology = Topology(
        "app", ("in",), ("table",), ("orders",), enrich, global_stores=(global_store(PRICES, "table"),)
    )
    assert [spec.name for spec in topology.internal_topics(1)] == ["app-orders-changelog"]
