"""A store by itself: `open_store`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from store.errors import StateLockedError
from store.serdes import IntSerde, StrSerde
from store.standalone import open_store
from store.suppliers import key_value_store_builder, persistent_key_value_store
from store.transaction import Mechanism

SUPPLIER = persistent_key_value_store("words")


@pytest.mark.requirement("844.1")
@pytest.mark.parametrize("mechanism", Mechanism)
def test_what_was_committed_is_there_again_and_nothing_else(mechanism: Mechanism, tmp_path: Path) -> None:
    with open_store(SUPPLIER, tmp_path, mechanism=mechanism) as store:
        store.put(b"a", b"1")
        store.commit()
        store.put(b"b", b"2")
    with open_store(SUPPLIER, tmp_path, mechanism=mechanism) as store:
        assert dict(store.all()) == {b"a": b"1"}


def test_an_error_in_the_block_closes_the_store_and_is_raised(tmp_path: Path) -> None:
    def fail() -> None:
        with open_store(SUPPLIER, tmp_path) as store:
            store.put(b"a", b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with open_store(SUPPLIER, tmp_path) as store:
        assert dict(store.all()) == {}


def test_a_typed_store_takes_and_gives_values_of_its_types(tmp_path: Path) -> None:
    builder = key_value_store_builder(SUPPLIER, StrSerde(), IntSerde())
    with open_store(builder, tmp_path) as store:
        store.put("a", 1)
        assert list(store.all()) == [("a", 1)]


def test_a_store_that_is_open_elsewhere_is_refused(tmp_path: Path) -> None:
    with open_store(SUPPLIER, tmp_path) as store:
        with pytest.raises(StateLockedError, match="this process"), open_store(SUPPLIER, tmp_path):
            pass
        store.put(b"a", b"1")
        store.commit()


def test_stores_of_different_names_live_side_by_side(tmp_path: Path) -> None:
    with (
        open_store(SUPPLIER, tmp_path) as words,
        open_store(persistent_key_value_store("numbers"), tmp_path) as numbers,
    ):
        words.put(b"a", b"1")
        assert numbers.get(b"a") is None


@pytest.mark.requirement("844.3")
@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_process_that_is_killed_loses_what_it_did_not_commit_and_nothing_else(
    mechanism: Mechanism, tmp_path: Path
) -> None:
    program = f"""
import os, signal
from store.standalone import open_store
from store.suppliers import persistent_key_value_store
from store.transaction import Mechanism
words = persistent_key_value_store("words")
with open_store(words, {str(tmp_path)!r}, mechanism=Mechanism({mechanism.value!r})) as store:
    store.put(b"a", b"1")
    store.commit()
    store.put(b"b", b"2")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=300)
    assert ended.returncode == -9
    with open_store(SUPPLIER, tmp_path, mechanism=mechanism) as store:
        assert dict(store.all()) == {b"a": b"1"}
