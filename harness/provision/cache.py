"""The per-user directory for what is fetched once: jars, and the wrapper of a bundled Java."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_directory() -> Path:
    """`CRASHPROOF_CACHE` where it is set, else the user's cache directory. Not created here."""
    chosen = os.environ.get("CRASHPROOF_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("crashproof")
