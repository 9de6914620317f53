"""The simulated broker against a real one: the same operations on both, every answer compared.

A sequence is plain data: a list of small tuples (`Op`). `generate` makes one from a seed, `compare` runs it
on two sides in lockstep and returns the first step whose answers differ, `shrink` reduces a differing
sequence, `script` prints it with both answers.

What it must survive: a real broker that answers late. Commit and abort are acknowledged before their markers
are written. After each, the real side therefore waits until the logs are as long as the simulated ones (else
a marker may land behind a later write of somebody else, as it did in 10 of 2,000 sequences), and it repeats an
*observation* until it equals the simulated answer; both up to a deadline. That cannot hide a real broker that
is ahead (watermarks and positions never go back), and it cannot hide a simulation that is behind for good:
every sequence ends with a new incarnation of each transactional id, whose `init_transactions` waits for all
markers, and what is observed after that is asked once.

Two things a client library does at a moment of its own choosing are kept out of sequences: whether records
that nobody waited for reach the log before an abort or a crash, and at which of several calls a fenced
producer learns of it from the background. Each produce therefore waits until its records are in the log, with
`flush` or by watching the high watermark, except where a commit follows at once; a fenced producer always
flushes.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer
from confluent_kafka import Producer as PlainProducer
from confluent_kafka import TopicPartition as ConfluentPartition

from harness.worlds.sim.broker import SimBroker, SimLog, SimProducer
from store.errors import (
    AbortRequiredError,
    CrashproofError,
    FencedError,
    LogError,
    RetriableError,
    TransactionTimedOutError,
)
from store.log.protocol import Log, Producer, Reader, TopicSpec
from store.types import IsolationLevel, TopicPartition

Op = tuple[str | int, ...]
"""A call and its arguments. Clients are slots, partitions are indices into `partitions_of`:

    open slot id: a new incarnation of transactional id 0 or 1; what was in the slot is dropped
    begin | flush | commit | abort | close | drop slot
    open_greedy slot id: the same with a transaction timeout above what the broker allows
    produce slot partition count: records that are in the log at return, without a flush
    produce_flush | produce_commit slot partition count
    produce_keyed slot count: to the topic with two partitions, the key decides; flushed
    produce_large slot: one record that its topic refuses, flushed
    send_offsets slot partition position
    expire slot id partition count position: a new incarnation sends offsets and records and times out
    append partition count: plain records
    commit_offsets partition position
    read partition offset max_records isolation
    scan partition max_records isolation: read on from next_offset until the end
    offsets partition isolation
    committed partition
"""

Answer = tuple[Any, ...]
"""("ok", value…), ("error", name of the class) or ("skipped",) where the step cannot apply."""

SKIPPED: Answer = ("skipped",)
RETRIABLE: Answer = ("error", RetriableError.__name__)
TOO_SLOW: Sequence[Answer] = tuple(
    ("error", kind.__name__) for kind in (AbortRequiredError, FencedError, TransactionTimedOutError)
)
"""What a transaction may end with that expires before all of it was sent."""
ENDINGS = ("commit", "abort", "produce_commit")
OBSERVATIONS = ("read", "scan", "offsets", "committed")
SLOTS = 4
IDS = 2
ISOLATIONS = (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
TIMEOUT_MS = 600_000
EXPIRY_MS = 2_000
GREEDY_MS = 900_001
OLD_MS = 1_000_000
LARGE_LIMIT = 2_000


def topics_of(name: str) -> list[TopicSpec]:
    """The topics of the sequence called `name`; they must be empty when it starts."""
    # Records of one step carry an old timestamp, which must not make them a prey of retention.
    kept = {"retention.ms": "-1"}
    return [
        TopicSpec(f"{name}-x", 2, kept),
        TopicSpec(f"{name}-y", 1, {**kept, "max.message.bytes": str(LARGE_LIMIT)}),
    ]


def partitions_of(name: str) -> tuple[TopicPartition, ...]:
    return (TopicPartition(f"{name}-x", 0), TopicPartition(f"{name}-x", 1), TopicPartition(f"{name}-y", 0))


class Cluster(Protocol):
    """What a side needs of its cluster beside the protocol of the log."""

    def append(self, tp: TopicPartition, values: Sequence[bytes]) -> None:
        """Write plain records; they are in the log at return."""

    def commit_offsets(self, group_id: str, tp: TopicPartition, position: int) -> None:
        """Commit outside any transaction."""

    def await_sent(self, producer: Producer, reader: Reader, tp: TopicPartition, end: int, /) -> None:
        """Return when what the producer queued is in the log, which then ends at `end`."""

    def await_expiry(self, reader: Reader, tp: TopicPartition, end: int, /) -> None:
        """Let EXPIRY_MS pass, and the marker that follows, with which the log ends at `end`."""


class Side:
    """One cluster, driven by the operations of one sequence. One thread.

    Offsets in operations and answers count from `bases`, the high watermarks before the sequence.
    """

    def __init__(
        self,
        name: str,
        partitions: Sequence[TopicPartition],
        bases: Sequence[int],
        log: Log,
        reader: Reader,
        cluster: Cluster,
    ) -> None:
        self.name = name
        self.partitions = partitions
        self.bases = bases
        self.log = log
        self.reader = reader
        # Kept apart because a client holds a connection for each group it is asked about.
        self.groups: Reader = log.reader()
        self.cluster = cluster
        self.clients: list[Producer | None] = [None] * SLOTS

    def close(self) -> None:
        self.groups.close()
        for client in self.clients:
            if client is not None:
                client.close()

    def apply(self, step: int, op: Op, ends: Sequence[int]) -> Answer:
        """Run one step. `ends` are the simulated high watermarks."""
        try:
            return self._apply(step, op, ends)
        except CrashproofError as error:
            return ("error", type(error).__name__)

    def await_ends(self, ends: Sequence[int], deadline_s: float) -> None:
        """Return when the logs are as long as the simulated ones."""
        for tp, base, end in zip(self.partitions, self.bases, ends, strict=True):
            if end:
                await_end(self.reader, tp, base + end, deadline_s)

    def _apply(self, step: int, op: Op, ends: Sequence[int]) -> Answer:
        values = [f"{step}.{n}".encode() for n in range(20)]
        match op:
            case ("append", int(at), int(count)):
                self.cluster.append(self.partitions[at], values[:count])
                return ("ok",)
            case ("commit_offsets", int(at), int(position)):
                self.cluster.commit_offsets(self.name, self.partitions[at], position)
                return ("ok",)
            case ("read", int(at), int(offset), int(count), int(isolation)):
                return ("ok", *self._read(at, min(offset, ends[at]), count, isolation))
            case ("scan", int(at), int(count), int(isolation)):
                return ("ok", *self._scan(at, count, isolation))
            case ("offsets", int(at), int(isolation)):
                earliest, end = self.reader.offsets(self.partitions[at], ISOLATIONS[isolation])
                return ("ok", earliest, end - self.bases[at])
            case ("committed", int(at)):
                return ("ok", self.groups.committed(self.name, self.partitions[at]))
            case ("open", int(slot), int(number)):
                self._open(slot, number, TIMEOUT_MS).init_transactions()
                return ("ok",)
            case ("open_greedy", int(slot), int(number)):
                self._open(slot, number, GREEDY_MS).init_transactions()
                return ("ok",)
            case ("expire", int(slot), int(number), int(at), int(count), int(position)):
                tp = self.partitions[at]
                doomed = self._open(slot, number, EXPIRY_MS)
                doomed.init_transactions()
                doomed.begin_transaction()
                doomed.send_offsets(self.name, {tp: position})
                self._produce(doomed, tp, values[:count])
                written = doomed.flush()
                self.cluster.await_expiry(self.reader, tp, self.bases[at] + ends[at])
                return self._positions(written)
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
        ends: Sequence[int],
    ) -> Answer:
        match op:
            case ("begin", _):
                client.begin_transaction()
            case ("commit", _):
                client.commit_transaction()
            case ("abort", _):
                client.abort_transaction()
            case ("flush", _):
                return self._positions(client.flush())
            case ("produce", _, int(at), int(count)):
                tp = self.partitions[at]
                self._produce(client, tp, values[:count])
                self.cluster.await_sent(client, self.reader, tp, self.bases[at] + ends[at])
            case ("produce_flush", _, int(at), int(count)):
                self._produce(client, self.partitions[at], values[:count])
                return self._positions(client.flush())
            case ("produce_commit", _, int(at), int(count)):
                self._produce(client, self.partitions[at], values[:count])
                client.commit_transaction()
            case ("produce_keyed", _, int(count)):
                for value in values[:count]:
                    client.produce(
                        self.partitions[0].topic, value, value, timestamp=OLD_MS, headers=(("n", value),)
                    )
                return self._positions(client.flush())
            case ("produce_large", _):
                self._produce(client, self.partitions[-1], [b"x" * (LARGE_LIMIT + 1)])
                return self._positions(client.flush())
            case ("send_offsets", _, int(at), int(position)):
                client.send_offsets(self.name, {self.partitions[at]: position})
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
        """The second record is a tombstone, the third has no key."""
        for n, value in enumerate(values):
            client.produce(
                tp.topic, None if n == 2 else b"k", None if n == 1 else value, partition=tp.partition
            )

    def _positions(self, written: Mapping[TopicPartition, int]) -> Answer:
        return (
            "ok",
            *(
                (at, written[tp] - base)
                for at, (tp, base) in enumerate(zip(self.partitions, self.bases, strict=True))
                if tp in written
            ),
        )

    def _read(self, at: int, offset: int, count: int, isolation: int) -> tuple[Answer, int]:
        tp, base = self.partitions[at], self.bases[at]
        fetch = self.reader.read(tp, base + offset, count, ISOLATIONS[isolation])
        records = []
        for topic, partition, where, key, value, timestamp, headers in fetch.records:
            assert (topic, partition) == tp, f"a record of {topic}-{partition} came from {tp}"
            # Without a timestamp of its own a record has the time of its cluster, which is not comparable.
            records.append((where - base, key, value, *((timestamp, headers) if headers else ())))
        return tuple(records), fetch.next_offset - base

    def _scan(self, at: int, count: int, isolation: int) -> list[tuple[Answer, int]]:
        fetches: list[tuple[Answer, int]] = []
        offset = 0
        while True:
            fetches.append(self._read(at, offset, count, isolation))
            records, offset = fetches[-1]
            if len(records) < count:
                return fetches


class SimCluster:
    """The simulated side's cluster: time passes when it is told to."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker

    def append(self, tp: TopicPartition, values: Sequence[bytes]) -> None:
        for value in values:
            self.broker.append(tp.topic, b"k", value, partition=tp.partition)

    def commit_offsets(self, group_id: str, tp: TopicPartition, position: int) -> None:
        self.broker.commit_offsets(group_id, {tp: position})

    def await_sent(self, producer: Producer, _reader: Reader, _tp: TopicPartition, _end: int, /) -> None:
        assert isinstance(producer, SimProducer)
        producer.deliver()

    def await_expiry(self, _reader: Reader, _tp: TopicPartition, _end: int, /) -> None:
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

    def close(self) -> None:
        self.plain.close()

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

    def await_sent(self, _producer: Producer, reader: Reader, tp: TopicPartition, end: int, /) -> None:
        await_end(reader, tp, end, self.deadline_s)

    def await_expiry(self, reader: Reader, tp: TopicPartition, end: int, /) -> None:
        await_end(reader, tp, end, self.deadline_s)


def until(deadline_s: float) -> Iterator[None]:
    """Once at least, then again after growing pauses (1 to 50 ms) until the deadline."""
    deadline = time.monotonic() + deadline_s
    pause = 0.001
    yield
    while time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
        yield


def await_end(reader: Reader, tp: TopicPartition, end: int, deadline_s: float) -> None:
    """Return when the log of `tp` is at least `end` long; `LogError` when it is not by the deadline."""
    for _ in until(deadline_s):
        if reader.offsets(tp, IsolationLevel.READ_UNCOMMITTED).end >= end:
            return
    raise LogError(f"{tp} did not reach offset {end} within {deadline_s:g} s")


class Lockstep(Protocol):
    """The other side of a comparison: it answers, knowing what the simulation answered."""

    def answer(self, step: int, op: Op, expected: Answer, ends: Sequence[int], once: bool, /) -> Answer:
        """`once`: ask an observation once, without waiting for what is expected."""


class KafkaLockstep:
    """The real side. Repeats what the broker says may be repeated, and observations that are still behind."""

    def __init__(self, side: Side, deadline_s: float) -> None:
        self.side = side
        self.deadline_s = deadline_s

    def answer(self, step: int, op: Op, expected: Answer, ends: Sequence[int], once: bool, /) -> Answer:
        got: Answer = SKIPPED
        for _ in until(self.deadline_s):
            got = self.side.apply(step, op, ends)
            if got == expected:
                break
            if got != RETRIABLE and (once or op[0] not in OBSERVATIONS):
                break
        if op[0] in ENDINGS and got == expected:
            try:
                self.side.await_ends(ends, self.deadline_s)
            except LogError as error:
                return ("error", f"acknowledged, but {error}")
        return got


class Recording:
    """Answers of a real broker, recorded earlier by `compare`."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = answers

    def answer(self, step: int, _op: Op, _expected: Answer, _ends: Sequence[int], _once: bool, /) -> Answer:
        return self.answers[step]


class Comparison(NamedTuple):
    """What both sides answered, up to and including the first difference."""

    ops: list[Op]
    simulated: list[Answer]
    real: list[Answer]
    cut: bool = False
    """Whether it ends where the machine was too slow for a transaction that was to expire later."""

    @property
    def differs(self) -> bool:
        return self.simulated != self.real


def closing(ops: Sequence[Op]) -> list[Op]:
    """What every sequence ends with: nothing is left open, and everything is looked at."""
    numbers = sorted({op[2] for op in ops if op[0] in ("open", "open_greedy", "expire")})
    observed: list[Op] = []
    for at in range(len(partitions_of(""))):
        for isolation in range(len(ISOLATIONS)):
            observed.append(("scan", at, 10_000, isolation))
        observed.append(("committed", at))
    return [*(("open", SLOTS - 1, number) for number in numbers), *observed]


def compare(ops: Sequence[Op], real: Lockstep, broker: SimBroker | None = None) -> Comparison:
    """Run `ops` and their closing on a new simulated broker and on `real`, until the first difference."""
    broker = SimBroker() if broker is None else broker
    for topic in topics_of("sim"):
        broker.create_topic(*topic)
    partitions = partitions_of("sim")
    log = SimLog(broker)
    simulated = Side("sim", partitions, [0] * len(partitions), log, log.reader(), SimCluster(broker))
    tail = closing(ops)
    done: list[Op] = []
    ours: list[Answer] = []
    theirs: list[Answer] = []
    for step, wanted in enumerate([*ops, *tail]):
        op = settled(wanted, simulated)
        ours.append(simulated.apply(step, op, [broker.high_watermark(tp) for tp in partitions]))
        ends = [broker.high_watermark(tp) for tp in partitions]
        theirs.append(real.answer(step, op, ours[-1], ends, step >= len(ops)))
        if op[0] == "expire" and ours[-1][0] == "ok" and theirs[-1] in TOO_SLOW:
            return Comparison(done, ours[:-1], theirs[:-1], cut=True)
        done.append(op)
        if ours[-1] != theirs[-1]:
            break
    return Comparison(done, ours, theirs)


class Lane:
    """Runs sequences one after the other on a few partitions of a real cluster. One thread.

    Partitions are used again because making them costs a broker more than everything else here. A sequence
    leaves nothing open, unless the sides differed: then the lane moves on to new topics.
    """

    def __init__(self, name: str, cluster: KafkaCluster, deadline_s: float | None = None) -> None:
        self.name = name
        self.deadline_s = cluster.deadline_s if deadline_s is None else deadline_s
        self.cluster = cluster
        self.reader = cluster.log.reader()
        self.runs = 0
        self.partitions = self._new_topics()

    def run(self, ops: Sequence[Op]) -> Comparison:
        """Of a sequence that was cut nothing is known: it is run again."""
        for _ in until(self.cluster.deadline_s):
            comparison = self._run(ops)
            if not comparison.cut:
                break
        return comparison

    def _run(self, ops: Sequence[Op]) -> Comparison:
        self.runs += 1
        bases = [self.reader.offsets(tp, IsolationLevel.READ_UNCOMMITTED).end for tp in self.partitions]
        log = self.cluster.log
        side = Side(f"{self.name}-{self.runs}", self.partitions, bases, log, self.reader, self.cluster)
        try:
            comparison = compare(ops, KafkaLockstep(side, self.deadline_s))
        finally:
            side.close()
        if comparison.differs or comparison.cut:
            self.partitions = self._new_topics()
        return comparison

    def close(self) -> None:
        self.reader.close()

    def _new_topics(self) -> tuple[TopicPartition, ...]:
        name = f"{self.name}-after-{self.runs}"
        admin = self.cluster.log.admin()
        try:
            admin.create_topics(topics_of(name))
        finally:
            admin.close()
        return partitions_of(name)


def run_in_lanes(
    name: str, cluster: KafkaCluster, sequences: Sequence[Sequence[Op]], lanes: int
) -> list[Comparison]:
    """Run all sequences, several at a time since most of each is waiting; results in the order given."""

    def run(lane_number: int) -> list[Comparison]:
        lane = Lane(f"{name}-{lane_number}", cluster)
        try:
            return [lane.run(ops) for ops in sequences[lane_number::lanes]]
        finally:
            lane.close()

    results: list[Comparison | None] = [None] * len(sequences)
    with ThreadPoolExecutor(lanes) as pool:
        for lane_number, comparisons in enumerate(pool.map(run, range(lanes))):
            results[lane_number::lanes] = comparisons
    return [comparison for comparison in results if comparison is not None]


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
        (1, lambda slot: ("open_greedy", slot, random.randrange(IDS))),
    ]
    anywhere: list[tuple[int, Callable[[], Op]]] = [
        (10, lambda: ("open", random.randrange(SLOTS), random.choice((0, 0, 1)))),
        (4, lambda: ("append", partition(), random.randint(1, 3))),
        (2, lambda: ("commit_offsets", partition() % 2, random.randint(0, 9))),
        (3, lambda: ("read", partition(), random.randint(0, 8), random.randint(1, 3), random.randint(0, 1))),
        (3, lambda: ("scan", partition(), random.randint(1, 3), random.randint(0, 1))),
        (6, lambda: ("offsets", partition(), random.randint(0, 1))),
        (4, lambda: ("committed", partition() % 2)),
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
        if op[0] in ("open", "open_greedy"):
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


def write_recording(file: Path, sequences: Iterable[tuple[Sequence[Op], Sequence[Answer]]]) -> None:
    """Keep sequences and the answers of the real side, one Python literal a line."""
    file.write_text("".join(f"{(list(ops), list(answers))!r}\n" for ops, answers in sequences), "utf-8")


def read_recording(file: Path) -> list[tuple[list[Op], list[Answer]]]:
    """What `write_recording` wrote."""
    return [ast.literal_eval(line) for line in file.read_text("utf-8").splitlines()]
