"""What a history of nights shows at a glance: bars per night and world, the numbers behind them, and changed answers.

Must survive: no night, one night, hundreds (the last are drawn), nights that were killed, worlds that came or went, and
hostile text anywhere. Numbers alone decide where a bar stands; whatever is text is escaped by the template.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.night import Change, Night, NightInWorld, Standing, changes
from reports.text import count, visible

MOST_NIGHTS = 60
"""That are drawn."""
MOST_CHANGES = 50
_FEWEST_SLOTS = 14
"""So that the bar of a first night is no wall."""
SLOT, HEIGHT = 10, 40
"""Of a chart, in units of its own: it is drawn as wide as the page has room."""
_LOWEST = 1.5
"""Of a bar that is not nothing."""


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    style: str
    """`holds`, `violated`, `inconclusive`, or `absent` where the world was not run or the night did not end."""
    title: str


@dataclass(frozen=True)
class Chart:
    title: str
    bars: tuple[Bar, ...]
    summary: str
    """What it shows, in words."""


@dataclass(frozen=True)
class WorldTrend:
    world: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Row:
    """One night in one world."""

    night: int
    started: str
    commit: str
    world: str
    standing: str
    schedules: str
    failures: str
    faults: str
    duration: str


@dataclass(frozen=True)
class Trend:
    nights: int
    width: int
    height: int
    worlds: tuple[WorldTrend, ...]
    rows: tuple[Row, ...]
    """The newest first."""
    changes: tuple[Change, ...]
    more_changes: int


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _many(number: float) -> str:
    return f"{number:,.0f}"


_CHARTS: tuple[tuple[str, Callable[[NightInWorld], float], Callable[[float], str]], ...] = (
    ("Schedules", lambda world: world.schedules, _many),
    ("Failing schedules", lambda world: len(world.failures), _many),
    ("Faults met", lambda world: sum(world.faults.values()), _many),
    ("Duration", lambda world: world.seconds, duration),
)


def trend(nights: Sequence[Night], world: str | None = None) -> Trend:
    """The trend of `nights`, the oldest first; of one world alone, if one is named."""
    drawn = nights[-MOST_NIGHTS:]
    names = dict.fromkeys(part.world for night in drawn for part in night.worlds)
    if world is not None:
        names = {world: None}
    slots = max(_FEWEST_SLOTS, len(drawn))
    changed = [change for change in changes(drawn) if change.world in names]
    return Trend(
        len(drawn),
        slots * SLOT,
        HEIGHT,
        tuple(
            WorldTrend(name, tuple(_chart(title, drawn, name, of, say, slots) for title, of, say in _CHARTS))
            for name in names
        ),
        tuple(row for night in reversed(drawn) for row in _rows(night, names)),
        tuple(reversed(changed))[:MOST_CHANGES],
        max(0, len(changed) - MOST_CHANGES),
    )


def _chart(
    title: str,
    nights: Sequence[Night],
    world: str,
    of: Callable[[NightInWorld], float],
    say: Callable[[float], str],
    slots: int,
) -> Chart:
    parts = [next((part for part in night.worlds if part.world == world), None) for night in nights]
    values = [None if part is None or part.standing is Standing.NOT_RUN else of(part) for part in parts]
    known = [value for value in values if value is not None]
    peak = max(known, default=0.0)
    bars = []
    for index, (night, part, value) in enumerate(zip(nights, parts, values, strict=True)):
        x = (slots - len(nights) + index) * SLOT + SLOT * 0.1
        if part is None or value is None:
            said = "not run" if night.finished else "the night did not finish"
            height, style = 1.0, "absent"
        else:
            said = say(value)
            height = max(_LOWEST, value / peak * HEIGHT) if value else 0.0
            style = part.standing.value
        bars.append(
            Bar(
                round(x, 2),
                round(HEIGHT - height, 2),
                SLOT * 0.8,
                round(height, 2),
                style,
                f"Night {night.number}, {night.started}, {night.commit}: {said}",
            )
        )
    if not known:
        summary = "not run in these nights"
    elif not peak:
        summary = "none"
    elif len(known) == 1:
        summary = f"{say(known[0])} in the only night"
    else:
        last = "not run" if values[-1] is None else say(values[-1])
        summary = f"last {last}, most {say(peak)}, least {say(min(known))}"
    return Chart(title, tuple(bars), summary)


def _rows(night: Night, names: dict[str, None]) -> list[Row]:
    if not night.finished:
        return [Row(night.number, night.started, str(night.commit), "", "did not finish", *("–",) * 4)]
    return [
        Row(
            night.number,
            night.started,
            str(night.commit),
            part.world,
            part.standing.value,
            _many(part.schedules),
            _many(len(part.failures)),
            _many(sum(part.faults.values())),
            duration(part.seconds),
        )
        if part.standing is not Standing.NOT_RUN
        else Row(
            night.number,
            night.started,
            str(night.commit),
            part.world,
            part.standing.value,
            *("–",) * 3,
            duration(part.seconds),
        )
        for part in night.worlds
        if part.world in names
    ]


def said(trend: Trend) -> str:
    """How many nights there are, in words."""
    return visible(
        f"{count(trend.nights, 'night')}, the newest at the right." if trend.nights else "No night yet."
    )
