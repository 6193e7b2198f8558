"""The tokens of one request on their way to one reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from slipstream.router.generation import EarlyEnd, GenerationFinish
from slipstream.router.history import RequestRecord, Timeline
from slipstream.router.messages import TokenLogprob

Delta = list[tuple[int, TokenLogprob | None]]


class GenerationStream:
    """An async iterator of deltas; each is what came since the last one, so a slow reader gets fewer, longer ones
    and never more than the request's max_tokens wait. `finish` is set by the time the last delta is handed out.

        with service.submit(request) as stream:      # leaving early cancels
            async for delta in stream: ...
        stream.finish.reason

    One reader, on the loop that the service runs on.
    """

    def __init__(self, record: RequestRecord, cancel: Callable[[str, EarlyEnd], None]) -> None:
        self._record = record
        self._cancel = cancel
        self._pending: Delta = []
        self._waiter: asyncio.Future[None] | None = None
        self.finish: GenerationFinish | None = None

    @property
    def request_id(self) -> str:
        return self._record.request_id

    @property
    def record(self) -> RequestRecord:
        return self._record

    @property
    def timeline(self) -> Timeline:
        return self._record.timeline

    @property
    def num_attempts(self) -> int:
        """How often the request was placed on a worker so far."""
        return self._record.num_attempts

    def cancel(self, reason: EarlyEnd = "abort") -> None:
        """Ends the request with this finish reason and frees what it holds everywhere. Idempotent."""
        if self.finish is None:
            self._cancel(self._record.request_id, reason)

    def deliver(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> None:
        """The service's side: more tokens, in order."""
        if logprobs:
            self._pending.extend(zip(token_ids, logprobs, strict=True))
        else:
            self._pending.extend([(token_id, None) for token_id in token_ids])
        self._wake()

    def end(self, finish: GenerationFinish) -> None:
        """The service's side: nothing comes after this."""
        self.finish = finish
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> GenerationStream:
        return self

    async def __anext__(self) -> Delta:
        while not self._pending:
            if self.finish is not None:
                raise StopAsyncIteration
            assert self._waiter is None, "a GenerationStream has one reader"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        delta, self._pending = self._pending, []
        return delta

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
