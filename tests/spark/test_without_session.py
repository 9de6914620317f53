"""The Spark session is stopped under a running query, or its JVM dies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from store.log.kafka import KafkaLog
from tests.waiting import LONGEST_S

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.long
@pytest.mark.parametrize("what", ["waits", "works", "dies"])
def test_a_query_whose_session_is_stopped_ends_and_says_so(
    what: str, log: KafkaLog, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.spark.without_session"),
            *(str(tmp_path), log.bootstrap, unique("stopped"), what),
        ],
        capture_output=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert "the Spark session was stopped under the query" in ended.stdout.decode(), ended.stderr.decode()[
        -4000:
    ]
