"""Changes of stores that are held back until the commit: what the changelog has of them, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from store.config import StreamsConfig
from store.errors import ProtocolError
from store.state import timestamped
from store.streams import context as held
from store.streams.task import apply
from store.streams.topology import Context
from store.suppliers import (
    KeyValueSupplier,
    persistent_key_value_store,
    persistent_list_value_store,
    persistent_timestamped_key_value_store,
    persistent_versioned_key_value_store,
)
from store.types import Record
from tests.clusters import STORE, Cluster, pipeline, rows

AT_LEAST_ONCE = StreamsConfig.of({"processing.guarantee": "at_least_once"})


def of_share(number: int) -> StreamsConfig:
    """That a task may hold so many bytes in memory; what is uncommitted in the store is elsewhere."""
    return StreamsConfig.of(
        {
            "statestore.uncommitted.max.bytes": number,
            "statestore.transactional.mechanism": "rocksdb_secondary",
        }
    )


def put_value(context: Context, record: Record) -> None:
    """The key gets the value, a deletion where that is empty."""
    context.store(STORE).put(record.key, record.value or None)


def fed(*pairs: tuple[bytes, bytes], stores: tuple[Any, ...] = (), process: Any = put_value) -> Cluster:
    cluster = Cluster(pipeline(process, *stores))
    for number, (key, value) in enumerate(pairs):
        cluster.broker.append("in", key, value, partition=0, timestamp=1_000 + number)
    return cluster


def test_a_transaction_logs_the_last_change_of_each_key_with_its_time() -> None:
    cluster = fed((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"c", b""))
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    found = {record.key: (record.value, record.timestamp) for record in cluster.changes()}
    assert found == {b"a": (b"2", 1_002), b"b": (b"1", 1_001), b"c": (None, 1_004)}
    assert len(cluster.changes()) == 3


def test_a_row_of_the_time_0_is_logged_with_that_and_not_with_the_time_of_the_record() -> None:
    def put_row(context: Context, record: Record) -> None:
        context.store(STORE).put(record.key, timestamped.pack(b"1", 0))

    cluster = fed((b"a", b""), stores=(persistent_timestamped_key_value_store(STORE),), process=put_row)
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    assert [record.timestamp for record in cluster.changes()] == [0]


def test_each_transaction_logs_its_own() -> None:
    cluster = fed((b"a", b"1"), (b"a", b"2"), (b"a", b"3"))
    with cluster.task(StreamsConfig(commit_records=1)) as task:
        apply(task, cluster.records())
        task.commit()
    assert [record.value for record in cluster.changes()] == [b"1", b"2", b"3"]


def test_nothing_of_an_aborted_transaction_is_logged_by_the_next_one() -> None:
    cluster = fed((b"a", b"1"), (b"b", b"1"))
    with cluster.task() as task:
        apply(task, cluster.records())
        task.abort()
        apply(task, cluster.records()[:1])
        task.commit()
        assert rows(task) == {b"a": b"1"}
    assert [(record.key, record.value) for record in cluster.changes()] == [(b"a", b"1")]


def test_changes_are_sent_before_the_commit_when_there_are_many() -> None:
    cluster = fed(*[(key, b"%d" % number) for number, key in enumerate((b"a", b"b", b"c", b"a", b"a"))])
    with cluster.task(of_share(3 * held._CHANGE_BYTES)) as task:
        apply(task, cluster.records())
        task.commit()
    logged = [(record.key, record.value) for record in cluster.changes()]
    assert logged == [(b"a", b"0"), (b"b", b"1"), (b"c", b"2"), (b"a", b"4")]


def test_a_value_that_grows_counts_with_its_new_size() -> None:
    def put_three(context: Context, record: Record) -> None:
        # By one record, so that no commit comes between.
        for value in (b"x", b"x" * 15_000, b"y"):
            context.store(STORE).put(record.key, value)

    cluster = fed((b"a", b""), process=put_three)
    with cluster.task(of_share(10_000)) as task:
        apply(task, cluster.records())
        task.commit()
    assert [len(record.value or b"") for record in cluster.changes()] == [15_000, 1]


def test_a_large_key_is_logged_while_it_is_known_which_record_has_it() -> None:
    large = b"x" * (held._LARGE_BYTES + 1)
    cluster = fed((b"a", b"1"), (large, b"1"))
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    assert [record.key for record in cluster.changes()] == [large, b"a"]


def test_a_large_value_is_logged_at_once_and_what_comes_after_it_wins() -> None:
    large = b"x" * (held._LARGE_BYTES + 1)
    cluster = fed((b"a", b"1"), (b"a", large), (b"b", large), (b"b", b"2"))
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
        assert rows(task) == {b"a": large, b"b": b"2"}
    logged = [(record.key, record.value) for record in cluster.changes()]
    assert logged == [(b"a", large), (b"b", large), (b"b", b"2")]


def test_every_version_of_a_key_is_logged() -> None:
    def put_version(context: Context, record: Record) -> None:
        context.store(STORE).put(record.key, record.value, context.timestamp)

    store = persistent_versioned_key_value_store(STORE, history_retention_ms=60_000)
    cluster = fed((b"a", b"1"), (b"a", b"2"), (b"a", b"3"), stores=(store,), process=put_version)
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    assert [record.value for record in cluster.changes()] == [b"1", b"2", b"3"]


@dataclass(frozen=True)
class _Kept(KeyValueSupplier):
    """A store whose changelog is not to be compacted at once, or not at all."""

    setting: tuple[str, str] = ("", "")

    def changelog_config(self) -> dict[str, str]:
        return {**super().changelog_config(), self.setting[0]: self.setting[1]}


@pytest.mark.parametrize("setting", [("min.compaction.lag.ms", "1"), ("cleanup.policy", "delete")])
def test_a_changelog_that_keeps_every_record_gets_every_change(setting: tuple[str, str]) -> None:
    cluster = fed((b"a", b"1"), (b"a", b"2"), stores=(_Kept(STORE, setting=setting),))
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    assert [record.value for record in cluster.changes()] == [b"1", b"2"]


def test_under_at_least_once_every_change_is_logged_with_its_write() -> None:
    cluster = fed((b"a", b"1"), (b"a", b"2"))
    with cluster.task(AT_LEAST_ONCE) as task:
        apply(task, cluster.records())
        task.commit()
    assert [record.value for record in cluster.changes()] == [b"1", b"2"]


def test_a_lost_disk_is_restored_from_what_was_held_back() -> None:
    def append(context: Context, record: Record) -> None:
        context.store("list").put(record.key, record.value)
        put_value(context, record)

    stores = (persistent_key_value_store(STORE), persistent_list_value_store("list"))
    cluster = fed((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), stores=stores, process=append)
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
        before = rows(task), list(task.stores["list"].get(b"a"))  # type: ignore[attr-defined]
    cluster.host = type(cluster.host)(1)
    with cluster.task() as task:
        assert (rows(task), list(task.stores["list"].get(b"a"))) == before  # type: ignore[attr-defined]


def test_a_write_without_a_transaction_is_refused_as_ever() -> None:
    cluster = fed((b"a", b"1"))
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
        with pytest.raises(ProtocolError):
            task.stores[STORE].put(b"b", b"1")  # type: ignore[attr-defined]
