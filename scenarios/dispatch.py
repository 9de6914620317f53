"""Parcels on their way by the DSL: what has no state, processors with stores and punctuators, and three
sub-topologies.

Input, keyed by sender: to whom a parcel goes and what it weighs, or null, which is left out. Parcels are numbered by
sender, and split: heavy ones become one record for their receiver, even ones one for the receiver and one for the
sender with half the weight each, null for no weight at all. Both go by a repartition topic, as [weight, number]; the
odd ones too. These are grouped by receiver as well, but for those that somebody sends to nobody else but himself.

Whatever a parcel leads to has its headers, but for what a punctuator sends; a balance has one more, by a processor, and
is handed on by another one, which finds it as the table has it and keeps it.

Output of the second sub-topology, keyed by whom it concerns: in `last` what came last, in `balance` the weight of
light parcels without that of heavy ones. A processor finds the balance that a parcel leads to, which goes to `owed`,
and sets all balances of its task to 0 when that one is too low; of this the table tells nobody. In `due` everything
once more: a punctuator of stream time delivers, at the next full 20 s after the stream time at which it came, all that
is due, what came first first, with the stream time. In `rounds` is how many had come at each of its calls: with the
first parcel, and with each that is at or beyond a full 20 s at which there was no call yet. In `reminders` is how many
had come, at the first full 20 s from the first parcel since the last reminder on: a punctuator of stream time that is
scheduled with that parcel, to start at the full 20 s before it, and cancelled when it has reminded. In `rounds` is the
same too at each call of one that is to start at 70 s, as a turn: with the first parcel at or beyond it, and then at
every 20 s from there on. Of a round and a turn with one parcel that comes first which was due first. In `ticks` is, by
a punctuator of the wall clock, how many had come at some time. Output of the third one, keyed by receiver: in
`heaviest` the greatest weight of the odd ones.

The processor keeps the stream time in its store for the reference to find. It is noted beside the positions, which may
be older than the stores after a crash under at least once: exactly once is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import WORD, InputRecord, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.state.timestamped import ValueAndTimestamp
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.dsl.operators import RecordContext
from store.streams.dsl.processors import FixedKeyContext, ProcessorContext, StreamRecord
from store.streams.dsl.punctuation import PunctuationType
from store.streams.topology import Topology

NUMBERS, TIMERS, LAST, BALANCE, HEAVIEST = "numbers", "timers", "last-parcels", "balances", "heaviest-parcels"
TOLD = "told-balances"
PARCELS, ODD = "parcels-repartition", "odd-repartition"
DELIVERY_MS = 20_000
TICK_MS = 300
FIRST_TURN_MS = 70_000
"""The time of the first parcel in many a schedule."""
HEAVY = 6
LIGHT = 4
NOW, SEEN, REMIND = "now", "seen", "remind"
TOO_LOW = -10
SIGNED = "signed"

Event = list[Any]
"""Receiver, weight, number."""
Parcel = list[int]
"""Weight, number."""


class Number:
    """A processor that numbers the parcels of each sender."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.numbers = context.store(NUMBERS)

    def process(self, record: StreamRecord) -> None:
        number = (self.numbers.get(record.key) or 0) + 1
        self.numbers.put(record.key, number)
        self.context.forward([*record.value, number])


class Deliver:
    """A processor that keeps what comes until it is due."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.timers = context.store(TIMERS)
        context.schedule(DELIVERY_MS, PunctuationType.STREAM_TIME, self.deliver)
        context.schedule(DELIVERY_MS, PunctuationType.STREAM_TIME, self.turn, start_ms=FIRST_TURN_MS)
        context.schedule(TICK_MS, PunctuationType.WALL_CLOCK_TIME, self.tick)
        remind_at = self.timers.get(REMIND)
        if remind_at is not None:
            self.begin_to_remind(remind_at)

    def begin_to_remind(self, start_ms: int) -> None:
        kind = PunctuationType.STREAM_TIME
        self.cancel = self.context.schedule(DELIVERY_MS, kind, self.remind, start_ms=start_ms)

    def process(self, record: StreamRecord) -> None:
        seen, now = (self.timers.get(SEEN) or 0) + 1, self.context.stream_time_ms
        due = (now // DELIVERY_MS + 1) * DELIVERY_MS
        self.timers.put(SEEN, seen)
        self.timers.put(NOW, now)
        self.timers.put(f"{due:015} {seen:06} {record.key}", [record.value])
        if self.timers.get(REMIND) is None:
            last = now // DELIVERY_MS * DELIVERY_MS
            self.timers.put(REMIND, now if last == now else due)
            # What is over by now is not called for.
            self.begin_to_remind(last)

    def deliver(self, now: int) -> None:
        with self.timers.range(None, f"{now:015}~") as rows:
            due = list(rows)
        self.context.forward("round", self.timers.get(SEEN), to="rounds-sink")
        for name, (parcel,) in due:
            self.timers.delete(name)
            self.context.forward(name.split(" ")[2], parcel, to="due-sink")

    def turn(self, _now: int) -> None:
        self.context.forward("turn", self.timers.get(SEEN), to="rounds-sink")

    def remind(self, _now: int) -> None:
        self.timers.delete(REMIND)
        self.context.forward("reminder", self.timers.get(SEEN), to="reminders-sink")
        self.cancel()

    def tick(self, _now: int) -> None:
        seen = self.timers.get(SEEN)
        if seen is not None:
            self.context.forward("tick", seen, to="ticks-sink")


class Sign:
    """A processor that says in a header where a record comes from."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context

    def process(self, record: StreamRecord) -> None:
        self.context.forward(record.value, headers=(*record.headers, (SIGNED, BALANCE.encode())))


class Keep:
    """A processor that hands records on as they are, and keeps the last one of each key."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.told = context.store(TOLD)

    def process(self, record: StreamRecord) -> None:
        self.told.put(record.key, ValueAndTimestamp(record.value, record.timestamp))
        self.context.forward(record.value)


class Owe:
    """A processor that reads the balances of a table, and writes them past it."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.balances = context.store(BALANCE)

    def process(self, record: StreamRecord) -> None:
        balance = self.balances.get(record.key).value
        self.context.forward(balance)
        if balance < TOO_LOW:
            with self.balances.all() as rows:
                names = [name for name, _ in rows]
            for name in names:
                self.balances.put(name, ValueAndTimestamp(0, record.timestamp))


def look(_sender: str, _event: Event | None) -> None: ...


def has_value(_key: str, value: object) -> bool:
    return value is not None


def is_heavy(_sender: str, event: Event) -> bool:
    return bool(event[1] > HEAVY)


def is_even(_sender: str, event: Event) -> bool:
    return bool(event[1] % 2 == 0)


def to_receiver(_sender: str, event: Event) -> tuple[str, Parcel]:
    return event[0], event[1:]


def halves(sender: str, event: Event) -> list[tuple[str, Parcel | None]]:
    receiver, weight, number = event
    half = [weight // 2, number] if weight else None
    return [(receiver, half), (sender, half)]


def receiver_of(_sender: str, event: Event) -> str:
    return str(event[0])


def other_receiver(sender: str, event: Event) -> str | None:
    return None if event[0] == sender else str(event[0])


def parcel_of(receiver: str, event: Event) -> Parcel | None:
    return event[1:] if event[0] == receiver else None


def is_light(_key: str, parcel: Parcel) -> bool:
    return parcel[0] <= LIGHT


def is_too_low(_key: str, balance: int) -> bool:
    return balance < TOO_LOW


def owed_beside(_key: str, _balance: int, context: RecordContext) -> str:
    return context.topic.removesuffix(PARCELS) + "owed"


def plus(_key: str, parcel: Parcel, balance: int) -> int:
    return balance + parcel[0]


def minus(_key: str, parcel: Parcel, balance: int) -> int:
    return balance - parcel[0]


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "dispatch"
    summary = (
        "Operators of the DSL without state, processors with stores and punctuators, in three sub-topologies."
    )
    keys = WORD
    settings: ClassVar[Mapping[str, Any]] = {"processing.guarantee": "exactly_once_v2"}
    time_step_ms = 7_000
    durations_ms = (DELIVERY_MS,)
    updates: ClassVar[frozenset[str]] = frozenset({"last", "balance", "heaviest"})
    behind_caches: ClassVar[frozenset[str]] = frozenset({TOLD})
    ticks: ClassVar[frozenset[str]] = frozenset({"ticks"})
    tick_ms = TICK_MS

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        values = JsonSerde[Any]()
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=values)
        builder.add_state_store(stores.key_value(NUMBERS, serdes=(StrSerde(), JsonSerde())))
        told = stores.key_value(TOLD, serdes=(StrSerde(), JsonSerde()), timestamped=True)
        builder.add_state_store(told)
        # The cache of the second sub-topology is left to its tables, and to what comes behind them.
        timers = Stores(stores.kind).key_value(TIMERS, serdes=(StrSerde(), JsonSerde()))
        builder.add_state_store(timers)
        events = builder.stream(f"{application_id}-input").peek(look).filter(has_value)
        numbered = events.process_values(Number, NUMBERS)
        sizes = numbered.split(name="size-").branch(is_heavy, name="heavy").branch(is_even, name="even")
        split = sizes.default_branch(name="odd")
        odd = split["size-odd"]
        heavy, even = split["size-heavy"].map(to_receiver), split["size-even"].flat_map(halves)
        rest = odd.select_key(receiver_of).map_values(parcel_of, with_key=True)
        parcels = heavy.merge(even).merge(rest).repartition(name="parcels")
        last = parcels.to_table(materialized=Materialized(LAST))
        last.to_stream().to(f"{application_id}-last")
        known = parcels.filter(has_value)
        light, not_light = known.filter(is_light).group_by_key(), known.filter_not(is_light).group_by_key()
        balance = light.cogroup(plus).cogroup(not_light, minus).aggregate(int, materialized=BALANCE)
        signed = balance.to_stream().process_values(Sign).process_values(Keep, TOLD)
        signed.to(f"{application_id}-balance")
        owed = known.process_values(Owe, BALANCE)
        owed.filter(is_too_low).to(f"{application_id}-owed")
        owed.filter_not(is_too_low).to(owed_beside)
        delivered = parcels.process(Deliver, TIMERS, name="deliver")
        delivered.to(f"{application_id}-due", name="due-sink")
        delivered.to(f"{application_id}-rounds", name="rounds-sink")
        delivered.to(f"{application_id}-reminders", name="reminders-sink")
        delivered.to(f"{application_id}-ticks", name="ticks-sink")
        odd.foreach(look)
        others = odd.group_by(other_receiver, value_serde=values, name="odd")
        heaviest = others.aggregate(int, heavier, materialized=Materialized(HEAVIEST))
        heaviest.to_stream().to(f"{application_id}-heaviest")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        value = None if random.random() < 0.1 else [random.choice("abc"), random.randint(0, 9)]
        headers = (("by", random.choice(("van", "bike"))),) if random.random() < 0.3 else ()
        return Sample(random.choice("abc"), value, headers=headers)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        headers = record.headers
        if record.topic == PARCELS:
            return self._parcel(state, record)
        if record.topic == ODD:
            if not isinstance(record.value, list):
                # Nobody should have written it, which is found where it was.
                return []
            _, weight, _ = record.value
            heaviest, latest = state[HEAVIEST].get(record.key, [0, -1])
            heaviest, latest = max(heaviest, weight), max(latest, record.timestamp)
            state[HEAVIEST][record.key] = [heaviest, latest]
            return [Output("heaviest", record.key, heaviest, latest, headers)]
        if record.value is None:
            return []
        receiver, weight = record.value
        number = state[NUMBERS][record.key] = state[NUMBERS].get(record.key, 0) + 1
        if weight <= HEAVY and weight % 2 == 0:
            half = [weight // 2, number] if weight else None
            return [Output(PARCELS, one, half, headers=headers) for one in (receiver, record.key)]
        outputs = [Output(PARCELS, receiver, [weight, number], headers=headers)]
        if weight <= HEAVY and receiver != record.key:
            outputs.append(Output(ODD, receiver, [receiver, weight, number], headers=headers))
        return outputs

    def _parcel(self, state: State, record: InputRecord) -> list[Output]:
        key, value, timers, headers = record.key, record.value, state[TIMERS], record.headers
        outputs = [Output("last", key, value, headers=headers)]
        if value is None:
            state[LAST].pop(key, None)
        else:
            state[LAST][key] = [value, record.timestamp]
            balance, latest = state[BALANCE].get(key, [0, -1])
            balance += value[0] if value[0] <= LIGHT else -value[0]
            latest = max(latest, record.timestamp)
            state[BALANCE][key] = [balance, latest]
            state[TOLD][key] = [balance, latest]
            outputs.append(Output("balance", key, balance, latest, (*headers, (SIGNED, BALANCE))))
            outputs.append(Output("owed", key, balance, headers=headers))
            if balance < TOO_LOW:
                for name in sorted(state[BALANCE]):
                    state[BALANCE][name] = [0, record.timestamp]
        before = timers.get(NOW, -1)
        now = timers[NOW] = max(before, record.timestamp)
        seen = timers[SEEN] = timers.get(SEEN, 0) + 1
        due = now - now % DELIVERY_MS + DELIVERY_MS
        timers[f"{due:015} {seen:06} {key}"] = [value]
        if timers.setdefault(REMIND, now + -now % DELIVERY_MS) <= now:
            del timers[REMIND]
            outputs.append(Output("reminders", "reminder", seen, now))
        calls = []
        if now // DELIVERY_MS > before // DELIVERY_MS:
            calls.append(((before // DELIVERY_MS + 1) * DELIVERY_MS, "round"))
        if turn_at(now) > turn_at(before):
            calls.append((FIRST_TURN_MS + (turn_at(before) + 1) * DELIVERY_MS, "turn"))
        outputs += [Output("rounds", name, seen, now) for _, name in sorted(calls)]
        for name in sorted(timers.keys() - {NOW, SEEN, REMIND}):
            at, _, whom = name.split(" ")
            if int(at) <= now:
                outputs.append(Output("due", whom, timers.pop(name)[0], now))
        return [*outputs, Output("ticks", "tick", seen, now)]

    def accepts(self, record: InputRecord) -> bool:
        value = record.value
        if record.topic != "input" or value is None:
            return record.topic == "input"
        return isinstance(value, list) and [*map(type, value)] == [str, int] and value[1] >= 0


def turn_at(time: int) -> int:
    """Which of the turns was the last one then, -1 before the first."""
    return max(-1, (time - FIRST_TURN_MS) // DELIVERY_MS)


def heavier(_receiver: str, event: Event, heaviest: int) -> int:
    return max(heaviest, int(event[1]))


SCENARIO = Scenario()
