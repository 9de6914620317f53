"""Mutants of the changes that a task holds back from its changelogs until it commits."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_CONTEXT = "store.streams.context:TaskContext"
_LOGGER = f"{_CONTEXT}.change_logger"

MUTANTS = (
    Mutant(
        "held-changes-are-not-logged",
        OWN,
        "What is held back when a transaction is committed is forgotten.",
        (Edit(f"{_CONTEXT}.send_changes", "            changes.send()\n", "            changes.forget()\n"),),
    ),
    Mutant(
        "held-changes-are-logged-after-the-commit",
        OWN,
        "Changes are sent with the next commit, when what they belong to is committed already.",
        (Edit("store.streams.task:Task._flush_caches", "        self._context.send_changes()\n", ""),),
    ),
    Mutant(
        "held-changes-outlive-an-abort",
        OWN,
        "Changes that are held back when a transaction is given up are sent with the next one.",
        (Edit(f"{_CONTEXT}.forget_changes", "            changes.forget()\n", "            pass\n"),),
    ),
    Mutant(
        "the-first-change-of-a-key-is-logged",
        OWN,
        "Of several changes of a key in one transaction the first is sent.",
        (
            Edit(
                _LOGGER,
                "            held[key] = value, at\n",
                "            held.setdefault(key, (value, at))\n",
            ),
        ),
    ),
    Mutant(
        "held-deletions-are-not-logged",
        OWN,
        "A deletion takes the change that is held back of its key away, and is not sent itself.",
        (
            Edit(
                _LOGGER,
                "            held[key] = value, at\n",
                "            held[key] = value, at\n            if value is None:\n                del held[key]\n",
            ),
        ),
    ),
    Mutant(
        "changes-that-are-many-are-forgotten",
        OWN,
        "Changes that take more memory than they may are dropped instead of sent.",
        (
            Edit(
                _LOGGER,
                "            if changes.bytes > held_bytes:\n                changes.send()\n",
                "            if changes.bytes > held_bytes:\n                changes.forget()\n",
            ),
        ),
    ),
    Mutant(
        "changes-have-the-time-of-the-commit",
        OWN,
        "A change that was held back is sent with the time of the record at which the transaction is committed.",
        (
            Edit(
                "store.streams.context:_Changes.send",
                "            self._send(key, value, at)\n",
                "            self._send(key, value, None)\n",
            ),
        ),
    ),
    Mutant(
        "of-each-key-the-last-version-is-logged",
        OWN,
        "Changes of versioned stores are held back like others: a transaction logs the last version of each key.",
        (
            Edit(
                "store.streams.task:Task._change_logger",
                ' and not int(topic.get("min.compaction.lag.ms", 0))',
                "",
            ),
        ),
    ),
    Mutant(
        "large-change-goes-before-the-held-one",
        OWN,
        "A change that is too large to be held back goes before an earlier one of its key, which is then the last.",
        (Edit(_LOGGER, "                held.pop(key, None)\n", ""),),
    ),
)
