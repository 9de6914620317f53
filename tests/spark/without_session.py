"""A query whose Spark session is stopped, or dies, under it, in a process of its own, which has one session.

    python -m tests.spark.without_session DIRECTORY BOOTSTRAP APPLICATION waits|works|dies

Prints what the query ends with. `waits` and `works` say whether there is input after that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from harness.worlds.local.session import spark_session, stop_spark
from store.errors import TaskHostError
from store.log.kafka import KafkaLog
from store.spark import streams
from tests.spark.test_streams import Running, counting
from tests.waiting import LONGEST_S


def main(directory: Path, bootstrap: str, name: str, what: str) -> None:
    running = Running(spark_session(directory), KafkaLog(bootstrap), directory, name)
    query = running.start(counting(running), restarts=1_000)
    running.feed("in", (b"a", b"1"))
    query.process_all_available()
    if what == "dies":
        gateway: Any = running.spark.sparkContext._gateway
        gateway.proc.kill()
    else:
        running.spark.stop()
    if what == "works":
        running.feed("in", (b"b", b"1"))
    try:
        query.await_termination(LONGEST_S)
    except TaskHostError as error:
        sys.stdout.write(str(error))
    query.stop()
    if what != "dies":
        stop_spark()


if __name__ == "__main__":
    # The keeper of the hosts looks soon.
    with patch.object(streams, "LEASE_S", 1.5):
        main(Path(sys.argv[1]), *sys.argv[2:])
