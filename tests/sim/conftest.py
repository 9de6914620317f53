"""A real broker whose cleaner, retention and group coordinator do at once what others do in minutes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.worlds.local.broker import LocalBroker

HASTY = {
    "log.cleaner.backoff.ms": 20,
    "log.retention.check.interval.ms": 100,
    "log.segment.delete.delay.ms": 100,
    "group.min.session.timeout.ms": 500,
}


@pytest.fixture(scope="session")
def hasty_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A running broker. Mark its users with `xdist_group("hasty-broker")`, so that there is only one."""
    with LocalBroker(directory=tmp_path_factory.mktemp("hasty-broker"), settings=HASTY) as running:
        yield running
