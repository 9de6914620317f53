"""Which tests of the suite show which rows of requirements: the suite itself is for everybody, and carries no marks."""

from __future__ import annotations

import pytest

SHOWN = {
    "test_a_new_store_is_empty_and_knows_no_offset_and_no_position": "892.4",
    "test_a_number_alone_is_the_offset_in_the_changelog_of_the_store": "844.1",
    "test_recover_discards_and_tells_whether_the_store_has_come_that_far": "844.1",
    "test_recover_is_false_of_an_offset_that_was_never_committed": "844.1",
    "test_what_was_discarded_does_not_come_with_the_next_commit": "844.1",
    "test_what_was_committed_is_there_after_reopening": "892.3",
    "test_a_kill_before_any_line_of_a_commit_leaves_all_of_it_or_nothing": "892.3",
    "test_a_kill_before_any_line_of_a_commit_leaves_no_offset_ahead_of_the_data": "892.3",
    "test_all_offsets_of_a_commit_are_kept": "892.3",
    "test_an_empty_map_of_offsets_leaves_all_as_they_are": "892.3",
    "test_an_offset_of_none_removes_the_one_of_its_partition": "892.3",
    "test_a_partition_that_a_commit_does_not_name_keeps_its_offset": "892.4",
    "test_uncommitted_bytes_are_0_when_fresh_and_after_a_commit_or_discard": "892.5",
}
OVER = {"TestIndexedBatch", "TestSecondary"}
"""The stores that claim all of it; the others are asked for less, and skip what they do not claim."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if not isinstance(item, pytest.Function) or item.cls is None:
        return
    if item.originalname == "test_the_committed_offset_is_none_unless_the_store_keeps_offsets":
        item.add_marker(pytest.mark.requirement("892.4"))
    elif item.originalname in SHOWN and item.cls.__name__ in OVER:
        item.add_marker(pytest.mark.requirement(SHOWN[item.originalname]))
