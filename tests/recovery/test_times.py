"""The time of a changelog record that is written beside it, and what goes by time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.recovery.times import TIMESTAMP, beside, expires, goes_by_time, needs_own_time, with_own_times
from store.types import Headers, Record


def record(timestamp: int, headers: Headers = ()) -> Record:
    return Record("changelog", 0, 7, b"key", b"value", timestamp, headers)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_a_record_comes_back_with_its_own_time_whatever_the_log_has_given_it(own: int, at: int) -> None:
    assert with_own_times([record(at, beside(own)), record(at)]) == [record(own), record(at)]


def test_a_time_is_written_as_eight_bytes() -> None:
    assert beside(258) == (("timestamp", b"\x00\x00\x00\x00\x00\x00\x01\x02"),)


@pytest.mark.parametrize("headers", [((TIMESTAMP, b"1"),), ((TIMESTAMP, None),), (("other", bytes(8)),)])
def test_headers_of_others_are_not_taken_for_a_time(headers: Headers) -> None:
    assert with_own_times([record(5, headers)]) == [record(5, headers)]


@pytest.mark.parametrize(
    ("config", "removes", "by_time"),
    [
        ({"cleanup.policy": "compact"}, False, False),
        ({"cleanup.policy": "compact", "min.compaction.lag.ms": "0"}, False, False),
        ({"cleanup.policy": "compact", "min.compaction.lag.ms": "7"}, False, True),
        ({"cleanup.policy": "compact,delete"}, True, True),
        ({"cleanup.policy": "compact, delete", "retention.ms": "5"}, True, True),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, True, True),
        ({}, True, True),
    ],
)
def test_what_goes_by_time_is_read_from_a_topics_settings(
    config: dict[str, str], *, removes: bool, by_time: bool
) -> None:
    assert (expires(config), goes_by_time(config)) == (removes, by_time)


@pytest.mark.parametrize(
    ("config", "needed"),
    [
        ({"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}, False),
        ({"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}, True),
        ({"cleanup.policy": "compact"}, True),
        ({"cleanup.policy": "compact,delete", "message.timestamp.type": "CreateTime"}, True),
    ],
)
def test_a_record_has_its_own_time_beside_it_where_the_broker_may_put_another_in_its_place(
    config: dict[str, str], *, needed: bool
) -> None:
    assert needs_own_time(config) == needed
