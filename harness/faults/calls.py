"""Faults of calls to the broker and of the processing function: errors, timeouts, lost answers, exceptions.

Each happens around one call of the process under test. After an error that requires an abort the producer refuses
everything but the abort, as a real client does; `harness.worlds.process` sees to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from harness.faults.description import (
    CALLS,
    STARTS_AGAIN,
    TRANSACTION_CALLS,
    Capability,
    Excuse,
    Fault,
    Occasion,
    Where,
)
from store.errors import (
    AbortRequiredError,
    FatalLogError,
    OutcomeUnknownError,
    RetriableError,
    UnreachableError,
)

_CALLS = frozenset({Capability.PROCESSES, Capability.CALLS})
_TRANSACTION = (Occasion.COMMIT_TRANSACTION, Occasion.SEND_OFFSETS, Occasion.FLUSH)
_ASKS = tuple(
    call
    for call in CALLS
    # Two are between the process and its client. Whether a commit was sent is for `lose_request`.
    if call not in (Occasion.BEGIN_TRANSACTION, Occasion.PRODUCE, Occasion.COMMIT_TRANSACTION)
)
_CALLS_IN_A_ROW = (3, 12, 24)
"""So few that a member that tries again every other second is over them within any `task.timeout.ms` that is drawn."""


class ProcessingError(Exception):
    """What the processing function raises where a schedule says so."""


def _refuse(_: Callable[[], Any]) -> NoReturn:
    raise AbortRequiredError("the schedule refuses this call; abort the transaction")


def _lose_reply(call: Callable[[], Any]) -> NoReturn:
    call()
    raise OutcomeUnknownError("the schedule lost the answer to this commit")


def _lose_request(_: Callable[[], Any]) -> NoReturn:
    raise OutcomeUnknownError("the schedule lost this commit before it arrived")


def _repeat_later(_: Callable[[], Any]) -> NoReturn:
    raise RetriableError("the schedule lets this call fail; repeat it")


def _reach_nobody(_: Callable[[], Any]) -> NoReturn:
    raise UnreachableError("the schedule lets no broker be reached")


def _answer_late(call: Callable[[], Any]) -> NoReturn:
    call()
    raise RetriableError("the schedule lets the answer to this call come too late; repeat the call")


def _fatal(_: Callable[[], Any]) -> NoReturn:
    raise FatalLogError("the schedule breaks this client; make a new one")


def _raise(_: Callable[[], Any]) -> NoReturn:
    raise ProcessingError("the schedule makes the processing function fail at this record")


def _raise_afterwards(call: Callable[[], Any]) -> NoReturn:
    call()
    raise ProcessingError("the schedule makes this punctuator fail")


FAULTS = (
    Fault(
        "abort_commit",
        "The next commit of the task, or another call of its transaction, is answered with an error that requires an "
        "abort.",
        Where.OCCASION,
        needs=_CALLS,
        excuses=STARTS_AGAIN,
        occasions=(*_TRANSACTION, Occasion.PRODUCE),
        around=_refuse,
    ),
    Fault(
        "lose_reply",
        "The next commit of the task happens, and its answer is lost.",
        Where.OCCASION,
        needs=_CALLS,
        excuses=STARTS_AGAIN,
        occasions=(Occasion.COMMIT_TRANSACTION,),
        around=_lose_reply,
        works=True,
    ),
    Fault(
        "lose_request",
        "The next commit of the task never reaches the broker, and the client cannot know.",
        Where.OCCASION,
        needs=_CALLS,
        excuses=STARTS_AGAIN,
        occasions=(Occasion.COMMIT_TRANSACTION,),
        around=_lose_request,
    ),
    Fault(
        "fail_call",
        "The next call of that kind fails before it reaches the broker, with an error that allows to repeat it.",
        Where.OCCASION,
        needs=_CALLS,
        excuses=STARTS_AGAIN,
        occasions=CALLS,
        around=_repeat_later,
    ),
    *(
        Fault(
            name,
            sentence,
            Where.OCCASION,
            needs=_CALLS,
            # A member waits for brokers; a worker alone ends, to be run again.
            excuses=STARTS_AGAIN | {Excuse.FAIL},
            occasions=_ASKS,
            around=around,
            amount=_CALLS_IN_A_ROW,
            outlived_in=("streams",),
            lasts=True,
        )
        for name, sentence, around in (
            (
                "fail_calls",
                "The next call of that kind, and so many calls of the process in all, fail before they reach the "
                "broker, with an error that allows to repeat them.",
                _repeat_later,
            ),
            (
                "lose_brokers",
                "At the next call of that kind, and for so many calls in all, the process reaches no broker.",
                _reach_nobody,
            ),
        )
    ),
    Fault(
        "answer_late",
        "The next call of that kind does its work, but the client gives up waiting and is told to repeat it.",
        Where.OCCASION,
        needs=_CALLS,
        excuses=STARTS_AGAIN,
        occasions=(
            Occasion.INIT_TRANSACTIONS,
            Occasion.FLUSH,
            Occasion.SEND_OFFSETS,
            Occasion.ABORT_TRANSACTION,
            Occasion.COMMIT_OFFSETS,
            Occasion.READ,
        ),
        around=_answer_late,
        works=True,
    ),
    Fault(
        "break_client",
        "The next call of that kind ends with a fatal error of the client.",
        Where.OCCASION,
        needs=_CALLS,
        # A task that was only starting has nothing to go back to.
        excuses=STARTS_AGAIN | {Excuse.FAIL},
        occasions=TRANSACTION_CALLS,
        around=_fatal,
    ),
    Fault(
        "fail_processing",
        "The processing function raises at the next record of the task.",
        Where.OCCASION,
        needs=frozenset({Capability.PROCESSES, Capability.RECORDS}),
        excuses=frozenset({Excuse.FAIL}),
        occasions=(Occasion.RECORD,),
        around=_raise,
        of_records=True,
    ),
    Fault(
        "fail_punctuator",
        "The next punctuator of the task raises once it has written and forwarded, which no handler is asked about.",
        Where.OCCASION,
        needs=frozenset({Capability.PROCESSES, Capability.RECORDS}),
        excuses=frozenset({Excuse.FAIL}),
        occasions=(Occasion.PUNCTUATOR,),
        around=_raise_afterwards,
        punctuates=True,
        placed=True,
        runtimes=("worker", "streams"),
    ),
)
