"""Mutants of records that are passed over, with dead letters, and of times that are extracted."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_TASK = "store.streams.task:Task"

MUTANTS = (
    Mutant(
        "partition-time-forgotten-by-a-restart",
        OWN,
        "A task that starts again has no partition time to give to the next record without a time of its own.",
        (
            Edit(
                "store.streams.timestamps:Timing.__init__",
                "        if before >= 0:\n",
                "        if before < 0:\n",
            ),
        ),
    ),
    Mutant(
        "a-commit-without-times-forgets-the-partition-time",
        OWN,
        "A start notes no partition time until a record has one, and may commit before.",
        (
            Edit(
                "store.streams.timestamps:Timing.__init__",
                "            task.observed[self._name] = before\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "a-refused-record-is-not-counted-in-the-partition-time",
        OWN,
        "The time of a record that is passed over for an error of its processing is none that its partition has seen.",
        (
            Edit(
                f"{_TASK}.process_batch",
                "                    self._count_time(context, record)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a-refused-record-does-not-move-stream-time",
        OWN,
        "A record that is passed over for an error of its processing leaves the stream time where it was.",
        (
            Edit(
                f"{_TASK}.process_batch",
                "                    self._count_time(context, record)\n",
                "                    self._count_time(context, record)\n"
                "                    context.stream_time = stream_time\n",
            ),
        ),
    ),
    Mutant(
        "unreadable-record-moves-stream-time",
        OWN,
        "A record that cannot be deserialized moves the stream time.",
        (
            Edit(
                f"{_TASK}.process_batch",
                "                    context.stream_time = stream_time\n",
                "                    pass\n",
            ),
        ),
    ),
    Mutant(
        "dead-letter-of-a-refused-record-lost",
        OWN,
        "A record whose processing raised is passed over when it is read again, without its dead letter.",
        (Edit(f"{_TASK}._goes_on", "record.offset, response.dead_letters)", "record.offset, ())"),),
        oracle="output",
    ),
    Mutant(
        "what-a-refused-record-has-done-stays",
        OWN,
        "A record whose processing raised counts as processed, with what it had written until then.",
        (Edit(f"{_TASK}._goes_on", "if untouched or self._producer is None:", "if True:"),),
    ),
    Mutant(
        "dead-letters-lose-the-headers-of-their-record",
        OWN,
        "A dead letter has its own headers, and none of the record that it is about.",
        (Edit("store.streams.handlers:dead_letter", "(*context.headers, *added)", "added"),),
        oracle="output",
    ),
    Mutant(
        "an-output-that-cannot-be-written-has-no-dead-letter",
        OWN,
        "An output that cannot be serialized is left out without the dead letters that the handler has for it.",
        (
            Edit(
                "store.streams.context:TaskContext.leave_out",
                "        self.bury(response.dead_letters)\n",
                "",
            ),
        ),
        oracle="output",
    ),
    Mutant(
        "a-record-of-a-negative-time-is-processed",
        OWN,
        "A record that an extractor gives a negative time is not passed over.",
        (Edit("store.streams.dsl.operators:_timed", "if timestamp < 0:", "if timestamp < -1:"),),
    ),
    Mutant(
        "times-of-inputs-outlive-an-abort",
        OWN,
        "A task that goes back to its last commit takes the times of its inputs for seen to: records without one are "
        "processed.",
        (Edit(f"{_TASK}._bind", "        context.timings = {}\n", ""),),
    ),
    Mutant(
        "a-record-passed-over-for-its-time-is-processed-too",
        OWN,
        "A record of a negative time is warned of and counted as dropped, and processed nonetheless.",
        (
            Edit(
                "store.streams.timestamps:timed",
                "                timing.skip(record)\n                return\n",
                "                timing.skip(record)\n",
            ),
        ),
    ),
    Mutant(
        "partition-time-stands-still-ahead-of-the-processing",
        OWN,
        "Of several records that are put in order at once each is given the partition time of before the first.",
        (
            Edit(
                "store.streams.timestamps:Timing.stamp",
                "            latest = max(latest, found)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a-record-is-blamed-for-a-punctuator",
        OWN,
        "What a punctuator raises is taken for an error of the record that it came with, which is passed over.",
        (
            Edit(
                "store.streams.dsl.punctuation:_run",
                "        one.callback(now)\n"
                "        # Not when it has raised: whoever hears of it takes the record for the one at fault.\n"
                "        task.record = at\n",
                "        try:\n            one.callback(now)\n        finally:\n            task.record = at\n",
            ),
        ),
    ),
    Mutant(
        "a-handler-is-asked-about-a-punctuator",
        OWN,
        "What a punctuator raises does not end the task: a handler is asked, and the transaction is aborted.",
        (
            Edit(
                f"{_TASK}._goes_on",
                "        if record.offset < self._committed.get(tp, 0):\n            return False\n",
                "",
            ),
        ),
        oracle="errors",
    ),
)
