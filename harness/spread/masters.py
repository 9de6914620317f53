"""Masters of Spark, as `--on` names them. Knows nothing of PySpark, so that a wrong name is told without it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from store.errors import ConfigError

_LOCAL = re.compile(r"local(?:\[(\d+|\*)\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:,/\s]+):(\d{1,5})")


@dataclass(frozen=True)
class Master:
    """A master that a campaign can run on."""

    url: str
    addresses: tuple[tuple[str, int], ...] = ()
    """Where a standalone master listens; none of a local one."""

    @property
    def local(self) -> bool:
        """Whether all of it runs on this machine, as children of the driver."""
        return not self.addresses

    @property
    def in_driver(self) -> bool:
        """Whether the driver itself is the executor."""
        return _LOCAL.fullmatch(self.url) is not None

    @property
    def on_loopback(self) -> bool:
        return all(_loopback(host) for host, _ in self.addresses)

    def with_attempts(self, most: int) -> str:
        """The name for Spark, which says for a local master alone how often a task is tried."""
        if not self.in_driver:
            return self.url
        found = _LOCAL.fullmatch(self.url)
        assert found is not None
        return f"local[{found[1] or 1},{most}]"


def master_of(url: str) -> Master:
    """The master of that name; `ConfigError` says which there can be."""
    if url.startswith("spark://"):
        parts = [_ADDRESS.fullmatch(part) for part in url.removeprefix("spark://").split(",")]
        found = [(part[1].strip("[]"), int(part[2])) for part in parts if part is not None]
        if len(found) == len(parts) and all(0 < port < 65_536 for _, port in found):
            return Master(url, tuple(found))
    elif (_LOCAL.fullmatch(url) and url != "local[0]") or _LOCAL_CLUSTER.fullmatch(url):
        return Master(url)
    raise ConfigError(
        "--on", url, "it takes spark://host:port, local[N] or local-cluster[WORKERS,CORES,MEGABYTES]"
    )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
