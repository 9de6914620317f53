"""Docker, where it answers, for tests that need it."""

from __future__ import annotations

import pytest

from harness.provision import ProvisionError
from harness.provision import docker as provision


def _why_not() -> str:
    try:
        provision.engine().close()
    except ProvisionError as error:
        return error.problem
    return ""


_REASON = _why_not()

needs_docker = pytest.mark.skipif(bool(_REASON), reason=_REASON or "Docker answers")
