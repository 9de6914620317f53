"""Packets that come late, in the order in which they were sent and without loss, where the kernel has no netem.

A rule of iptables hands them to a queue of the network they are in (NFQUEUE), and a thread of the leader gives them
leave some time later. Must survive: its own end at any moment; packets pass at once where nobody takes them.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress

from harness.worlds.containers.engine import ContainerError

RULE = ("-j", "NFQUEUE", "--queue-num", "0", "--queue-bypass")

_SECONDS = 0.25
_LOOK_S = 0.02
_START_S = 10.0
_NEW_NETWORK = 0x40000000
_NETFILTER = 12
_OF_QUEUES = 3 << 8
_PACKET, _CONFIG, _VERDICTS = (_OF_QUEUES | kind for kind in (0, 2, 3))
_REQUEST, _ANSWERED = 1, 4
_HEADER = struct.Struct("=IHHII")
_OF_QUEUE = struct.Struct(">BBH")
_BEGIN = _HEADER.size + _OF_QUEUE.size
_BUFFER = 1 << 20
# Attributes of a configuration, of a packet and of a verdict.
_COMMAND, _COPY, _MASK, _FLAGS = 1, 2, 4, 5
_PACKET_HEADER, _VERDICT_HEADER = 1, 2
_BIND, _ONLY_META, _FAIL_OPEN, _ACCEPT = 1, 1, 1, 1


class Late:
    """What delays the packets of one network, from the beginning until `end`."""

    def __init__(self, network: int) -> None:
        """`network`: a descriptor of it. Raises `ContainerError` where the kernel has no such queues."""
        self.packets = 0
        """How many it has delayed."""
        self._network = network
        self._ready = threading.Event()
        self._over = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_S) or self._error is not None:
            self._over.set()
            raise ContainerError(f"Packets of a container cannot be delayed: {self._error or 'no answer'}.")

    def end(self) -> None:
        """Let all go on. No more may come, so the rule has to be gone before."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._queue() as queue:
                self._ready.set()
                self._serve(queue)
        except OSError as error:
            self._error = error
            self._ready.set()

    def _queue(self) -> socket.socket:
        """The queue of that network: a thread may be in another one than its process."""
        if ctypes.CDLL(None, use_errno=True).setns(self._network, _NEW_NETWORK):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        queue = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
        try:
            queue.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            queue.bind((0, 0))
            _configure(queue, _attribute(_COMMAND, struct.pack(">BBH", _BIND, 0, 0)))
            _configure(queue, _attribute(_COPY, struct.pack(">IB", 0, _ONLY_META)))
            flags = struct.pack(">I", _FAIL_OPEN)
            _configure(queue, _attribute(_FLAGS, flags) + _attribute(_MASK, flags))
        except BaseException:
            queue.close()
            raise
        return queue

    def _serve(self, queue: socket.socket) -> None:
        held: deque[tuple[float, int]] = deque()
        queue.settimeout(_LOOK_S)
        while True:
            over = self._over.is_set()
            with suppress(TimeoutError, BlockingIOError):
                if over:
                    queue.setblocking(False)
                while True:
                    for number in _numbers(queue.recv(_BUFFER)):
                        held.append((time.monotonic() + _SECONDS, number))
                        self.packets += 1
                    if not over and held[0][0] <= time.monotonic():
                        break
            now = time.monotonic()
            last = None
            while held and (over or held[0][0] <= now):
                last = held.popleft()[1]
            if last is not None:
                # To all up to that one.
                queue.send(
                    _message(
                        _VERDICTS, _REQUEST, _attribute(_VERDICT_HEADER, struct.pack(">II", _ACCEPT, last))
                    )
                )
            if over:
                return


def _configure(queue: socket.socket, attributes: bytes) -> None:
    queue.send(_message(_CONFIG, _REQUEST | _ANSWERED, attributes))
    answer = queue.recv(_BUFFER)
    (code,) = struct.unpack_from("=i", answer, _HEADER.size)
    if code:
        raise OSError(-code, os.strerror(-code))


def _message(kind: int, flags: int, attributes: bytes) -> bytes:
    body = _OF_QUEUE.pack(0, 0, 0) + attributes
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body


def _attribute(kind: int, content: bytes) -> bytes:
    size = 4 + len(content)
    return struct.pack("=HH", size, kind) + content + bytes(-size % 4)


def _numbers(data: bytes) -> list[int]:
    """Of the packets that messages tell of."""
    found = []
    while data:
        size, kind, *_ = _HEADER.unpack_from(data)
        place = _BEGIN
        while kind == _PACKET and place < size:
            length, attribute = struct.unpack_from("=HH", data, place)
            if attribute == _PACKET_HEADER:
                found.append(int.from_bytes(data[place + 4 : place + 8]))
            place += length + -length % 4
        data = data[size + -size % 4 :]
    return found
