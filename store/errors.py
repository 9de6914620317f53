"""Every error that the store and its tasks raise, told apart by what the caller has to do next.

Kafka and RocksDB report trouble as strings and codes; the adapters turn each into one of these classes in
one place, so that the commit protocol can be read as a list of cases. The class says what is known:

* the transaction is still whole and the same call may be repeated (`RetriableError`),
* the transaction must be aborted, the producer may go on (`AbortRequiredError`),
* a newer incarnation owns the task (`FencedError`),
* nobody here knows whether the commit happened (`OutcomeUnknownError`); only a fresh `init_transactions`
  of the same transactional id settles it,
* the producer is of no further use, and a new one may be made (`FatalLogError`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from typing import Any

from store.types import Content, TopicPartition


class CrashproofError(Exception):
    """Base of all errors raised on purpose by this project."""


class ConfigError(CrashproofError):
    """A configuration value that is not allowed. Names the key, the value and what is allowed."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        """A value of `...` stands for one that is not to be shown, since it may be a secret."""
        super().__init__(f"{key}{'' if value is ... else f'={value!r}'} is not allowed: {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed


def check_kind(argument: str, given: object, kind: Any, allowed: str) -> None:
    """Raise `ConfigError` for an argument of another kind, which is what `isinstance` takes."""
    if not isinstance(given, kind):
        raise ConfigError(argument, given, allowed)


def check_whole(argument: str, given: object, lowest: int) -> None:
    """Raise `ConfigError` for what is no whole number, or a lower one."""
    if type(given) is not int or given < lowest:
        raise ConfigError(argument, given, f"a whole number of at least {lowest}")


def check_directory(argument: str, given: object) -> None:
    """Raise `ConfigError` for what is no path."""
    check_kind(argument, given, str | PathLike, "the path of a directory")


class LogError(CrashproofError):
    """Something that the log (Kafka) reported."""


class RetriableError(LogError):
    """Nothing was changed or lost; the same call may be repeated."""


class AbortRequiredError(LogError):
    """The current transaction can only be aborted; after that the same producer goes on."""


class RecordRefusedError(AbortRequiredError):
    """The cluster does not take a record for what it is: too large, or invalid. It will never take it.

    `outputs` are those that were refused together: one of them, or more, is at fault.
    `by_time` says that it is so for its time, which a client does not tell: another one of its content may be taken.
    """

    def __init__(
        self,
        message: str,
        outputs: Sequence[Content] = (),
        *,
        by_time: bool = False,
    ) -> None:
        super().__init__(message)
        self.outputs = tuple(outputs)
        self.by_time = by_time


class RecordNotTakenError(LogError):
    """The client does not take a record. Nothing was sent, and the transaction is as it was."""


class RecordTooLargeError(RecordNotTakenError):
    """The client does not take a record that is too large."""


class RecordFailedError(AbortRequiredError):
    """Processing a record raised, and the handler goes on: when the input is read again the record is passed over."""


class UnstableResultError(CrashproofError):
    """Forwarding a result raised, the handler goes on without it, and it is another one each time the input is read.

    Which one to pass over cannot be told then: make its value depend on nothing but the records.
    """


class FencedError(LogError):
    """The broker takes nothing more from this producer: a newer one has its transactional id.

    A producer raises it too when the broker gave its transaction up for `transaction.timeout.ms`, since the broker's
    answer is the same; a task tells the two apart, see `TransactionTimedOutError`. The holder closes everything and
    gives the task up without touching what the successor owns.
    """


class TaskLostError(FencedError):
    """Newer incarnations have tasks of this worker, which no longer works on them. `lost` says which and why."""

    def __init__(self, lost: Mapping[int, FencedError]) -> None:
        """`lost`: the error that each task ended with, by partition."""
        super().__init__("; ".join(f"partition {partition}: {error}" for partition, error in lost.items()))
        self.lost = dict(lost)


class OutcomeUnknownError(LogError):
    """The commit was sent and its answer never came: it may or may not have happened.

    Only `init_transactions` of the same transactional id, by this process or another, settles it.
    """


class FatalLogError(LogError):
    """The producer or reader is of no further use; make a new one."""


class RecordLostError(FatalLogError):
    """What `RecordRefusedError` is, of a producer without transactions: the record is not there, and others may be.

    Where a flush raises it that was of one record alone, nothing else is lost, and the producer goes on.
    """

    def __init__(
        self,
        message: str,
        outputs: Sequence[Content] = (),
        *,
        by_time: bool = False,
    ) -> None:
        super().__init__(message)
        self.outputs = tuple(outputs)
        self.by_time = by_time


class TransactionTimedOutError(FatalLogError):
    """The broker gave a task's transaction up, which was open for longer than `transaction.timeout.ms`.

    Nothing of it counts, and nothing shows that another incarnation has the task: a new one may go on.
    """


class UnreachableError(LogError):
    """No broker answered at the given address within the time allowed."""


class LogTruncatedError(FatalLogError):
    """A partition is not the one that was read up to a position: its leader has not got all that was before it."""

    def __init__(self, message: str, place: TopicPartition, position: int, parts_at: int | None) -> None:
        """`parts_at`: where the two part, if that is known."""
        super().__init__(message)
        self.place = place
        self.position = position
        self.parts_at = parts_at


class InputChangedError(LogError):
    """An input is not what it was: made anew, with other partitions, without records that were not processed yet, or
    without some that were, at whose offsets are others.

    It stays so until somebody does something about it.
    """


class HangingTransactionError(LogError):
    """The last stable offset of a changelog did not reach its end although its only writer is fenced.

    Seen when a broker was killed between acknowledging a commit and writing its marker. Restoring now
    would drop acknowledged records, so the task refuses to start.
    """


class PositionLostError(CrashproofError):
    """The stores hold input that the group's committed positions do not cover: the positions were reset or expired.

    Going on from them would count that input twice, so the task refuses to start. As it does where somebody who is no
    task of the application has moved them while the group had members: going on would pass input over.
    """


class BufferFullError(CrashproofError):
    """The buffer of a `suppress` holds as much as it may, and is to stop the application then."""


class ProtocolError(CrashproofError):
    """A call that the state of the object forbids, such as a commit without a transaction."""


class StoreError(CrashproofError):
    """Something that a state store or its engine reported."""


class StoreClosedError(StoreError):
    """The store was used after it was closed."""


class StoreCorruptedError(StoreError):
    """The engine found data that fails its own checks, or that another program has written. The store can be set aside
    and restored, by the rules of `store.recovery.decision`."""


class StoreTypeError(StoreError):
    """The directory holds a store of another type under this name. It is whole, and nothing of it was changed."""


class SerdeError(StoreError, ValueError):
    """A serde could not turn a key or value into bytes, or bytes of a store into a key or value.

    The second means that the store was written with another serde, or with another version of the data's type.
    """


class DeserializationError(SerdeError):
    """The key or value of an input record could not be turned into an object. Raised before anything else was done."""


class StoreIOError(StoreError):
    """The operating system refused a read or write of the engine (full disk, permissions, a failing device)."""


class StateDirectoryError(StoreIOError):
    """The state directory cannot be made, or not be written to, and stays so until somebody does something about it."""


class ChangelogLostError(StoreError):
    """The changelog lacks what its store's input has come to: it was deleted, and perhaps made anew, or truncated.

    A store on disk is then the only whole copy of the state, so nothing is changed and the task refuses to start.
    """


class StateLockedError(StoreError):
    """The state directory of a task, or a database in it, is held by a live process."""


class RestoreBrokenOffError(CrashproofError):
    """A restore was told to end before the end of its log, or the start of a task was. What is restored stays, and the
    next one goes on."""


class ShutdownRequestedError(CrashproofError):
    """Another instance of the application has failed, and asks all of them to end (`SHUTDOWN_APPLICATION`)."""


class TaskHostError(CrashproofError):
    """A task host (`store.spark.host`) did not carry an order out: it raised what the message says, or died.

    Nothing that was committed is lost, and the same order may be given again, to it or to another host.
    """


def note(error: BaseException, text: str) -> None:
    """Say something more in an error of anybody's: one that takes no notes, as a frozen dataclass, goes without."""
    with suppress(Exception):
        error.add_note(text)


def text_of(error: BaseException) -> str:
    """The words of an error of anybody's, also where that raises as it is asked for them."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - whatever a class of the user raises
        return f"no words: {type(another).__name__} was raised by its __str__"


def end_after(
    error: BaseException, end: Callable[[], None], what: str = "what had begun"
) -> Exception | None:
    """Let go of something because of `error`, which stays the one that is raised: what `end` raises is noted on it, and
    given back."""
    try:
        end()
    except Exception as another:  # noqa: BLE001 - whatever a processor of the user raises
        note(error, f"closing {what} failed too: {another!r}")
        return another
    return None


class FirstError:
    """Steps of which none is left out because another one has failed: the first error is raised behind them all.

    Whatever is no `Exception` is meant for the thread or the process, and is raised at once.
    """

    def __init__(self) -> None:
        self._first: Exception | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Go on behind the block when it fails."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a function of the user raises
            if self._first is None:
                self._first = error
            else:
                note(self._first, f"what came after it failed too: {error!r}")

    def tell(self) -> None:
        """Raise the first error, if there was one."""
        if self._first is not None:
            raise self._first
