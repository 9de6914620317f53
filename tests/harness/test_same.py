"""What is found is what should be there only if their numbers and truths are of one type, however deep they lie."""

from __future__ import annotations

import pytest

from harness.oracles.output import is_folded, is_interleaving
from harness.oracles.same import same
from scenarios import OneOf


@pytest.mark.parametrize("deep", [lambda one: one, lambda one: [0, one], lambda one: {"a": {"b": (one,)}}])
@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), (1, 1.0), (0.0, False)])
def test_a_number_is_no_truth_and_an_integer_no_float(deep: object, one: object, other: object) -> None:
    assert callable(deep)
    assert not same(deep(one), deep(other))
    assert same(deep(one), deep(one))


def test_what_may_be_one_of_several_is_of_the_type_of_one_of_them() -> None:
    assert same(["a"], OneOf((["a"], ["b"])))
    assert same([OneOf((1, 2))], [1])
    assert not same([OneOf((1, 2))], [True])


def test_the_order_of_names_tells_nothing_apart() -> None:
    assert same({"a": 1, "b": True}, {"b": True, "a": 1})


@pytest.mark.parametrize("tasks", [1, 2])
def test_an_output_of_another_type_is_another_output(tasks: int) -> None:
    def outputs(value: object) -> list[list[tuple[str, tuple[object, int, tuple[()]]]]]:
        return [[("a", (value, number, ()))] for number in range(tasks)]

    found = [one for (one,) in outputs(True)]
    assert is_interleaving(outputs(True), found)
    assert not is_interleaving(outputs(1), found)
    assert is_folded(outputs(True), found)
    assert not is_folded(outputs(1), found)
