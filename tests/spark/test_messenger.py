"""Orders brought to real processes, without Spark and without a broker: hosts that are slow, stopped, or not ours."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import queue
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import answer_challenge, deliver_challenge
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import psutil
import pytest
from pyspark.errors import PySparkException

import store.spark
from store.config import StreamsConfig
from store.errors import ConfigError, InputChangedError, StateDirectoryError, TaskHostError
from store.spark import messenger, process, streams
from store.spark.host import Carried, Deployment, Host, Order, Orders
from store.spark.messenger import acknowledge_at_once, bring, dismiss, renew
from store.spark.process import Answer, Lease, Place, _trace, born
from store.spark.streams import SparkStreams, SparkStreamsQuery, _home, _machines
from store.streams.application import Application
from store.streams.topology import Context, Topology
from store.types import Record, TopicPartition
from tests.waiting import LONGEST_S, ended, gone, until

ORDERS = [Order(0, 0, {"in": 1})]
DONE = [Carried(0, 0, {"in": 1}, 1)]
NO_LOG = Path(os.devnull)


def nothing(_context: Context, _record: Record) -> None: ...


@dataclass
class Busy:
    """A host that takes its time."""

    work: Callable[[], object]

    def carry_out(self, orders: Orders) -> list[Carried]:
        self.work()
        return [Carried(one.ordinal, one.partition, dict(one.ends), 1) for one in orders.orders]

    def tick(self) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None: ...


Deployed = Callable[..., Deployment]

_used = messenger._used


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    """Nobody stands still but who was stopped: a host that runs may wait for a processor for longer than its silence,
    and so may its start."""
    asked = itertools.count(1)

    def used(host: Place) -> float | None:
        found = _used(host)
        with suppress(psutil.NoSuchProcess):
            if found is not None and psutil.Process(host.pid).status() != psutil.STATUS_STOPPED:
                return found + next(asked)
        return found

    monkeypatch.setattr(messenger, "_used", used)
    monkeypatch.setattr(messenger, "_START_S", LONGEST_S)
    made: list[Deployment] = []

    def deploy(
        work: Callable[[], object] = lambda: None, silence_s: float = 2.0, run: str = "run"
    ) -> Deployment:
        def made_of(_deployment: Deployment) -> Host:
            return Busy(work)

        application = Application.of(Topology("app", ("in",), (), (), nothing))
        one = Deployment(
            application, StreamsConfig(), "", str(tmp_path), run, host=made_of, silence_s=silence_s
        )
        made.append(one)
        return one

    yield deploy
    for one in made:
        dismiss(one, 0)


def place_of(deployment: Deployment) -> Path:
    return Path(deployment.state_dir) / "app" / ".hosts" / "slot-0.json"


def known(deployment: Deployment) -> Place:
    return msgspec.json.decode(place_of(deployment).read_bytes(), type=Place)


def test_a_host_that_stands_still_is_followed_by_another_one(deployed: Deployed) -> None:
    deployment = deployed()
    assert bring(deployment, 0, ORDERS, 1) == DONE
    stopped = psutil.Process(known(deployment).pid)
    stopped.suspend()
    assert bring(deployment, 0, ORDERS, 1) == DONE
    assert known(deployment).pid != stopped.pid
    until(lambda: ended(stopped))


def test_a_host_that_comes_to_stand_still_in_an_order_is_killed_and_the_attempt_fails(
    deployed: Deployed,
) -> None:
    deployment = deployed(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    with pytest.raises(TaskHostError, match="stood still, and was killed"):
        bring(deployment, 0, ORDERS, 1)
    until(lambda: gone(known(deployment).pid))


def test_a_host_that_stands_still_before_it_has_an_order_is_killed_and_the_attempt_fails(
    deployed: Deployed,
) -> None:
    def stand_still(_deployment: Deployment) -> Host:
        os.kill(os.getpid(), signal.SIGSTOP)
        raise AssertionError

    deployment = replace(deployed(), host=stand_still)
    with pytest.raises(TaskHostError, match="stood still, and was killed"):
        bring(deployment, 0, ORDERS, 1)
    until(lambda: gone(known(deployment).pid))


def test_a_host_of_an_earlier_start_that_stands_still_keeps_no_later_one_waiting(deployed: Deployed) -> None:
    bring(deployed(), 0, ORDERS, 1)
    stopped = psutil.Process(known(deployed()).pid)
    stopped.suspend()
    assert bring(deployed(run="later"), 0, ORDERS, 1) == DONE
    until(lambda: ended(stopped))


def test_a_host_whose_order_takes_long_is_waited_for(deployed: Deployed) -> None:
    deployment = deployed(lambda: time.sleep(5))
    assert bring(deployment, 0, ORDERS, 1) == DONE


def forever() -> None:
    """Holds the interpreter, so that no other thread of the process can say anything, for some seconds."""
    ends = time.monotonic() + 5
    length = 18
    while time.monotonic() < ends:
        re.match("(a*)*b", "a" * length)
        length += 1


def test_a_host_that_is_too_busy_to_speak_is_waited_for(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = messenger._reach

    def reached(deployment: Deployment, place: Path) -> messenger._Line:
        # Before it has its order it is not busy.
        line = reach(replace(deployment, silence_s=None), place)
        line._silence_s = 1.0
        return line

    monkeypatch.setattr(messenger, "_reach", reached)
    monkeypatch.setattr(messenger, "_used", _used)
    deployment = deployed(forever)
    assert bring(deployment, 0, ORDERS, 1) == DONE


def test_a_process_that_has_the_number_of_a_host_by_chance_is_not_killed(deployed: Deployed) -> None:
    deployment = deployed(silence_s=1.0)
    place = place_of(deployment)
    place.parent.mkdir(parents=True)
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        try:
            there = Place("run", other.pid, silent.getsockname()[1], "00", born(other.pid) - 1)
            place.write_bytes(msgspec.json.encode(there))
            assert bring(deployment, 0, ORDERS, 1) == DONE
            assert other.poll() is None
        finally:
            other.kill()


def test_no_host_is_started_for_a_query_whose_hosts_were_told_to_go(deployed: Deployed) -> None:
    """As by the attempt of a job that was cancelled, which goes on until Spark ends its process."""
    deployment = deployed()
    assert bring(deployment, 0, ORDERS, 1) == DONE
    host = known(deployment).pid
    dismiss(deployment, 0)
    until(lambda: gone(host))
    with pytest.raises(TaskHostError, match="the query has ended"):
        bring(deployment, 0, ORDERS, 1)
    assert not place_of(deployment).exists()


def test_a_slot_that_another_attempt_keeps_is_not_waited_for_for_ever(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messenger, "_HELD_S", 0.0)
    deployment = deployed(silence_s=0.0)
    place = place_of(deployment)
    place.parent.mkdir(parents=True)
    with place.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        said = rf"another attempt has had slot-0 of the task hosts in {place.parent} on .* for 0 s"
        with pytest.raises(TaskHostError, match=said):
            bring(deployment, 0, ORDERS, 1)
    assert bring(replace(deployment, silence_s=2.0), 0, ORDERS, 1) == DONE


def test_a_host_that_was_about_to_start_when_all_were_told_to_go_ends_at_once(
    deployed: Deployed, tmp_path: Path
) -> None:
    opened = tmp_path / "opened"

    def open_tasks(_deployment: Deployment) -> Host:
        opened.touch()
        raise AssertionError

    deployment = replace(deployed(), host=open_tasks)
    dismiss(deployment, 0)
    place = place_of(deployment)
    # From here on as for an attempt that has looked before that. It may see where the host listens before that ends.
    try:
        started = messenger._start(deployment, place)
        until(lambda: gone(started.pid))
    except TaskHostError as error:
        assert "could not be started: TaskHostError: the query has ended" in str(error)  # noqa: PT017
    assert "TaskHostError: the query has ended" in place.with_suffix(".log").read_text()
    assert not opened.exists()
    assert not place.exists()


def test_a_late_attempt_of_a_query_that_has_ended_sends_no_host_of_the_next_start_away(
    deployed: Deployed,
) -> None:
    before, after = deployed(run="before"), deployed(run="after")
    dismiss(before, 0)
    assert bring(after, 0, ORDERS, 1) == DONE
    host = known(after).pid
    with pytest.raises(TaskHostError, match="the query has ended"):
        bring(before, 0, ORDERS, 1)
    assert bring(after, 0, ORDERS, 1) == DONE
    assert known(after).pid == host


def test_a_late_word_to_the_hosts_of_a_query_that_has_ended_is_not_for_those_of_the_next_start(
    deployed: Deployed,
) -> None:
    before, after = deployed(run="before"), deployed(run="after")
    assert bring(after, 0, ORDERS, 1) == DONE
    host = known(after).pid
    dismiss(before, 0)
    assert bring(after, 0, ORDERS, 1) == DONE
    assert known(after).pid == host


def test_where_a_host_listens_is_told_to_its_owner_alone(deployed: Deployed) -> None:
    """With the key that orders are taken from."""
    deployment = deployed()
    bring(deployment, 0, ORDERS, 1)
    assert place_of(deployment).stat().st_mode & 0o077 == 0


def test_a_host_that_ends_is_found_by_nobody_before_its_tasks_are_closed(
    deployed: Deployed, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"

    @dataclass
    class Closing(Busy):
        place: Path

        def close(self) -> None:
            closed.write_text(f"found: {self.place.exists()}")

    deployment = deployed()
    place = place_of(deployment)
    deployment = replace(deployment, host=lambda _: Closing(lambda: None, place))
    bring(deployment, 0, ORDERS, 1)
    host = known(deployment).pid
    dismiss(deployment, 0)
    until(lambda: gone(host))
    assert closed.read_text() == "found: False"


class Calls:
    """Calls that come to a host, each some seconds after the one before, and then none."""

    def __init__(self, *after: float) -> None:
        self.left = list(after)
        self.now = 0.0
        self.answers: list[Answer] = []

    def monotonic(self) -> float:
        return self.now

    def get(self, timeout: float) -> Any:
        if not self.left or self.left[0] > timeout:
            self.now += timeout
            self.left = self.left and [self.left[0] - timeout, *self.left[1:]]
            raise queue.Empty
        self.now += self.left.pop(0)
        return SimpleNamespace(orders=Orders("run", ORDERS, 1), reply=self.answers.append)


def test_a_host_stays_for_as_long_as_it_has_orders_now_and_then_and_ends_when_none_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(1.0, *[process.LEASE_S - 1.0] * 5)
    monkeypatch.setattr(process, "time", calls)
    process._serve(Busy(lambda: None), Lease("run"), calls, NO_LOG)  # type: ignore[arg-type]
    assert calls.answers == [Answer(DONE)] * 6
    last = 1.0 + 5 * (process.LEASE_S - 1.0)
    assert last + process.LEASE_S <= calls.now < last + process.LEASE_S + 1.0


def test_a_host_whose_order_took_longer_than_its_lease_waits_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(1.0, 30.0)

    def takes_long() -> None:
        calls.now += 2 * process.LEASE_S

    monkeypatch.setattr(process, "time", calls)
    process._serve(Busy(takes_long), Lease("run"), calls, NO_LOG)  # type: ignore[arg-type]
    assert calls.answers == [Answer(DONE)] * 2


def test_a_host_that_hears_of_its_query_stays_without_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(process, "time", calls)
    lease = Lease("run")

    def tick() -> None:
        if calls.now < 3 * process.LEASE_S:
            lease.renew()

    host = Busy(lambda: None)
    monkeypatch.setattr(host, "tick", tick)
    process._serve(host, lease, calls, NO_LOG)  # type: ignore[arg-type]
    assert 4 * process.LEASE_S <= calls.now + 1.0 < 4 * process.LEASE_S + 2.0


@pytest.mark.parametrize(("run", "renewed"), [("run", True), ("another run", False)])
def test_word_of_a_query_is_for_its_own_hosts_and_waits_for_no_order(
    run: str, renewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    monkeypatch.setattr(process, "time", calls)
    lease, waiting = Lease("run"), queue.SimpleQueue[process.Call]()
    calls.now += process.LEASE_S
    here, there = Pipe()
    key = b"key"
    hearing = threading.Thread(target=process._hear, args=(there, key, waiting, threading.Event(), lease))
    hearing.start()
    answer_challenge(here, key)
    deliver_challenge(here, key)
    here.send_bytes(msgspec.json.encode(Orders(run, [], 0, renews=True)))
    assert msgspec.json.decode(here.recv_bytes(), type=Answer) == Answer()
    hearing.join()
    assert lease.is_over is not renewed
    assert waiting.empty()


def test_a_host_hears_of_its_query_in_the_middle_of_an_order(deployed: Deployed, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    deployment = deployed(lambda: until(gate.exists))
    done: list[object] = []
    bringing = threading.Thread(target=lambda: done.extend(bring(deployment, 0, ORDERS, 1)))
    bringing.start()
    until(place_of(deployment).exists)
    renew(deployment, 0)
    assert done == []
    gate.touch()
    bringing.join()
    assert done == DONE


def test_nobody_is_started_to_hear_of_a_query(deployed: Deployed) -> None:
    deployment = deployed()
    renew(deployment, 0)
    assert not place_of(deployment).exists()


def test_the_log_of_a_host_does_not_grow_for_ever(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "_MOST_LOGGED_BYTES", 3000)
    said = itertools.count()
    deployment = deployed(lambda: os.write(1, b"order %d %s\n" % (next(said), b"x" * 1000)))
    log = place_of(deployment).with_suffix(".log")

    def logged() -> int:
        """How many of the orders are told of in the two files, each of which has the last at its end."""
        return sum(one.read_text().count("order ") for one in log.parent.glob("slot-0.log*"))

    for _ in range(20):
        assert bring(deployment, 0, ORDERS, 1) == DONE
        until(lambda: log.exists() and log.stat().st_size < 3000)
    sizes = {one.name: one.stat().st_size for one in log.parent.glob("slot-0.log*")}
    assert set(sizes) == {"slot-0.log", "slot-0.log.1"}
    assert max(sizes.values()) < 6000
    assert 1 <= logged() < 20
    assert "order" not in capfd.readouterr().out


def test_an_order_of_another_start_ends_a_host_and_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(1.0, 1.0)
    monkeypatch.setattr(process, "time", calls)
    done: list[object] = []
    process._serve(Busy(lambda: done.append("work")), Lease("another run"), calls, NO_LOG)  # type: ignore[arg-type]
    assert calls.answers == [Answer()]
    assert done == []
    assert calls.now < 3.0


def test_a_query_that_is_started_again_has_hosts_where_one_has_ended(deployed: Deployed) -> None:
    before, after = deployed(run="before"), deployed(run="after")
    assert bring(before, 0, ORDERS, 1) == DONE
    dismiss(before, 0)
    assert bring(after, 0, ORDERS, 1) == DONE


def test_a_host_logs_to_its_own_log_alone(deployed: Deployed, tmp_path: Path) -> None:
    """Its files may have the numbers of those that it was forked with."""
    name = "of-a-user"
    file = tmp_path / "user.log"
    handler = logging.FileHandler(file)
    logging.getLogger(name).addHandler(handler)
    try:
        deployment = deployed(lambda: logging.getLogger(name).warning("from the host"))
        bring(deployment, 0, ORDERS, 1)
    finally:
        logging.getLogger(name).removeHandler(handler)
        handler.close()
    assert "from the host" in place_of(deployment).with_suffix(".log").read_text()
    assert file.read_text() == ""


def test_a_host_whose_disk_is_full_says_so_and_ends(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even its log takes a word, and the process that it was forked from goes on once, not twice."""
    become_session_leader = os.setsid

    def with_a_full_disk() -> None:
        become_session_leader()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    monkeypatch.setattr(os, "setsid", with_a_full_disk)
    this = os.getpid()
    with pytest.raises(TaskHostError, match=r"could not be started: OSError: .*File too large"):
        bring(deployed(), 0, ORDERS, 1)
    assert os.getpid() == this


def test_a_host_that_is_not_there_in_time_is_ended(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stand_still(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(messenger, "_START_S", 1.0)
    monkeypatch.setattr(messenger, "become_host", stand_still)
    children = set(psutil.Process().children())
    with pytest.raises(TaskHostError, match="could not be started"):
        bring(deployed(), 0, ORDERS, 1)
    until(lambda: all(map(ended, set(psutil.Process().children()) - children)))


def _descriptors(*files: int) -> int:
    """How many lead to where these do. Other threads may open and close some of theirs at any moment."""
    wanted = {os.fstat(file)[:3] for file in files}
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += os.fstat(int(one.name))[:3] in wanted
    return found


def _small_data_after_a_command(receiver: socket.socket, sender: socket.socket) -> None:
    sender.sendall(b"command")
    assert receiver.recv(100) == b"command"
    sender.sendall(b"data")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists descriptors like this")
def test_asking_for_acknowledgements_touches_no_other_descriptor_and_leaves_none_open(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        (tmp_path / "a file").open("wb") as file,
    ):
        receiver, _ = server.accept()
        with receiver:
            mine = [one.fileno() for one in (server, sender, receiver, file)]
            before = _descriptors(*mine)
            _small_data_after_a_command(receiver, sender)
            acknowledge_at_once()
            assert receiver.recv(100) == b"data"
            file.write(b"still open")
            assert _descriptors(*mine) == before


def broken_by_the_user() -> None:
    print("about to divide")  # noqa: T201
    raise ZeroDivisionError("by zero")


def test_an_error_of_the_users_code_comes_with_its_traceback_and_the_log(deployed: Deployed) -> None:
    deployment = deployed(broken_by_the_user)
    log = place_of(deployment).with_suffix(".log")
    with pytest.raises(TaskHostError, match=r"^ZeroDivisionError: by zero\n") as caught:
        bring(deployment, 0, ORDERS, 1)
    assert "in broken_by_the_user" in str(caught.value)
    assert str(caught.value).endswith(f"logs to {log}")
    assert "about to divide" in log.read_text()


def test_a_long_traceback_is_told_by_its_end() -> None:
    def deep(left: int) -> None:
        if left:
            return even(left - 1)
        raise ValueError("at the bottom")

    def even(left: int) -> None:
        deep(left)

    with pytest.raises(ValueError) as caught:
        deep(200)
    told = _trace(caught.value)
    assert len(told) <= 3002
    assert told.startswith("…\n  ")
    assert told.endswith("ValueError: at the bottom")


@pytest.mark.parametrize("said", ["x" * 9_000, "a line\n" * 2_000], ids=["in one line", "in lines"])
def test_a_traceback_says_where_an_error_was_raised_that_says_much(said: str) -> None:
    def raises() -> None:
        raise ValueError(said)

    with pytest.raises(ValueError) as caught:
        raises()
    told = _trace(caught.value)
    assert len(told) <= 3002
    assert ", in raises\n" in told
    assert f"ValueError: {said[:500]}" in told


def test_a_state_directory_that_cannot_be_made_is_said_in_one_sentence(
    deployed: Deployed, tmp_path: Path
) -> None:
    (tmp_path / "app").write_text("a file is in the way")
    with pytest.raises(StateDirectoryError, match=r"the state directory cannot be written to on .*/app"):
        bring(deployed(), 0, ORDERS, 1)
    (tmp_path / "app").unlink()


def test_what_is_imported_on_first_use_is_listed() -> None:
    listed = dir(store.spark)
    assert {"SparkStreams", "exactly_once_kafka_sink"} <= set(listed)
    assert set(store.spark.__all__) <= set(listed)


def test_a_relative_state_directory_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"state_dir='state' is not allowed: an absolute path"):
        SparkStreams(
            Topology("app", ("in",), (), (), nothing),
            bootstrap="127.0.0.1:1",
            state_dir="state",
            checkpoint=tmp_path,
        )


@pytest.mark.parametrize("said", ["TaskHostError: {}: no", "store.errors.{}: no"])
def test_a_directory_that_cannot_be_written_to_ends_a_query_at_once(said: str) -> None:
    query = SparkStreamsQuery.__new__(SparkStreamsQuery)
    query._raised = None
    assert query._is_permanent(PySparkException(said.format("StateDirectoryError")))


def query_of(
    partitions: Mapping[str, int], tasks: Sequence[tuple[Topology, int]], slots: int
) -> SparkStreamsQuery:
    """One that is not started."""
    query = SparkStreamsQuery.__new__(SparkStreamsQuery)
    query._partitions, query._tasks, query._slots = partitions, list(tasks), slots
    query._planned, query._ids = {}, Mock()
    return query


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 7])
def test_every_task_is_ordered_in_one_slot_which_shares_its_memory_among_no_fewer(slots: int) -> None:
    """One that is ordered in two places is fenced over and over, and memory that is shared among fewer is exceeded."""
    first, second = (
        Topology("app", (topic,), (), (), nothing, ordinal) for ordinal, topic in enumerate("ab")
    )
    tasks = [
        (topology, partition) for topology, count in ((first, 5), (second, 2)) for partition in range(count)
    ]
    query = query_of({"a": 5, "b": 2}, tasks, slots)
    every = {
        TopicPartition(topic, partition): 9
        for topic, count in query._partitions.items()
        for partition in range(count)
    }
    ordered = query._orders(every)
    assert len({slot for slot, _, _ in ordered}) == len(ordered) == slots
    assert sorted((one.ordinal, one.partition) for _, orders, _ in ordered for one in orders) == [
        (topology.ordinal, partition) for topology, partition in tasks
    ]
    assert all(told >= len(orders) for _, orders, told in ordered)
    # Wherever a task has been, it stays there.
    again = query._orders({TopicPartition("a", 4): 10, TopicPartition("b", 1): 10})
    homes = {(one.ordinal, one.partition): slot for slot, orders, _ in ordered for one in orders}
    for slot, orders, told in again:
        assert all(homes[one.ordinal, one.partition] == slot for one in orders)
        assert told == ordered[0][2]


@pytest.mark.parametrize(
    ("listed", "machines"),
    [
        (["a"], ["a"]),
        (["a", "b", "c", "b"], ["b", "c"]),
        (["a", "a", "b"], ["a", "b"]),
        (["a", "a"], ["a"]),
        (["b", "c"], ["b", "c"]),
    ],
)
def test_the_driver_takes_no_slot_and_executors_on_its_machine_do(
    listed: Sequence[str], machines: Sequence[str]
) -> None:
    """Spark lists the driver with the executors, and it is one itself where it is the only one."""
    context = Mock()
    spark = context._jsc.sc()
    spark.statusTracker().getExecutorInfos.return_value = [Mock(host=lambda one=one: one) for one in listed]
    spark.conf().get.side_effect = {"spark.driver.host": "a"}.get
    assert _machines(context) == machines


@pytest.mark.parametrize(
    ("cores", "slots"), [({"a": 3, "b": 1}, "aaab"), ({"a": 2, "b": 4, "c": 2}, "aabbbbcc"), ({}, "aabbc")]
)
def test_machines_have_as_many_slots_as_cores_and_as_many_as_others_where_these_are_not_known(
    cores: Mapping[str, int], slots: str
) -> None:
    homes: list[str] = []
    for _ in slots:
        homes.append(_home(cores or "abc", homes, cores))
    assert sorted(homes) == sorted(slots)


def test_an_error_between_the_orders_of_a_start_that_has_ended_is_none_of_the_next_one(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = query_of({}, (), 1)

    def fails_beside_its_punctuator() -> None:
        query._between_orders = TaskHostError("of a punctuator of the first start")
        raise TaskHostError("of a micro-batch")

    query._streams = Mock(restarts=1, trigger=None)
    query._context, query._local_properties, query._deployment = Mock(), None, deployed()
    query._stopping, query._changing = Mock(), threading.Lock()
    query._stopping.is_set.return_value = False
    query._batches, query._unkept, query._between_orders = 0, None, None
    query.query = Mock(awaitTermination=fails_beside_its_punctuator)
    monkeypatch.setattr(SparkStreamsQuery, "_is_permanent", lambda *_: False)
    monkeypatch.setattr(SparkStreamsQuery, "_start", lambda _: Mock())
    monkeypatch.setattr(streams, "_is_stopped", lambda _: False)
    query._run_on()
    assert query._deployment.start == 1


def test_a_task_without_news_has_no_order_and_one_of_two_inputs_has_its_own_ends() -> None:
    both = Topology("app", ("a", "b"), (), (), nothing, 0)
    query = query_of({"a": 3, "b": 1}, [(both, partition) for partition in range(3)], 3)
    ends = {TopicPartition("a", 0): 4, TopicPartition("b", 0): 7, TopicPartition("a", 2): 1}
    assert [
        (slot, [(one.partition, one.ends) for one in orders]) for slot, orders, _ in query._orders(ends)
    ] == [
        (0, [(0, {"a": 4, "b": 7})]),
        (2, [(2, {"a": 1})]),
    ]


def test_a_partition_that_comes_while_a_query_runs_ends_it_for_no_task_would_read_it() -> None:
    query = query_of({"a": 2}, (), 1)
    query._check_ends({TopicPartition("a", 1): 5})
    with pytest.raises(InputChangedError, match="a-2 is new: the topic had 2 partitions"):
        query._check_ends({TopicPartition("a", 1): 5, TopicPartition("a", 2): 0})


def test_an_input_that_ends_before_what_was_planned_ends_a_query() -> None:
    query = query_of({"a": 1}, (), 1)
    query._planned = {TopicPartition("a", 0): 7}
    query._check_ends({TopicPartition("a", 0): 7})
    with pytest.raises(InputChangedError, match="a-0 ends at 6, and was planned up to 7"):
        query._check_ends({TopicPartition("a", 0): 6})
