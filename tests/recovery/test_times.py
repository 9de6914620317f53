"""The time with which a record goes to a changelog, and what it is put back with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.recovery.times import TIMESTAMP, kept_ms, logged_at, with_own_times
from store.types import Headers, Record

TIMES = st.integers(0, 2**62)


def record(timestamp: int, headers: Headers = ()) -> Record:
    return Record("changelog", 0, 7, b"key", b"value", timestamp, headers)


@given(TIMES, TIMES, st.integers(1, 2**63 - 1))
def test_a_record_comes_back_with_its_own_time_and_is_never_logged_as_older_than_half_of_what_is_kept(
    own: int, now: int, kept: int
) -> None:
    at, headers = logged_at(own, now, kept)
    assert with_own_times([record(at, headers)]) == [record(own)]
    assert 2 * (now - at) <= kept


def test_a_record_that_is_young_enough_is_logged_as_it_is() -> None:
    assert logged_at(50, 100, 100) == (50, ())
    assert logged_at(49, 100, 100) == (100, ((TIMESTAMP, (49).to_bytes(8)),))


def test_a_time_before_all_times_is_left_to_be_refused() -> None:
    assert logged_at(-1, 1_000, 10) == (-1, ())


@pytest.mark.parametrize("headers", [((TIMESTAMP, b"1"),), ((TIMESTAMP, None),), (("other", bytes(8)),)])
def test_headers_of_others_are_not_taken_for_a_time(headers: Headers) -> None:
    assert with_own_times([record(5, headers)]) == [record(5, headers)]


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"cleanup.policy": "compact"}, None),
        ({"cleanup.policy": "compact", "retention.ms": "5"}, None),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5"}, 5),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, None),
        ({"cleanup.policy": "compact", "min.compaction.lag.ms": "7"}, 7),
        ({"cleanup.policy": "compact,delete", "retention.ms": "9", "min.compaction.lag.ms": "7"}, 7),
    ],
)
def test_what_a_topic_keeps_records_for_is_read_from_its_settings(
    config: dict[str, str], kept: int | None
) -> None:
    assert kept_ms(config) == kept
