from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recovery.killed import KILLED_IN, NAMES, WINDOWS, KilledTask, rows


@pytest.mark.requirement("844.4")
@pytest.mark.requirement("844.5")
@pytest.mark.requirement("892.11")
@pytest.mark.parametrize("window", WINDOWS)
def test_every_store_type_over_every_mechanism_recovers_from_a_kill_in_every_window_of_a_commit(
    tmp_path: Path, window: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.recovery.killed", str(tmp_path), window],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (-signal.SIGKILL, "")
    task = KilledTask(tmp_path)
    task.open()
    lost = window in WINDOWS[1:3]
    for index, name in enumerate(NAMES):
        result = task.results[name]
        assert rows(task.stores[name]) == task.expected(name), name
        assert (result.set_aside is not None) == name.endswith("-direct"), name
        if not name.endswith("-direct"):
            replayed = lost and not (window == "between two stores" and index <= len(NAMES) // 2)
            assert (result.records > 0) == replayed, name
            assert result.records <= 4, name
    task.process(KILLED_IN + 1)
    for name in NAMES:
        assert rows(task.stores[name]) == task.expected(name), name
    task.close()
    task = KilledTask(tmp_path)
    task.open()
    assert {(result.records, result.set_aside) for result in task.results.values()} == {(0, None)}
    task.close()
