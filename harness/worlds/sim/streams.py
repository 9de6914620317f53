"""`Streams` in the simulation: one process per host with a thread of it, a member of the application's group.

What the thread does is production's, its group is the simulated broker's, and so are the rebalances: nobody here says
who has which task. What the group has given a process is heard where the thread hears it; all else of members is in
`harness.worlds.members`.

Time passes while a process sleeps. One that has nothing to do naps, for longer and longer, until the group is settled:
all tasks are given out, and all members are processes that run. Only then it rests, and is said to be heard of
meanwhile. So sessions end, and copies are asked for, in every run alike.

Must survive: what `harness.worlds.members` survives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappush
from typing import Any, ClassVar

from harness.faults import Fault, Occasion
from harness.history import End, Handed
from harness.schedule import Schedule
from harness.worlds.actors import Actor, Life, ordinal_of, partition_of
from harness.worlds.members import Holder, MembersRun
from harness.worlds.membership import Locking, Telling, Told
from harness.worlds.process import Alternating, ObservedStorage, WatchedLog, describe, how_it_ended
from harness.worlds.sim.broker import SimMember
from harness.worlds.sim.cluster import KeepingLog
from harness.worlds.sim.group import GroupPhase
from harness.worlds.sim.run import APPLICATION, Main, Process, SimRun
from scenarios import Scenario
from store.metrics import Metrics, RecordingLevel
from store.points import Point
from store.streams.application import Application, Repartition
from store.streams.ordinals import take_over
from store.streams.thread import COPIES_S, Host, StreamThread
from store.types import Record, TopicPartition

SESSION_MS = 10_000
REBALANCE_MS = 60_000
HEARD_MS = SESSION_MS // 2
"""How often a process is heard of while time passes."""

FIRST_NAP_S, LONGEST_NAP_S = 0.1, 1.0

STANDS_STILL_S = 2.0
"""For how long a process stands still while all others go on: all of them are heard of the group twice in that time."""

TURN_MS = 20
"""The time that a step takes."""


class Member(Holder, Process):
    """A process with one thread of `Streams`. Of those in its crew each has its directory locked, or had."""

    thread: StreamThread
    member: SimMember

    def __init__(self, run: StreamsRun, actor: Actor, main: Main) -> None:
        super().__init__(run, actor, main)
        self.streams = self.members = run
        self.storage = ObservedStorage(Locking(self.disk, self), self, self.storage.occasions)
        self.given: frozenset[str] = frozenset()
        """The tasks that the group has given it, as its thread has heard."""
        self.failing = False
        self._nap_s = FIRST_NAP_S
        self._settled: tuple[int, int] | None = None
        """The generation that it has found settled, and since when."""

    @property
    def exactly_once(self) -> bool:
        return self.streams.config_for(self.actor).exactly_once

    def _holds(self, actor: Actor) -> str:
        return Process._holds(self, actor)

    # -- what it has of the group ----------------------------------------------------------------------------

    def unlocked(self, task: str) -> None:
        """Whoever needs to know asks its host."""

    def joins(self, member: Any) -> Any:
        self.member = getattr(member, "inner", member)
        return member

    def given_to(self, told: Told, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        self.given = self.tasks_of(partitions)

    # -- whose code runs ------------------------------------------------------------------------------------

    def entered(self, task: str) -> str:
        before = self.at.task
        self.at = self.actor
        for one in self.actor.crew:
            if one.task == task:
                self.at = one
        return before

    def reached(self, point: Point) -> None:
        if self.at is not self.actor:
            super().reached(point)
        elif point is Point.STORE_OPENED:
            # A global store, which no look tells of before there is a task.
            opened = self.storage.just_opened
            self.globals_since |= {name: self.streams.stable_offsets_of(name) for name in opened}

    def meet(self, occasion: Occasion) -> Fault | None:
        fault = super().meet(occasion)
        if fault is not None:
            # A read that fails is repeated, and until then nothing seems to be left to do.
            self.actor.gave_way = True
        return fault

    def handed(self, tp: TopicPartition, records: Sequence[Record], *, more: bool) -> None:
        # One reader reads for all tasks.
        ordinal = self.streams.reads[tp.topic]
        for one in self.actor.crew:
            if one.task == f"{ordinal}_{tp.partition}" and not one.standby:
                given = tuple([(record.offset, record.timestamp) for record in records])
                topic = tp.topic.removeprefix(self.streams.prefix)
                self.streams.events.append(Handed(one.task, one.incarnation, topic, given, more))

    def stepped(self) -> None:
        """After a step, or what has ended in the middle of one: whom it has lost, and what copies it keeps no more."""
        for ordinal, worker in self.thread._workers.items():
            for partition, error in worker.lost.items():
                for one in list(self.actor.crew):
                    mine = ordinal_of(one.task) == ordinal and partition_of(one.task) == partition
                    if mine and not one.standby and partition not in worker.tasks:
                        self._remain_without(one)
                        self.streams.gone(one, End.FENCED, describe(error))
        for one in [one for one in self.actor.crew if one.standby and not self.failing]:
            if self.streams.hosts[one.host].holder(one.task) != one.process:
                self._let_go_of(one)

    # -- when it goes on ------------------------------------------------------------------------------------

    def goes_on(self, *, progress: bool) -> None:
        """Let others have their turn after a step, and rest where nothing is left to do."""
        run = self.streams
        run.director.turned(self.at)
        if progress:
            run.pass_time(TURN_MS)
            self._nap_s = FIRST_NAP_S
            run.runnable.append(self.actor)
            run.hub.switch()
        elif self._is_settled():
            self._nap_s = FIRST_NAP_S
            run.rests(self.actor)
            run.hub.switch()
        else:
            nap, self._nap_s = self._nap_s, min(2 * self._nap_s, LONGEST_NAP_S)
            self.sleep(nap)

    def _is_settled(self) -> bool:
        run = self.streams
        generation = run.settled()
        if generation is None or self.member._generation != generation or self.member._granted is not None:
            self._settled = None
            return False
        if self._settled is None or self._settled[0] != generation:
            self._settled = generation, run.broker.now
        if not self.thread.status.running:
            return False
        if not run.config_for(self.actor).num_standby_replicas:
            return True
        # Everybody has asked who has which task since, and has opened what it is to keep.
        return run.broker.now - self._settled[1] > COPIES_S * 1000 and all(
            set(worker.replicas.wanted) == set(worker.replicas.standbys)
            for worker in self.thread._workers.values()
        )

    def lags(self) -> dict[TopicPartition, int]:
        worker = self.thread._workers.get(ordinal_of(self.at.task))
        standby = None if worker is None else worker.replicas.standbys.get(partition_of(self.at.task))
        self._asking = True
        try:
            return {} if standby is None else standby.lag()
        finally:
            self._asking = False


class StreamsRun(MembersRun, SimRun):
    """One run of one schedule by members of a group."""

    _process: ClassVar[type[Process]] = Member
    processes: dict[Actor, Member]  # type: ignore[assignment]

    def __init__(self, scenario: Scenario, schedule: Schedule) -> None:
        super().__init__(scenario, schedule)
        self.join()
        self.enters = self.wakes = True

    # -- processes --------------------------------------------------------------------------------------------

    def start_process(self, actor: Actor) -> None:
        self.make(actor, self._main)  # type: ignore[arg-type]

    def _main(self, process: Member) -> tuple[End, str]:
        actor = process.actor
        config = self.config_for(actor)
        if config.metrics_recording_level is RecordingLevel.DEBUG:
            process.metrics = Metrics(self.clock, RecordingLevel.DEBUG)
        bare = self.new_topologies(config)
        parts = tuple(self.led(process, topology) for topology in bare)
        if self.watch.queries:
            process.questions = lambda task: self.questions(process, bare[ordinal_of(task)], task)
        name = f"host-{actor.host}"
        log: Any = WatchedLog.around(KeepingLog(self.broker, self.cluster, name), process, self.watch)
        application = Application(
            APPLICATION, parts, tuple(Repartition(topic) for topic in sorted(self.purges))
        )
        try:
            # The topics between sub-topologies are there as any input is, whether they are purged or not.
            replace(application, repartitions=()).prepare(log, config)
            take_over(log, parts, config, self.clock)
            thread = process.thread = StreamThread(
                application,
                config,
                Telling(log, process),
                process.storage,
                self.clock,
                instance_id=name if self.schedule.static else None,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                metrics=process.metrics,
                listener=process.listener,
                host=Host(name),
                pool=Alternating(),
                stopping=process.stopping,
            )
            try:
                while not process.stopping():
                    progress = thread.step()
                    process.stepped()
                    if not process.stopping():
                        process.goes_on(progress=progress)
                thread.stop()
            except Exception:
                process.failing = True
                process.stepped()
                thread.close()
                raise
        except Exception as error:  # noqa: BLE001 - whatever a pipeline raises is an observation, and is judged
            return how_it_ended(error), describe(error)
        return End.DONE, ""

    def exited(self, actor: Actor, reason: End, error: str) -> None:
        self.hosts[actor.worker.host].release(actor.worker.process)
        MembersRun.exited(self, actor, reason, error)

    # -- the group --------------------------------------------------------------------------------------------

    def settled(self) -> int | None:
        """The generation, where all tasks are given out, and all members are processes that run; else None."""
        phase, generation = self.broker.rebalances(APPLICATION)
        if phase is not GroupPhase.STABLE:
            return None
        running = {
            one.member._member_id
            for actor, one in self.processes.items()
            if actor.life is Life.RUNNING and hasattr(one, "member")
        }
        members = self.broker.members(APPLICATION)
        given = sum(len(one.partitions) for one in members)
        known = all(one.member_id in running for one in members)
        return generation if known and given == len(self.names) else None

    def pass_time(self, ms: int) -> None:
        """Let time pass in which the processes that run are heard of by the group."""
        self.broker.advance(ms)
        self._are_heard_of()

    def _are_heard_of(self) -> None:
        for actor, process in self.processes.items():
            if actor.life is Life.RUNNING and hasattr(process, "member"):
                if actor in self.resting:
                    # It would look again and again, and find nothing.
                    process.member._polled_ms = self.broker.now
                process.member.heartbeat()

    # -- what is otherwise with a group -----------------------------------------------------------------------

    def input_of(self, actor: Actor) -> object:  # noqa: ARG002 - whatever the group gives it
        inputs = [tp for parts in (*self._inputs.values(), *self._changelogs.values()) for tp in parts]
        return (
            tuple([self.broker.last_stable_offset(tp) for tp in inputs]),
            self.broker.rebalances(APPLICATION),
            tuple([(one.process, one.life) for one in self._here.values()]),
        )

    def elapse(self) -> Actor | None:
        if self._wake_those_with_input():
            return self.runnable.popleft()
        actor = super().elapse()
        self._are_heard_of()
        return actor

    def yields(self, actor: Actor) -> None:
        self.order += 1
        wake = self.broker.now + int(STANDS_STILL_S * 1000)
        heappush(self.sleepers, (wake, self.order, self.processes[actor]))

    def advance(self, ms: int) -> None:
        # Who runs is heard of, until it is so long that nobody is a member any more.
        heard = min(ms, 2 * REBALANCE_MS) // HEARD_MS
        for _ in range(heard):
            self.pass_time(HEARD_MS)
        self.broker.advance(ms - heard * HEARD_MS)

    def expel(self, actor: Actor) -> None:
        self.broker.expel(APPLICATION, self.processes[actor.worker].member._member_id)
