"""What a task host asks the driver of its query: whether that goes on, and the host is still the one of its slot.

Orders, and words that Spark's jobs bring, need a core of the host's machine. A job of the query may be under way for
long with nothing to do for the host, wait for a core that others have, or be the only one that may be under way. A
question needs none: it goes from the host to a port of the driver.

A host says which job was the last that has brought it orders. Where a later one is done that had orders for its slot,
these were carried out by another host: the slot has moved on. While one is under way nobody knows by whom they are.

Each question has a connection of its own, with digests by a key that is told to the hosts alone: who does not have it
is answered nothing, and learns nothing. A driver that is gone or stands still answers nothing either, and neither does
one whose query has ended. Where its port is not reached hosts hear of the query by jobs alone.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = logging.getLogger(__name__)

_LIMIT_S = 5.0
"""How long either side waits for the other one's next bytes."""

_REFUSED_S = 0.1

_QUESTION = struct.Struct("!16sqq")
"""What no other question has, so that no answer is one to this by chance or by who has heard it; the slot; the job."""


@dataclass(frozen=True)
class DriverAddress:
    """Where a driver answers. Pickled to its hosts."""

    host: str
    port: int
    key: bytes = field(repr=False)

    def says_it_goes_on(self, slot: int, job: int) -> bool:
        """Whether the driver says that the query goes on, and the slot is of a host that this job brought orders last.

        Raises `OSError` where the driver is not reached.
        """
        question = _QUESTION.pack(os.urandom(16), slot, job)
        with socket.create_connection((self.host, self.port), _LIMIT_S) as connection:
            connection.sendall(question + _digest(self.key, b"asked", question))
            answer = _read(connection, hashlib.sha256().digest_size)
        return hmac.compare_digest(answer, _digest(self.key, b"goes on", question))


class Driver:
    """Answers the hosts of one query until it is closed. Any thread."""

    def __init__(self, bound_to: str, known_as: str, port: int = 0) -> None:
        """`port`: where it listens; 0 is one that is free. Where it cannot, `address` is None, which a warning says."""
        self._key = os.urandom(32)
        self._done: dict[int, int] = {}
        """Slot → the last job with orders for it that is done."""
        self._closed = threading.Event()
        self._listening: socket.socket | None = None
        self.address: DriverAddress | None = None
        """None where nothing can be listened to."""
        try:
            family, *_, place = socket.getaddrinfo(bound_to, 0, type=socket.SOCK_STREAM)[0]
            self._listening = socket.create_server((place[0], port), family=family, backlog=128)
        except OSError as error:
            where = f"{bound_to}, port {port or 'any'}"
            _log.warning("task hosts cannot ask whether the query goes on: %s at %s", error, where)
            return
        self.address = DriverAddress(known_as, self._listening.getsockname()[1], self._key)
        threading.Thread(target=self._listen, args=(self._listening,), daemon=True).start()

    @classmethod
    def of(cls, context: SparkContext, port: int = 0) -> Self:
        """One that is reached as Spark's own driver is, but for the port."""
        settings = context._jsc.sc().conf()
        known_as = settings.get("spark.driver.host").strip("[]")
        return cls(settings.get("spark.driver.bindAddress", known_as).strip("[]"), known_as, port)

    def is_done(self, job: int, slots: Iterable[int]) -> None:
        """What a job brought to these slots is carried out."""
        for slot in slots:
            self._done[slot] = max(job, self._done.get(slot, job))

    def close(self) -> None:
        """Answer nobody any more."""
        self._closed.set()
        if self._listening is not None:
            with suppress(OSError):
                # Or whoever waits for the next connection would wait on.
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()

    def _listen(self, listening: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                # Closed; or it can be had again, once there are file descriptors left.
                self._closed.wait(_REFUSED_S)
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        # Who went away asks again, if it lives.
        with connection, suppress(OSError):
            connection.settimeout(_LIMIT_S)
            question = _read(connection, _QUESTION.size)
            digest = _read(connection, hashlib.sha256().digest_size)
            if not hmac.compare_digest(digest, _digest(self._key, b"asked", question)):
                return
            _, slot, job = _QUESTION.unpack(question)
            goes_on = job >= self._done.get(slot, job) and not self._closed.is_set()
            connection.sendall(_digest(self._key, b"goes on" if goes_on else b"is over", question))


def _digest(key: bytes, what: bytes, question: bytes) -> bytes:
    return hmac.digest(key, what + question, "sha256")


def _read(connection: socket.socket, size: int) -> bytes:
    """So many bytes. Raises `OSError` where they do not come."""
    read = b""
    deadline = time.monotonic() + _LIMIT_S
    while len(read) < size:
        if not (more := connection.recv(size - len(read))) or time.monotonic() > deadline:
            raise ConnectionResetError("the other side went away")
        read += more
    return read
