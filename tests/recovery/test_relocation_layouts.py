"""State is never lost or mixed, whatever the sub-topologies were, over several versions, and whenever it is killed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.recovery.directory import RELOCATION
from tests.recovery.layouts import Shape, aside, entries, interrupted, move, stores, write

NAMES = "abcde"


class Killed(BaseException): ...


def kill() -> None:
    raise Killed


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Each store in one of the sub-topologies, or in none."""
    homes = draw(st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=5, max_size=5))
    shape: dict[int, list[str]] = {}
    for name, ordinal in zip(NAMES, homes, strict=True):
        if ordinal is not None:
            shape.setdefault(ordinal, []).append(name)
    return {ordinal: tuple(shape[ordinal]) for ordinal in sorted(shape)}


places = st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from(NAMES))
on_disk = st.dictionaries(places, st.one_of(st.none(), st.integers(0, 1000)), max_size=12)
"""Ordinal, partition and store, several copies of one included → the offset in the checkpoint, if there is one."""


@pytest.mark.requirement("13627.2")
@pytest.mark.requirement("13627.3")
@pytest.mark.requirement("13627.4")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(found=on_disk, versions=st.lists(st.tuples(shapes(), st.integers(0, 120)), min_size=1, max_size=3))
def test_state_is_never_lost_or_mixed(
    found: dict[tuple[int, int, str], int | None], versions: Sequence[tuple[Shape, int]]
) -> None:
    with TemporaryDirectory() as name:
        root = Path(name)
        offsets: dict[str, int | None] = {}
        for (ordinal, partition, store), offset in found.items():
            says = f"{store} {partition} of {ordinal}"
            write(root, f"{ordinal}_{partition}", store, says, offset=offset)
            offsets[says] = offset
        for shape, kill_at in versions:
            with interrupted(kill_at, kill), suppress(Killed):
                move(root, shape)
            move(root, shape)
            check(root, shape, offsets)


def check(root: Path, shape: Shape, offsets: dict[str, int | None]) -> None:
    there = stores(root)
    kept = [one.partition("/")[2] for one in aside(root)]
    assert sorted([*there.values(), *kept]) == sorted(offsets)
    homes = {store: ordinal for ordinal, names in shape.items() for store in names}
    said = entries(root)
    for place, says in there.items():
        task_id, _, store = place.partition("/")
        ordinal, _, partition = task_id.partition("_")
        assert says.startswith(f"{store} {partition} of ")
        assert homes.get(store, int(ordinal)) == int(ordinal)
        assert said.pop(f"{task_id}/app-{store}-changelog-{partition}", None) == offsets[says]
    assert said == {}
    assert not (root / "app" / RELOCATION).exists()
