"""`crashproof relocate` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store.errors import ConfigError
from store.recovery.directory import StateDirectory
from tests.harness.test_cli import crashproof, refused
from tests.recovery.layouts import FORMER, LATTER, everything, make, move, stores

APPLICATION = f"""
from store.streams.topology import Topology

print("a pipeline may print")

class Application:
    def __init__(self, shape):
        self.sub_topologies = tuple(
            Topology("app", ("to-" + ".".join(sorted(stores)),), (), stores, print, ordinal)
            for ordinal, stores in shape.items()
        )

FORMER = Application({dict(FORMER)!r})
LATTER = Application({dict(LATTER)!r})
SEVERAL = LATTER.sub_topologies
ONE = LATTER.sub_topologies[0]
NOTHING = 7
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.py").write_text(APPLICATION)
    make(tmp_path / "state", FORMER)
    return tmp_path


@pytest.mark.requirement("13627.1")
def test_the_plan_says_what_would_move_and_changes_nothing(here: Path) -> None:
    before = everything(here / "state")
    answer = crashproof("relocate", "state", "pipeline.py:LATTER", "--plan", cwd=here)
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert len(lines) == 8
    assert lines[0] == "would move 0_0/a to 2_0/a"
    assert everything(here / "state") == before
    answer = crashproof("relocate", "state", "pipeline:SEVERAL", "--plan", "--json", cwd=here)
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert told["planned"]
    assert told["moves"][0] == {"store": "a", "partition": 0, "source": "0_0/a", "target": "2_0/a"}


@pytest.mark.requirement("13627.1")
def test_without_plan_it_is_done(here: Path) -> None:
    answer = crashproof("relocate", "state", "pipeline.py:LATTER", "--json", cwd=here)
    assert answer.returncode == 0, answer.stderr
    assert len(json.loads(answer.stdout)["moves"]) == 8
    moved = stores(here / "state")
    answer = crashproof("relocate", "state", "pipeline.py:LATTER", cwd=here)
    assert answer.stdout.split() == ["every", "store", "of", "app", "in", "state", "is", "in", "place"]
    assert stores(here / "state") == moved
    assert move(here / "state", LATTER).moves == ()


def test_what_no_sub_topology_references_is_told(here: Path) -> None:
    answer = crashproof("relocate", "state", "pipeline.py:ONE", "--plan", cwd=here)
    assert "left where it is, no sub-topology references it: 0_0/a" in answer.stdout


@pytest.mark.requirement("13627.3")
def test_a_live_process_is_an_obstacle_that_is_named(here: Path) -> None:
    before = everything(here / "state")
    with StateDirectory(here / "state", "app").lock("2_1"):
        answer = crashproof("relocate", "state", "pipeline.py:LATTER", cwd=here)
    refused(answer, 4, "2_1 is locked by process")
    assert everything(here / "state") == before


@pytest.mark.parametrize(
    ("state", "application", "said"),
    [
        ("state", "pipeline.py", "path/to/file.py:ATTRIBUTE"),
        ("state", "absent.py:LATTER", "No such file"),
        ("state", "absent.module:LATTER", "ModuleNotFoundError"),
        ("state", "pipeline.py:ABSENT", "has no ABSENT"),
        ("state", "pipeline.py:NOTHING", "NOTHING is int"),
        ("elsewhere", "pipeline.py:LATTER", "and there is none"),
    ],
)
def test_what_cannot_be_is_refused(here: Path, state: str, application: str, said: str) -> None:
    refused(crashproof("relocate", state, application, cwd=here), 2, said)


def test_a_module_that_ends_the_process_is_refused(here: Path) -> None:
    (here / "ends.py").write_text("raise SystemExit(0)")
    refused(crashproof("relocate", "state", "ends.py:LATTER", cwd=here), 2, "SystemExit")


def test_it_is_where_errors_say_that_it_is(here: Path) -> None:
    with pytest.raises(ConfigError, match="crashproof relocate"):
        move(here / "state", LATTER, automatic=False)
