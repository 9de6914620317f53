"""The benchmark on Spark measures what it says, and says it. In a process of its own, as Spark has one session each.

A long run, as it starts every side once: `pytest -m long tests/spark/test_bench.py`.
"""

from __future__ import annotations

import io
import subprocess
import sys

import msgspec
import pytest
from rich.console import Console

from harness.bench.quix import QuixUnavailableError, environment
from harness.bench.spark import NATIVE, QUIX, READING, Report
from reports.bench import print_rates

pytestmark = [pytest.mark.xdist_group("spark-bench"), pytest.mark.long]

_TINY = """
import sys, msgspec
from harness.bench.spark import Sizes, measure
report = measure(Sizes(0.0, 2, 400, 200, (1, 2), 2, 3, 1, 1_000, True), lambda name: print(name, file=sys.stderr))
sys.stdout.write(msgspec.json.encode(report).decode())
"""


@pytest.fixture(scope="module")
def report() -> Report:
    done = subprocess.run([sys.executable, "-c", _TINY], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return msgspec.json.decode(done.stdout, type=Report)


def test_each_side_has_a_rate_and_its_ratios(report: Report) -> None:
    rows = {row.name: row for row in report.rows}
    many = "2 partitions, 1,000 keys"
    native, native_of_many = rows[NATIVE], rows[f"{NATIVE}, {many}"]
    quix = rows.get(QUIX)
    assert {NATIVE, READING} < rows.keys()
    assert [name for name in rows if name.startswith("SparkStreams")] == [
        "SparkStreams: DSL count, exactly once",
        "SparkStreams: DSL count, at least once",
        "SparkStreams: processor, exactly once",
        f"SparkStreams: processor, exactly once, {many}",
        f"SparkStreams: DSL count, exactly once, {many}",
    ]
    assert [name for name in rows if name.startswith("worker")] == [
        f"worker: {kind}, exactly once, {partitions}"
        for kind in ("processor", "DSL count")
        for partitions in ("1 partition", "2 partitions")
    ]
    for name, row in rows.items():
        # A budget of nothing is one round.
        assert row.rounds == [row.records_per_second]
        beside = native_of_many if name.endswith(many) else native
        assert row.ratio_native_spark == pytest.approx(row.records_per_second / beside.records_per_second)
        if quix is not None:
            assert row.ratio_quix == pytest.approx(row.records_per_second / quix.records_per_second)


def test_without_quix_streams_its_columns_are_empty_and_the_reason_is_there(report: Report) -> None:
    try:
        environment()
    except QuixUnavailableError:
        assert all(row.ratio_quix is None for row in report.rows)
        assert any("Quix Streams was not measured" in note for note in report.notes)
    else:
        assert report.environment["quixstreams"]


def test_the_figures_beside_the_rates_are_there(report: Report) -> None:
    names = [figure.name for figure in report.figures]
    assert [name.split(" MB")[0].rstrip("0123456789") for name in names[-3:]] == [
        "a task host is killed; until another one has processed a record on its ",
        "peak memory of the first host, which had that by one order",
        "peak memory of one that had ",
    ]
    assert names[:-3] == [
        "DSL count on Spark: time exactly once / at least once",
        f"{NATIVE}: time of 2 partitions, 1,000 keys / 2 partitions",
        "micro-batch of one record, empty foreachBatch: median of 2",
        "micro-batch of one record, SparkStreams: median of 2",
        "what a task with one record adds to a micro-batch",
        "what an open task without news adds to a micro-batch, as one of 18",
        *(
            f"commit of 100 records exactly once: {what}"
            for what in ("median", "95th percentile", "99th percentile", "slowest")
        ),
    ]


def test_it_is_printed_as_a_table(report: Report) -> None:
    out = io.StringIO()
    print_rates(report, Console(file=out, width=118))
    printed = out.getvalue()
    for name in (NATIVE, "/ native Spark", "commit of 100 records exactly once: median"):
        assert name in printed
