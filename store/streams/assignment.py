"""Who of several hosts runs which task, and who keeps warm copies: a function that all of them compute alike.

Every task ranks the hosts by a hash of both names: the first runs it, the next `num.standby.replicas` keep copies of
it. So an active task and its standby are never on one host, and when the first of a task goes, the second, which
has the copy, is the first. Nothing else moves but the tasks of the host that went, or of the one that came.

Must survive: hosts that for a moment disagree about who is there. Two then run one task, and the newer incarnation
fences the older; or nobody does, until they agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from store.errors import ConfigError


class Assignment(NamedTuple):
    """The partitions of one host, for `Worker.assign`."""

    active: tuple[int, ...]
    standby: tuple[int, ...]


def assign(
    application_id: str, hosts: Iterable[str], partitions: int, num_standby_replicas: int = 0
) -> dict[str, Assignment]:
    """What each host runs and keeps warm; with fewer hosts than copies, what is possible.

    Shares differ by chance: with many partitions little, with few a host may have none. Raises `ConfigError` for no
    hosts, or one named twice.
    """
    names = sorted(hosts)
    if not names or len(set(names)) != len(names):
        raise ConfigError("hosts", names, "at least one, each named once")
    active: dict[str, list[int]] = {name: [] for name in names}
    standby: dict[str, list[int]] = {name: [] for name in names}
    for partition in range(partitions):
        first, *others = sorted(
            names, key=lambda name: sha256(f"{application_id}/{partition}/{name}".encode()).digest()
        )
        active[first].append(partition)
        for name in others[:num_standby_replicas]:
            standby[name].append(partition)
    return {name: Assignment(tuple(active[name]), tuple(standby[name])) for name in names}
