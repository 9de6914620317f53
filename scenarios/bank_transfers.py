"""Transfers between accounts: each is two entries, in another partition or not, and the sum of all balances stays zero.

Input, keyed by the payer: whom to pay, and how much; or null, which is left out. The first sub-topology counts the
transfers of each payer and writes two entries, keyed by account: minus for the payer, plus for the payee. The second
one adds the entries up.

Output, keyed by account: the new balance. An entry that is lost or counted twice shows for ever.
"""

from __future__ import annotations

import json
from random import Random

import scenarios
from scenarios import InputRecord, Output, Sample, State, Stores
from store.streams.topology import Context, Topology
from store.types import Record

TRANSFERS = "transfers"
BALANCES = "balances"
ACCOUNTS = ("ann", "bob", "cy", "dee")


class Enter:
    """Writes the two entries of a transfer."""

    def __init__(self, entries: str) -> None:
        self.entries = entries

    def __call__(self, context: Context, record: Record) -> None:
        if record.value is None or record.key is None:
            return
        transfer = json.loads(record.value)
        amount = transfer["amount"]
        transfers = context.store(TRANSFERS)
        transfers.put(record.key, b"%d" % (int(transfers.get(record.key) or 0) + 1))
        context.forward(self.entries, record.key, b"%d" % -amount)
        context.forward(self.entries, transfer["to"].encode(), b"%d" % amount)


class Add:
    """Adds entries up."""

    def __init__(self, output: str) -> None:
        self.output = output

    def __call__(self, context: Context, record: Record) -> None:
        if record.value is None or record.key is None:
            return
        balances = context.store(BALANCES)
        balance = b"%d" % (int(balances.get(record.key) or 0) + int(record.value))
        balances.put(record.key, balance)
        context.forward(self.output, record.key, balance)


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "bank_transfers"
    summary = "Transfers as two entries each, which two sub-topologies write and add up."

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        entries, output = f"{application_id}-entries", f"{application_id}-output"
        return (
            Topology(
                application_id=application_id,
                sources=(f"{application_id}-input",),
                sinks=(entries,),
                stores=(stores.key_value(TRANSFERS),),
                process=Enter(entries),
            ),
            Topology(
                application_id=application_id,
                sources=(entries,),
                sinks=(output,),
                stores=(stores.key_value(BALANCES),),
                process=Add(output),
                ordinal=1,
            ),
        )

    def input(self, random: Random) -> Sample:
        payer, payee = random.sample(ACCOUNTS, 2)
        if random.random() < 0.05:
            return Sample(payer, None)
        return Sample(payer, {"to": payee, "amount": random.randint(1, 9)})

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.value is None:
            return []
        if record.topic == "input":
            amount = record.value["amount"]
            state[TRANSFERS][record.key] = state[TRANSFERS].get(record.key, 0) + 1
            return [Output("entries", record.key, -amount), Output("entries", record.value["to"], amount)]
        balance = state[BALANCES].get(record.key, 0) + record.value
        state[BALANCES][record.key] = balance
        return [Output("output", record.key, balance)]

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
