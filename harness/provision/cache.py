"""The per-user directory for what is fetched once: jars, and the wrapper of a bundled Java."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import platformdirs
except ModuleNotFoundError as error:
    # It is what an import of any world comes to first.
    raise ModuleNotFoundError(
        f"No module named {error.name!r}: local brokers, fixtures and the checker need an extra; type, in the "
        "directory of crashproof: pip install '.[check]'",
        name=error.name,
    ) from None


def cache_directory() -> Path:
    """`CRASHPROOF_CACHE` where it is set, else the user's cache directory. Not created here."""
    chosen = os.environ.get("CRASHPROOF_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("crashproof")
