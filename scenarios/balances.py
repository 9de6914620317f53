"""Account balances: a running sum per account, with deletions, from Kafka to Kafka.

Input, keyed by account: a number is a deposit (negative: a withdrawal), null closes the account, the word
"audit" asks for the total of all accounts that this task holds. Output, keyed by account: the new balance, null
for a closed account, or the total that an audit found.
"""

from __future__ import annotations

from random import Random

from scenarios import Json, Output, Scenario, State
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
            balance = int(accounts.get(record.key) or 0) + int(record.value)
            accounts.put(record.key, b"%d" % balance)
            context.forward(self.output, record.key, b"%d" % balance)


def topology(application_id: str) -> Topology:
    return Topology(
        application_id=application_id,
        sources=(f"{application_id}-input",),
        sinks=(f"{application_id}-output",),
        stores=(ACCOUNTS,),
        process=Balances(f"{application_id}-output"),
    )


def reference(state: State, key: str, value: Json) -> list[Output]:
    """What must hold after one record, said without stores, buffers or transactions."""
    balances = state[ACCOUNTS]
    if value is None:
        balances.pop(key, None)
        return [Output("output", key, None)]
    if value == "audit":
        return [Output("output", key, sum(balances.values()))]
    balances[key] = balances.get(key, 0) + value
    return [Output("output", key, balances[key])]


def sample(random: Random) -> tuple[str, Json]:
    account = random.choice(("ann", "bob", "cy"))
    kind = random.random()
    if kind < 0.2:
        return account, None
    if kind < 0.3:
        return account, "audit"
    return account, random.randint(-3, 9)


def accepts(_key: str, value: Json) -> bool:
    return value is None or value == "audit" or (isinstance(value, int) and not isinstance(value, bool))


def decode_key(_store: str, key: bytes) -> str:
    return key.decode()


def decode(_store: str, key: bytes, value: bytes) -> tuple[str, Json]:
    return key.decode(), int(value)


SCENARIO = Scenario(
    name="balances",
    summary="A running sum per account, with deletions and audits, from Kafka to Kafka.",
    topology=topology,
    reference=reference,
    sample=sample,
    decode=decode,
    decode_key=decode_key,
    accepts=accepts,
)
