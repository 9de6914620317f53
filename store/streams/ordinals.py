"""Ordinals that changed: what the positions of a group say of them, and how the tasks of the former ones are fenced.

Beside each position that a task commits it notes its ordinal. A sub-topology that has another one since has other
transactional ids, so `init_transactions` would not fence its own older incarnations. With
`automatic.state.relocation` the start of a task whose inputs name a former ordinal therefore

1. fences that too: a producer with the id `application-<former>_<partition>` initialises its transactions, which
   settles what the old incarnation left, its records in the changelogs included, and is closed;
2. commits the positions as they are, noted with the present ordinal, by its own producer.

Why that is right. After 1 no zombie of the former ordinal can commit: its producer is of an older epoch for ever. Only
then is anything read that is gone on from, as after fencing one's own id. 2 moves no position, so it may be repeated,
and a crash before it repeats 1. It comes after 1, so whoever finds the present ordinal finds the former one fenced.

What is pending is not waited for by who looks first (`take_over`): after a SIGKILL that would take as long as
`transaction.timeout.ms`, for every transaction that was open. That is right. A note that the last commit has left names
a former ordinal, or it does not. If it does, fencing that one settles what it had open, and the notes are read again,
by then settled. If it does not, what is open may be of the present ordinal, which the task itself settles as it is
opened; or of a former one that has committed nothing since: the task looks again once it has fenced its own id, waits
for what is pending then, up to its timeout, and takes over.

The former ordinal may be another sub-topology's now. One that is open already is fenced with the zombies, once, for
then the note is there. So `take_over` does this for all tasks, one by one, before any is opened. Where it could not,
since another process of the new version was faster:

* A task that has itself taken over at its start knows that others do the same. When it is refused, and nobody has
  committed in its place, it ends with `FatalLogError`, and a new incarnation goes on: what is noted is its own ordinal
  now, so it fences nobody else, and nobody fences it again for the sake of a former ordinal.
* A task of a new sub-topology does not know. It is given up as one that a newer incarnation has (`TaskLostError`, in
  words and by partition), and starts a new incarnation when whoever gives out tasks starts it again. What it had
  committed stays, and nothing else counts.

The times that operators have observed, which say what is late and which windows were forwarded, go with their stores.
Where a store was another sub-topology's, or of an input that has another name by now, they are noted beside the
positions in those inputs that the store has and its task has not; there they are looked for. And a task notes on the
times of operators that it had before, so that its own commits do not take them from whoever has the store next. The
latest counts, wherever it is noted. Punctuators of the stream time begin anew in a sub-topology whose inputs are all
new to it: what is noted of them is of all processors of a task, and goes on with those that stay.

Beside its ordinal and its times a task notes which topics its inputs and changelogs are, by what tells them from others
of their names (`store.log.Admin.topic_ids`). A position in an input that was deleted and made anew is of other records,
and a changelog that was lacks what its store had; a task finds that before it reads, see `store.streams.task`.
Of many topics that does not fit one by one, and is noted of some all together: that one of them is another is known
then, and not which one.

When it committed is noted as well. A broker forgets positions that were not committed for long, and tells nobody how
old they are; who opens a task of a process that is started often finds it there (`store.streams.worker`).

Not seen is a zombie of a former ordinal that has never committed, as nothing is noted then; one that writes to a store
which another sub-topology has now, where no host had it on disk; nor, under at least once, any: nobody is fenced there.
"""

from __future__ import annotations

import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeVar

from store import varint
from store.clock import Clock
from store.config import StreamsConfig
from store.errors import FencedError, RetriableError
from store.log import GroupReader, Log, Producer
from store.recovery.relocation import Move, Relocated, relocate
from store.streams.topology import Topology
from store.types import TopicPartition

_log = logging.getLogger(__name__)
_LONGEST = 1_000
"""Characters in which all is said in plain words. A broker takes 4096 (`offset.metadata.max.bytes`), or fewer."""
_MOST_PACKED = 2_300
"""Bytes that are packed at the most, a third more as characters."""
_PACKED = "-packed.-"
_INPUTS = "-inputs.-"
_MOST_TOPICS = 40
"""Of further ones it is noted all together which topics they are, see `together`."""
_LOGGED = "-logged.-"
_COMMITTED = "-committed.-"
_MOST_LOGGED = 16
"""Of further changelogs it is not noted how far they go."""
_DIGEST = 5
_PACKED_NAME = re.compile(rf"{re.escape(_PACKED)}[0-9a-f]{{{2 * _DIGEST}}}")
_NOTED = re.compile(r"sub-topology ([0-9]+)(?![0-9])")
_TIMES = re.compile(r"sub-topology [0-9]+, stream time ([0-9]+)((?:, [A-Za-z0-9._-]+ at [0-9]+)*)")
_OBSERVED = re.compile(r", ([A-Za-z0-9._-]+) at ([0-9]+)")
_NOTED_INPUTS = re.compile(rf"{_NOTED.pattern}.*?, {re.escape(_INPUTS)}([A-Za-z0-9_-]+) at 0")
_NOTED_LOGGED = re.compile(rf"{_NOTED.pattern}.*?, {re.escape(_LOGGED)}([A-Za-z0-9_-]+) at 0")
_NOTED_TIME = re.compile(rf"{_NOTED.pattern}.*?, {re.escape(_COMMITTED)} at ([0-9]+)")
_PAUSE_S = 0.05
TRIES = 3
"""How often a task takes over when somebody takes it in the midst of that."""

LONG_WAIT_S = 3.0
"""After how long somebody who waits for the cluster says for what."""

T = TypeVar("T")


def say_that_it_waits(who: str, error: RetriableError, limit_ms: int) -> None:
    """Warn that `error` is waited out, and until when at most."""
    _log.warning(
        "%s has waited for %g s, and goes on waiting for up to task.timeout.ms (%g s): %s. A transaction that a dead "
        "process has left open ends by its own transaction.timeout.ms, if nothing ends it before",
        who,
        LONG_WAIT_S,
        limit_ms / 1000,
        error,
    )


class Retry(Protocol):
    """Repeats a call while it says that nothing changed."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


def note(
    ordinal: int,
    stream_time: int = -1,
    observed: Mapping[str, int] = MappingProxyType({}),
    topics: str = "",
    logged: str = "",
    time: str = "",
) -> str:
    """What is noted beside the positions that a task of this ordinal commits. For `topics` see `note_of_topics`, for
    `logged` `note_of_changelogs`, for `time` `note_of_time`.

    Its stream time too, if it has one, and then the largest time that each operator has observed: in plain words, or
    packed where those are too long or a name has other characters. Older versions read what is packed as the time of
    an operator that they do not have. What does not fit even so, beyond some 300 operators whose times all differ, is
    left out: those that are furthest behind. They begin anew after a restart, as in Kafka Streams.
    """
    if stream_time < 0:
        return f"sub-topology {ordinal}{topics}{logged}{time}"
    begin = f"sub-topology {ordinal}, stream time {stream_time}{topics}{logged}{time}"
    plain = begin + "".join([f", {operator} at {observed[operator]}" for operator in observed])
    ours = [*map(plain.count, (_INPUTS, _LOGGED, _COMMITTED))] == [*map(bool, (topics, logged, time))]
    ours = ours and _PACKED not in plain
    if not observed or (len(plain) <= _LONGEST and _TIMES.fullmatch(plain) and ours):
        return plain
    return f"{begin}, {_PACKED}{_pack(observed)} at 0"


def _pack(observed: Mapping[str, int]) -> str:
    """From the largest time to the smallest: the difference to the one before, 7 bits a byte, and the operator."""
    packed = bytearray()
    before = 0
    for time, digest in sorted(((time, _digest_of(name)) for name, time in observed.items()), reverse=True):
        entry = varint.encode(abs(time - before))
        if len(packed) + len(entry) + _DIGEST > _MOST_PACKED:
            break
        packed += entry + digest
        before = time
    return _text_of(packed)


def _unpack(text: str) -> dict[str, int]:
    packed = _bytes_of(text)
    found: dict[str, int] = {}
    at = time = 0
    while at < len(packed):
        left, at = varint.decode(packed, at)
        time = time - left if found else left
        found[_PACKED + packed[at : at + _DIGEST].hex()] = time
        at += _DIGEST
    return found


def _text_of(packed: bytes | bytearray) -> str:
    return urlsafe_b64encode(packed).decode().rstrip("=")


def _bytes_of(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


@lru_cache(maxsize=4096)
def _digest(operator: str) -> bytes:
    return sha256(operator.encode()).digest()[:_DIGEST]


def _digest_of(operator: str) -> bytes:
    """The same, also of one of which nothing else is known: what was packed is packed again."""
    known = _PACKED_NAME.fullmatch(operator) is not None
    return bytes.fromhex(operator[len(_PACKED) :]) if known else _digest(operator)


def in_order(inputs: Iterable[TopicPartition], changelogs: Iterable[str]) -> list[str]:
    """The topics of a task in the order in which they are noted, which tells those that are noted `together`."""
    return sorted(tp.topic for tp in inputs) + sorted(changelogs)


def note_of_topics(ids: Mapping[str, str], changelogs: Collection[str] = ()) -> str:
    """What a note says of which topics inputs and changelogs are, of their ids: digests of the name and the id of each,
    of the first forty, and of all names and all ids of those that are noted `together`. Older versions read it as the
    time of an operator that they do not have, and those that know it for fewer topics pass over the others."""
    entries = [_digest(topic) + _digest(one) for topic, one in [*ids.items()][:_MOST_TOPICS]]
    entries += [b"".join(_digests(topics, ids)) for topics in together(ids, changelogs)]
    return f", {_INPUTS}{_text_of(b''.join(entries))} at 0" if entries else ""


def together(ids: Mapping[str, str], changelogs: Collection[str] = ()) -> list[tuple[str, ...]]:
    """The topics beyond the first forty, those of inputs and the `changelogs` apart: more than that do not fit one by
    one. Their names are part of the note, so that one with other names says nothing, as where a store was added."""
    beyond = [*ids][_MOST_TOPICS:]
    apart = (
        tuple([topic for topic in beyond if topic not in changelogs]),
        tuple([topic for topic in beyond if topic in changelogs]),
    )
    return [topics for topics in apart if topics]


def _digests(topics: Sequence[str], ids: Mapping[str, str]) -> tuple[bytes, bytes]:
    # No topic has a slash in its name: what is noted of several is never taken for what is noted of one.
    return _digest("/".join(topics)), _digest("/".join([ids[topic] for topic in topics]))


def made_anew(metadata: str, ids: Mapping[str, str], changelogs: Collection[str] = ()) -> set[str]:
    """Those of the topics, which have these ids now, that are noted with others. Not those of which nothing is noted,
    as in what older versions have left. All of those that are noted `together` where at least one is another."""
    known = _noted_topics(metadata)
    found = {topic for topic, one in ids.items() if known.get(_digest(topic), _digest(one)) != _digest(one)}
    for topics in together(ids, changelogs):
        names, of_all = _digests(topics, ids)
        if known.get(names, of_all) != of_all:
            found.update(topics)
    return found


def noted_as_they_are(metadata: str, ids: Mapping[str, str], changelogs: Collection[str] = ()) -> set[str]:
    """Those of the topics, which have these ids now, that are noted with just those."""
    known = _noted_topics(metadata)
    found = {topic for topic, one in ids.items() if known.get(_digest(topic)) == _digest(one)}
    for topics in together(ids, changelogs):
        names, of_all = _digests(topics, ids)
        if known.get(names) == of_all:
            found.update(topics)
    return found


def notes_topics(metadata: str) -> bool:
    """Whether it is noted at all which topics there were; not by a person who has set a position."""
    return bool(_noted_topics(metadata))


def named(topics: Collection[str], ids: Mapping[str, str], changelogs: Collection[str] = ()) -> str:
    """What an error calls what `made_anew` has found: of topics that are noted `together` it is not known which."""
    left, said = set(topics), []
    for ones in together(ids, changelogs):
        if len(ones) > 1 and left.issuperset(ones):
            left.difference_update(ones)
            said.append(f"at least one of these {len(ones)}: {', '.join(ones)}")
    return "; ".join([*([", ".join(sorted(left))] if left else []), *said])


def _noted_topics(metadata: str) -> dict[bytes, bytes]:
    match = _NOTED_INPUTS.match(metadata)
    packed = b"" if match is None else _bytes_of(match[2])
    entries = [packed[at : at + 2 * _DIGEST] for at in range(0, len(packed), 2 * _DIGEST)]
    return {entry[:_DIGEST]: entry[_DIGEST:] for entry in entries}


def note_of_changelogs(ends: Mapping[str, int]) -> str:
    """What a note says of how far the changelogs of stores go with that commit: the digest of a store's name, and the
    offset of the last record of its changelog. Older versions read it as they do `note_of_topics`."""
    packed = b"".join([_digest(store) + varint.encode(ends[store]) for store in sorted(ends)[:_MOST_LOGGED]])
    return f", {_LOGGED}{_text_of(packed)} at 0" if packed else ""


def last_logged(metadata: str, store: str) -> int | None:
    """The offset of the last record that the changelog of a store had at that commit; None where that is not noted."""
    match = _NOTED_LOGGED.match(metadata)
    packed = b"" if match is None else _bytes_of(match[2])
    found: dict[bytes, int] = {}
    at = 0
    while at < len(packed):
        name = packed[at : at + _DIGEST]
        found[name], at = varint.decode(packed, at + _DIGEST)
    return found.get(_digest(store))


def last_logged_of(notes: Iterable[str], store: str) -> int | None:
    """That of the last one of these notes, which are beside the positions in several inputs."""
    found = [last_logged(note, store) for note in notes]
    return max((last for last in found if last is not None), default=None)


def note_of_time(ms: int) -> str:
    """What a note says of when it was made, by the clock of who commits. Older versions read it as they do
    `note_of_topics`."""
    return f", {_COMMITTED} at {ms}"


def committed_at(metadata: str) -> int | None:
    """When a position with this beside it was committed; None where that is not noted."""
    match = _NOTED_TIME.match(metadata)
    return None if match is None else int(match[2])


def is_old(metadata: str, now_ms: int, seconds: float) -> bool:
    """Whether a position with this beside it was committed so long ago, by a clock that may have been wrong, or nobody
    knows when: versions before, and persons, do not note it."""
    at = committed_at(metadata)
    return at is None or abs(now_ms - at) >= seconds * 1000


def observed_by(operator: str, times: Mapping[str, int]) -> int:
    """The largest time that an operator had observed, of what `observed_times` has found; -1 for none."""
    return max(times.get(operator, -1), times.get(_PACKED + _digest(operator).hex(), -1))


def of_others(times: Mapping[str, int], operators: Collection[str]) -> dict[str, int]:
    """What `observed_times` has found of other operators than these."""
    known = {*operators, *[_PACKED + _digest(operator).hex() for operator in operators]}
    return {operator: time for operator, time in times.items() if operator not in known}


def noted(metadata: str) -> int | None:
    """The ordinal of whoever committed a position with this beside it; None if that does not say."""
    match = _NOTED.match(metadata)
    return None if match is None else int(match[1])


def stream_time(metadata: str) -> int:
    """The stream time that whoever committed a position had come to; -1 if that is not said."""
    match = _TIMES.fullmatch(metadata)
    return -1 if match is None else int(match[1])


def observed_times(metadata: str) -> dict[str, int]:
    """Operator → the largest time that it had observed at that commit; to be asked by `observed_by`."""
    match = _TIMES.fullmatch(metadata)
    times: dict[str, int] = {}
    for name, time in [] if match is None else _OBSERVED.findall(match[2]):
        if name.startswith((_INPUTS, _LOGGED, _COMMITTED)):
            continue
        times |= _unpack(name[len(_PACKED) :]) if name.startswith(_PACKED) else {name: int(time)}
    return times


def noted_beside(
    reader: GroupReader, group: str, inputs: Iterable[TopicPartition], retry: Retry, *, stable: bool = True
) -> dict[TopicPartition, str]:
    """What is noted beside the group's position in each input of a task; of the last commit, unless `stable`."""
    return {
        tp: retry(lambda tp=tp: reader.committed_metadata(group, tp, stable=stable))  # type: ignore[misc]
        for tp in inputs
    }


def former_ordinals(said: Mapping[TopicPartition, str], ordinal: int) -> dict[TopicPartition, str]:
    """Those of the notes that another ordinal has left."""
    return {tp: text for tp, text in said.items() if noted(text) not in (None, ordinal)}


def fence_former(
    log: Log,
    producer: Producer,
    reader: GroupReader,
    topology: Topology,
    partition: int,
    found: Mapping[TopicPartition, str],
    config: StreamsConfig,
    retry: Retry,
) -> None:
    """Fence the tasks of the ordinals that `former_ordinals` has found, and note the present one instead.

    What is noted is read again after that: they may have committed until then, and another one before them. `producer`
    is the task's own, initialised and without a transaction. Raises `FencedError` when somebody has taken the task
    meanwhile, and whatever a commit raises.
    """
    group = topology.application_id
    fenced: set[int | None] = {None}
    while left := {noted(said) for said in found.values()} - fenced:
        for ordinal in sorted(left, key=int):  # type: ignore[arg-type]
            _fence(log, f"{group}-{ordinal}_{partition}", config, retry)
            _log.info(
                "task %s: its sub-topology had the ordinal %s before, whose task is fenced",
                topology.task_id(partition),
                ordinal,
            )
        fenced |= left
        found = former_ordinals(noted_beside(reader, group, found, retry), topology.ordinal)
    positions: dict[str, dict[TopicPartition, int]] = {}
    for tp, said in found.items():
        position = retry(lambda tp=tp: reader.committed(group, tp))  # type: ignore[misc]
        if position is not None:
            positions.setdefault(_NOTED.sub(note(topology.ordinal), said, count=1), {})[tp] = position
    if positions:
        producer.begin_transaction()
        for said, offsets in positions.items():
            retry(lambda said=said, offsets=offsets: producer.send_offsets(group, offsets, said))  # type: ignore[misc]
        retry(producer.commit_transaction)


def prepare(
    root: Path | str,
    topologies: Sequence[Topology],
    log: Log,
    config: StreamsConfig,
    clock: Clock,
    *,
    lock_wait: float = 0.0,
) -> Relocated:
    """What a runner does at its start, before it opens any task: move the stores, and fence the former ordinals.

    `topologies` are all sub-topologies of one application. Any number of processes and hosts may do it at once. Raises
    what `store.recovery.relocation.relocate` and `take_over` raise.
    """
    application_id = topologies[0].application_id

    def fence(moves: Sequence[Move]) -> None:
        if config.exactly_once:
            _fence_sources(log, application_id, moves, config, retrying(clock, config.task_timeout_ms))

    relocated = relocate(
        root,
        application_id,
        topologies,
        automatic=config.automatic_state_relocation,
        lock_wait=lock_wait,
        before=fence,
    )
    take_over(log, topologies, config, clock)
    return relocated


def _fence_sources(
    log: Log, application_id: str, moves: Sequence[Move], config: StreamsConfig, retry: Retry
) -> None:
    for task_id in sorted({move.source for move in moves if move.after is not None}):
        _fence(log, f"{application_id}-{task_id}", config, retry)


def _fence(log: Log, transactional_id: str, config: StreamsConfig, retry: Retry) -> None:
    with closing(log.producer(transactional_id, config.transaction_timeout_ms)) as former:
        retry(former.init_transactions)


def take_over(
    log: Log, topologies: Sequence[Topology], config: StreamsConfig, clock: Clock
) -> dict[str, tuple[int, ...]]:
    """Fence the former ordinals of all tasks of an application, before any of them is opened.

    Asks once for the position in each partition of each source. Returns the tasks that had other ordinals, with
    these. Does nothing when it is switched off, or under at least once. Raises what the log raises; call it again then.
    """
    if not config.exactly_once or not config.automatic_state_relocation:
        return {}
    retry = retrying(clock, config.task_timeout_ms)
    done: dict[str, tuple[int, ...]] = {}
    with closing(log.reader()) as reader:
        for topology in topologies:
            counts = {
                source: retry(lambda source=source: reader.partitions(source))  # type: ignore[misc]
                for source in topology.sources
            }
            for partition in range(max(counts.values())):
                inputs = [
                    TopicPartition(source, partition) for source, count in counts.items() if count > partition
                ]
                found = _take_over(log, reader, topology, partition, inputs, config, clock, retry)
                if found:
                    done[topology.task_id(partition)] = tuple(
                        sorted({noted(said) or 0 for said in found.values()})
                    )
    return done


def _take_over(
    log: Log,
    reader: GroupReader,
    topology: Topology,
    partition: int,
    inputs: Sequence[TopicPartition],
    config: StreamsConfig,
    clock: Clock,
    retry: Retry,
) -> Mapping[TopicPartition, str]:
    for left in reversed(range(TRIES)):
        found = former_ordinals(
            noted_beside(reader, topology.application_id, inputs, retry, stable=False), topology.ordinal
        )
        if not found:
            return {}
        try:
            own = log.producer(topology.transactional_id(partition), config.transaction_timeout_ms)
            with closing(own) as producer:
                retry(producer.init_transactions)
                fence_former(log, producer, reader, topology, partition, found, config, retry)
            return found
        except FencedError:
            # Another process does the same, and may have done it by now.
            if not left:
                raise
            clock.sleep(_PAUSE_S)
    return {}


def retrying(clock: Clock, limit_ms: int) -> Retry:
    """What repeats a call of a start while it says that nothing changed, for so long, and says why it waits."""

    def retry(call: Callable[[], T], /) -> T:
        began = clock.monotonic()
        said = False
        while True:
            try:
                return call()
            except RetriableError as error:
                waited = clock.monotonic() - began
                if waited >= limit_ms / 1000:
                    raise
                if waited >= LONG_WAIT_S and not said:
                    said = True
                    say_that_it_waits("the start", error, limit_ms)
                clock.sleep(_PAUSE_S)

    return retry
