"""The table of operators in the documentation names scenarios that there are, and methods of the DSL."""

from __future__ import annotations

import re
from pathlib import Path

from scenarios import load_all
from store.streams.dsl import builder

TABLE = Path(__file__).parent.parent.parent / "docs" / "operators.md"
CLASSES = (
    builder.StreamsBuilder,
    builder.KStream,
    builder.BranchedKStream,
    builder.KGroupedStream,
    builder.WindowedKStream,
    builder.CogroupedKStream,
    builder.KTable,
    builder.KGroupedTable,
)


def rows() -> list[tuple[str, str]]:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")][1:]
    return [(left.strip(), right.strip()) for left, right in (line.strip("|").split("|") for line in lines)]


def test_the_table_names_scenarios_and_methods_that_there_are() -> None:
    assert len(rows()) > 30
    for operators, scenarios in rows():
        names = re.sub(r" \([^)]*\)", "", scenarios).split(", ")
        assert set(names) <= load_all().keys(), scenarios
        for method in re.findall("`([a-z_]+)`", operators + scenarios):
            assert any(hasattr(one, method) for one in CLASSES), method
