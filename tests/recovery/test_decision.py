"""The decision about a store that was found, rule by rule, over facts written down."""

from __future__ import annotations

from typing import Any

import pytest

from store.engine.protocol import Checkpointed
from store.errors import ChangelogLostError
from store.log.protocol import Offsets
from store.recovery.decision import (
    Action,
    Known,
    OffsetKeeping,
    Origin,
    StoreOutOfStepError,
    decide,
    origin,
)
from store.types import TopicPartition

DAY = 86_400_000
NOW = 100 * DAY
AT_9 = Checkpointed(9, NOW)


def known(**facts: Any) -> Known:
    """A store at offset 9 of a log with 20 offsets, up to date a moment ago; but for `facts`."""
    return Known(
        **{
            "store": "orders",
            "partition": TopicPartition("app-orders-changelog", 0),
            "held": AT_9,
            "stable": Offsets(0, 20),
            "end": lambda: 20,
            "now_ms": NOW,
            "tombstone_retention_ms": lambda: DAY,
            **facts,
        }
    )


@pytest.mark.parametrize(
    ("facts", "action", "start", "reason"),
    [
        ({}, Action.CONTINUE, 10, "no deletion between can be gone"),
        ({"read_to": 15}, Action.CONTINUE, 15, "offset 9"),
        ({"held": None}, Action.CONTINUE, 0, "holds nothing"),
        ({"held": None, "stable": Offsets(5, 20)}, Action.CONTINUE, 5, "holds nothing"),
        ({"held": None, "read_to": 21}, Action.CONTINUE, 0, "holds nothing"),
        ({"held": None, "strange": lambda: True}, Action.REBUILD, 0, "data but no offset of app-orders"),
        ({"held": Checkpointed(19, None)}, Action.CONTINUE, 20, "where app-orders-changelog-0 ends"),
        ({"held": Checkpointed(18, None)}, Action.CONTINUE, 19, "where app-orders-changelog-0 ends"),
        ({"held": Checkpointed(17, None)}, Action.REBUILD, 0, "does not say since when"),
        ({"held": Checkpointed(9, NOW - DAY // 2)}, Action.CONTINUE, 10, "no deletion"),
        ({"held": Checkpointed(9, NOW - DAY // 2 - 1)}, Action.REBUILD, 0, "43200 s, half of"),
        (
            {"held": Checkpointed(9, NOW - 999), "tombstone_retention_ms": lambda: 100},
            Action.CONTINUE,
            10,
            "no deletion",
        ),
        (
            {"held": Checkpointed(9, NOW - 1_000), "tombstone_retention_ms": lambda: 100},
            Action.REBUILD,
            0,
            "after 0.05 s",
        ),
        ({"held": Checkpointed(9, NOW + DAY)}, Action.REBUILD, 0, "compacted away"),
        (
            {"held": Checkpointed(9), "tombstone_retention_ms": lambda: None},
            Action.CONTINUE,
            10,
            "not compacted",
        ),
        ({"stable": Offsets(10, 20)}, Action.CONTINUE, 10, "no deletion"),
        ({"stable": Offsets(11, 20)}, Action.REBUILD, 0, "records between are gone"),
        (
            {"stable": Offsets(11, 11), "exactly_once": True},
            Action.CONTINUE,
            11,
            "before that expired",
        ),
        ({"stable": Offsets(11, 11)}, Action.REBUILD, 0, "records between are gone"),
        ({"stable": Offsets(12, 12), "exactly_once": True}, Action.REBUILD, 0, "records between are gone"),
        ({"stable": Offsets(11, 12), "exactly_once": True}, Action.REBUILD, 0, "records between are gone"),
        (
            {"stable": Offsets(12, 14), "exactly_once": True, "last_logged": lambda: 9},
            Action.CONTINUE,
            12,
            "were of no commit",
        ),
        (
            {"stable": Offsets(12, 14), "exactly_once": True, "last_logged": lambda: 10},
            Action.REBUILD,
            0,
            "records between are gone",
        ),
        (
            {"stable": Offsets(12, 14), "last_logged": lambda: 9},
            Action.REBUILD,
            0,
            "records between are gone",
        ),
        ({"stable": Offsets(0, 9)}, Action.WAIT, 10, "not visible yet"),
        ({"stable": Offsets(0, 9), "end": lambda: 10}, Action.WAIT, 10, "not visible yet"),
        ({"stable": Offsets(0, 9), "end": lambda: 9}, Action.REFUSE, 0, "made anew, or truncated"),
        ({"stable": Offsets(0, 9), "end": lambda: 9, "changelog": False}, Action.REBUILD, 0, "made anew"),
        ({"read_to": 25}, Action.REFUSE, 0, "made anew, or truncated"),
    ],
)
def test_what_is_done_follows_from_what_is_known(
    facts: dict[str, Any], action: Action, start: int, reason: str
) -> None:
    decision = decide(known(**facts))
    assert (decision.action, decision.start) == (action, start)
    assert reason in decision.reason


def test_the_settings_of_the_topic_are_only_asked_for_when_the_store_lacks_records() -> None:
    def never() -> int:
        raise AssertionError("nobody needs it")

    assert decide(known(held=Checkpointed(19), tombstone_retention_ms=never)).action is Action.CONTINUE


def test_a_rebuild_and_a_refusal_are_raised_as_different_errors() -> None:
    with pytest.raises(StoreOutOfStepError):
        decide(known(stable=Offsets(11, 20))).first_offset()
    with pytest.raises(ChangelogLostError):
        decide(known(stable=Offsets(0, 9), end=lambda: 9)).first_offset()


OWN, CHECKPOINTED, DIRECT, VOLATILE = OffsetKeeping


@pytest.mark.parametrize(
    ("keeping", "facts", "found"),
    [
        (OWN, {"own": True}, Origin.STORE),
        (OWN, {"own": True, "entry": AT_9}, Origin.STORE),
        (OWN, {"entry": AT_9}, Origin.ENTRY),
        (OWN, {"entry": AT_9._replace(exact=False), "exactly_once": False}, Origin.NONE),
        (CHECKPOINTED, {"entry": AT_9}, Origin.ENTRY),
        (CHECKPOINTED, {"entry": AT_9, "recovers": lambda offset: offset < 9}, Origin.NONE),
        (CHECKPOINTED, {}, Origin.NONE),
        (DIRECT, {"entry": AT_9}, Origin.ENTRY),
        (DIRECT, {"entry": AT_9, "recovers": lambda offset: offset < 9}, Origin.ENTRY),
        (DIRECT, {"entry": AT_9, "empty": lambda: True}, Origin.NONE),
        (DIRECT, {"entry": AT_9._replace(exact=False)}, Origin.NONE),
        (DIRECT, {"entry": AT_9._replace(exact=False), "exactly_once": False}, Origin.ENTRY),
        (DIRECT, {"entry": AT_9, "inherited": True}, Origin.INHERITED),
        (VOLATILE, {"entry": AT_9}, Origin.NONE),
    ],
)
def test_which_offset_is_believed_follows_from_how_it_is_kept(
    keeping: OffsetKeeping, facts: dict[str, Any], found: Origin
) -> None:
    given: dict[str, Any] = {
        "own": False,
        "entry": None,
        "empty": lambda: False,
        "exactly_once": True,
        **facts,
    }
    assert origin(keeping, **given)[0] is found
