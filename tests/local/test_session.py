"""The Spark session of a process of its own: it comes up wherever its files are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COUNTS = """
import sys
from pathlib import Path
from harness.worlds.local.session import spark_session, stop_spark
print(spark_session(Path(sys.argv[1])).range(3).count(), flush=True)
stop_spark()
"""


def test_spark_starts_below_a_directory_with_a_space_in_its_path(tmp_path: Path) -> None:
    place = tmp_path / "a b"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", COUNTS, str(place)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
    assert list(place.iterdir()) == []
