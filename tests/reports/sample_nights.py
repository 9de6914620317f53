"""Nights as a history hands them over."""

from __future__ import annotations

from harness.night import Answer, Commit, FailingSchedule, Night, NightInWorld, NightResult, Standing, changes
from harness.verdict import Outcome

HOLDS, VIOLATED = Answer("a.json", Outcome.HOLDS), Answer("a.json", Outcome.VIOLATED, ("state",))


def failing(text: str = "lost-deletion", *, kept: bool = False) -> FailingSchedule:
    return FailingSchedule(
        f"{text}.json",
        "state",
        "balances",
        "Store accounts of task 0_0 holds ann = 5, where the model has no ann.",
        f"crashproof replay {text}.json",
        "{}",
        kept,
    )


def world(name: str, number: int, standing: Standing = Standing.HOLDS) -> NightInWorld:
    if standing is Standing.NOT_RUN:
        return NightInWorld(name, standing, 600.0, 0.4, reasons=["no Docker here; start its daemon"])
    answer = VIOLATED if number % 10 == 3 else HOLDS
    if answer is VIOLATED:
        standing = Standing.VIOLATED
    return NightInWorld(
        name,
        standing,
        600.0,
        600.0 + number,
        schedules=12_000 + 37 * number,
        kills=900 + number,
        sigkills=0 if name == "sim" else 90,
        faults={"kill": 700 + 3 * number, "power_loss": 40},
        failures=[failing(kept=answer is VIOLATED)] if standing is Standing.VIOLATED else [],
        reasons=["schedule 7 of balances: shows nothing"] if standing is Standing.INCONCLUSIVE else [],
        answers=[answer],
        report=f"{name}/report.html",
    )


def night(number: int, *worlds: NightInWorld, finished: bool = True) -> Night:
    return Night(
        number=number,
        started=f"2026-{1 + number // 28:02}-{1 + number % 28:02}T02:30:00Z",
        commit=Commit(f"{number:040x}"[::-1], dirty=number % 7 == 0),
        version="0.1.0",
        machine="build-7, x86_64, 2 processors",
        seed=202_601_010_230 + number,
        command=f"crashproof nightly --seed {202_601_010_230 + number}",
        seconds=sum(each.seconds for each in worlds),
        finished=finished,
        worlds=list(worlds),
    )


def many(number: int) -> list[Night]:
    """Nights of all kinds."""
    nights = []
    for index in range(1, number + 1):
        if index % 11 == 5:
            nights.append(night(index, finished=False))
            continue
        first = Standing.VIOLATED if index % 9 == 4 else Standing.HOLDS
        second = Standing.INCONCLUSIVE if index % 8 == 2 else Standing.HOLDS
        third = Standing.NOT_RUN if index % 5 == 0 else Standing.HOLDS
        nights.append(
            night(
                index, world("sim", index, first), world("local", 40 - index, second), world("far", 9, third)
            )
        )
    return nights


def result(nights: list[Night]) -> NightResult:
    """The call that the last of these nights was."""
    last = nights[-1]
    return NightResult(
        last,
        last.standing,
        last.exit_code,
        [change for change in changes(nights) if change.after.night == last.number],
        "out/night.html",
        "out/summary.md",
        "nights.sqlite",
    )
