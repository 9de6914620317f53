"""Of what has come of several inputs the earliest is processed first."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from store.streams.arrivals import in_time
from store.streams.dsl import StreamsBuilder
from store.types import Record
from tests.streams.dsl.running import driver, output, pipe


def record(topic: str, offset: int, time: int) -> Record:
    return Record(topic, 0, offset, None, None, time)


def by_hand(inputs: list[list[Record]]) -> list[Record]:
    waiting = [list(records) for records in inputs]
    taken = []
    while any(waiting):
        first = min((one for one in waiting if one), key=lambda records: records[0].timestamp)
        taken.append(first.pop(0))
    return taken


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=4))
def test_inputs_are_taken_by_the_times_of_their_next_records(times: list[list[int]]) -> None:
    inputs = [
        [record(f"t{number}", offset, time) for offset, time in enumerate(of_one)]
        for number, of_one in enumerate(times)
    ]
    runs = list(in_time(inputs))
    assert [one for run in runs for one in run] == by_hand(inputs)
    assert all(run and len({one.topic for one in run}) == 1 for run in runs)
    assert all(one[0].topic != two[0].topic for one, two in pairwise(runs))


def test_after_a_crash_a_backlog_of_two_inputs_is_read_by_time() -> None:
    def looking_up(made: StreamsBuilder) -> None:
        made.stream("clicks").join_table(made.table("users"), lambda click, user: [click, user]).to("out")

    with driver(looking_up, auto_commit=False) as running:
        pipe(running, [("clicks", "k", "second", 2), ("users", "k", "ann", 1), ("users", "k", "bob", 3)])
        running.crash()
        running.process()
        running.commit()
        assert output(running) == [("k", ["second", "ann"], 2)]
