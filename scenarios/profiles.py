"""Users joined with their addresses by the DSL: two tables, joined twice; and what is made of them, joined again.

Input, keyed by user: to `users`, `addresses`, `notes` and `marks`, a number, or null for what is gone. What has no key
is nobody's.

Output, keyed by user: in `both` the two numbers for whoever has both, in `profiles` for every user, with null for an
address that is not there; null where there is no such pair any more. In `cards` what is in `profiles`, and the note
beside it, with null for whichever is not there. In `titled` the user as text and the note, for whoever has both. In
`grown` the users above 4, which are kept, with null for one that is none of them any more. In `small` twice the number
of each who is not, made of tables that hear of a user one after the other. In `marked` the mark and
the user, for whoever has both; marks have no cache, so they find what that of the users holds back, and in `placed` is
each after that, with its offset and its topic. Each has the latest time of what it was made of. With a record cache
there is at a commit what a user has come to, and there may be more before it: of one side's new value and the other
side's old one; and a deletion that finds nothing may count for the time, or not.

The order in which records of the four topics come is free. The reference takes them as the task did.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import ClassVar

import scenarios
from scenarios import KEYLESS, InputRecord, Json, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.streams.topology import Topology

USERS, ADDRESSES, NOTES, BOTH, GROWN, MINORS = (
    f"{what}-table" for what in ("users", "addresses", "notes", "both", "grown", "minors")
)
MARKS = "marks-table"
GROWN_UP = 5


def pair(user: Json, address: int | None) -> list[Json]:
    return [user, address]


def title(user: int) -> str:
    return f"user {user}"


class Place:
    """A processor that puts before each value where it comes from: the offset, and the topic's last name."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context

    def process(self, record: StreamRecord) -> None:
        at = self.context.record_metadata
        self.context.forward([at.offset, at.topic.rpartition("-")[2], record.value])


def is_grown(_user: str, number: int) -> bool:
    return number >= GROWN_UP


def as_it_is(number: int) -> int:
    return number


def alone(number: int, grown: int | None) -> int | None:
    return number if grown is None else None


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "profiles"
    summary = (
        "Tables joined by the DSL, inner and left, with deletions on all sides; and what is made of them."
    )
    joins: ClassVar[frozenset[str]] = frozenset(
        {"both", "profiles", "cards", "titled", "grown", "marked", "small"}
    )

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        users = builder.table(f"{application_id}-users", materialized=Materialized(USERS))
        addresses = builder.table(f"{application_id}-addresses", materialized=Materialized(ADDRESSES))
        both = users.join(addresses, pair, materialized=Materialized(BOTH))
        both.to_stream().to(f"{application_id}-both", value_serde=JsonSerde())
        profiles = users.left_join(addresses, pair)
        profiles.to_stream().to(f"{application_id}-profiles", value_serde=JsonSerde())
        notes = builder.table(f"{application_id}-notes", materialized=Materialized(NOTES))
        cards = profiles.outer_join(notes, pair)
        cards.to_stream().to(f"{application_id}-cards", value_serde=JsonSerde())
        titled = users.map_values(title).join(notes, pair)
        titled.to_stream().to(f"{application_id}-titled", value_serde=JsonSerde())
        # Told of a user before the table is that it is joined with.
        told = users.map_values(as_it_is)
        grown = users.filter(is_grown, materialized=Materialized(GROWN))
        grown.to_stream().to(f"{application_id}-grown")
        minors = told.left_join(grown, alone, materialized=Materialized(MINORS))
        minors.join(users, pair).to_stream().to(f"{application_id}-small", value_serde=JsonSerde())
        marks = builder.stream(f"{application_id}-marks")
        marked = marks.to_table(materialized=Materialized(MARKS).with_caching_disabled()).join(users, pair)
        marked.to_stream().to(f"{application_id}-marked", value_serde=JsonSerde())
        # After the join, which may have forwarded an update of another record meanwhile.
        marks.process_values(Place).to(f"{application_id}-placed")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        value = None if random.random() < 0.4 else random.randint(0, 9)
        topic = random.choice((*("users", "addresses") * 3, "notes", "marks"))
        return Sample(random.choice(("a", "a", "a", "ann") * 4 + (KEYLESS,)), value, topic=topic)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        key, time = record.key, record.timestamp
        if key == KEYLESS:
            return [_placed(record)] if record.topic == "marks" else []
        users, addresses, both = state[USERS], state[ADDRESSES], state[BOTH]
        if record.topic == "notes":
            return self._noted(state, record)
        if record.topic == "marks":
            return self._marked(state, record)
        note = state[NOTES].get(key)
        own, other = (users, addresses) if record.topic == "users" else (addresses, users)
        known, before = key in own, own.get(key)
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
            if note is not None or profile is not None or (own is users and known):
                at = latest if note is None else max(latest, note[1])
                outputs.append(Output("cards", key, _card(profile, note), at))
        if own is users:
            if note is not None:
                titled = None if user is None else [title(user[0]), note[0]]
                outputs.append(Output("titled", key, titled, max(time, note[1])))
            mark = state[MARKS].get(key)
            if mark is not None:
                marked = None if user is None else [mark[0], user[0]]
                outputs.append(Output("marked", key, marked, max(time, mark[1])))
            had_grown, grown = key in state[GROWN], user is not None and user[0] >= GROWN_UP
            if grown:
                state[GROWN][key] = user
            else:
                state[GROWN].pop(key, None)
            if grown or had_grown:
                outputs.append(Output("grown", key, record.value if grown else None))
            outputs += self._small(state, record, before)
        return outputs

    def _small(self, state: State, record: InputRecord, before: Json) -> list[Output]:
        """Those who are not grown up, and who they are: of a table that is made of a user's new number before its other
        side has heard of it, and then taken back."""
        key, time, number, minors = record.key, record.timestamp, record.value, state[MINORS]
        if number is None:
            return [Output("small", key, None)] if minors.pop(key, None) is not None else []
        made, gone = Output("small", key, [number, number]), Output("small", key, None)
        was_grown = before is not None and before[0] >= GROWN_UP
        first = replace(gone, timestamp=max(time, before[1])) if was_grown else made
        if number >= GROWN_UP:
            minors.pop(key, None)
            return [first, gone]
        minors[key] = [number, time]
        return [first, made, made] if was_grown else [first, made]

    def _noted(self, state: State, record: InputRecord) -> list[Output]:
        key, time, value, notes = record.key, record.timestamp, record.value, state[NOTES]
        known = key in notes
        if value is None:
            notes.pop(key, None)
        else:
            notes[key] = [value, time]
        user, address = state[USERS].get(key), state[ADDRESSES].get(key)
        profile = None if user is None else [user[0], None if address is None else address[0]]
        outputs = []
        if profile is not None or known or value is not None:
            latest = max([time, *(row[1] for row in (user, user and address) if row is not None)])
            outputs.append(Output("cards", key, _card(profile, None if value is None else [value]), latest))
        if user is not None:
            outputs.append(
                Output("titled", key, None if value is None else [title(user[0]), value], max(time, user[1]))
            )
        return outputs

    def _marked(self, state: State, record: InputRecord) -> list[Output]:
        key, time, value, user = record.key, record.timestamp, record.value, state[USERS].get(record.key)
        outputs = [_placed(record)]
        if value is None:
            state[MARKS].pop(key, None)
        else:
            state[MARKS][key] = [value, time]
        if user is not None:
            marked = None if value is None else [value, user[0]]
            outputs.append(Output("marked", key, marked, max(time, user[1])))
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        return record.topic in ("users", "addresses", "notes", "marks") and (
            record.value is None or type(record.value) is int
        )


def _placed(record: InputRecord) -> Output:
    return Output("placed", record.key, [record.offset, "marks", record.value])


def _card(profile: Json, note: Json) -> Json:
    return None if profile is note is None else [profile, None if note is None else note[0]]


SCENARIO = Scenario()
