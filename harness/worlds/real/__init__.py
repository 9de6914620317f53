"""What real worlds share: processes that are led and really killed, attempts of Spark, and the judge's client."""

from __future__ import annotations

from harness.faults import Capability

ABILITIES = frozenset(
    {
        Capability.PROCESSES,
        Capability.HOSTS,
        Capability.CALLS,
        Capability.RECORDS,
        Capability.WRITES,
        Capability.SETTINGS,
        Capability.VERSIONS,
        Capability.MEMBERS,
    }
)
"""What every world of real processes can do."""
