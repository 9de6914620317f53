"""A writer whose every commit holds one number in all keys, and the readers that no torn answer gets past.

Between commits the writer fills the store with what it then throws away. So at READ_COMMITTED an answer is wrong when
two keys differ, when one is missing, when the number is not that of the position or goes back, or when it is one that
was thrown away.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from store.query import KeyQuery, PositionBound, RangeQuery, query
from store.state.keyvalue import KeyValueStore
from store.types import IsolationLevel, TopicPartition

INPUT = TopicPartition("orders", 0)
CHANGELOG = TopicPartition("orders-changelog", 0)
KEYS = tuple(b"key %03d" % number for number in range(50))
THROWN_AWAY = 999_999_999
_PARTS = 8


def value_of(number: int) -> bytes:
    """The number, again and again: half of one value and half of another is neither."""
    return b"%09d" % number * _PARTS


def number_of(value: bytes) -> int:
    number = int(value[:9])
    assert value == value_of(number), f"a torn value: {value!r}"
    return number


def write_commit(store: KeyValueStore, number: int, order: random.Random) -> None:
    """One transaction that is thrown away, and one that is committed as `number`."""
    keys = list(KEYS)
    order.shuffle(keys)
    for key in keys[: order.randrange(1, len(keys))]:
        store.put(key, None if order.random() < 0.2 else value_of(THROWN_AWAY))
        _let_others_run(order)
    store.discard()
    for key in keys:
        store.put(key, value_of(number))
        _let_others_run(order)
    store.commit({CHANGELOG: number}, {INPUT: number})


def _let_others_run(order: random.Random) -> None:
    """So that transactions are seen half-way, which else are over before another thread has its turn."""
    if order.random() < 0.1:
        time.sleep(0)


@dataclass
class CommittedReader:
    """Asks at READ_COMMITTED, and raises `AssertionError` at an answer that cannot be."""

    store: Any
    seed: int
    answers: int = 0
    last: int = -1
    numbers: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def read(self) -> None:
        bound = PositionBound.at({INPUT: self.last} if self.last >= 0 else {})
        level = IsolationLevel.READ_COMMITTED
        if self._random.random() < 0.5:
            rows_answer = query(self.store, RangeQuery(), isolation=level, bound=bound)
            rows = list(rows_answer.result)
            position = rows_answer.position
            assert tuple(key for key, _ in rows) == KEYS, "keys are missing"
            numbers = {number_of(value) for _, value in rows}
        else:
            answer = query(self.store, KeyQuery(self._random.choice(KEYS)), isolation=level, bound=bound)
            numbers = {number_of(answer.result)}
            position = answer.position
        assert len(numbers) == 1, f"rows of more than one commit: {numbers}"
        [number] = numbers
        assert position == {INPUT: number}, f"{position} is not that of commit {number}"
        assert number >= self.last, f"commit {number} after {self.last}"
        self.last = number
        self.numbers.add(number)
        self.answers += 1


@dataclass
class UncommittedReader:
    """Asks at READ_UNCOMMITTED: rows of several transactions, but each of them whole."""

    store: Any
    answers: int = 0
    dirty: int = 0

    def read(self) -> None:
        rows = list(query(self.store, RangeQuery(), isolation=IsolationLevel.READ_UNCOMMITTED).result)
        assert [key for key, _ in rows] == sorted({key for key, _ in rows} & set(KEYS))
        self.dirty += len({number_of(value) for _, value in rows}) > 1
        self.answers += 1
