"""What a failure of a model is called."""

from __future__ import annotations

import sys
import traceback

from slipstream.workers.backends.backend import BackendError


def failure_of(exception: BaseException) -> tuple[str, str]:
    """The text of a failure, and its code. The text of one that is no BackendError begins with the exception's name;
    where it was raised goes to the instance's output."""
    if isinstance(exception, BackendError):
        return exception.message, exception.code
    traceback.print_exception(exception, file=sys.stderr)
    return f"{type(exception).__name__}: {exception}", "INTERNAL"
