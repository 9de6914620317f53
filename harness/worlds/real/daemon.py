"""PySpark's daemon, which forks the Python workers, with the imports of an attempt done before: run with `-m`."""

from __future__ import annotations

from pyspark.daemon import manager

import harness.worlds.real.attempt  # noqa: F401 - for those who are forked from here

if __name__ == "__main__":
    manager()
