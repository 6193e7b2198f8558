"""How much the processes log: `SLIPSTREAM_LOG_LEVEL`, one of debug, info, warning and error; without it, info.

At debug, router and workers write a line for every stage of every request: for looking for something, not for serving.
"""

from __future__ import annotations

import logging
import os

VARIABLE = "SLIPSTREAM_LOG_LEVEL"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_level() -> int:
    """Raises ValueError for a word that is none of them."""
    word = os.environ.get(VARIABLE, "info")
    if word.lower() not in LEVELS:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(LEVELS)}, got {word!r}")
    return LEVELS[word.lower()]
