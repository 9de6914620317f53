"""A changelog that was deleted and made anew is not taken for the one that a store's input was counted into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.worlds.sim.broker import SimLog
from harness.worlds.sim.disk import Host
from store.config import Guarantee, StreamsConfig
from store.errors import ChangelogLostError
from store.streams import ordinals
from store.streams.application import Application
from store.streams.task import apply
from store.streams.thread import INPUTS_S, StreamThread
from store.streams.topology import Context
from store.suppliers import in_memory_key_value_store, persistent_key_value_store
from store.types import Record
from tests.clusters import CHANGELOG, SOURCE, STORE, Cluster, pipeline, rows
from tests.clusters import count as count_keys
from tests.streams.test_thread import rest

GUARANTEES = pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
Supplier = Callable[[str], Any]


def counted(guarantee: Guarantee, supplier: Supplier = persistent_key_value_store) -> Cluster:
    """Three records were counted, and committed."""
    return counted_with(StreamsConfig(processing_guarantee=guarantee), supplier)


def counted_with(config: StreamsConfig, supplier: Supplier = persistent_key_value_store) -> Cluster:
    """The same, with further settings."""
    cluster = Cluster(pipeline(count_keys, supplier(STORE)), [b"a", b"b", b"a"])
    with cluster.task(config) as task:
        cluster.run(task)
    return cluster


def make_anew(cluster: Cluster, rows_there: int) -> None:
    cluster.broker.delete_topic(CHANGELOG.topic)
    SimLog(cluster.broker).admin().create_topics(cluster.topology.internal_topics(1))
    for number in range(rows_there):
        cluster.broker.append(CHANGELOG.topic, b"%d" % number, b"1", partition=0)


@pytest.mark.parametrize("length", [0, 4, 9], ids=["empty", "as long", "longer"])
@pytest.mark.parametrize(
    ("supplier", "kept"),
    [
        (persistent_key_value_store, True),
        (persistent_key_value_store, False),
        (in_memory_key_value_store, True),
    ],
    ids=["on disk", "on a disk that is lost", "in memory"],
)
@GUARANTEES
def test_a_task_does_not_begin_with_what_a_changelog_made_anew_has(
    guarantee: Guarantee, supplier: Supplier, kept: bool, length: int
) -> None:
    cluster = counted(guarantee, supplier)
    make_anew(cluster, length)
    task = cluster.task(StreamsConfig(processing_guarantee=guarantee), host=None if kept else Host(1))
    with pytest.raises(
        ChangelogLostError, match=rf"made anew .*: {CHANGELOG.topic}\. .*--topic {SOURCE.topic} "
    ):
        task.open()
    assert (cluster.position(), len(cluster.changes())) == (3, length)


@GUARANTEES
def test_one_that_is_made_anew_is_told_of_more_stores_than_are_noted_one_by_one(guarantee: Guarantee) -> None:
    config, names = StreamsConfig(processing_guarantee=guarantee), [f"s{at:02}" for at in range(45)]

    def count_in_each(context: Context, record: Record) -> None:
        assert record.key is not None
        for name in names:
            context.store(name).put(record.key, b"1")

    cluster = Cluster(pipeline(count_in_each, *names), [b"a"])
    with cluster.task(config) as task:
        cluster.run(task)
    cluster.broker.delete_topic("app-s44-changelog")
    SimLog(cluster.broker).admin().create_topics(cluster.topology.internal_topics(1))
    with pytest.raises(ChangelogLostError, match=r"at least one of these 6: app-s39-.* app-s44-changelog\. "):
        cluster.task(config, host=Host(1)).open()


@GUARANTEES
def test_it_goes_on_with_what_is_there_where_somebody_has_set_the_positions(guarantee: Guarantee) -> None:
    config = StreamsConfig(processing_guarantee=guarantee)
    cluster = counted(guarantee, in_memory_key_value_store)
    make_anew(cluster, 0)
    cluster.broker.commit_offsets("app", {SOURCE: 3})
    cluster.feed(b"a")
    with cluster.task(config) as task:
        apply(task, cluster.records(3))
        task.commit()
    with cluster.task(config) as again:
        assert rows(again) == {b"a": b"1"}


MECHANISMS = pytest.mark.parametrize(
    "settings",
    [
        {"statestore.transactional.mechanism": "rocksdb_indexbatch"},
        {"statestore.transactional.mechanism": "rocksdb_secondary"},
        {"statestore.transactional.enabled": False},
    ],
    ids=["indexed batch", "secondary store", "without transactions"],
)


@pytest.mark.parametrize("more", [0, 6], ids=["shorter", "longer"])
@MECHANISMS
@GUARANTEES
def test_a_store_that_was_forgotten_when_somebody_started_over_is_set_aside(
    guarantee: Guarantee, settings: dict[str, Any], more: int
) -> None:
    config = StreamsConfig.of({"processing.guarantee": guarantee, **settings})
    cluster = counted_with(config)
    make_anew(cluster, 0)
    cluster.broker.commit_offsets("app", {SOURCE: 1})
    cluster.feed(*[b"c"] * more)
    elsewhere = Host(1)
    with cluster.task(config, host=elsewhere) as task:
        apply(task, cluster.records(1))
        task.commit()
        counted = rows(task)
    with cluster.task(config) as task:
        assert rows(task) == counted
    assert len(cluster.host.aside) == 1


@MECHANISMS
@GUARANTEES
def test_a_store_is_kept_where_it_is_while_nothing_was_committed_to_a_changelog_that_was_made_anew(
    guarantee: Guarantee, settings: dict[str, Any]
) -> None:
    config = StreamsConfig.of({"processing.guarantee": guarantee, **settings})
    cluster = counted_with(config)
    make_anew(cluster, 9)
    cluster.broker.commit_offsets("app", {SOURCE: 3})
    for _ in range(2):
        with pytest.raises(ChangelogLostError, match=f"{CHANGELOG.topic}.* Nothing was changed"):
            cluster.task(config).open()


@GUARANTEES
def test_what_a_running_task_commits_does_not_make_another_changelog_its_own(guarantee: Guarantee) -> None:
    """The new one has so much by then that where it ends does not tell."""
    cluster, config = counted(guarantee), StreamsConfig(processing_guarantee=guarantee)
    with cluster.task(config) as task:
        make_anew(cluster, 9)
        cluster.feed(*[b"a"] * 9)
        apply(task, cluster.records(3))
        task.commit()
    with pytest.raises(ChangelogLostError, match=CHANGELOG.topic):
        cluster.task(config, host=Host(1)).open()


@GUARANTEES
def test_the_changelog_of_a_store_that_is_added_is_none_that_was_made_anew(guarantee: Guarantee) -> None:
    cluster, config = counted(guarantee), StreamsConfig(processing_guarantee=guarantee)
    cluster.topology = pipeline(count_keys, STORE, "added")
    SimLog(cluster.broker).admin().create_topics(cluster.topology.internal_topics(1))
    with cluster.task(config) as task:
        assert rows(task) == {b"a": b"2", b"b": b"1"}
        assert rows(task, "added") == {}


def test_positions_of_earlier_versions_say_nothing_of_changelogs() -> None:
    cluster = counted(Guarantee.EXACTLY_ONCE_V2, in_memory_key_value_store)
    make_anew(cluster, 1)
    inputs_alone = ordinals.note_of_topics(SimLog(cluster.broker).admin().topic_ids([SOURCE.topic]))
    cluster.broker.commit_offsets("app", {SOURCE: 3}, ordinals.note(0, topics=inputs_alone))
    with cluster.task() as task:
        assert rows(task) == {b"0": b"1"}


def test_a_thread_is_told_of_one_that_is_made_anew_under_it() -> None:
    cluster = Cluster(keys=[b"a"])
    application, log = Application.of(cluster.topology), SimLog(cluster.broker)
    thread = StreamThread(application, StreamsConfig(), log, cluster.storage(), cluster.clock, name="t0")
    rest(thread)
    cluster.clock.sleep(INPUTS_S)
    rest(thread)
    make_anew(cluster, 9)
    cluster.clock.sleep(INPUTS_S)
    with pytest.raises(ChangelogLostError, match=rf"since t0 was started: {CHANGELOG.topic}\. "):
        thread.step()
    thread.close()
