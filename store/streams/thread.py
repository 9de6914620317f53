"""One member of an application's group, and the workers that process what the group gives it. One thread.

Rebalances are cooperative: they take from a member what goes to another one, and nothing else, so tasks that stay go on
processing and committing in the midst of them. The client has one assignor that can do this, and it would give the
inputs of one sub-topology to different members. So the group gives out the partitions of one input of each, that with
the most partitions, and they stand for its tasks: whoever has partition k of it reads k of the others. The argument:

* Nobody needs the group's word to read. Inputs are read, and positions committed, by explicit partition.
* Exactly once: positions are sent in transactions without a membership, which the broker takes in any state of the
  group. Who is refused, is so by the epoch of the task's transactional id.
* At least once: a group with members takes positions from them alone. While members join, it goes on to take those of
  the generation before. Between the answers to a member's joining and to the leader's it says that a rebalance is in
  progress, and to positions that were sent before the first of these and came after it, that they are of an old
  generation. Both end without this thread, and the positions are sent again: what the member has not given up is its
  own in the new generation too. The client has one connection to the coordinator: what it commits while it joins waits
  until all have. Who is no member any more is answered otherwise, and closes its tasks: a client whose owner did not
  come back within the rebalance timeout says so itself.
* What goes is committed and closed before the group hears that it is gone, so nobody else has the task by then, unless
  this member did not come back in time; then the other one has fenced it, or waits for the directory.
* A broker forgets positions in topics that no member subscribes to, `offsets.retention.minutes` after they were
  committed last. Each commit of a task is of all its inputs, and an idle one commits now and then
  (`store.streams.worker.REFRESH_POSITIONS_S`), or as soon as it is opened where that is due, as it does for a worker
  without a group. What is forgotten while nobody runs is found by who starts, as ever: stores are ahead of the group,
  or there is a topic of positions.
* Which input leads follows from the inputs and their partitions. Who finds that these have changed ends
  (`InputChangedError`), and so does who comes to members that another input stands for tasks to.

A group has one way to be given out. Members of earlier versions have another, so one of this version waits as long as
there are any, and then begins; an earlier one that comes to members of this version is refused.

Warm copies (`num.standby.replicas`): members do not learn what others have, but the broker tells an admin client. Each
host asks now and then, and computes by a hash which of the others' tasks it keeps copies of. Members are named after
their state directory, so that a copy is never where its task is; two processes that share a directory settle by its
locks who has the copy. A copy is closed when its thread looks next, and a task whose directory it holds waits for that.

Strangers. Any consumer with this application's id as its group.id and an assignor of the same name, which is one of the
two defaults of Java's, is taken into the group and is given inputs. What it reads and commits is not processed: tasks
would go on behind it in silence. A client cannot have an assignor of its own name, as Kafka Streams has, so

* a thread asks who is in the group whenever a rebalance has reached it, before it opens tasks, and now and then. One
  whose client id is not that of a host of the application ends the thread with an error. The answer shows members as
  soon as they have joined, so a stranger that takes anything is seen by who gives it up, unless it is gone again by
  then, or brokers do not answer or do not allow the question. Where the own name is not in the answer, as behind a
  proxy that gives others, nothing is known.
* the threads of a process remember where their tasks stood when they were closed, and one that has been a member
  without a break since then knows (`store.streams.departures`) that no person has set the group's positions. Those of
  the application have a note of who has committed them. So one without it that is another than remembered is a
  stranger's, and a task that finds it when it is opened does not go on from there (`PositionLostError`).

What is left: a stranger that nobody has seen, and whose partitions come to a process that has not had them before, or
to a thread that has joined since. Neither the group nor a store tells that position from one that a person has set; the
task says in a warning that it goes on there. And whoever starts again after either error, without having set the
positions back, goes on behind the stranger: the errors say where each task stood. Without members, as on Spark, anybody
may set positions at any time: what is left of this is the warning, and at least once the refusal of commits.

Must survive: a group that has forgotten this member (what it had is closed without a commit), a task that a newer
incarnation takes while the group still says that it is this member's (it is opened again, with growing pauses), and a
broker that does not answer for `task.timeout.ms`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from hashlib import sha256
from math import inf
from typing import Any, NamedTuple, Protocol

from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import (
    ChangelogLostError,
    CrashproofError,
    FencedError,
    FirstError,
    InputChangedError,
    LogError,
    RetriableError,
    TaskLostError,
    UnreachableError,
    end_after,
)
from store.log import GroupClient, GroupMember, Groups, Log, Member, PlainProducer, StreamingReader
from store.metrics import Metrics
from store.query.answer import LocalStore, stores_of
from store.recovery.restore import RestoreListener
from store.streams.application import Application
from store.streams.departures import Departures, Remembered
from store.streams.hanging import HangingInputs
from store.streams.topology import Topology
from store.streams.worker import Worker
from store.types import TopicPartition

_log = logging.getLogger(__name__)

WAIT_S = 0.1
"""How long a thread waits for input, or for the group, before it looks at the other."""

LONG_WAIT_S = 5.0
"""After so long without a word of the group a thread says what it may be waiting for."""

LOOK_S = 0.5
"""How often a thread writes down where its tasks stand."""

GIVEN_OUT_S = 5.0
"""How often a thread with an instance id asks whether every task has a member."""

COPIES_S = 10.0
"""How often a thread asks who has which task, to keep copies of those that it should."""

MEMBERS_S = 60.0
"""How often a process asks whether all members of the group are of the application, beside when it has rebalanced."""

MEMBERS_AGAIN_S = 1.0
"""How soon it asks again at the earliest: the answer grows with the group, and all its processes ask at once."""

INPUTS_S = 60.0
"""How often a thread looks whether its inputs are the topics that they were, with as many partitions."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_KEPT_S = 2 * _LONGEST_PAUSE_S
"""A task that is lost so long after it was opened again is lost for another reason."""


class GroupLog(Log, Groups, Protocol):
    """A cluster with its groups, whose readers stream."""

    def reader(self, wait_s: float | None = None) -> StreamingReader: ...


class TaskStatus(NamedTuple):
    task_id: str
    positions: Mapping[TopicPartition, int]
    """Input → the offset that is committed."""


class ThreadStatus(NamedTuple):
    """What a thread was doing when it looked last."""

    name: str
    rebalancing: bool
    """Whether it waits for the group to say what it is to process."""
    assigned: tuple[str, ...]
    """The tasks that the group has given it."""
    active: tuple[TaskStatus, ...]
    """Those of them that are open."""
    standby: tuple[str, ...]

    @property
    def running(self) -> bool:
        """Whether all that is its to process is open."""
        return not self.rebalancing and len(self.active) == len(self.assigned)


class _Reopening(NamedTuple):
    """A lost task that is opened again after a pause, which grows as long as it does not stay open."""

    at: float
    """When that is, or was."""
    pause_s: float
    done: bool = False

    def is_due(self, now: float) -> bool:
        return not self.done and self.at <= now


class _Members:
    """What a process knows of who else is in the group, and when it asks again."""

    def __init__(self) -> None:
        self.due = -inf
        self.asked = -inf
        self.pause_s = 0.0
        self.said = False
        """Whether it was said that it is not known."""
        self.nameless: frozenset[str] = frozenset()
        """Members that had no client id when it asked last."""
        self.stranger = ""
        """What is no instance of the application, in words."""

    def ask_soon(self) -> None:
        """Not sooner than that again where it was not answered, or where somebody is looked at once more."""
        pause = LONG_WAIT_S if self.nameless else MEMBERS_AGAIN_S
        self.due = min(self.due, self.asked + max(pause, self.pause_s))

    def strangers(self, members: Sequence[GroupClient], kin: re.Pattern[str]) -> list[GroupClient]:
        """Those that are no hosts of the application. One without a name is, where it still has none the next time."""
        nameless = frozenset(one.member_id for one in members if not one.client_id)
        still, self.nameless = nameless & self.nameless, nameless
        return [
            one
            for one in members
            if (not kin.fullmatch(one.client_id) if one.client_id else one.member_id in still)
        ]


class Host:
    """What threads share that use one state directory: its name, and what each of them processes. Any thread."""

    def __init__(self, name: str, kin: re.Pattern[str] | None = None) -> None:
        self.name = name
        """The client id of their members, which tells others where a task is."""
        self.kin = kin
        """What the names of all hosts of the application are like; None: nobody can be told from them."""
        self.members = _Members()
        self.departures = Departures()
        self.threads: dict[str, frozenset[tuple[int, int]]] = {}
        """Thread → the sub-topologies and partitions of its tasks."""


class StreamThread:
    """The workers of one member, one for each sub-topology. `step` over and over, then `stop`; `close` after errors."""

    def __init__(
        self,
        application: Application,
        config: StreamsConfig,
        log: GroupLog,
        storage: Storage,
        clock: Clock,
        *,
        name: str = "stream-thread-1",
        instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        metrics: Metrics | None = None,
        listener: RestoreListener | None = None,
        host: Host | None = None,
        changed: Callable[[], object] = lambda: None,
        pool: Executor | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """For `pool` see `store.streams.worker.Worker`. `host` is shared by the threads of a process. `changed` is
        called after `status` has changed in more than positions. A step is cut short, at the commits of its tasks and
        after the batches of a restore, when it is `stopping`, and when the group has not been polled for half of the
        rebalance timeout."""
        self.name = name
        self._config = config
        self._clock = clock
        self._changed = changed
        self._owned: dict[int, list[int]] | None = None
        """Sub-topology → its partitions that are this member's; None: nobody knows yet, or not any more."""
        self._again: dict[tuple[int, int], _Reopening] = {}
        """By sub-topology and partition, the tasks that were lost under this assignment."""
        self._failing: dict[Worker | None, tuple[float, float]] = {}
        """Worker that gets no answers, or None for the thread itself as it begins → since when, and the pause before it
        tries again."""
        self._waits_since = inf
        """Since when it has waited for the group; -inf where that was said."""
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_s = rebalance_timeout_ms / 1000
        self._polled = clock.monotonic()
        self._progress = False
        self._exit = ExitStack()
        self._application = application
        self._log = log
        self._host = host or Host("")
        self._host.threads[name] = frozenset()
        self._copies_looked = -inf
        self._copies: dict[int, list[int]] = {}
        """Sub-topology → the partitions that this thread keeps warm copies of."""
        self._topologies = {one.ordinal: one for one in application.sub_topologies}
        self._inputs_looked = -inf
        self._hanging = HangingInputs(name, clock)
        self._is_static = instance_id is not None
        self._given_out_looked = clock.monotonic()
        self._left_out: Mapping[TopicPartition, float] = {}
        """The partitions that no member had when it was asked last → since when that is known."""
        self._member_id = ""
        self._came_back = False
        """Whether it was given some at once when it joined, as one that the group still had is, and no rebalance has
        reached it since."""
        self._workers: dict[int, Worker] = {}
        self._remembered = Remembered(self._host.departures)
        self._looked = clock.monotonic()
        self.status = ThreadStatus(name, True, (), (), ())
        try:
            self._reader = log.reader()
            self._exit.callback(self._reader.close)
            self._counts = self._count_inputs_once_answered(stopping)
            self._ids: Mapping[str, str] = {}
            """Input → its topic id, when it was looked at first."""
            self._leading = {
                one.ordinal: one.leading(self._counts.__getitem__) for one in application.sub_topologies
            }
            """Sub-topology → the source whose partitions stand for its tasks."""
            self._member: Member = log.member(
                application.application_id,
                list(self._leading.values()),
                self,
                instance_id=instance_id,
                assignor="cooperative-sticky",
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
            )
            self._exit.callback(self._leave)
            of_member: Any = _MemberLog(log, self._member)
            for topology in application.sub_topologies:
                worker = Worker(
                    topology,
                    (),
                    of_member,
                    storage,
                    config,
                    clock,
                    metrics=metrics,
                    listener=listener,
                    on_lost=self._on_lost(topology),
                    streaming=log.reader(),
                    leaving=lambda: (
                        stopping() or clock.monotonic() - self._polled >= self._rebalance_timeout_s / 2
                    ),
                    stopping=stopping,
                    pool=pool,
                    purges=application.repartition_topics,
                    thread_id=name,
                    remembered=self._remembered,
                )
                self._workers[topology.ordinal] = worker
                self._exit.callback(worker.close)
        except BaseException as error:
            self._host.threads.pop(name, None)
            end_after(error, self._exit.close, "the thread")
            raise

    # -- what the group says ------------------------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._again.clear()
        before, self._member_id = self._member_id, self._member.member_id()
        self._came_back = self._member_id != before and bool(partitions)
        self._remembered.is_member(self._member_id)
        self._have(partitions)
        self._copies_looked = -inf
        self._host.members.ask_soon()
        self._look()

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        owned = self._owned
        if owned is None:
            return
        stays = [
            TopicPartition(topic, partition)
            for ordinal, topic in self._leading.items()
            for partition in owned.get(ordinal, ())
        ]
        self._have([tp for tp in stays if tp not in partitions])
        self._host.members.ask_soon()
        self._look()

    def _have(self, partitions: Sequence[TopicPartition]) -> None:
        """Process the tasks that these stand for, and let go of all others."""
        owned = {
            ordinal: sorted(tp.partition for tp in partitions if tp.topic == topic)
            for ordinal, topic in self._leading.items()
        }
        # Nobody knows how many the other threads have. They have about as many.
        tasks = sum(map(len, owned.values())) * self._config.num_stream_threads
        self._say_what_changes(owned)
        self._owned = owned
        self._host.threads[self.name] = frozenset(
            (ordinal, partition) for ordinal, mine in owned.items() for partition in mine
        )
        errors = FirstError()
        for ordinal, worker in self._workers.items():
            with errors.kept():
                worker.assign(owned[ordinal], self._copies_of(ordinal), tasks_in_process=tasks)
        errors.tell()

    def _say_what_changes(self, owned: Mapping[int, Sequence[int]]) -> None:
        before, after = (
            {self._topologies[one].task_id(partition) for one, mine in has.items() for partition in mine}
            for has in (self._owned or {}, owned)
        )
        for what, ids in (("assigned", after - before), ("revoked", before - after)):
            if ids:
                _log.info("%s: tasks %s: %s", self.name, what, ", ".join(sorted(ids)))
        if not after and self._owned is None:
            _log.info("%s: the group has no tasks for it", self.name)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        _log.warning("%s: the group has given away %s", self.name, ", ".join(map(str, partitions)))
        self._owned = None
        for worker in self._workers.values():
            worker.abandon()
        self._remembered.is_none()
        self._look()

    def stores(self, name: str) -> dict[int, LocalStore]:
        """The partitions of a store that are here: those of tasks, and the copies of others. Any thread may ask."""
        found: dict[int, LocalStore] = {}
        for worker in tuple(self._workers.values()):
            copies = tuple(worker.replicas.standbys.items())
            for partition, standby in copies:
                # Asked for once: its own thread may close it meanwhile.
                copy = standby.stores.get(name)
                if copy is not None:
                    found[partition] = LocalStore(copy, active=False)
            for partition, store in stores_of(worker.tasks, name).items():
                found[partition] = store if isinstance(store, LocalStore) else LocalStore(store)
        return found

    # -- the loop -----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Take part in the group and let every task make a step. Whether there was anything to do.

        Raises `FencedError` when another process has the member's instance id, and what `Worker.poll` raises.
        """
        self._polled = self._clock.monotonic()
        # Without a task there is no input to wait for, and nothing that a wait for the group would keep waiting.
        waits = self._owned is None or not (self._progress or self._opened())
        try:
            self._member.poll(WAIT_S if waits else 0.0)
        except RetriableError as error:
            self._say_that_it_waits(error)
            return False
        if self._owned is None:
            self._say_that_it_waits()
            if self._waits_since == -inf:
                # A client that is the first to hear that an input is gone gives it up, and nobody reads of it then.
                self._check_inputs()
            return False
        self._waits_since = inf
        self._check_members()
        self._reopen()
        self._keep_copies()
        self._check_given_out()
        self._check_inputs()
        self._hanging.look(self._reader, self._inputs)
        wait = 0.0 if self._progress else WAIT_S / len(self._workers)
        progress = [self._poll(worker, wait) for worker in self._workers.values()]
        self._progress = any(progress)
        if self._clock.monotonic() - self._looked >= LOOK_S or self._opened() != len(self.status.active):
            self._look()
        return self._progress

    def _say_that_it_waits(self, why: RetriableError | None = None) -> None:
        now = self._clock.monotonic()
        self._waits_since = min(self._waits_since, now)
        if -inf < self._waits_since <= now - (LONG_WAIT_S if why is None else 0.0):
            self._waits_since = -inf
            _log.warning(
                "%s waits for the group %s to give out its partitions. %s",
                self.name,
                self._application.application_id,
                why
                or "A member that died without leaving keeps the group waiting for its session timeout "
                f"({self._session_timeout_ms / 1000:g} s here); one with an instance id that comes back does not",
            )

    def stop(self) -> None:
        """Commit, close all tasks and leave the group.

        What tasks have only passed over, markers and aborted records, is committed too: retention may take all that
        there was while nobody runs, and who starts then would have to say that it is lost. What a function of the user
        raises is raised when all are closed.
        """
        self._owned = None
        errors = FirstError()
        for worker in self._workers.values():
            passed_over = [partition for partition, task in worker.tasks.items() if task.has_passed_over]
            with errors.kept():
                try:
                    worker.refresh_positions(passed_over)
                except CrashproofError as error:
                    _log.warning("%s: the last positions are not committed: %s", self.name, error)
            with errors.kept():
                worker.assign(())
        if self._host.members.stranger:
            _log.error(
                "%s knows of these commits: %s. %s", self.name, self._stood(), self._host.members.stranger
            )
        with errors.kept():
            self.close()
        errors.tell()

    def close(self) -> None:
        """Close all tasks, dropping what is not committed, and leave the group."""
        self._owned = None
        self._host.threads.pop(self.name, None)
        self._workers = {}
        self._exit.close()
        self._look()

    def _poll(self, worker: Worker, wait_s: float) -> bool:
        try:
            progress = worker.poll(wait_s)
        except TaskLostError:
            # It has none left; they were told of one by one. The brokers answered, or it would not know.
            self._failing.pop(worker, None)
            return False
        except (RetriableError, UnreachableError) as error:
            self._bear(worker, error)
            return False
        self._failing.pop(worker, None)
        return progress

    def _bear(self, worker: Worker | None, error: LogError) -> None:
        """Wait, as long as it may pass by itself."""
        now = self._clock.monotonic()
        if worker not in self._failing:
            _log.warning("%s: %s; trying again", self.name, error)
        since, pause = self._failing.get(worker, (now, WAIT_S))
        if now - since >= self._config.task_timeout_ms / 1000:
            raise error
        self._clock.sleep(pause)
        self._failing[worker] = since, min(pause * 2, 1.0)

    def _on_lost(self, topology: Topology) -> Callable[[int, FencedError], None]:
        def on_lost(partition: int, error: FencedError) -> None:
            del error
            task, now = (topology.ordinal, partition), self._clock.monotonic()
            before = self._again.get(task)
            if before is None or now - before.at >= _KEPT_S:
                pause = _FIRST_PAUSE_S
            else:
                pause = min(before.pause_s * 2, _LONGEST_PAUSE_S)
            self._again[task] = _Reopening(now + pause, pause)

        return on_lost

    def _reopen(self) -> None:
        if not self._again or self._owned is None:
            return
        now = self._clock.monotonic()
        due = {ordinal for (ordinal, _), one in self._again.items() if one.is_due(now)}
        for ordinal in due:
            for task, one in self._again.items():
                if task[0] == ordinal and one.is_due(now):
                    # It is remembered, for when it is lost once more.
                    self._again[task] = one._replace(at=now, done=True)
            still = {
                partition
                for (other, partition), one in self._again.items()
                if other == ordinal and not one.done
            }
            mine = [one for one in self._owned[ordinal] if one not in still]
            self._workers[ordinal].assign(mine, self._copies_of(ordinal))

    def _keep_copies(self) -> None:
        """Have copies of what the rule gives this thread, and of nothing that a thread of this host processes."""
        if self._owned is None or not self._config.num_standby_replicas:
            return
        now = self._clock.monotonic()
        if now - self._copies_looked >= COPIES_S:
            self._copies_looked = now
            try:
                with closing(self._log.admin()) as admin:
                    members = admin.group_members(self._application.application_id)
            except (RetriableError, UnreachableError) as error:
                _log.info("%s: %s; the copies stay as they are", self.name, error)
                members = ()
            if members:
                threads = sorted(self._host.threads)
                self._copies = {
                    ordinal: [
                        partition
                        for partition in copies(
                            topology, members, self._host.name, self._config.num_standby_replicas
                        )
                        if threads[partition % len(threads)] == self.name
                    ]
                    for ordinal, topology in self._topologies.items()
                }
        for ordinal, worker in self._workers.items():
            wanted = self._copies_of(ordinal)
            if wanted != worker.replicas.wanted:
                worker.replicas.assign(wanted)

    def _check_members(self) -> None:
        """Raise `LogError` where the group has a member that is no instance of this application.

        That costs a question to each broker, and an answer with all members: one process asks once for its threads.
        """
        known, kin, now = self._host.members, self._host.kin, self._clock.monotonic()
        if kin is None or now < known.due:
            return
        known.asked, known.due = now, now + MEMBERS_S
        group = self._application.application_id
        try:
            with closing(self._log.admin()) as admin:
                members = admin.group_clients(group)
        except LogError as error:
            self._ask_again(str(error), passes=isinstance(error, RetriableError | UnreachableError))
            return
        if all(one.client_id != self._host.name for one in members):
            self._ask_again(f"{self._host.name}, which is one, is not among those that the broker names")
            return
        known.pause_s = 0.0
        strangers = known.strangers(members, kin)
        if known.nameless:
            known.due = now + LONG_WAIT_S
        if not strangers:
            known.stranger = ""
            return
        named = ", ".join(
            f"{one.member_id} (client id {one.client_id!r}, at {one.host})" for one in strangers
        )
        known.stranger = (
            f"The group {group} has members that are no instances of this application: {named}. What they are given "
            "and commit is not processed here"
        )
        for worker in self._workers.values():
            worker.note_positions()
        raise LogError(
            f"{known.stranger}. The id of an application is a group.id for it alone: stop them, or give them another "
            "one. Where they have committed, the application would go on behind that: stop all its processes, and set "
            f"these positions back to where it stood (kafka-consumer-groups.sh --group {group} --topic T:P "
            f"--reset-offsets --to-offset N --execute). {self.name} knows of these commits: "
            f"{self._stood()}; of each partition the largest counts that any thread tells"
        )

    def _ask_again(self, why: str, *, passes: bool = True) -> None:
        """It is not known who is in the group. That ends nothing, and is said once where it lasts."""
        known = self._host.members
        known.pause_s = min(max(LONG_WAIT_S, 2 * known.pause_s), MEMBERS_S)
        known.due = known.asked + known.pause_s
        if not known.said and (not passes or known.pause_s == MEMBERS_S):
            known.said = True
            _log.warning(
                "%s: whether other consumers have joined the group %s is not known, for the broker does not say. What "
                "one of them reads and commits would not be processed: %s",
                self.name,
                self._application.application_id,
                why,
            )

    def _stood(self) -> str:
        left = sorted(self._remembered.positions().items())
        return ", ".join(f"{tp} at {position}" for tp, position in left) or "nothing"

    def _count_inputs_once_answered(self, stopping: Callable[[], bool]) -> dict[str, int]:
        while True:
            try:
                return self._count_inputs()
            except (RetriableError, UnreachableError) as error:
                if stopping():
                    raise
                self._bear(None, error)

    def _count_inputs(self) -> dict[str, int]:
        """The partitions of the inputs of sub-topologies that have several."""
        return {
            source: self._reader.partitions(source)
            for topology in self._application.sub_topologies
            for source in topology.sources
            if len(topology.sources) > 1
        }

    def _check_inputs(self) -> None:
        """Raise `InputChangedError` for inputs that have other partitions than at the start: nobody would read them.

        And for one that was deleted and made anew: where it has more records than were read of the one before, the
        client goes on at that place and says nothing. What is committed until then has the id of the one before, so
        every start to come is refused too. Raises `ChangelogLostError` for a changelog of which that is so: whoever is
        told soon still has the stores. Raises `LogError` for an input that is gone, and where other inputs stand for
        the tasks of other members: tasks would be run twice. A global store whose topic was made anew reads what there
        is now.
        """
        now = self._clock.monotonic()
        if now - self._inputs_looked < INPUTS_S:
            return
        self._inputs_looked = now
        group = self._application.application_id
        changelogs = {one for of in self._application.sub_topologies for one in of.changelogs.values()}
        sources = {source for one in self._application.sub_topologies for source in one.sources}
        followed = {one.topic for of in self._application.sub_topologies for one in of.global_stores}
        try:
            counts = self._count_inputs()
            with closing(self._log.admin()) as admin:
                ids = admin.topic_ids(sorted(sources | changelogs | followed))
                members = admin.group_members(group) if counts else []
            for source in sorted(sources - ids.keys()):
                self._reader.partitions(source)
        except (RetriableError, UnreachableError) as error:
            _log.info("%s: %s; whether inputs have changed is asked again", self.name, error)
            return
        changed_ids = [topic for topic, one in ids.items() if self._ids.get(topic, one) != one]
        if made_anew := [topic for topic in changed_ids if topic in sources | changelogs]:
            what = ChangelogLostError if changelogs.issuperset(made_anew) else InputChangedError
            raise what(
                f"made anew under the same name since {self.name} was started: {', '.join(made_anew)}. Stop all "
                "processes of the application; the next start says what can be done"
            )
        for worker in self._workers.values():
            worker.replicas.read_anew(changed_ids)
        self._ids = {**ids, **self._ids, **{topic: ids[topic] for topic in changed_ids}}
        if not counts:
            return
        changed = [
            f"{topic} has {count} partitions, and had {self._counts[topic]}"
            for topic, count in counts.items()
            if count != self._counts[topic]
        ]
        if changed:
            raise InputChangedError(
                f"{'; '.join(changed)} when {self.name} was started. Stop all processes of the application, and start "
                "them again; that tells which topics of its own lack partitions for the new tasks"
            )
        if not members:
            # In the middle of a rebalance: they are asked for again soon.
            self._inputs_looked += LONG_WAIT_S - INPUTS_S
        given = {tp.topic for one in members for tp in one.partitions} & self._counts.keys()
        if others := sorted(given.difference(self._leading.values())):
            raise LogError(
                f"the group {group} has members to which partitions of {', '.join(others)} stand for tasks, and not "
                f"those of {', '.join(self._leading.values())}. Other inputs than theirs have come, or have other "
                "partitions: stop them before this one is started"
            )

    def _check_given_out(self) -> None:
        """Join anew where partitions stay without a member, so that they are given out again.

        A member that has to give partitions up in a cooperative rebalance joins once more when it has, and only then
        they are given to others. If it dies before, and comes back with its instance id, it is told what it has now
        without a rebalance, as static members are, and nobody would ever join that others wait for. So it does itself,
        soon. A group where a member that lives takes its time looks the same, and who joins anew there has nothing,
        and the group no generation, until that one is done. So all others wait for as long as it may be alive; they do
        it where one came back that had nothing left, and does not know that from having come for the first time.
        """
        now = self._clock.monotonic()
        if not self._is_static or now - self._given_out_looked < GIVEN_OUT_S:
            return
        self._given_out_looked = now
        group = self._application.application_id
        try:
            every = {
                TopicPartition(topic, partition)
                for topic in self._leading.values()
                for partition in range(self._reader.partitions(topic))
            }
            with closing(self._log.admin()) as admin:
                members = admin.group_members(group)
        except (RetriableError, UnreachableError) as error:
            _log.info("%s: %s; whether all tasks are given out is asked again", self.name, error)
            return
        given = {tp for one in members for tp in one.partitions}
        self._left_out = {tp: self._left_out.get(tp, now) for tp in every - given} if members else {}
        if members and not self._left_out:
            self._came_back = False
        patience = GIVEN_OUT_S if self._came_back else self._rebalance_timeout_s
        still = [tp for tp, since in self._left_out.items() if now - since >= patience]
        if still:
            _log.warning(
                "%s: no member of the group %s has %s; joining it anew",
                self.name,
                group,
                ", ".join(map(str, sorted(still))),
            )
            self._left_out = {}
            self._member.rejoin()

    def _copies_of(self, ordinal: int) -> list[int]:
        here = frozenset[tuple[int, int]]().union(*self._host.threads.values())
        return [one for one in self._copies.get(ordinal, ()) if (ordinal, one) not in here]

    def _leave(self) -> None:
        self._member.close()

    def _inputs(self) -> list[TopicPartition]:
        """Those of the tasks that are open."""
        return [tp for one in self._workers.values() for task in one.tasks.values() for tp in task.inputs]

    def _opened(self) -> int:
        return sum(len(worker.tasks) for worker in self._workers.values())

    def _look(self) -> None:
        before = self.status
        self._looked = self._clock.monotonic()
        owned = self._owned or {}
        self.status = ThreadStatus(
            self.name,
            self._owned is None,
            tuple(self._topologies[one].task_id(partition) for one in owned for partition in owned[one]),
            tuple(
                TaskStatus(task.task_id, {tp: task.committed_position(tp) for tp in task.inputs})
                for worker in self._workers.values()
                for task in worker.tasks.values()
            ),
            tuple(
                standby.task_id
                for worker in self._workers.values()
                for standby in worker.replicas.standbys.values()
            ),
        )
        if self._workers and before.running != self.status.running:
            _log.info("%s: %s", self.name, "RUNNING" if self.status.running else "REBALANCING")
        if before._replace(active=()) != self.status._replace(active=()) or len(before.active) != len(
            self.status.active
        ):
            self._changed()


def copies(topology: Topology, members: Sequence[GroupMember], host: str, replicas: int) -> list[int]:
    """The partitions that `host` keeps warm copies of.

    Of the hosts that do not have a task, which the members of the group are named after, those with the smallest hashes
    keep copies: every host computes it alike, and a host that comes or goes moves no copies but those of its own.
    """
    owners = {
        tp.partition: one.client_id
        for one in members
        for tp in one.partitions
        if tp.topic in topology.sources
    }
    hosts = {one.client_id for one in members}
    return [
        partition
        for partition, owner in sorted(owners.items())
        if host in _ranked(topology.task_id(partition), hosts - {owner})[:replicas]
    ]


def _ranked(task_id: str, hosts: Iterable[str]) -> list[str]:
    return sorted(hosts, key=lambda host: sha256(f"{task_id}/{host}".encode()).digest())


class _MemberLog:
    """The cluster, whose group takes positions without a transaction from its members alone."""

    def __init__(self, log: Log, member: Member) -> None:
        self._log = log
        self._member = member

    def plain_producer(self) -> PlainProducer:
        of_member: Any = _MemberProducer(self._log.plain_producer(), self._member)
        return of_member  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class _MemberProducer:
    def __init__(self, producer: PlainProducer, member: Member) -> None:
        self._producer = producer
        self._member = member

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
    ) -> None:
        del group_id
        self._member.commit_offsets(offsets, metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)
