"""An instance that is asked and closed while it starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from harness.worlds.sim.broker import SimLog
from store.config import StreamsConfig
from store.errors import StateDirectoryError
from store.streams.application import Application
from store.streams.instance import Instance, State, SystemThreads
from store.streams.instance import Thread as AnyThread
from store.streams.streams import Streams
from store.streams.thread import Host
from tests.clusters import Cluster, pipeline
from tests.waiting import until


def instance(prepare: Callable[[], object], threads: SystemThreads) -> Instance:
    """One with two threads, which has to be asked to end before they run."""
    cluster = Cluster()
    return Instance(
        Application.of(cluster.topology),
        StreamsConfig.of({"num.stream.threads": 2}),
        SimLog(cluster.broker),
        cluster.storage(),
        cluster.clock,
        threads,
        prepare,
        host=Host("host"),
    )


def test_an_instance_that_is_closed_while_it_prepares_is_closed_when_that_is_done_and_all_threads_have_ended() -> (
    None
):
    done: list[str] = []
    states: list[State] = []

    def close() -> None:
        one.close()
        done.append("closed")

    def prepare() -> None:
        closer.start()
        until(lambda: one._stopping.is_set())
        states.append(one.state)
        closer.join(0.5)
        done.append("prepared")

    closer = Thread(target=close)
    one = instance(prepare, SystemThreads())
    one.start()
    closer.join()
    assert (done, states, one.state) == (["prepared", "closed"], [State.PENDING_SHUTDOWN], State.NOT_RUNNING)
    assert [thread.is_alive() for thread in one._threads] == [False, False]


def test_a_start_asks_no_broker_where_it_has_no_directory_for_its_state(tmp_path: Path) -> None:
    place = tmp_path / "file" / "state"
    place.parent.touch()
    running = Streams(pipeline(), bootstrap="127.0.0.1:1", state_dir=place)
    with pytest.raises(
        StateDirectoryError,
        match=rf"^state_dir='{place}' cannot be used for state: .*has to be a directory that",
    ):
        running.start()
    running.close()


class Watched(SystemThreads):
    """Something happens when the first of the threads has come to its end, and the second is not started."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self.meanwhile = Thread(target=happens)
        self.first: AnyThread | None = None

    def thread(self, work: Callable[[], None], name: str) -> AnyThread:
        made = super().thread(work, name)
        if self.first is None:
            self.first = made
        else:
            setattr(made, "start", partial(self.start_second, made.start))  # noqa: B010
        return made

    def start_second(self, start: Callable[[], None]) -> None:
        assert self.first is not None
        self.meanwhile.start()
        self.meanwhile.join(0.5)
        start()


def test_an_instance_whose_threads_are_being_started_has_not_ended_before_all_are_and_have() -> None:
    heard: list[object] = []

    def happens() -> None:
        one.stop()
        assert threads.first is not None
        threads.first.join()
        heard.extend((one.state, one.wait(0.0)))
        one.close()
        heard.extend((one.state, one.wait(0.0)))

    threads = Watched(happens)
    one = instance(lambda: one.stop(), threads)
    one.start()
    one.close()
    threads.meanwhile.join()
    assert heard == [State.PENDING_SHUTDOWN, False, State.NOT_RUNNING, True]
