"""One run of `bank_transfers` on Spark in which task hosts, executors and the driver are killed over and over.

`python -m harness.bench.kills [--world containers] [--kills 200] [--seed 1]` builds the schedule, runs it, judges it,
and prints how many of each died. The local world has no executors apart from its driver, so there all but drivers are
task hosts. Exit codes are those of `crashproof run`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from random import Random
from typing import Annotated

import typer

from harness.history import Injected
from harness.oracles import judge
from harness.schedule import Input, Runtime, Schedule, Step
from harness.verdict import Outcome
from harness.worlds import WORLDS, Options
from scenarios.bank_transfers import SCENARIO
from store.points import Point

OPENING = (Point.PRODUCER_READY, Point.RESTORED)
POINTS = (
    Point.TRANSACTION_BEGUN,
    Point.RECORD_PROCESSED,
    Point.COMMIT_STARTED,
    Point.FLUSHED,
    Point.OFFSETS_SENT,
    Point.KAFKA_COMMITTED,
    Point.STORE_COMMITTED,
    Point.CHECKPOINT_WRITTEN,
)
"""Where task hosts are killed, and executors with them: in every phase of a transaction, and while their successors
open the task."""

DRIVERS, EXECUTORS = 25, 6
"""One kill in so many is that of the driver, or of an executor."""

RECORDS_PER_KILL = 16


def schedule(kills: int, seed: int, *, executors: bool) -> Schedule:
    """Transfers enough for that many kills, spread over both sub-topologies and both partitions."""
    random = Random(seed)
    items = []
    for number in range(kills * RECORDS_PER_KILL):
        sample = SCENARIO.input(random)
        items.append(Input(number % 2, sample.key, sample.value))
    steps = []
    for number in range(1, kills + 1):
        # The queries of the sub-topologies run one after the other, and steps come in their order.
        ordinal = int(number > kills // 2)
        if number % DRIVERS == 0:
            point = random.choice((Point.BATCH_PLANNED, Point.BATCH_APPLIED))
            steps.append(Step("kill", task=f"{ordinal}_0", at=point))
        else:
            fault = "kill_executor" if executors and number % EXECUTORS == 0 else "kill"
            # Of two kills in a row, the second strikes the successor of the first.
            points = POINTS if number % 2 else (*POINTS, *OPENING)
            steps.append(Step(fault, task=f"{ordinal}_{(number - 1) // 2 % 2}", at=random.choice(points)))
    return Schedule(
        SCENARIO.name,
        tuple(items),
        tuple(steps),
        Runtime.SPARK,
        partitions=2,
        batch_records=4,
        settings={"commit.records": 2},
    )


def main(
    world: Annotated[str, typer.Option(help="local or containers")] = "containers",
    kills: Annotated[int, typer.Option(min=1)] = 200,
    seed: int = 1,
) -> None:
    """Kill, judge, count."""
    plan = schedule(kills, seed, executors=world == "containers")
    with WORLDS[world].open(Options()) as running:
        typer.echo(f"{kills} kills in {world}: running", err=True)
        began = time.monotonic()
        history = running.run(SCENARIO, plan)
        seconds = time.monotonic() - began
    verdict = judge(SCENARIO, plan, history)
    struck = Counter(
        "driver" if (event.task or "").startswith("driver") else event.fault
        for event in history.events
        if isinstance(event, Injected)
    )
    typer.echo(
        json.dumps(
            {
                "verdict": verdict.outcome,
                "reason": verdict.reason,
                "findings": [finding.sentence for finding in verdict.findings],
                "transfers": sum(item.value is not None for item in plan.input),
                "asked": kills,
                "struck": dict(struck),
                "seconds": round(seconds, 1),
                "seed": seed,
                "world": world,
            }
        )
    )
    raise SystemExit({Outcome.HOLDS: 0, Outcome.VIOLATED: 1}.get(verdict.outcome, 3))


if __name__ == "__main__":
    typer.run(main)
