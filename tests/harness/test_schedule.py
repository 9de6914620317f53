"""Schedule files: what is written can be read, and what cannot be used is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.faults import FAULTS, Occasion
from harness.generate import generate
from harness.generate.strategy import schedules
from harness.generate.vocabulary import accepts, sample_of
from harness.replay import check, check_input, replay, simulate
from harness.schedule import (
    MAX_INPUT,
    MAX_TRANSACTION_TIMEOUT_MS,
    MIN_TRANSACTION_TIMEOUT_MS,
    NO_TIME,
    VERSION,
    Edge,
    Input,
    Query,
    QueryKind,
    Runtime,
    Schedule,
    ScheduleError,
    Step,
    decode,
    encode,
    load,
    validate,
)
from harness.verdict import Outcome
from scenarios import InputRecord, Scenario, ScenarioError, load_all
from scenarios.balances import Scenario as Balances
from store.points import Point

SCENARIOS = load_all()
BALANCES = SCENARIOS["balances"]


@given(st.sampled_from(sorted(SCENARIOS)).flatmap(lambda name: schedules(SCENARIOS[name])))
def test_a_schedule_reads_back_as_it_was_written(schedule: Schedule) -> None:
    assert decode(encode(schedule)) == schedule


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_schedule_of_a_campaign_is_one_that_a_file_can_hold(name: str) -> None:
    for index in range(300):
        schedule = generate(SCENARIOS[name], 5, index)
        assert decode(encode(schedule)) == schedule
        check_input(SCENARIOS[name], schedule)


def a_schedule(**fields: str) -> bytes:
    """A file of this version with these fields, given as JSON texts."""
    members = {"version": str(VERSION), "scenario": '"balances"', "partitions": "2", **fields}
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in members.items()) + "}").encode()


def a_step(text: str) -> bytes:
    return a_schedule(steps=f"[{text}]")


UNUSABLE: list[tuple[bytes, str]] = [
    (b"", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b'{"version": 2,\n "scenario": "\xc3\xa4", x}', "not JSON: JSON is malformed: "),
    (b'{"version": 2,\n "scenario": "\xc3\xa4", x}', "(line 2, column 19)"),
    (b"[]", "a schedule is a JSON object, this is list"),
    (b'{"scenario": "balances"}', "no usable version"),
    (b'{"version": true, "scenario": "balances"}', "no usable version"),
    (b'{"version": 0, "scenario": "balances"}', "no usable version"),
    (b'{"version": 3, "scenario": "balances"}', "version 3 is newer than this release"),
    (b'{"version": 2}', "missing required field `scenario`"),
    (a_schedule(colour="1"), "unknown field `colour`; `crashproof format` lists those that there are"),
    (a_schedule(choices="[99, -1]"), "choices[1] is -1, it cannot be negative"),
    (a_schedule(commit_records="1"), "unknown field `commit_records`"),
    (a_schedule(partitions="0"), "partitions is 0, allowed are 1 to 16"),
    (a_schedule(partitions="1000000"), "allowed are 1 to 16"),
    (a_schedule(hosts="9"), "hosts is 9, allowed are 1 to 8"),
    (a_schedule(hosts='"many"'), "Expected `int`, got `str` - at `$.hosts`"),
    (a_schedule(runtime='"flink"'), "there are worker, spark"),
    (a_schedule(settings='{"colour": 1}'), "settings: "),
    (a_schedule(settings='{"commit.records": "many"}'), "settings: commit.records"),
    (a_schedule(settings='{"commit.records": 0}'), "settings: commit.records"),
    (a_schedule(input='[{"partition": 3, "key": "a"}]'), "input[0].partition is 3"),
    (a_schedule(input='[{"partition": 0, "key": "a", "timestamp": -2}]'), "input[0].timestamp is -2"),
    (a_schedule(input='[{"partition": 0, "key": "a", "headers": [["a"]]}]'), "headers"),
    (a_step('{"fault": "explode"}'), "steps[0].fault is 'explode'; there are kill, wipe"),
    (a_step("{}"), "steps[0]: a step has either a fault or a query"),
    (a_step('{"fault": "kill", "query": {"store": "s"}}'), "either a fault or a query"),
    (a_step('{"op": "kill"}'), "unknown field `op`"),
    (a_step('{"fault": "kill", "at": "nowhere"}'), "Invalid enum value 'nowhere'"),
    (a_step('{"fault": "kill", "at": "nowhere"}'), "there are producer_ready"),
    (a_step('{"fault": "kill", "task": 0}'), "Expected `str`, got `int`"),
    (a_step('{"fault": "kill", "task": "0"}'), "a task is named by sub-topology and partition"),
    (a_step('{"fault": "kill", "task": "0_2"}'), "steps[0].task is 0_2, and partitions is 2"),
    (a_step('{"fault": "kill", "wait": -1}'), "steps[0].wait is -1"),
    (a_step('{"fault": "transaction_timeout", "at": "flushed"}'), "transaction_timeout takes no point"),
    (a_step('{"fault": "resume", "call": "flush"}'), "resume takes no call"),
    (a_step('{"fault": "abort_commit", "edge": "before"}'), "abort_commit takes no edge"),
    (a_step('{"fault": "kill", "call": "flush"}'), "call and edge come together"),
    (a_step('{"fault": "kill", "edge": "before"}'), "call and edge come together"),
    (
        a_step('{"fault": "kill", "at": "flushed", "call": "flush", "edge": "after"}'),
        "a point and a call exclude each other",
    ),
    (
        a_step('{"fault": "lose_reply", "call": "flush"}'),
        "steps[0].call is flush, lose_reply lies in wait for commit_transaction",
    ),
    (a_step('{"fault": "kill", "amount": 1}'), "kill takes none"),
    (a_step('{"fault": "transaction_timeout", "amount": -1}'), "takes a positive one"),
    (
        a_step('{"fault": "transaction_timeout", "amount": 1000000000000000000000}'),
        "takes a positive one of at most",
    ),
    (a_step('{"fault": "compact"}'), "compact strikes a topic, name it"),
    (a_step('{"fault": "kill", "topic": "input"}'), "kill takes no topic"),
    (a_step('{"fault": "change_settings"}'), "change_settings needs settings"),
    (a_step('{"fault": "kill", "settings": {"commit.records": 1}}'), "kill takes no settings"),
    (a_step('{"fault": "change_settings", "settings": {"colour": 1}}'), "steps[0].settings: "),
    (
        a_step('{"fault": "change_settings", "settings": {"transaction.timeout.ms": 900001}}'),
        "steps[0].settings: transaction.timeout.ms=900001 is not allowed: at most 900000, the transaction.max.timeout",
    ),
    (
        b'{"version": 2, "scenario": "balances", "settings": {"transaction.timeout.ms": "900001"}}',
        "settings: transaction.timeout.ms='900001' is not allowed: at most 900000",
    ),
    (a_step('{"query": {"store": "s"}, "amount": 1}'), "a query takes task, at and wait alone"),
    (a_step('{"query": {"store": "s", "hold": -1}}'), "steps[0].query.hold is -1"),
    (a_step('{"query": {"store": "s", "bound": -1}}'), "steps[0].query.bound is -1"),
    (a_step('{"query": {"store": "s", "kind": "some"}}'), "there are key, range, all"),
    (a_step('{"query": {}}'), "missing required field `store`"),
]


@pytest.mark.parametrize(("text", "reason"), UNUSABLE)
def test_an_unusable_schedule_is_refused_with_its_name_and_the_reason(text: bytes, reason: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        decode(text, "some.json")
    assert str(caught.value).startswith("some.json: ")
    assert reason in str(caught.value)


def test_a_transaction_timeout_means_nothing_at_least_once_and_may_be_that_of_the_brokers() -> None:
    most = MAX_TRANSACTION_TIMEOUT_MS
    validate(Schedule("balances", settings={"transaction.timeout.ms": most}))
    loose = {"transaction.timeout.ms": most + 1, "processing.guarantee": "at_least_once"}
    validate(Schedule("balances", settings=loose))


def test_a_transaction_that_would_end_before_its_commit_is_refused() -> None:
    least = MIN_TRANSACTION_TIMEOUT_MS
    validate(Schedule("balances", settings={"transaction.timeout.ms": least}))
    loose = {"transaction.timeout.ms": 50, "processing.guarantee": "at_least_once"}
    validate(Schedule("balances", settings=loose))
    with pytest.raises(ScheduleError, match=f"transaction.timeout.ms=50 is not allowed: at least {least}"):
        validate(Schedule("balances", settings={"transaction.timeout.ms": 50}))


def test_more_input_than_a_run_can_take_is_refused() -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1),) * (MAX_INPUT + 1))
    with pytest.raises(ScheduleError, match="number of input records is 10001, allowed are 0 to 10000"):
        decode(encode(schedule))


@pytest.mark.parametrize("given", [5, None, b"{}"])
def test_what_is_neither_a_text_nor_a_path_is_no_schedule(given: Any) -> None:
    with pytest.raises(
        ScheduleError, match=f"{given!r} is no schedule: give its text, or the Path of its file"
    ):
        check(given)


def test_a_scenarios_path_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"'a\\x00\.py' is no path: embedded null byte"):
        check(encode(Schedule("a\0.py")).decode())


@given(st.binary(max_size=300))
def test_no_bytes_make_reading_fail_in_another_way(text: bytes) -> None:
    try:
        decode(text)
    except ScheduleError:
        pass


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"absent\.json: No such file"):
        load(tmp_path / "absent.json")


def test_a_schedule_file_holds_the_version_first_and_leaves_defaults_out() -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1),), (Step("kill", at=Point.FLUSHED),))
    text = encode(schedule).decode()
    assert text.startswith('{\n "version": 2,')
    for name in ("wait", "settings", "timestamp", "headers", "task", "query", "choices"):
        assert name not in text


@pytest.mark.parametrize(
    ("step", "phrase"),
    [
        (Step("kill", task="0_1", at=Point.FLUSHED, wait=2), "kill task 0_1 at flushed after 2 more records"),
        (
            Step("wipe", call=Occasion.FLUSH, edge=Edge.BEFORE, wait=1),
            "wipe task 0_0 before flush after 1 more record",
        ),
        (Step("fail_call", call=Occasion.READ), "fail_call task 0_0 on read"),
        (Step("compact", topic="a-changelog"), "compact a-changelog"),
        (Step("long_absence", amount=5), "long_absence task 0_0 by 5"),
        (
            Step("change_settings", settings={"commit.records": 1}),
            "change_settings task 0_0 commit.records=1",
        ),
        (
            Step(query=Query("accounts", QueryKind.ALL), task="1_0", at=Point.RESTORED),
            "query all of accounts at READ_COMMITTED task 1_0 at restored",
        ),
    ],
)
def test_a_step_reads_as_a_phrase(step: Step, phrase: str) -> None:
    assert str(step) == phrase


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_can_be_written_by_its_name_alone_and_what_it_takes(name: str) -> None:
    fault = FAULTS[name]
    step = Step(
        name,
        topic="input" if fault.on_topics else "",
        settings={"commit.records": 1} if fault.changes_settings else {},
    )
    schedule = Schedule("balances", (), (step,))
    assert decode(encode(schedule)) == schedule


def test_a_byte_order_mark_at_the_beginning_of_a_file_is_no_part_of_it(tmp_path: Path) -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1),))
    file = tmp_path / "marked.json"
    file.write_bytes(b"\xef\xbb\xbf" + encode(schedule))
    assert load(file) == schedule


@pytest.mark.parametrize("value", [True, 1.5, "deposit", [1], {}])
def test_an_input_that_the_scenario_does_not_take_is_refused_before_anything_runs(value: object) -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1), Input(0, "ann", value)))
    reason = r"some\.json: input\[1\]: scenario balances does not take the value .* for key 'ann'"
    with patch("harness.replay.simulate") as run, pytest.raises(ScheduleError, match=reason):
        replay(schedule, "sim", source="some.json")
    run.assert_not_called()
    with pytest.raises(ScheduleError, match=r"input\[1\]"):
        check(encode(schedule).decode())


def test_a_record_without_a_time_is_for_scenarios_that_take_such_alone() -> None:
    items = (Input(0, "a", 1, timestamp=NO_TIME),)
    assert (
        replay(Schedule("dedupe", items, settings=SCENARIOS["dedupe"].settings), "sim")[0].outcome
        is Outcome.HOLDS
    )
    with pytest.raises(ScheduleError, match="does not take"):
        replay(Schedule("balances", items), "sim")


@pytest.mark.filterwarnings("error")
def test_nothing_warns_of_a_deprecated_setting_that_a_schedule_has_drawn() -> None:
    # Configurations are remembered: of one that no other test has.
    settings = {"default.dsl.store": "rocksDB", "commit.records": 7, "poll.records": 11}
    check(encode(Schedule("balances", (Input(0, "ann", 1),), settings=settings)).decode())


@pytest.mark.parametrize("value", [None, "audit", 0, -3])
def test_every_input_that_the_scenario_takes_is_run(value: object) -> None:
    verdict, _ = replay(Schedule("balances", (Input(0, "ann", value),)), "sim")
    assert verdict.outcome is Outcome.HOLDS


def test_a_scenario_that_does_not_say_what_it_takes_takes_everything() -> None:
    with patch.object(type(BALANCES), "accepts", Scenario.accepts):
        check_input(BALANCES, Schedule("balances", (Input(0, "ann", [1]),)))


class _OfThree(Balances):
    """A scenario that knows all of its accounts."""

    def accepts(self, record: InputRecord) -> bool:
        return record.key in ("ann", "bob", "cy") and super().accepts(record)


def test_a_schedule_of_many_keys_has_those_alone_that_the_scenario_takes() -> None:
    scenario = _OfThree()
    for index in range(100):
        check_input(scenario, generate(scenario, 5, index))


@pytest.mark.parametrize(
    ("scenario", "key", "said"),
    [
        ("carts", "", "does not take a record without a key"),
        ("sessions", "\0", "does not take the key of no bytes"),
        ("catalog", "é", "does not take the key 'é'"),
        ("top_k", "a b", "does not take the key 'a b'"),
    ],
)
def test_a_key_that_the_scenario_does_not_take_is_refused(scenario: str, key: str, said: str) -> None:
    there = SCENARIOS[scenario]
    schedule = generate(there, 5, 0)
    odd = replace(schedule, input=(replace(schedule.input[0], key=key),))
    with pytest.raises(ScheduleError, match=said):
        check_input(there, odd)


ODD_KEYS = ("", "\0", " ", "a b", "a\0b", "#", "a#1", "a@1", "é", "\U0001f600", "\n")


@pytest.mark.parametrize("name", SCENARIOS)
def test_odd_keys_that_a_scenario_takes_are_keys_as_any_other(name: str) -> None:
    there = SCENARIOS[name]
    random = Random(5)
    items = []
    for number, sample in enumerate(sample_of(there, random) for _ in range(4 * len(ODD_KEYS))):
        time = (10 + number) * there.time_step_ms if sample.timestamp is None else sample.timestamp
        item = Input(0, sample.key, sample.value, False, sample.topic, time, sample.headers)
        odd = replace(item, key=ODD_KEYS[number // 2 % len(ODD_KEYS)])
        items.append(odd if number % 2 and accepts(there, odd, number) else item)
    schedule = Schedule(
        name,
        tuple(items),
        runtime=Runtime(there.runtimes[0]),
        partitions=there.least_partitions,
        settings=there.settings,
    )
    _, verdict = simulate(there, schedule)
    assert (verdict.outcome, verdict.findings) == (Outcome.HOLDS, ())


def test_a_topic_that_the_scenario_does_not_read_is_refused() -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1, topic="elsewhere"),))
    with pytest.raises(
        ScheduleError, match=r"input\[0\]\.topic is 'elsewhere', scenario balances reads input"
    ):
        check_input(BALANCES, schedule)


def test_a_runtime_that_the_scenario_does_not_run_on_is_refused() -> None:
    with pytest.raises(ScheduleError, match="runtime is spark, scenario enrichment runs on worker"):
        check_input(SCENARIOS["enrichment"], Schedule("enrichment", runtime=Runtime.SPARK))


def test_a_step_for_a_task_that_the_scenario_does_not_have_is_refused() -> None:
    schedule = Schedule("balances", steps=(Step("kill", task="7_0"),))
    with pytest.raises(ScheduleError, match=r"steps\[0\]\.task is 7_0, scenario balances has tasks 0_"):
        check_input(BALANCES, schedule)


@pytest.mark.parametrize(("task", "store"), [("0_0", "nowhere")])
def test_a_query_of_a_store_that_its_task_does_not_have_is_refused(task: str, store: str) -> None:
    schedule = Schedule("balances", steps=(Step(query=Query(store), task=task),))
    with pytest.raises(ScheduleError, match=rf"query\.store is '{store}' of task {task}"):
        check_input(BALANCES, schedule)


@pytest.mark.parametrize("keys", ["[", b".*", None])
def test_keys_that_are_no_regular_expression_of_texts_are_refused(keys: Any) -> None:
    class Wrong(Balances):
        pass

    Wrong.keys = keys
    with pytest.raises(ScenarioError, match="no regular expression"):
        check_input(Wrong(), Schedule("balances", (Input(0, "ann", 1),)))
