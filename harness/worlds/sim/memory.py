"""The memory of processes that share one interpreter: each has its own variables in the modules of its pipeline.

What a process under test keeps outside of its stores is gone when it dies, and no other process sees it. In the
simulation all of them are greenlets, so the variables of the modules that a pipeline is made of are exchanged whenever
another process runs: names, the contents of containers, the attributes of the module's own classes, those of objects of
these classes, and what the module's functions close over or have as default arguments. Functions that
`functools.lru_cache` has made are made anew for each process. The modules are that of the scenario, those of its
processing functions, and what these use of the files beside the scenario's. What such a module holds in other ways
(objects within containers) is shared.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple

import harness
import scenarios
import store

CONTAINERS = (dict, list, set, deque)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class _Variables(NamedTuple):
    names: dict[str, Any]
    classes: list[tuple[type, dict[str, Any]]]
    """The module's own classes, and the attributes of each."""
    contents: list[tuple[Any, Any]]
    """Each container, and a copy of it."""
    cells: list[tuple[CellType, object]]
    """What functions close over."""
    caches: list[tuple[ModuleType | type, str, Any]]
    """Functions that `functools.lru_cache` has made, with where they are and their names there."""


_LAST: dict[ModuleType, _Variables] = {}
"""What each module had when it was last asked. Only which of its names are containers is taken from here, and that only
as long as all names stand for the same objects."""


class Memory:
    """The variables of the modules of one pipeline. What they are when this is made every process starts with."""

    def __init__(self, scenario: object, processes: Iterable[object]) -> None:
        """`processes` are the processing functions of the pipeline."""
        self._modules = _modules_of(scenario, processes)
        self._first = [_take(module, _LAST.get(module)) for module in self._modules]
        _LAST.update(zip(self._modules, self._first, strict=True))
        self._away: dict[int, list[_Variables]] = {}
        self._current: int | None = None

    def enter(self, incarnation: int) -> None:
        """From now on that process runs."""
        if incarnation == self._current:
            return
        taken = None
        if self._current is not None:
            taken = self._away[self._current] = self._take()
        self._current = incarnation
        known = self._away.pop(incarnation, None)
        self._put(known or self._first, taken)
        if known is None:
            for variables in self._first:
                for owner, name, cached in variables.caches:
                    anew = functools.lru_cache(**cached.cache_parameters())(cached.__wrapped__)
                    setattr(owner, name, anew)

    def leave(self) -> None:
        """No process runs any more: the variables are what they were at the beginning."""
        self._put(self._first)

    def _take(self) -> list[_Variables]:
        return [_take(module, known) for module, known in zip(self._modules, self._first, strict=True)]

    def _put(self, variables: list[_Variables], instead: list[_Variables] | None = None) -> None:
        """`instead`: of what is there now, where that is known."""
        for number, (module, values) in enumerate(zip(self._modules, variables, strict=True)):
            _put(module, values, None if instead is None else instead[number])


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


def _take(module: ModuleType, known: _Variables | None = None) -> _Variables:
    """The variables now; `known` are those of another moment, of which most have stayed."""
    if known is not None and _stayed(module, known):
        return known._replace(contents=[(container, _copy(container)) for container, _ in known.contents])
    names = vars(module).copy()
    own = dict.fromkeys(
        one for one in names.values() if isinstance(one, type) and one.__module__ == module.__name__
    )
    # Members of an enumeration are no variables.
    classes = [(one, dict(vars(one))) for one in own if not issubclass(one, Enum)]
    spaces: list[tuple[ModuleType | type, dict[str, Any]]] = [(module, names), *classes]
    variables = [
        variable for _, space in spaces for name, variable in space.items() if not name.startswith("__")
    ]
    functions = _functions(module, variables)
    cells = [(cell, _content(cell)) for one in functions for cell in one.__closure__ or ()]
    held = [
        *variables,
        *(content for _, content in cells),
        *(value for one in functions for value in one.__defaults__ or ()),
        *(value for one in functions for value in (one.__kwdefaults__ or {}).values()),
    ]
    containers = {id(value): value for one in held if (value := _container(module, one)) is not None}
    return _Variables(
        names,
        classes,
        [(value, _copy(value)) for value in containers.values()],
        cells,
        [
            (owner, name, value)
            for owner, space in spaces
            for name, value in space.items()
            if hasattr(value, "cache_parameters")
        ],
    )


def _put(module: ModuleType, variables: _Variables, instead: _Variables | None) -> None:
    """`instead`: those of the module now, where they are known."""
    namespace = vars(module)
    if (instead is None or instead.names is not variables.names) and not _same(namespace, variables.names):
        for name in [name for name in namespace if name not in variables.names]:
            del namespace[name]
        namespace.update(variables.names)
    for one, attributes in variables.classes:
        now = vars(one)
        if not _same(now, attributes):
            for name in [name for name in now if name not in attributes]:
                delattr(one, name)
            for name, value in attributes.items():
                if now.get(name) is not value:
                    setattr(one, name, value)
    for container, content in variables.contents:
        container.clear()
        if isinstance(container, (dict, set)):
            container.update(_copy(content))
        else:
            container.extend(_copy(content))
    for cell, held in variables.cells:
        if held is not _NOTHING:
            cell.cell_contents = held


def _stayed(module: ModuleType, known: _Variables) -> bool:
    return (
        _same(vars(module), known.names)
        and all(_same(vars(one), attributes) for one, attributes in known.classes)
        and all(_content(cell) is held for cell, held in known.cells)
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


def _functions(module: ModuleType, variables: Iterable[Any]) -> list[FunctionType]:
    """The module's own among these, with those that they close over."""
    plain = [getattr(one, "__wrapped__", getattr(one, "__func__", one)) for one in variables]
    found = dict.fromkeys(
        one for one in plain if isinstance(one, FunctionType) and one.__module__ == module.__name__
    )
    functions = list(found)
    for one in functions:
        # The list grows while it is gone through.
        within = [held for cell in one.__closure__ or () if isinstance(held := _content(cell), FunctionType)]
        functions += [held for held in dict.fromkeys(within) if held not in functions]
    return functions


def _container(module: ModuleType, value: object) -> object | None:
    if isinstance(value, CONTAINERS):
        return value
    own = type(value).__module__ == module.__name__ and not isinstance(value, type)
    return getattr(value, "__dict__", None) if own else None


def _copy(value: Any) -> Any:
    """A copy of a container and of the containers in it."""
    if isinstance(value, dict):
        copied = value.copy()
        for key, item in value.items():
            if isinstance(item, CONTAINERS):
                copied[key] = _copy(item)
        return copied
    if isinstance(value, (list, deque)):
        items = [_copy(item) if isinstance(item, CONTAINERS) else item for item in value]
        return items if isinstance(value, list) else deque(items, value.maxlen)
    return value.copy()
