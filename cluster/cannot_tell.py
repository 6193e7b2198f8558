"""What commands that ask a cluster say where they get no answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.cluster import console


class CannotTell(Exception):  # noqa: N818 - reads as the sentence it carries
    """Why there is nothing to show, or why what was asked for cannot be done."""


@contextmanager
def exit_told() -> Iterator[None]:
    """Whatever cannot be told is one sentence, and exit code 1."""
    try:
        yield
    except CannotTell as error:
        console.error(str(error))
        sys.exit(1)
