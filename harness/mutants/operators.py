"""Mutants of the DSL's operators on streams: joins of streams, windows and sessions, groups, and punctuators."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_OPERATORS = "store.streams.dsl.operators"
_SIDE = "store.streams.dsl.joins:JoinSide.bind"
_WAITING = "store.streams.dsl.joins:Waiting"
_SESSIONS = "store.streams.dsl.windowed:SessionAggregate.bind"
_SLIDING = "store.streams.dsl.windowed:SlidingWindowAggregate.bind"

MUTANTS = (
    Mutant(
        "both-sides-of-an-outer-join-wait-alike",
        OWN,
        "What waits on the right side of an uneven outer join does so as long as what waits on the left.",
        (Edit(f"{_WAITING}.__init__", "False: windows.before_ms", "False: windows.after_ms"),),
    ),
    Mutant(
        "both-sides-of-a-join-look-the-same-way",
        OWN,
        "The right side of an uneven join looks for partners as far before and after itself as the left one.",
        (Edit(_SIDE, "before, after = after, before", "pass"),),
    ),
    Mutant(
        "a-partner-ends-the-waiting-of-its-own-side",
        OWN,
        "A record that has found a partner ends the waiting of what is of its own side.",
        (Edit(_SIDE, "waiting.found_partner(time, not left,", "waiting.found_partner(time, left,"),),
    ),
    Mutant(
        "whoever-comes-too-late-waits-all-the-same",
        OWN,
        "A record that comes when no partner can be in time any more waits for one, as long as windows take late ones.",
        (Edit(_SIDE, "if latest < now:", "if latest < 0:"),),
    ),
    Mutant(
        "whoever-comes-just-in-time-does-not-wait",
        OWN,
        "A record whose last partner may be of the stream time itself comes out alone at once.",
        (Edit(_SIDE, "if latest < now:", "if latest <= now:"),),
    ),
    Mutant(
        "a-sliding-window-behind-a-record-takes-the-earliest",
        OWN,
        "The sliding window that begins after a record has what the earliest of the windows around it has.",
        (
            Edit(
                _SLIDING,
                "if right is None:\n                        right = agg, time\n",
                "right = agg, time\n",
            ),
        ),
    ),
    Mutant(
        "an-early-sliding-window-behind-a-record-takes-the-earliest",
        OWN,
        "The sliding window that begins after a record before the first whole window has what the earliest of those "
        "around it has.",
        (
            Edit(
                _SLIDING,
                "elif start <= timestamp:\n                    right = agg, time\n",
                "elif start <= timestamp:\n                    right = right or (agg, time)\n",
            ),
        ),
    ),
    Mutant(
        "a-window-whose-deletion-is-held-back-is-there",
        OWN,
        "A sliding window that is deleted in a cache is found as the store still has it.",
        (Edit("store.streams.dsl.record_cache:WindowTable.windows", "rows.pop(start, None)", "pass"),),
    ),
    Mutant(
        "closed-sessions-are-joined",
        OWN,
        "A late record joins a session that is closed, and whose result is out.",
        (Edit(_SESSIONS, "max(timestamp - gap, closed)", "timestamp - gap"),),
    ),
    Mutant(
        "sessions-that-were-joined-stay",
        OWN,
        "A session that has become a part of another one stays beside it.",
        (Edit(_SESSIONS, "if first != last:", "if first != last and window.start != first:"),),
    ),
    Mutant(
        "sessions-that-touch-are-not-joined-while-they-are-held-back",
        OWN,
        "A record does not join a session that is just a gap before it, where a cache holds that back.",
        (
            Edit(
                "store.streams.dsl.record_cache:SessionTable.sessions",
                "(earliest_end, -1)",
                "(earliest_end + 1, -1)",
            ),
        ),
    ),
    Mutant(
        "sessions-end-one-too-early",
        OWN,
        "A session comes out as ended while a record can still be in it.",
        (
            Edit(
                "store.streams.dsl.windows:closed_after_ms",
                "windows.grace_ms + windows.gap_ms + 1",
                "windows.grace_ms + windows.gap_ms",
            ),
        ),
    ),
    Mutant(
        "a-session-comes-out-with-the-time-of-its-start",
        OWN,
        "A session that comes out when it has ended has the time of its first record, not of its last one.",
        (
            Edit(
                "store.streams.dsl.windowed:OnWindowClose.bind",
                "release(row, *found, headers)",
                "release(row, found[0], row.window.start if sessions else found[1], headers)",
            ),
        ),
    ),
    Mutant(
        "windows-without-those-that-begin-after-a-late-record",
        OWN,
        "A late record makes no sliding window of the records after it.",
        (
            Edit(
                "store.streams.dsl.windowed:SlidingWindowAggregate.bind",
                "put(Windowed(key, Window(timestamp + 1, timestamp + 1 + size)), agg, time, headers)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "a-session-that-stays-has-no-old-value",
        OWN,
        "A session whose records have all one time is updated, and its group keeps what it was before.",
        (Edit(_SESSIONS, "elif window == merged:", "elif False:"),),
    ),
    Mutant(
        "a-window-that-begins-with-the-record-before-is-empty",
        OWN,
        "The sliding window that ends with a record lacks the one that is just so far before it.",
        (
            Edit(
                "store.streams.dsl.windowed:SlidingWindowAggregate.bind",
                "joins = previous is not None and timestamp - size <= previous",
                "joins = previous is not None and timestamp - size < previous",
            ),
        ),
    ),
    Mutant(
        "a-window-that-begins-anew-keeps-the-time-of-its-end",
        OWN,
        "A window that had no value any more has the time of its deletion, if that is later than the record.",
        (
            Edit(
                "store.streams.dsl.windowed:TimeWindowAggregate.bind",
                "if timestamp > entry[1] or old is None:",
                "if timestamp > entry[1]:",
            ),
        ),
    ),
    Mutant(
        "the-time-of-windows-begins-anew",
        OWN,
        "An operator forgets by a restart how far the stream time was, and takes what is late.",
        (
            Edit(
                "store.streams.dsl.windowed:observing",
                "latest = place.observed_before(name)",
                "place.observed_before(name)\n    latest = -1",
            ),
        ),
    ),
    Mutant(
        "the-earliest-times-of-operators-are-noted-first",
        OWN,
        "The times that operators have observed are noted from the smallest on, and read back as if from the largest.",
        (
            Edit(
                "store.streams.ordinals:_pack",
                "for name, time in observed.items()), reverse=True):",
                "for name, time in observed.items())):",
            ),
        ),
    ),
    Mutant(
        "records-without-a-key-are-grouped",
        OWN,
        "A record without a key goes to the repartition topic of a group.",
        (Edit("store.streams.dsl.operators:has_key", "key is not None", "True"),),
    ),
    Mutant(
        "a-record-takes-several-branches",
        OWN,
        "A record goes to each branch whose predicate holds.",
        (
            Edit(
                "store.streams.dsl.operators:Branch.bind",
                "                    forward(key, value, timestamp, headers)\n                    return\n",
                "                    forward(key, value, timestamp, headers)\n",
            ),
        ),
    ),
    Mutant(
        "punctuators-drift",
        OWN,
        "The next call of a punctuator is an interval after the last one, not at the next multiple of it.",
        (
            Edit(
                "store.streams.dsl.punctuation:_run",
                "one.next_ms = _next_after(now, one.next_ms, one.interval_ms)",
                "one.next_ms = now + one.interval_ms",
            ),
        ),
    ),
    Mutant(
        "punctuators-that-were-to-start-before-are-called-at-once",
        OWN,
        "A punctuator that is asked for late, to start at a time that is over, does not wait for its next multiple.",
        (
            Edit(
                "store.streams.dsl.punctuation:Punctuators._first_by_stream_time",
                "_first_from(start_ms, interval_ms, self._task.stream_time)",
                "start_ms",
            ),
        ),
    ),
    Mutant(
        "a-commit-without-records-forgets-the-punctuators",
        OWN,
        "A start notes nothing of when punctuators were called last until a record comes, and may commit before.",
        (
            Edit(
                "store.streams.dsl.punctuation:Punctuators._first_by_stream_time",
                "        self._task.observed[PUNCTUATED] = before\n",
                "",
            ),
        ),
    ),
    Mutant(
        "punctuators-silent-after-the-clock-was-set-back",
        OWN,
        "A punctuator of the wall clock that is set back is not called before it is as late as it was.",
        (
            Edit(
                "store.streams.dsl.punctuation:Punctuators._time_of_day",
                "one.next_ms = min(one.next_ms, _first_by_wall_clock(now, one.interval_ms, one.start_ms))",
                "pass",
            ),
        ),
        oracle="clocks",
    ),
    Mutant(
        "cancelled-punctuator-runs-on",
        OWN,
        "A punctuator that was cancelled is called again.",
        (
            Edit(
                "store.streams.dsl.punctuation:Punctuators.schedule",
                "            made.cancelled = True\n            if made in among:\n"
                "                among.remove(made)\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "windowed-sink-partition-by-whole-key",
        OWN,
        "The windows of a key go to partitions by key and window.",
        (
            Edit(
                "store.streams.dsl.operators:Sink._to",
                "partition_for(keyed[:-window_bytes], count(topic))",
                "partition_for(keyed, count(topic))",
            ),
        ),
    ),
    Mutant(
        "flat-map-loses-headers",
        OWN,
        "What a record is split into has none of its headers.",
        (
            Edit(
                f"{_OPERATORS}:FlatMap.bind",
                "forward(new_key, new_value, timestamp, headers)",
                "forward(new_key, new_value, timestamp, ())",
            ),
        ),
    ),
    Mutant(
        "processors-forward-no-headers",
        OWN,
        "What a processor forwards without saying which headers it has does not have those of the record.",
        (
            Edit(
                "store.streams.dsl.processors:_Context._send",
                "headers = () if current is None else current.headers",
                "headers = ()",
            ),
        ),
    ),
    Mutant(
        "a-left-join-drops-what-asks-for-nothing",
        OWN,
        "A left join with a global table drops a record that has no key to look up.",
        (
            Edit(
                f"{_OPERATORS}:LookUp.bind",
                "value is None or (wanted is None and not left)",
                "value is None or wanted is None",
            ),
        ),
    ),
    Mutant(
        "join-stores-keep-no-grace",
        OWN,
        "The stores of a join of streams keep records for as long as its windows are, and not for the grace.",
        (
            Edit(
                "store.streams.dsl.joins:JoinWindows.retention_ms",
                "max(self.size_ms + self.grace_ms, latest + 1)",
                "max(self.size_ms, latest + 1 - self.grace_ms)",
            ),
        ),
    ),
    Mutant(
        "sliding-windows-kept-as-said",
        OWN,
        "The store of sliding windows keeps them for no longer than is said, and not for what a late record looks for.",
        (
            Edit(
                "store.streams.dsl.windows:store_retention_of",
                "max(said, 3 * windows.difference_ms + windows.grace_ms + 2)",
                "said",
            ),
        ),
    ),
    Mutant(
        "sessions-kept-as-said",
        OWN,
        "The store of sessions keeps them for no longer than is said, and not for what a late record is merged with.",
        (
            Edit(
                "store.streams.dsl.windows:store_retention_of",
                "max(said, 2 * windows.gap_ms + windows.grace_ms + 1)",
                "said",
            ),
        ),
    ),
    Mutant(
        "punctuators-in-the-order-of-scheduling",
        OWN,
        "Of two punctuators that are due at once the one is called first that was scheduled first.",
        (
            Edit(
                "store.streams.dsl.punctuation:_run",
                "min(due, key=lambda schedule: schedule.next_ms)",
                "due[0]",
            ),
        ),
    ),
    Mutant(
        "an-extractor-is-asked-about-own-topics",
        OWN,
        "The default timestamp extractor is asked about the records of repartition topics too.",
        (
            Edit(
                "store.streams.dsl.graph:Place.timings",
                "if given is None or any(topic in self.graph.topics for topic in self.vertex.topics):",
                "if given is None:",
            ),
        ),
    ),
    Mutant(
        "a-merged-stream-has-the-keys-of-one",
        OWN,
        "A stream that is merged with one of other keys is grouped where its records are.",
        (
            Edit(
                "store.streams.dsl.builder:KStream.merge",
                "self.repartition_required or other.repartition_required",
                "self.repartition_required",
            ),
        ),
    ),
    Mutant(
        "branches-forget-that-keys-are-new",
        OWN,
        "A branch of a stream with new keys is grouped where its records are.",
        (
            Edit(
                "store.streams.dsl.builder:BranchedKStream._child",
                "repartition=stream.repartition_required",
                "repartition=False",
            ),
        ),
    ),
    Mutant(
        "who-waits-is-looked-for-from-the-last-one-on",
        OWN,
        "Records that wait for a partner are looked for from the time of the last one that came, be it late or not.",
        (
            Edit(
                f"{_WAITING}.add",
                "self._first[wait] = min(self._first[wait], time)",
                "self._first[wait] = time",
            ),
        ),
    ),
)
