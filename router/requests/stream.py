"""The stream of a request's tokens, on their way to one reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from slipstream.router.protocol.generation import Delta, EarlyEnd, GenerationFinish
from slipstream.router.protocol.messages import TokenLogprob
from slipstream.router.protocol.messages.prompt_scores import ScoredTokens
from slipstream.router.requests.history import RequestRecord

Take = Callable[[Delta], bool]


class Handouts:
    """Streams that have something for their readers. They hand it out at the end of this turn of the event loop, not at
    once, because a last token and its finish come in the same turn; and together, as a call of the loop for each would
    cost as much as what it does."""

    def __init__(self) -> None:
        self._streams: list[GenerationStream] = []

    def add(self, stream: GenerationStream) -> None:
        """Once a turn for each stream."""
        if not self._streams:
            asyncio.get_running_loop().call_soon(self._hand_out)
        self._streams.append(stream)

    def _hand_out(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.hand_out()


class GenerationStream:
    """An async iterator of deltas. Each contains the tokens since the last one, so a slow reader gets fewer, longer
    deltas, and at most the request's max_tokens can be waiting. `finish` is set by the time the last delta is returned.

        with service.submit(request) as stream:      # leaving early cancels
            async for delta in stream: ...
        stream.finish.reason

    A reader that only passes tokens on should use `each` instead, which costs half as much: waking up a reader's task
    means going through the dozen calls that it is suspended in.

    There can be one reader, on the event loop that the service runs on, whose streams share their `handouts`.
    """

    def __init__(self, record: RequestRecord, cancel: Callable[[str, EarlyEnd], None], handouts: Handouts) -> None:
        self.record = record
        self._cancel = cancel
        self._handouts = handouts
        self._pending: Delta = []
        self._waiter: asyncio.Future[None] | None = None
        self._take: Take | None = None
        self._is_handed_out_soon = False
        self.finish: GenerationFinish | None = None
        self.prompt_scores: list[ScoredTokens] = []  # in order; all of them before the first delta

    def cancel(self, reason: EarlyEnd = "abort") -> None:
        """Ends the request with this finish reason, and frees everything it holds. Idempotent."""
        if self.finish is None:
            self._cancel(self.record.request_id, reason)

    def deliver(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> None:
        """Called by the service with more tokens, in order."""
        if logprobs:
            self._pending.extend(zip(token_ids, logprobs, strict=True))
        elif len(token_ids) == 1:
            self._pending.append((token_ids[0], None))
        else:
            self._pending.extend([(token_id, None) for token_id in token_ids])
        self._wake()

    def deliver_scores(self, scores: ScoredTokens) -> None:
        """Called by the service with more log-probabilities of the prompt, in order."""
        self.prompt_scores.append(scores)

    def end(self, finish: GenerationFinish) -> None:
        """Called by the service at the end: nothing comes after this."""
        self.finish = finish
        self._wake()

    def _wake(self) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if self._take is None:
            self._waiter.set_result(None)
        elif not self._is_handed_out_soon:
            self._is_handed_out_soon = True
            self._handouts.add(self)

    async def each(self, take: Take) -> bool:
        """Calls `take` with each delta, until `take` returns False or the output has ended. Returns whether it has
        ended. Raises what `take` raises."""
        assert self._waiter is None, "a GenerationStream has one reader"
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._take = take
        self.hand_out()
        try:
            await waiter
        finally:
            self._waiter = self._take = None
        return self.finish is not None and not self._pending

    def hand_out(self) -> None:
        """Called at the end of a turn in which something came."""
        self._is_handed_out_soon = False
        take, waiter = self._take, self._waiter
        if take is None or waiter is None or waiter.done():
            return
        goes_on = self.finish is None
        if self._pending:
            delta, self._pending = self._pending, []
            try:
                goes_on = take(delta) and goes_on
            except Exception as error:  # raised in the reader; here it would only be logged
                waiter.set_exception(error)
                return
        if not goes_on:
            waiter.set_result(None)

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
