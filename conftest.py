"""What all tests share: one real Kafka broker per test process, started when the first test asks for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from harness.worlds.local.broker import LocalBroker
from store.log.kafka import KafkaLog

pytest_plugins = ["harness.pytest_plugin"]

settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long runs are left out unless `-m` names them."""
    if "long" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A running broker. Tests share it: they use topics, groups and transactional ids of their own."""
    with LocalBroker(directory=tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def log(broker: LocalBroker) -> KafkaLog:
    """The shared broker, as a process sees it."""
    return KafkaLog(broker.bootstrap)


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Turns a word into a name that no other test has."""
    suffix = uuid.uuid4().hex[:8]
    return lambda word: f"{word}-{suffix}"


@pytest.fixture(scope="session")
def _spare_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(directory=tmp_path_factory.mktemp("spare-broker")) as running:
        yield running


@pytest.fixture
def own_broker(_spare_broker: LocalBroker) -> LocalBroker:
    """A running broker that the test may kill. Mark its users with `xdist_group("own-broker")`."""
    if not _spare_broker.running:
        _spare_broker.start()
    return _spare_broker
