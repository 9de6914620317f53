"""Whether a store that was found is continued, rebuilt, waited with, or refused: every rule, for every kind of owner.

Task stores, standbys and global stores ask here and nowhere else. There are two questions. `origin` says which
offset can be believed when a store was opened, before the log is looked at; `decide` says what that offset means
once the log's bounds are known. Both are functions of what is known alone, and answer with a sentence.

How a store keeps its offset (`OffsetKeeping`) decides what a crash leaves, and so what can be believed:

| keeping | where the offset is | written when |
|---|---|---|
| OWN | in the store | with the data, in one write |
| CHECKPOINTED | in the task's checkpoint file | after each commit of the store, which is transactional |
| DIRECT | in the task's checkpoint file | at a clean close; at least once also after each commit, as inexact |
| VOLATILE | nowhere: the data does not outlive the process | |

What a task, a standby or a global store finds after each crash, and why going on from there is right:

* *Killed before Kafka has the commit.* OWN and CHECKPOINTED are at the previous commit: their writes were in the
  transaction's buffer. The changelog has no more than that, since the records of the open transaction are aborted:
  CONTINUE with nothing to replay. DIRECT has the aborted writes, and under exactly once no entry: REBUILD.
* *Killed after Kafka has it, before the store.* OWN and CHECKPOINTED are one commit behind: CONTINUE, which
  replays that commit. DIRECT as above.
* *Killed after the store's commit, before the checkpoint.* OWN is whole. The entry of CHECKPOINTED is behind its
  data: replaying applies records again that it has, in order, to the same end.
* *Power lost.* What was not synced is gone as a suffix of whole commits, with the offsets in them. An entry is
  written after the data that it speaks for was synced: CONTINUE from an older offset.
* *Killed while restoring.* Whole batches are there, each with its offset, or with an older entry: CONTINUE.
* *Killed while a store was set aside.* Its entry goes first: data without an offset, REBUILD; or nothing at all,
  restored from the start.
* *Away for long.* Retention may have cut the log behind the store's offset (REBUILD), or have taken nothing that the
  store lacked (CONTINUE): all of the log but a marker, or what was of no commit, by what the last commit has noted. Or
  compaction may have removed deletions that the store never saw, which shows in no offset; that is judged by time, see
  below.
* *The log was deleted, made anew or truncated.* It is another topic by its id, which the store notes with its first
  rows, or it ends before the store. Of a changelog, the store is the only whole copy that is left: REFUSE, nothing is
  changed; but REBUILD where the group's last commit vouches for the topic that there is, since the store was forgotten
  when somebody started over. A global store is only a copy of its topic: REBUILD.
* *A leader was elected without the last records*, and others are at their offsets by now. No bound tells; a reader that
  has read on for as long as the leader before was there is told (`LogTruncatedError`). What was read is no prefix of
  the log any more, and going on would leave out what lies between: global stores and standbys REBUILD. The copy of a
  changelog is kept aside, which may have what nothing else has. A store that was closed meanwhile has no reader to be
  told: it goes on by its offset.
* *Its changelog was disabled, and is enabled again.* The store is the only copy of what was written meanwhile, and the
  changelog knows nothing of it: REFUSE, nothing is changed.
* *Bytes were damaged* (`StoreCorruptedError` at open, while restoring, or at a later read). Nothing in the store can
  be believed: REBUILD. A store without a changelog is the only copy: the error is raised, nothing is changed.

A deletion stays in a compacted log for `delete.retention.ms` after the pass that removed the value before it. A
store that was up to date less than half of that ago has missed none: the other half is for restores that take long
and writers that were stopped in the middle of a commit. Within a second nothing is missed, however short that is:
who follows a topic with a small one would make the store anew all the time. Changelogs that we create keep deletions
for 30 days, so a store is rebuilt for its age after 15 days of absence, and not in ordinary life.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from store.engine.protocol import Checkpointed
from store.errors import ChangelogLostError, StoreError
from store.log.protocol import Offsets
from store.types import TopicPartition


class StoreOutOfStepError(StoreError):
    """The changelog does not, or may not, hold all that the store lacks: it cannot be continued."""


class OffsetKeeping(Enum):
    """Where the offset of a store is kept, see the table above."""

    OWN = "own"
    CHECKPOINTED = "checkpointed"
    DIRECT = "direct"
    VOLATILE = "volatile"


class Origin(Enum):
    """Where an offset comes from that can be believed."""

    STORE = "store"
    """The store itself: an entry in the checkpoint is older, and goes."""
    ENTRY = "entry"
    INHERITED = "inherited"
    """The store gave up the offset that it kept while it had transactions; an entry would be older still."""
    NONE = "none"
    """None can be. The store is restored from the start if it is empty, else rebuilt."""


def origin(
    keeping: OffsetKeeping,
    *,
    own: bool,
    inherited: bool = False,
    entry: Checkpointed | None,
    empty: Callable[[], bool],
    exactly_once: bool,
    recovers: Callable[[int], bool] = lambda _: True,
) -> tuple[Origin, str]:
    """Which offset of a store just opened can be believed, and why it is that one.

    `own`: whether the store has an offset of its own. `inherited`: whether it has given one up. `entry` is what the
    checkpoint says. `exactly_once`: whether the store may hold nothing that its log does not hold. `recovers`: whether
    a store that is CHECKPOINTED can get back to that offset.
    """
    if keeping is OffsetKeeping.VOLATILE:
        return Origin.NONE, "what it holds does not outlive the process"
    if own:
        return Origin.STORE, "it was written with the data"
    if inherited:
        return Origin.INHERITED, "the store kept it itself while it had transactions"
    if entry is None:
        return Origin.NONE, "the checkpoint has no entry of it"
    if empty():
        return Origin.NONE, "the store is empty, so the entry in the checkpoint speaks of another one"
    if not entry.exact and (exactly_once or keeping is OffsetKeeping.OWN):
        return Origin.NONE, (
            "the entry in the checkpoint is that of a store which may hold writes that never reached the changelog"
        )
    if keeping is OffsetKeeping.CHECKPOINTED and not recovers(entry.offset):
        return Origin.NONE, f"it cannot get back to offset {entry.offset}, which it had committed"
    return Origin.ENTRY, "the checkpoint is never ahead of the data"


class Action(Enum):
    """What is done with a store."""

    CONTINUE = "continue"
    """Replay from `Decision.start` on. That may be nothing."""
    WAIT = "wait"
    """The store has a commit that the log does not show yet: there is nothing to replay, and nothing to judge."""
    REBUILD = "rebuild"
    """Rename it out of the way, for a person to look at, and replay all that the log has."""
    REFUSE = "refuse"
    """Change nothing and raise."""


@dataclass(frozen=True)
class Decision:
    """What is done with a store, from which offset on, and the reason as a sentence about the store."""

    action: Action
    start: int
    reason: str

    def first_offset(self) -> int:
        """Where to replay from. Raises `StoreOutOfStepError` for REBUILD, `ChangelogLostError` for REFUSE."""
        if self.action is Action.REBUILD:
            raise StoreOutOfStepError(self.reason)
        if self.action is Action.REFUSE:
            raise ChangelogLostError(self.reason)
        return self.start


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a store and of one partition that it follows. What costs to find out is a function."""

    store: str
    partition: TopicPartition
    changelog: bool = True
    """Whether the partition is the store's changelog; if not, it is one of the topic of a global store."""
    made_anew: bool = False
    """Whether the store's rows are known to come from another topic of that name."""
    without_changelog: bool = False
    """Whether the store may have rows, or lack some, by writes of a time when it had no changelog."""
    vouched: bool = False
    """Whether the group's last commit is known to have written to the topic that there is now."""
    held: Checkpointed | None
    """The offset that can be believed; None if there is none, or the store holds nothing of the partition."""
    strange: Callable[[], bool] = lambda: False
    """Whether the store holds data though it has no offset that can be believed."""
    why_strange: str = ""
    read_to: int = 0
    """Every offset before was read in this life of the store, markers and gaps included."""
    stable: Offsets
    """The bounds of what is committed."""
    end: Callable[[], int]
    """Where the log ends, undecided transactions included."""
    now_ms: int
    tombstone_retention_ms: Callable[[], int | None]
    """How long the log keeps deletions, None if it is never compacted."""
    exactly_once: bool = False
    """Whether the log is written by transactions alone, so that its last offset is a marker."""
    last_logged: Callable[[], int | None] = lambda: None
    """The offset of the last record of the log at the last commit, asked after its bounds; None if nobody knows."""


CLEANED_TWICE_MS = 1_000
"""However short a log keeps deletions, within that none is gone: a value and then its deletion are taken by two passes
of the cleaner, between which it rolls a segment, and rests for `log.cleaner.backoff.ms` (15 s)."""


def decide(known: Known) -> Decision:
    """What is done with a store. The order of the rules matters."""
    held, stable, tp = known.held, known.stable, known.partition
    if known.without_changelog and (held is not None or known.strange()):
        return Decision(
            Action.REFUSE,
            0,
            f"store {known.store} was written to while its changelog was disabled, so that {tp} lacks what it holds. "
            "Nothing was changed. Disable it again, or, to go on with what the changelog has, or from nothing where "
            "that is empty, move the directory of the store away",
        )
    if known.made_anew:
        what = f"it holds what another topic had of the name {tp.topic}, which was deleted since"
        if known.vouched or not known.changelog:
            return Decision(Action.REBUILD, 0, what)
        return _refused(f"store {known.store}: {what}")
    if held is None:
        if known.strange():
            why = f" ({known.why_strange})" if known.why_strange else ""
            return Decision(Action.REBUILD, 0, f"it holds data but no offset of {tp}{why}")
        # What was read may be gone since, if it was nothing but markers and aborted records.
        start = stable.earliest if known.read_to > stable.end else max(stable.earliest, known.read_to)
        return Decision(Action.CONTINUE, start, f"it holds nothing of {tp}")
    start = max(held.offset + 1, known.read_to)
    if start > stable.end:
        end = known.end()
        if start <= end:
            return Decision(
                Action.WAIT, start, f"its last commit in {tp} is acknowledged and not visible yet"
            )
        if not known.changelog:
            return Decision(
                Action.REBUILD,
                0,
                f"it has {tp} up to offset {held.offset}, and that ends at {end}: it was made anew, or truncated",
            )
        return _refused(
            f"store {known.store} holds {tp} up to offset {held.offset}, but that changelog ends at {end}: it was "
            "deleted and made anew, or truncated"
        )
    at = f"it is at offset {held.offset}"
    if known.exactly_once and stable.earliest == stable.end and at_end(start, stable):
        return Decision(Action.CONTINUE, stable.end, f"{at}, and had all of {tp} before that expired")
    if start < stable.earliest:
        last = known.last_logged() if known.exactly_once else None
        if last is not None and held.offset >= last:
            return Decision(
                Action.CONTINUE,
                stable.earliest,
                f"{at}, and had all of {tp} that was committed: the records that are gone were of no commit",
            )
        return Decision(
            Action.REBUILD, 0, f"{at}, and {tp} now starts at {stable.earliest}: the records between are gone"
        )
    if at_end(start, stable):
        return Decision(Action.CONTINUE, start, f"{at}, where {tp} ends")
    lag = f"{at} of {tp}, which ends at {stable.end}"
    retention = known.tombstone_retention_ms()
    if retention is None:
        return Decision(Action.CONTINUE, start, f"{lag} and is not compacted")
    if held.last_caught_up_ms is None:
        return Decision(
            Action.REBUILD,
            0,
            f"{lag}, and does not say since when: deletions between may have been compacted away",
        )
    # A time ahead of the clock says as little as none, except for the small steps of a clock being set.
    age_ms = known.now_ms - held.last_caught_up_ms
    if missed_deletions(age_ms, retention):
        return Decision(
            Action.REBUILD,
            0,
            f"{lag}, and was last up to date {age_ms / 1000:.0f} s ago: after {retention / 2000:g} s, half of "
            f"its delete.retention.ms, deletions between may have been compacted away",
        )
    return Decision(Action.CONTINUE, start, f"{lag}, and no deletion between can be gone yet")


def _refused(why: str) -> Decision:
    return Decision(
        Action.REFUSE,
        0,
        f"{why}. Nothing was changed. Bring the topic back as it was; or, to start over, move the state directory "
        "away, delete the changelog topics and reset the group's offsets",
    )


def decide_missing(partition: TopicPartition, partitions: int) -> Decision:
    """What is done with a global store that holds records of a partition which its topic no longer has."""
    return Decision(
        Action.REBUILD,
        0,
        f"it has records of {partition}, and the topic has {partitions} partitions: it was made anew",
    )


def decide_parted(partition: TopicPartition, said: str) -> Decision:
    """What is done with a store that follows a log which is not the one that it has read up to its place."""
    return Decision(
        Action.REBUILD,
        0,
        f"what it has of {partition} is not what that has by now, under another leader: {said}",
    )


def missed_deletions(time_ms: int, tombstone_retention_ms: int) -> bool:
    """Whether a deletion may be gone from a log that keeps them for so long, and was not read for `time_ms`."""
    return abs(time_ms) >= CLEANED_TWICE_MS and abs(time_ms) > tombstone_retention_ms // 2


def at_end(start: int, stable: Offsets) -> bool:
    """Whether nothing can follow but one offset: a marker, or the last record, which is never compacted away."""
    return stable.end - start <= 1
