"""The folder of files that can be made again: digests of files, copies of tokenizers, converted tokenizers."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """`slipstream` in the user's cache directory (XDG base directory specification); None for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "slipstream"
    except RuntimeError:
        return None
