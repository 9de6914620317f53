"""Mutants of the worker: several tasks in one process, and an assignment that changes while they run."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_WORKER = "store.streams.worker:Worker"
_REPLICAS = "store.streams.replicas:Replicas"

MUTANTS = (
    Mutant(
        "an-abort-drops-the-neighbours",
        OWN,
        "A worker that aborts the transaction of one task goes on with new incarnations of all.",
        (
            Edit(
                f"{_WORKER}._abort",
                "            task.abort()\n",
                "            task.abort()\n"
                "            for other in [one for one in self.tasks if one != partition]:\n"
                "                self._drop(other)\n",
            ),
        ),
    ),
    Mutant(
        "an-abort-waits-in-the-thread-of-all-tasks",
        OWN,
        "A task that aborts waits for its last commit, which a neighbour hides that cannot commit meanwhile.",
        (
            Edit(
                f"{_WORKER}._abort",
                "            if (hidden := task.why_abort_waits()) is not None:\n",
                "            if (hidden := None) is not None:\n",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "a-neighbour-hides-the-commit-of-one-that-aborts-until-it-is-due",
        OWN,
        "A task that aborts waits for the interval of a neighbour whose transaction hides its last commit.",
        (Edit(f"{_WORKER}._process", " or self.aborting", ""),),
        oracle="progress",
    ),
    Mutant(
        "a-lost-task-takes-the-others-along",
        OWN,
        "A worker that has lost one task goes on with new incarnations of the others.",
        (
            Edit(
                f"{_WORKER}._give_up",
                "        self._drop(partition, error)\n",
                "        for one in list(self.tasks):\n            self._drop(one)\n",
            ),
        ),
    ),
    Mutant(
        "a-task-that-goes-keeps-running",
        OWN,
        "A worker that is told to let go of a task processes it until the next change.",
        (
            Edit(
                f"{_WORKER}.assign",
                "        self._partitions = partitions\n",
                "        self._partitions = list(dict.fromkeys([*partitions, *self._partitions]))\n",
            ),
        ),
    ),
    Mutant(
        "a-task-that-goes-is-not-closed",
        OWN,
        "A worker that lets go of a task keeps its stores, its lock and its producer.",
        (
            Edit(
                f"{_WORKER}.assign",
                "                self._drop(partition)\n",
                "                self.tasks.pop(partition, None)\n",
            ),
        ),
    ),
    Mutant(
        "a-task-that-comes-begins-at-the-neighbours-position",
        OWN,
        "A worker reads the input of its second task where the first one stands.",
        (
            Edit(
                f"{_WORKER}._process",
                "tp, task.position(tp), room",
                "tp, max(one.position(tp._replace(partition=number)) for number, one in self.tasks.items()), room",
            ),
        ),
    ),
    Mutant(
        "copies-stay-open-at-the-end",
        OWN,
        "A worker that ends closes its tasks, and leaves the copies open that it keeps for others.",
        (
            Edit(
                f"{_REPLICAS}.close",
                "                all_of_them.callback(enter_to, standby.task_id, standby.close)\n",
                "                enter_to(standby.task_id, lambda: None)\n",
            ),
        ),
        oracle="progress",
    ),
    Mutant(
        "a-copy-stays-open-when-its-task-comes",
        OWN,
        "A worker that gets a task keeps the copy of it open, and its directory locked.",
        (
            Edit(
                f"{_REPLICAS}.assign",
                "            for partition in [one for one in self.standbys if one not in self._wanted]:\n",
                "            for partition in []:\n",
            ),
        ),
    ),
    Mutant(
        "swallowed-errors-count-as-processed",
        OWN,
        "A record counts as processed when its function has swallowed an error of a store.",
        (
            Edit(
                "store.streams.task:Task.process_batch",
                "                if context.failure is not None:\n                    raise context.failure\n",
                "",
            ),
            Edit(
                "store.streams.task:Task._flush_caches",
                "            if self._context.failure is not None:\n                raise self._context.failure\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a-task-that-goes-is-not-committed",
        OWN,
        "A worker that lets go of a task drops what it has processed since its last commit.",
        (Edit(f"{_WORKER}.assign", "                commit()\n", "                pass\n"),),
        oracle="errors",
    ),
    Mutant(
        "databases-of-closed-stores-stay-open",
        OWN,
        "A store that is closed leaves its database open.",
        (
            Edit(
                "store.state.store:EngineStore.close",
                "            self._engine.close()\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "lost-at-the-last-commit-in-silence",
        OWN,
        "A worker that is asked to end, and finds then that a task was taken over, does not say so.",
        (
            Edit(
                f"{_WORKER}._commit_all",
                "                self._give_up(partition, error)\n",
                "                    pass\n",
            ),
        ),
        oracle="errors",
    ),
    Mutant(
        "what-is-not-committed-is-purged",
        "KAFKA-17635",
        "A worker deletes what it has processed of a repartition topic, though it may have to read it again.",
        (
            Edit(
                f"{_WORKER}._purge",
                "task.committed_position(tp)",
                "task.position(tp)",
            ),
        ),
    ),
    Mutant(
        "a-third-input-comes-late",
        OWN,
        "A task that takes its inputs by their times compares the first one with the second alone.",
        (
            Edit(
                "store.streams.arrivals:in_time",
                "        others = min(heads[1:3])\n",
                "        others = heads[1]\n",
            ),
        ),
        oracle="order",
    ),
    Mutant(
        "a-run-goes-on-beyond-what-is-known",
        OWN,
        "A task goes on with its other inputs when one of which there is more has been used up.",
        (
            Edit(
                "store.streams.arrivals:in_time",
                "        elif has_more[number]:\n            return\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a-run-begins-before-all-inputs-have-come",
        OWN,
        "A task begins with what has come while an input of which there is more has not.",
        (
            Edit(
                "store.streams.arrivals:in_time",
                "    if any(more and not records for",
                "    if all(more and not records for",
            ),
        ),
    ),
    Mutant(
        "a-first-start-begins-at-0",
        OWN,
        "A task whose group has no position begins at offset 0, which retention may have taken.",
        (
            Edit(
                "store.streams.task:Task._restore",
                "position if position is not None else self._earliest(reader, tp)",
                "position or 0",
            ),
        ),
    ),
    Mutant(
        "positions-of-long-ago-are-left-so",
        OWN,
        "A task that is opened with positions of long ago leaves them so until it has input, or a broker forgets them.",
        (
            Edit(
                "store.streams.worker:Worker._step",
                "            long_ago = long_ago or task.began_with_positions_of(REFRESH_POSITIONS_S)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "of-equal-times-a-run-goes-on",
        OWN,
        "A task goes on with one of its inputs while the next record of one that comes before it has the same time.",
        (
            Edit(
                "store.streams.arrivals:in_time",
                "(records[end].timestamp, number) < others",
                "records[end].timestamp <= others[0]",
            ),
        ),
    ),
)
