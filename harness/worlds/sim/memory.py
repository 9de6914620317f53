"""The memory of processes that share one interpreter: each has its own variables in the modules of its pipeline.

What a process under test keeps outside of its stores is gone when it dies, and no other process sees it. In the
simulation all of them are greenlets, so what is reached from the variables of the modules that a pipeline is made of is
exchanged whenever another process runs: names, the attributes of these modules' classes and functions, what such
functions close over or have as default arguments, the contents of containers, and the attributes of objects, in slots
too, wherever one leads to another. What was there when the run began is exchanged by its contents, each object for
itself, and stays the same object; what a process makes later nobody else reaches. Functions that `functools.lru_cache`
has made are made anew for each process.

The modules are that of the scenario, those of its processing functions, and what these use of the files beside the
scenario's. Shared are modules and classes of others, objects of this package and of Python's own library (locks,
loggers, generators of chance), and what an extension keeps outside of Python's attributes.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import BuiltinMethodType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

import harness
import scenarios
import store

CONTAINERS = (dict, list, set, deque, bytearray)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_PLAIN = frozenset({str, int, float, bool, bytes, type(None), ModuleType, MemberDescriptorType})
"""Types of which nothing is exchanged, nor what is reached from them."""
_CACHED: Any = type(functools.lru_cache(int))
_OF_PYTHON = frozenset({"collections", "queue", "types"})
"""Modules of Python's own library whose objects hold nothing but what they are given."""


class _Places(NamedTuple):
    """Where variables are that are exchanged."""

    modules: list[ModuleType]
    classes: list[type]
    containers: list[Any]
    cells: list[CellType]
    """What functions close over."""
    slots: list[tuple[MemberDescriptorType, object]]
    """Attributes that are in no dict, with their object."""
    caches: list[tuple[ModuleType | type, str, Any]]
    """Functions that `functools.lru_cache` has made, with where they are and their names there."""


class _Values(NamedTuple):
    """What is there at some moment, each in the order of its places."""

    names: list[dict[str, Any]]
    attributes: list[dict[str, Any]]
    contents: list[Any]
    """Copies of the containers."""
    cells: list[object]
    slots: list[object]


_LAST: dict[tuple[ModuleType, ...], tuple[_Places, _Values]] = {}
"""What modules had when they were last asked. Taken from here as long as everything is as it was."""


class Memory:
    """The variables of the modules of one pipeline. What they are when this is made every process starts with."""

    def __init__(self, scenario: object, processes: Iterable[object]) -> None:
        """`processes` are the processing functions of the pipeline."""
        modules = tuple(_modules_of(scenario, processes))
        last = _LAST.get(modules)
        if last is None or not _stayed(*last):
            places = _reached_from(modules)
            last = _LAST[modules] = places, _take(places, None)
        self._places, self._first = last
        self._away: dict[int, _Values] = {}
        self._current: int | None = None

    def enter(self, incarnation: int) -> None:
        """From now on that process runs."""
        if incarnation == self._current:
            return
        taken = None
        if self._current is not None:
            taken = self._away[self._current] = _take(self._places, self._first)
        self._current = incarnation
        known = self._away.pop(incarnation, None)
        _put(self._places, known or self._first, taken)
        if known is None:
            anew: dict[int, Any] = {}
            for owner, name, cached in self._places.caches:
                if id(cached) not in anew:
                    anew[id(cached)] = functools.lru_cache(**cached.cache_parameters())(cached.__wrapped__)
                setattr(owner, name, anew[id(cached)])

    def leave(self) -> None:
        """No process runs any more: the variables are what they were at the beginning."""
        _put(self._places, self._first, None)


def _modules_of(scenario: object, processes: Iterable[object]) -> list[ModuleType]:
    """Those of the scenario and of its processing functions, but for the store's own, and what they use beside them."""
    first = sys.modules[type(scenario).__module__]
    found = dict.fromkeys([first, *map(_module_of, processes)])
    own = [module for module in found if not _belongs(module, store)]
    if _belongs(first, scenarios) or getattr(first, "__file__", None) is None:
        return own
    beside = Path(str(first.__file__)).parent
    for module in own:
        # The list grows while it is gone through.
        own += [one for one in dict.fromkeys(_used_by(module)) if one not in own and _lies_in(one, beside)]
    return own


def _belongs(module: ModuleType, package: ModuleType) -> bool:
    return module.__name__ == package.__name__ or module.__name__.startswith(f"{package.__name__}.")


def _used_by(module: ModuleType) -> Iterator[ModuleType]:
    for value in vars(module).values():
        one = (
            value
            if isinstance(value, ModuleType)
            else sys.modules.get(getattr(value, "__module__", None) or "")
        )
        if one is not None:
            yield one


def _lies_in(module: ModuleType, directory: Path) -> bool:
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_relative_to(directory) or _INSTALLED & {*Path(file).parts}:
        return False
    return not any(_belongs(module, package) for package in (store, scenarios, harness))


def _module_of(process: object) -> ModuleType:
    while isinstance(process, functools.partial):
        process = process.func
    named = process if isinstance(process, FunctionType) else type(process)
    return sys.modules[named.__module__]


def _reached_from(modules: Iterable[ModuleType]) -> _Places:
    """The variables of these modules and of what is reached from them."""
    found = _Places(list(modules), [], [], [], [], [])
    own = {module.__name__ for module in found.modules}
    known: set[int] = set()
    left: list[Any] = []
    # Alive until all is looked at, so that no other object has the number of one that is known.
    held: list[Any] = []
    for module in found.modules:
        left += _variables(module, found)
    while left:
        one = left.pop()
        kind = type(one)
        if kind in _PLAIN or id(one) in known:
            continue
        known.add(id(one))
        held.append(one)
        if isinstance(one, type):
            # Members of an enumeration are no variables.
            if one.__module__ in own and not issubclass(one, Enum):
                found.classes.append(one)
                left += _variables(one, found)
        elif isinstance(one, FunctionType):
            if one.__module__ in own:
                found.cells.extend(one.__closure__ or ())
                left += [_content(cell) for cell in one.__closure__ or ()]
                left += [one.__defaults__, one.__kwdefaults__, one.__dict__]
        elif isinstance(one, functools.partial):
            left += [one.func, one.args, one.keywords]
        elif isinstance(one, MethodType):
            left += [one.__self__, one.__func__]
        elif isinstance(one, BuiltinMethodType):
            left.append(one.__self__)
        elif isinstance(one, (staticmethod, classmethod, _CACHED)):
            left.append(one.__wrapped__)
        elif isinstance(one, property):
            left += [one.fget, one.fset, one.fdel]
        else:
            left += _parts(one, kind, own, found)
    return found


def _variables(owner: ModuleType | type, found: _Places) -> list[Any]:
    """What the names of a module or a class stand for."""
    named = [(name, value) for name, value in vars(owner).items() if not name.startswith("__")]
    found.caches.extend((owner, name, value) for name, value in named if isinstance(value, _CACHED))
    return [value for _, value in named]


def _parts(one: Any, kind: type, own: set[str], found: _Places) -> list[Any]:
    """What an object holds, if that is exchanged."""
    if isinstance(one, (tuple, frozenset)):
        return list(one)
    parts: list[Any] = []
    if isinstance(one, CONTAINERS):
        found.containers.append(one)
        if isinstance(one, dict):
            parts += dict.keys(one)
            parts += dict.values(one)
        elif not isinstance(one, bytearray):
            parts += one
    if not _is_exchanged(kind, own):
        return parts
    slots = [
        member
        for base in kind.__mro__
        if base.__module__ not in ("builtins", "collections")
        for member in vars(base).values()
        if isinstance(member, MemberDescriptorType) and _may_be_set(member, one)
    ]
    found.slots.extend((member, one) for member in slots)
    parts += [_held_in(member, one) for member in slots]
    attributes = getattr(one, "__dict__", None)
    if isinstance(attributes, dict):
        parts.append(attributes)
    return parts


def _is_exchanged(kind: type, own: set[str]) -> bool:
    """Whether objects of a class have their attributes exchanged."""
    if kind.__module__ in own:
        return not issubclass(kind, Enum)
    package = kind.__module__.partition(".")[0]
    if package in sys.stdlib_module_names:
        return package in _OF_PYTHON
    return package not in (store.__name__, harness.__name__, scenarios.__name__) and not issubclass(
        kind, Enum
    )


def _take(places: _Places, known: _Values | None) -> _Values:
    """The variables now; `known` are those of another moment, of which most names have stayed."""
    if known is None:
        names = [vars(module).copy() for module in places.modules]
        attributes = [dict(vars(one)) for one in places.classes]
    else:
        names = [
            before if _same(vars(module), before) else vars(module).copy()
            for module, before in zip(places.modules, known.names, strict=True)
        ]
        attributes = [
            before if _same(vars(one), before) else dict(vars(one))
            for one, before in zip(places.classes, known.attributes, strict=True)
        ]
    return _Values(
        names,
        attributes,
        [_copy(container) for container in places.containers],
        [_content(cell) for cell in places.cells],
        [_held_in(member, one) for member, one in places.slots],
    )


def _put(places: _Places, values: _Values, instead: _Values | None) -> None:
    """`instead`: what is there now, where it is known."""
    for number, (module, names) in enumerate(zip(places.modules, values.names, strict=True)):
        namespace = vars(module)
        if (instead is None or instead.names[number] is not names) and not _same(namespace, names):
            for name in [name for name in namespace if name not in names]:
                del namespace[name]
            namespace.update(names)
    for number, (one, attributes) in enumerate(zip(places.classes, values.attributes, strict=True)):
        there = vars(one)
        if (instead is None or instead.attributes[number] is not attributes) and not _same(there, attributes):
            for name in [name for name in there if name not in attributes]:
                delattr(one, name)
            for name, value in attributes.items():
                if there.get(name) is not value:
                    setattr(one, name, value)
    for container, content in zip(places.containers, values.contents, strict=True):
        if not _holds(container, content):
            _fill(container, content)
    for cell, held in zip(places.cells, values.cells, strict=True):
        if held is not _NOTHING:
            cell.cell_contents = held
    for (member, holder), held in zip(places.slots, values.slots, strict=True):
        if _held_in(member, holder) is held:
            continue
        if held is _NOTHING:
            member.__delete__(holder)
        else:
            member.__set__(holder, held)


def _stayed(places: _Places, values: _Values) -> bool:
    return (
        all(_same(vars(one), names) for one, names in zip(places.modules, values.names, strict=True))
        and all(_same(vars(one), names) for one, names in zip(places.classes, values.attributes, strict=True))
        and all(map(_holds, places.containers, values.contents))
        and all(_content(cell) is held for cell, held in zip(places.cells, values.cells, strict=True))
        and all(
            _held_in(member, one) is held
            for (member, one), held in zip(places.slots, values.slots, strict=True)
        )
    )


def _same(names: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether the same names stand for the same objects."""
    return names.keys() == others.keys() and all(
        map(operator.is_, names.values(), map(others.__getitem__, names))
    )


_NOTHING = object()


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


def _may_be_set(member: MemberDescriptorType, one: object) -> bool:
    """Whether an attribute that is in no dict is no constant, as many of extensions are."""
    held = _held_in(member, one)
    if held is _NOTHING:
        return "__slots__" in vars(member.__objclass__)
    try:
        member.__set__(one, held)
    except (AttributeError, TypeError):
        return False
    return True


def _held_in(member: MemberDescriptorType, one: object) -> object:
    try:
        return member.__get__(one)
    except AttributeError:
        return _NOTHING


# Subclasses may have methods of their own, of a kind that counts or checks, which are not called here.


def _copy(container: Any) -> Any:
    """What a container holds, in a plain one."""
    if isinstance(container, OrderedDict):
        return dict(OrderedDict.items(container))
    if isinstance(container, dict):
        return dict.copy(container)
    if isinstance(container, list):
        return list.copy(container)
    if isinstance(container, set):
        return set.copy(container)
    return bytes(container) if isinstance(container, bytearray) else deque(container, container.maxlen)


def _holds(container: Any, content: Any) -> bool:
    """Whether a container holds the same objects as when it was copied, in the same order where it has one."""
    if len(container) != len(content):
        return False
    if isinstance(container, bytearray):
        return bool(container == content)
    if isinstance(container, dict):
        kind = OrderedDict if isinstance(container, OrderedDict) else dict
        return all(map(operator.is_, kind.keys(container), content)) and all(
            map(operator.is_, kind.values(container), content.values())
        )
    if isinstance(container, set):
        # Their order may change as they are filled.
        return set(map(id, container)) == set(map(id, content))
    return all(map(operator.is_, container, content))


def _fill(container: Any, content: Any) -> None:
    """Have a container hold what it held when it was copied."""
    if isinstance(container, dict):
        kind = OrderedDict if isinstance(container, OrderedDict) else dict
        kind.clear(container)
        kind.update(container, content)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, content)
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), content)
    elif isinstance(container, bytearray):
        bytearray.__setitem__(container, slice(None), content)
    else:
        deque.clear(container)
        deque.extend(container, content)
