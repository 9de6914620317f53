"""Page views counted in tumbling windows: two sub-topologies with a repartition topic between them.

Input, keyed by user: the page that was viewed; with a "!" before it, the page is also cleared of
the window before, or of the one after where the view has an odd number.
The first sub-topology numbers the views of each user and passes them on by page. The second counts them in windows of
30 s of event time, takes records up to 30 s after the end of their window, and keeps windows for 90 s.

Output, keyed by page: null for a cleared window, then the number of the view, the page's windows, newest first, and
windows of several pages, each with the time of its last view: by the number of the view all of them, or those that
start within a size before this one or later, or those of the pages on one side of this one, forward or backward. A
view that comes too late goes to the topic `late`, with the time that it was too late for.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

import scenarios
from scenarios import KEYED, InputRecord, Json, Output, Sample, Serdes, State, Stores
from store.serdes import IntSerde, JsonSerde, StrSerde
from store.state.timestamped import ValueAndTimestamp
from store.state.windowed import LATEST
from store.streams.topology import Context, Topology
from store.types import Record

SIZE_MS = 30_000
GRACE_MS = 30_000
RETENTION_MS = 90_000
VIEWS = "views"
CLOCK = "clock"
COUNTS = "counts"
SERDES: Serdes = (StrSerde(), JsonSerde())


class Rekey:
    """The first sub-topology: from users to pages."""

    def __init__(self, pages: str) -> None:
        self.pages = pages

    def __call__(self, context: Context, record: Record) -> None:
        assert record.key is not None
        if record.value is None:
            return
        views = context.store(VIEWS)
        user = record.key.decode()
        number = (views.get(user) or 0) + 1
        views.put(user, number)
        page = msgspec.json.decode(record.value)
        clears = page.startswith("!")
        context.forward(self.pages, page.lstrip("!").encode(), msgspec.json.encode([number, clears]))


class Count:
    """The second sub-topology: a count for each page and window."""

    def __init__(self, output: str, late: str) -> None:
        self.output = output
        self.late = late

    def __call__(self, context: Context, record: Record) -> None:
        assert record.key is not None
        assert record.value is not None
        clock, counts = context.store(CLOCK), context.store(COUNTS)
        now = max(clock.get("now") or 0, record.timestamp)
        clock.put("now", now)
        start = record.timestamp // SIZE_MS * SIZE_MS
        if start + SIZE_MS + GRACE_MS <= now:
            context.forward(self.late, record.key, b"%d" % now)
            return
        page = record.key.decode()
        number, clears = msgspec.json.decode(record.value)
        before = counts.fetch(page, start) or ValueAndTimestamp(0, 0)
        counts.put(page, ValueAndTimestamp(before.value + 1, max(before.timestamp, record.timestamp)), start)
        if clears and start >= SIZE_MS:
            counts.put(page, None, start + (SIZE_MS if number % 2 else -SIZE_MS))
            context.forward(self.output, record.key, None)
        with counts.backward_fetch(page, 0, LATEST) as own, _several(counts, number, page, start) as several:
            result = [
                number,
                [[at, *count] for at, count in own],
                [[found.key, found.window.start, *count] for found, count in several],
            ]
        context.forward(self.output, record.key, msgspec.json.encode(result))


def _several(counts: Any, number: int, page: str, start: int) -> Any:
    """Windows of several pages."""
    match number % 8:
        case 0:
            return counts.all()
        case 1:
            return counts.backward_all()
        case 2:
            return counts.fetch_all(start - SIZE_MS, start)
        case 3:
            return counts.backward_fetch_all(start - SIZE_MS, start)
        case 4:
            return counts.fetch(None, page, start - SIZE_MS, LATEST)
        case 5:
            return counts.backward_fetch(page, None, 0, start)
        case 6:
            return counts.fetch_range(page, None, start - SIZE_MS, start)
        case _:
            return counts.backward_fetch_range(None, page, 0, LATEST)


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "windowed_counts"
    summary = "Tumbling windows with grace and expiry, counted behind a repartition topic."
    keys = KEYED
    time_step_ms = 15_000
    durations_ms = (SIZE_MS, SIZE_MS + GRACE_MS, RETENTION_MS)

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        pages = f"{application_id}-pages"
        output, late = f"{application_id}-output", f"{application_id}-late"
        counts = stores.window(
            COUNTS, retention_ms=RETENTION_MS, size_ms=SIZE_MS, serdes=SERDES, timestamped=True
        )
        return (
            Topology(
                application_id=application_id,
                sources=(f"{application_id}-input",),
                sinks=(pages,),
                stores=(stores.key_value(VIEWS, serdes=(StrSerde(), IntSerde())),),
                process=Rekey(pages),
            ),
            Topology(
                application_id=application_id,
                sources=(pages,),
                sinks=(output, late),
                stores=(stores.others.key_value(CLOCK, serdes=SERDES), counts),
                process=Count(output, late),
                ordinal=1,
            ),
        )

    def input(self, random: Random) -> Sample:
        page = random.choice(("a", "ann", "anna"))
        clears = "!" if random.random() < 0.25 else ""
        return Sample(random.choice(("u", "v")), None if random.random() < 0.1 else clears + page)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        return self._rekey(state, record) if record.topic == "input" else self._count(state, record)

    def _rekey(self, state: State, record: InputRecord) -> list[Output]:
        if record.value is None:
            return []
        number = state[VIEWS][record.key] = state[VIEWS].get(record.key, 0) + 1
        return [Output("pages", record.value.strip("!"), [number, "!" in record.value])]

    def _count(self, state: State, record: InputRecord) -> list[Output]:
        clock, counts = state[CLOCK], state[COUNTS]
        now = clock["now"] = max(clock.get("now", 0), record.timestamp)
        start = record.timestamp - record.timestamp % SIZE_MS
        if now >= start + SIZE_MS + GRACE_MS:
            return [Output("late", record.key, now)]
        number, clears = record.value
        outputs = []
        count, last = counts.get(record.key, start) or [0, 0]
        counts.put(record.key, [count + 1, max(last, record.timestamp)], start)
        if clears and start > 0:
            counts.put(record.key, None, start - SIZE_MS if number % 2 == 0 else start + SIZE_MS)
            outputs.append(Output("output", record.key, None))
        own = [[at, *value] for at, value in reversed(counts.fetch(record.key, 0, LATEST))]
        first = start - SIZE_MS if number % 8 in (2, 3, 4, 6) else 0
        last = start if number % 8 in (2, 3, 5, 6) else LATEST
        lower = record.key if number % 8 in (5, 6) else None
        upper = record.key if number % 8 in (4, 7) else None
        found = counts.fetch_range(lower, upper, first, last)
        several = [[key, at, *value] for key, at, value in (found[::-1] if number % 2 else found)]
        return [*outputs, Output("output", record.key, [number, own, several])]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and isinstance(record.value, str | None)

    def decode(self, store: str, value: bytes) -> Json:
        if store != VIEWS:
            return super().decode(store, value)
        if len(value) != 8 or value[0] < 0x80:
            raise ValueError(f"{value.hex()} is no number of views")
        return int(value[:1].hex(), 16) % 0x80 << 56 | int(value[1:].hex(), 16)


SCENARIO = Scenario()
