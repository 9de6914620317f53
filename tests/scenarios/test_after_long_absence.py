"""What a pipeline makes of rows that cleaning has taken from a changelog is nobody's fault, in none of its stores."""

from __future__ import annotations

from random import Random

import msgspec

import scenarios
from harness.history import Final
from harness.replay import simulate
from harness.schedule import Input, Schedule, Step
from harness.verdict import Outcome
from scenarios import InputRecord, Output, Sample, Serdes, State, Stores
from store.points import Point
from store.serdes import JsonSerde, StrSerde
from store.streams.topology import Context, Topology
from store.types import Record

SERDES: Serdes = (StrSerde(), JsonSerde())
WINDOW_MS = 60_000
DAYS_MS = 10 * 24 * 3_600_000


def rank(context: Context, record: Record) -> None:
    assert record.key is not None
    assert record.value is not None
    counts, ranks = context.store("counts"), context.store("ranks")
    start = record.timestamp // WINDOW_MS * WINDOW_MS
    count = (counts.fetch(record.key.decode(), start) or 0) + 1
    counts.put(record.key.decode(), count, start)
    ranks.put(f"rank {count}", record.key.decode())
    context.forward(f"{context.topic.removesuffix('input')}output", record.key, msgspec.json.encode(count))


class Ranks(scenarios.Scenario):
    """Counts in windows, and a key-value store whose rows are named by them."""

    name = "ranks"
    summary = "A store that is written by what a window store holds."

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        counts = stores.window("counts", retention_ms=2 * WINDOW_MS, size_ms=WINDOW_MS, serdes=SERDES)
        return Topology(
            application_id,
            (f"{application_id}-input",),
            (f"{application_id}-output",),
            (counts, stores.key_value("ranks", serdes=SERDES)),
            rank,
        )

    def input(self, random: Random) -> Sample:
        return Sample("a", random.randint(1, 9))

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        start = record.timestamp // WINDOW_MS * WINDOW_MS
        count = (state["counts"].get(record.key, start) or 0) + 1
        state["counts"].put(record.key, count, start)
        state["ranks"][f"rank {count}"] = record.key
        return [Output("output", record.key, count)]


def test_a_store_that_follows_from_a_window_that_was_lost_is_not_asked_for() -> None:
    away = Step(fault="long_absence", task="0_0", at=Point.KAFKA_COMMITTED, amount=DAYS_MS)
    records = (Input(0, "a", 1, timestamp=30_750), Input(0, "a", 2, timestamp=29_250))
    schedule = Schedule("ranks", records, (away,), hosts=1, batch_records=1, waves=2)
    history, verdict = simulate(Ranks(), schedule)
    assert verdict.outcome is Outcome.HOLDS
    final = history.events[-1]
    assert isinstance(final, Final)
    assert [row.key for row in final.changelogs["ranks"].rows] == ["rank 1", "rank 1"]
