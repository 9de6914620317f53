"""Mutants of the threads of `Streams`: members of a group, what they make of what it says, and what becomes of them."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_THREAD = "store.streams.thread:StreamThread"
_INSTANCE = "store.streams.instance:Instance"

MUTANTS = (
    Mutant(
        "a-task-that-is-lost-twice-stays-closed",
        OWN,
        "A member opens a task again that was taken from it and that the group leaves it, and does so once.",
        (
            Edit(
                f"{_THREAD}._on_lost",
                "self._again[task] = _Reopening(now + pause, pause)",
                "self._again.setdefault(task, _Reopening(now + pause, pause))",
            ),
        ),
    ),
    Mutant(
        "what-is-revoked-is-kept",
        OWN,
        "A member that the group takes tasks from hears of it, and keeps them open.",
        (
            Edit(
                f"{_THREAD}.revoked",
                "        self._have([tp for tp in stays if tp not in partitions])\n",
                "        del stays\n",
            ),
        ),
    ),
    Mutant(
        "what-is-revoked-is-dropped",
        OWN,
        "A member that the group takes tasks from closes all that it has, without a commit.",
        (
            Edit(
                f"{_THREAD}.revoked",
                "        stays = [\n",
                "        for worker in self._workers.values():\n            worker.abandon()\n        stays = [\n",
            ),
        ),
    ),
    Mutant(
        "what-is-lost-stays-open",
        OWN,
        "A member that the group has forgotten keeps its tasks open, and goes on with those that it gets back.",
        (
            Edit(
                f"{_THREAD}.lost",
                "            worker.abandon()\n",
                "            worker.replicas.assign(())\n",
            ),
        ),
    ),
    Mutant(
        "copies-are-kept-beside-their-tasks",
        OWN,
        "A member goes on to keep copies of tasks that it has itself by now.",
        (
            Edit(
                f"{_THREAD}._copies_of",
                " if (ordinal, one) not in here",
                "",
            ),
        ),
    ),
    Mutant(
        "a-member-stops-without-a-commit",
        OWN,
        "A member that is asked to end leaves the group, and drops what it has processed since its last commit.",
        (
            Edit(
                f"{_THREAD}.stop",
                "            worker.assign(())\n",
                "            worker.abandon()\n",
            ),
        ),
    ),
    Mutant(
        "what-no-member-has-stays-so",
        OWN,
        "Nobody asks whether every task has a member, after a static one died that had given some up.",
        (
            Edit(
                f"{_THREAD}._check_given_out",
                "            self._member.rejoin()\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "what-another-member-has-committed-is-a-strangers",
        OWN,
        "A task that comes back from another member finds its position moved, and takes that for a stranger's doing.",
        (
            Edit(
                "store.streams.task:Task._check_who_moved",
                " and ordinals.noted(said[tp]) is None",
                "",
            ),
        ),
    ),
    Mutant(
        "other-hosts-are-strangers",
        OWN,
        "A member takes those of other processes of its application for consumers of somebody else.",
        (
            Edit(
                f"{_THREAD}._check_members",
                "known.strangers(members, kin)",
                "[one for one in members if one.client_id != self._host.name]",
            ),
        ),
    ),
    Mutant(
        "positions-of-members-go-nowhere",
        OWN,
        "At least once a member commits its stores, and not its positions.",
        (
            Edit(
                "store.streams.thread:_MemberProducer.commit_offsets",
                "        self._member.commit_offsets(offsets, metadata)\n",
                "        self._member.commit_offsets({}, metadata)\n",
            ),
        ),
    ),
    Mutant(
        "what-comes-beside-a-task-is-forgotten",
        OWN,
        "A member that is given one more task goes on with those alone that it had.",
        (
            Edit(
                f"{_THREAD}._have",
                "                worker.assign(owned[ordinal], self._copies_of(ordinal), tasks_in_process=tasks)\n",
                "                had = [one for one in owned[ordinal] if one in worker.tasks]\n"
                "                worker.assign(\n"
                "                    had or owned[ordinal], self._copies_of(ordinal), tasks_in_process=tasks\n"
                "                )\n",
            ),
        ),
    ),
    Mutant(
        "a-thread-that-failed-is-not-closed",
        OWN,
        "A thread that fails keeps what it has open, and another one takes its place.",
        (
            Edit(
                f"{_INSTANCE}._be_member",
                '            end_after(error, member.close, "the thread")\n',
                "            del member\n",
            ),
        ),
    ),
    Mutant(
        "the-error-of-a-thread-is-forgotten",
        OWN,
        "A process whose thread has failed ends as if it had been asked to.",
        (
            Edit(
                f"{_INSTANCE}._end_by",
                "            self._error = self._error or error\n",
                "            del error\n",
            ),
        ),
    ),
    Mutant(
        "tasks-are-asked-as-copies",
        OWN,
        "Whoever asks an instance for a store is told that the task is somewhere else.",
        (
            Edit(
                f"{_THREAD}.stores",
                "else LocalStore(store)\n",
                "else LocalStore(store, active=False)\n",
            ),
        ),
    ),
    Mutant(
        "copies-are-asked-as-tasks",
        OWN,
        "Whoever asks an instance for a store is answered by a copy, without having asked for copies too.",
        (
            Edit(
                f"{_THREAD}.stores",
                "LocalStore(copy, active=False)",
                "LocalStore(copy)",
            ),
        ),
    ),
    Mutant(
        "a-thread-that-begins-waits-for-no-broker",
        OWN,
        "A thread that begins while no broker answers ends its process.",
        (
            Edit(
                f"{_THREAD}._count_inputs_once_answered",
                "if stopping():",
                "if True:",
            ),
        ),
    ),
    Mutant(
        "brokers-are-waited-for-a-second",
        OWN,
        "A member that reaches no broker for a second ends its process, whatever task.timeout.ms says.",
        (
            Edit(
                f"{_THREAD}._bear",
                "if now - since >= self._config.task_timeout_ms / 1000:",
                "if now - since >= 1:",
            ),
        ),
    ),
    Mutant(
        "a-task-that-no-broker-lets-open-is-not-tried-again",
        OWN,
        "A task that could not be opened, since no broker answered, is not tried again before the process ends.",
        (
            Edit(
                "store.streams.worker:Worker._wait_for_brokers",
                "_Unopened(before.since, now + pause, pause)",
                "_Unopened(before.since, now + 1e9, pause)",
            ),
        ),
    ),
    Mutant(
        "a-copy-that-no-broker-answers-for-is-forgotten",
        OWN,
        "A standby whose broker does not answer is let go of without being closed, and holds its directory.",
        (
            Edit(
                "store.streams.replicas:Replicas._try_later",
                "        self._silent[one] = None\n",
                "        self._silent[one] = None\n        self.standbys.pop(one, None)\n",
            ),
        ),
    ),
    Mutant(
        "markers-are-left-by-a-member-that-stops",
        OWN,
        "A member that stops leaves the group before the markers and aborted records that its tasks have passed over.",
        (
            Edit(
                "store.streams.thread:StreamThread.stop",
                "[partition for partition, task in worker.tasks.items() if task.has_passed_over]",
                "[]",
            ),
        ),
    ),
    Mutant(
        "who-has-a-task-counts-as-its-copy",
        OWN,
        "Of the hosts that are to keep a copy of a task the one that runs it is one, so that there is one less.",
        (Edit("store.streams.thread:copies", "hosts - {owner}", "hosts"),),
    ),
)
