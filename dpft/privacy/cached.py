"""Where answers that took seconds to compute are kept; imports no torch, nor an accountant."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$DPFT_CACHE_DIR``, else ``dpft`` in the user's cache folder.

    Raises:
        RuntimeError: nobody knows where the user's files are.
    """
    if folder := os.environ.get("DPFT_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dpft")
