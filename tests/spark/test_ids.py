"""The ids of the sources beside a checkpoint, on a file system that renames nothing onto what is there."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from store.errors import InputChangedError, RetriableError
from store.spark.streams import _IDS, _Ids, _Jvm


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

    def write(self, path: Path, content: bytes) -> None:
        self.there[path.name] = b""
        self._reach("write")
        self.there[path.name] = content

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


class Path:
    def __init__(self, files: Files, name: str) -> None:
        self.name = name
        self._files = files

    def getFileSystem(self, _settings: object) -> Files:  # noqa: N802 - as Hadoop names it
        return self._files

    def getName(self) -> str:  # noqa: N802 - as Hadoop names it
        return self.name


class Driver:
    """One checkpoint, and the topics of a cluster."""

    def __init__(self) -> None:
        self.files = Files()
        self.topics: dict[str, str] = {}
        self.settings = None
        self.answers = True

    def path(self, name: str) -> Path:
        return Path(self.files, name)

    def read(self, files: Files, path: Path) -> str:
        return files.there[path.name].decode()

    def write(self, files: Files, path: Path, content: bytes) -> None:
        files.write(path, content)

    def admin(self) -> Driver:
        return self

    def topic_ids(self, topics: list[str]) -> Mapping[str, str]:
        if not self.answers:
            raise RetriableError("no answer")
        return {topic: self.topics[topic] for topic in topics}

    def start(self, dies_at: str = "") -> _Ids:
        self.files.dies_at = dies_at
        this: Any = self
        ids = _Ids(this, self.topics, this, "checkpoint")
        ids.compare_with_noted()
        return ids


@pytest.mark.parametrize("again", ["", "write", "delete", "rename"])
@pytest.mark.parametrize("dies_at", ["write", "delete", "rename"])
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


@pytest.mark.parametrize("dies_at", ["write", "delete", "rename"])
def test_a_driver_that_dies_at_its_first_start_starts_again(dies_at: str) -> None:
    driver = Driver()
    driver.topics = {"a": "1"}
    with pytest.raises(DiedError):
        driver.start(dies_at)
    driver.start()
    driver.topics = {"a": "made anew"}
    with pytest.raises(InputChangedError):
        driver.start()


def test_ids_that_no_broker_told_at_the_start_are_noted_when_one_does() -> None:
    driver = Driver()
    driver.topics = {"a": "1"}
    driver.answers = False
    ids = driver.start()
    driver.answers = True
    ids.check()
    driver.topics = {"a": "made anew"}
    with pytest.raises(InputChangedError):
        driver.start()


def on_disk(driver: Driver, spark: SparkSession, directory: pathlib.Path) -> None:
    this: Any = driver
    _Ids(this, driver.topics, _Jvm(spark.sparkContext), str(directory)).compare_with_noted()


@pytest.mark.xdist_group("spark")
def test_a_file_on_a_local_disk_is_written_in_the_place_of_another_one(
    spark: SparkSession, tmp_path: pathlib.Path
) -> None:
    driver = Driver()
    driver.topics = {"a": "1"}
    on_disk(driver, spark, tmp_path)
    driver.topics["b"] = "2"
    on_disk(driver, spark, tmp_path)
    assert json.loads((tmp_path / _IDS).read_text()) == {"a": "1", "b": "2"}


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("left", [b"", bytes(10)], ids=["nothing", "zeros"])
def test_what_a_power_cut_has_left_of_the_file_is_warned_of_and_noted_again(
    left: bytes, spark: SparkSession, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver()
    driver.topics = {"a": "1"}
    on_disk(driver, spark, tmp_path)
    (tmp_path / _IDS).write_bytes(left)
    on_disk(driver, spark, tmp_path)
    assert f"{_IDS} is not whole" in caplog.text
    assert json.loads((tmp_path / _IDS).read_text()) == {"a": "1"}
