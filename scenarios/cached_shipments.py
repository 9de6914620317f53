"""`shipments` with tables that have the record cache: what was not forwarded yet may be taken back unseen.

Input, output and what the two sides tell each other are the same. With a cache fewer subscriptions and answers are
made, and which answers are outdated is known by the value that was forwarded last. So a result may be of values that
the tables no longer have, and comes with a later commit than in the reference; in the end it is that of the tables.
None of the two results is kept in a store.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from scenarios import Sample, Stores, shipments
from scenarios.shipments import ANSWERED, ASKED, DEPOTS, JOINS, SHIPMENTS, depot_of, with_town
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.topology import Topology


class Scenario(shipments.Scenario):
    """The pipeline; input and reference are those of `shipments`."""

    name = "cached_shipments"
    summary = "Tables of the DSL with a record cache that are joined by a foreign key, inner and left."
    updates: ClassVar[frozenset[str]] = frozenset()
    settles: ClassVar[frozenset[str]] = frozenset({*JOINS, *ASKED, *ANSWERED})
    settings: ClassVar[Mapping[str, Any]] = {"commit.records": 12}
    """Enough that rows come and go between two commits."""
    keeps_leaving = False

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        values = JsonSerde[Any]()
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=values)
        rows = builder.table(f"{application_id}-shipments", materialized=Materialized(SHIPMENTS))
        depots = builder.table(f"{application_id}-depots", materialized=Materialized(DEPOTS))
        for name, join in (("leaving", rows.join), ("planned", rows.left_join)):
            joined = join(depots, depot_of, with_town, name=name)
            joined.to_stream().to(f"{application_id}-{name}")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        """Of fewer keys, which come and go more often."""
        if random.random() < 0.5:
            town = None if random.random() < 0.5 else random.choice(("Rome", "Bern", ""))
            return Sample(random.choice(("ann", "gus")), town, topic="depots")
        depot = random.choice(("ann", "ann", "gus", None))
        shipment = None if random.random() < 0.2 else {"from": depot, "weight": random.randint(1, 2)}
        return Sample(random.choice(("1", "2")), shipment, topic="shipments")


SCENARIO = Scenario()
