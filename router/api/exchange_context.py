"""What the APIs keep of a request beside its exchange."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.router.access.caller import ANYBODY, Caller
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.failover.stream_checkpoint import NO_CHECKPOINT, StreamCheckpoint
from slipstream.router.http.routes import Routes
from slipstream.router.observability.tracing.request_trace import RequestTrace


def openai_lines(lines: str) -> str:
    return lines


class ExchangeContext:
    """Of one exchange. `trace` is set if the request is traced; `trace_id` is the caller's, or the one that it was
    given. `session` is the name of its conversation, if a header has one. `checkpoint` is what its answer leaves for a
    router that may have to go on with it. `limit_lines` makes of the header lines of rate limits those of its API. What
    `is_background`, a line of a batch, waits behind all requests of clients, whatever priority it asks for."""

    __slots__ = ("caller", "checkpoint", "is_background", "limit_lines", "model", "session", "trace", "trace_id")

    def __init__(self, checkpoint: StreamCheckpoint = NO_CHECKPOINT, *, is_background: bool = False) -> None:
        self.checkpoint = checkpoint
        self.is_background = is_background
        self.caller: Caller = ANYBODY
        self.trace: RequestTrace | None = None
        self.trace_id = ""
        self.session = ""
        self.model = ""  # as the client names it, for log lines
        self.limit_lines: Callable[[str], str] = openai_lines


ApiExchange = Exchange[ExchangeContext]
ApiRoutes = Routes[ExchangeContext]
