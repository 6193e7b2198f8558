"""The router's end of one connection of a worker under test: it keeps what the worker says, and waits for more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from slipstream.cluster.tools.conformance.attempt_answer import AttemptAnswer, ConformanceError
from slipstream.router.protocol.messages import (
    Cancel,
    Credits,
    EngineRequest,
    Failed,
    Generate,
    Hello,
    Ping,
    Pong,
    RouterMessage,
    SamplingParams,
    StepOutput,
    Welcome,
    WorkerMessage,
    pack_ids,
)
from slipstream.router.protocol.wire import FrameProtocol, WireError

WAIT_S = 10.0  # for anything that a worker is to say


class RawFrames(FrameProtocol):
    """It can send bytes that are no message."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        super().connection_made(transport)

    def send_raw(self, payload: bytes) -> None:
        """A frame with any payload."""
        self._raw.write(len(payload).to_bytes(4, "little") + payload)


class WorkerConnection:
    """`send` and `ask` speak; `until` waits for what the worker says."""

    def __init__(self) -> None:
        self.hello: Hello | None = None
        self.credits: Credits | None = None
        self.pongs: list[int] = []
        self.answers: dict[tuple[str, int], AttemptAnswer] = {}
        self.lost: str | None = None  # what the worker did when the connection ended
        self._broken: ConformanceError | None = None
        self._changed = asyncio.Event()
        self._seq = 0
        self.protocol = RawFrames(self._received, self._lost)

    @property
    def last_seq(self) -> int:
        """The number of the last message that spent credits."""
        return self._seq

    def welcome(self) -> None:
        self.protocol.reader.trust()
        self.send(Welcome("conformance"))

    def send(self, message: RouterMessage) -> None:
        self.protocol.send(message)

    def send_fields(self, code: int, *fields: Any) -> None:
        """A message that this version does not have."""
        self.protocol.send_raw(msgpack.packb((code, *fields)))

    def ask(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        output: Sequence[int] = (),
        attempt: int = 0,
    ) -> AttemptAnswer:
        """Sends a request. `output` are tokens of an attempt before."""
        self._seq += 1
        answer = self.answers[request_id, attempt] = AttemptAnswer(request_id, attempt, len(output))
        request = EngineRequest(request_id, attempt, pack_ids(prompt), pack_ids(output), sampling)
        self.send(Generate(self._seq, request))
        return answer

    def cancel(self, answer: AttemptAnswer) -> None:
        """Sends Cancel. What came before the worker heard of it is still kept."""
        self.send(Cancel(answer.request_id, answer.attempt))

    async def until(self, is_there: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
        """Raises ConformanceError if it is not there in time, or the worker breaks a rule meanwhile."""
        timeout_s = WAIT_S if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while not is_there():
                    self.check()
                    if self.lost is not None:
                        raise ConformanceError(f"the worker {self.lost} instead of: {what}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ConformanceError(f"within {timeout_s:g} s there was not: {what}") from None
        self.check()

    async def until_ended(self, *answers: AttemptAnswer) -> None:
        """Until all have ended."""
        await self.until(lambda: all(answer.has_ended for answer in answers), "the end of every answer")

    async def until_lost(self, timeout_s: float | None = None) -> None:
        """Until the worker has closed the connection."""
        timeout_s = WAIT_S if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self.lost is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ConformanceError(f"the worker did not close the connection within {timeout_s:g} s") from None

    async def ping(self, nonce: int) -> None:
        """Raises ConformanceError if there is no answer to a ping."""
        self.send(Ping(nonce))
        await self.until(lambda: nonce in self.pongs, f"Pong({nonce})")

    def check(self) -> None:
        """Raises the rule that the worker has broken first, if there is one."""
        if self._broken is not None:
            raise self._broken

    def _received(self, message: WorkerMessage) -> None:
        try:
            self._keep(message)
        except ConformanceError as error:
            self._broken = self._broken or error
        self._changed.set()

    def _keep(self, message: WorkerMessage) -> None:
        match message:
            case Hello():
                if self.hello is not None:
                    raise ConformanceError("a second Hello on one connection")
                self.hello = message
            case Credits():
                self._check_credits(message)
                self.credits = message
            case Pong(nonce):
                self.pongs.append(nonce)
            case StepOutput(chunks):
                for chunk in chunks:
                    self._answer_to(chunk.request_id, chunk.attempt).add(chunk)
            case Failed():
                self._answer_to(message.request_id, message.attempt).fail(message)
            case _:
                pass  # statistics and the like

    def _answer_to(self, request_id: str, attempt: int) -> AttemptAnswer:
        answer = self.answers.get((request_id, attempt))
        if answer is None:
            raise ConformanceError(f"there is no attempt {attempt} of {request_id!r}")
        return answer

    def _check_credits(self, credits: Credits) -> None:
        hello = self.hello
        if hello is None:
            raise ConformanceError("Credits before Hello")
        bounds = (
            ("free_slots", credits.free_slots, hello.max_slots),
            ("free_pages", credits.free_pages, hello.num_pages),
            ("free_tokens", credits.free_tokens, hello.max_queued_tokens),
            ("ack_seq", credits.ack_seq, self._seq),
        )
        for name, value, most in bounds:
            if not 0 <= value <= most:
                raise ConformanceError(f"Credits.{name} is {value}, it must be 0 to {most}")

    def _lost(self, reason: Exception | None) -> None:
        unread = isinstance(reason, WireError)  # the connection was closed here
        self.lost = f"sent what cannot be read ({reason})" if unread else "closed the connection"
        self._changed.set()
