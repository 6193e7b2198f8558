"""The error of commands that ask a cluster and get no answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.cluster.terminal import console


class CannotTell(Exception):  # noqa: N818 - reads as the sentence it carries
    """There is nothing to show, or what was asked for cannot be done. The text is one sentence that says why."""


@contextmanager
def exit_told() -> Iterator[None]:
    """Turns CannotTell into one sentence on stderr and exit code 1."""
    try:
        yield
    except CannotTell as error:
        console.error(str(error))
        sys.exit(1)
