"""Mutants of joins of tables by a foreign key."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_FOREIGN = "store.streams.dsl.foreign"

MUTANTS = (
    Mutant(
        "outdated-answers-are-joined",
        OWN,
        "An answer about a value that a row no longer has is joined with the one of now.",
        (
            Edit(
                f"{_FOREIGN}:JoinAnswers.bind",
                "answer.digest != (None if value is None else digest_of(value))",
                "(answer.digest is None) != (value is None)",
            ),
        ),
    ),
    Mutant(
        "a-subscription-that-moves-stays",
        OWN,
        "A row whose foreign key changes stays subscribed to the one before.",
        (
            Edit(
                f"{_FOREIGN}:KeepSubscriptions.bind",
                "                    put(row, None)",
                "                    subscription.digest or put(row, None)",
            ),
        ),
    ),
    Mutant(
        "a-row-that-goes-says-nothing",
        OWN,
        "A row that is deleted does not end its subscription.",
        (
            Edit(
                f"{_FOREIGN}:Subscribe.bind", "if old is not None:", "if old is not None and before is None:"
            ),
        ),
    ),
    Mutant(
        "a-row-that-loses-its-foreign-key-asks-nobody",
        OWN,
        "A row whose foreign key is gone is subscribed nowhere, and keeps the result that it had.",
        (
            Edit(
                f"{_FOREIGN}:Subscribe.bind",
                "            forward(now, Subscription(digest, Instruction.SUBSCRIBE,",
                "            now is None or forward(now, Subscription(digest, Instruction.SUBSCRIBE,",
            ),
        ),
    ),
    Mutant(
        "a-row-that-loses-its-foreign-key-loses-its-result",
        OWN,
        "A row whose foreign key is gone is deleted from the result of a left join, too.",
        (
            Edit(
                f"{_FOREIGN}:Subscribe.bind",
                "before is not None and now is None and not self.left",
                "before is not None and now is None",
            ),
        ),
    ),
    Mutant(
        "a-partner-that-goes-is-not-told",
        OWN,
        "The deletion of a row is not told to those that are subscribed to it.",
        (
            Edit(
                f"{_FOREIGN}:AnswerAll.bind",
                "with scan(prefix_of(foreign_key)) as subscriptions:",
                "with scan(prefix_of(foreign_key) if new is not None else b'-') as subscriptions:",
            ),
        ),
    ),
    Mutant(
        "a-row-without-a-partner-is-not-answered",
        "Kafka Streams",
        "An inner join does not tell a row that it has no partner, and an earlier result stays.",
        (
            Edit(
                f"{_FOREIGN}:JoinAnswers.bind",
                "not left):\n                forward(",
                "not left):\n                value is None and forward(",
            ),
        ),
    ),
    Mutant(
        "foreign-keys-that-begin-alike-are-one",
        OWN,
        "An update is told to those that are subscribed to a key that begins with its key.",
        (Edit(f"{_FOREIGN}:Rows.prefix", "_LENGTH.pack(len(data)) + data", "data"),),
    ),
    Mutant(
        "an-answer-goes-where-it-was-made",
        OWN,
        "An answer goes to the partition of the task that has made it.",
        (
            Edit(
                f"{_FOREIGN}:KeepSubscriptions.bind",
                "forward(foreign_key, subscription,",
                "forward(foreign_key, subscription._replace(partition=place.task.task_partition),",
            ),
        ),
    ),
    Mutant(
        "a-subscription-is-told-what-a-cache-holds-back",
        "Kafka Streams",
        "A subscription is answered with a value that was not forwarded, and may be taken back unseen.",
        (
            Edit(
                f"{_FOREIGN}:AnswerOne.bind",
                "get = known(self.other.view(place))",
                "get = self.other.view(place).current",
            ),
        ),
    ),
)
