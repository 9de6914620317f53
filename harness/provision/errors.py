"""What provisioning reports when this machine lacks something. The command line ends with exit code 4."""

from __future__ import annotations

from pathlib import Path

from store.errors import CrashproofError


class ProvisionError(CrashproofError):
    """Something that the real worlds need is missing and could not be had. `remedy` is what to type."""

    exit_code = 4

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}\n{remedy}")
        self.problem = problem
        self.remedy = remedy


class ChecksumError(ProvisionError):
    """A jar is not the one that the lock names."""

    def __init__(self, jar: Path, expected: str, found: str, remedy: str) -> None:
        super().__init__(
            f"{jar} has a wrong checksum, so it is not used.\n  expected SHA-256 {expected}\n"
            f"  found SHA-256    {found}",
            remedy,
        )
        self.jar = jar
        self.expected = expected
        self.found = found
