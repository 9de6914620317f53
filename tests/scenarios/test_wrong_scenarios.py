"""Scenario files that cannot be used: each ends with one sentence and the exit code for that, whatever is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

from harness.campaign import simulate_part
from harness.cli.errors import scenario_code
from harness.generate.vocabulary import parts_of, sample_of
from harness.history import Queried
from harness.oracles import TWO_ANSWERS
from harness.replay import DidNotEndError, bounded, simulate, simulate_all
from harness.schedule import Input, Query, QueryKind, Runtime, Schedule, Step, encode
from harness.verdict import Outcome, Verdict
from scenarios import ScenarioError, decode_held, decode_held_key, load, load_all
from store.points import Point
from store.types import IsolationLevel

BALANCES = (Path(__file__).parents[2] / "scenarios" / "balances.py").read_text()
INPUT = "        account = random.choice("
PIPELINE = "        return Topology("
NAME = '    name = "balances"'


def changed(place: str, instead: str) -> str:
    assert BALANCES.count(place) == 1
    return BALANCES.replace(place, instead + place)


def scenario_file(directory: Path, text: str) -> str:
    file = directory / "wrong.py"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BALANCES + "\nraise SystemExit(0)\n", "cannot be loaded: SystemExit: 0"),
        (BALANCES.replace(NAME, ""), "the scenario's name is None"),
        (BALANCES.replace(NAME, "    name = 5"), "the scenario's name is 5"),
        (BALANCES.replace(NAME, f"{NAME}\n    runtimes = ()"), r"runtimes is \(\)"),
        (BALANCES.replace(NAME, f'{NAME}\n    runtimes = ("flink",)'), "runtimes is"),
        (BALANCES.replace(NAME, f"{NAME}\n    time_step_ms = 0"), "time_step_ms is 0"),
        (BALANCES.replace(NAME, f"{NAME}\n    sliding_ms = -1"), "sliding_ms is -1"),
        (BALANCES.replace(NAME, f'{NAME}\n    durations_ms = ("5",)'), "durations_ms is"),
        (BALANCES.replace(NAME, f"{NAME}\n    durations_ms = (5, -1)"), "durations_ms is"),
        (BALANCES.replace(NAME, f"{NAME}\n    durations_ms = 5"), "durations_ms is 5"),
        (BALANCES.replace(NAME, f"{NAME}\n    edges_ms = (5, -1)"), "edges_ms is"),
        (
            BALANCES.replace(NAME, f'{NAME}\n    updates = "totals"'),
            "updates is 'totals', it has to be a frozenset",
        ),
        (BALANCES.replace(NAME, f"{NAME}\n    retentions_ms = 5"), "retentions_ms is 5"),
        (BALANCES.replace(NAME, f'{NAME}\n    retentions_ms = {{"x": -1}}'), "retentions_ms is {'x': -1}"),
        (BALANCES.replace(NAME, f"{NAME}\n    least_partitions = 0"), "least_partitions is 0"),
        (BALANCES.replace(NAME, f'{NAME}\n    least_partitions = "2"'), "least_partitions is '2'"),
        (BALANCES.replace(NAME, f"{NAME}\n    tick_ms = -1"), "tick_ms is -1"),
        (BALANCES.replace(NAME, f'{NAME}\n    tick_ms = "700"'), "tick_ms is '700'"),
        (BALANCES.replace(NAME, f'{NAME}\n    aborts = "x"'), "aborts is 'x', it has to be True or False"),
        (BALANCES.replace(NAME, f"{NAME}\n    untimed = 3"), "untimed is 3, it has to be True or False"),
        (BALANCES.replace(NAME, f'{NAME}\n    topic_settings = ["input"]'), r"topic_settings is \['input'\]"),
        (
            BALANCES.replace(NAME, f'{NAME}\n    topic_settings = {{"input": {{"retention.ms": 1}}}}'),
            "topic_settings is .* it has to be a mapping of topics to what is configured for each",
        ),
        (BALANCES.replace(NAME, f"{NAME}\n    settings = 5"), "settings is 5"),
        (BALANCES.replace(NAME, f'{NAME}\n    settings = {{"colour": 1}}'), "settings: "),
    ],
)
def test_a_scenario_that_cannot_be_one_is_refused_when_it_is_loaded(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(ScenarioError, match=reason):
        load(scenario_file(tmp_path, text))


@pytest.mark.parametrize(
    ("own", "meant"),
    [
        ("duration_ms = (5,)", "a scenario has no duration_ms, durations_ms may be meant"),
        ('tick = frozenset({"output"})', "a scenario has no tick, ticks may be meant"),
        ("def accept(self, record):\n        return False", "a scenario has no accept, accepts may be meant"),
    ],
)
def test_a_name_that_is_nearly_one_that_a_scenario_can_say_is_refused(
    tmp_path: Path, own: str, meant: str
) -> None:
    with pytest.raises(ScenarioError, match=meant):
        load(scenario_file(tmp_path, BALANCES.replace(NAME, f"{NAME}\n    {own}")))


@pytest.mark.parametrize(
    "own",
    [
        "names = ()",
        "window_ms = 5",
        "def tick(self):\n        return 1",
        "def encode_key(self):\n        return 1",
        "@property\n    def noting(self):\n        raise KeyError(self)",
    ],
)
def test_whatever_else_a_scenario_has_is_its_own(tmp_path: Path, own: str) -> None:
    assert load(scenario_file(tmp_path, BALANCES.replace(NAME, f"{NAME}\n    {own}"))).name == "balances"


def test_what_a_scenario_cannot_be_loaded_for_is_said_with_its_line(tmp_path: Path) -> None:
    line = BALANCES.count("\n") + 2
    with pytest.raises(
        ScenarioError, match=rf"ZeroDivisionError: division by zero \(wrong\.py line {line}\)$"
    ):
        load(scenario_file(tmp_path, f"{BALANCES}\n1 / 0\n"))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("None", "it has to be a Sample"),
        ("Sample(b'x', 1)", "Expected `str`"),
        ("Sample('x', object())", "a schedule cannot hold it"),
        ("Sample('x', float('nan'))", "a schedule cannot hold it"),
        ("Sample('\\ud800', 1)", "a schedule cannot hold it"),
        (
            "Sample('x', 1, topic='nowhere')",
            "one of input, which the pipeline reads; it reads that of a global table where",
        ),
        ("Sample('x', 1, timestamp=-5)", "its timestamp has to be"),
        ("Sample('x', 'y')", "does not take it"),
        ("1 / 0", "raised ZeroDivisionError"),
    ],
)
def test_an_input_record_that_cannot_be_written_is_refused(tmp_path: Path, made: str, reason: str) -> None:
    scenario = load(scenario_file(tmp_path, changed(INPUT, f"        return {made}\n")))
    with pytest.raises(ScenarioError, match=reason):
        sample_of(scenario, Random(0))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("raise KeyError('x')", "does not make its pipeline: KeyError"),
        (
            "return None",
            "its pipeline is None, it has to be a Topology, an Application or several Topologies",
        ),
        ("return ()", "it has to be a Topology, an Application or several Topologies"),
        ("application_id = 'x'", "the application id given is"),
        ("return Topology(application_id, ('x',), (), (), print, ordinal=3)", r"ordinals .* are \[3\]"),
        ("return (Topology(application_id, ('x',), (), (), print),) * 2", r"ordinals .* are \[0, 0\]"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused(tmp_path: Path, made: str, reason: str) -> None:
    scenario = load(scenario_file(tmp_path, changed(PIPELINE, f"        {made}\n")))
    with pytest.raises(ScenarioError, match=reason):
        sample_of(scenario, Random(0))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("return 5", "its reordered pipeline is 5, it has to be an Application or several Topologies"),
        ("raise KeyError('x')", "does not make its reordered pipeline: KeyError: 'x'"),
    ],
)
def test_another_version_of_the_pipeline_that_cannot_run_is_told_from_the_pipeline(
    tmp_path: Path, made: str, reason: str
) -> None:
    text = BALANCES.replace(
        "    def input", f"    def reordered(self, application_id, stores):\n        {made}\n\n    def input"
    )
    with pytest.raises(ScenarioError, match=reason):
        parts_of(load(scenario_file(tmp_path, text)))


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        (
            'behind_caches = {"acounts"}',
            "behind_caches names acounts, and its pipeline has the stores accounts",
        ),
        ('noted = {"accounts"}', "noted names accounts, of which its pipeline has a store"),
        (
            'retentions_ms = {"accounts": 5}',
            "retentions_ms names accounts, and the stores of windows, sessions and versions of its pipeline are none",
        ),
        (
            'topic_settings = {"inputs": {}}',
            "topic_settings names inputs, and its pipeline reads and writes .*input",
        ),
        (
            'topic_settings = {"input": {"retention.mss": "1"}}',
            "topic_settings of input names retention.mss, retention.ms may be meant",
        ),
        ("least_partitions = 17", "least_partitions is 17, and a schedule has at most 16"),
    ],
)
def test_a_name_or_number_that_no_run_can_have_is_refused(
    tmp_path: Path, attribute: str, reason: str
) -> None:
    scenario = load(scenario_file(tmp_path, BALANCES.replace(NAME, f"{NAME}\n    {attribute}")))
    with pytest.raises(ScenarioError, match=reason):
        parts_of(scenario)


def test_settings_of_topics_are_those_that_brokers_know(tmp_path: Path) -> None:
    said = '{"input": {"max.compaction.lag.ms": "1", "retention.bytes": "1", "local.retention.ms": "1"}}'
    text = BALANCES.replace(NAME, f"{NAME}\n    topic_settings = {said}")
    assert parts_of(load(scenario_file(tmp_path, text))).inputs == ("input",)


@pytest.mark.parametrize(
    ("settled", "reason"),
    [
        ("{'outptu': {}}", "names outptu, and its pipeline writes output"),
        ("inputs['nowhere']", "raised KeyError: 'nowhere'"),
    ],
)
def test_what_the_input_comes_to_is_said_of_topics_that_the_pipeline_writes(
    tmp_path: Path, settled: str, reason: str
) -> None:
    text = PAIRS.replace("KEPT", "[record.value, 0]").replace("FORWARDED", "[record.value, 0]")
    text = text.replace("WRITTEN", "value").replace(
        "    def input", f"    def settled(self, inputs):\n        return {settled}\n\n    def input"
    )
    schedule = Schedule("pairs", (Input(0, "ann", 1, timestamp=1),))
    with pytest.raises(ScenarioError, match=f"the settled function of scenario pairs {reason}"):
        simulate(load(scenario_file(tmp_path, text)), schedule)


def test_settings_that_no_broker_would_take_are_refused_by_the_scenarios_name(tmp_path: Path) -> None:
    text = BALANCES.replace(NAME, f'{NAME}\n    settings = {{"transaction.timeout.ms": 1_000_000}}')
    file = scenario_file(tmp_path, text)
    with pytest.raises(
        ScenarioError, match=r"balances: settings: transaction.timeout.ms=1000000 .* at most 900000"
    ):
        simulate_part(file, 0, 0, 1, None)


def test_an_input_record_is_what_its_schedule_file_gives_back(tmp_path: Path) -> None:
    text = changed(INPUT, "        return Sample('x', (1, {2: 3.0}))\n").replace(
        "def accepts", "def accepts_not"
    )
    assert sample_of(load(scenario_file(tmp_path, text)), Random(0)).value == [1, {"2": 3.0}]


RAW = """
from functools import partial
from random import Random

from scenarios import InputRecord, Output, Sample, Scenario, State, Stores
from store.streams.topology import Context, Topology


def keep(context, record):
    context.store("raw").put(record.key, b"\\xff" + record.value)


class Raw(Scenario):
    name = "raw"
    summary = "Keeps what is no JSON."

    def pipeline(self, application_id, stores):
        return Topology(application_id, (f"{application_id}-input",), (), (stores.key_value("raw"),), keep)

    def input(self, random):
        return Sample("ann", random.randint(1, 9))

    def reference(self, state, record):
        state["raw"][record.key] = repr(b"\\xff%d" % record.value)
        return []


SCENARIO = Raw()
"""


def test_a_value_that_a_scenario_does_not_decode_is_shown_as_bytes_to_queries_too(tmp_path: Path) -> None:
    scenario = load(scenario_file(tmp_path, RAW))
    query = Query("raw", QueryKind.ALL, isolation=IsolationLevel.READ_UNCOMMITTED)
    steps = tuple(Step(query=query, at=Point.RECORD_PROCESSED, wait=wait) for wait in (0, 1))
    schedule = Schedule("raw", (Input(0, "ann", 1, timestamp=1), Input(0, "ann", 2, timestamp=2)), steps)
    history, verdict = simulate(scenario, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    assert any(isinstance(event, Queried) and event.rows for event in history.events)


def test_a_store_of_which_the_reference_says_nothing_is_told_so_and_its_bytes_are_quoted_once(
    tmp_path: Path,
) -> None:
    text = RAW.replace('state["raw"][record.key] =', "_ =")
    schedule = Schedule("raw", (Input(0, "ann", 1, timestamp=1),))
    _, verdict = simulate(load(scenario_file(tmp_path, text)), schedule)
    assert (
        "'ann' in store raw of task 0_0 is b'\\xff1' but should not exist after input offset 0: for this input the "
        "reference writes nothing to state['raw'], and each store has a table there"
    ) in verdict.findings[0].sentence


@pytest.mark.parametrize(
    ("key", "timestamped", "hint"),
    [
        ("record.key", False, "; a value has to be JSON, or what decode of the scenario takes ("),
        ("record.key", True, "; a value has to be JSON, or what decode of the scenario takes ("),
        ('b"\\xff"', False, "; a key has to be UTF-8, or what decode_key of the scenario takes ("),
    ],
)
def test_a_row_that_a_scenario_does_not_decode_is_told_with_what_decodes_it(
    tmp_path: Path, key: str, timestamped: bool, hint: str
) -> None:
    value = 'b"\\xff" + record.value'
    if timestamped:
        value = f"ValueAndTimestamp({value}, record.timestamp)"
    text = RAW.replace('put(record.key, b"\\xff" + record.value)', f"put({key}, {value})")
    text = text.replace('key_value("raw")', f'key_value("raw", timestamped={timestamped})')
    text = text.replace('repr(b"\\xff%d" % record.value)', "record.value")
    text = text.replace("class Raw", "from store.state.timestamped import ValueAndTimestamp\n\n\nclass Raw")
    schedule = Schedule("raw", (Input(0, "ann", 1, timestamp=1),))
    _, verdict = simulate(load(scenario_file(tmp_path, text)), schedule)
    assert any(hint in finding.sentence for finding in verdict.findings if finding.oracle == "state")


GROUPED = """
from scenarios import Output, Sample, Scenario
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder


class Grouped(Scenario):
    name = "grouped"
    summary = "How many there are of each value."

    def pipeline(self, application_id, stores):
        b = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        table = b.table(f"{application_id}-input", materialized=Materialized("values"))
        table.group_by(lambda key, value: (value, key), name="by-value").count()
        return b.build()

    def input(self, random):
        return Sample("ann", "x")

    def reference(self, state, record):
        if record.topic != "input":
            comes, goes = record.value
            return []
        state["values"][record.key] = [record.value, record.timestamp]
        return [Output("by-value-repartition", record.value, [record.key, None])]


SCENARIO = Grouped()
"""


def test_who_does_not_name_a_topic_of_changes_is_told_to(tmp_path: Path) -> None:
    schedule = Schedule("grouped", (Input(0, "ann", "x", timestamp=1),))
    with pytest.raises(ScenarioError, match="`changes` of the scenario has to name it"):
        simulate(load(scenario_file(tmp_path, GROUPED)), schedule)


PAIRS = """
from scenarios import Output, Sample, Scenario
from store.streams.topology import Topology


def pair(context, record):
    value = b"[%s,0]" % record.value
    context.store("pairs").put(record.key, value)
    context.forward(context.topic[:-5] + "output", record.key, WRITTEN)


class Pairs(Scenario):
    name = "pairs"
    summary = "A list with each value."

    def pipeline(self, application_id, stores):
        topics = (f"{application_id}-input",), (f"{application_id}-output",)
        return Topology(application_id, *topics, (stores.key_value("pairs"),), pair)

    def input(self, random):
        return Sample("ann", random.randint(1, 9))

    def reference(self, state, record):
        state["pairs"][record.key] = KEPT
        return [Output("output", record.key, FORWARDED)]


SCENARIO = Pairs()
"""


def judged(tmp_path: Path, kept: str, forwarded: str, written: str = "value") -> Verdict:
    text = PAIRS.replace("KEPT", kept).replace("FORWARDED", forwarded).replace("WRITTEN", written)
    schedule = Schedule("pairs", (Input(0, "ann", 1, timestamp=1),))
    return simulate(load(scenario_file(tmp_path, text)), schedule)[1]


def test_a_tuple_of_a_reference_is_the_list_that_json_makes_of_it(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "(record.value, 0)", "(record.value, 0)")
    assert verdict.outcome is Outcome.HOLDS, verdict


@pytest.mark.parametrize(
    ("kept", "forwarded", "where"),
    [
        ("{record.value}", "[record.value, 0]", "has in its tables after"),
        ("[record.value, 0]", "[{record.value}]", "gave for"),
    ],
)
def test_what_json_does_not_have_is_an_error_of_the_reference(
    tmp_path: Path, kept: str, forwarded: str, where: str
) -> None:
    said = (
        rf"the reference function of scenario pairs {where} the record at offset 0 of input-0 what cannot be: "
        r"a value or a part of one is \{1\}, a set"
    )
    with pytest.raises(ScenarioError, match=said):
        judged(tmp_path, kept, forwarded)


@pytest.mark.parametrize(
    ("rest", "wrong"),
    [
        (", '5'", "its timestamp is '5', it has to be a whole number"),
        (", None, [('a', 'b')]", r"its headers are \[\('a', 'b'\)\], they have to be a tuple of pairs"),
        (", None, (('a', b'b'),)", r"its headers are \(\('a', b'b'\),\), they have to be a tuple of pairs"),
        (", None, (), (1,)", "its partitions name 1, those of its topic are from 0 to 0"),
        (", None, (), ('0',)", "its partitions name '0', those of its topic are from 0 to 0"),
        (", None, (), 0", "what cannot be: partitions of an Output have to be a tuple of numbers"),
    ],
)
def test_an_output_that_no_broker_could_have_is_an_error_of_the_reference(
    tmp_path: Path, rest: str, wrong: str
) -> None:
    pair = "[record.value, 0]"
    with pytest.raises(ScenarioError, match=wrong):
        judged(tmp_path, pair, pair + rest)


@pytest.mark.parametrize("key", ["5", "b'ann'", "None", "'\\ud800'"])
def test_an_output_with_a_key_that_is_no_text_is_an_error_of_the_reference(tmp_path: Path, key: str) -> None:
    text = PAIRS.replace("KEPT", "[record.value, 0]").replace("record.key, FORWARDED", f"{key}, [1, 0]")
    scenario = load(scenario_file(tmp_path, text.replace("WRITTEN", "value")))
    with pytest.raises(ScenarioError, match=r"gave an Output to output .* and its key is .* has to be text"):
        simulate(scenario, Schedule("pairs", (Input(0, "ann", 1, timestamp=1),)))


def test_a_row_of_a_table_whose_name_is_no_text_is_an_error_of_the_reference(tmp_path: Path) -> None:
    text = PAIRS.replace('state["pairs"][record.key] = KEPT', 'state["pairs"][5] = [1, 0]')
    text = text.replace("FORWARDED", "[record.value, 0]").replace("WRITTEN", "value")
    schedule = Schedule("pairs", (Input(0, "ann", 1, timestamp=1),))
    with pytest.raises(ScenarioError, match="has a row 5 in its table pairs; names of rows are text"):
        simulate(load(scenario_file(tmp_path, text)), schedule)


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        ("return 'x'", "TypeError: it returned 'x', and has to return a whole number of milliseconds"),
        ("raise KeyError(record)", "KeyError: .*line"),
    ],
)
def test_a_time_that_is_none_is_an_error_of_the_scenario(tmp_path: Path, time: str, reason: str) -> None:
    text = PAIRS.replace("KEPT", "[record.value, 0]").replace("FORWARDED", "[record.value, 0]")
    text = text.replace("WRITTEN", "value").replace(
        "    def input", f"    def time_of(self, state, record):\n        {time}\n\n    def input"
    )
    schedule = Schedule("pairs", (Input(0, "ann", 1, timestamp=1),))
    with pytest.raises(
        ScenarioError, match=f"the time_of function of scenario pairs does not take .*{reason}"
    ):
        simulate(load(scenario_file(tmp_path, text)), schedule)


def test_an_output_that_nobody_can_read_is_said_to_be_that(tmp_path: Path) -> None:
    pair = "[record.value, 0]"
    verdict = judged(tmp_path, pair, pair, "b'gone'")
    assert [finding.sentence.partition(" (")[0] for finding in verdict.findings] == [
        "Topic output has a record that cannot be read, in partition 0 at offset 0, with key b'ann' and value "
        "b'gone': a key has to be UTF-8 and a value JSON, or what decode_output of the scenario takes"
    ]


@pytest.mark.parametrize("value", [b"", b"5", b"\xff", msgspec.msgpack.encode([1, 2, [], None])])
def test_what_is_no_row_of_suppress_is_a_value_error(value: bytes) -> None:
    with pytest.raises(ValueError):
        decode_held(value)


@pytest.mark.parametrize("key", [b"", b"ann", b"\xff" * 9])
def test_what_is_no_key_of_a_window_is_a_value_error(key: bytes) -> None:
    with pytest.raises(ValueError):
        decode_held_key(key)


@pytest.mark.parametrize("function", ["decode", "decode_key"])
def test_decoding_that_raises_anything_but_a_value_error_is_an_error_of_the_scenario(
    tmp_path: Path, function: str
) -> None:
    text = RAW.replace(
        "    def input",
        f"    def {function}(self, store, value):\n        raise KeyError(store)\n\n    def input",
    )
    schedule = Schedule("raw", (Input(0, "ann", 1, timestamp=1),))
    with pytest.raises(ScenarioError, match=f"the {function} function of scenario raw raised KeyError"):
        simulate(load(scenario_file(tmp_path, text)), schedule)


@pytest.mark.parametrize("body", ["raise KeyError(topic)", "return None"])
def test_decoding_of_an_output_that_raises_so_is_an_error_of_the_scenario(tmp_path: Path, body: str) -> None:
    text = PAIRS.replace("KEPT", "[record.value, 0]").replace("FORWARDED", "[record.value, 0]")
    text = text.replace("WRITTEN", "value").replace(
        "    def input", f"    def decode_output(self, topic, key, value):\n        {body}\n\n    def input"
    )
    schedule = Schedule("pairs", (Input(0, "ann", 1, timestamp=1),))
    with pytest.raises(ScenarioError, match=r"the decode_output function of scenario pairs raised .*Error"):
        simulate(load(scenario_file(tmp_path, text)), schedule)


TOWNS = """
from scenarios import Sample, Scenario
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import StreamsBuilder


class Towns(Scenario):
    name = "towns"
    summary = "Orders, and the towns of shops, of which nothing is made."
    runtimes = ("worker", "streams")

    def pipeline(self, application_id, stores):
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        towns = builder.global_table(f"{application_id}-towns", name="towns")
        orders = builder.stream(f"{application_id}-input")
        orders.join_global(towns, lambda key, value: key, lambda value, town: town)
        return builder.build()

    def input(self, random):
        return Sample("ann", 1)

    def reference(self, state, record):
        return []

    def decode(self, store, value):
        raise KeyError(store)


SCENARIO = Towns()
"""


@pytest.mark.parametrize("runtime", [Runtime.WORKER, Runtime.STREAMS])
def test_decoding_that_raises_where_a_pipeline_runs_is_no_error_of_the_pipeline(
    tmp_path: Path, runtime: Runtime
) -> None:
    items = (Input(0, "x", "Oslo", topic="towns"), Input(0, "x", 1))
    with pytest.raises(ScenarioError, match="the decode function of scenario towns raised KeyError"):
        simulate(load(scenario_file(tmp_path, TOWNS)), Schedule("towns", items, runtime=runtime))


def test_what_fails_again_and_again_is_told_once_and_why_comes_first(tmp_path: Path) -> None:
    text = RAW.replace('b"\\xff" + record.value', 'b"1" * 2_000_000')
    schedule = Schedule("raw", (Input(0, "ann", 1, timestamp=1),))
    _, verdict = simulate(load(scenario_file(tmp_path, text)), schedule)
    sentences = [finding.sentence for finding in verdict.findings]
    assert "max.message.bytes" in sentences[0]
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_a_scenario_prints_is_not_mixed_with_the_answer(tmp_path: Path, jobs: str) -> None:
    file = scenario_file(
        tmp_path, RAW.replace("def keep(context, record):", "def keep(context, record):\n    print('here')")
    )
    command = [
        sys.executable,
        "-m",
        "harness.cli",
        "run",
        file,
        "--world",
        "sim",
        "--schedules",
        "1",
        "--json",
    ]
    ran = subprocess.run(
        [*command, "--jobs", jobs, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(ran.stdout)["schedules"] == 1
    assert "here" in ran.stderr


def test_a_reference_that_keeps_something_beside_its_tables_is_said_to_and_nothing_is_violated(
    tmp_path: Path,
) -> None:
    verdict = judged(
        tmp_path, "[record.value, 0]", "[vars(self).setdefault('all', []).append(0), len(self.all)]"
    )
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, TWO_ANSWERS)


def test_a_pipeline_that_looks_at_chance_is_said_to(tmp_path: Path) -> None:
    chance = 'b"\\xff" + random().hex().encode()'
    text = RAW.replace('b"\\xff" + record.value', chance).replace("import Random", "import Random, random")
    part = simulate_part(scenario_file(tmp_path, text), 0, 1, 2, None)
    assert not part.found
    assert "does the pipeline look at a clock or at chance" in part.inconclusive[0]


def test_schedules_before_the_first_one_are_called_by_what_they_are(tmp_path: Path) -> None:
    chance = 'b"\\xff" + random().hex().encode()'
    text = RAW.replace('b"\\xff" + record.value', chance).replace("import Random", "import Random, random")
    text = text.replace('name = "raw"', 'name = "raw"\n    runtimes = ("worker", "streams")')
    part = simulate_part(scenario_file(tmp_path, text), 0, -3, 0, None)
    assert [reason.partition(" of ")[0] for reason in part.inconclusive] == [
        "the introduction",
        "the tour with runtime worker",
        "the tour with runtime streams",
    ]


@pytest.mark.parametrize("place", [INPUT, PIPELINE, "        accounts = context.store(ACCOUNTS)\n"])
def test_a_scenario_that_exits_with_zero_has_not_been_shown_to_hold(tmp_path: Path, place: str) -> None:
    file = scenario_file(tmp_path, changed(place, "        raise SystemExit(0)\n"))
    command = [sys.executable, "-m", "harness.cli", "run", file, "--world", "sim", "--schedules", "1"]
    ran = subprocess.run(
        [*command, "--jobs", "1", "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2, ran
    assert "code of a scenario ended the run with SystemExit" in ran.stderr


def test_what_is_raised_past_all_handlers_is_an_error_of_the_scenario() -> None:
    with pytest.raises(ScenarioError, match="ended the run with GeneratorExit"), scenario_code():
        raise GeneratorExit


def test_an_interrupt_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt), scenario_code():
        raise KeyboardInterrupt


def test_what_does_not_end_is_an_error_of_the_scenario_and_no_violation() -> None:
    with pytest.raises(ScenarioError, match="balances did not end"), bounded(load_all()["balances"], "it"):
        raise DidNotEndError


def test_a_pipeline_that_does_not_end_is_said_to_with_the_line_where_it_was(tmp_path: Path) -> None:
    text = changed(
        "        accounts = context.store(ACCOUNTS)\n", "        while record:\n            pass\n"
    )
    line = text[: text.index("            pass\n")].count("\n") + 1
    scenario = load(scenario_file(tmp_path, text))
    [(_, verdict)] = simulate_all(
        0.2, scenario, [Schedule(scenario.reference_name, (Input(0, "ann", 1, timestamp=1),))]
    )
    found = re.search(r"\(wrong\.py line (\d+)\)", verdict.findings[0].sentence)
    assert found is not None
    assert int(found[1]) in (line - 1, line)


def test_a_scenario_that_ends_its_process_is_said_to_have_done_that_or_the_machine(tmp_path: Path) -> None:
    text = changed("        accounts = context.store(ACCOUNTS)\n", "        os._exit(1)\n")
    file = scenario_file(tmp_path, text.replace("from random import", "import os\nfrom random import"))
    command = [sys.executable, "-m", "harness.cli", "run", file, "--world", "sim", "--schedules", "40"]
    ran = subprocess.run(
        [*command, "--jobs", "2", "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 3, ran
    assert "code of a scenario has ended it, as os._exit does, or the machine was out of memory" in ran.stderr


@pytest.mark.parametrize("command", ["run", "replay"])
def test_a_scenario_that_ends_the_command_itself_is_not_said_to_hold(command: str, tmp_path: Path) -> None:
    text = changed("        accounts = context.store(ACCOUNTS)\n", "        os._exit(0)\n")
    file = scenario_file(tmp_path, text.replace("from random import", "import os\nfrom random import"))
    schedule = tmp_path / "schedule.json"
    schedule.write_bytes(encode(Schedule(Path(file).name, (Input(0, "ann", 1, timestamp=1),))))
    words = {
        "run": [file, "--world", "sim", "--schedules", "4", "--jobs", "1", "--out", str(tmp_path / "out")],
        "replay": [str(schedule)],
    }
    ran = subprocess.run(
        [sys.executable, "-m", "harness.cli", command, *words[command]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 3, ran
    assert "code of a scenario has ended the process by os._exit, so nothing is known" in ran.stderr
