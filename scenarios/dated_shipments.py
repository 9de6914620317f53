"""`shipments` with versioned tables: an update that comes late is not the value of now.

Input, output and what the two sides tell each other are those of `shipments`, but both topics are out of order. An
update that is older than the latest one of its key, or one that deletes it, is kept and told nobody. One that is older
than its table goes back, 24 s for shipments and 30 h for depots, leads to nothing at all: the table goes by the largest
time of its partition, so that may be so of a key's first update too.

`leaving` joins the two versioned tables. `planned` joins the shipments with a table without versions that is made of
the depots, the towns in capital letters: it has each update that the depots have taken, as they came, late ones too.

What the input comes to in the end depends on the order in which it came, so that alone is judged. Processes of Spark
that were overtaken, and those that die, have under at least once the effects that `shipments` speaks of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios import InputRecord, Json, Output, State, Stores, shipments
from scenarios.shipments import ANSWERED, ASKED, DEPOTS, LEAVING, SHIPMENTS, depot_of, put, with_town
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.topology import Topology

HISTORY_MS: Mapping[str, int] = {SHIPMENTS: 24_000, DEPOTS: 30 * 3_600_000}
TOWNS = "towns-table"


def loud(town: str) -> str:
    return town.upper()


class Scenario(shipments.Scenario):
    """The pipeline and its reference; the input is that of `shipments`."""

    name = "dated_shipments"
    summary = "Versioned tables of the DSL that are joined by a foreign key, inner and left."
    time_step_ms = 8_000
    durations_ms = (HISTORY_MS[SHIPMENTS],)

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        values = JsonSerde[Any]()
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=values)
        rows, depots = (
            builder.table(
                f"{application_id}-{topic}",
                materialized=Materialized.as_(stores.versioned(store, retention_ms=HISTORY_MS[store])),
            )
            for topic, store in (("shipments", SHIPMENTS), ("depots", DEPOTS))
        )
        leaving = rows.join(depots, depot_of, with_town, materialized=Materialized(LEAVING), name="leaving")
        leaving.to_stream().to(f"{application_id}-leaving")
        towns = depots.map_values(loud, materialized=Materialized(TOWNS).with_caching_disabled())
        planned = rows.left_join(towns, depot_of, with_town, name="planned")
        planned.to_stream().to(f"{application_id}-planned")
        return builder.build().sub_topologies

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic in ASKED or record.topic in ANSWERED:
            return super().reference(state, record)
        table = state[SHIPMENTS if record.topic == "shipments" else DEPOTS]
        before = table.get(record.key)
        valid_to = table.put(record.key, record.value, record.timestamp)
        if record.topic == "shipments":
            if valid_to != table.NEWEST:
                return []
            return self._told(record, before and before.value)
        outputs = self._answers(state, record, "leaving") if valid_to == table.NEWEST else []
        if valid_to != table.NOT_PUT:
            town = record._replace(value=record.value and loud(record.value))
            put(state[TOWNS], town)
            outputs += self._answers(state, town, "planned")
        return outputs

    def _shipment(self, state: State, key: str) -> Json:
        found = state[SHIPMENTS].get(key)
        return found and found.value

    def _town(self, state: State, depot: str, name: str) -> tuple[Json, int] | None:
        if name == "planned":
            made: tuple[Json, int] | None = state[TOWNS].get(depot)
            return made
        found = state[DEPOTS].get(depot)
        return found and (found.value, found.timestamp)

    def settled(self, inputs: Mapping[str, Mapping[str, Json]]) -> Mapping[str, Mapping[str, Json]]:  # noqa: ARG002
        return {}


SCENARIO = Scenario()
