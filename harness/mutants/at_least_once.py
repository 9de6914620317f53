"""Mutants of at least once, which is a matter of order."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_TASK = "store.streams.task:Task"
_COMMIT = f"{_TASK}._commit_at_least_once"
_POSITIONS = "self._retry(lambda: producer.commit_offsets(group, self._positions, self._committed_by({})))"

MUTANTS = (
    Mutant(
        "positions-before-outputs",
        "KAFKA-8204",
        "Under at least once the positions are committed before outputs and changelog have arrived.",
        (
            Edit(
                _COMMIT,
                "        ends = yield partial(self._retry, producer.flush)\n",
                "        group = self.topology.application_id\n"
                f"        {_POSITIONS}\n"
                "        reach(Point.COMMIT_STARTED)\n"
                "        ends = yield partial(self._retry, producer.flush)\n",
            ),
        ),
    ),
    Mutant(
        "positions-before-stores",
        OWN,
        "Under at least once the positions are committed before the stores.",
        (
            Edit(
                _COMMIT,
                "        self._commit_stores(ends)\n",
                "        group = self.topology.application_id\n"
                f"        {_POSITIONS}\n"
                "        self._commit_stores(ends)\n",
            ),
        ),
    ),
    Mutant(
        "caches-not-flushed-at-least-once",
        OWN,
        "Under at least once caches are flushed by the commit of the stores, when changelogs were flushed already.",
        (Edit(_COMMIT, "self._flush_caches()", "pass"),),
    ),
    Mutant(
        "positions-one-commit-behind",
        OWN,
        "Under at least once the positions committed are those of the commit before, so input is processed again "
        "without a reason.",
        (Edit(_COMMIT, "group, self._positions, self", "group, self._committed, self"),),
        oracle="at least once",
    ),
    Mutant(
        "unlogged-records-at-least-once",
        OWN,
        "Under at least once a commit does not wait until its outputs and changelog records have arrived.",
        (
            Edit(
                _COMMIT,
                "        ends = yield partial(self._retry, producer.flush)\n",
                "        ends = {}\n",
            ),
        ),
    ),
    Mutant(
        "no-dead-letter-of-what-stays",
        OWN,
        "Under at least once a record that is refused, and of which nothing is taken back, has no dead letter.",
        (
            Edit(
                "store.streams.context:TaskContext.goes_on_without",
                "self.go_on(response.dead_letters)",
                "self.go_on(())",
            ),
        ),
    ),
    Mutant(
        "what-is-refused-is-refused-again",
        OWN,
        "Under at least once a record that was refused ends the task at the next one.",
        (
            Edit(
                "store.streams.context:TaskContext.goes_on_without",
                "self.go_on(response.dead_letters)",
                "self.go_on(response.dead_letters)\n        self.failure = error",
            ),
        ),
    ),
    Mutant(
        "what-is-refused-reaches-no-other-branch",
        OWN,
        "Under at least once a record that one operator refuses is kept from all that would have got it after that.",
        (
            Edit(
                "store.streams.context:TaskContext.goes_on_without",
                "if handler is None or self._releasing or not of_processing or self.is_refused(error):",
                "if True:",
            ),
        ),
    ),
    Mutant(
        "what-is-refused-half-way-stays-in-the-aggregate",
        OWN,
        "Under at least once a record that raises half-way leaves in an aggregate what it has changed till then.",
        (
            Edit(
                "store.streams.dsl.operators:at_hand",
                "return fold(key, value, own(old))",
                "return fold(key, value, old)",
            ),
        ),
    ),
)
