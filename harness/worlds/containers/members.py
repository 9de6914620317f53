"""One run of one schedule by members of a group, on hosts in containers.

A fault that lasts ends while processes take their turns, and until then the brokers are asked for nothing: they may not
answer.

Must survive: what `harness.worlds.real.members` and `harness.worlds.containers.run` survive.
"""

from __future__ import annotations

import time

from harness.faults import SkipError
from harness.faults.machines import make_room
from harness.worlds.actors import Actor
from harness.worlds.containers.run import STRIKES_S, ContainerRun
from harness.worlds.real.members import StreamsRun
from harness.worlds.run import KILL


class StreamsContainerRun(StreamsRun, ContainerRun):
    """One run of one schedule by members of a group, on hosts in containers."""

    def start_process(self, actor: Actor) -> None:
        # Where all begin as another version, one may have been cut off.
        self.heal(actor.host)
        make_room(self.machine.host(actor.host).disk)
        super().start_process(actor)

    def turn(self, actor: Actor) -> None:
        super().turn(actor)
        self.end_those_that_are_over()
        make_room(self.machine.host(actor.host).disk)

    def unsettled(self) -> str:
        now = time.monotonic()
        if any(now < lasting.over_at + STRIKES_S for lasting in self.lasting):
            return f"{self.lasting[0].words} lasts"
        return super().unsettled()

    def expel(self, actor: Actor) -> None:
        if self.lasting:
            raise SkipError(f"{self.lasting[0].words} lasts")
        super().expel(actor)

    def kill_host(self, actor: Actor, *, wipe: bool = False) -> None:
        crew = list(actor.worker.crew)
        if wipe:
            for one in crew:
                self.may_wipe(one)
        self.bounce(actor.host)
        self._die(actor.worker)
        self.end(actor, wipe=wipe, power=False)
        for other in crew:
            if other is not actor:
                if wipe:
                    self.wipe(other)
                self.director.struck_too(other, "wipe" if wipe else KILL)
        self.start_again()
