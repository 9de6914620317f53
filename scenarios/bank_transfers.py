"""Transfers between accounts by the DSL: each is two entries, in another partition or not, and the sum of all balances
stays zero.

Input, keyed by the payer: whom to pay, and how much; or null, which is left out. The first sub-topology counts the
transfers of each payer in a store of its own and writes two entries to the repartition topic of a group, keyed by
account: minus for the payer, plus for the payee, and none where nothing is paid. The second one adds the entries up.

Output, keyed by account: the new balance, with the latest time of its entries. With a record cache that is each one,
or what several entries have made of it by the commit. An entry that is lost or counted twice shows for ever.
"""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import KEYED, InputRecord, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.streams.timestamps import UsePartitionTimeOnInvalidTimestamp
from store.streams.topology import Topology

TRANSFERS = "transfers"
BALANCES = "balances"
ENTRIES = "entries-repartition"
TIMES, LATEST = "times", "latest"
ACCOUNTS = ("ann", "bob", "gus", "ida")
"""Two of each partition where there are two."""


class Count:
    """Counts the transfers of each payer, and hands them on."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.transfers = context.store(TRANSFERS)

    def process(self, record: StreamRecord) -> None:
        self.transfers.put(record.key, (self.transfers.get(record.key) or 0) + 1)
        self.context.forward(record.value)


def is_transfer(_payer: str, transfer: dict[str, Any] | None) -> bool:
    return transfer is not None


def paid(transfer: dict[str, Any]) -> int:
    amount: int = transfer["amount"]
    return -amount


def received(_payer: str, transfer: dict[str, Any]) -> tuple[str, int]:
    return transfer["to"], transfer["amount"]


def is_nothing(_account: str, amount: int) -> bool:
    return amount == 0


def plus(balance: int, entry: int) -> int:
    return balance + entry


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "bank_transfers"
    summary = "Transfers as two entries each, which the DSL writes to a repartition topic and adds up."
    keys = KEYED
    updates: ClassVar[frozenset[str]] = frozenset({"output"})
    untimed = True
    noted: ClassVar[frozenset[str]] = frozenset({TIMES})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        values = JsonSerde[Any]()
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=values)
        builder.add_state_store(stores.key_value(TRANSFERS, serdes=(StrSerde(), JsonSerde())))
        transfers = builder.stream(
            f"{application_id}-input", timestamp_extractor=UsePartitionTimeOnInvalidTimestamp
        ).filter(is_transfer)
        counted = transfers.process_values(Count, TRANSFERS)
        # The keys of one of the two are those of the input still.
        entries = counted.map_values(paid).merge(counted.map(received))
        kinds = entries.split(name="entry-").branch(is_nothing, name="nothing").default_branch(name="some")
        grouped = kinds["entry-some"].group_by_key(value_serde=values, name="entries")
        balances = grouped.reduce(plus, materialized=Materialized(BALANCES))
        balances.to_stream().to(f"{application_id}-output")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        payer, payee = random.sample(ACCOUNTS, 2)
        if random.random() < 0.05:
            return Sample(payer, None)
        return Sample(payer, {"to": payee, "amount": random.randint(0, 9)})

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        time = self.time_of(state, record)
        if record.topic == "input":
            state[TIMES][LATEST] = max(state[TIMES].get(LATEST, -1), time)
        if record.value is None:
            return []
        if record.topic == "input":
            amount = record.value["amount"]
            state[TRANSFERS][record.key] = state[TRANSFERS].get(record.key, 0) + 1
            if not amount:
                return []
            return [
                Output(ENTRIES, record.key, -amount, time),
                Output(ENTRIES, record.value["to"], amount, time),
            ]
        balance, latest = state[BALANCES].get(record.key, [0, -1])
        balance, latest = balance + record.value, max(latest, record.timestamp)
        state[BALANCES][record.key] = [balance, latest]
        return [Output("output", record.key, balance, latest)]

    def time_of(self, state: State, record: InputRecord) -> int:
        return record.timestamp if record.timestamp >= 0 else state[TIMES].get(LATEST, -1)

    def accepts(self, record: InputRecord) -> bool:
        value = record.value
        if record.topic != "input":
            return False
        return value is None or (
            isinstance(value, dict)
            and isinstance(value.get("to"), str)
            and type(value.get("amount")) is int
            and value.keys() == {"to", "amount"}
        )


SCENARIO = Scenario()
