from __future__ import annotations

import pytest

from store.config import StreamsConfig
from store.errors import ConfigError
from store.streams.assignment import Assignment, assign

HOSTS = ("a", "b", "c", "d")


def test_every_partition_is_active_once_and_its_standbys_are_on_other_hosts() -> None:
    config = StreamsConfig.of({"num.standby.replicas": "2"})
    shares = assign("app", HOSTS, 100, config.num_standby_replicas)
    for partition in range(100):
        assert sum(partition in share.active for share in shares.values()) == 1
        assert sum(partition in share.standby for share in shares.values()) == 2
    assert all(not set(share.active) & set(share.standby) for share in shares.values())


def test_the_order_of_the_hosts_does_not_matter() -> None:
    assert assign("app", HOSTS, 10, 1) == assign("app", reversed(HOSTS), 10, 1)


def test_when_a_host_goes_its_tasks_go_to_their_standbys_and_no_other_task_moves() -> None:
    before = assign("app", HOSTS, 100, 1)
    after = assign("app", HOSTS[1:], 100, 1)
    for host, share in after.items():
        took_over = set(share.active) - set(before[host].active)
        assert took_over == set(before[host].standby) & set(before["a"].active)
        assert set(before[host].active) <= set(share.active)


def test_a_single_host_runs_everything_and_keeps_no_copies() -> None:
    assert assign("app", ["a"], 3, 5) == {"a": Assignment((0, 1, 2), ())}


@pytest.mark.parametrize("hosts", [(), ("a", "a")])
def test_no_hosts_or_one_named_twice_is_refused(hosts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="hosts"):
        assign("app", hosts, 3)
