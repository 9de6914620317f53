"""What is done to the links between a container and others: packet filters and queues in its own network.

Every rule counts what it strikes, so that a fault which met no packet is not taken for one. Rules are in the network of
the container, which a disturbance holds on to: it is there until that ends, also when the container has stopped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from harness.faults import Link
from harness.worlds.containers.engine import ContainerError
from harness.worlds.containers.late import RULE as LATE
from harness.worlds.containers.late import Late

BOTH, OUT, IN = 0, 1, 2
_INTERFACE = "eth0"
_LOSS = "0.33"
_SLOW = ("rate", "32kbit", "burst", "2kb", "latency", "2s")


class Disturbance:
    """A link that is not as it should be, until `heal`."""

    def __init__(self, pid: int, addresses: Sequence[str], link: Link, way: int) -> None:
        """`pid`: a process in the network of the container; `addresses`: of the other side."""
        self._network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        self.link = link
        self._rules: list[tuple[str, ...]] = []
        self.healed = False
        self._struck = 0
        self._late = Late(self._network) if link is Link.LATE else None
        if link is Link.SLOW:
            self._run("tc", "qdisc", "add", "dev", _INTERFACE, "root", "tbf", *_SLOW)
            return
        for address in addresses:
            if way in (BOTH, OUT):
                self._add("OUTPUT", "-d", address)
            if way in (BOTH, IN) and link is not Link.REFUSING:
                self._add("INPUT", "-s", address)

    def struck(self) -> int:
        """Packets that it has struck so far; once there are any, at least so many."""
        if self.healed or self._struck:
            return self._struck
        if self.link is Link.SLOW:
            # ` Sent 1234 bytes 5 pkt (dropped 0, overlimits 3 requeues 0)`
            with suppress(ContainerError, ValueError):
                words = self._run("tc", "-s", "qdisc", "show", "dev", _INTERFACE).split()
                self._struck = int(words[words.index("overlimits") + 1])
            return self._struck
        if self._late is not None:
            self._struck = self._late.packets
            return self._struck
        struck = 0
        for chain in ("INPUT", "OUTPUT"):
            rows = self._run("iptables", "-w", "-v", "-x", "-n", "-L", chain).splitlines()[2:]
            struck += sum(int(row.split()[0]) for row in rows)
        self._struck = struck
        return struck

    def heal(self) -> None:
        """Make the link whole again."""
        if self.healed:
            return
        self.struck()
        self.healed = True
        try:
            if self.link is Link.SLOW:
                # Of a container that has stopped, the interface is gone.
                with suppress(ContainerError):
                    self._run("tc", "qdisc", "del", "dev", _INTERFACE, "root")
            for rule in self._rules:
                self._run("iptables", "-w", "-D", *rule)
            if self._late is not None:
                self._late.end()
        finally:
            os.close(self._network)

    def _add(self, chain: str, *side: str) -> None:
        match self.link:
            case Link.REFUSING:
                how: tuple[str, ...] = ("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")
            case Link.LOSSY:
                how = ("-m", "statistic", "--mode", "random", "--probability", _LOSS, "-j", "DROP")
            case Link.LATE:
                how = LATE
            case _:
                how = ("-j", "DROP")
        rule = (chain, *side, *how)
        self._run("iptables", "-w", "-A", *rule)
        self._rules.append(rule)

    def _run(self, *command: str) -> str:
        try:
            done = subprocess.run(
                ["nsenter", f"--net=/proc/self/fd/{self._network}", *command],
                capture_output=True,
                text=True,
                check=False,
                pass_fds=[self._network],
            )
        except FileNotFoundError:
            raise ContainerError("nsenter is not installed. Type: crashproof doctor --fix") from None
        if done.returncode:
            raise ContainerError(f"`{' '.join(command)}` failed in a container: {done.stderr.strip()}")
        return done.stdout
