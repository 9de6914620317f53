"""The memory of processes that share one interpreter: each has its own variables in the module of its pipeline.

What a process under test keeps outside of its stores is gone when it dies, and no other process sees it. In the
simulation all of them are greenlets, so the variables of the module that defines the processing function are
exchanged whenever another process runs: names, the contents of containers, and the attributes of objects of the
module's own classes. What such a module holds in other ways (default arguments, class attributes, objects within
containers) is shared.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import deque
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

CONTAINERS = (dict, list, set, deque)


class _Variables(NamedTuple):
    names: dict[str, Any]
    contents: list[tuple[Any, Any]]
    """Each container, and a copy of it."""


_LAST: dict[ModuleType, _Variables] = {}
"""What each module had when it was last asked. Only which of its names are containers is taken from here, and that only
as long as all names stand for the same objects."""


class Memory:
    """The variables of the modules of one pipeline. What they are when this is made every process starts with."""

    def __init__(self, processes: Iterable[object]) -> None:
        """`processes` are the processing functions of the pipeline."""
        self._modules = list(dict.fromkeys(map(_module_of, processes)))
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
        self._put(self._away.pop(incarnation, self._first), taken)

    def leave(self) -> None:
        """No process runs any more: the variables are what they were at the beginning."""
        self._put(self._first)

    def _take(self) -> list[_Variables]:
        return [_take(module, known) for module, known in zip(self._modules, self._first, strict=True)]

    def _put(self, variables: list[_Variables], instead: list[_Variables] | None = None) -> None:
        """`instead`: of what is there now, where that is known."""
        for number, (module, values) in enumerate(zip(self._modules, variables, strict=True)):
            _put(module, values, None if instead is None else instead[number].names)


def _module_of(process: object) -> ModuleType:
    while isinstance(process, functools.partial):
        process = process.func
    named = process if isinstance(process, FunctionType) else type(process)
    return sys.modules[named.__module__]


def _take(module: ModuleType, known: _Variables | None = None) -> _Variables:
    """The variables now; `known` are those of another moment, of which most have stayed."""
    if known is not None and _same(vars(module), known.names):
        return _Variables(known.names, [(container, _copy(container)) for container, _ in known.contents])
    names = vars(module).copy()
    containers = {
        id(value): value
        for name, variable in names.items()
        if not name.startswith("__") and (value := _container(module, variable)) is not None
    }
    return _Variables(names, [(value, _copy(value)) for value in containers.values()])


def _put(module: ModuleType, variables: _Variables, names: dict[str, Any] | None) -> None:
    """`names`: those of the module now, where they are known."""
    namespace = vars(module)
    if names is not variables.names and not _same(namespace, variables.names):
        for name in [name for name in namespace if name not in variables.names]:
            del namespace[name]
        namespace.update(variables.names)
    for container, content in variables.contents:
        container.clear()
        if isinstance(container, (dict, set)):
            container.update(_copy(content))
        else:
            container.extend(_copy(content))


def _same(names: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether the same names stand for the same objects."""
    return names.keys() == others.keys() and all(
        map(operator.is_, names.values(), map(others.__getitem__, names))
    )


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
