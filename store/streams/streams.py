"""An application in this process, and in as many others as are started like it, without Spark: `Streams`.

    with Streams(application, {"num.stream.threads": 2}, bootstrap="broker:9092", state_dir="/var/lib/app") as streams:
        streams.wait()

Processes find each other by the consumer group of the application id, which is also where the input positions are. Each
thread is a member of it (`store.streams.thread`), and the group gives every task to one of them. Correctness does not
rest on that: whoever opens a task fences who had it.

Must survive: its own death at any moment, a process that comes or goes while others work, SIGTERM and SIGINT (commit,
leave the group, end; a restore ends after its next batch), and an error of one thread (`store.streams.instance`).
"""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

from store.clock import SystemClock
from store.config import StreamsConfig
from store.errors import ConfigError, check_directory, check_kind, check_whole
from store.log.kafka import KafkaLog
from store.log.kafka.client import check_cluster
from store.metrics import Metrics
from store.recovery.directory import StateDirectory
from store.recovery.restore import RestoreListener
from store.streams import ordinals
from store.streams.application import Application
from store.streams.instance import (
    Instance,
    State,
    Status,
    StreamThreadExceptionResponse,
    SystemThreads,
    UncaughtExceptionHandler,
)
from store.streams.thread import Host
from store.streams.topology import Topology

__all__ = [
    "State",
    "Status",
    "StreamThreadExceptionResponse",
    "Streams",
    "UncaughtExceptionHandler",
]

_log = logging.getLogger(__name__)


class Streams(Instance):
    """An application running in this process. `run` it, or `start` and `close` it, or use it as a context manager."""

    def __init__(
        self,
        application: Application | Topology,
        config: StreamsConfig | Mapping[str, object] | None = None,
        *,
        bootstrap: str,
        state_dir: Path | str,
        kafka: Mapping[str, Any] | None = None,
        instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        metrics: Metrics | None = None,
        listener: RestoreListener | None = None,
    ) -> None:
        """`kafka` holds further properties of librdkafka, such as those for TLS and SASL; `ConfigError` for those that
        are decided here. `state_dir` may be shared by processes of one machine, and be used by nothing else; a start
        that cannot make it, or not write to it, raises `StateDirectoryError`.

        With an `instance_id`, which no other process may have at the same time, the members are static: one that is
        restarted within the session timeout gets its tasks back without a rebalance, and none of its tasks are given to
        others before. A member that does not take part in the group for `rebalance_timeout_ms`, because one record, or
        the restore of a store in memory, takes longer, loses its tasks. `listener` is told of restores, on their
        threads.
        """
        check_cluster(bootstrap, kafka)
        check_directory("state_dir", state_dir)
        check_kind("instance_id", instance_id, str | None, "a name that no other process has, or None")
        check_whole("session_timeout_ms", session_timeout_ms, 1)
        check_whole("rebalance_timeout_ms", rebalance_timeout_ms, 1)
        if kafka is not None and "client.id" in kafka:
            raise ConfigError(
                "client.id", kafka["client.id"], "hosts of the application are told apart by it"
            )
        made = application if isinstance(application, Application) else Application.of(application)
        directory = f"{socket.gethostname()}:{Path(state_dir).absolute()}"
        # Who shares a directory has one name: a copy beside its task is of no use. Members of other versions, which may
        # be there while they are replaced, have names of this kind: they are told from strangers by it.
        kin = re.compile(rf"{re.escape(made.application_id)}-[0-9a-f]{{16}}")
        host = Host(f"{made.application_id}-{sha256(directory.encode()).hexdigest()[:16]}", kin)
        self._directory = Path(state_dir)
        super().__init__(
            made,
            config if isinstance(config, StreamsConfig) else StreamsConfig.of(config or {}),
            KafkaLog(bootstrap, config={**(kafka or {}), "client.id": host.name}),
            StateDirectory(state_dir, made.application_id),
            SystemClock(),
            SystemThreads(),
            self._make_ready,
            host=host,
            instance_id=instance_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            metrics=metrics,
            listener=listener,
        )

    def _make_ready(self) -> None:
        StateDirectory(self._directory, self.application.application_id).check_writable("state_dir")
        self.application.prepare(self._log, self.config)
        ordinals.prepare(
            self._directory, self.application.sub_topologies, self._log, self.config, self._clock
        )

    def run(self) -> None:
        """Start, and wait until somebody calls `stop`, or, in the main thread, until SIGTERM or SIGINT asks for it.

        Raises the error of a thread that failed, after the others have ended.
        """
        self._check_new()
        with self._signals():
            try:
                self._begin()
                self.wait()
            finally:
                self.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask for a stop, where a handler can be set; a second one does what it did before, since
        what a record or a broker takes may not be worth waiting for."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            del frame
            _log.info("%s: stopping", signal.Signals(number).name)
            signal.signal(number, before[number])
            self.stop()

        before: dict[int, Any] = {one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
