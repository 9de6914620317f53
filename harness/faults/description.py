"""What a description of a fault consists of, and what faults ask of the director and of a world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from harness.worlds.actors import Actor


class Capability(StrEnum):
    """An ability of a world. A fault that needs one which a world lacks is skipped there, and the run says so."""

    PROCESSES = "processes"
    """Processes can be killed, stopped, continued and asked to end."""
    HOSTS = "hosts"
    """There are several hosts, each with a disk of its own."""
    CALLS = "calls"
    """Calls of the client to the broker can be made to fail."""
    RECORDS = "records"
    """The processing function can be made to raise."""
    WRITES = "writes"
    """A process can be struck inside a write of its stores, and a write, a read or an open can be made to fail."""
    POWER = "power"
    """A disk can forget what was not synced."""
    LOSSES = "losses"
    """A disk can lose stores, and keep what speaks for them."""
    TIME = "time"
    """The clock of the cluster can be moved."""
    MARKERS = "markers"
    """Transaction markers can be held back."""
    LOGS = "logs"
    """Topics can be compacted and truncated at any moment."""
    GROUPS = "groups"
    """The committed positions of a group can be taken away."""
    SETTINGS = "settings"
    """A process can be started again with other settings."""
    FILES = "files"
    """Stores are real files, which can be damaged."""
    VERSIONS = "versions"
    """All processes of the pipeline can be started again with another version of it."""
    MEMBERS = "members"
    """Members of a consumer group can be what drives the tasks."""
    STRANGERS = "strangers"
    """Somebody whom the group knows nothing of can take a task."""
    SHARED = "shared"
    """Several tasks can share a process, and move from one to the other."""
    NETWORK = "network"
    """The links between hosts and brokers can be cut, and made lossy or slow."""
    BROKERS = "brokers"
    """Brokers can be killed, stopped and paused."""
    MACHINES = "machines"
    """A host can be lost as a whole, with or without its disk."""
    EXECUTORS = "executors"
    """Spark has a master, and executors on several machines."""
    CLOCKS = "clocks"
    """The wall clock of a host can be wrong."""
    SMALL_DISKS = "small disks"
    """Each host has a disk of its own that is small enough to be filled."""


OF_MACHINES = frozenset(
    {
        Capability.NETWORK,
        Capability.BROKERS,
        Capability.MACHINES,
        Capability.SMALL_DISKS,
        Capability.EXECUTORS,
    },
)
"""What only a world of several machines can do."""

SIMULATED = frozenset(
    {
        Capability.PROCESSES,
        Capability.HOSTS,
        Capability.CALLS,
        Capability.RECORDS,
        Capability.WRITES,
        Capability.POWER,
        Capability.LOSSES,
        Capability.TIME,
        Capability.MARKERS,
        Capability.LOGS,
        Capability.GROUPS,
        Capability.SETTINGS,
        Capability.FILES,
        Capability.VERSIONS,
        Capability.MEMBERS,
        Capability.STRANGERS,
        Capability.SHARED,
        Capability.CLOCKS,
    }
)
"""What the simulation can do."""


class Link(StrEnum):
    """What becomes of the link between a host and the brokers."""

    CUT = "cut"
    """Packets vanish."""
    REFUSING = "refusing"
    """Connections are reset and refused."""
    LOSSY = "lossy"
    """Some packets vanish."""
    SLOW = "slow"
    """Packets wait for each other."""
    LATE = "late"
    """Each packet arrives a quarter of a second later."""


class Blow(StrEnum):
    """What becomes of a broker."""

    KILL = "kill"
    """It ends as SIGKILL does, and is started again."""
    PAUSE = "pause"
    """It stands still for a moment."""
    RESTART = "restart"
    """It ends in order, and is started again."""
    CUT_OFF = "cut off"
    """The others do not see it for longer than they wait for it."""


class Where(Enum):
    """When a fault strikes, see `harness.faults`."""

    POINT = 1
    """When a process of its task reaches a protocol point: that process is struck."""
    NOW = 2
    """When its turn comes, whoever is where: nobody in particular is struck, and its event names no task."""
    OCCASION = 3
    """When a process of its task is about to do something that it lies in wait for."""


class Occasion(StrEnum):
    """Something that a process of a task does and that a fault can lie in wait for."""

    INIT_TRANSACTIONS = "init_transactions"
    BEGIN_TRANSACTION = "begin_transaction"
    PRODUCE = "produce"
    FLUSH = "flush"
    SEND_OFFSETS = "send_offsets"
    COMMIT_TRANSACTION = "commit_transaction"
    ABORT_TRANSACTION = "abort_transaction"
    COMMIT_OFFSETS = "commit_offsets"
    """The commit of positions under at least once."""
    READ = "read"
    OFFSETS = "offsets"
    COMMITTED = "committed"
    PARTITIONS = "partitions"
    """How many partitions a topic has."""
    TOPIC_CONFIG = "topic_config"
    TOPIC_IDS = "topic_ids"
    DELETE_RECORDS = "delete_records"
    GROUP_MEMBERS = "group_members"
    RECORD = "record"
    """The processing function is about to be called."""
    PUNCTUATOR = "punctuator"
    """A punctuator is about to be called."""
    OPEN = "open"
    """A store's engine is about to be opened."""
    WRITE = "write"
    """A batch of a store is on its way to the disk."""
    ROW = "row"
    """A row of a store is about to be read."""
    CHECKPOINT = "checkpoint"
    """The checkpoint of a task is about to be read."""
    COPY = "copy"
    """A copy of a store, kept by a standby, is about to be written."""


OF_STORAGE = frozenset(
    {Occasion.OPEN, Occasion.WRITE, Occasion.ROW, Occasion.CHECKPOINT, Occasion.COPY},
)
"""What a process does to its disk."""

CALLS = tuple(Occasion)[: tuple(Occasion).index(Occasion.RECORD)]
"""The calls to the broker."""

ADMIN_CALLS = CALLS[CALLS.index(Occasion.TOPIC_CONFIG) :]
"""Those to an admin client, which few processes make, and few times."""

TRANSACTION_CALLS = CALLS[: CALLS.index(Occasion.COMMIT_OFFSETS)]


class Excuse(StrEnum):
    """What a process may do because of a fault, and must not do without one."""

    ABORT = "aborted a transaction"
    NEW_PRODUCER = "made a new producer"
    RETRY = "gave up, to be run again"
    FENCED = "was fenced"
    BLOCKED = "was blocked"
    FAIL = "failed"
    SET_ASIDE = "set a store aside"


class Figure(StrEnum):
    """Something that campaigns on several machines count, whatever fault it came of."""

    BROKERS_KILLED = "brokers killed"
    LINKS_CUT = "links cut"
    ZOMBIES = "zombies made"
    """Processes that stood still, or were cut off, until another one had their task, and then went on."""


STARTS_AGAIN = frozenset({Excuse.ABORT, Excuse.NEW_PRODUCER, Excuse.RETRY})
"""What a process may do whose call has failed, or that somebody has overtaken: begin again from its last commit."""


class Arguments(Protocol):
    """What a step says to its fault; see `harness.schedule.Step`."""

    @property
    def task(self) -> str: ...

    @property
    def amount(self) -> int: ...

    @property
    def topic(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...


class SkipError(Exception):
    """A step that cannot apply: says why. Raised before anything was changed."""


class Stage:
    """What a fault can ask for: the director's part and that of the world under it. A world overrides what its
    capabilities say, and is asked for nothing else."""

    def kill(self, actor: Actor, *, wipe: bool = False, power: bool = False) -> None:
        """End the process as SIGKILL does, and have it started again. `wipe`: the state of its task on that host is
        gone then; `power`: every process on the host dies, and its disk forgets what was not synced, or a part."""
        raise NotImplementedError

    def lose_stores(self, actor: Actor) -> None:
        """End the process as SIGKILL does, and have it started again without the stores of its task on that host, of
        which the checkpoint there speaks on."""
        raise NotImplementedError

    def kill_and_start_with(self, actor: Actor, settings: Mapping[str, Any]) -> None:
        """End the process as SIGKILL does, and have it started again with these settings beside its others."""
        raise NotImplementedError

    def pause(self, actor: Actor) -> None:
        """Stop the process, and start a new incarnation of its task on another host."""
        raise NotImplementedError

    def resume(self, task: str) -> None:
        """Let the longest stopped incarnation of the task go on."""
        raise NotImplementedError

    def stop(self, actor: Actor, *, settings: Mapping[str, Any] | None = None) -> None:
        """Ask the process to end by itself, as SIGTERM does, and start it again, with other settings if given."""
        raise NotImplementedError

    def stop_alone(self, actor: Actor) -> None:
        """As `stop`, and no other process with it: on Spark a task host that nobody needs is told to go."""
        raise NotImplementedError

    def start_another(self, actor: Actor) -> None:
        """Start a second incarnation of the task on another host while this one runs on."""
        raise NotImplementedError

    def fence(self, actor: Actor) -> None:
        """Fence the task's producer, as an incarnation does that the group knows nothing of and that ends at once."""
        raise NotImplementedError

    def move(self, actor: Actor) -> None:
        """Have the worker let go of the task in order, while it goes on with its others, and another host's take it."""
        raise NotImplementedError

    def reorder(self, actor: Actor, *, kill: bool, dies_before: int) -> None:
        """End all processes of the pipeline, as SIGTERM does or as SIGKILL, and start them again with its other
        version. The first one that moves stores dies before the change of that number to its disk. `SkipError` where
        the pipeline has no other version."""
        raise NotImplementedError

    def advance(self, ms: int) -> None:
        """Move the clock of the cluster."""
        raise NotImplementedError

    def hold_markers(self) -> None:
        """From now on transactions are acknowledged before their markers are written."""
        raise NotImplementedError

    def leave_out_markers(self, actor: Actor) -> None:
        """The next commit of the actor's task is acknowledged without its markers, and the task's next transaction is
        taken nonetheless: as that one ends, so do both."""
        raise NotImplementedError

    def compact(self, topic: str) -> None:
        """Clean every partition of a topic, named without the application id, as the broker's cleaner does."""
        raise NotImplementedError

    def truncate(self, topic: str) -> None:
        """Delete the head of each partition of an input, up to the group's committed position, as retention does."""
        raise NotImplementedError

    def truncate_aborted(self, topic: str) -> None:
        """Delete what lies before the first record that is not aborted, where the group has no position."""
        raise NotImplementedError

    def forget_positions(self, task: str) -> None:
        """Take the group's committed positions in a task's inputs away. `SkipError` where they are nowhere else."""
        raise NotImplementedError

    def forget_position(self, task: str) -> None:
        """Take the group's committed position in the input away of which the task has read most, until a start of the
        task has refused to go on without. `SkipError` where none would refuse."""
        raise NotImplementedError

    def disturb(self, actor: Actor, link: Link, way: int) -> None:
        """Spoil the link between the host of the process and the brokers for a while, whatever the process does
        meanwhile. `way`: 0 in both directions, 1 only what the host sends, 2 only what is sent to it."""
        raise NotImplementedError

    def isolate(self, actor: Actor, way: int) -> None:
        """Cut the host of the process off from the brokers until it is told to go on, see `resume`; its processes run
        on, and new incarnations of its tasks start on other hosts."""
        raise NotImplementedError

    def strike_broker(self, actor: Actor, blow: Blow, which: int) -> None:
        """Strike the broker that coordinates the task's transactions (0) or leads its input (1), while the process goes
        on. `SkipError` for one that is to be cut off and is alone."""
        raise NotImplementedError

    def jump_clock(self, actor: Actor, seconds: int) -> None:
        """Have the wall clock of the actor's host jump, ahead or back, and set it right a moment later. Clocks that
        count from the machine's start go on as before. `SkipError` while it is wrong already."""
        raise NotImplementedError

    def kill_host(self, actor: Actor, *, wipe: bool = False) -> None:
        """End the host of the process, and start it again. `wipe`: with an empty disk."""
        raise NotImplementedError

    def return_host(self, actor: Actor) -> None:
        """End the host of the process, and start it again with the disk that it has lost last. `SkipError` where it has
        lost none."""
        raise NotImplementedError

    def kill_executor(self, actor: Actor) -> None:
        """End the executor of the attempt as SIGKILL does, with all that it runs."""
        raise NotImplementedError

    def pause_attempt(self, actor: Actor) -> None:
        """Stop the Python worker of the attempt, and let it go on a moment later."""
        raise NotImplementedError

    def slow_attempt(self, actor: Actor, *, at_once: bool) -> None:
        """Stop the Python worker of the attempt until Spark has started another one of its task beside it. It goes on
        when that one has fenced it, or `at_once`."""
        raise NotImplementedError

    def pause_executor(self, actor: Actor, *, at_once: bool) -> None:
        """Stop the executor of the attempt until Spark has given it up. The attempt goes on when the next one of its
        task has fenced it, or `at_once`."""
        raise NotImplementedError

    def cut_executor(self, actor: Actor, *, at_once: bool) -> None:
        """Cut the machine of the attempt off from Spark's driver and master until these have given it up. The attempt
        goes on when the next one of its task has fenced it, or `at_once`."""
        raise NotImplementedError

    def kill_master(self) -> None:
        """End Spark's master as SIGKILL does, and start it again."""
        raise NotImplementedError

    def hold_open(self, topic: str) -> None:
        """Have an open transaction of somebody else in the topic, which settles when nothing else is left to do."""
        raise NotImplementedError


Around = Callable[[Callable[[], Any]], Any]
"""Takes the call that was about to be made, and makes it or not."""


@dataclass(frozen=True)
class Fault:
    """One fault, described once. Equal by name."""

    name: str
    sentence: str
    """What happens, for people: stands alone, ends with a full stop."""
    where: Where
    needs: frozenset[Capability] = frozenset({Capability.PROCESSES})
    """What a world must be able to do for it. Oracles go by it too: a fault that needs `POWER` may take what was not
    synced, one that needs `LOGS` has topics cleaned, one that needs `GROUPS` has positions forgotten, and one that
    needs `TIME` lets time pass for all."""
    deadly: bool = False
    """Whether the process dies of it."""
    removes_state: bool = False
    """Whether the state of its task on that host is gone afterwards."""
    excuses: frozenset[Excuse] = frozenset()
    """What the process that it struck may do because of it, once each time it strikes."""
    occasions: tuple[Occasion, ...] = ()
    """For `Where.OCCASION`: what it can lie in wait for; the first one is meant when a step names none."""
    apply: Callable[[Stage, Any, Arguments], None] | None = None
    """For `Where.POINT` and `Where.NOW`: make it happen to an actor, which is None for `Where.NOW`."""
    around: Around | None = None
    """For `Where.OCCASION`: what happens in the process under test instead of the plain call; None, which only
    `Occasion.WRITE` takes: the director strikes the process right after the write (see `apply`)."""
    amount: tuple[int, ...] = ()
    """Values that a step's `amount` may take, the first one by default; empty: it takes none."""
    on_topics: bool = False
    """Whether a step names a topic."""
    asks_to_end: bool = False
    """Whether the process is asked to end by itself."""
    moves: bool = False
    """Whether the task is let go of by a process that runs on."""
    without_stores: bool = False
    """Whether it means something to tasks without stores alone."""
    punctuates: bool = False
    """Whether it means something to tasks with punctuators alone."""
    of_records: bool = False
    """Whether a record fails by it that a handler may pass over, which the reference knows nothing of."""
    of_several: bool = False
    """Whether it means something to tasks with stores and several inputs alone."""
    changes_settings: bool = False
    """Whether a step names settings."""
    reorders: bool = False
    """Whether it means something to pipelines with another version alone."""
    suspends: bool = False
    """Whether the process stands still until it is told to go on, and time may pass for its transactions meanwhile."""
    rivals: bool = False
    """Whether another incarnation of the task takes it from a process that runs on, and may end before it hears so."""
    works: bool = False
    """Whether the call that it strikes has done its work at the broker, whatever the process is told."""
    outlived_in: tuple[str, ...] = ()
    """Runtimes in which no process fails of it, whatever it excuses."""
    lasts: bool = False
    """Whether those of the process's next calls meet it too that are among its occasions, `amount` in all."""
    yields: bool = False
    """Whether the process that reached the place lets all others go on first, until they rest."""
    figures: frozenset[Figure] = frozenset()
    """What campaigns count it as."""
    placed: bool = False
    """Whether it means something only before certain others: generators put it there, and draw it nowhere else."""
    after: str = ""
    """The fault that has to have struck the task before, or this one is skipped; empty: none."""
    runtimes: tuple[str, ...] = ("worker", "spark", "streams")

    def __post_init__(self) -> None:
        if self.where is not Where.OCCASION:
            if self.apply is None or self.occasions:
                raise ValueError(
                    f"the fault {self.name} needs `apply`, and no occasions: it does not lie in wait"
                )
        elif not self.occasions:
            raise ValueError(f"the fault {self.name} names no occasion that it lies in wait for")
        elif self.around is None and (self.apply is None or self.occasions != (Occasion.WRITE,)):
            raise ValueError(
                f"the fault {self.name} needs `around`: only after a write can the director strike, with `apply`"
            )

    def __hash__(self) -> int:
        return hash(self.name)
