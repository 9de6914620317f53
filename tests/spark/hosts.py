"""Task hosts that tests need for longer than a query would."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from store.spark import host, messenger, process
from store.spark.host import Carried, Deployment, Orders, TaskHost
from tests.waiting import LONGEST_S


def lasting(deployment: Deployment) -> TaskHost:
    """Called in the process of a host: it does not end because the next order is long in coming."""
    process.LEASE_S = LONGEST_S
    return TaskHost.of(deployment)


def asking(deployment: Deployment) -> TaskHost:
    """Called in the process of a host: it asks for its query all the time, and leaves a file once it has heard that it
    goes on without having been given orders."""
    process.ASK_AFTER_S, process.ASK_EVERY_S = 0.0, 0.1
    renew = process.Lease.renew

    def noted(lease: process.Lease) -> None:
        renew(lease)
        if threading.current_thread() is not threading.main_thread():
            (Path(deployment.state_dir) / f"heard-{os.getpid()}").touch()

    process.Lease.renew = noted  # type: ignore[method-assign, assignment]
    return lasting(deployment)


class Noting(TaskHost):
    """Leaves a file for each time that it was given orders."""

    notes: Path

    def carry_out(self, orders: Orders) -> list[Carried]:
        (self.notes / f"{len(list(self.notes.iterdir()))}").touch()
        return super().carry_out(orders)


def noting(deployment: Deployment) -> Noting:
    """Called in the process of a host."""
    made = Noting.of(deployment)
    made.notes = Path(deployment.state_dir) / "notes"
    made.notes.mkdir(exist_ok=True)
    return made


def impatient(deployment: Deployment) -> TaskHost:
    """Called in the process of a host: it does not wait for a directory that somebody holds."""
    host.LOCK_WAIT_S = 0.0
    return TaskHost.of(deployment)


def renew(deployment: Deployment, slot: int) -> None:
    """Called in Spark's Python worker, in the place of `store.spark.messenger.renew`: it leaves a file."""
    messenger.renew(deployment, slot)
    (Path(deployment.state_dir) / "renewed").touch()
