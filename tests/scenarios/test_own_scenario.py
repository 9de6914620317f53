"""A scenario of a user's own: the file that README.md shows, loaded by its path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from pyspark import cloudpickle

from harness.generate.vocabulary import parts_of
from harness.replay import simulate
from harness.schedule import Input, Schedule
from harness.verdict import Outcome
from harness.worlds.real.driver import send_whole
from scenarios import Scenario, ScenarioError, Stores, load
from tests.scenarios.running import Run, samples

FILE = str(Path(__file__).parent / "loyalty.py")


def test_a_file_of_at_most_forty_lines_is_a_whole_scenario_of_ones_own() -> None:
    assert len(Path(FILE).read_text().splitlines()) <= 40
    run = Run(load(FILE))
    for sample in samples(run.scenario, Random(1), 15):
        run.feed(sample)
    run.drain()
    outputs, rows = run.expected()
    assert {topic: run.visible(topic) for topic in outputs} == outputs
    assert outputs["rewards"]
    assert run.rows() == rows
    assert sum(rows["points"].values()) == 15


def test_the_pipeline_of_a_file_gets_to_a_process_that_has_not_loaded_the_file() -> None:
    scenario = load(FILE)
    send_whole(scenario)
    sent = cloudpickle.dumps(scenario.pipeline("a", Stores()))  # type: ignore[no-untyped-call]
    there = "import pickle, sys; print(pickle.load(sys.stdin.buffer).process.func.__name__)"
    told = subprocess.run([sys.executable, "-c", there], input=sent, capture_output=True, check=False)
    assert told.stdout == b"reward\n", told


def test_a_file_without_a_scenario_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "nothing.py"
    path.write_text("SCENARIO = 5\n")
    with pytest.raises(ScenarioError, match=r"nothing\.py: SCENARIO is int"):
        load(str(path))


def test_a_row_that_a_record_writes_twice_may_be_logged_as_it_was_in_between(tmp_path: Path) -> None:
    path = tmp_path / "fours.py"
    path.write_text(
        """
from functools import partial
from scenarios import Output, Sample, Scenario
from store.streams.topology import Topology

def count(out, context, record):
    counts, totals = context.store("counts"), context.store("totals")
    n, t = int(counts.get(record.key) or 0) + 1, int(totals.get(record.key) or 0) + int(record.value)
    counts.put(record.key, b"%d" % n)
    totals.put(record.key, b"%d" % t)
    if n % 4 == 0:
        counts.delete(record.key)
        totals.delete(record.key)
        context.forward(out, record.key, b"%d" % t)

class Fours(Scenario):
    name = "fours"
    summary = "The sum of every four."
    def pipeline(self, application_id, stores):
        out = f"{application_id}-sums"
        return Topology(application_id, (f"{application_id}-amounts",), (out,),
                        (stores.key_value("counts"), stores.key_value("totals")), partial(count, out))
    def input(self, random):
        return Sample(random.choice("ab"), random.randint(1, 99), topic="amounts")
    def reference(self, state, record):
        counts, totals = state["counts"], state["totals"]
        counts[record.key] = counts.get(record.key, 0) + 1
        totals[record.key] = totals.get(record.key, 0) + record.value
        if counts[record.key] % 4:
            return []
        del counts[record.key]
        return [Output("sums", record.key, totals.pop(record.key))]

SCENARIO = Fours()
"""
    )
    values = (1, 1, 1, 11, 1)
    schedule = Schedule(
        str(path),
        tuple(
            Input(2, "b", value, topic="amounts", timestamp=24_500 * (number == 4))
            for number, value in enumerate(values)
        ),
        partitions=3,
        hosts=1,
        batch_records=1,
        shared=True,
        settings={"statestore.cache.max.bytes": 1400},
    )
    _, verdict = simulate(load(str(path)), schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict


def test_an_error_of_a_scenario_says_in_which_line_of_its_file_it_came_up(tmp_path: Path) -> None:
    lines = Path(FILE).read_text().splitlines()
    wrong = next(number for number, line in enumerate(lines, 1) if "points.get(record.key, 0) + 1" in line)
    lines[wrong - 1] = lines[wrong - 1].replace("record.key, 0", "record.kye, 0")
    (tmp_path / "wrong.py").write_text("\n".join(lines))
    scenario = load(str(tmp_path / "wrong.py"))
    schedule = Schedule(scenario.reference_name, (Input(0, "ann", 1, topic="purchases"),))
    with pytest.raises(ScenarioError, match=rf"no attribute 'kye' \(wrong\.py line {wrong}\)$"):
        simulate(scenario, schedule)


COUNTS = """
from scenarios import Output, Sample, Scenario
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import StreamsBuilder

class Counts(Scenario):
    name = "counts"
    summary = "Counts by the DSL."
    updates = frozenset(UPDATES)
    def pipeline(self, application_id, stores):
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        counts = builder.stream(f"{application_id}-input").group_by_key().count(materialized="counts")
        counts.to_stream().to(f"{application_id}-output", value_serde=JsonSerde())
        return builder.build()
    def input(self, random):
        return Sample("a", 1)
    def reference(self, state, record):
        count, latest = state["counts"].get(record.key, [0, -1])
        state["counts"][record.key] = [count + 1, max(latest, record.timestamp)]
        return [Output("output", record.key, count + 1, max(latest, record.timestamp))]
    def decode(self, store, value):
        return int.from_bytes(value, "big")

SCENARIO = Counts()
"""


def counts(tmp_path: Path, updates: str) -> tuple[Scenario, Schedule]:
    file = tmp_path / "counts.py"
    file.write_text(COUNTS.replace("UPDATES", updates))
    scenario = load(str(file))
    records = tuple(Input(0, "a", 1, timestamp=10 + number) for number in range(3))
    return scenario, Schedule(str(file), records, settings={"statestore.cache.max.bytes": 1_000_000})


def test_a_cached_table_whose_topic_is_not_said_to_get_its_updates_is_thought_of(tmp_path: Path) -> None:
    _, verdict = simulate(*counts(tmp_path, '{"output"}'))
    assert verdict.outcome is Outcome.HOLDS, verdict
    (tmp_path / "said").mkdir()
    _, verdict = simulate(*counts(tmp_path / "said", "()"))
    words = "(if output gets the updates of a cached table, `updates` of the scenario has to name it)"
    assert words in verdict.findings[0].sentence


def test_a_topic_that_nobody_writes_is_not_taken_for_one_with_updates(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="updates names nosuch, and its pipeline writes output"):
        parts_of(counts(tmp_path, '{"nosuch"}')[0])
