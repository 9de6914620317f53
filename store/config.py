"""Configuration of a task, under the names of the Kafka Streams pages, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from store.errors import ConfigError

_KEYS = {
    "commit.interval.ms": "commit_interval_ms",
    "commit.records": "commit_records",
    "transaction.timeout.ms": "transaction_timeout_ms",
    "task.timeout.ms": "task_timeout_ms",
    "restore.batch.records": "restore_batch_records",
    "poll.records": "poll_records",
}


@dataclass(frozen=True)
class StreamsConfig:
    """How a task commits. All times are milliseconds."""

    commit_interval_ms: int = 100
    """`commit.interval.ms`: the longest a processed record stays uncommitted while input keeps coming."""
    commit_records: int = 10_000
    """`commit.records`: commit after this many records at the latest; 1 commits every record."""
    transaction_timeout_ms: int = 60_000
    """`transaction.timeout.ms`: after this the broker aborts an open transaction. Above the commit interval."""
    task_timeout_ms: int = 300_000
    """`task.timeout.ms`: how long a retriable error is retried before it becomes fatal for the task."""
    restore_batch_records: int = 10_000
    """`restore.batch.records`: changelog records per atomic write while restoring."""
    poll_records: int = 1_000
    """`poll.records`: records asked for in one read of the input."""

    def __post_init__(self) -> None:
        for key, name in _KEYS.items():
            value = getattr(self, name)
            lowest = 0 if key == "commit.interval.ms" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                raise ConfigError(key, value, f"a whole number of at least {lowest}")
        if self.transaction_timeout_ms <= self.commit_interval_ms:
            raise ConfigError(
                "transaction.timeout.ms",
                self.transaction_timeout_ms,
                f"it must be longer than commit.interval.ms ({self.commit_interval_ms}), "
                "or the broker aborts transactions before the task commits them",
            )

    @classmethod
    def of(cls, values: dict[str, Any]) -> StreamsConfig:
        """From a mapping with the dotted names. An unknown key is an error that lists the known ones."""
        unknown = sorted(set(values) - set(_KEYS))
        if unknown:
            raise ConfigError(unknown[0], values[unknown[0]], f"unknown key; known are {', '.join(_KEYS)}")
        return cls(**{_KEYS[key]: value for key, value in values.items()})

    def as_dict(self) -> dict[str, int]:
        """The dotted names and their values."""
        names = {name: key for key, name in _KEYS.items()}
        return {names[field.name]: getattr(self, field.name) for field in fields(self)}
