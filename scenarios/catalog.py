"""A catalog of prices: all that a key-value store can be asked, with keys that are prefixes of each other.

Input, keyed by product: a number sets its price, null takes the product out, `{"offer": n}` sets the price of one that
has none, `{"pair": n}` sets that of the product, twice in one call, and takes out its twin, or puts the twin in if it
is not there. "raise" makes each product up to this one dearer by 1 while it reads them; "sweep" takes out all products
whose names start with this one while it reads them; `{"last": n}` sets the price of what comes after all products that
begin with this one, or for b after all products, and "sweep last" takes that out as "sweep" does; `{"beside": n}` sets
the price of the first name after all products that begin with this one, as b is to a, and lists these; "list" lists
all, "near" those from the product b down to this one, or, where that is b, from the last one, "beyond" those from this
one to the last that there may be. "clear" makes all products whose names start with this one dearer by 1, opens two
iterators over them and takes them out before it reads either.

Output, keyed by product: what was there before, null if nothing was. For "raise" the prices that were met, from the
last to the first, then those that are there; for "sweep" what was met, then the first product that is left; for "clear"
what either iterator had, then what is left; for "list", "beside" and "beyond" those listed, the last one first for
"beyond" where the product is b; for "near" each odd price with the name that comes next.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec

import scenarios
from scenarios import InputRecord, Output, Sample, State, Stores
from store.streams.topology import Context, Topology
from store.types import Record

CATALOG = "catalog"
TWIN = b"na"
"""What the name of a product's twin has after it."""
LAST = b"b"
LATTER = b"\xff" * 4
"""What the name of the last has after that of a product: a prefix that no greater byte can end."""


class Catalog:
    """The pipeline."""

    def __init__(self, output: str) -> None:
        self.output = output

    def __call__(self, context: Context, record: Record) -> None:
        assert record.key is not None
        result = _answer(context.store(CATALOG), record.key, record.value)
        context.forward(self.output, record.key, None if result is None else msgspec.json.encode(result))


def _answer(catalog: Any, product: bytes, value: bytes | None) -> Any:
    match None if value is None else msgspec.json.decode(value):
        case None:
            return _price(catalog.delete(product))
        case int(price):
            before = catalog.get(product)
            catalog.put(product, b"%d" % price)
            return _price(before)
        case {"offer": int(price)}:
            return _price(catalog.put_if_absent(product, b"%d" % price))
        case {"pair": int(price)}:
            before = catalog.get(product + TWIN)
            twin = b"%d" % price if before is None else None
            catalog.put_all([(product, b"0"), (product, b"%d" % price), (product + TWIN, twin)])
            return _price(before)
        case "raise":
            met = []
            with catalog.reverse_range(None, product) as rows:
                for name, price in rows:
                    catalog.put(name, b"%d" % (int(price) + 1))
                    met.append((name, price))
            with catalog.range(None, product) as rows:
                return [_readable(met), _readable(rows)]
        case {"last": int(price)}:
            before = catalog.get(_last(product))
            catalog.put(_last(product), b"%d" % price)
            return _price(before)
        case "sweep" | "sweep last" as request:
            met = []
            product = _last(product) if request == "sweep last" else product
            with catalog.prefix_scan(product) as found, catalog.prefix_scan(product) as rows:
                for name, _ in found:
                    # Twice: an iterator that is open goes on with what was there before both.
                    catalog.put(name, b"0")
                    catalog.delete(name)
                # All of it is gone, and an iterator that was open before shows it.
                for name, price in rows:
                    met.append((name, price))
                with catalog.all() as left:
                    return [_readable(met), _name(left.peek_next_key()) if left.has_next() else None]
        case "clear":
            with catalog.prefix_scan(product) as rows:
                dearer = [(name, b"%d" % (int(price) + 1)) for name, price in rows]
            catalog.put_all(dearer)
            with catalog.prefix_scan(product) as first, catalog.prefix_scan(product) as second:
                catalog.put_all([(name, None) for name, _ in dearer])
                with catalog.all() as left:
                    return [_readable(rows) for rows in (first, second, left)]
        case {"beside": int(price)}:
            catalog.put(product[:-1] + bytes([product[-1] + 1]), b"%d" % price)
            with catalog.prefix_scan(product) as rows:
                return _readable(rows)
        case "beyond":
            scan = catalog.reverse_range if product == LAST else catalog.range
            with scan(product, LATTER) as rows:
                return _readable(rows)
        case "near":
            near = []
            with catalog.reverse_range(product, None if product == LAST else LAST) as rows:
                for name, price in rows:
                    peeks = int(price) % 2 and rows.has_next()
                    after = _name(rows.peek_next_key()) if peeks else None
                    near.append([_name(name), int(price), after])
            return near
        case _:
            with catalog.all() as rows:
                return _readable(rows)


def _last(product: bytes) -> bytes:
    """What comes after all products that begin with this one; where that is b, after all."""
    return LATTER if product == LAST else product + LATTER


def _price(price: bytes | None) -> int | None:
    return None if price is None else int(price)


def _readable(rows: Iterable[tuple[bytes, bytes]]) -> list[list[Any]]:
    return [[_name(name), int(price)] for name, price in rows]


def _name(key: bytes) -> str:
    """A character for each byte: names are in the order of the keys."""
    return key.decode("latin-1")


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "catalog"
    summary = "All operations of a key-value store, with writes and deletions under open iterators."
    keys = r"[\x01-\x7f]+"

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-input",),
            sinks=(f"{application_id}-output",),
            stores=(stores.key_value(CATALOG),),
            process=Catalog(f"{application_id}-output"),
        )

    def input(self, random: Random) -> Sample:
        price = random.randint(1, 99)
        value = random.choice(
            (
                *(price, price, {"pair": price}, {"offer": price}, {"last": price}, None),
                *("raise", "sweep", "sweep last", "clear", "list", "near", "beyond", {"beside": price}),
            )
        )
        return Sample(random.choice(("a", "ann", "anna", "b")), value)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        catalog, product = state[CATALOG], record.key
        before = catalog.get(product)
        if record.value == "raise":
            met = catalog.between(None, product)
            catalog.update({name: price + 1 for name, price in met})
            now = catalog.between(None, product)
            return [
                Output("output", product, [[list(row) for row in reversed(met)], [list(row) for row in now]])
            ]
        if record.value in ("sweep", "sweep last"):
            begin = _name_of_last(product) if record.value == "sweep last" else product
            swept = [[name, catalog.pop(name)] for name in sorted(catalog) if name.startswith(begin)]
            return [Output("output", record.key, [swept, min(catalog, default=None)])]
        if record.value == "clear":
            cleared = [[name, catalog.pop(name) + 1] for name in sorted(catalog) if name.startswith(product)]
            left = [list(row) for row in sorted(catalog.items())]
            return [Output("output", product, [cleared, cleared, left])]
        if record.value == "list":
            return [Output("output", product, [list(row) for row in sorted(catalog.items())])]
        if isinstance(record.value, dict) and "beside" in record.value:
            catalog[product[:-1] + chr(ord(product[-1]) + 1)] = record.value["beside"]
            begun = [list(row) for row in sorted(catalog.items()) if row[0].startswith(product)]
            return [Output("output", product, begun)]
        if record.value == "beyond":
            beyond = [list(row) for row in catalog.between(product, None)]
            return [Output("output", product, beyond[::-1] if product == LAST.decode() else beyond)]
        if record.value == "near":
            upper = None if product == LAST.decode() else LAST.decode()
            near = [list(row) for row in reversed(catalog.between(product, upper))]
            after = [*(name for name, _ in near[1:]), None] if near else []
            return [
                Output(
                    "output",
                    product,
                    [
                        [name, price, then if price % 2 else None]
                        for (name, price), then in zip(near, after, strict=True)
                    ],
                )
            ]
        if record.value is None:
            catalog.pop(product, None)
        elif type(record.value) is int:
            catalog[product] = record.value
        elif "pair" in record.value:
            catalog[product] = record.value["pair"]
            before = catalog.pop(product + TWIN.decode(), None)
            if before is None:
                catalog[product + TWIN.decode()] = record.value["pair"]
        elif "last" in record.value:
            before = catalog.pop(_name_of_last(product), None)
            catalog[_name_of_last(product)] = record.value["last"]
        elif before is None:
            catalog[product] = record.value["offer"]
        return [Output("output", product, before)]

    def accepts(self, record: InputRecord) -> bool:
        if record.topic != "input":
            return False
        match record.value:
            case None | "raise" | "sweep" | "sweep last" | "clear" | "list" | "near" | "beyond":
                return True
            case {"offer": price} | {"pair": price} | {"last": price} | {"beside": price}:
                return type(price) is int and len(record.value) == 1
            case price:
                return type(price) is int

    def decode_key(self, store: str, key: bytes) -> str:  # noqa: ARG002 - there is one store
        return _name(key)


def _name_of_last(product: str) -> str:
    return ("" if product == "b" else product) + "ÿÿÿÿ"


SCENARIO = Scenario()
