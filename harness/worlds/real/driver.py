"""What a driver of Spark does for schedules, in whichever process it runs: it reports its points, and dies there."""

from __future__ import annotations

from pyspark.cloudpickle import register_pickle_by_value

from harness.worlds.led import At
from harness.worlds.real.attempt import Address, Hello, Line
from scenarios import Scenario, module_of
from store import points
from store.points import Point


class DriverKilledError(Exception):
    """Raised in foreachBatch where the schedule kills Spark's driver."""


def arm_driver(address: Address, token: bytes, name: str) -> None:
    """Have foreachBatch, in this process, report the driver's points under that name, and wait there."""
    line: list[Line] = []

    def reached(point: Point) -> None:
        try:
            if not line:
                line.append(Line(address, token, Hello.of(name)))
            line[0].ask(At(point, None))
        except (EOFError, OSError):
            raise DriverKilledError(f"the schedule kills the driver at {point}") from None

    points.arm(reached)


def send_whole(scenario: Scenario) -> None:
    """Have what a scenario's file defines sent to Spark's Python workers as it is, for these find nothing under the
    name of its module."""
    module = module_of(scenario)
    if module is not None:
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def in_short(error: BaseException) -> str:
    """What Spark says, on one line, without the stack traces of two languages."""
    return " ".join(str(error).split())[:1_000]
