"""Pipelines under test: what each does, its input, and a reference that says in plain Python what must come out.

A scenario speaks JSON to the harness: keys are strings, the empty one for none and `EMPTY` for one of no bytes, values
any JSON, None a deletion. On the wire a key is UTF-8 and a value is compact JSON, so that a schedule file can be read
and edited by hand. Topics are named without the application id.

A scenario of this package is found by being here. One of your own is a Python file, or a module, with a `SCENARIO`:
`crashproof run path/to/my_scenario.py` and `crashproof run my_package.my_module:SCENARIO` take it. What it imports may
lie beside the file, or in the directory that the command is called from.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
import struct
import sys
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from random import Random
from traceback import walk_tb
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from store.config import StoreType, StreamsConfig
from store.errors import ConfigError
from store.serdes import BytesSerde, Serde
from store.streams.application import Application
from store.streams.topology import Topology
from store.suppliers import (
    KeyValueSupplier,
    ListValueSupplier,
    SessionSupplier,
    StoreBuilder,
    StoreSupplier,
    VersionedSupplier,
    WindowSupplier,
    default_store,
    key_value_store_builder,
    list_value_store_builder,
    persistent_list_value_store,
    persistent_session_store,
    persistent_timestamped_key_value_store,
    persistent_timestamped_window_store,
    persistent_versioned_key_value_store,
    persistent_window_store,
    session_store_builder,
    timestamped_key_value_store_builder,
    timestamped_window_store_builder,
    versioned_key_value_store_builder,
    window_store_builder,
)

Json = Any
"""Anything that a JSON text can hold."""

Headers = tuple[tuple[str, str | None], ...]


class InputRecord(NamedTuple):
    """One input record as the reference meets it."""

    topic: str
    partition: int
    offset: int
    key: str
    value: Json
    timestamp: int
    """Milliseconds since the epoch."""
    headers: Headers = ()


KEYLESS = ""
"""The key of a record that has none, in an input too. An output without one may be in any partition."""
EMPTY = "\0"
"""The key of no bytes, which is a key as any other."""

KEYED = r"(?s).+"
"""The keys of a scenario whose records all have one, see `Scenario.keys`."""
NOT_EMPTY = r"(?s)(?!\x00\Z).+"
"""Those of one that does without the key of no bytes, too."""
WORD = r"[^\x00 ]+"
"""Those of one whose reference puts keys together with what else a row is named by."""


@dataclass(frozen=True)
class Output:
    """One expected output record."""

    topic: str
    key: str
    value: Json
    timestamp: int | None = None
    """Milliseconds since the epoch; None: that of the input record."""
    headers: Headers = ()
    partitions: tuple[int, ...] | None = None
    """It is in each of these once, and nowhere where there are none; None: in that of its key."""


class OneOf:
    """A value that may be any of several, where the order of arrival is free. Equal to each of them."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: Iterable[Json]) -> None:
        self.values = tuple(values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OneOf):
            return self.values == other.values
        return other in self.values

    def __repr__(self) -> str:
        return f"one of {', '.join(map(repr, self.values))}"


@dataclass(frozen=True)
class Sample:
    """One input record that a scenario makes. Where it goes and when it is said to have happened is for the
    generator, unless the sample says so itself."""

    key: str
    value: Json
    topic: str = "input"
    timestamp: int | None = None
    """Milliseconds since the epoch; None: the generator's clock, which mostly goes forward."""
    headers: Headers = ()


Supplier = TypeVar(
    "Supplier", KeyValueSupplier, ListValueSupplier, SessionSupplier, VersionedSupplier, WindowSupplier
)

Serdes = tuple[Serde[Any], Serde[Any]]
"""For keys and for values."""


@dataclass(frozen=True)
class Stores:
    """Makes stores as the settings of a run want them: with or without transactions, on disk or in memory, cached or
    not. A scenario that does not care asks here; one that does makes its supplier itself. Stores take and give bytes
    unless serdes are given."""

    kind: StoreType = StoreType.TXN_ROCKS_DB
    cached: bool = False

    @classmethod
    def of(cls, config: StreamsConfig) -> Stores:
        return cls(config.default_dsl_store, config.statestore_cache_max_bytes > 0)

    @property
    def others(self) -> Stores:
        """Makes stores of another kind than the run wants, for tasks that have both."""
        kinds = tuple(StoreType)
        return replace(self, kind=kinds[kinds.index(self.kind) - 1])

    def key_value(
        self, name: str, *, serdes: Serdes | None = None, timestamped: bool = False
    ) -> StoreSupplier[Any]:
        """A value for each key. A timestamped one takes and gives `ValueAndTimestamp`."""
        if not timestamped:
            return self._made(default_store(name, self.kind), key_value_store_builder, serdes)
        supplier = self._placed(persistent_timestamped_key_value_store(name))
        return self._made(supplier, timestamped_key_value_store_builder, serdes, typed=True)

    def window(
        self,
        name: str,
        *,
        retention_ms: int,
        size_ms: int,
        serdes: Serdes | None = None,
        retain_duplicates: bool = False,
        timestamped: bool = False,
    ) -> StoreSupplier[Any]:
        """A value for each key and start of a window, or several where duplicates are retained. A timestamped one
        takes and gives `ValueAndTimestamp`."""
        make = persistent_timestamped_window_store if timestamped else persistent_window_store
        supplier = self._placed(make(name, retention_ms, size_ms, retain_duplicates))
        builder = timestamped_window_store_builder if timestamped else window_store_builder
        return self._made(supplier, builder, serdes, typed=timestamped)

    def session(self, name: str, *, retention_ms: int, serdes: Serdes | None = None) -> StoreSupplier[Any]:
        """A value for each key, start and end of a session."""
        supplier = self._placed(persistent_session_store(name, retention_ms))
        return self._made(supplier, session_store_builder, serdes)

    def versioned(self, name: str, *, retention_ms: int, serdes: Serdes | None = None) -> StoreSupplier[Any]:
        """The versions of each key. It never has a cache."""
        supplier = self._placed(persistent_versioned_key_value_store(name, retention_ms))
        if serdes is None:
            return supplier
        return versioned_key_value_store_builder(supplier, *serdes)

    def list_value(self, name: str, *, serdes: Serdes | None = None) -> StoreSupplier[Any]:
        """The values of each key, in the order in which they were put."""
        return self._made(self._placed(persistent_list_value_store(name)), list_value_store_builder, serdes)

    def _placed(self, supplier: Supplier) -> Supplier:
        return replace(
            supplier,
            transactional=self.kind is not StoreType.ROCKS_DB,
            persistent=self.kind is not StoreType.IN_MEMORY,
        )

    def _made(
        self,
        supplier: StoreSupplier[Any],
        builder: Callable[..., StoreBuilder[Any]],
        serdes: Serdes | None,
        *,
        typed: bool = False,
    ) -> StoreSupplier[Any]:
        if serdes is None and not self.cached and not typed:
            return supplier
        built = builder(supplier, *(serdes or (BytesSerde(), BytesSerde())))
        return built.with_caching_enabled() if self.cached else built.with_caching_disabled()


State = Mapping[str, Any]
"""The reference's own tables of one task, by store name; see `harness.reference.tables` for what each can do. That of
a key-value store is a dict. There is one for each store, and for each name of `Scenario.noted`, and what the reference
has to know is in them alone."""


class Scenario(ABC):
    """A pipeline together with what it has to compute. Subclass it, and make one instance, `SCENARIO`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One sentence for `crashproof scenarios`."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that the pipeline needs, by their dotted names; all others vary from schedule to schedule."""
    runtimes: ClassVar[tuple[str, ...]] = ("worker", "spark", "streams")
    """What can run the pipeline, by the names of `harness.schedule.Runtime`. A query of Spark takes one topology."""
    time_step_ms: ClassVar[int] = 1_000
    """About how much time lies between two input records."""
    durations_ms: ClassVar[tuple[int, ...]] = ()
    """Spans of time at which something changes: windows, gaps, retentions. Some records lie just so far apart."""
    edges_ms: ClassVar[tuple[int, ...]] = ()
    """Those of them at which one record just reaches another. In some schedules all records lie just so far apart."""
    sliding_ms: ClassVar[int] = 0
    """How long its sliding windows are; 0: it has none. Some schedules have all records at the beginning of time, and
    no window starts before that."""
    retentions_ms: ClassVar[Mapping[str, int]] = {}
    """Store of windows, sessions or versions → for how long a row is kept, as worked out by hand: of windows after the
    time it begins, of sessions after its end, of versions the history. The reference has its tables keep rows so long,
    and those of other stores as long as the stores are made to, so that a wrong one there is not found."""

    least_partitions: ClassVar[int] = 1
    """How many partitions its topics have at least."""
    untimed: ClassVar[bool] = False
    """Whether it takes records without a time of their own, of -1, after one that has one in each partition. Some
    schedules have such."""
    aborts: ClassVar[bool] = False
    """Whether transactions are aborted by the pipeline itself, as where processing raises and a handler goes on."""

    topic_settings: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Topic that is there before the pipeline is → what is configured for it, as in Kafka."""

    updates: ClassVar[frozenset[str]] = frozenset()
    """Topics that get each update of one table of the DSL. Where that has a cache, it forwards at a commit what has
    become of a key, and some of the updates before. The reference gives them all."""
    joins: ClassVar[frozenset[str]] = frozenset()
    """Topics that get the updates of a join of such tables. With a cache there may be results of one table's new value
    and the other one's old one, which the reference has not; but at a commit the last one has what a key has come to,
    whatever its time."""
    settles: ClassVar[frozenset[str]] = frozenset()
    """Topics of a join of such tables by a foreign key, and those between its sub-topologies. With a cache it depends
    on what was forwarded which answers are outdated: nothing is asked there but what `settled` says."""
    changes: ClassVar[frozenset[str]] = frozenset()
    """Repartition topics of tables of the DSL that are grouped. A record there says what comes to a group and what
    leaves it: to the reference that is `[value, value]`, null for none, and each of them is JSON. With a cache some
    are left out, and at a commit the others amount to the same."""
    behind_caches: ClassVar[frozenset[str]] = frozenset()
    """Stores that a processor writes with the updates of such a table. With a cache they are those of the reference at
    commits alone: what a query finds of them uncommitted has the position of the last one, and of each row what it was
    then or since."""
    ticks: ClassVar[frozenset[str]] = frozenset()
    """Topics that get records by the wall clock, any number of them. With each record the reference gives the one that
    would come if the clock struck after it."""
    tick_ms: ClassVar[int] = 0
    """How often the sub-topologies of these topics do something by the wall clock, and they do nothing else by it; 0:
    nobody knows."""

    keys: ClassVar[str] = r"(?s).*"
    """What all of an input record's key has to match, as a regular expression: `KEYED`, `NOT_EMPTY`, `WORD`, or one's
    own. A schedule with another key is refused as one that `accepts` does not take; the default is any key, or none."""

    noted: ClassVar[frozenset[str]] = frozenset()
    """Tables of the reference for what the pipeline keeps in no store, but beside its positions: the time that a
    partition has come to, say. Each is a dict, and known by what it leads to alone."""

    _reference: str = ""

    @property
    def reference_name(self) -> str:
        """How `load` finds the scenario again: its name, or the file or module that it was loaded from."""
        return self._reference or self.name

    @abstractmethod
    def pipeline(self, application_id: str, stores: Stores) -> Topology | Application | Sequence[Topology]:
        """The pipeline: one topology, an application as `StreamsBuilder.build` makes it, or sub-topologies in the order
        of their ordinals. Its topics start with the application id and a dash."""

    def reordered(self, application_id: str, stores: Stores) -> Application | Sequence[Topology]:  # noqa: ARG002 - there is none
        """Another version of the pipeline: the same sub-topologies, some of them with other ordinals. Empty if there is
        none. Tasks are named by the ordinals of `pipeline`, whichever version runs."""
        return ()

    @abstractmethod
    def input(self, random: Random) -> Sample:
        """One input record, by the given source of chance alone: the same numbers have to give the same record."""

    @abstractmethod
    def reference(self, state: State, record: InputRecord) -> Iterable[Output]:
        """One step of the specification, for the task that gets the record: changes its tables, returns the outputs
        in order. Written independently of the pipeline, without stores, buffers or transactions."""

    def time_of(self, state: State, record: InputRecord) -> int:  # noqa: ARG002 - that of its topic by default
        """When a record is that comes next, in milliseconds since the epoch, where the pipeline has an extractor. Asked
        before `reference`, and changes nothing."""
        return record.timestamp

    def settled(self, inputs: Mapping[str, Mapping[str, Json]]) -> Mapping[str, Mapping[str, Json]]:  # noqa: ARG002
        """Topic → key → its last value, when the input was processed once and has come to this: topic → key → its last
        value. A deletion is the same as nothing. For topics of which that is known, whatever the order."""
        return {}

    def accepts(self, record: InputRecord) -> bool:  # noqa: ARG002 - the default takes every one
        """Whether the pipeline takes an input record. A schedule with another is refused before anything runs, and
        a failing one is reduced to records that are taken alone: say here what `input` never makes.

        Some schedules have more keys than `input`, which are its own with a number behind, if they are taken."""
        return True

    def commits_after(self, record: InputRecord) -> bool:  # noqa: ARG002 - the default never asks
        """Whether the processing function asks for a commit after this record. Judged where a run tells each record
        that is processed, which it does of tasks that read several topics."""
        return False

    def decode_output(self, topic: str, key: bytes | None, value: bytes | None) -> tuple[str, Json]:
        """Key and value of a record that the pipeline has written, as the reference has them: `KEYLESS` for no key;
        text and JSON unless a scenario says otherwise. Raises ValueError for what cannot be one."""
        if topic in self.changes and value is not None:
            return decode_record(key, None)[0], decode_change(value)
        return decode_record(key, value)

    def decode_key(self, store: str, key: bytes) -> str:  # noqa: ARG002 - the default is for every store
        """The name of a row of a key-value store, as the reference has it; names have to be in the order of the keys.
        Text unless a scenario says otherwise. Raises ValueError for what cannot be one."""
        return decode_key(key)

    def decode(self, store: str, value: bytes) -> Json:  # noqa: ARG002 - the default is for every store
        """The value of a row of a store, as the reference writes it; JSON unless a scenario says otherwise. Raises
        ValueError for what cannot be one."""
        return msgspec.json.decode(value)


def topologies(
    scenario: Scenario, application_id: str, config: StreamsConfig, *, reordered: bool = False
) -> tuple[Topology, ...]:
    """The sub-topologies of a scenario's pipeline, or of its other version, by ordinal. `ScenarioError` if it makes
    none that can be run."""
    what = "reordered pipeline" if reordered else "pipeline"
    try:
        make = scenario.reordered if reordered else scenario.pipeline
        made: Any = make(application_id, Stores.of(config))
        if isinstance(made, Application):
            found = made.sub_topologies
        else:
            found = tuple(made) if isinstance(made, Iterable) else (made,)
    except Exception as error:
        raise ScenarioError(
            f"scenario {scenario.name} does not make its {what}: {words_of(error)}"
        ) from error
    if not found or not all(isinstance(one, Topology) for one in found):
        raise ScenarioError(
            f"scenario {scenario.name}: its {what} is {made!r}, it has to be "
            f"{'' if reordered else 'a Topology, '}an Application or several Topologies"
        )
    ordinals = [topology.ordinal for topology in found]
    if ordinals != list(range(len(found))):
        raise ScenarioError(
            f"scenario {scenario.name}: the ordinals of its sub-topologies are {ordinals}, they have to count from 0"
        )
    for topology in found:
        for topic in (*topology.sources, *topology.sinks):
            if topology.application_id != application_id or not topic.startswith(f"{application_id}-"):
                raise ScenarioError(
                    f"scenario {scenario.name}: topic {topic!r} of application {topology.application_id!r}, where the "
                    f"application id given is {application_id!r} and each topic begins with it and a dash"
                )
    return found


@cache
def other_ordinals(scenario: Scenario) -> Mapping[int, int]:
    """Ordinal of a sub-topology → its ordinal in the other version of the pipeline; empty where there is none.
    `ScenarioError` if that has other sub-topologies."""
    application_id, config = "a", StreamsConfig.of(scenario.settings)
    try:
        if not scenario.reordered(application_id, Stores.of(config)):
            return {}
    except Exception as error:
        raise ScenarioError(
            f"scenario {scenario.name} does not make its reordered pipeline: {words_of(error)}"
        ) from error
    former, latter = (
        {
            one.content: one.ordinal
            for one in topologies(scenario, application_id, config, reordered=reordered)
        }
        for reordered in (False, True)
    )
    if former.keys() != latter.keys():
        raise ScenarioError(
            f"scenario {scenario.name}: its versions have to have the same sub-topologies, by their sources and stores"
        )
    return {ordinal: latter[content] for content, ordinal in former.items()}


def encode_key(key: str) -> bytes:
    return b"" if key == EMPTY else key.encode()


def decode_key(key: bytes) -> str:
    """The inverse; raises ValueError on anything else."""
    return key.decode() or EMPTY


def encode_value(value: Json) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)


def readable_key(scenario: Scenario, store: str, key: bytes) -> str:
    """The name of a row as the reference has it, or the key as Python writes bytes if it cannot be one. `ScenarioError`
    if the scenario does not say."""
    try:
        return scenario.decode_key(store, key)
    except (ValueError, struct.error):
        return repr(key)
    except Exception as error:
        raise not_decoded(scenario, "decode_key", f"{key!r} of store {store}", "key", error) from error


def readable_value(scenario: Scenario, store: str, value: bytes) -> Json:
    """The value of a row as the reference writes it, or as Python writes bytes if it cannot be one. `ScenarioError` if
    the scenario does not say."""
    try:
        return scenario.decode(store, value)
    except (ValueError, struct.error):
        return repr(value)
    except Exception as error:
        raise not_decoded(scenario, "decode", f"{value!r} of store {store}", "value", error) from error


def not_decoded(
    scenario: Scenario, function: str, given: str, wanted: str, error: Exception
) -> ScenarioError:
    """What to raise when a function that decodes has raised what nobody expects."""
    return ScenarioError(
        f"the {function} function of scenario {scenario.name} raised {type(error).__name__} for {given}: "
        f"{error}{place_of(error)}; for what cannot be a {wanted} it has to raise ValueError"
    )


def shown(thing: object) -> str:
    """A key or value of a row in a sentence, as Python writes it; bytes that could not be decoded are it already."""
    return thing if isinstance(thing, str) and _BYTES.fullmatch(thing) else repr(thing)


def is_undecoded(thing: object) -> bool:
    """Whether a value of a row could not be decoded, or one of those that it has."""
    if isinstance(thing, list):
        return any(map(is_undecoded, thing))
    return isinstance(thing, str) and _BYTES.fullmatch(thing) is not None


_BYTES = re.compile(r"""b(['"]).*\1""")


def decode_record(key: bytes | None, value: bytes | None) -> tuple[str, Json]:
    """Key and value of a record; raises ValueError on anything else. A key that is empty is not the same as none."""
    return KEYLESS if key is None else decode_key(key), None if value is None else msgspec.json.decode(value)


def words_of(error: BaseException) -> str:
    """An error of a scenario's code as one line, with the place where it came up."""
    return f"{type(error).__name__}: {error}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """Where in a scenario's own code an error came up, as ` (loyalty.py line 17)`; empty if nothing of it is seen."""
    places = [
        f" ({Path(file).name} line {line})"
        for frame, line in walk_tb(error.__traceback__)
        if not (file := frame.f_code.co_filename).startswith(_NOT_OF_A_SCENARIO)
    ]
    return places[-1] if places else ""


_HERE = Path(__file__).parent.parent
_NOT_OF_A_SCENARIO = (
    *(f"{_HERE / package}{os.sep}" for package in ("store", "harness")),
    __file__,
    *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
    "<",
)
"""How names of files begin whose code is called by that of a scenario, or calls it."""


def decode_change(value: bytes) -> Json:
    """What comes to a group and what leaves it, of a change of a table as it is written. Raises ValueError on anything
    else."""
    kind, data = value[-1:], value[:-1]
    if kind == b"\2":
        # Twice the length of what comes, in seven bits a byte, of which the last one is below 128.
        start = next((at for at, byte in enumerate(data, 1) if byte < 128), len(data))
        end = start + sum((byte & 127) << 7 * at for at, byte in enumerate(data[:start])) // 2
        return [msgspec.json.decode(data[start:end]), msgspec.json.decode(data[end:])]
    if kind not in (b"\0", b"\1"):
        raise ValueError(f"{value!r} is no change of a table")
    one = msgspec.json.decode(data)
    return [one, None] if kind == b"\1" else [None, one]


def decode_held_key(key: bytes) -> str:
    """The name of a row that `suppress` holds back until its window is closed: key and start, as in
    `ann 000000000020000`, for names have to be in the order of the rows. Raises ValueError on anything else."""
    if len(key) < 8:
        raise ValueError(f"{key!r} is no key of a window")
    return f"{key[:-8].decode()} {int.from_bytes(key[-8:], 'big'):015}"


_Held = tuple[int, int, list[tuple[str, bytes | None]], bytes | None, bytes | None]


def decode_held(value: bytes) -> Json:
    """A row of the store `NAME-store` that `suppress` with that name has: the time by which it is due, which is the end
    of its window or the time of the first update that it held back, the time of the last update, its headers as
    `[name, value]`, the value that went last, null for none, and the value that is to go; values are JSON. Raises
    ValueError on anything else."""
    place, time, headers, *results = msgspec.msgpack.decode(value, type=_Held)
    told = [[name, None if one is None else one.decode()] for name, one in headers]
    return [place, time, told, *(None if one is None else msgspec.json.decode(one) for one in results)]


class ScenarioError(Exception):
    """A scenario that cannot be used: says which file, and why."""


@cache
def load_all() -> Mapping[str, Scenario]:
    """Every scenario of this package, by name, in name order. `ScenarioError` for a file that holds none."""
    found: dict[str, Scenario] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        file = f"scenarios/{module.name}.py"
        try:
            loaded = importlib.import_module(f"{__name__}.{module.name}")
        except (Exception, SystemExit) as error:
            raise ScenarioError(f"{file} cannot be loaded: {words_of(error)}") from error
        scenario = _scenario_in(loaded, "SCENARIO", file)
        found[scenario.name] = scenario
    return found


def names_a_file(reference: str) -> bool:
    """Whether a reference that `load` takes is the path of a Python file."""
    return reference.endswith(".py")


_placed: dict[str, Path] = {}


def place(reference: str, file: Path) -> None:
    """Say where the file is that a reference names, in a process that has it somewhere else than whoever named it."""
    _placed[reference] = file


@cache
def load(reference: str) -> Scenario:
    """The scenario that `reference` names: one of this package by name, a Python file by its path, or an object by
    `package.module:NAME`. Runs the code of that file or module.

    `ScenarioError` says what is wrong with it, or which there are.
    """
    known = load_all()
    if reference in known:
        return known[reference]
    if names_a_file(reference):
        path = _placed.get(reference, Path(reference))
        return _named(_scenario_in(_load_file(path), "SCENARIO", reference), reference)
    module, colon, name = reference.partition(":")
    if colon:
        try:
            loaded = importlib.import_module(module)
        except (Exception, SystemExit) as error:
            raise ScenarioError(f"{reference} cannot be loaded: {words_of(error)}") from error
        return _named(_scenario_in(loaded, name, reference), reference)
    meant = "".join(f", {one} may be meant" for one in get_close_matches(reference, known, 1, _NEARLY))
    raise ScenarioError(
        f"no scenario is named {reference!r}{meant}; there are {', '.join(known)}. One of your own is named by its "
        "file, such as path/to/my_scenario.py, or as package.module:SCENARIO"
    )


def _named(scenario: Scenario, reference: str) -> Scenario:
    scenario._reference = reference
    return scenario


def module_of(scenario: Scenario) -> ModuleType | None:
    """The module of a scenario that was loaded from a file, which no other process can import; None of any other."""
    reference = scenario.reference_name
    path = _placed.get(reference, Path(reference))
    return sys.modules.get(_module_name(path.resolve())) if names_a_file(reference) else None


def _module_name(path: Path) -> str:
    """The same file has the same module name in every process, which pickling needs."""
    return f"crashproof_scenario_{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"


def _load_file(path: Path) -> ModuleType:
    try:
        path = path.resolve(strict=True)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        # A NUL byte.
        raise ScenarioError(f"{str(path)!r} is no path: {error}") from None
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ScenarioError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Modules beside it are found, and none of them in the place of an installed one.
    if (beside := str(path.parent)) not in sys.path:
        sys.path.append(beside)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ScenarioError(f"{path} cannot be loaded: {words_of(error)}") from error
    return module


def _scenario_in(module: ModuleType, name: str, source: str) -> Scenario:
    try:
        scenario = getattr(module, name)
    except AttributeError:
        raise ScenarioError(f"{source} has no {name}") from None
    if not isinstance(scenario, Scenario):
        if isinstance(scenario, type) and issubclass(scenario, Scenario):
            raise ScenarioError(
                f"{source}: {name} is the class {scenario.__name__}, it has to be an instance: {scenario.__name__}()"
            )
        raise ScenarioError(f"{source}: {name} is {type(scenario).__name__}, it has to be a Scenario")
    _check(scenario, source)
    return scenario


_RUNTIMES = ("worker", "spark", "streams")


def _check(scenario: Scenario, source: str) -> None:
    """`ScenarioError` says what of a scenario's plain data cannot be."""
    for attribute in ("name", "summary"):
        text = getattr(scenario, attribute, None)
        if not isinstance(text, str) or not text.strip() or not text.isprintable():
            raise ScenarioError(
                f"{source}: the scenario's {attribute} is {text!r}, it has to be a line of text"
            )
    runtimes = scenario.runtimes
    if not isinstance(runtimes, tuple) or not runtimes or not set(runtimes) <= set(_RUNTIMES):
        raise ScenarioError(
            f"{source}: runtimes is {runtimes!r}, it has to be a tuple of {', '.join(_RUNTIMES)}"
        )
    for attribute, least in (("time_step_ms", 1), ("sliding_ms", 0), ("tick_ms", 0), ("least_partitions", 1)):
        number = getattr(scenario, attribute)
        if type(number) is not int or number < least:
            raise ScenarioError(
                f"{source}: {attribute} is {number!r}, it has to be a whole number of at least {least}"
            )
    for attribute in ("untimed", "aborts"):
        if type(answer := getattr(scenario, attribute)) is not bool:
            raise ScenarioError(f"{source}: {attribute} is {answer!r}, it has to be True or False")
    for attribute, spans in (("durations_ms", scenario.durations_ms), ("edges_ms", scenario.edges_ms)):
        if not isinstance(spans, tuple) or not all(type(span) is int and span >= 0 for span in spans):
            raise ScenarioError(
                f"{source}: {attribute} is {spans!r}, it has to be a tuple of whole numbers of at least 0"
            )
    for attribute in ("updates", "joins", "settles", "changes", "behind_caches", "ticks", "noted"):
        names = getattr(scenario, attribute)
        if not isinstance(names, Set) or not all(isinstance(name, str) for name in names):
            raise ScenarioError(f"{source}: {attribute} is {names!r}, it has to be a frozenset of names")
    kept = scenario.retentions_ms
    if not isinstance(kept, Mapping) or not all(type(each) is int and each >= 0 for each in kept.values()):
        raise ScenarioError(
            f"{source}: retentions_ms is {kept!r}, it has to be a mapping of stores to whole numbers of at least 0"
        )
    said = scenario.topic_settings
    if not isinstance(said, Mapping) or not all(
        isinstance(settings, Mapping)
        and all(isinstance(text, str) for pair in settings.items() for text in pair)
        for settings in said.values()
    ):
        raise ScenarioError(
            f"{source}: topic_settings is {said!r}, it has to be a mapping of topics to what is configured for each, "
            'such as {"input": {"retention.ms": "60000"}}'
        )
    if not isinstance(scenario.settings, Mapping):
        raise ScenarioError(f"{source}: settings is {scenario.settings!r}, it has to be a mapping")
    try:
        StreamsConfig.of(scenario.settings)
    except ConfigError as error:
        raise ScenarioError(f"{source}: settings: {error}") from None
    _refuse_misspelled(scenario, source)


_OPTIONAL = {
    name: callable(default)
    for name, default in vars(Scenario).items()
    if not name.startswith("_") and name != "reference_name" and name not in Scenario.__abstractmethods__
}
"""What a scenario may leave out, and whether that is a function."""


def _refuse_misspelled(scenario: Scenario, source: str) -> None:
    """`ScenarioError` for what would say nothing, for its name is nearly that of something which a scenario can say.
    Whatever else it has is its own."""
    for name in sorted(set(dir(scenario)) - set(dir(Scenario)) - {"name", "summary"}):
        # Not what a property gives, which may be anything.
        own = vars(scenario).get(name, getattr(type(scenario), name, None))
        alike = [one for one, called in _OPTIONAL.items() if called is callable(own) and one[0] == name[0]]
        for meant in get_close_matches(name, alike, 1, _NEARLY):
            raise ScenarioError(
                f"{source}: a scenario has no {name}, {meant} may be meant; if it is the scenario's own, give it "
                "another name"
            )


_NEARLY = 0.8
"""How much alike two names are, of which one may be meant by the other."""
