"""Changes to the production code of the running process: a function goes on as another text of itself.

A change names a function and two texts. The function's source with the one text in place of the other is compiled, and
the function object gets that code: whoever holds the function, by whatever name or bound to whatever object, runs
it from then on. Must survive: a function whose text no longer has what is to be changed, which is an error and never a
change of nothing, and a block that ends by any exception, after which the code is that of before.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType
from typing import Any


class EditError(Exception):
    """The production code is not what a change was written for: says which function, and which text it lacks."""


@dataclass(frozen=True)
class Edit:
    """One text of one function, replaced."""

    target: str
    """Module and qualified name, as `store.recovery.restore:Place.take`."""
    old: str
    """What the function's source has exactly once, with its indentation inside of the lines, as in the file."""
    new: str
    also: tuple[tuple[str, str], ...] = ()
    """Further texts of the same function, each with what takes its place."""

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @contextmanager
    def made(self) -> Iterator[None]:
        """The function is the changed one while the block runs. Raises `EditError` when it cannot be."""
        function, code = _changed(self)
        before = function.__code__
        function.__code__ = code
        try:
            yield
        finally:
            function.__code__ = before


@cache
def _changed(edit: Edit) -> tuple[FunctionType, CodeType]:
    """The function and its changed code; compiled once, from the text that it has in its file."""
    function = function_of(edit.target)
    text = inspect.getsource(function)
    for old, new in ((edit.old, edit.new), *edit.also):
        if text.count(old) != 1:
            raise EditError(f"{edit.target} has {text.count(old)} times, not once, the text {old!r}")
        text = text.replace(old, new)
    tree = ast.parse(textwrap.dedent(text))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    # `super()` needs the cell of the class, which the function has from its surroundings.
    outer = ast.parse("def outer(__class__): pass").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [definition]
    tree.body = [outer]
    ast.fix_missing_locations(tree)
    flags = __future__.annotations.compiler_flag
    whole = compile(tree, function.__code__.co_filename, "exec", flags, dont_inherit=True)
    code = _nested(_nested(whole, "outer"), function.__name__)
    if code.co_freevars != function.__code__.co_freevars:
        raise EditError(f"{edit.target} would close over {code.co_freevars} and not as it does now")
    return function, code


def _nested(code: CodeType, name: str) -> CodeType:
    return next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)


def function_of(target: str) -> FunctionType:
    """The function that an edit's target names, under whatever decorates it."""
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
        found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise EditError(f"{target} is no function, it is {type(found).__name__}")
    return found
