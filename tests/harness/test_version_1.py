"""Schedule files of version 1: their words mean the same now, and they replay as they did.

`version_1.jsonl` holds schedules with a digest of what the release that wrote them did: every protocol point that was
passed, every start, end and skipped step, every state that was observed, the outputs and the group's positions. Those
on Spark have the digests of the release in which task hosts, which stay open, took the place of attempts over rows, and
ten of them of that in which such a host commits at its end what it has passed over, and nothing else has changed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from harness.history import Ended, Event, Final, Reached, Skipped, Started, StateObserved
from harness.replay import simulate
from harness.schedule import ScheduleError, decode, encode
from harness.worlds.actors import is_driver, partition_of
from scenarios import load_all

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parent / "version_1.jsonl").read_text(encoding="utf-8").splitlines()
]


def _task(name: str) -> int:
    return -1 if is_driver(name) else partition_of(name)


def _told(event: Event) -> list[Any] | None:
    """An event as version 1 knew it; None for what it did not know."""
    match event:
        case Reached():
            return ["r", _task(event.task), event.incarnation, event.point]
        case Started():
            return ["s", _task(event.task), event.incarnation, event.host]
        case Skipped():
            return ["k", event.step]
        case Ended():
            return ["e", _task(event.task), event.incarnation, event.reason]
        case StateObserved() if event.incarnation is not None:
            rows = sorted((name, image.rows) for name, image in event.stores.items())
            offsets = sorted(
                (name, image.changelog_offset)
                for name, image in event.stores.items()
                if image.changelog_offset is not None
            )
            return ["o", _task(event.task), event.incarnation, event.moment, rows, offsets]
        case Final():
            outputs = [
                (row.partition, row.offset, row.key, row.value)
                for topic in event.outputs.values()
                for row in topic.rows
            ]
            return [
                "F",
                outputs,
                [[partition, _counted(event, partition)] for partition in sorted(event.group["input"])],
            ]
    return None


def _counted(final: Final, partition: int) -> int:
    """The group's position, or that behind the last record before it: that release passed over no markers."""
    position = final.group["input"][partition]
    offsets = [row.offset for row in final.inputs["input"].rows if row.partition == partition]
    return max([offset + 1 for offset in offsets if offset < position], default=position)


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_a_schedule_of_version_1_replays_as_it_did_when_it_was_written(number: int) -> None:
    recorded = RECORDED[number]
    schedule = decode(json.dumps(recorded["schedule"]).encode())
    history, _ = simulate(load_all()["balances"], schedule)
    told = [each for each in map(_told, history.events) if each is not None]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    assert digest == recorded["digest"]


def test_the_recorded_schedules_have_every_word_of_version_1_but_the_timeout() -> None:
    words = {step["op"] for each in RECORDED for step in each["schedule"].get("steps", ())}
    assert words == {
        *("kill", "wipe", "power", "crash_write", "pause", "resume", "take", "refuse"),
        *("lose_reply", "lose_request", "lag"),
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("power", "power_loss"),
        ("crash_write", "kill_after_write"),
        ("take", "second_incarnation"),
        ("expire", "transaction_timeout"),
        ("refuse", "abort_commit"),
        ("lag", "delay_markers"),
        ("kill", "kill"),
        ("lose_reply", "lose_reply"),
    ],
)
def test_a_word_of_version_1_is_a_fault_of_the_same_meaning(old: str, new: str) -> None:
    (step,) = decode(
        b'{"version": 1, "scenario": "balances", "partitions": 2, "steps": [{"op": "%s", "task": 1, "wait": 2}]}'
        % old.encode()
    ).steps
    assert (step.fault, step.task, step.wait) == (new, "0_1", 2)


def test_the_records_of_a_commit_become_a_setting() -> None:
    assert decode(b'{"version": 1, "scenario": "balances", "commit_records": 7}').settings == {
        "commit.records": 7
    }


def test_what_was_read_as_version_1_is_written_as_the_newest_version_and_reads_back() -> None:
    for recorded in RECORDED:
        schedule = decode(json.dumps(recorded["schedule"]).encode())
        assert decode(encode(schedule)) == schedule
        assert encode(schedule).startswith(b'{\n "version": 2,')


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"version": 1, "scenario": "balances", "steps": [{"op": "explode"}]}', ".fault is 'explode'"),
        (b'{"version": 1, "scenario": "balances", "steps": [{"op": 7}]}', "Expected `str`, got `int`"),
        (b'{"version": 1, "scenario": "balances", "steps": [7]}', "Expected `object`, got `int`"),
        (b'{"version": 1, "scenario": "balances", "commit_records": "many"}', "settings: "),
    ],
)
def test_what_was_malformed_in_version_1_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        decode(text, "old.json")
    assert str(caught.value).startswith("old.json: ")
    assert reason in str(caught.value)
