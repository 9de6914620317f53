"""Copies of open databases, which change in the background while they are made."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from store.engine.image import copy_running


@pytest.fixture
def running(tmp_path: Path) -> Path:
    (tmp_path / "running").mkdir()
    for name in ("1.sst", "LOCK"):
        (tmp_path / "running" / name).write_bytes(b"")
    return tmp_path / "running"


def test_a_copy_during_which_a_file_comes_and_another_goes_is_made_again(
    running: Path, tmp_path: Path
) -> None:
    real, calls = shutil.copytree, []

    def copytree(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        calls.append(args)
        if len(calls) == 1:
            (running / "1.sst").rename(running / "2.sst")

    with patch("shutil.copytree", copytree):
        copy_running(running, tmp_path / "copy")
    assert [file.name for file in (tmp_path / "copy").iterdir()] == ["2.sst"]


def test_a_file_that_is_gone_when_it_is_its_turn_is_no_error(running: Path, tmp_path: Path) -> None:
    real, gone = shutil.copy2, list[Any]()

    def copy2(source: Any, *args: Any, **kwargs: Any) -> Any:
        if not gone:
            gone.append(source)
            (running / "1.sst").rename(running / "2.sst")
        return real(source, *args, **kwargs)

    with patch("shutil.copytree", partial(shutil.copytree, copy_function=copy2)):
        copy_running(running, tmp_path / "copy")
    assert [file.name for file in (tmp_path / "copy").iterdir()] == ["2.sst"]
