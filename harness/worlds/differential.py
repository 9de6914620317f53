"""The simulated broker against a real one: the same operations on both, every answer compared.

A sequence is plain data: a list of small tuples (`Op`). `generate` makes one from a seed, `compare` runs it
on two sides in lockstep and returns the first step whose answers differ, `shrink` reduces a differing
sequence, `script` prints it with both answers.

What it must survive: a real broker that answers late. Commit and abort are acknowledged before their markers
are written, so the real side repeats an *observation* until it equals the simulated answer, up to a deadline.
That cannot hide a real broker that is ahead (watermarks and positions never go back), and it cannot hide a
simulation that is behind for good: every sequence ends with a new incarnation of each transactional id, whose
`init_transactions` waits for all markers, and what is observed after that is asked once.

Two things a client library does at a moment of its own choosing are kept out of sequences: whether records
that nobody waited for reach the log before an abort or a crash, and at which of several calls a fenced
producer learns of it from the background. Each produce therefore waits until its records are in the log, with
`flush` or by watching the high watermark, except where a commit follows at once; a fenced producer always
flushes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer
from confluent_kafka import Producer as PlainProducer
from confluent_kafka import TopicPartition as ConfluentPartition

from harness.worlds.sim.broker import SimBroker, SimLog, SimProducer
from store.errors import CrashproofError, LogError, RetriableError
from store.log.protocol import IsolationLevel, Log, Producer, Reader, TopicPartition, TopicSpec

Op = tuple[str | int, ...]
"""A call and its arguments. Clients are slots, partitions are indices into `partitions_of`:

    open slot id: a new incarnation of transactional id 0 or 1; what was in the slot is dropped
    begin | flush | commit | abort | close | drop slot
    produce slot partition count: records that are in the log at return, without a flush
    produce_flush | produce_commit slot partition count
    produce_keyed slot count: to the topic with two partitions, the key decides; flushed
    produce_large slot: one record that its topic refuses, flushed
    send_offsets slot partition position
    expire slot id partition count position: a new incarnation sends offsets and records and times out
    append partition count: plain records
    commit_offsets partition position
    read partition offset max_records isolation
    offsets partition isolation
    committed partition
"""

Answer = tuple[Any, ...]
"""("ok", value…), ("error", name of the class) or ("skipped",) where the step cannot apply."""

SKIPPED: Answer = ("skipped",)
SLOTS = 4
IDS = 2
ISOLATIONS = (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
TIMEOUT_MS = 600_000
EXPIRY_MS = 2_000
LARGE_LIMIT = 2_000


def topics_of(name: str) -> list[TopicSpec]:
    """The topics of the sequence called `name`; they must be empty when it starts."""
    return [TopicSpec(f"{name}-x", 2), TopicSpec(f"{name}-y", 1, {"max.message.bytes": str(LARGE_LIMIT)})]


def partitions_of(name: str) -> tuple[TopicPartition, ...]:
    return (TopicPartition(f"{name}-x", 0), TopicPartition(f"{name}-x", 1), TopicPartition(f"{name}-y", 0))


class Cluster(Protocol):
    """What a side needs of its cluster beside the protocol of the log."""

    def append(self, tp: TopicPartition, values: Sequence[bytes]) -> None:
        """Write plain records; they are in the log at return."""

    def commit_offsets(self, group_id: str, tp: TopicPartition, position: int) -> None:
        """Commit outside any transaction."""

    def await_sent(self, producer: Producer, tp: TopicPartition, end: int, /) -> None:
        """Return when what the producer queued is in the log, which then ends at `end`."""

    def await_expiry(self, tp: TopicPartition, end: int, /) -> None:
        """Let EXPIRY_MS pass, and the marker that follows, with which the log ends at `end`."""


class Side:
    """One cluster, driven by the operations of one sequence. One thread."""

    def __init__(self, name: str, log: Log, cluster: Cluster) -> None:
        self.name = name
        self.partitions = partitions_of(name)
        self.group = f"{name}-group"
        self.log = log
        self.cluster = cluster
        self.reader: Reader = log.reader()
        self.clients: list[Producer | None] = [None] * SLOTS

    def close(self) -> None:
        for client in self.clients:
            if client is not None:
                client.close()
        self.reader.close()

    def apply(self, step: int, op: Op, ends: Mapping[TopicPartition, int]) -> Answer:
        """Run one step. `ends` are the high watermarks that the simulation has after it."""
        try:
            return self._apply(step, op, ends)
        except CrashproofError as error:
            return ("error", type(error).__name__)

    def _apply(self, step: int, op: Op, ends: Mapping[TopicPartition, int]) -> Answer:
        values = [f"{step}.{n}".encode() for n in range(20)]
        match op:
            case ("append", int(at), int(count)):
                self.cluster.append(self.partitions[at], values[:count])
                return ("ok",)
            case ("commit_offsets", int(at), int(position)):
                self.cluster.commit_offsets(self.group, self.partitions[at], position)
                return ("ok",)
            case ("read", int(at), int(offset), int(count), int(isolation)):
                tp = self.partitions[at]
                fetch = self.reader.read(tp, min(offset, ends[tp]), count, ISOLATIONS[isolation])
                return (
                    "ok",
                    tuple((r.offset, r.key, r.value, r.headers) for r in fetch.records),
                    fetch.next_offset,
                )
            case ("offsets", int(at), int(isolation)):
                return ("ok", *self.reader.offsets(self.partitions[at], ISOLATIONS[isolation]))
            case ("committed", int(at)):
                return ("ok", self.reader.committed(self.group, self.partitions[at]))
            case ("open", int(slot), int(number)):
                self._open(slot, number, TIMEOUT_MS).init_transactions()
                return ("ok",)
            case ("expire", int(slot), int(number), int(at), int(count), int(position)):
                tp = self.partitions[at]
                doomed = self._open(slot, number, EXPIRY_MS)
                doomed.init_transactions()
                doomed.begin_transaction()
                doomed.send_offsets(self.group, {tp: position})
                self._produce(doomed, tp, values[:count])
                written = doomed.flush()
                self.cluster.await_expiry(tp, ends[tp])
                return ("ok", *sorted(written.items()))
        target = op[1]
        assert isinstance(target, int)
        client = self.clients[target]
        if client is None:
            return SKIPPED
        return self._drive(client, target, op, values, ends)

    def _drive(
        self,
        client: Producer,
        slot: int,
        op: Op,
        values: Sequence[bytes],
        ends: Mapping[TopicPartition, int],
    ) -> Answer:
        match op:
            case ("begin", _):
                client.begin_transaction()
            case ("commit", _):
                client.commit_transaction()
            case ("abort", _):
                client.abort_transaction()
            case ("flush", _):
                return ("ok", *sorted(client.flush().items()))
            case ("produce", _, int(at), int(count)):
                tp = self.partitions[at]
                self._produce(client, tp, values[:count])
                self.cluster.await_sent(client, tp, ends[tp])
            case ("produce_flush", _, int(at), int(count)):
                self._produce(client, self.partitions[at], values[:count])
                return ("ok", *sorted(client.flush().items()))
            case ("produce_commit", _, int(at), int(count)):
                self._produce(client, self.partitions[at], values[:count])
                client.commit_transaction()
            case ("produce_keyed", _, int(count)):
                for value in values[:count]:
                    client.produce(self.partitions[0].topic, value, value, headers=(("n", value),))
                return ("ok", *sorted(client.flush().items()))
            case ("produce_large", _):
                self._produce(client, self.partitions[-1], [b"x" * (LARGE_LIMIT + 1)])
                return ("ok", *sorted(client.flush().items()))
            case ("send_offsets", _, int(at), int(position)):
                client.send_offsets(self.group, {self.partitions[at]: position})
            case ("close", _):
                client.close()
            case ("drop", _):
                self.clients[slot] = None
            case _:
                raise ValueError(f"no such operation: {op}")
        return ("ok",)

    def _open(self, slot: int, number: int, timeout_ms: int) -> Producer:
        client = self.log.producer(f"{self.name}-{number}", timeout_ms)
        self.clients[slot] = client
        return client

    @staticmethod
    def _produce(client: Producer, tp: TopicPartition, values: Sequence[bytes]) -> None:
        for value in values:
            client.produce(tp.topic, b"k", value, partition=tp.partition)


class SimCluster:
    """The simulated side's cluster: time passes when it is told to."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker

    def append(self, tp: TopicPartition, values: Sequence[bytes]) -> None:
        for value in values:
            self.broker.append(tp.topic, b"k", value, partition=tp.partition)

    def commit_offsets(self, group_id: str, tp: TopicPartition, position: int) -> None:
        self.broker.commit_offsets(group_id, {tp: position})

    def await_sent(self, producer: Producer, _tp: TopicPartition, _end: int, /) -> None:
        assert isinstance(producer, SimProducer)
        producer.deliver()

    def await_expiry(self, _tp: TopicPartition, _end: int, /) -> None:
        self.broker.advance(EXPIRY_MS)


class KafkaCluster:
    """A real cluster. May be shared by threads: the client libraries below are thread-safe."""

    def __init__(self, bootstrap: str, log: Log, deadline_s: float) -> None:
        self.bootstrap = bootstrap
        self.log = log
        self.deadline_s = deadline_s
        self.plain = PlainProducer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True}
        )

    def append(self, tp: TopicPartition, values: Sequence[bytes]) -> None:
        errors: list[object] = []

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                errors.append(error)

        for value in values:
            self.plain.produce(tp.topic, value, b"k", tp.partition, on_delivery=delivered)
        unsent = self.plain.flush(self.deadline_s)
        if unsent or errors:
            raise LogError(f"plain records for {tp} did not arrive: {unsent} unsent, errors {errors}")

    def commit_offsets(self, group_id: str, tp: TopicPartition, position: int) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": group_id, "enable.auto.commit": False}
        )
        try:
            for part in consumer.commit(
                offsets=[ConfluentPartition(tp.topic, tp.partition, position)], asynchronous=False
            ):
                if part.error is not None:
                    raise LogError(f"plain commit of {group_id} for {tp} failed: {part.error}")
        finally:
            consumer.close()

    def await_sent(self, _producer: Producer, tp: TopicPartition, end: int, /) -> None:
        self._await_end(tp, end)

    def await_expiry(self, tp: TopicPartition, end: int, /) -> None:
        self._await_end(tp, end)

    def _await_end(self, tp: TopicPartition, end: int) -> None:
        reader = self.log.reader()
        try:
            for _ in until(self.deadline_s):
                if reader.offsets(tp, IsolationLevel.READ_UNCOMMITTED).end >= end:
                    return
        finally:
            reader.close()


def until(deadline_s: float) -> Iterator[None]:
    """Once at least, then again after growing pauses (1 to 50 ms) until the deadline."""
    deadline = time.monotonic() + deadline_s
    pause = 0.001
    yield
    while time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
        yield


class Lockstep(Protocol):
    """The other side of a comparison: it answers, knowing what the simulation answered."""

    def answer(
        self, step: int, op: Op, expected: Answer, ends: Mapping[TopicPartition, int], once: bool, /
    ) -> Answer:
        """`once`: ask an observation once, without waiting for what is expected."""

    def close(self) -> None: ...


OBSERVATIONS = ("read", "offsets", "committed")


class KafkaLockstep:
    """The real side. Repeats what the broker says may be repeated, and observations that are still behind."""

    def __init__(self, name: str, log: Log, cluster: KafkaCluster) -> None:
        self.side = Side(name, log, cluster)
        self.deadline_s = cluster.deadline_s

    def answer(
        self, step: int, op: Op, expected: Answer, ends: Mapping[TopicPartition, int], once: bool, /
    ) -> Answer:
        got: Answer = SKIPPED
        for _ in until(self.deadline_s):
            got = self.side.apply(step, op, ends)
            if got == expected or (once and got != RETRIABLE):
                return got
            if op[0] not in OBSERVATIONS and got != RETRIABLE:
                return got
        return got

    def close(self) -> None:
        self.side.close()


RETRIABLE: Answer = ("error", RetriableError.__name__)


class Recording:
    """Answers of a real broker, recorded earlier by `compare`."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = answers

    def answer(
        self, step: int, _op: Op, _expected: Answer, _ends: Mapping[TopicPartition, int], _once: bool, /
    ) -> Answer:
        return self.answers[step]

    def close(self) -> None:
        pass


class Comparison(NamedTuple):
    """What both sides answered, up to and including the first difference."""

    ops: list[Op]
    simulated: list[Answer]
    real: list[Answer]

    @property
    def differs(self) -> bool:
        return self.simulated != self.real


def closing(ops: Sequence[Op]) -> list[Op]:
    """What every sequence ends with: nothing is left open, and everything is looked at."""
    numbers = sorted({op[2] for op in ops if op[0] in ("open", "expire")})
    observed: list[Op] = []
    for at in range(len(partitions_of(""))):
        for isolation in range(len(ISOLATIONS)):
            observed.append(("offsets", at, isolation))
            observed.append(("read", at, 0, 10_000, isolation))
        observed.append(("committed", at))
    return [*(("open", SLOTS - 1, number) for number in numbers), *observed]


def compare(name: str, ops: Sequence[Op], real: Lockstep, broker: SimBroker | None = None) -> Comparison:
    """Run `ops` and their closing on a simulated broker and on `real`, until the first difference."""
    broker = SimBroker() if broker is None else broker
    for topic in topics_of(name):
        broker.create_topic(*topic)
    simulated = Side(name, SimLog(broker), SimCluster(broker))
    tail = closing(ops)
    done: list[Op] = []
    ours: list[Answer] = []
    theirs: list[Answer] = []
    for step, wanted in enumerate([*ops, *tail]):
        op = settled(wanted, simulated)
        ends = {tp: broker.high_watermark(tp) for tp in simulated.partitions}
        ours.append(simulated.apply(step, op, ends))
        ends = {tp: broker.high_watermark(tp) for tp in simulated.partitions}
        theirs.append(real.answer(step, op, ours[-1], ends, step >= len(ops)))
        done.append(op)
        if ours[-1] != theirs[-1]:
            break
    return Comparison(done, ours, theirs)


def settled(op: Op, simulated: Side) -> Op:
    """`op`, but a fenced producer waits with a flush: its records never reach the log by themselves."""
    if op[0] == "produce":
        client = simulated.clients[op[1]]  # type: ignore[index]
        if isinstance(client, SimProducer) and client.fenced:
            return ("produce_flush", *op[1:])
    return op


def generate(random: Random) -> list[Op]:
    """A sequence of 6 to 15 steps. Most calls are in order; one in twelve ignores where its client is."""
    ops: list[Op] = []
    state: dict[int, str] = {}

    def client() -> int:
        return random.choice(sorted(state)) if state else 0

    def partition() -> int:
        return random.choice((0, 0, 0, 1, 2))

    in_transaction: list[tuple[int, Callable[[int], Op]]] = [
        (4, lambda slot: ("produce", slot, partition(), random.randint(1, 3))),
        (4, lambda slot: ("produce_flush", slot, partition(), random.randint(1, 3))),
        (2, lambda slot: ("produce_commit", slot, partition(), random.randint(1, 3))),
        (1, lambda slot: ("produce_keyed", slot, random.randint(1, 6))),
        (5, lambda slot: ("send_offsets", slot, partition() % 2, random.randint(0, 9))),
        (6, lambda slot: ("commit", slot)),
        (4, lambda slot: ("abort", slot)),
        (1, lambda slot: ("flush", slot)),
    ]
    rare: list[tuple[int, Callable[[int], Op]]] = [
        (1, lambda slot: ("begin", slot)),
        (1, lambda slot: ("produce_large", slot)),
        (1, lambda slot: ("close", slot)),
        (1, lambda slot: ("drop", slot)),
    ]
    anywhere: list[tuple[int, Callable[[], Op]]] = [
        (5, lambda: ("open", random.randrange(SLOTS), random.choice((0, 0, 1)))),
        (2, lambda: ("append", partition(), random.randint(1, 3))),
        (1, lambda: ("commit_offsets", partition() % 2, random.randint(0, 9))),
        (
            3,
            lambda: (
                "read",
                partition(),
                random.randint(0, 8),
                random.choice((1, 2, 100)),
                random.randint(0, 1),
            ),
        ),
        (3, lambda: ("offsets", partition(), random.randint(0, 1))),
        (2, lambda: ("committed", partition() % 2)),
    ]

    def pick(choices: Sequence[tuple[int, Any]], *args: int) -> Op:
        make = random.choices([make for _, make in choices], [weight for weight, _ in choices])[0]
        op: Op = make(*args)
        return op

    for _ in range(random.randint(6, 15)):
        slot = client()
        where = state.get(slot)
        roll = random.random()
        if where is None or roll < 0.3:
            op = pick(anywhere) if state else ("open", 0, 0)
        elif roll < 0.38:
            op = pick([*in_transaction, *rare], slot)
        elif roll < 0.395:
            op = (
                "expire",
                slot,
                random.randrange(IDS),
                partition(),
                random.randint(1, 2),
                random.randint(0, 9),
            )
        elif where == "ready":
            op = ("begin", slot)
        else:
            op = pick(in_transaction, slot)
        ops.append(op)
        target = op[1]
        assert isinstance(target, int)
        if op[0] == "open":
            state[target] = "ready"
        elif op[0] == "expire" or (op[0] == "begin" and target in state):
            state[target] = "open"
        elif op[0] in ("commit", "abort", "produce_commit") and target in state:
            state[target] = "ready"
        elif op[0] in ("close", "drop"):
            state.pop(target, None)
    return ops


def shrink(ops: Sequence[Op], differs: Callable[[Sequence[Op]], bool]) -> list[Op]:
    """Leave out steps, in halving blocks, while `differs` holds; at the end no single step can go."""
    best = list(ops)
    size = max(1, len(best) // 2)
    while True:
        at = 0
        removed = False
        while at < len(best):
            fewer = best[:at] + best[at + size :]
            if differs(fewer):
                best = fewer
                removed = True
            else:
                at += size
        if size == 1 and not removed:
            return best
        size = max(1, size // 2)


def script(comparison: Comparison) -> str:
    """The sequence, one step a line, with the answer, or both where they differ."""
    lines: list[str] = []
    for step, (op, ours, theirs) in enumerate(
        zip(comparison.ops, comparison.simulated, comparison.real, strict=True)
    ):
        call = f"{step:3}  {op[0]}({', '.join(map(str, op[1:]))})"
        if ours == theirs:
            lines.append(f"{call:48} {_short(ours)}")
        else:
            lines.append(f"{call}\n       simulated: {_short(ours)}\n       real:      {_short(theirs)}")
    return "\n".join(lines)


def _short(answer: Answer) -> str:
    return " ".join(str(part) for part in answer)
