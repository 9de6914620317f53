"""The history of nights: one SQLite file, from which trends are drawn and by which changed answers are noticed.

Must survive: a night that is killed at any moment (its row says that it did not finish, and there is no other trace of
it), two nights at once (the second is refused), a file that is damaged, of something else, or of a newer release (one
sentence, and not a byte of it is changed; only on request is it renamed).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from harness.night import Answer, Answered, Commit, FailingSchedule, Last, Night, NightInWorld, Standing
from harness.verdict import Outcome
from store.errors import ConfigError

VERSION = 1
"""Of the tables, in `PRAGMA user_version`."""
_APPLICATION = 0x43726173
"""`Cras`, in `PRAGMA application_id`: a file of somebody else's is not written to."""

_TABLES = """
CREATE TABLE nights (
    night INTEGER PRIMARY KEY, started TEXT NOT NULL, commit_name TEXT NOT NULL, dirty INTEGER NOT NULL,
    version TEXT NOT NULL, machine TEXT NOT NULL, seed TEXT NOT NULL, command TEXT NOT NULL,
    seconds REAL, standing TEXT, exit_code INTEGER
);
CREATE TABLE notes (
    night INTEGER NOT NULL REFERENCES nights, position INTEGER NOT NULL, note TEXT NOT NULL,
    PRIMARY KEY (night, position)
);
CREATE TABLE worlds (
    night INTEGER NOT NULL REFERENCES nights, position INTEGER NOT NULL, world TEXT NOT NULL, standing TEXT NOT NULL,
    budget REAL NOT NULL, seconds REAL NOT NULL, schedules INTEGER NOT NULL, kills INTEGER NOT NULL,
    sigkills INTEGER NOT NULL, report TEXT NOT NULL,
    PRIMARY KEY (night, world)
);
CREATE TABLE faults (
    night INTEGER NOT NULL REFERENCES nights, world TEXT NOT NULL, fault TEXT NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (night, world, fault)
);
CREATE TABLE reasons (
    night INTEGER NOT NULL REFERENCES nights, world TEXT NOT NULL, position INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (night, world, position)
);
CREATE TABLE failures (
    night INTEGER NOT NULL REFERENCES nights, world TEXT NOT NULL, position INTEGER NOT NULL, file TEXT NOT NULL,
    oracle TEXT NOT NULL, scenario TEXT NOT NULL, sentence TEXT NOT NULL, replay TEXT NOT NULL,
    schedule TEXT NOT NULL, kept INTEGER NOT NULL,
    PRIMARY KEY (night, world, position)
);
CREATE TABLE answers (
    night INTEGER NOT NULL REFERENCES nights, world TEXT NOT NULL, file TEXT NOT NULL, outcome TEXT NOT NULL,
    oracles TEXT NOT NULL, reason TEXT NOT NULL, digest TEXT NOT NULL, failed INTEGER NOT NULL,
    PRIMARY KEY (world, file, night)
);
"""


class HistoryError(ConfigError):
    """A history that cannot be used: says which file, what is wrong with it, and what to type."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__("--history", str(path), what)


class Nights:
    """The nights of a file; see `opened`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._sql = connection

    def begin(self, commit: Commit, version: str, machine: str, seed: int, command: str) -> Night:
        """A new night, noted as one that has not finished."""
        started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with self._transaction():
            cursor = self._sql.execute(
                "INSERT INTO nights (started, commit_name, dirty, version, machine, seed, command) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (started, *_texts(commit.name), commit.dirty, *_texts(version, machine, str(seed), command)),
            )
        number = cursor.lastrowid
        assert number is not None
        return Night(number, started, commit, version, machine, seed, command)

    def finish(self, night: Night) -> None:
        """Write all that is known of a night, in one transaction."""
        with self._transaction():
            self._sql.execute(
                "UPDATE nights SET seconds = ?, standing = ?, exit_code = ? WHERE night = ?",
                (night.seconds, night.standing, night.exit_code, night.number),
            )
            for position, note in enumerate(night.notes):
                self._insert("notes", night.number, position, note)
            for position, world in enumerate(night.worlds):
                self._write(night.number, position, world)
        night.finished = True

    def _write(self, night: int, position: int, world: NightInWorld) -> None:
        self._insert(
            "worlds",
            night,
            position,
            world.world,
            str(world.standing),
            world.budget,
            world.seconds,
            world.schedules,
            world.kills,
            world.sigkills,
            world.report,
        )
        for fault, number in world.faults.items():
            self._insert("faults", night, world.world, fault, number)
        for index, reason in enumerate(world.reasons):
            self._insert("reasons", night, world.world, index, reason)
        for index, failing in enumerate(world.failures):
            self._insert("failures", night, world.world, index, *msgspec.structs.astuple(failing))
        for answer in world.answers:
            self._insert(
                "answers",
                night,
                world.world,
                answer.file,
                str(answer.outcome),
                msgspec.json.encode(list(_texts(*answer.oracles))).decode(),
                answer.reason,
                answer.digest,
                answer.failed,
            )

    def _insert(self, table: str, *values: Any) -> None:
        places = ", ".join("?" for _ in values)
        storable = [_texts(value)[0] if isinstance(value, str) else value for value in values]
        self._sql.execute(f"INSERT INTO {table} VALUES ({places})", storable)

    def last(self, most: int) -> list[Night]:
        """The last nights, the oldest first, those that did not finish among them."""
        with self._reading():
            rows = self._sql.execute("SELECT * FROM nights ORDER BY night DESC LIMIT ?", (most,)).fetchall()
            return [self._night(row) for row in reversed(rows)]

    def _night(self, row: sqlite3.Row) -> Night:
        number = row["night"]
        notes = self._rows("SELECT note FROM notes WHERE night = ? ORDER BY position", number)
        worlds = self._rows("SELECT * FROM worlds WHERE night = ? ORDER BY position", number)
        return Night(
            number=number,
            started=row["started"],
            commit=Commit(row["commit_name"], bool(row["dirty"])),
            version=row["version"],
            machine=row["machine"],
            seed=int(row["seed"]),
            command=row["command"],
            seconds=row["seconds"] or 0.0,
            finished=row["standing"] is not None,
            worlds=[self._world(number, world) for world in worlds],
            notes=[note["note"] for note in notes],
        )

    def _world(self, night: int, row: sqlite3.Row) -> NightInWorld:
        name = row["world"]

        def rows(table: str, order: str) -> list[sqlite3.Row]:
            return self._rows(
                f"SELECT * FROM {table} WHERE night = ? AND world = ? ORDER BY {order}", night, name
            )

        return NightInWorld(
            world=name,
            standing=Standing(row["standing"]),
            budget=row["budget"],
            seconds=row["seconds"],
            schedules=row["schedules"],
            kills=row["kills"],
            sigkills=row["sigkills"],
            faults={each["fault"]: each["times"] for each in rows("faults", "rowid")},
            failures=[
                FailingSchedule(
                    each["file"],
                    each["oracle"],
                    each["scenario"],
                    each["sentence"],
                    each["replay"],
                    each["schedule"],
                    bool(each["kept"]),
                )
                for each in rows("failures", "position")
            ],
            reasons=[each["reason"] for each in rows("reasons", "position")],
            answers=[_answer(each) for each in rows("answers", "file")],
            report=row["report"],
        )

    def answers_before(self, night: int) -> Last:
        """The last answer of each kept schedule in each world before that night, however long ago it was."""
        with self._reading():
            # Of columns beside max(), SQLite gives those of the row that has it.
            rows = self._rows(
                "SELECT world, file, max(night) AS night, outcome, oracles, reason, digest, failed, started, "
                "commit_name, dirty FROM answers JOIN nights USING (night) WHERE night < ? GROUP BY world, file",
                night,
            )
            return {
                (row["world"], row["file"]): Answered(
                    row["night"], row["started"], Commit(row["commit_name"], bool(row["dirty"])), _answer(row)
                )
                for row in rows
            }

    def _rows(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        return self._sql.execute(sql, values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError, msgspec.DecodeError) as error:
            raise _damaged(self.path, str(error)) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._sql.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                # A full disk has rolled it back already.
                if self._sql.in_transaction:
                    self._sql.execute("ROLLBACK")
                raise
            self._sql.execute("COMMIT")
        except sqlite3.Error as error:
            raise HistoryError(self.path, f"it could not be written: {error}") from error


@contextmanager
def opened(path: Path, *, set_aside: bool = False) -> Iterator[Nights]:
    """The history at `path`, made if it is not there, and held against other nights while the block runs.

    Raises `HistoryError`. With `set_aside`, one that cannot be used is renamed, and a new one is begun.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f"{path.name}.lock"), timeout=0)
        lock.acquire()
    except Timeout:
        raise HistoryError(
            path, "another night writes to it; wait for its end, or give each its own"
        ) from None
    except OSError as error:
        raise HistoryError(path, f"it cannot be written there ({error.strerror})") from None
    try:
        try:
            connection = _connect(path)
        except UnusableError:
            if not set_aside:
                raise
            _set_aside(path)
            connection = _connect(path)
        try:
            yield Nights(path, connection)
        finally:
            connection.close()
    finally:
        lock.release()


class UnusableError(HistoryError):
    """A history that would have to be set aside."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(path, f"{what}. It was left as it is; --set-aside renames it and begins a new one")


def _damaged(path: Path, what: str) -> UnusableError:
    return UnusableError(path, f"it is damaged ({what})")


def _connect(path: Path) -> sqlite3.Connection:
    try:
        # Seconds, for somebody who reads it at this moment; transactions are begun by hand.
        connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    except sqlite3.Error as error:
        raise HistoryError(path, f"it cannot be opened: {error}") from None
    connection.row_factory = sqlite3.Row
    try:
        _check(path, connection)
    except sqlite3.OperationalError as error:
        connection.close()
        raise HistoryError(path, f"it cannot be opened: {error}") from None
    except sqlite3.DatabaseError as error:
        connection.close()
        raise _damaged(path, str(error)) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _check(path: Path, connection: sqlite3.Connection) -> None:
    """Make the tables where there are none; raise `UnusableError` for a file that has others."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables and not application and not version:
        connection.executescript(
            f"BEGIN; {_TABLES} PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"
        )
        return
    if application != _APPLICATION:
        raise UnusableError(path, "it is a SQLite file, but no history of nights")
    if version > VERSION:
        raise UnusableError(
            path, f"a newer release wrote it: its tables are of version {version}, this release has {VERSION}"
        )
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise _damaged(path, found)


def _set_aside(path: Path) -> None:
    """Rename the file, and with it a journal, which would be taken for one of the new file."""
    aside = next(
        place
        for number in count(1)
        if not os.path.lexists(place := path.with_name(f"{path.name}.aside-{number}"))
    )
    try:
        path.rename(aside)
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}-journal").rename(aside.with_name(f"{aside.name}-journal"))
    except OSError as error:
        raise HistoryError(path, f"it could not be renamed ({error.strerror})") from None


def _answer(row: sqlite3.Row) -> Answer:
    return Answer(
        row["file"],
        Outcome(row["outcome"]),
        msgspec.json.decode(row["oracles"], type=tuple[str, ...]),
        row["reason"],
        row["digest"],
        bool(row["failed"]),
    )


def _texts(*texts: str) -> tuple[str, ...]:
    """What SQLite can hold: a lone surrogate, as a file name may have, is none of UTF-8."""
    return tuple(text.encode("utf-8", "backslashreplace").decode() for text in texts)
