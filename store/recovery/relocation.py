"""Relocation of state (KAFKA-13627): stores go where the sub-topology is that references them by name.

Directories of tasks are named by the ordinal of a sub-topology, `application/2_14/rocksdb/orders`. When sub-topologies
are added, removed or put in another order, ordinals change, and what lies on disk belongs to other tasks. A start moves
it by renames, from `2_14` to `3_14`: nothing of a path changes but the ordinal, and nothing is copied or read.

What moves. A store is known by its name, which is also the name of its changelog. So wherever it lies, and however
often it was moved, its data and its changelog are of the same store, and what a task makes of a moved store is decided
by `store.recovery.decision`, as for any other. The offset of a store that keeps none itself is an entry in the
checkpoint file of its task: that entry goes along, those of other stores stay. What was set aside, and the lock file,
stay with the directory of the task. The notes `.sub-topology-N` are rewritten where a sub-topology has come or gone.

| what is found | what becomes of it |
|---|---|
| ordinals swapped, or moved in a cycle | each store moves by itself: paths of two stores are never the same |
| one old task split, several merged into one | each store goes to its own task, and its entry with it |
| a store that left the topology | stays where it is, with its entry; declared again, it is found and moved |
| a store in two tasks of a partition | the one written to last counts; the other is set aside, without its entry |
| something in the way when a move is finished | is set aside, never overwritten: the journal says what is moved |
| another number of partitions | only ordinals change; stores of partitions that are gone move too, unused |
| a global store | stays: it is of no task, and its directory has no ordinal |
| a generated name that is another store's now | moves by its name, as its changelog would be read; see below |
| a store on another file system | `StoreIOError` before anything is changed |
| a task that a live process has | `StateLockedError` before anything is changed |

Generated names (`KSTREAM-AGGREGATE-STATE-STORE-0000000003`) count operators, so after a change they may be those of
other stores. One of another type is refused when it is opened (`StoreTypeError`), with nothing changed. One of the same
type cannot be told from the right one, on disk or in Kafka: a rebuild would restore just the same rows. So where its
new sub-topology has none of the sources of the former one, a warning says so. Stores with names of their own are safe.

Why no crash loses or mixes anything. While the journal `.relocation` is there nobody locks a task of the application
(`StateDirectory.lock`), so no task sees a state in between. It is written twice, each time as a whole and power-safe:

1. Empty. From here on no lock is given. Then each lock concerned is taken once: who had one before is seen, and the
   journal is removed again, with nothing changed. A crash leaves an empty journal, which says that nothing was moved.
2. With the plan, made of what lies there now. Then, partition by partition, with its locks held: entries of the stores
   concerned leave the checkpoints, stores are renamed, entries come into the checkpoints of their new tasks. Then the
   notes, and the journal goes when all renames are power-safe.

| a crash | leaves | who repairs it |
|---|---|---|
| before the plan is there | nothing changed | the next start plans anew |
| between two renames | the journal, and some stores that are there already | the next start does what is not done |
| between renames and entries | stores without entries, entries in the journal | the same |
| before the journal is removed | all in place | the next start finds nothing to do, and removes it |
| power cut: some renames not on the medium | the journal, which goes after all of them are | the same |

A store is done when its source is gone, or when what is at its target is the very directory (inode) that the plan
named. Entries are removed and added by name, so that doing it again does no harm to those of other stores. A journal
that cannot be read, which no crash leaves, is renamed: at every moment an entry lies beside the data it speaks for or
nowhere, so all that is lost is offsets, and their stores are rebuilt.

Fencing the tasks of the former ordinals is not done here but by `store.streams.ordinals` and each task.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Protocol

import msgspec
from filelock import FileLock, Timeout

from store.engine.protocol import Checkpointed
from store.engine.staged import sync_path
from store.errors import ConfigError, StateLockedError, StoreCorruptedError, StoreIOError, end_after
from store.recovery import checkpoint as checkpoint_file
from store.recovery.directory import RELOCATION, TASK_ID, StateDirectory
from store.types import TopicPartition

_log = logging.getLogger(__name__)

KEY = "automatic.state.relocation"
WAIT_S = 300.0
"""How long a start waits for another process of the host that moves the stores."""
_PASSING_S = 1.0
_LONG_PASSING_S = 60.0
"""Somebody who takes a lock, and lets it go since there is a journal, has it for a moment: how long that may last."""
_VERSION = 1
_GENERATED = re.compile(r".*-[0-9]{10}")
"""Names that are numbered by an operator's place in the topology."""
_SOURCE = "source "
_TOLD = 10
"""Moves that an error names."""


class SubTopology(Protocol):
    """What is asked of a `store.streams.topology.Topology`."""

    @property
    def application_id(self) -> str: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def store_names(self) -> tuple[str, ...]: ...
    @property
    def content(self) -> frozenset[str]: ...
    def changelog_topic(self, store: str, /) -> str: ...


@dataclass(frozen=True)
class Declared:
    """The application as it is now."""

    ordinals: Mapping[str, int]
    """Store → the ordinal of its sub-topology."""
    contents: Mapping[int, frozenset[str]]
    """Ordinal → sources and stores, as they are noted."""
    changelogs: Mapping[str, str]
    """Store → the topic."""

    @classmethod
    def of(cls, application_id: str, topologies: Sequence[SubTopology]) -> Declared:
        """Raises `ConfigError` for ordinals or stores that two have, and a sub-topology of another application."""
        ordinals: dict[str, int] = {}
        contents: dict[int, frozenset[str]] = {}
        changelogs: dict[str, str] = {}
        for one in topologies:
            if one.application_id != application_id:
                raise ConfigError("application_id", one.application_id, f"that of all, {application_id}")
            if one.ordinal in contents:
                raise ConfigError("ordinal", one.ordinal, "of one sub-topology, and two have it")
            contents[one.ordinal] = one.content
            for store in one.store_names:
                if store in ordinals:
                    raise ConfigError(
                        "stores",
                        store,
                        f"of one sub-topology, and {ordinals[store]} and {one.ordinal} have it",
                    )
                ordinals[store] = one.ordinal
                changelogs[store] = one.changelog_topic(store)
        return cls(ordinals, contents, changelogs)


@dataclass(frozen=True, order=True)
class Found:
    """A store on disk."""

    partition: int
    store: str
    ordinal: int
    inode: int = 0
    written_ns: int = 0
    """When it was last written to; asked only where there are several of the name and partition."""

    @property
    def task_id(self) -> str:
        return f"{self.ordinal}_{self.partition}"


@dataclass(frozen=True)
class Layout:
    """What lies in an application's directory."""

    stores: Sequence[Found] = ()
    checkpoints: Mapping[str, Mapping[TopicPartition, Checkpointed]] = field(default_factory=dict)
    """Of the tasks concerned that have one that can be read."""
    notes: Mapping[int, str] = field(default_factory=dict)


class Move(msgspec.Struct, frozen=True, order=True):
    """One store of one partition, from the task of one ordinal to that of another, or out of the way."""

    partition: int
    store: str
    before: int
    after: int | None
    """None: it is set aside, in the directory of its task."""
    inode: int = 0

    @property
    def source(self) -> str:
        return f"{self.before}_{self.partition}"

    @property
    def target(self) -> str:
        return self.source if self.after is None else f"{self.after}_{self.partition}"

    def __str__(self) -> str:
        source = f"{self.source}/rocksdb/{self.store}"
        if self.after is None:
            return f"{source} → {self.source}/set-aside"
        return f"{source} → {self.target}/rocksdb/{self.store}"


class Entry(msgspec.Struct, frozen=True):
    """One of a checkpoint file."""

    topic: str
    partition: int
    offset: int
    last_caught_up_ms: int | None
    exact: bool


class Edit(msgspec.Struct, frozen=True):
    """Of the checkpoint file of one task."""

    task_id: str
    remove: tuple[TopicPartition, ...]
    add: tuple[Entry, ...]

    @property
    def partition(self) -> int:
        return int(self.task_id.partition("_")[2])


class Note(msgspec.Struct, frozen=True):
    """What is noted of an ordinal."""

    ordinal: int
    before: str
    after: str


class Plan(msgspec.Struct, frozen=True):
    """All that changes."""

    moves: tuple[Move, ...] = ()
    """By partition; within one, what is set aside comes first."""
    edits: tuple[Edit, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def tasks(self) -> dict[int, list[str]]:
        """Partition → the tasks that stores leave or come to."""
        found: dict[int, set[str]] = {}
        for move in self.moves:
            found.setdefault(move.partition, set()).update((move.source, move.target))
        return {partition: sorted(found[partition]) for partition in sorted(found)}


class _Journal(msgspec.Struct, frozen=True):
    version: int
    stamp: str
    """Where stores are set aside."""
    plan: Plan | None = None


@dataclass(frozen=True)
class Relocated:
    """What a start has moved."""

    moves: tuple[Move, ...] = ()
    """Stores that were set aside among them."""
    left: tuple[str, ...] = ()
    """Stores that no sub-topology references, which stay where they are: `2_14/orders`."""
    doubtful: tuple[str, ...] = ()
    """Stores with generated names whose new sub-topology has none of the input of the former one."""
    finished: bool = False
    """Whether an earlier start had begun it."""


# -- planning ------------------------------------------------------------------------------------------------


def moves_of(stores: Iterable[Found], declared: Declared) -> tuple[Move, ...]:
    """Which of the stores move, and which are set aside."""
    copies: dict[tuple[int, str], list[Found]] = {}
    for one in stores:
        if one.store in declared.ordinals:
            copies.setdefault((one.partition, one.store), []).append(one)
    aside: list[Move] = []
    moves: list[Move] = []
    for (partition, store), found in copies.items():
        there = declared.ordinals[store]
        # The one that is in place, and then the lower ordinal, where nothing tells which was used last.
        last = max(found, key=lambda one: (one.written_ns, one.ordinal == there, -one.ordinal))
        aside += [Move(partition, store, one.ordinal, None, one.inode) for one in found if one is not last]
        if last.ordinal != there:
            moves.append(Move(partition, store, last.ordinal, there, last.inode))
    return tuple(sorted([*aside, *moves], key=lambda move: (move.partition, move.after is not None, move)))


def plan(layout: Layout, declared: Declared) -> Plan:
    """What is to be done. Depends on nothing but its arguments."""
    moves = moves_of(layout.stores, declared)
    return Plan(moves, _edits(moves, layout, declared), _notes(moves, layout.notes, declared))


def _edits(moves: Sequence[Move], layout: Layout, declared: Declared) -> tuple[Edit, ...]:
    remove: dict[str, set[TopicPartition]] = {}
    add: dict[str, list[Entry]] = {}
    for move in moves:
        changelog = TopicPartition(declared.changelogs[move.store], move.partition)
        for task_id in (move.source, move.target):
            if changelog in layout.checkpoints.get(task_id, {}):
                remove.setdefault(task_id, set()).add(changelog)
        entry = layout.checkpoints.get(move.source, {}).get(changelog)
        if entry is not None and move.after is not None:
            add.setdefault(move.target, []).append(
                Entry(*changelog, entry.offset, entry.last_caught_up_ms, entry.exact)
            )
    return tuple(
        Edit(task_id, tuple(sorted(remove.get(task_id, ()))), tuple(add.get(task_id, ())))
        for task_id in sorted({*remove, *add})
    )


def _notes(moves: Sequence[Move], notes: Mapping[int, str], declared: Declared) -> tuple[Note, ...]:
    """Notes that speak of another sub-topology than the one that has the ordinal now, where either of them was moved.

    One that is of neither stays, and the task refuses to start: somebody may have given two pipelines one name. What
    such a note said of a sub-topology is noted where that is now, even if its task has not been opened yet: another
    change may come before that, and would find nothing of it.
    """
    said = {ordinal: frozenset(text.splitlines()) for ordinal, text in notes.items()}
    came = {move.after for move in moves}
    changed = []
    for ordinal, content in said.items():
        here = declared.contents.get(ordinal)
        if here is not None and not content.isdisjoint(here):
            continue
        went = any(not content.isdisjoint(other) for other in declared.contents.values())
        if here is not None:
            others = [one for number, one in said.items() if number != ordinal]
            went = went or ordinal in came or any(not here.isdisjoint(other) for other in others)
        if went:
            changed.append(Note(ordinal, notes[ordinal], "\n".join(sorted(here or ()))))
    left = frozenset[str]().union(*[said[note.ordinal] for note in changed])
    for ordinal, here in declared.contents.items():
        if ordinal not in said and not here.isdisjoint(left):
            changed.append(Note(ordinal, "", "\n".join(sorted(here))))
    return tuple(changed)


def doubtful(plan: Plan, notes: Mapping[int, str], declared: Declared) -> tuple[str, ...]:
    """Stores with generated names that move to a sub-topology with none of the sources of the one before."""
    found = set()
    for move in plan.moves:
        if move.after is None or _GENERATED.fullmatch(move.store) is None:
            continue
        before = {line for line in notes.get(move.before, "").splitlines() if line.startswith(_SOURCE)}
        if before and before.isdisjoint(declared.contents[move.after]):
            found.add(move.store)
    return tuple(sorted(found))


# -- what lies there -----------------------------------------------------------------------------------------


def look(directory: StateDirectory, declared: Declared) -> Layout:
    """Read what a plan needs. Changes nothing, and needs no lock."""
    try:
        stores = _several(directory, list(_stores(directory.application)))
    except OSError as error:
        raise StoreIOError(f"{directory.application} cannot be read: {error}") from error
    tasks = Plan(moves_of(stores, declared)).tasks
    return Layout(
        stores,
        {task_id: _entries(directory, task_id) for task_ids in tasks.values() for task_id in task_ids},
        directory.remembered(),
    )


def _stores(application: Path) -> Iterator[Found]:
    try:
        with os.scandir(application) as tasks:
            names = sorted(task.name for task in tasks)
    except FileNotFoundError:
        return
    for name in names:
        match = TASK_ID.fullmatch(name)
        if match is None:
            continue
        try:
            with os.scandir(f"{application}/{name}/rocksdb") as stores:
                found = sorted((store.name, store.inode()) for store in stores)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for store, inode in found:
            yield Found(int(match[2]), store, int(match[1]), inode)


def _several(directory: StateDirectory, stores: list[Found]) -> list[Found]:
    """The stores; those that are there more than once with the time of their last write."""
    counts: dict[tuple[int, str], int] = {}
    for one in stores:
        counts[one.partition, one.store] = counts.get((one.partition, one.store), 0) + 1
    return [
        one
        if counts[one.partition, one.store] == 1
        else Found(one.partition, one.store, one.ordinal, one.inode, _written_ns(_path(directory, one)))
        for one in stores
    ]


def _written_ns(path: Path) -> int:
    """Of the directory and what is directly in it. Renaming does not change it."""
    times = [path.stat().st_mtime_ns]
    if path.is_dir():
        with os.scandir(path) as files:
            times += [file.stat(follow_symlinks=False).st_mtime_ns for file in files]
    return max(times)


def _path(directory: StateDirectory, one: Found) -> Path:
    return directory.application / one.task_id / "rocksdb" / one.store


def _entries(directory: StateDirectory, task_id: str) -> Mapping[TopicPartition, Checkpointed]:
    try:
        return checkpoint_file.read(directory.application / task_id / ".checkpoint")
    except StoreCorruptedError as error:
        _log.warning("%s: stores of that task that keep no offset are rebuilt", error)
        return {}


def _check_movable(directory: StateDirectory, plan: Plan) -> None:
    """Raise `StoreIOError` where a rename would not do."""
    devices: dict[Path, int] = {}

    def device(path: Path) -> int:
        """Of the directory, or the first above it that is there."""
        if path not in devices:
            devices[path] = path.stat().st_dev if path.exists() else device(path.parent)
        return devices[path]

    for move in plan.moves:
        source = directory.application / move.source / "rocksdb" / move.store
        target = directory.application / move.target / ("set-aside" if move.after is None else "rocksdb")
        try:
            there = source.lstat()
            if source.is_symlink() and not source.readlink().is_absolute():
                raise StoreIOError(
                    f"store {source} is a relative symbolic link, which would lead elsewhere from {target}. Nothing "
                    "was changed. Make it an absolute one"
                )
            if not there.st_dev == device(source.parent) == device(target):
                raise StoreIOError(_across(source, target, "Nothing was changed"))
        except OSError as error:
            raise StoreIOError(f"store {source} cannot be moved to {target}: {error}") from error


def _across(source: Path, target: Path, so_far: str) -> str:
    return (
        f"store {source} is on another file system than {target}, where it belongs now, and is not moved by copying. "
        f"{so_far}. With the application stopped, move it there by hand (mv), or move it out of the state directory, "
        "so that it is restored from its changelog; then start again"
    )


# -- moving --------------------------------------------------------------------------------------------------


def relocate(
    root: Path | str,
    application_id: str,
    topologies: Sequence[SubTopology],
    *,
    automatic: bool = True,
    lock_wait: float = 0.0,
    before: Callable[[Sequence[Move]], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Relocated:
    """Move the stores of an application to where they belong, before any of its tasks is opened on this host.

    `topologies` are all its sub-topologies. Any number of processes may call it at once; where nothing is to be done
    that costs a look into each task's directory. `lock_wait` is how many seconds it waits for the lock of each task.
    `before` is called before the first of the moves, and again when they are gone on with; what it raises is raised.
    `on_progress` is told how many of how many stores are in place.

    Raises `ConfigError` when something is to be moved and is not `automatic` (`automatic.state.relocation`),
    `StateLockedError` when a live process has one of the tasks, and `StoreIOError` when the operating system refuses,
    or stores would have to be copied. Then nothing was changed; or it was begun, and the next call goes on.
    """
    declared = Declared.of(application_id, topologies)
    directory = StateDirectory(root, application_id)
    if not directory.application.is_dir():
        return Relocated()
    try:
        with _alone(directory.application):
            return _Relocation(directory, declared, lock_wait, before, on_progress).run(automatic=automatic)
    except OSError as error:
        raise StoreIOError(f"the stores in {directory.application} cannot be moved: {error}") from error


def relocation_plan(root: Path | str, application_id: str, topologies: Sequence[SubTopology]) -> Relocated:
    """What `relocate` would say that it has moved. Changes nothing.

    The moves of a relocation that was begun and not finished come first: a start finishes them before it looks for
    more, though it may be to move a store back.
    """
    declared = Declared.of(application_id, topologies)
    directory = StateDirectory(root, application_id)
    layout = look(directory, declared)
    _check_movable(directory, plan(layout, declared))
    try:
        journal = _read(directory.application / RELOCATION)
    except StoreCorruptedError as error:
        _log.warning("%s: what is to be moved is looked for anew", error)
        journal = None
    begun = Plan() if journal is None or journal.plan is None else journal.plan
    noted = {
        note.ordinal: note.after for note in begun.notes if layout.notes.get(note.ordinal, "") == note.before
    }
    layout = replace(layout, stores=_after(layout.stores, begun.moves), notes={**layout.notes, **noted})
    found = plan(layout, declared)
    return Relocated(
        (*begun.moves, *found.moves),
        _left(layout, declared),
        doubtful(found, layout.notes, declared),
        journal is not None and journal.plan is not None,
    )


def _after(stores: Iterable[Found], moves: Iterable[Move]) -> list[Found]:
    """Where stores lie when what is left to do of the moves is done."""
    there = {(one.partition, one.store, one.ordinal): one for one in stores}
    for move in moves:
        source = move.partition, move.store, move.before
        found = there.get(source)
        if found is None:
            continue
        if move.after is None:
            if found.inode == move.inode:
                # What lies there in its place came later, and is looked at next.
                del there[source]
            continue
        target = move.partition, move.store, move.after
        if target not in there or there[target].inode != move.inode:
            del there[source]
            there[target] = replace(found, ordinal=move.after)
    return sorted(there.values(), key=attrgetter("task_id", "store"))


@contextmanager
def _alone(application: Path) -> Iterator[None]:
    """Nobody else on this host relocates."""
    lock = FileLock(application / f"{RELOCATION}.lock", timeout=WAIT_S, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise StateLockedError(
            f"another process has been moving the stores in {application} for {WAIT_S:g} s; wait until it has ended"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _left(layout: Layout, declared: Declared) -> tuple[str, ...]:
    return tuple(f"{one.task_id}/{one.store}" for one in layout.stores if one.store not in declared.ordinals)


class _Relocation:
    """One call of `relocate`, alone on this host."""

    def __init__(
        self,
        directory: StateDirectory,
        declared: Declared,
        lock_wait: float,
        before: Callable[[Sequence[Move]], None] | None,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._directory = directory
        self._lock_wait = lock_wait
        self._before = before
        self._application = directory.application
        self._journal = directory.application / RELOCATION
        self._declared = declared
        self._on_progress = on_progress
        self._renamed_in: dict[Path, None] = {}
        """Directories in which names came or went, in the order of their first change."""

    def run(self, *, automatic: bool) -> Relocated:
        begun = self._begun()
        moved: tuple[Move, ...] = ()
        if begun is not None and begun.plan is not None:
            if not automatic:
                raise ConfigError(
                    KEY,
                    False,
                    f"a move of stores between the tasks of {self._application.name} was begun and not finished "
                    f"({self._journal}). Start with true, or run crashproof relocate, to finish it",
                )
            self._tell(begun.plan)
            self._apply(begun)
            moved = begun.plan.moves
        elif begun is not None:
            # Whoever wrote it is gone, since this process is alone, and had moved nothing.
            self._remove_journal()
        layout = look(self._directory, self._declared)
        wanted = plan(layout, self._declared)
        suspicious = doubtful(wanted, layout.notes, self._declared)
        if wanted.moves and not automatic:
            raise ConfigError(KEY, False, self._refusal(wanted.moves))
        if wanted.moves or (wanted.notes and automatic):
            _check_movable(self._directory, wanted)
            moved += self._move()
        for store in suspicious:
            _log.warning(
                "store %s of %s has a generated name, and the sub-topology that references it now reads none of the "
                "topics that its former one did. If an operator was added or removed before it, it is another store's "
                "state, here and in the changelog: give stores names, and start over with a new application id",
                store,
                self._application.name,
            )
        for move in moved:
            _log.info("relocated in %s: %s", self._application, move)
        return Relocated(
            moved, _left(layout, self._declared), suspicious, begun is not None and begun.plan is not None
        )

    def _refusal(self, moves: Sequence[Move]) -> str:
        told = ", ".join(map(str, moves[:_TOLD]))
        more = f" and {len(moves) - _TOLD} more" if len(moves) > _TOLD else ""
        return (
            f"in {self._application} {len(moves)} stores lie under another ordinal than that of the sub-topology "
            f"which references them ({told}{more}), and nothing was changed. Have them moved by a start with true; or "
            "first by crashproof relocate and then by such a start, which fences the former tasks too; or give the "
            "sub-topologies the ordinals that they had; or move the state directory away, to have all stores restored "
            "from their changelogs"
        )

    def _move(self) -> tuple[Move, ...]:
        """Plan and apply, with no task of the application at work where something is moved."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self._write_journal(_Journal(_VERSION, stamp))
        try:
            free: set[str] = set()
            while True:
                wanted = plan(look(self._directory, self._declared), self._declared)
                tasks = {task_id for task_ids in wanted.tasks.values() for task_id in task_ids}
                if tasks <= free:
                    break
                # None of them is given from now on, so once each was free, all of them are.
                for task_id in sorted(tasks - free):
                    with self._directory.lock_to_relocate(task_id, wait=max(self._lock_wait, _PASSING_S)):
                        pass
                free |= tasks
            _check_movable(self._directory, wanted)
            self._tell(wanted)
            journal = _Journal(_VERSION, stamp, wanted)
            self._write_journal(journal)
        except BaseException as error:
            end_after(error, self._take_back, "the journal")
            raise
        self._apply(journal)
        return wanted.moves

    def _take_back(self) -> None:
        """Give the tasks of the application again, of which none was moved, unless the plan is written down already."""
        journal = _read(self._journal)
        if journal is not None and journal.plan is None:
            self._remove_journal()

    def _tell(self, wanted: Plan) -> None:
        if self._before is not None and wanted.moves:
            self._before(wanted.moves)

    def _apply(self, journal: _Journal) -> None:
        """Do what is not done yet of a plan."""
        wanted = journal.plan
        assert wanted is not None
        edits: dict[int, list[Edit]] = {}
        for edit in wanted.edits:
            edits.setdefault(edit.partition, []).append(edit)
        moves: dict[int, list[Move]] = {}
        for move in wanted.moves:
            moves.setdefault(move.partition, []).append(move)
        done = 0
        for partition, task_ids in wanted.tasks.items():
            with ExitStack() as locks:
                for task_id in task_ids:
                    locks.enter_context(self._directory.lock_to_relocate(task_id, wait=_LONG_PASSING_S))
                # An entry goes before its data does, and comes after it.
                for edit in edits.get(partition, ()):
                    self._edit(edit, add=False)
                for move in moves[partition]:
                    self._rename(move, journal.stamp)
                    done += 1
                    if self._on_progress is not None:
                        self._on_progress(done, len(wanted.moves))
                for edit in edits.get(partition, ()):
                    self._edit(edit, add=True)
        for path in self._renamed_in:
            sync_path(path)
        self._renamed_in.clear()
        for note in wanted.notes:
            self._directory.remember(note.ordinal, note.after, instead_of=note.before)
        self._remove_journal()

    def _edit(self, edit: Edit, *, add: bool) -> None:
        try:
            there: Mapping[TopicPartition, Checkpointed] | None = self._directory.read_checkpoint(
                edit.task_id
            )
        except StoreCorruptedError:
            there = None
        added = {
            TopicPartition(one.topic, one.partition): Checkpointed(
                one.offset, one.last_caught_up_ms, one.exact
            )
            for one in edit.add
        }
        kept = {tp: entry for tp, entry in (there or {}).items() if tp not in edit.remove and tp not in added}
        wanted = {**kept, **added} if add else kept
        if wanted != there:
            self._directory.write_checkpoint(edit.task_id, wanted)

    def _rename(self, move: Move, stamp: str) -> None:
        source = self._application / move.source / "rocksdb" / move.store
        if move.after is None:
            target = self._application / move.source / "set-aside" / stamp / move.store
        else:
            target = self._application / move.target / "rocksdb" / move.store
        if not os.path.lexists(source):
            self._note_names(source.parent, target.parent)
            return
        if os.path.lexists(target):
            if target.lstat().st_ino == move.inode:
                # It was moved. What is at the source now came later, and is looked at next.
                self._note_names(source.parent, target.parent)
                return
            if move.after is None:
                self._directory.set_aside(move.source, move.store)
                return
            aside = self._directory.set_aside(move.target, move.store)
            self._note_names(Path(aside).parent)
            _log.warning(
                "%s was in the way of the store that is moved there, and is kept in %s", target, aside
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.rename(target)
        except OSError as error:
            if error.errno == errno.EXDEV:
                so_far = "Stores before it were moved, and no task starts until the rest is"
                raise StoreIOError(_across(source, target, so_far)) from error
            raise
        self._note_names(source.parent, target.parent)

    def _note_names(self, *directories: Path) -> None:
        """Names came or went in these, and perhaps in those above."""
        for directory in directories:
            for path in (directory, *directory.parents):
                if path.exists():
                    self._renamed_in[path] = None
                if path == self._application:
                    break

    def _begun(self) -> _Journal | None:
        try:
            return _read(self._journal)
        except StoreCorruptedError as error:
            aside = self._journal.with_name(f"{RELOCATION}-damaged-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
            self._journal.rename(aside)
            sync_path(self._application)
            _log.warning("%s. It is kept as %s, and what is to be moved is looked for anew", error, aside)
            return None

    def _write_journal(self, journal: _Journal) -> None:
        new = self._journal.with_name(f"{RELOCATION}.new")
        new.write_bytes(msgspec.json.encode(journal))
        sync_path(new)
        new.replace(self._journal)
        sync_path(self._application)

    def _remove_journal(self) -> None:
        self._journal.unlink()
        sync_path(self._application)


def _read(path: Path) -> _Journal | None:
    """Raises `StoreCorruptedError`, and `StoreIOError` for the journal of a newer version."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version == _VERSION:
            return msgspec.json.decode(data, type=_Journal)
    except msgspec.MsgspecError as error:
        raise StoreCorruptedError(f"journal {path} cannot be read: {error}") from error
    raise StoreIOError(
        f"journal {path} has format {version}, and this version knows {_VERSION}: finish the relocation with the "
        "version that began it"
    )


class _Version(msgspec.Struct):
    version: int


def count(moves: Collection[Move]) -> tuple[int, int]:
    """How many stores were moved, and how many set aside."""
    aside = sum(move.after is None for move in moves)
    return len(moves) - aside, aside
