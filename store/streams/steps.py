"""Work of tasks that waits for a broker now and then, and what lets other tasks go on meanwhile.

A commit asks the broker three times and waits for each answer. Written as a generator, a task's work hands each such
question to whoever runs it, and is given the answer. Run by itself it asks at once, which is all that a simulation,
a test or a single task needs; run beside others, its questions wait in threads of a pool, and everything else, the
user's functions among it, stays in the thread that runs them all.

Must survive: an error of one task, which is that task's alone, and a runner that goes away in the middle. Then nothing
is left running: what was asked is waited for, and each generator is closed, so that its task knows that it does not
know.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
K = TypeVar("K")

Steps = Generator[Callable[[], Any], Any, T]
"""Yields questions, each to be called once, in any thread; takes their answers or errors; returns what it is about."""

Beside = closing[Generator[tuple[K, Callable[[], T]], None, None]]
"""A context manager of what has ended so far: whose it was, and what returns its result or raises its error."""


def complete(steps: Steps[T]) -> T:
    """Run `steps` to their end, asking each question here and now."""
    try:
        question = next(steps)
        while True:
            try:
                answer = question()
            except BaseException as error:  # noqa: BLE001 - it is the steps' to handle, whatever it is
                question = steps.throw(error)
            else:
                question = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def side_by_side(
    work: Iterable[tuple[K, Steps[T]]], pool: Executor | None, enter: Callable[[K], object]
) -> Beside[K, T]:
    """Run all of `work`, each until its first question and, when that is answered, until the next.

    Gives each as it ends, with what returns its result or raises its error, be it an interrupt. `enter` is told whose
    code runs from then on. Without a `pool` each is run when its result is asked for, one after the other.
    """
    return closing(_run(work, pool, enter))


def _run(
    work: Iterable[tuple[K, Steps[T]]], pool: Executor | None, enter: Callable[[K], object]
) -> Generator[tuple[K, Callable[[], T]], None, None]:
    if pool is None:
        for key, steps in work:
            enter(key)
            yield key, partial(complete, steps)
        return
    waiting: dict[Future[Any], tuple[K, Steps[T]]] = {}
    last: list[K] = []
    try:
        for ended in _all(work, waiting, pool, enter):
            last = [ended[0]]
            yield ended
    finally:
        wait(waiting)
        with ExitStack() as all_of_them:
            for key, steps in reversed(waiting.values()):
                all_of_them.callback(_close, key, steps, enter)
        if waiting:
            # While an error is on its way, the one that it came from stays the entered one.
            for key in last:
                enter(key)


def _close(key: K, steps: Steps[T], enter: Callable[[K], object]) -> None:
    enter(key)
    steps.close()


def _all(
    work: Iterable[tuple[K, Steps[T]]],
    waiting: dict[Future[Any], tuple[K, Steps[T]]],
    pool: Executor,
    enter: Callable[[K], object],
) -> Iterator[tuple[K, Callable[[], T]]]:
    for key, steps in work:
        yield from _go_on(key, steps, partial(next, steps), waiting, pool, enter)
        yield from _answered(waiting, pool, enter)
    while waiting:
        wait(waiting, return_when=FIRST_COMPLETED)
        yield from _answered(waiting, pool, enter)


def _answered(
    waiting: dict[Future[Any], tuple[K, Steps[T]]],
    pool: Executor,
    enter: Callable[[K], object],
) -> Iterator[tuple[K, Callable[[], T]]]:
    # In the order in which they were asked, which the set of those that are done does not have.
    for future in [one for one in waiting if one.done()]:
        key, steps = waiting.pop(future)
        error = future.exception()
        resume = partial(steps.send, future.result()) if error is None else partial(steps.throw, error)
        yield from _go_on(key, steps, resume, waiting, pool, enter)


def _go_on(
    key: K,
    steps: Steps[T],
    resume: Callable[[], Callable[[], Any]],
    waiting: dict[Future[Any], tuple[K, Steps[T]]],
    pool: Executor,
    enter: Callable[[K], object],
) -> Iterator[tuple[K, Callable[[], T]]]:
    enter(key)
    try:
        question = resume()
        while True:
            try:
                waiting[pool.submit(question)] = key, steps
                return
            except RuntimeError as error:
                # The pool was shut down. To the steps that is a question that failed.
                question = steps.throw(error)
    except StopIteration as end:
        yield key, partial(_given, end.value)
    except BaseException as error:  # noqa: BLE001 - raised where the result is asked for, also an interrupt
        yield key, partial(_raise, error)


def _given(result: T) -> T:
    return result


def _raise(error: BaseException) -> NoReturn:
    raise error
