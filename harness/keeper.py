"""Keeps services for the processes of one test run: `keeper WHERE DIRECTORY`, started by `harness.kept`.

Containers where Docker is there, else child processes; which, and why, is told to the users. It ends when none of them
lives; if that is in the middle of a start, then after it.

Must survive: a service that does not start, and SIGKILL of its users and of itself (the world of containers, the local
broker and the local cluster of Spark clean up after it).
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from harness.kept import CONTAINERS, PERIOD_S, PROCESSES, Kept, NotHereError, Refused, Service
from harness.provision.errors import ProvisionError
from harness.provision.images import images, kafka_image
from store.errors import CrashproofError

if TYPE_CHECKING:
    from harness.worlds.containers.engine import Engine


class _NoContainersError(Exception):
    """Child processes are to be used, for the reason that is given."""


class Services:
    """What a keeper can start. All that runs in containers is on one network."""

    def __init__(self, where: str, directory: Path, undone: ExitStack) -> None:
        self._where = where
        self._directory = directory
        self._undone = undone

    def kafka_broker(self) -> Service:
        """One broker."""
        try:
            return self._brokers(1)
        except _NoContainersError as reason:
            from harness.worlds.local.broker import LocalBroker

            broker = self._undone.enter_context(LocalBroker(directory=self._directory))
            return Service(broker.bootstrap, f"child process {broker.pid}{reason}", broker.bootstrap)

    def kafka_cluster(self) -> Service:
        """Three brokers with three copies of everything, two of which have to be in step."""
        try:
            return self._brokers(3)
        except _NoContainersError as reason:
            raise NotHereError(f"three brokers are run in containers alone{reason}") from None

    def spark_cluster(self) -> Service:
        """A standalone master with two workers."""
        try:
            image = self._image(lambda: images().host)
        except _NoContainersError as reason:
            from harness.worlds.local.standalone import Standalone

            local = self._undone.enter_context(Standalone(self._directory))
            pids = ", ".join(str(process.pid) for process in local.processes)
            return Service(local.url, f"child processes {pids}{reason}", local.url, local.settings)
        from harness.worlds.containers.standalone import ContainedStandalone

        cluster = ContainedStandalone(self._engine, image, self._shared("spark"))
        return Service(
            cluster.url,
            f"containers {', '.join(cluster.names)}",
            cluster.url,
            cluster.settings,
            cluster.python,
        )

    def _brokers(self, number: int) -> Service:
        image = self._image(kafka_image)
        from harness.worlds.containers.broker import Brokers

        called = "kafka" if number == 1 else "kafka-cluster"
        brokers = Brokers(self._engine, image, number, self._shared(called), called)
        names = ", ".join(str(broker.container.name) for broker in brokers.all)
        return Service(brokers.outside, f"container{'s' * (number > 1)} {names}", brokers.inside)

    def _image(self, find: Callable[[], str]) -> str:
        """The image to start from. Raises `_NoContainersError`, or `ProvisionError` where nothing else is wanted."""
        if self._where == PROCESSES:
            raise _NoContainersError("")
        try:
            return find()
        except ProvisionError as error:
            if self._where == CONTAINERS:
                raise
            raise _NoContainersError(f", as Docker cannot be used: {error}") from None

    @cached_property
    def _engine(self) -> Engine:
        from harness.worlds.containers.engine import Engine

        return self._undone.enter_context(Engine(self._shared("containers")))

    def _shared(self, name: str) -> Path:
        directory = self._directory / name
        directory.mkdir()
        return directory


KINDS: Mapping[str, Callable[[Services], Service]] = {
    kind.__name__: kind for kind in (Services.kafka_broker, Services.kafka_cluster, Services.spark_cluster)
}


def _started(services: Services, kind: str) -> Service | Refused:
    try:
        return KINDS[kind](services)
    except CrashproofError as error:
        return Refused(str(error), isinstance(error, NotHereError))


def main(where: str, parent: Path) -> None:
    kept = Kept(parent)
    # Ends it in order, with all that it keeps.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        tempfile.TemporaryDirectory(prefix="services-", dir=parent, ignore_cleanup_errors=True) as name,
        ExitStack() as undone,
    ):
        services = Services(where, Path(name), undone)
        while (wanted := kept.wanted()) is not None:
            for kind in wanted:
                kept.tell(kind, _started(services, kind))
            time.sleep(PERIOD_S)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
