"""A task that reads several topics takes their records by their times, as far as it was handed them.

In each round it asks all of its inputs. What it processes next is then none that is later than the next one of another
input, and none at all while an input of which there may be more has been used up: its next record may be earlier. Of
equal times that of the first input comes first, so that what is read again comes in the same order. What there was
beyond what it was handed in the round is not asked for, since that depends on how many records it asks for at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from harness.history import Handed, Processed
from harness.oracles.evidence import Evidence
from harness.verdict import Anomaly, Finding
from scenarios import Scenario


def find(evidence: Evidence) -> Iterator[Finding]:
    """The first record that was taken before its time, where that is the one of its topic."""
    if type(evidence.scenario).time_of is not Scenario.time_of:
        return
    rounds: dict[int, dict[str, Handed]] = defaultdict(dict)
    """Incarnation → topic → what it was handed of it last."""
    inputs = [topic for model in evidence.tasks.values() for topic in model.sources.topics]
    places = {topic: number for number, topic in enumerate(dict.fromkeys(inputs))}
    """Topic → its place among the inputs of its sub-topology."""

    def turn(time: int, topic: str) -> tuple[int, int]:
        return time, places.get(topic, 0)

    done: dict[tuple[int, str], int] = {}
    """Incarnation and topic → how many of these it has processed."""
    for index, event in evidence.among(Handed, Processed):
        if isinstance(event, Handed):
            rounds[event.incarnation][event.topic] = event
            done[event.incarnation, event.topic] = 0
            continue
        assert isinstance(event, Processed)
        times = dict(rounds[event.incarnation].get(event.topic, _NOTHING).records)
        if event.offset not in times:
            continue
        done[event.incarnation, event.topic] = list(times).index(event.offset) + 1
        for topic, other in rounds[event.incarnation].items():
            left = other.records[done[event.incarnation, topic] :]
            if topic == event.topic or not (left or other.more):
                continue
            if left and turn(left[0][1], topic) >= turn(times[event.offset], event.topic):
                continue
            before = f"offset {left[0][0]} of time {left[0][1]}" if left else "what comes next"
            yield Finding(
                "order",
                f"Incarnation {event.incarnation} of task {event.task} has processed {event.topic} offset "
                f"{event.offset} of time {times[event.offset]} before {before} of {topic}, which "
                f"{'it had been handed too' if left else 'it had been handed as much of as it had asked for'} "
                f"({evidence.story_before(index, event.task)}).",
                Anomaly.REORDERED,
                task=event.task,
            )
            return


_NOTHING = Handed("", 0, "", (), more=False)
