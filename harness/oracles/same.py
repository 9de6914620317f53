"""Whether what was found is what should be there, by value and by type: to Python `True`, `1` and `1.0` are equal, to
those who read a topic or a store they are not. Outputs and states are compared here, values as deep as they go."""

from __future__ import annotations

from scenarios import OneOf

_TOLD_APART = (bool, int, float)


def same(one: object, other: object) -> bool:
    """Whether these are equal, and all numbers and truths in them of one type."""
    return one == other and _alike(one, other)


def _alike(one: object, other: object) -> bool:
    """The same of what is equal."""
    if one is other or type(one) is str:
        return True
    if isinstance(other, OneOf):
        one, other = other, one
    if isinstance(one, OneOf):
        return isinstance(other, OneOf) or any(same(value, other) for value in one.values)
    if isinstance(one, dict):
        return all(_alike(value, other[name]) for name, value in one.items())  # type: ignore[index]
    if isinstance(one, list | tuple):
        return all(map(_alike, one, other))  # type: ignore[call-overload]
    return type(one) is type(other) or _kind(one) is _kind(other)


def _kind(one: object) -> type | None:
    return next((kind for kind in _TOLD_APART if isinstance(one, kind)), None)
