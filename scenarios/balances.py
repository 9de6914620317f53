"""Account balances: a running sum per account, with deletions, from Kafka to Kafka.

Input, keyed by account: a number is a deposit (negative: a withdrawal), null closes the account, the word
"audit" asks for the total of all accounts that this task holds. Output, keyed by account: the new balance, null
for a closed account, or the total that an audit found.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import scenarios
from scenarios import KEYLESS, InputRecord, Output, Sample, State, Stores
from store.errors import StoreError
from store.streams.topology import Context, Topology
from store.types import Record

ACCOUNTS = "accounts"


class Balances:
    """The pipeline: what a user would write."""

    def __init__(self, output: str) -> None:
        self.output = output

    def __call__(self, context: Context, record: Record) -> None:
        accounts = context.store(ACCOUNTS)
        assert record.key is not None
        if record.value is None:
            accounts.delete(record.key)
            context.forward(self.output, record.key, None)
        elif record.value == b'"audit"':
            with accounts.all() as rows:
                total = sum(int(balance) for _, balance in rows)
            context.forward(self.output, record.key, b"%d" % total)
        else:
            # Careless: the record must not count as processed when its account could not be read.
            with suppress(StoreError):
                balance = int(accounts.get(record.key) or 0) + int(record.value)
                accounts.put(record.key, b"%d" % balance)
                context.forward(self.output, record.key, b"%d" % balance)


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "balances"
    summary = "A running sum per account, with deletions and audits, from Kafka to Kafka."

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-input",),
            sinks=(f"{application_id}-output",),
            stores=(stores.key_value(ACCOUNTS),),
            process=Balances(f"{application_id}-output"),
        )

    def input(self, random: Random) -> Sample:
        account = random.choice(("ann", "bob", "cy"))
        kind = random.random()
        if kind < 0.2:
            return Sample(account, None)
        if kind < 0.3:
            return Sample(account, "audit")
        return Sample(account, random.randint(-3, 9))

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        """What must hold after one record, said without stores, buffers or transactions."""
        balances = state[ACCOUNTS]
        if record.value is None:
            balances.pop(record.key, None)
            return [Output("output", record.key, None)]
        if record.value == "audit":
            return [Output("output", record.key, sum(balances.values()))]
        balances[record.key] = balances.get(record.key, 0) + record.value
        return [Output("output", record.key, balances[record.key])]

    def accepts(self, record: InputRecord) -> bool:
        value = record.value
        if record.topic != "input" or record.key == KEYLESS:
            return False
        return value is None or value == "audit" or (isinstance(value, int) and not isinstance(value, bool))


SCENARIO = Scenario()
