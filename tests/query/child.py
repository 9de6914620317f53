"""A reader of another process's store: asks until its standard input ends, and says after each answer how it stands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from threading import Thread

from store.query import open_read_only
from store.state.keyvalue import KeyValueStore
from tests.query.commits import CommittedReader


def main() -> None:
    root, store_name, seed = sys.argv[1:]
    waiting = Thread(target=sys.stdin.read)
    waiting.start()
    with open_read_only(Path(root), "0_0", store_name, KeyValueStore, application_id="app") as store:
        reader = CommittedReader(store, int(seed))
        while waiting.is_alive():
            reader.read()
            sys.stdout.write(json.dumps({"answers": reader.answers, "commits": len(reader.numbers)}) + "\n")
            sys.stdout.flush()
    waiting.join()


if __name__ == "__main__":
    main()
