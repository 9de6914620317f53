"""State outside of stores, the mistake that users make most, is found: a crash takes it, a rollback does not."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import ClassVar

import pytest
from msgspec.structs import replace

from harness.history import Moment, StateObserved
from harness.replay import check, simulate
from harness.schedule import Input, Runtime, Schedule, Step, encode
from harness.verdict import Outcome
from harness.worlds.sim.memory import Memory
from scenarios import load
from store.points import Point
from store.streams.topology import Context
from store.testing.memory_log import MemoryLog
from store.types import Record
from tests.harness.pipelines import Holder, Process, WithProcess

RECORDS = tuple(Input(0, "ann", 1) for _ in range(4))

TOTALS: dict[bytes, dict[int, int]] = {}
SEEN: list[tuple[bytes, int, int]] = []
QUEUE: deque[tuple[bytes, int, int]] = deque()
COUNT = 0


def _write(context: Context, record: Record, amounts: Iterable[int]) -> None:
    """What balances does, from a memory that replays and aborts do not disturb."""
    assert record.key is not None
    context.store("accounts").put(record.key, b"%d" % sum(amounts))
    context.forward("app-output", record.key, b"%d" % sum(amounts))


def _remember(context: Context, record: Record, amounts: dict[int, int]) -> None:
    """`amounts` are those of the record's key, by offset."""
    amounts[record.offset] = int(record.value or 0)
    _write(context, record, [amounts[offset] for offset in amounts if offset <= record.offset])


class InTheObject:
    def __init__(self) -> None:
        self.amounts: dict[bytes, dict[int, int]] = {}

    def __call__(self, context: Context, record: Record) -> None:
        amounts = self.amounts.setdefault(record.key or b"", {})
        _remember(context, record, amounts)


KEPT = InTheObject()


def in_a_dict(context: Context, record: Record) -> None:
    amounts = TOTALS.setdefault(record.key or b"", {})
    _remember(context, record, amounts)


def in_a_list(context: Context, record: Record) -> None:
    SEEN.append((record.key or b"", record.offset, int(record.value or 0)))
    known = {offset: amount for key, offset, amount in SEEN if key == record.key and offset <= record.offset}
    _write(context, record, list(known.values()))


def in_a_queue(context: Context, record: Record) -> None:
    QUEUE.append((record.key or b"", record.offset, int(record.value or 0)))
    known = {offset: amount for key, offset, amount in QUEUE if key == record.key and offset <= record.offset}
    _write(context, record, list(known.values()))


def in_a_number(context: Context, record: Record) -> None:
    """Right without faults: every key and every amount is the same in this test."""
    global COUNT
    COUNT = max(COUNT + 1, 1)
    _write(context, record, [COUNT])


class InTheClass:
    amounts: ClassVar[dict[bytes, dict[int, int]]] = {}

    def __call__(self, context: Context, record: Record) -> None:
        amounts = self.amounts.setdefault(record.key or b"", {})
        _remember(context, record, amounts)


class CountedByTheClass:
    count = 0

    def __call__(self, context: Context, record: Record) -> None:
        """Right without faults, as `in_a_number` is."""
        type(self).count += 1
        _write(context, record, [self.count])


def in_a_default(
    context: Context,
    record: Record,
    totals: dict[bytes, dict[int, int]] = {},  # noqa: B006 - the mistake that is to be found
) -> None:
    amounts = totals.setdefault(record.key or b"", {})
    _remember(context, record, amounts)


@lru_cache
def totals_of(_: bytes) -> dict[int, int]:
    return {}


def in_a_function_that_remembers(context: Context, record: Record) -> None:
    amounts = totals_of(record.key or b"")
    _remember(context, record, amounts)


def _closing() -> tuple[Process, Process]:
    totals: dict[bytes, dict[int, int]] = {}
    count = 0

    def in_what_is_closed_over(context: Context, record: Record) -> None:
        amounts = totals.setdefault(record.key or b"", {})
        _remember(context, record, amounts)

    def counted(context: Context, record: Record) -> None:
        """Right without faults, as `in_a_number` is."""
        nonlocal count
        count += 1
        _write(context, record, [count])

    return in_what_is_closed_over, counted


in_what_is_closed_over, counted_by_what_is_closed_over = _closing()

NAMES = SimpleNamespace(kept=InTheObject())


@dataclass(slots=True, frozen=True)
class Slots:
    kept: tuple[InTheObject, ...] = (InTheObject(),)


SLOTS = [Slots()]


@dataclass(slots=True)
class CountedInASlot:
    count: int = 0

    def __call__(self, context: Context, record: Record) -> None:
        """Right without faults, as `in_a_number` is."""
        self.count += 1
        _write(context, record, [self.count])


COUNTED_IN_A_SLOT = CountedInASlot()
TOTALS_BY_DEFAULT: defaultdict[bytes, dict[int, int]] = defaultdict(dict)
BESIDE = Holder()


def in_objects_within_others(context: Context, record: Record) -> None:
    NAMES.kept(context, record)


def in_an_object_in_a_slot(context: Context, record: Record) -> None:
    SLOTS[0].kept[0](context, record)


def in_a_dict_with_defaults(context: Context, record: Record) -> None:
    _remember(context, record, TOTALS_BY_DEFAULT[record.key or b""])


def in_an_object_of_another_module(context: Context, record: Record) -> None:
    _remember(context, record, BESIDE.amounts.setdefault(record.key or b"", {}))


def in_an_attribute_of_the_function(context: Context, record: Record) -> None:
    amounts = vars(in_an_attribute_of_the_function).setdefault("amounts", {}).setdefault(record.key, {})
    _remember(context, record, amounts)


KEEPERS: dict[str, Callable[[], Process]] = {
    "dict": lambda: in_a_dict,
    "list": lambda: in_a_list,
    "deque": lambda: in_a_queue,
    "number": lambda: in_a_number,
    "new object": InTheObject,
    "object of the module": lambda: KEPT,
    "object within a namespace": lambda: in_objects_within_others,
    "object within a slot": lambda: in_an_object_in_a_slot,
    "number in a slot": lambda: COUNTED_IN_A_SLOT,
    "dict with defaults": lambda: in_a_dict_with_defaults,
    "object of another module": lambda: in_an_object_of_another_module,
    "attribute of a function": lambda: in_an_attribute_of_the_function,
    "class": InTheClass,
    "number of a class": CountedByTheClass,
    "default argument": lambda: in_a_default,
    "function that remembers": lambda: in_a_function_that_remembers,
    "closure": lambda: in_what_is_closed_over,
    "number of a closure": lambda: counted_by_what_is_closed_over,
}


@pytest.mark.parametrize("runtime", Runtime)
@pytest.mark.parametrize("keeper", KEEPERS)
def test_state_that_is_only_in_the_memory_of_the_process_is_found(keeper: str, runtime: Runtime) -> None:
    scenario = WithProcess(KEEPERS[keeper])
    steps = (Step("kill", at=Point.STORE_COMMITTED),)
    for faults, outcome in (((), Outcome.HOLDS), (steps, Outcome.VIOLATED)):
        schedule = Schedule(
            "balances", RECORDS, faults, runtime, batch_records=20, settings={"commit.records": 2}
        )
        assert simulate(scenario, schedule)[1].outcome is outcome


def test_the_memory_of_one_process_is_not_seen_by_another() -> None:
    """A right pipeline with a cache in its module: each task fills it for itself."""
    scenario = WithProcess(lambda: in_a_dict)
    items = tuple(Input(partition, "ann", 1) for _ in range(4) for partition in (0, 1))
    schedule = Schedule("balances", items, partitions=2, settings={"commit.records": 1})
    history, _ = simulate(scenario, schedule)
    last = [
        event.stores["accounts"].rows
        for event in history.events
        if isinstance(event, StateObserved) and event.moment is Moment.FINAL
    ]
    assert last == [{"ann": 4}] * 2
    assert not TOTALS


DISTINCT = """
from scenarios import Sample, Scenario, InputRecord
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import StreamsBuilder
{seen}

class Distinct:
    {of_the_class}

    def init(self, context):
        self.context, self.counts = context, context.store("counts")

    def process(self, record):
        if record.value not in {where}:
            {where}.add(record.value)
            self.counts.put(record.key, (self.counts.get(record.key) or 0) + 1)

class Counts(Scenario):
    name = "distinct"
    summary = "Distinct values of a key."

    def pipeline(self, application_id, stores):
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        builder.add_state_store(stores.key_value("counts", serdes=(StrSerde(), JsonSerde())))
        builder.stream(application_id + "-input").process(Distinct, "counts")
        return builder.build()

    def input(self, random):
        return Sample([InputRecord("input", "a", 1)])

    def reference(self, state, record):
        seen = state["counts"].get(record.key, 0)
        state["counts"][record.key] = max(seen, record.value)
        return []

SCENARIO = Counts()
"""
"""Right without faults where the values of a key are 1, 2, 3…"""

PLACES = {
    "the scenario's file": {"seen": "SEEN = set()", "where": "SEEN", "of_the_class": ""},
    "a class of the scenario's file": {"seen": "", "where": "self.seen", "of_the_class": "seen = set()"},
    "a file beside it": {"seen": "import beside_{0}", "where": "beside_{0}.SEEN", "of_the_class": ""},
    "a name of a file beside it": {
        "seen": "from beside_{0} import SEEN",
        "where": "SEEN",
        "of_the_class": "",
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_what_a_processor_of_the_dsl_keeps_in_a_module_is_gone_with_its_process(
    place: str, tmp_path: Path
) -> None:
    number = list(PLACES).index(place)
    parts = {name: text.format(number) for name, text in PLACES[place].items()}
    (tmp_path / f"beside_{number}.py").write_text("SEEN = set()\n")
    file = tmp_path / "distinct.py"
    file.write_text(DISTINCT.format(**parts))
    scenario = load(str(file))
    items = tuple(Input(0, "a", number) for number in (1, 2, 3))
    killed = Schedule(
        str(file), items, (Step("kill", at=Point.COMMIT_STARTED),), settings={"commit.records": 1}
    )
    for schedule, outcome in (
        (replace(killed, steps=()), Outcome.HOLDS),
        (killed, Outcome.HOLDS),
        (replace(killed, steps=(Step("abort_commit"),)), Outcome.VIOLATED),
        (killed, Outcome.HOLDS),
    ):
        assert simulate(scenario, schedule)[1].outcome is outcome


def test_a_schedule_is_checked_from_its_file_with_the_scenario_that_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = PLACES["the scenario's file"]
    (tmp_path / "counted.py").write_text(DISTINCT.format(**parts))
    (tmp_path / "failures").mkdir()
    file = tmp_path / "failures" / "one.json"
    items = tuple(Input(0, "a", number) for number in (1, 2))
    schedule = Schedule("../counted.py", items, settings={"commit.records": 1})
    monkeypatch.chdir(tmp_path / "failures")
    file.write_bytes(encode(schedule))
    check(file)
    monkeypatch.chdir("/")
    check(file)
    file.write_bytes(encode(replace(schedule, steps=(Step("abort_commit"),))))
    with pytest.raises(AssertionError, match="as if the record 'a'=1 at input offset 0 had not counted"):
        check(file)


def test_what_several_names_stand_for_stays_one_object_for_each_process() -> None:
    """A right pipeline that reaches what it keeps on two ways."""
    memory = Memory(load("balances"), [through_two_names])
    memory.enter(0)
    KNOWN["a"] = 1
    assert TWICE[0] is KNOWN
    memory.enter(1)
    assert TWICE[0] is KNOWN
    KNOWN["a"] = 2
    memory.enter(0)
    assert KNOWN == TWICE[0] == {"a": 1}
    memory.enter(1)
    assert KNOWN == TWICE[0] == {"a": 2}
    memory.leave()
    KNOWN.clear()


KNOWN: dict[str, int] = {}
TWICE = [KNOWN]


def through_two_names() -> None:
    """A function of this module."""


LOCK = Lock()
LOGGER = logging.getLogger(__name__)
LOG = MemoryLog()


def test_what_belongs_to_the_system_or_to_the_store_is_shared() -> None:
    memory = Memory(load("balances"), [through_two_names])
    memory.enter(0)
    LOGGER.mark = LOG.mark = 1  # type: ignore[attr-defined]
    with LOCK:
        memory.enter(1)
        assert LOCK.locked()
        assert vars(LOGGER)["mark"] == vars(LOG)["mark"] == 1
    memory.leave()
    del LOGGER.mark, LOG.mark  # type: ignore[attr-defined]
