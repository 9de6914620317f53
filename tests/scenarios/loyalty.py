"""A point for each purchase, and a reward for every third one."""

from functools import partial
from random import Random

from scenarios import InputRecord, Output, Sample, Scenario, State, Stores
from store.streams.topology import Context, Topology
from store.types import Record


def reward(rewards: str, context: Context, record: Record) -> None:
    """The code under test: what runs in production."""
    points = context.store("points")
    count = int(points.get(record.key) or 0) + 1
    points.put(record.key, b"%d" % count)
    if count % 3 == 0:
        context.forward(rewards, record.key, b"%d" % count)


class Loyalty(Scenario):
    name = "loyalty"
    summary = "A reward for every third purchase."

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        purchases, rewards = f"{application_id}-purchases", f"{application_id}-rewards"
        points = stores.key_value("points")
        return Topology(application_id, (purchases,), (rewards,), (points,), partial(reward, rewards))

    def input(self, random: Random) -> Sample:
        return Sample(key=random.choice(("ann", "bob")), value=random.randint(1, 99), topic="purchases")

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        """What one record has to change and to bring out, in plain Python."""
        points = state["points"]
        points[record.key] = points.get(record.key, 0) + 1
        rewarded = points[record.key] % 3 == 0
        return [Output("rewards", record.key, points[record.key])] if rewarded else []


SCENARIO = Loyalty()
