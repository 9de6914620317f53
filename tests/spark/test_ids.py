"""The ids of the sources beside a checkpoint, on a file system that renames nothing onto what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from store.errors import InputChangedError
from store.spark.streams import _Ids


class DiedError(Exception):
    """The driver is gone."""


class Files:
    """A file system of the JVM, whose next `dies_at` ends the driver."""

    def __init__(self) -> None:
        self.there: dict[str, bytes] = {}
        self.dies_at = ""

    def _reach(self, what: str) -> None:
        if what == self.dies_at:
            raise DiedError

    def exists(self, path: Path) -> bool:
        return path.name in self.there

    def create(self, path: Path, overwrite: bool) -> Stream:
        assert overwrite
        self.there[path.name] = b""
        self._reach("create")
        return Stream(self, path.name)

    def delete(self, path: Path, recursive: bool) -> None:
        assert not recursive
        self._reach("delete")
        self.there.pop(path.name, None)

    def rename(self, old: Path, new: Path) -> bool:
        self._reach("rename")
        if new.name in self.there:
            return False
        self.there[new.name] = self.there.pop(old.name)
        return True


class Stream:
    def __init__(self, files: Files, name: str) -> None:
        self._files = files
        self._name = name

    def write(self, content: bytes) -> None:
        self._files.there[self._name] = bytes(content)

    def close(self) -> None: ...


class Path:
    def __init__(self, files: Files, name: str) -> None:
        self.name = name
        self._files = files

    def getFileSystem(self, _settings: object) -> Files:  # noqa: N802 - as Hadoop names it
        return self._files


class Driver:
    """One checkpoint, and the topics of a cluster."""

    def __init__(self) -> None:
        self.files = Files()
        self.topics: dict[str, str] = {}
        self.settings = None

    def path(self, name: str) -> Path:
        return Path(self.files, name)

    def read(self, files: Files, path: Path) -> str:
        return files.there[path.name].decode()

    def admin(self) -> Driver:
        return self

    def topic_ids(self, topics: list[str]) -> Mapping[str, str]:
        return {topic: self.topics[topic] for topic in topics}

    def start(self, dies_at: str = "") -> None:
        self.files.dies_at = dies_at
        this: Any = self
        _Ids(this, self.topics).compare_with_noted(this, "checkpoint")


@pytest.mark.parametrize("again", ["", "create", "delete", "rename"])
@pytest.mark.parametrize("dies_at", ["create", "delete", "rename"])
def test_a_driver_that_dies_while_it_notes_another_topic_forgets_none(dies_at: str, again: str) -> None:
    driver = Driver()
    driver.topics = {"a": "1"}
    driver.start()
    driver.topics = {"a": "1", "b": "2"}
    with pytest.raises(DiedError):
        driver.start(dies_at)
    if again:
        try:
            driver.start(again)
        except DiedError:
            pass
    driver.topics = {"a": "made anew", "b": "2"}
    with pytest.raises(InputChangedError, match="since the query began: a"):
        driver.start()


@pytest.mark.parametrize("dies_at", ["create", "delete", "rename"])
def test_a_driver_that_dies_at_its_first_start_starts_again(dies_at: str) -> None:
    driver = Driver()
    driver.topics = {"a": "1"}
    with pytest.raises(DiedError):
        driver.start(dies_at)
    driver.start()
    driver.topics = {"a": "made anew"}
    with pytest.raises(InputChangedError):
        driver.start()
