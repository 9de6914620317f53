"""What this world makes with Docker, and how all of it goes away again.

Every container and network carries two labels: the run that it belongs to, and the process that made it. They go with
that process: a reaper, which waits for its end, removes them within a second, also after a SIGKILL; and whatever a
reaper could not remove, because it was killed too, is removed by the next start that finds its maker gone. Nothing
without these labels is ever touched.

Must survive: a daemon that is not there or does not answer, networks whose addresses are taken, containers that die
while they start, and several worlds at once.
"""

from __future__ import annotations

import ipaddress
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import psutil
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool
from requests.exceptions import RequestException
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.exceptions import ContainerStartException

from harness.provision import docker
from harness.worlds.containers import disks
from harness.worlds.containers.maker import lives, maker
from store.errors import CrashproofError

RUN_LABEL = "crashproof.run"
MAKER_LABEL = "crashproof.maker"
STOP_S = 10

_SUBNETS = ipaddress.IPv4Network("10.213.0.0/16")
_LOG_LINES = 30
_STARTING = threading.Lock()
_REAPER = "harness.worlds.containers.reaper"


class ContainerError(CrashproofError):
    """Docker did not do what the world needs. Says nothing about the pipeline under test."""

    exit_code = 4


class Engine:
    """The Docker daemon, as one run uses it. Use it as a context manager: at its end nothing of the run is left.

    Containers can be started by several threads. Raises `ContainerError` for whatever Docker refuses.
    """

    def __init__(self, directory: Path) -> None:
        """`directory` goes with the run, with the disks that are mounted below it."""
        self.directory = directory
        self.run = f"crashproof-{secrets.token_hex(4)}"
        """Names of containers and networks begin with it."""
        self._client: Any = None
        self.reaper: subprocess.Popen[bytes] | None = None
        self._addresses: Iterator[ipaddress.IPv4Address] = iter(())
        self._network: Network | None = None
        self._subnet: ipaddress.IPv4Network = _SUBNETS

    def __enter__(self) -> Engine:
        self._client = docker.engine()
        sweep(self._client)
        me = str(psutil.Process().pid)
        self.reaper = subprocess.Popen(
            [sys.executable, "-P", "-m", _REAPER, me, self.run, str(self.directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._network = self._make_network()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        remove(self._client, {"label": f"{RUN_LABEL}={self.run}"})
        disks.remove(self.directory)
        if self.reaper is not None:
            # Nothing is left for it to do.
            self.reaper.kill()
            self.reaper.wait()
        self._client.close()

    @property
    def labels(self) -> Mapping[str, str]:
        return {RUN_LABEL: self.run, MAKER_LABEL: maker()}

    @property
    def gateway(self) -> str:
        """The address of this machine on the network of the run."""
        return str(self._subnet[1])

    def address(self) -> str:
        """An address on the network of the run that nobody has yet."""
        return str(next(self._addresses))

    def start(
        self,
        image: str,
        name: str,
        command: Sequence[str],
        *,
        address: str,
        mounts: Mapping[Path, Path] | None = None,
        environment: Mapping[str, str] | None = None,
        ports: Mapping[int, int] | None = None,
        **settings: Any,
    ) -> Container:
        """Start a container on the network of the run, where others find it under `name`.

        `mounts`: directory here → directory there; `ports`: port there → port on loopback here. Further settings are
        those of docker-py. A container that could not be started is removed.
        """
        assert self._network is not None
        network = self._network.name
        assert network is not None
        endpoint = self._client.api.create_endpoint_config(ipv4_address=address, aliases=[name])
        made = (
            DockerContainer(image)
            .with_name(f"{self.run}-{name}")
            .with_command(list(command))
            # By the locale that a container has by itself Java finds no file with other than English letters.
            .with_envs(**{"LC_ALL": "C.UTF-8", **(environment or {})})
            .with_kwargs(
                hostname=name,
                labels=dict(self.labels),
                network=network,
                networking_config={network: endpoint},
                **settings,
            )
        )
        for here, there in (mounts or {}).items():
            made.with_volume_mapping(str(here), str(there), "rw")
        # Its own way to say which port takes no address to bind it to.
        made.ports = cast(Any, {f"{there}/tcp": ("127.0.0.1", here) for there, here in (ports or {}).items()})
        try:
            with _own_reaper():
                made.start()
            container = made.get_wrapped_container()
            container.reload()
        except (DockerException, RequestException) as error:
            with suppress(DockerException, RequestException, ContainerStartException):
                made.stop()
            raise ContainerError(f"The container {name} could not be started: {told(error)}.") from error
        return container

    def _make_network(self) -> Network:
        """One with addresses of its own, that stay the same when a container is started again."""
        refused: APIError | None = None
        numbers = list(range(256))
        secrets.SystemRandom().shuffle(numbers)
        for number in numbers[:40]:
            subnet = list(_SUBNETS.subnets(new_prefix=24))[number]
            pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
            try:
                network: Network = self._client.networks.create(
                    f"{self.run}-net",
                    driver="bridge",
                    ipam=IPAMConfig(pool_configs=[pool]),
                    labels=dict(self.labels),
                    options={"com.docker.network.bridge.host_binding_ipv4": "127.0.0.1"},
                )
            except APIError as error:
                # Another network has these addresses.
                refused = error
                continue
            self._subnet = subnet
            self._addresses = iter(list(subnet.hosts())[9:])
            return network
        raise ContainerError(
            f"No network could be made below {_SUBNETS}: {told(refused)}. `docker network ls` shows the others; "
            "remove those that nobody needs with `docker network prune`."
        )


@contextmanager
def _own_reaper() -> Iterator[None]:
    """Leave the reaper of testcontainers out: its image is not to be had everywhere, and there is one of our own."""
    with _STARTING:
        before = testcontainers_config.ryuk_disabled
        testcontainers_config.ryuk_disabled = True
        try:
            yield
        finally:
            testcontainers_config.ryuk_disabled = before


class Contained:
    """What runs in a container of its own, and can be struck. Not thread-safe."""

    name: str
    container: Container

    @property
    def pid(self) -> int:
        """The id, on this machine, of its first process, and so of one in its network."""
        self.container.reload()
        pid = int(self.container.attrs["State"]["Pid"])
        if not pid:
            raise ContainerError(f"The container {self.container.name} has ended. {words_of(self.container)}")
        return pid

    def running(self) -> bool:
        """Whether its first process has not ended."""
        self.container.reload()
        return bool(self.container.status == "running")

    def kill(self) -> None:
        """SIGKILL to everything that runs there. Its files stay."""
        self.container.kill(signal="SIGKILL")
        self.container.wait(timeout=STOP_S)

    def start(self) -> None:
        """Come back after `kill`. Returns before it is ready."""
        self.container.start()


def words_of(container: Container, lines: int = _LOG_LINES) -> str:
    """What a container printed last, as one line."""
    with suppress(DockerException, RequestException):
        text = container.logs(tail=lines).decode(errors="replace")
        return "It printed: " + " | ".join(line.strip() for line in text.splitlines() if line.strip())
    return "What it printed cannot be had."


def until(container: Container, ready: Any, seconds: float, what: str) -> None:
    """Wait until `ready()` is true, as long as the container runs. Raises `ContainerError` after that time."""
    deadline = time.monotonic() + seconds
    while not ready():
        container.reload()
        if container.status in ("exited", "dead"):
            raise ContainerError(f"The container {container.name} ended while {what}. {words_of(container)}")
        if time.monotonic() > deadline:
            raise ContainerError(
                f"The container {container.name} was still {what} after {seconds:g} s. {words_of(container)}"
            )
        time.sleep(0.05)


def sweep(client: Any) -> None:
    """Remove what belongs to processes that are gone."""
    left: dict[str, bool] = {}
    for thing in [
        *client.containers.list(all=True, filters={"label": MAKER_LABEL}, ignore_removed=True),
        *client.networks.list(filters={"label": MAKER_LABEL}),
    ]:
        labels = thing.labels if isinstance(thing, Container) else thing.attrs.get("Labels") or {}
        name = labels.get(MAKER_LABEL, "")
        if name not in left:
            left[name] = not lives(name)
    for name, gone in left.items():
        if gone:
            remove(client, {"label": f"{MAKER_LABEL}={name}"})
    disks.sweep()


def remove(client: Any, filters: Mapping[str, str]) -> None:
    """Remove every container, with its volumes, and every network that has a label; those that vanish meanwhile too."""
    for _ in range(3):
        containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
        for container in containers:
            # Another one may remove it at the same time.
            with suppress(APIError):
                container.remove(force=True, v=True)
        networks = client.networks.list(filters=filters)
        for network in networks:
            with suppress(APIError):
                network.remove()
        if not containers and not networks:
            return


def told(error: BaseException | None) -> str:
    """What Docker says, on one line."""
    explanation = getattr(error, "explanation", None) or error
    return " ".join(str(explanation).split())[:500].rstrip(".")


__all__ = ["Contained", "ContainerError", "Engine", "NotFound", "told", "until", "words_of"]
