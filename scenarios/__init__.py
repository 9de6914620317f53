"""Pipelines under test, one file each: the pipeline, its input, its reference function.

A scenario speaks JSON to the harness: keys are strings, values any JSON, None a deletion. On the wire a key is
UTF-8 and a value is compact JSON, so that a schedule file can be read and edited by hand.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import msgspec

from store.streams.topology import Topology

Json = Any
"""Anything that a JSON text can hold."""

State = dict[str, dict[str, Json]]
"""Store name → key → value."""


@dataclass(frozen=True)
class Output:
    """One expected output record."""

    topic: str
    key: str
    value: Json


@dataclass(frozen=True)
class Scenario:
    """A pipeline together with what it has to compute."""

    name: str
    summary: str
    """One sentence for `crashproof scenarios`."""
    topology: Callable[[str], Topology]
    """The pipeline for an application id. Its source and sink topics start with that id."""
    reference: Callable[[State, str, Json], list[Output]]
    """One step of the specification: changes the state, returns the outputs in order. Topics are named
    without the application id. Written independently of the pipeline."""
    sample: Callable[[Random], tuple[str, Json]]
    """One input record."""
    decode: Callable[[str, bytes, bytes], tuple[str, Json]]
    """A row of a store, as bytes: (store, key, value) → key and value as the reference writes them. Raises
    ValueError for what cannot be one."""
    decode_key: Callable[[str, bytes], str]
    """The key alone, of a row that the changelog deletes."""
    accepts: Callable[[str, Json], bool] | None = None
    """Whether the pipeline takes an input record (key and value); None: it takes every one. A schedule with another
    is refused before anything runs."""


def encode_key(key: str) -> bytes:
    return key.encode()


def encode_value(value: Json) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)


def decode_record(key: bytes | None, value: bytes | None) -> tuple[str, Json]:
    """The inverse of the two above; raises ValueError on anything else."""
    if key is None:
        raise ValueError("a record without a key")
    return key.decode(), None if value is None else msgspec.json.decode(value)


class ScenarioError(Exception):
    """A scenario that cannot be used: says which file, and why."""


@cache
def load_all() -> Mapping[str, Scenario]:
    """Every scenario of this package, by name, in name order. `ScenarioError` for a file that holds none."""
    found: dict[str, Scenario] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        file = f"scenarios/{module.name}.py"
        try:
            scenario = importlib.import_module(f"{__name__}.{module.name}").SCENARIO
        except Exception as error:
            raise ScenarioError(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(scenario, Scenario):
            raise ScenarioError(f"{file}: SCENARIO is {type(scenario).__name__}, it has to be a Scenario")
        found[scenario.name] = scenario
    return found
