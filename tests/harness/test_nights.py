"""The history of nights: what was written is read, half a night is none, and what is no history is left alone."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.night import Answer, Commit, Night, NightInWorld, Standing, changes
from harness.nights import VERSION, HistoryError, Nights, UnusableError, opened
from harness.verdict import Outcome
from tests.reports import sample_nights
from tests.reports.samples import HOSTILE


def begun(nights: Nights, commit: str = "c0ffee") -> Night:
    return nights.begin(Commit(commit), "0.1.0", "here, 2 processors", 7, "crashproof nightly --seed 7")


def answered(nights: Nights, **answers: Answer) -> Night:
    """A night with one world a keyword."""
    night = begun(nights, f"commit-{len(nights.last(99))}")
    night.worlds = [NightInWorld(name, Standing.HOLDS, answers=[answer]) for name, answer in answers.items()]
    nights.finish(night)
    return night


@pytest.mark.requirement("card.4")
def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "nights.sqlite"
    written = []
    with opened(file) as nights:
        for sample in sample_nights.many(12):
            night = nights.begin(sample.commit, sample.version, sample.machine, 10**40, sample.command)
            if sample.finished:
                night.seconds, night.worlds, night.notes = sample.seconds, sample.worlds, ["a note"]
                nights.finish(night)
            written.append(night)
    with opened(file) as nights:
        assert nights.last(100) == written
        assert nights.last(3) == written[-3:]
    assert [night.number for night in written] == list(range(1, 13))


def test_hostile_texts_are_read_as_they_were_written_but_for_what_utf_8_cannot_hold(tmp_path: Path) -> None:
    kept = [text for text in HOSTILE if text == text.encode("utf-8", "ignore").decode()]
    with opened(tmp_path / "n") as nights:
        night = begun(nights)
        night.worlds = [
            NightInWorld(
                text,
                Standing.VIOLATED,
                faults={text: 1},
                failures=[msgspec.structs.replace(sample_nights.failing(), sentence=text)],
                reasons=[text],
                answers=[Answer(text, Outcome.VIOLATED, (text,), text)],
            )
            for text in kept
        ]
        night.notes = ["lone \ud800 surrogate"]
        nights.finish(night)
        assert nights.last(1) == [msgspec.structs.replace(night, notes=["lone \\ud800 surrogate"])]


def test_a_night_that_did_not_finish_says_so_and_has_no_worlds(tmp_path: Path) -> None:
    with opened(tmp_path / "n") as nights:
        begun(nights)
    with opened(tmp_path / "n") as nights:
        [night] = nights.last(5)
        assert (night.finished, night.worlds) == (False, [])
        assert begun(nights).number == 2


def test_a_night_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    with opened(tmp_path / "n") as nights:
        night = begun(nights)
        night.worlds = [sample_nights.world("sim", 1), sample_nights.world("sim", 2)]
        with pytest.raises(HistoryError, match="could not be written"):
            nights.finish(night)
        [found] = nights.last(5)
        assert (found.finished, found.worlds) == (False, [])
        night.worlds.pop()
        nights.finish(night)
        assert nights.last(5) == [night]


KILLED_WHILE_IT_WRITES = """
import os, signal, sys
from pathlib import Path
from harness.nights import Nights, opened
from tests.reports import sample_nights

written = Nights._write

def write(self, night, position, world):
    written(self, night, position, world)
    if position == 1:
        os.kill(os.getpid(), signal.SIGKILL)

Nights._write = write
with opened(Path(sys.argv[1])) as nights:
    sample = sample_nights.many(1)[0]
    night = nights.begin(sample.commit, sample.version, sample.machine, 7, sample.command)
    night.worlds = sample.worlds
    nights.finish(night)
"""


def test_a_night_that_is_killed_while_it_is_written_is_an_unfinished_one(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED_WHILE_IT_WRITES, str(tmp_path / "n")]
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert answer.returncode == -signal.SIGKILL, answer.stderr
    with opened(tmp_path / "n") as nights:
        [night] = nights.last(5)
        assert (night.number, night.finished, night.worlds) == (1, False, [])
        assert begun(nights).number == 2


def test_a_second_night_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    with opened(tmp_path / "n"):
        with pytest.raises(HistoryError, match="another night"), opened(tmp_path / "n", set_aside=True):
            pass
        with opened(tmp_path / "another"):
            pass
    with opened(tmp_path / "n"):
        pass


def test_an_answer_is_compared_with_the_last_one_in_that_world_however_long_ago(tmp_path: Path) -> None:
    holds, violated = (
        Answer("a", Outcome.HOLDS, digest="1"),
        Answer("a", Outcome.VIOLATED, ("state",), digest="1"),
    )
    with opened(tmp_path / "n") as nights:
        answered(nights, near=holds, far=holds)
        answered(nights, near=holds)
        begun(nights)
        last = answered(nights, near=holds, far=violated)
        [change] = changes([last], nights.answers_before(last.number))
        assert (change.world, change.edited) == ("far", False)
        assert (change.before.night, change.after.night) == (1, 4)
        assert str(change) == (
            "a in far: holds in night 1 at commit-0, violated by state in night 4 at commit-3"
        )
        assert changes(nights.last(9)) == [change]


def test_a_schedule_that_was_edited_is_said_to_be_another_question(tmp_path: Path) -> None:
    with opened(tmp_path / "n") as nights:
        answered(nights, sim=Answer("a", Outcome.VIOLATED, ("state",), digest="1"))
        answered(nights, sim=Answer("a", Outcome.VIOLATED, ("output",), digest="2"))
        [change] = changes(nights.last(9))
    assert change.edited
    assert "the file itself was edited" in str(change)


def test_an_answer_that_is_new_or_stays_is_no_change(tmp_path: Path) -> None:
    with opened(tmp_path / "n") as nights:
        answered(nights, sim=Answer("a", Outcome.INCONCLUSIVE, reason="one reason"))
        answered(nights, sim=Answer("a", Outcome.INCONCLUSIVE, reason="another"))
        answered(nights, sim=Answer("b", Outcome.VIOLATED))
        assert changes(nights.last(9)) == []


def newer(path: Path) -> None:
    with opened(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE addresses (name TEXT)")
    connection.close()


def text(path: Path) -> None:
    path.write_text("night,commit,outcome\n" * 100)


def torn(path: Path) -> None:
    """A history of which pages in the middle are gone."""
    with opened(path) as nights:
        for _ in range(30):
            night = begun(nights)
            night.worlds = sample_nights.many(3)[-1].worlds
            nights.finish(night)
    content = bytearray(path.read_bytes())
    content[4096 : len(content) - 4096] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)


def cut(path: Path) -> None:
    torn(path)
    path.write_bytes(path.read_bytes()[:9_000])


UNUSABLE = {
    newer: "a newer release wrote it",
    foreign: "no history of nights",
    text: "it is damaged",
    torn: "it is damaged",
    cut: "it is damaged",
}


@pytest.mark.parametrize("spoil", UNUSABLE)
def test_a_file_that_cannot_be_used_is_left_as_it_is(spoil: object, tmp_path: Path) -> None:
    file = tmp_path / "nights.sqlite"
    assert callable(spoil)
    spoil(file)
    before = file.read_bytes()
    with pytest.raises(UnusableError) as caught, opened(file):
        pass
    said = str(caught.value)
    assert str(file) in said
    assert UNUSABLE[spoil] in said
    assert "--set-aside" in said
    assert file.read_bytes() == before


@pytest.mark.parametrize("spoil", UNUSABLE)
def test_on_request_it_is_renamed_and_a_new_one_begun(spoil: object, tmp_path: Path) -> None:
    file = tmp_path / "nights.sqlite"
    assert callable(spoil)
    spoil(file)
    (tmp_path / "nights.sqlite.aside-1").write_text("of an earlier time")
    before = file.read_bytes()
    with opened(file, set_aside=True) as nights:
        assert begun(nights).number == 1
    assert (tmp_path / "nights.sqlite.aside-2").read_bytes() == before
    assert (tmp_path / "nights.sqlite.aside-1").read_text() == "of an earlier time"


def test_a_history_that_can_be_used_is_not_set_aside(tmp_path: Path) -> None:
    with opened(tmp_path / "n") as nights:
        begun(nights)
    with opened(tmp_path / "n", set_aside=True) as nights:
        assert len(nights.last(5)) == 1


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="file"), opened(tmp_path / "file" / "nights"):
        pass
    (tmp_path / "directory").mkdir()
    with pytest.raises(HistoryError, match="directory"), opened(tmp_path / "directory"):
        pass


@pytest.mark.parametrize(
    ("standings", "worst", "code"),
    [
        ("holds", "holds", 0),
        ("holds, not run", "not run", 4),
        ("not run, inconclusive, holds", "inconclusive", 3),
        ("not run, inconclusive, violated, holds", "violated", 1),
        ("", "inconclusive", 3),
    ],
)
def test_a_night_is_as_good_as_its_worst_world(standings: str, worst: str, code: int) -> None:
    worlds = [sample_nights.world(name, 1, Standing(name)) for name in filter(None, standings.split(", "))]
    night = sample_nights.night(1, *worlds)
    assert (night.standing.value, night.exit_code) == (worst, code)


def test_a_note_makes_a_night_inconclusive() -> None:
    night = sample_nights.night(1, sample_nights.world("sim", 1))
    night.notes.append("the history could not be written")
    assert night.exit_code == 3
