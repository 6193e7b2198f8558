"""The dispatcher as a front process sees it: the calls of the service, over a link."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from slipstream.router.access.usage import UsageCounts
from slipstream.router.frontends.front_messages import (
    Ask,
    CancelRequest,
    Ended,
    Enter,
    Entered,
    Forget,
    FrontAnswer,
    FrontMessage,
    Output,
    Refused,
    Scored,
    ServedLimits,
    Settle,
    Submit,
    TurnEnded,
)
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.protocol.generation import (
    EarlyEnd,
    GenerateRequest,
    GenerationError,
    GenerationFinish,
    InvalidRequestError,
    ShuttingDownError,
    Usage,
)
from slipstream.router.protocol.wire import WireError
from slipstream.router.registry.worker_abilities import NO_ABILITIES, WorkerAbilities
from slipstream.router.requests.history import RequestRecord, Timeline
from slipstream.router.requests.rejections import RejectedRequest
from slipstream.router.requests.stream import GenerationStream, Handouts

LOST = GenerationError("shutting_down", "the router's dispatcher has ended", retry_after_s=1.0)
MAX_ASK_BYTES = 1 << 20  # of the body of a question that the dispatcher's process answers
NO_USAGE = UsageCounts(num_requests=1, num_errors=1)


@dataclass(slots=True)
class RunningRequest:
    """A request at the dispatcher, and how many of its tokens came."""

    stream: GenerationStream
    num_output_tokens: int = 0


class RemoteDispatcher:
    """What `ApiFront` needs of a service. `send` puts a message on the link; `received` takes what comes from it. With
    `traces` the records of all requests come back with their ends."""

    def __init__(self, send: Callable[[FrontMessage], None], traces: bool) -> None:
        self._send = send
        self._traces = traces
        self._numbers = itertools.count(1)
        self._running: dict[int, RunningRequest] = {}
        self._handouts = Handouts()
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._is_lost = False
        self._limits: dict[str, ServedLimits] = {}  # by model

    def versions_of(self, model: str) -> tuple[str, ...]:
        """The versions that some decode worker takes requests for."""
        limits = self._limits.get(model)
        return () if limits is None else limits.versions

    def shares_of(self, model: str) -> Mapping[str, float]:
        """The shares of new requests that these versions have, in any unit."""
        limits = self._limits.get(model)
        return {} if limits is None else dict(limits.shares)

    def max_model_len_of(self, model: str) -> int | None:
        """The longest sequence (prompt and output) that a worker takes; None: not known yet."""
        limits = self._limits.get(model)
        return None if limits is None else limits.max_model_len

    def abilities_of(self, model: str) -> WorkerAbilities:
        """What requests may ask of the connected workers."""
        limits = self._limits.get(model)
        return NO_ABILITIES if limits is None else limits.abilities

    def submit(self, request: GenerateRequest) -> GenerationStream:
        """A refusal comes as the end of the stream. Raises ShuttingDownError, InvalidRequestError."""
        if self._is_lost:
            raise ShuttingDownError
        number = next(self._numbers)
        if self._traces:
            request = request._replace(wants_record=True)
        try:
            message = Submit.of(request, number)
        except (ValueError, OverflowError) as error:
            raise InvalidRequestError(f"the prompt is not a list of token ids: {error}") from error
        record = RequestRecord(
            request.request_id,
            request.tenant,
            request.priority,
            len(message.prompt_ids) // 4,
            Timeline(time.monotonic()),
            model=request.model,
        )
        try:
            self._send(message)
        except WireError as error:
            raise InvalidRequestError(str(error)) from error
        stream = GenerationStream(record, lambda _, reason: self._cancel(number, reason), self._handouts)
        self._running[number] = RunningRequest(stream)
        return stream

    def note_refused(self, refused: RejectedRequest) -> None:
        """The dispatcher's process explains it, as all requests."""
        if not self._is_lost:
            self._send(Refused(pickle.dumps(refused)))

    def turn_ended(self, model: str, request_id: str, tools: Sequence[str]) -> None:
        """Which tools an answer calls. Nothing is kept of it if the dispatcher has ended."""
        if not self._is_lost:
            self._send(TurnEnded(model, request_id, tuple(tools)))

    def _cancel(self, number: int, reason: EarlyEnd) -> None:
        running = self._running.pop(number, None)
        if running is not None:
            self._send(CancelRequest(number, reason))
            usage = Usage(running.stream.record.num_prompt_tokens, running.num_output_tokens, 0)
            running.stream.end(GenerationFinish(reason, usage))

    async def ask(self, request: Request, request_id: str) -> FrontAnswer:
        """Has the dispatcher's process answer an HTTP request. Raises HttpError 503 if it has ended, 413 for a body
        that no such question has."""
        if len(request.body) > MAX_ASK_BYTES:
            limit = f"{MAX_ASK_BYTES} bytes that {request.path} may have"
            raise HttpError(413, f"The body is larger than the {limit}.", code="body_too_large")
        number = next(self._numbers)
        headers = tuple((request.headers | {b"x-request-id": request_id.encode()}).items())
        message = Ask(number, request.method, request.path, request.query, headers, request.body)
        answer: FrontAnswer = await self._call(number, message, Forget(number))
        return answer

    async def enter(self, digest: bytes, model: str, num_tokens: int, num_sequences: int, is_resumed: bool) -> Entered:
        """Raises HttpError 503 if the dispatcher has ended."""
        number = next(self._numbers)
        message = Enter(number, digest, model, num_tokens, num_sequences, is_resumed)
        entered: Entered = await self._call(number, message, Settle(number, model, NO_USAGE))
        return entered

    def settle(self, number: int, model: str, used: UsageCounts) -> None:
        """`number` is that of the Enter, 0 if there was none."""
        self._send(Settle(number, model, used))

    async def _call(self, number: int, message: FrontMessage, if_cancelled: FrontMessage) -> Any:
        if self._is_lost:
            raise dispatcher_is_gone()
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(message)
            return await reply
        except asyncio.CancelledError:
            self._send(if_cancelled)
            raise
        finally:
            del self._replies[number]

    def received(self, message: ServedLimits | Scored | Output | Entered | FrontAnswer) -> None:
        match message:
            case Output(emitted, ended):
                for one in emitted:
                    running = self._running.get(one.number)
                    if running is not None:
                        running.num_output_tokens += len(one.token_ids)
                        if one.version:
                            running.stream.record.version = one.version
                        running.stream.deliver(one.token_ids, one.logprobs)
                for end in ended:
                    self._end(end)
            case Scored(number, scores):
                running = self._running.get(number)
                if running is not None:
                    running.stream.deliver_scores(scores)
            case ServedLimits(model):
                self._limits[model] = message
            case Entered() | FrontAnswer():
                reply = self._replies.get(message.number)
                if reply is not None and not reply.done():
                    reply.set_result(message)

    def lost(self) -> None:
        """The dispatcher has ended, and everything here ends."""
        self._is_lost = True
        for running in self._running.values():
            usage = Usage(running.stream.record.num_prompt_tokens, running.num_output_tokens, 0)
            running.stream.end(GenerationFinish("error", usage, error=LOST))
        self._running.clear()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(dispatcher_is_gone())

    def _end(self, ended: Ended) -> None:
        running = self._running.pop(ended.number, None)
        if running is None:
            return
        record = running.stream.record
        if ended.pickled:
            whole: RequestRecord = pickle.loads(ended.pickled)
            for field in fields(whole):
                setattr(record, field.name, getattr(whole, field.name))
        record.timeline, record.finish = ended.timeline, ended.finish
        running.stream.end(ended.finish)


def dispatcher_is_gone() -> HttpError:
    message = f"{LOST.message[:1].upper()}{LOST.message[1:]}."
    return HttpError(503, message, kind="server_error", code="shutting_down", headers=(("retry-after", "1"),))
