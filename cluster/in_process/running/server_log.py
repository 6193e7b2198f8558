"""Where the log of a server within a program goes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.cluster.in_process.interface.kinds import LogFormat
from slipstream.cluster.in_process.interface.options import Options

LOGGER = "slipstream"
FORMATS = {LogFormat.DEFAULT: "%m%d %H:%M:%S", LogFormat.ISO8601: "%Y-%m-%dT%H:%M:%SZ"}


def level_of(options: Options) -> int | None:
    """None: the program's own logging decides."""
    if options.log_verbose:
        return logging.DEBUG
    for is_on, level in (
        (options.log_info, logging.INFO),
        (options.log_warn, logging.WARNING),
        (options.log_error, logging.ERROR),
    ):
        if is_on:
            return level
    return None


def handler_of(options: Options) -> logging.Handler:
    """Raises OSError."""
    handler = logging.FileHandler(options.log_file) if options.log_file else logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", FORMATS[options.log_format]))
    return handler


@contextmanager
def logging_as(options: Options) -> Iterator[None]:
    """Writes the log to the file or to the standard error, as the options say. Without such an option only the handlers
    get it that the program has set up. Raises OSError for a file that cannot be written."""
    logger, level = logging.getLogger(LOGGER), level_of(options)
    before = logger.level
    handler = handler_of(options) if level is not None else logging.NullHandler()
    if level is not None:
        logger.setLevel(level)
        handler.setLevel(level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()
