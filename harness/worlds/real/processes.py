"""Worker processes of the operating system: forked in milliseconds, led from point to point, and really killed.

A fork server, a process with one thread and nothing but imports in it, makes the workers. Each worker reports
every protocol point over a socket and waits for leave to go on, so at most one runs at a time, and a kill
strikes exactly where it was meant to. Only the fork server signals and reaps: it alone knows for sure
that a process id still belongs to its child.

Must survive: a worker that dies at any moment, ordered or not, or never answers; and the death of the process
that owns the fork server, by SIGKILL too: then the fork server kills its workers, stopped ones as well, and
where the system offers it (Linux) the kernel kills them if the fork server dies.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import NoReturn

from harness.faults.description import OF_STORAGE
from harness.history import End
from harness.mutants import planted
from harness.schedule import Schedule
from harness.worlds import images
from harness.worlds.actors import ordinal_of, partition_of
from harness.worlds.led import At, Died, Finished, Led, Message, Ready, prepare_led
from harness.worlds.process import (
    ObservedStorage,
    Watch,
    WatchedLog,
    describe,
    how_it_ended,
    run_worker,
    watched,
)
from harness.worlds.questions import Questions
from harness.worlds.real.member import run_member
from harness.worlds.versions import called, named
from scenarios import Scenario, load, load_all, topologies
from store import points
from store.clock import SystemClock
from store.config import StreamsConfig
from store.errors import CrashproofError
from store.log.kafka import KafkaLog
from store.points import Point
from store.recovery.directory import StateDirectory
from store.streams.assignment import Assignment

ANSWER_SECONDS = 120.0
"""How long a worker may be silent. Longer than any wait that its configuration allows and that ends by itself."""

_DUMP_SECONDS = 10.0
"""How long a silent worker is given to say where it stands."""

_REQUEST = struct.Struct("!Ii")
"""Process id and signal. Id 0, with a descriptor beside it: make a worker that talks through that descriptor."""
_EVENT = struct.Struct("!I?i")
"""Process id, whether it ended, and its exit code as in `subprocess` (minus the signal that killed it)."""
_PR_SET_PDEATHSIG = 1
_LINES = 4


class WorkerProcessError(CrashproofError):
    """The harness could not start or lead a worker process. Says nothing about the pipeline under test."""


class SlowForkServerError(WorkerProcessError):
    """The fork server did not answer in time. It may be asked again."""


class SilentWorkerError(WorkerProcessError):
    """A worker did not report anything for `ANSWER_SECONDS`."""


@dataclass(frozen=True)
class Job:
    """What one worker process has to run. It is pickled: the scenario is named, not copied."""

    scenario: str
    """As `scenarios.load` takes it."""
    schedule: Schedule
    application_id: str
    task: str
    incarnation: int
    bootstrap: str
    host: Path
    """The root of the state directories on the worker's host."""
    config: StreamsConfig
    output: Path
    """Where its standard output and error go."""
    version: int = 0
    """Which version of the pipeline it runs."""
    prepares: bool = False
    """Whether another version may have run before, whose stores and positions it takes over."""
    standby: bool = False
    """Whether it keeps a warm copy first."""
    member: bool = False
    """Whether it runs all that its group gives it, and not the task."""
    instance_id: str | None = None
    """Of such a one that is a static member."""
    mutant: str | None = None


class ForkServer:
    """Makes worker processes, wherever it runs: at the other end of a socket that a process of this kernel holds. `log`
    has what it prints itself, `name` says which one it is. One thread."""

    def __init__(
        self, control: socket.socket, log: Path, name: str, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self.log = log
        self.name = name
        self._answer_seconds = answer_seconds
        self._exits: dict[int, int] = {}
        self._given_up = 0
        """Workers that were asked for, and of which nothing was heard in time: the next answers are theirs."""
        self._control = control
        self._control.settimeout(answer_seconds)

    def start(self, job: Job) -> WorkerProcess:
        """Make a worker. It waits to be told to begin."""
        order = ForkingPickler.dumps(job)
        ours, theirs = Pipe()
        with theirs:
            try:
                socket.send_fds(self._control, [_REQUEST.pack(0, 0)], [theirs.fileno()])
            except BrokenPipeError:
                raise self._gone() from None
            pid = self._forked()
        worker = WorkerProcess(self, pid, ours, job)
        # Where it is dead already, `next` finds out how it died.
        with suppress(BrokenPipeError, ConnectionResetError):
            ours.send_bytes(order)
        return worker

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a worker; nothing happens if it has ended."""
        try:
            self._control.sendall(_REQUEST.pack(pid, number))
        except BrokenPipeError:
            raise self._gone() from None

    def wait(self, pid: int) -> int:
        """Wait until a worker has ended and let go of its files and locks. Returns its exit code; call it once."""
        while pid not in self._exits:
            self._event()
        return self._exits.pop(pid)

    def close(self) -> None:
        """Have the fork server end, and every worker that is left."""
        self._control.close()

    def _forked(self) -> int:
        """The id of the worker that was asked for last. One that was given up finds nobody to talk to, and ends."""
        try:
            while True:
                pid = self._event()
                if pid is None:
                    continue
                if not self._given_up:
                    return pid
                self._given_up -= 1
        except SlowForkServerError:
            self._given_up += 1
            raise

    def _event(self) -> int | None:
        """Take the next event: the id of a new worker, or None after the end of one was noted."""
        try:
            event = self._control.recv(_EVENT.size, socket.MSG_WAITALL)
        except TimeoutError:
            raise SlowForkServerError(
                f"The fork server, {self.name}, did not answer within {self._answer_seconds:g} s."
            ) from None
        if len(event) < _EVENT.size:
            raise self._gone()
        pid, ended, code = _EVENT.unpack(event)
        if not ended:
            return int(pid)
        self._exits[pid] = code
        return None

    def _gone(self) -> WorkerProcessError:
        return WorkerProcessError(f"The fork server, {self.name}, has ended. {_words_of(self.log)}")


class LocalForkServer(ForkServer):
    """A fork server that is a child of this process.

    It leaves the session of its maker, so that Ctrl-C reaches the maker alone.
    """

    def __init__(self, log: Path, answer_seconds: float = ANSWER_SECONDS) -> None:
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with theirs, log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        super().__init__(ours, log, f"process {self._process.pid}", answer_seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        super().close()
        self._process.wait()


class WorkerProcess:
    """One worker as its leader sees it: `answer` lets it go on, `next` waits for what it reports then."""

    def __init__(self, server: ForkServer, pid: int, connection: Connection, job: Job) -> None:
        self.pid = pid
        self.job = job
        self.last = ""
        """Where it reported from last, in words; empty until it was ready to begin."""
        self.exit_code: int | None = None
        """None until the end of the process was seen; minus the number of the signal that killed it."""
        self._server = server
        self._connection = connection

    @property
    def version(self) -> int:
        return self.job.version

    def answer(self, value: object) -> None:
        """Let the worker go on with this answer to what it reported. If it is dead, `next` says how it died."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(value)

    def reports_within(self, seconds: float) -> bool:
        """Whether `next` would come back at once, now or within that time."""
        try:
            return self._connection.poll(seconds)
        except (EOFError, ConnectionResetError):
            return True

    def next(self, seconds: float = ANSWER_SECONDS) -> Message:
        """What it reports next.

        Raises `SilentWorkerError`, naming the task and where it was, after `seconds`; `WorkerProcessError` when
        it died before it was ready, which is not the pipeline's doing.
        """
        message: Message
        try:
            if not self._connection.poll(seconds):
                self._dump()
                raise SilentWorkerError(
                    f"Task {self.job.task} (incarnation {self.job.incarnation}, process {self.pid}) reported "
                    f"nothing for {seconds:g} s after {self.last or 'its start'}. {_words_of(self.job.output)}"
                )
            message = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._reap()
            if not self.last:
                raise WorkerProcessError(
                    f"A worker for task {self.job.task} did not start: {self.fate()}"
                ) from None
            return Died(self.fate())
        if isinstance(message, Finished):
            self._reap()
        else:
            self.last = (
                f"point {message.point}" if isinstance(message, At) else type(message).__name__.lower()
            )
        return message

    def _dump(self) -> None:
        """Have it print where it stands, which ends it."""
        self._server.signal(self.pid, signal.SIGABRT)
        # Its end is the end of the connection.
        self._connection.poll(_DUMP_SECONDS)

    def stop(self) -> None:
        """SIGSTOP."""
        self._server.signal(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._server.signal(self.pid, signal.SIGCONT)

    def kill(self) -> bool:
        """SIGKILL, and wait until it has ended. False if something else had ended it before."""
        if self.exit_code is not None:
            return False
        self._server.signal(self.pid, signal.SIGKILL)
        self._reap()
        return self.exit_code == -signal.SIGKILL

    def fate(self) -> str:
        """How it ended, in words, with what it printed."""
        code = self.exit_code
        assert code is not None
        by = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        output = self.job.output if self.last else self._server.log
        return f"the process died with {by} after {self.last or 'its start'}. {_words_of(output)}"

    def _reap(self) -> None:
        self.exit_code = self._server.wait(self.pid)
        self._connection.close()


def _words_of(file: Path) -> str:
    """What a process printed, as one line. A traceback says what happened at its end, a crash dump at its start."""
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    lines = [line.strip() for line in lines if line.strip()]
    if not lines:
        return "It printed nothing."
    if len(lines) > 2 * _LINES:
        lines[_LINES:-_LINES] = ["…"]
    return f"It printed: {' | '.join(lines)}"


# -- in the fork server -----------------------------------------------------------------------------------------


def serve(descriptor: int) -> NoReturn:
    """Fork, signal and reap until the other end of the socket is closed; then kill all workers and exit."""
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    awake, wake = socket.socketpair()
    awake.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    load_all()
    gc.freeze()
    workers: set[int] = set()
    try:
        while True:
            ready, _, _ = select.select([control, awake], [], [])
            if awake in ready:
                awake.recv(4096)
                _report_ends(control, workers)
            if control in ready:
                request, descriptors, _, _ = socket.recv_fds(control, _REQUEST.size, 1)
                if not request:
                    break
                pid, number = _REQUEST.unpack(request)
                if pid == 0:
                    pid = _fork([control, awake, wake], descriptors[0])
                    workers.add(pid)
                    control.sendall(_EVENT.pack(pid, False, 0))
                elif pid in workers:
                    os.kill(pid, number)
    except (BrokenPipeError, ConnectionResetError):
        pass
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    sys.exit()


def _report_ends(control: socket.socket, workers: set[int]) -> None:
    while workers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        workers.remove(pid)
        control.sendall(_EVENT.pack(pid, True, os.waitstatus_to_exitcode(status)))


def _fork(only_ours: list[socket.socket], descriptor: int) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in only_ours:
            end.close()
        _die_with(server)
        work(Connection(descriptor))
        code = 0
    except BaseException:  # noqa: BLE001 - a forked copy must never run on into the server's own code
        sys.excepthook(*sys.exc_info())
    finally:
        # Without the usual clean-up, which would wait for the threads of clients that were given up.
        os._exit(code)


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent, which has one thread only, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


# -- in a worker ------------------------------------------------------------------------------------------------


def work(connection: Connection) -> None:
    """Take a job, run it to its end, and say how it ended."""
    job: Job = connection.recv()
    output = os.open(job.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    scenario = load(job.scenario)
    leader = _Leader(connection)
    with planted(job.mutant):
        reason, said = (_be_member if job.member else _be_worker)(job, scenario, leader)
        connection.send(Finished(reason, said))


def _be_member(job: Job, scenario: Scenario, leader: _Leader) -> tuple[End, str]:
    leader.ask(Ready())
    return run_member(
        scenario,
        job.schedule,
        job.application_id,
        job.config,
        job.bootstrap,
        job.host,
        job.instance_id,
        leader.ask,
        version=job.version,
        prepares=job.prepares,
    )


def _be_worker(job: Job, scenario: Scenario, leader: _Leader) -> tuple[End, str]:
    partition = partition_of(job.task)
    parts = topologies(scenario, job.application_id, job.config, reordered=bool(job.version))
    task = called(scenario, job.task, job.version)
    topology = parts[ordinal_of(task)]
    watch = Watch.of(job.schedule, parts)
    # What is looked at has the names of the first version.
    known = topologies(scenario, job.application_id, job.config)[ordinal_of(job.task)]
    led = Led(leader.ask, f"{job.application_id}-", job.task, job.incarnation, standby=job.standby)
    storage = ObservedStorage(
        StateDirectory(job.host, job.application_id),
        led,
        watch.calls & OF_STORAGE,
        partial(named, scenario, version=job.version),
    )
    questions = Questions(scenario, topology, partition, f"{job.application_id}-", led.answered)

    def reached(point: Point) -> None:
        led.reached(
            point,
            lambda: images.of_storage(scenario, known, partition, storage),
            storage,
            questions if watch.queries else None,
        )

    led.begin()
    log = KafkaLog(job.bootstrap)
    if job.prepares:
        try:
            prepare_led(job.host, parts, log, job.config, leader.ask)
        except Exception as error:  # noqa: BLE001 - whatever a start raises is an observation, and is judged
            return how_it_ended(error), describe(error)
    points.arm(reached)
    try:
        return run_worker(
            watched(topology, watch, led, storage, job.config),
            Assignment((), (partition,)) if job.standby else Assignment((partition,), ()),
            WatchedLog.around(log, led, watch),
            storage,
            job.config,
            SystemClock(),
            led,
        )
    finally:
        points.arm(None)


class _Leader:
    """The way to the process that leads this one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, message: Message) -> object:
        """Report and wait. Exits at once when nobody listens any more: raising would unwind the code under test."""
        try:
            self._connection.send(message)
            return self._connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            os._exit(1)
