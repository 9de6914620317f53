"""Task hosts that tests need for longer than a query would."""

from __future__ import annotations

from store.spark import process
from store.spark.host import Deployment, TaskHost
from tests.waiting import LONGEST_S


def lasting(deployment: Deployment) -> TaskHost:
    """Called in the process of a host: it does not end because the next order is long in coming."""
    process.LEASE_S = LONGEST_S
    return TaskHost.of(deployment)
