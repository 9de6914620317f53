"""A Kafka count application of Quix Streams, measured in a Python environment of its own.

Runs as a script there and imports nothing of this project. Its argument is a JSON object, its answer the seconds from
the first record behind the warm part to the commit of the last.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from typing import Any

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)


def main() -> None:
    from quixstreams import Application  # type: ignore[import-not-found]
    from quixstreams.checkpointing import Checkpoint  # type: ignore[import-not-found]

    asked = json.loads(sys.argv[1])
    app = Application(
        broker_address=asked["bootstrap"],
        consumer_group=asked["application_id"],
        processing_guarantee="exactly-once",
        commit_interval=asked["commit_ms"] / 1000,
        auto_offset_reset="earliest",
        state_dir=asked["directory"],
        loglevel="ERROR",
    )
    source = app.topic(asked["source"], key_deserializer="bytes", value_deserializer="bytes")
    sink = app.topic(asked["sink"], key_serializer="bytes", value_serializer="bytes")
    warm, everything = asked["warm"], asked["warm"] + asked["records"]
    seen = 0
    began = committed = 0.0

    def count(_: bytes, state: Any) -> bytes:
        nonlocal seen, began
        if seen == warm:
            began = time.perf_counter()
        seen += 1
        if seen == everything:
            app.stop()
        new = state.get("count", 0) + 1
        state.set("count", new)
        return b"%d" % new

    commit = Checkpoint.commit

    def commit_timed(*args: Any, **kwargs: Any) -> None:
        nonlocal committed
        commit(*args, **kwargs)
        committed = time.perf_counter()

    Checkpoint.commit = commit_timed
    app.dataframe(source).apply(count, stateful=True).to_topic(sink)
    app.run()
    if seen != everything:
        raise AssertionError(f"{seen} of {everything} records were processed")
    print(json.dumps(committed - began))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
