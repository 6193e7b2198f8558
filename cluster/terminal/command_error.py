"""The error of commands that ask a cluster and get no answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.cluster.terminal import console


class CommandError(Exception):
    """There is nothing to show, or what was asked for cannot be done. The text is one sentence that says why."""


@contextmanager
def exit_on_command_error() -> Iterator[None]:
    """Turns CommandError into one sentence on stderr and exit code 1."""
    try:
        yield
    except CommandError as error:
        console.error(str(error))
        sys.exit(1)
