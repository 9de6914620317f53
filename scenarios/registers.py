"""Registers: keys and values of any bytes, empty ones and those that begin or end with 0 or 255 among them.

Input, keyed by a name that has six registers: the plain one; one before it (`low`, of a byte 0 and the name), those
behind it (`next`, of the name and a byte 0; `last`, of the name and 255), and those far behind all plain ones (`high`
and `top`, of 255 once or twice and the name). `["set", which, text]` sets one, also to no bytes; `["offer", which,
text]` one that is not there; `["grow", which]` sets it to a text of a byte, and to a long one; `["clear", which]` takes
it out; `["all", text]` sets each second of the six and takes out the others, in one call, and `["pair", text]` sets the
plain one and the first of those far behind, in another; both list all then. "up" lists all, "down" the
same from the last one, `["under", which]` those that begin with what this one is called, `["from", which]` those from
it on, the last first, and `["log", which]` what registers were ever set to, up to this one by name and kind, the last
first.

Output, keyed by the name: what was there before, a long text by its length, null if nothing was, and of one that is set
what is there then; or the registers that were listed, each second of them with the one that comes next.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec

import scenarios
from scenarios import InputRecord, Json, Output, Sample, State, Stores
from store.streams.topology import Context, Topology
from store.types import Record

REGISTERS = "registers"
LOG = "log"
AROUND = {
    "plain": (b"", b""),
    "low": (b"\x00", b""),
    "next": (b"", b"\x00"),
    "last": (b"", b"\xff"),
    "high": (b"\xff", b""),
    "top": (b"\xff\xff", b""),
}
"""Register → what its key has before the name, and behind it."""
PAIR = ("plain", "high")
"""Those that are set together: one far behind the other."""
LONG = "\xff" * 17_000
"""A text that no change of a store is held back with until the commit."""
TEXTS = ("", "", "0", "\x00", "\xff", "\xff\xff")


class Registers:
    """The pipeline."""

    def __init__(self, output: str) -> None:
        self.output = output

    def __call__(self, context: Context, record: Record) -> None:
        assert record.key is not None
        assert record.value is not None
        asked = msgspec.json.decode(record.value)
        result = _answer(context.store(REGISTERS), context.store(LOG), record.key, asked)
        context.forward(self.output, record.key, msgspec.json.encode(result))


def _answer(registers: Any, log: Any, name: bytes, asked: Any) -> Any:
    match asked:
        case ["set", which, text]:
            key = _key(name, which)
            before = registers.get(key)
            registers.put(key, _bytes(text))
            log.put(_entry(name, which), _bytes(text))
            return [_text(before), _text(registers.get(key))]
        case ["offer", which, text]:
            key = _key(name, which)
            before = registers.put_if_absent(key, _bytes(text))
            if before is None:
                log.put(_entry(name, which), _bytes(text))
            return _text(before)
        case ["grow", which]:
            key = _key(name, which)
            before = registers.get(key)
            registers.put(key, b"0")
            registers.put(key, _bytes(LONG))
            return _text(before)
        case ["clear", which]:
            return _text(registers.delete(_key(name, which)))
        case ["all", text]:
            set_to = [_bytes(text), None] * 3
            registers.put_all(
                [(_key(name, which), value) for which, value in zip(AROUND, set_to, strict=True)]
            )
            return _all(registers)
        case ["pair", text]:
            registers.put_all([(_key(name, which), _bytes(text)) for which in PAIR])
            return _all(registers)
        case ["under", which]:
            with registers.prefix_scan(_key(name, which)) as rows:
                return _listed(rows)
        case ["from", which]:
            with registers.reverse_range(_key(name, which), None) as rows:
                return _listed(rows)
        case ["log", which]:
            with log.reverse_range(None, _entry(name, which)) as rows:
                return _listed(rows)
        case "down":
            with registers.reverse_all() as rows:
                return _listed(rows)
        case _:
            return _all(registers)


def _all(registers: Any) -> list[list[str | None]]:
    with registers.all() as rows:
        return _listed(rows)


def _listed(rows: Any) -> list[list[str | None]]:
    """Each register with its text, and each second one with the one that comes next."""
    listed: list[list[str | None]] = []
    for key, value in rows:
        peeks = len(listed) % 2 and rows.has_next()
        listed.append([_text(key), _text(value), _text(rows.peek_next_key()) if peeks else None])
    return listed


def _key(name: bytes, which: str) -> bytes:
    before, behind = AROUND[which]
    return before + name + behind


def _entry(name: bytes, which: str) -> bytes:
    return b"%s-%s" % (name, which.encode())


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _text(data: bytes | None) -> str | None:
    """A character for each byte: texts are in the order of the bytes. A long one is told by its length."""
    return None if data is None else _told(data.decode("latin-1"))


def _told(text: str) -> str:
    return text if len(text) < len(LONG) else f"{len(text)} of {text[0]}"


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "registers"
    summary = "Keys and values of any bytes, empty ones among them, in a store of pairs and in one of lists."
    keys = r"[\x01-\x7f]+"

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-input",),
            sinks=(f"{application_id}-output",),
            stores=(stores.key_value(REGISTERS), stores.list_value(LOG)),
            process=Registers(f"{application_id}-output"),
        )

    def input(self, random: Random) -> Sample:
        which, text = random.choice(tuple(AROUND)), random.choice(TEXTS)
        value = random.choice(
            (
                *(["set", which, text], ["set", which, text], ["clear", which], ["grow", which]),
                *(["offer", which, text], ["offer", random.choice(PAIR), text]),
                *(["all", text], ["pair", text], ["pair", text]),
                *(["under", which], ["from", which], ["log", which], "up", "down"),
            )
        )
        return Sample(random.choice(("a", "a", "ab", "b")), value)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        result = self._step(state[REGISTERS], state[LOG], record)
        return [Output("output", record.key, _told(result) if isinstance(result, str) else result)]

    def _step(self, registers: Any, log: Any, record: InputRecord) -> Json:
        def called(which: str) -> str:
            before, behind = (part.decode("latin-1") for part in AROUND[which])
            return before + record.key + behind

        match record.value:
            case ["set", which, text]:
                before = registers.get(called(which))
                registers[called(which)] = text
                log.put(f"{record.key}-{which}", text)
                return [before and _told(before), text]
            case ["offer", which, text]:
                before = registers.get(called(which))
                if before is None:
                    registers[called(which)] = text
                    log.put(f"{record.key}-{which}", text)
                return before
            case ["grow", which]:
                before = registers.get(called(which))
                registers[called(which)] = LONG
                return before
            case ["clear", which]:
                return registers.pop(called(which), None)
            case ["all", text]:
                for number, which in enumerate(AROUND):
                    registers.pop(called(which), None)
                    if number % 2 == 0:
                        registers[called(which)] = text
                return _numbered(registers.between(None, None))
            case ["pair", text]:
                registers.update({called(which): text for which in PAIR})
                return _numbered(registers.between(None, None))
            case ["under", which]:
                return _numbered(
                    [row for row in sorted(registers.items()) if row[0].startswith(called(which))]
                )
            case ["from", which]:
                return _numbered(registers.between(called(which), None)[::-1])
            case ["log", which]:
                return _numbered(log.between(None, f"{record.key}-{which}")[::-1])
            case "down":
                return _numbered(registers.between(None, None)[::-1])
            case _:
                return _numbered(registers.between(None, None))

    def accepts(self, record: InputRecord) -> bool:
        if record.topic != "input":
            return False
        match record.value:
            case "up" | "down":
                return True
            case ["set" | "offer", str(which), str(text)]:
                return which in AROUND and all(ord(one) < 256 for one in text)
            case ["all" | "pair", str(text)]:
                return all(ord(one) < 256 for one in text)
            case ["grow" | "clear" | "under" | "from" | "log", str(which)]:
                return which in AROUND
            case _:
                return False

    def decode_key(self, store: str, key: bytes) -> str:  # noqa: ARG002 - it is asked for those of registers
        return key.decode("latin-1")

    def decode(self, store: str, value: bytes) -> Json:  # noqa: ARG002 - both have texts
        return value.decode("latin-1")


def _numbered(rows: Iterable[tuple[str, str]]) -> list[list[str | None]]:
    """The rows as the pipeline lists them."""
    listed = list(rows)
    return [
        [name, _told(text), listed[number + 1][0] if number % 2 and number + 1 < len(listed) else None]
        for number, (name, text) in enumerate(listed)
    ]


SCENARIO = Scenario()
