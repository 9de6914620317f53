"""Users joined with their addresses by the DSL: two tables, joined twice.

Input, keyed by user: to `users` and `addresses`, a number, or null for a user or an address that is gone. What has no
key is nobody's.

Output, keyed by user: in `both` the two numbers for whoever has both, in `profiles` for every user, with null for an
address that is not there; null where there is no such pair any more. Each has the later time of the two that it was
made of. With a record cache there is at a commit what a user has come to, and there may be more before it: of one
side's new value and the other side's old one; and a deletion that finds nothing may count for the time, or not.

The order in which records of the two topics come is free. The reference takes them as the task did.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

import scenarios
from scenarios import KEYLESS, InputRecord, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.topology import Topology

USERS, ADDRESSES, BOTH = "users-table", "addresses-table", "both-table"


def pair(user: int, address: int | None) -> list[int | None]:
    return [user, address]


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "profiles"
    summary = "Two tables joined by the DSL, inner and left, with deletions on both sides."
    joins: ClassVar[frozenset[str]] = frozenset({"both", "profiles"})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        users = builder.table(f"{application_id}-users", materialized=Materialized(USERS))
        addresses = builder.table(f"{application_id}-addresses", materialized=Materialized(ADDRESSES))
        both = users.join(addresses, pair, materialized=Materialized(BOTH))
        both.to_stream().to(f"{application_id}-both", value_serde=JsonSerde())
        profiles = users.left_join(addresses, pair)
        profiles.to_stream().to(f"{application_id}-profiles", value_serde=JsonSerde())
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        value = None if random.random() < 0.4 else random.randint(1, 9)
        topic = random.choice(("users", "addresses"))
        return Sample(random.choice(("a", "a", "ann") * 4 + (KEYLESS,)), value, topic=topic)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        key, time = record.key, record.timestamp
        if key == KEYLESS:
            return []
        users, addresses, both = state[USERS], state[ADDRESSES], state[BOTH]
        own, other = (users, addresses) if record.topic == "users" else (addresses, users)
        known = key in own
        if record.value is None:
            own.pop(key, None)
        else:
            own[key] = [record.value, time]
        user, address, partner = users.get(key), addresses.get(key), other.get(key)
        latest = time if partner is None else max(time, partner[1])
        outputs = []
        found = None if user is None or address is None else [user[0], address[0]]
        if partner is not None:
            outputs.append(Output("both", key, found, latest))
        if found is None:
            # Where a cache holds back the deletions of both sides, it is the second one that takes the pair away.
            both.pop(key, None)
        else:
            both[key] = [found, latest]
        if partner is not None or (own is users and (known or user is not None)):
            profile = None if user is None else [user[0], None if address is None else address[0]]
            outputs.append(Output("profiles", key, profile, latest))
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        return record.topic in ("users", "addresses") and (record.value is None or type(record.value) is int)


SCENARIO = Scenario()
