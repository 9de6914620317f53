from __future__ import annotations

import math
from threading import Thread
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from store.engine.memory import MemoryEngine
from store.metrics import GROUP, MetricName, Metrics, RecordingLevel, StateStoreMetrics
from store.serdes import BytesSerde
from store.state.keyvalue import KeyValueStore
from store.state.metered import MeteredKeyValueStore
from store.state.protocol import StoreMetrics
from tests.clocks import VirtualClock
from tests.state.opening import context_over


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1000)


@pytest.fixture
def metrics(clock: VirtualClock) -> Metrics:
    return Metrics(clock)


@pytest.fixture
def orders(metrics: Metrics) -> StateStoreMetrics:
    return metrics.store("orders", task_id="0_1")


def open_store(metrics: StoreMetrics, clock: VirtualClock, **options: Any) -> KeyValueStore:
    return KeyValueStore(context_over(MemoryEngine(), metrics=metrics, clock=clock, **options))


@pytest.mark.requirement("892.8")
def test_commits_are_measured_by_rate_average_and_maximum(
    orders: StateStoreMetrics, clock: VirtualClock
) -> None:
    for seconds in (0.002, 0.004, 0.009):
        orders.committed(seconds)
    clock.sleep(15)
    values = orders.as_dict()
    assert values["commit-rate"] == pytest.approx(3 / 45)
    assert values["commit-latency-avg"] == pytest.approx(5e6)
    assert values["commit-latency-max"] == pytest.approx(9e6)


@pytest.mark.requirement("892.8")
def test_before_the_first_commit_the_rate_is_0_and_there_is_no_latency(orders: StateStoreMetrics) -> None:
    values = orders.as_dict()
    assert values["commit-rate"] == 0
    assert math.isnan(values["commit-latency-avg"])
    assert math.isnan(values["commit-latency-max"])


def test_a_rate_is_over_the_time_that_its_samples_took(
    orders: StateStoreMetrics, clock: VirtualClock
) -> None:
    rates = []
    for commits in range(1, 11):
        for _ in range(commits):
            orders.committed(0)
        clock.sleep(10)
        rates.append(orders.as_dict()["commit-rate"])
    # Samples begin at 0, 30, 60 and 90 seconds and hold 6, 15, 24 and 10 commits at last; each is left out
    # 60 seconds after the last commit in it.
    assert rates == pytest.approx(
        [1 / 40, 3 / 50, 6 / 30, 10 / 40, 15 / 50, 21 / 60, 28 / 70, 30 / 50, 39 / 60, 49 / 70]
    )


def test_a_maximum_is_forgotten_60_seconds_after_the_last_value_of_its_sample(
    orders: StateStoreMetrics, clock: VirtualClock
) -> None:
    orders.committed(5)
    clock.sleep(29)
    orders.committed(1)
    clock.sleep(59)
    assert orders.as_dict()["commit-latency-max"] == 5e9
    clock.sleep(1)
    values = orders.as_dict()
    assert math.isnan(values["commit-latency-max"])
    assert values["commit-rate"] == 0


def test_a_later_sample_does_not_remember_the_maximum_of_an_earlier_one(
    orders: StateStoreMetrics, clock: VirtualClock
) -> None:
    orders.committed(5)
    clock.sleep(40)
    orders.committed(1)
    assert orders.as_dict()["commit-latency-max"] == 5e9
    clock.sleep(20)
    values = orders.as_dict()
    assert values["commit-latency-max"] == 1e9
    assert values["commit-latency-avg"] == 1e9
    assert values["commit-rate"] == pytest.approx(1 / 50)


@pytest.mark.requirement("892.8")
def test_a_store_reports_the_duration_of_its_commits_in_the_time_of_its_clock(metrics: Metrics) -> None:
    stepping = VirtualClock(1000, step=0.25)
    store = open_store(metrics.store("orders", task_id="0_1"), stepping)
    store.put(b"a", b"1")
    store.commit()
    values = metrics.as_dict()["0_1"]["orders"]
    assert values["commit-latency-max"] == values["commit-latency-avg"] > 0
    assert values["commit-latency-max"] % 0.25e9 == 0
    store.close()


@pytest.mark.requirement("892.8")
@pytest.mark.requirement("892.5")
def test_uncommitted_and_cached_bytes_are_those_of_the_moment_when_they_are_read(
    metrics: Metrics, clock: VirtualClock
) -> None:
    store = open_store(metrics.store("orders", task_id="0_1"), clock, cache_max_bytes=10_000)

    def read() -> tuple[float, float]:
        values = metrics.as_dict()["0_1"]["orders"]
        return values["uncommitted-bytes"], values["cache-size-bytes"]

    assert read() == (0, 0)
    store.put(b"a", b"1")
    assert read() == (0, store.num_cached_bytes())
    assert store.num_cached_bytes() > 0
    store.flush_cache()
    assert read() == (store.approximate_num_uncommitted_bytes(), 0)
    assert store.approximate_num_uncommitted_bytes() > 0
    store.commit()
    assert read() == (0, 0)
    store.close()


@pytest.mark.requirement("892.8")
def test_a_closed_store_has_no_metrics_and_one_that_is_opened_again_starts_anew(
    metrics: Metrics, clock: VirtualClock
) -> None:
    first = open_store(metrics.store("orders", task_id="0_1"), clock)
    first.commit()
    other = metrics.store("orders", task_id="0_2")
    second = open_store(metrics.store("orders", task_id="0_1"), clock)
    first.close()
    assert metrics.as_dict()["0_1"]["orders"]["commit-rate"] == 0
    second.commit()
    assert metrics.as_dict()["0_1"]["orders"]["commit-rate"] > 0
    second.close()
    assert list(metrics.as_dict()) == ["0_2"]
    other.close()
    other.close()
    assert metrics.snapshot() == {}
    assert metrics.prometheus_text() == ""


def test_dropped_and_restored_records_are_counted_and_rated(
    orders: StateStoreMetrics, clock: VirtualClock
) -> None:
    orders.dropped()
    orders.dropped()
    orders.restored(600)
    clock.sleep(30)
    values = orders.as_dict()
    assert (values["dropped-records-total"], values["restore-total"]) == (2, 600)
    assert (values["dropped-records-rate"], values["restore-rate"]) == pytest.approx((2 / 30, 600 / 30))
    clock.sleep(60)
    values = orders.as_dict()
    assert (values["dropped-records-total"], values["restore-total"]) == (2, 600)
    assert values["dropped-records-rate"] == values["restore-rate"] == 0


@pytest.mark.requirement("892.8")
def test_metrics_are_named_and_tagged_as_in_kafka_streams(metrics: Metrics) -> None:
    metrics.store("orders", task_id="0_1", scope="in-memory-window", thread_id="worker-2").committed(1e-9)
    tags = (("thread-id", "worker-2"), ("task-id", "0_1"), ("in-memory-window-state-id", "orders"))
    assert GROUP == "stream-state-metrics"
    assert metrics.snapshot()[MetricName("commit-latency-max", GROUP, tags)] == pytest.approx(1)


@pytest.mark.requirement("892.8")
def test_prometheus_reads_from_the_text_what_was_recorded(metrics: Metrics) -> None:
    metrics.store("orders", task_id="0_1").dropped()
    metrics.store('a "b"\\\n', task_id="0_1", scope="my.scope").committed(2)
    read = {
        (sample.name, tuple(sorted(sample.labels.items()))): (family.type, sample.value)
        for family in text_string_to_metric_families(metrics.prometheus_text())
        for sample in family.samples
    }
    orders = (("rocksdb_state_id", "orders"), ("task_id", "0_1"), ("thread_id", "main"))
    odd = (("my_scope_state_id", 'a "b"\\\n'), ("task_id", "0_1"), ("thread_id", "main"))
    assert read["stream_state_metrics_dropped_records_total", orders] == ("counter", 1)
    assert read["stream_state_metrics_dropped_records_total", odd] == ("counter", 0)
    assert read["stream_state_metrics_commit_latency_max", odd] == ("gauge", 2e9)
    assert len(read) == len(metrics.snapshot())


def test_a_prometheus_registry_takes_the_metrics_as_a_collector(
    metrics: Metrics, orders: StateStoreMetrics
) -> None:
    registry = CollectorRegistry()
    registry.register(metrics)
    orders.dropped()
    assert (
        registry.get_sample_value(
            "stream_state_metrics_dropped_records_total",
            {"thread_id": "main", "task_id": "0_1", "rocksdb_state_id": "orders"},
        )
        == 1
    )


def test_operations_of_a_typed_store_are_measured_at_debug_alone() -> None:
    for level in RecordingLevel:
        stepping = VirtualClock(1000, step=0.5)
        metrics = Metrics(stepping, level)
        inner = open_store(metrics.store("orders", task_id="0_1"), stepping)
        store = MeteredKeyValueStore(inner, BytesSerde(), BytesSerde())
        store.put(b"a", b"1")
        store.put(b"b", b"2")
        assert store.get(b"a") == b"1"
        store.reverse_all().close()
        with pytest.raises(TypeError):
            store.get(None)  # type: ignore[arg-type]
        values = metrics.as_dict()["0_1"]["orders"]
        if level is RecordingLevel.DEBUG:
            assert values["put-latency-avg"] == values["put-latency-max"] == 0.5e9
            assert values["put-rate"] > values["all-rate"] > 0
            assert values["get-rate"] > values["all-rate"]
            assert values["delete-rate"] == 0
            assert (
                "# HELP stream_state_metrics_put_rate Calls of put per second." in metrics.prometheus_text()
            )
        else:
            assert not [name for name in values if name.startswith(("put", "get", "all"))]
        store.close()
        assert metrics.as_dict() == {}


def test_nothing_is_lost_when_threads_record_at_once(orders: StateStoreMetrics) -> None:
    def record() -> None:
        for _ in range(2000):
            orders.dropped()
            orders.restored(2)

    threads = [Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = orders.as_dict()
    assert (values["dropped-records-total"], values["restore-total"]) == (8000, 16000)
