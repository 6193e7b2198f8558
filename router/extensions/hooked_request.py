"""One request as the hooks of extensions see it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from slipstream.router.extensions.extension import CallRefusedError, EndedCall, Extension, ExtensionCall
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request

log = logging.getLogger(__name__)


class ExtensionHook:
    """An extension, and which of the two hooks it has. What is not overridden is not called."""

    __slots__ = ("extension", "has_after", "has_before")

    def __init__(self, extension: Extension) -> None:
        self.extension = extension
        self.has_before = type(extension).before is not Extension.before
        self.has_after = type(extension).after is not Extension.after


class HookedRequest:
    """One request and its hooks: each extension whose `before` has returned gets one `after`."""

    __slots__ = ("_began_s", "_call", "_hooks", "_num_passed", "_request")

    def __init__(self, hooks: Sequence[ExtensionHook], request: Request, call: ExtensionCall) -> None:
        self._hooks = hooks
        self._request = request
        self._call = call
        self._num_passed = 0  # of the hooks, in their order
        self._began_s = time.monotonic()

    async def before(self) -> None:
        """Calls `before` of all, and takes over the body that they leave. Raises HttpError if one refuses the
        request."""
        for hook in self._hooks:
            if hook.has_before:
                try:
                    await hook.extension.before(self._call)
                except CallRefusedError as refused:
                    raise error_of(refused) from None
            self._num_passed += 1
        self._request.body = self._call.body

    def after(self, status: int) -> None:
        """Calls `after` of those whose `before` has returned. `status` is that of the response."""
        ended = EndedCall(self._call, status, time.monotonic() - self._began_s)
        for hook in self._hooks[: self._num_passed]:
            if hook.has_after:
                try:
                    hook.extension.after(ended)
                except Exception:  # the client has its answer
                    log.exception("%s.after failed", type(hook.extension).__name__)


def error_of(refused: CallRefusedError) -> HttpError:
    """The error that the client gets for a refusal."""
    kind = "server_error" if refused.status >= 500 else "invalid_request_error"
    return HttpError(refused.status, refused.message, kind=kind, code=refused.code)
