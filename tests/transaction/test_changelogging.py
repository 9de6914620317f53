from __future__ import annotations

from collections.abc import Callable

import pytest

from store.engine.memory import MemoryEngine
from store.engine.protocol import Family
from store.errors import RetriableError
from store.state import timestamped
from store.transaction import open_transaction
from store.transaction.caching import CachingLayer
from store.transaction.changelogging import ChangeloggingLayer
from store.transaction.protocol import Mechanism, Transaction
from tests.engine.engines import ListJournal
from tests.state.opening import MECHANISMS
from tests.transaction.stacks import Changelog, Time


@pytest.fixture
def changelog() -> Changelog:
    return Changelog()


@pytest.fixture
def layer(changelog: Changelog) -> ChangeloggingLayer:
    return ChangeloggingLayer(open_transaction(MemoryEngine(), Mechanism.INDEXED_BATCH), changelog)


@pytest.mark.requirement("x.2")
def test_every_write_is_logged_as_it_comes_deletions_too(
    layer: ChangeloggingLayer, changelog: Changelog
) -> None:
    for value in (b"1", b"2", None):
        layer.put(b"a", value)
    assert changelog.records == [(b"a", b"1", None), (b"a", b"2", None), (b"a", None, None)]


@pytest.mark.requirement("x.2")
def test_a_write_that_the_changelog_refuses_is_not_kept(
    layer: ChangeloggingLayer, changelog: Changelog
) -> None:
    layer.put(b"a", b"1")
    changelog.refused = {b"a", b"b"}
    for key in (b"a", b"b"):
        with pytest.raises(RetriableError):
            layer.put(key, b"2")
    assert list(layer.scan(None, None)) == [(b"a", b"1")]


def test_what_was_logged_before_a_discard_stays_logged(
    layer: ChangeloggingLayer, changelog: Changelog
) -> None:
    layer.put(b"a", b"1")
    layer.discard()
    assert layer.get(b"a") is None
    assert changelog.keys() == [b"a"]


def test_reads_follow_the_transaction_over_commits_and_discards(layer: ChangeloggingLayer) -> None:
    layer.put(b"a", b"1")
    layer.commit()
    layer.put(b"a", b"2")
    layer.put(b"b", b"2")
    layer.discard()
    layer.put(b"c", b"3")
    assert [layer.get(key) for key in (b"a", b"b", b"c")] == [b"1", None, b"3"]
    assert list(layer.scan(None, None)) == [(b"a", b"1"), (b"c", b"3")]


@pytest.mark.requirement("x.2")
def test_a_row_is_logged_as_its_store_type_has_it_and_with_its_own_time_if_it_has_one(
    changelog: Changelog,
) -> None:
    inner = open_transaction(MemoryEngine(), Mechanism.INDEXED_BATCH)
    layer = ChangeloggingLayer(inner, changelog, timestamped.to_record)
    layer.put(b"a", timestamped.pack(b"1", 70), 9)
    layer.put(b"a", None, 9)
    layer.put(b"a", None)
    assert changelog.records == [(b"a", b"1", 70), (b"a", None, 9), (b"a", None, None)]
    layer.put(b"b", timestamped.pack(b"", -1))
    assert inner.get(b"b") == timestamped.pack(b"", -1)


def _cached(inner: Transaction, _: Changelog) -> Transaction:
    return CachingLayer(inner, 10_000, Time())


def _cached_and_logged(inner: Transaction, changelog: Changelog) -> Transaction:
    return CachingLayer(ChangeloggingLayer(inner, changelog), 10_000, Time())


@pytest.mark.requirement("x.2")
@pytest.mark.parametrize("stacked", [ChangeloggingLayer, _cached, _cached_and_logged])
def test_each_layer_forwards_what_a_commit_adds_what_it_drops_and_whether_it_is_synced(
    stacked: Callable[[Transaction, Changelog], Transaction], changelog: Changelog
) -> None:
    journal = ListJournal()
    engine = MemoryEngine(journal)
    layer = stacked(open_transaction(engine, Mechanism.INDEXED_BATCH), changelog)
    for key in (b"a", b"b", b"c"):
        layer.put(key, b"1")
    layer.commit([(Family.META, b"offset", b"1")])
    assert journal.syncs == 0
    layer.put(b"d", b"1")
    layer.commit([(Family.META, b"offset", b"2")], drop=[(b"a", b"c")], sync=True)
    assert journal.syncs == 1
    assert list(engine.scan(Family.DATA, None, None)) == [(b"c", b"1"), (b"d", b"1")]
    assert engine.get(Family.META, b"offset") == b"2"
    assert layer.approximate_num_keys() == 2


@pytest.mark.requirement("x.2")
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("stacked", [ChangeloggingLayer, _cached, _cached_and_logged])
def test_each_layer_is_as_transactional_as_what_is_under_it(
    stacked: Callable[[Transaction, Changelog], Transaction],
    changelog: Changelog,
    mechanism: Mechanism | None,
) -> None:
    layer = stacked(open_transaction(MemoryEngine(), mechanism), changelog)
    assert layer.transactional() == (mechanism is not None)
    layer.close()


@pytest.mark.parametrize("stacked", [ChangeloggingLayer, _cached, _cached_and_logged])
def test_each_layer_closes_the_transaction_under_it(
    stacked: Callable[[Transaction, Changelog], Transaction], changelog: Changelog
) -> None:
    inner = open_transaction(MemoryEngine(), Mechanism.INDEXED_BATCH)
    layer = stacked(inner, changelog)
    layer.put(b"a", b"1")
    layer.flush_cache()
    layer.put(b"b", b"1")
    assert inner.approximate_num_uncommitted_bytes() > 0
    layer.close()
    assert inner.approximate_num_uncommitted_bytes() == 0
    assert list(layer.scan(None, None)) == []
