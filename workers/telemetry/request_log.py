"""A worker's log lines about requests, in the vocabulary of the router's records and with the same request id.

Each stage is logged at level DEBUG (`SLIPSTREAM_LOG_LEVEL=debug`), failures at every level, and tokens not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Failed,
    Generate,
    HandedOff,
    Migrate,
    Prefill,
    Reserve,
    Reserved,
    Resume,
    RouterMessage,
    Start,
    StepOutput,
    WorkerMessage,
)

log = logging.getLogger(__name__)


class RequestLog:
    """Logs messages about requests. One that is not to be logged costs only a look at its type. The name of the process
    is already part of each line."""

    def __init__(self) -> None:
        self._tells_all = log.isEnabledFor(logging.DEBUG)

    def heard(self, message: RouterMessage) -> None:
        """A message of the router has arrived."""
        if not self._tells_all:
            return
        match message:
            case Generate(_, request):
                num_tokens = (len(request.prompt_ids) + len(request.output_ids)) // 4
                self._line(request.request_id, request.attempt, f"prefill: {num_tokens} tokens here")
            case Reserve(_, request, source):
                self._line(request.request_id, request.attempt, f"placed: pages for what {source.name} will send")
            case Prefill(_, request, ticket):
                num_tokens = (len(request.prompt_ids) + len(request.output_ids)) // 4
                where = ticket.key.destination.name
                self._line(request.request_id, request.attempt, f"prefill: {num_tokens} tokens for {where}")
            case Start(request_id, attempt):
                self._line(request_id, attempt, "first_token: decoding may begin")
            case Adopt(_, request, source):
                self._line(request.request_id, request.attempt, f"decode: to come from {source.name}")
            case Migrate(request_id, attempt, _, ticket, freeze):
                where = ticket.key.destination.name
                self._line(request_id, attempt, f"decode: {'frozen, to go on' if freeze else 'copied'} at {where}")
            case Resume(request_id, attempt):
                self._line(request_id, attempt, "decode: goes on here")
            case Cancel(request_id, attempt):
                self._line(request_id, attempt, "cancelled")

    def said(self, messages: Iterable[WorkerMessage]) -> None:
        """These messages are being sent to the router."""
        for message in messages:
            match message:
                case Failed(request_id, attempt, reason):
                    log.info("request %s attempt %d failed: %s", request_id, attempt, reason)
                case Reserved(request_id, attempt, num_cached_tokens) if self._tells_all:
                    self._line(request_id, attempt, f"reserved: {num_cached_tokens} tokens cached")
                case HandedOff(request_id, attempt, num_bytes, seconds) if self._tells_all:
                    self._line(request_id, attempt, f"transfer: {num_bytes} bytes in {seconds * 1e3:.2f} ms")
                case StepOutput(chunks) if self._tells_all:
                    for chunk in chunks:
                        if chunk.index == 0 and chunk.token_ids:
                            self._line(chunk.request_id, chunk.attempt, "first_token")
                        if chunk.finish_reason is not None:
                            self._line(chunk.request_id, chunk.attempt, f"finished: {chunk.finish_reason}")

    def _line(self, request_id: str, attempt: int, text: str) -> None:
        log.debug("request %s attempt %d %s", request_id, attempt, text)
