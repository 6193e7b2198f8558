"""Log lines about requests that are refused: at info, with the reason, and few of them in a flood."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from slipstream.router.http.http_error import HttpError

LINES_PER_S = 5.0
BURST_LINES = 50.0
MAX_REASON_CHARS = 300

log = logging.getLogger(__name__)


class RefusalLog:
    """A line for each refused request, up to `BURST_LINES` at once and `LINES_PER_S` in the long run. Further ones are
    only counted, and the next line says how many. One that is not logged costs a few comparisons."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines = BURST_LINES
        self._at_s = clock()
        self._num_left_out = 0

    def refused(self, error: HttpError, request_id: str, model: str, tenant: str, trace_id: str) -> None:
        now_s = self._clock()
        self._lines = min(BURST_LINES, self._lines + (now_s - self._at_s) * LINES_PER_S)
        self._at_s = now_s
        if self._lines < 1 or not log.isEnabledFor(logging.INFO):
            self._num_left_out += 1
            return
        self._lines -= 1
        left_out, self._num_left_out = self._num_left_out, 0
        reason = error.code or error.kind
        about = f" of model {model[:MAX_REASON_CHARS]!r}" if model else ""
        by = f" of {tenant[:MAX_REASON_CHARS]!r}" if tenant else ""
        more = f" ({left_out} others before it were not logged)" if left_out else ""
        log.info(
            "request %s%s%s refused with %d %s: %s%s",
            request_id,
            about,
            by,
            error.status,
            reason,
            error.message[:MAX_REASON_CHARS],
            more,
            extra={
                "request_id": request_id,
                "model": model,
                "tenant": tenant,
                "trace_id": trace_id,
                "status": error.status,
                "reason": reason,
            },
        )
