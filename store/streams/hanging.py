"""Inputs that stand still behind a transaction that nobody ends.

Only what is below the last stable offset is read. A transaction whose markers a broker has lost (KIP-890 names how)
keeps that where it is for ever: nothing more comes of the partition, nor of the other inputs of its task once they are
to wait for it, and nothing fails. Only the offsets tell.

Must survive: brokers that do not answer, or refuse to, which are asked again. It is told of when they do not answer
time after time, as for a partition without a leader, for such an input holds its task up in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from store.clock import Clock
from store.errors import LogError, RetriableError, UnreachableError
from store.log import Reader
from store.types import IsolationLevel, TopicPartition

_log = logging.getLogger(__name__)

HANGS_S = 1_200.0
"""How often is looked. Brokers let a transaction be open for 15 minutes (`transaction.max.timeout.ms`) by default."""


class HangingInputs:
    """Says of which inputs the last stable offset does not move while they grow. One thread."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._looked = clock.monotonic()
        self._behind: Mapping[TopicPartition, int] = {}
        """Input → the last stable offset that it had, of those that ended beyond it when they were looked at."""
        self._unanswered = False
        """Whether there was no answer when it looked last."""

    def look(self, reader: Reader, inputs: Callable[[], Collection[TopicPartition]]) -> None:
        """Warn of those that have stood at one place since it looked last, if that is `HANGS_S` ago; and where there
        was no answer then, and is none now."""
        now = self._clock.monotonic()
        if now - self._looked < HANGS_S:
            return
        self._looked = now
        places = sorted(inputs())
        try:
            stable = reader.offsets_of(places, IsolationLevel.READ_COMMITTED)
            ends = reader.offsets_of(places, IsolationLevel.READ_UNCOMMITTED)
        except (RetriableError, UnreachableError) as error:
            if self._unanswered:
                _log.warning(
                    "%s: %s. Neither now nor %d minutes ago did the brokers say where inputs end. Of a partition "
                    "without a leader nothing is read, and a task of several inputs waits for each: kafka-topics.sh "
                    "--describe --unavailable-partitions shows those",
                    self._name,
                    error,
                    HANGS_S // 60,
                )
            else:
                _log.info("%s: %s; whether inputs stand still is asked again", self._name, error)
            self._unanswered = True
            return
        except LogError as error:
            # Also what does not pass by itself, such as a topic that is gone: who reads it ends of that, or goes on.
            _log.info("%s: %s; whether inputs stand still is asked again", self._name, error)
            return
        self._unanswered = False
        behind = {tp: stable[tp].end for tp in places if stable[tp].end < ends[tp].end}
        for tp, offset in behind.items():
            if self._behind.get(tp) == offset:
                _log.warning(
                    "%s: %s cannot be read beyond offset %d, though it ends at %d, for more than %d minutes: a "
                    "transaction that was begun there is not ended. If its producer is not at it still, "
                    "kafka-transactions.sh find-hanging shows it, and abort ends it",
                    self._name,
                    tp,
                    offset,
                    ends[tp].end,
                    HANGS_S // 60,
                )
        self._behind = behind
