"""The log level of all processes: `SLIPSTREAM_LOG_LEVEL`, one of debug, info, warning and error; info by default.

At debug, the router and the workers write a line for every stage of every request, which is meant for hunting a problem
and not for production.
"""

from __future__ import annotations

import logging
import os

VARIABLE = "SLIPSTREAM_LOG_LEVEL"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_level() -> int:
    """The configured level. Raises ValueError if it is none of the four."""
    word = os.environ.get(VARIABLE, "info")
    if word.lower() not in LEVELS:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(LEVELS)}, got {word!r}")
    return LEVELS[word.lower()]
