"""What a query returns: an answer or the reason why there is none, and the position that it holds for.

Must survive: an answer that is read long after the writer went on, committed and dropped what it is read from.
An iterator holds its snapshot until it is read to its end or closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from store.errors import ProtocolError, StoreClosedError, StoreError
from store.query.position import Position

R = TypeVar("R", covariant=True)
T = TypeVar("T")


class FailureReason(StrEnum):
    """The reason why a store did not answer, one of Kafka Streams'."""

    UNKNOWN_QUERY_TYPE = "UNKNOWN_QUERY_TYPE"
    """A store of this type cannot be asked that."""
    NOT_ACTIVE = "NOT_ACTIVE"
    """The active copy was asked for, and this one is a standby."""
    NOT_UP_TO_BOUND = "NOT_UP_TO_BOUND"
    """The store has not come as far as the bound: ask again later, or another copy."""
    NOT_PRESENT = "NOT_PRESENT"
    """The partition is not here: ask another instance."""
    DOES_NOT_EXIST = "DOES_NOT_EXIST"
    """The store has no such partition anywhere."""
    STORE_EXCEPTION = "STORE_EXCEPTION"
    """The store raised an error, which the message gives: it is closed, corrupt, or its disk fails."""


@dataclass(frozen=True)
class QueryResult(Generic[R]):
    """The answer of one store. One of an answer (which may be None) and a failure."""

    value: R | None = None
    position: Position = field(default_factory=Position)
    """What the answer reflects; of a failure, where the store was, as far as it could say."""
    failure_reason: FailureReason | None = None
    failure_message: str | None = None
    execution_info: tuple[str, ...] = ()

    @property
    def is_success(self) -> bool:
        return self.failure_reason is None

    @property
    def is_failure(self) -> bool:
        return self.failure_reason is not None

    @property
    def result(self) -> R:
        """The answer. Raises `ProtocolError`, with the reason, when there is none."""
        if self.failure_reason is not None:
            raise ProtocolError(f"the query has no result: {self.failure_reason}: {self.failure_message}")
        answer: Any = self.value
        return answer  # type: ignore[no-any-return]

    @classmethod
    def failed(cls, reason: FailureReason, message: str, position: Position | None = None) -> QueryResult[R]:
        return cls(
            position=Position() if position is None else position,
            failure_reason=reason,
            failure_message=message,
        )


@dataclass(frozen=True)
class StateQueryResult(Generic[R]):
    """The answers of several partitions of one store."""

    partition_results: Mapping[int, QueryResult[R]]

    @property
    def position(self) -> Position:
        """All partitions' positions together: as the bound of the next query, it never goes back in time."""
        position = Position()
        for result in self.partition_results.values():
            position = position.merge(result.position)
        return position

    def only_partition_result(self) -> QueryResult[R] | None:
        """The one answer that is not None; None when there is none. Raises `ProtocolError` when there are more."""
        answered = {
            partition: result
            for partition, result in self.partition_results.items()
            if result.is_success and result.value is not None
        }
        if len(answered) > 1:
            raise ProtocolError(f"not one partition has an answer, but {len(answered)}: {sorted(answered)}")
        return next(iter(answered.values()), None)


class ClosableIterator(Protocol[R]):
    """The iterator that range reads of every store type return."""

    def __next__(self) -> R: ...

    def close(self) -> None: ...


class _State(Enum):
    OPEN = 1
    ENDED = 2
    CLOSED = 3


class QueryIterator(Generic[T]):
    """The rows of an answer, with the snapshot that they are read from.

    Close it, or use it as a context manager, unless it is read to its end; one that is dropped is closed when it is
    collected. One thread at a time. After it is closed it raises `StoreClosedError`, and so it does after its store is,
    once it has given what it had read by then: the next row where that was looked at, and all versions of a key. Rows
    that cannot be read raise `StoreCorruptedError` or `StoreIOError`.
    """

    __slots__ = ("_convert", "_head", "_release", "_rows", "_state")

    def __init__(
        self,
        rows: ClosableIterator[T],
        release: Callable[[], None],
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        """`release` gives the snapshot back; it is called at the end, at an error and at each `close`.

        With `convert` the rows are pairs, and it makes the value of each.
        """
        self._rows = rows
        self._convert = convert
        self._release = release
        self._head: T | None = None
        self._state = _State.OPEN

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        head, self._head = self._head, None
        if head is not None:
            return head
        if self._state is _State.ENDED:
            raise StopIteration
        if self._state is _State.CLOSED:
            raise StoreClosedError("iterator of a query used after it was closed")
        try:
            row: Any = next(self._rows)
            answer: Any = row if self._convert is None else (row[0], self._convert(row[1]))
        except StopIteration:
            self._free(_State.ENDED)
            raise
        except StoreError:
            self._free(_State.CLOSED)
            raise
        return answer  # type: ignore[no-any-return]

    def has_next(self) -> bool:
        """Whether `next` returns a row, which stays where it is."""
        if self._head is None:
            self._head = next(self, None)
        return self._head is not None

    def peek_next_key(self) -> Any:
        """The key of the next row, which stays where it is: of windows of one key their start, otherwise the window
        with its key, of versions of one key, which have none of their own, the value. Raises `StopIteration` at the
        end.
        """
        if self._head is None:
            self._head = next(self)
        row: Any = self._head
        return row[0]

    def close(self) -> None:
        """Idempotent."""
        self._head = None
        self._free(_State.CLOSED)

    def _free(self, state: _State) -> None:
        self._state = state
        try:
            self._rows.close()
        finally:
            self._release()

    def __del__(self) -> None:
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
