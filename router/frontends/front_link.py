"""The dispatcher's end of the connection to one front process."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from slipstream.router.access.access import Access, Permit
from slipstream.router.access.caller import ANYBODY
from slipstream.router.access.usage import UsageCounts
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.api.held_exchange import HeldExchange
from slipstream.router.frontends.front_messages import (
    Ask,
    CancelRequest,
    Counts,
    DispatcherMessage,
    Emitted,
    Ended,
    Enter,
    Entered,
    Forget,
    FrontAnswer,
    FrontMessage,
    Output,
    Refusal,
    Refused,
    Scored,
    Settle,
    Submit,
    TurnEnded,
)
from slipstream.router.frontends.remote_dispatcher import NO_USAGE
from slipstream.router.frontends.tally import FrontTally
from slipstream.router.http.exchange import Handler
from slipstream.router.http.http_error import HttpError, internal_error
from slipstream.router.http.reader import Request
from slipstream.router.protocol.generation import AdmissionError, EarlyEnd, GenerateRequest, GenerationFinish, Usage
from slipstream.router.protocol.messages import TokenLogprob
from slipstream.router.protocol.messages.prompt_scores import ScoredTokens
from slipstream.router.requests.history import RequestRecord, Timeline
from slipstream.router.requests.receiver import Receiver
from slipstream.router.requests.rejections import RejectedRequest

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Receiver)


class RelayService(Protocol):
    """What a link needs of `GenerationService`."""

    def relay(self, request: GenerateRequest, receiver_of: Callable[[RequestRecord], R]) -> R: ...
    def cancel(self, request_id: str, reason: EarlyEnd = "abort") -> None: ...
    def note_refused(self, refused: RejectedRequest) -> None: ...
    def turn_ended(self, model: str, request_id: str, tools: Sequence[str]) -> None: ...


class RelayedRequest:
    """A request's output, on its way to the front that it came from."""

    __slots__ = ("_link", "_sent_version", "_wants_record", "number", "record")

    def __init__(self, link: FrontLink, message: Submit, record: RequestRecord) -> None:
        self._link = link
        self._wants_record = message.wants_record
        self._sent_version = ""
        self.number = message.number
        self.record = record

    def deliver(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> None:
        version = self.record.version
        if version == self._sent_version:
            self._link.emit(Emitted(self.number, token_ids, logprobs))
        else:
            self._sent_version = version
            self._link.emit(Emitted(self.number, token_ids, logprobs, version))

    def deliver_scores(self, scores: ScoredTokens) -> None:
        self._link.send_scores(Scored(self.number, scores))

    def end(self, finish: GenerationFinish) -> None:
        pickled = pickle.dumps(self.record) if self._wants_record else b""
        self._link.end(Ended(self.number, finish, self.record.timeline, pickled))


class FrontLink:
    """Serves one front, and ends its requests when the front has ended. `answer` serves the paths that are not a
    generation's; `send` puts a message on the connection."""

    def __init__(
        self,
        service: RelayService,
        access: Access,
        tally: FrontTally,
        answer: Handler[ExchangeContext],
        send: Callable[[DispatcherMessage], None],
        *,
        clients_outlive_it: bool = False,
    ) -> None:
        self._service = service
        self._access = access
        self._tally = tally
        self._answer = answer
        self._send = send
        self._clients_outlive_it = clients_outlive_it
        self._running: dict[int, str] = {}  # request ids
        self._permits: dict[int, Permit] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._emitted: list[Emitted] = []
        self._ended: list[Ended] = []
        self.num_connections = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    def received(self, message: FrontMessage) -> None:
        match message:
            case Submit():
                self._submit(message)
            case CancelRequest(number, reason):
                request_id = self._running.get(number)
                if request_id is not None:
                    self._service.cancel(request_id, reason)
            case Enter():
                self._enter(message)
            case Settle():
                self._settle(message)
            case TurnEnded(model, request_id, tools):
                self._service.turn_ended(model, request_id, tools)
            case Refused(pickled):
                self._service.note_refused(pickle.loads(pickled))
            case Counts(counts, num_connections):
                self._tally.add(counts)
                self.num_connections = num_connections
            case Ask(number=number):
                task = asyncio.get_running_loop().create_task(self._serve(message))
                self._answering[number] = task
                task.add_done_callback(lambda _: self._answering.pop(number, None))
            case Forget(number):
                if number in self._answering:
                    self._answering[number].cancel()

    def lost(self) -> None:
        """The front has ended, and its clients with it, unless they outlive it and wait for the next one."""
        for task in self._answering.values():
            task.cancel()
        for request_id in list(self._running.values()):
            self._service.cancel(request_id)
        used = UsageCounts() if self._clients_outlive_it else NO_USAGE  # the next front counts the rest
        for permit in self._permits.values():
            self._access.settle(permit, used)
        self._permits.clear()
        self.num_connections = 0

    def _submit(self, message: Submit) -> None:
        request = message.request()
        self._running[message.number] = request.request_id
        try:
            self._service.relay(request, lambda record: RelayedRequest(self, message, record))
        except AdmissionError as refused:
            usage = Usage(len(message.prompt_ids) // 4, 0, 0)
            finish = GenerationFinish("error", usage, error=refused.error)
            self.end(Ended(message.number, finish, Timeline(0.0), b""))

    def send_scores(self, scored: Scored) -> None:
        """They leave before the tokens of this turn."""
        self._send(scored)

    def emit(self, emitted: Emitted) -> None:
        self._wake()
        self._emitted.append(emitted)

    def end(self, ended: Ended) -> None:
        self._wake()
        self._running.pop(ended.number, None)
        self._ended.append(ended)

    def _wake(self) -> None:
        if not (self._emitted or self._ended):
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        output = Output(tuple(self._emitted), tuple(self._ended))
        self._emitted, self._ended = [], []
        self._send(output)

    def _enter(self, message: Enter) -> None:
        refusal, lines = None, ""
        try:
            caller = self._access.keys.caller_of(message.digest)
            permit, lines = self._access.admit(
                caller, message.model, message.num_tokens, message.num_sequences, message.is_resumed
            )
            self._permits[message.number] = permit
        except HttpError as error:
            refusal = Refusal.of(error)
        self._send(Entered(message.number, lines, refusal))

    def _settle(self, message: Settle) -> None:
        permit = self._permits.pop(message.number, None)
        if permit is None:
            if message.number:
                return  # it had been refused
            permit = Permit(ANYBODY, message.model, 0, 0)
        self._access.settle(permit, message.used)

    async def _serve(self, message: Ask) -> None:
        headers = dict(message.headers)
        request = Request(
            message.method, message.path, message.query, headers, message.body, keep_alive=True, http10=False
        )
        exchange = HeldExchange(request, ExchangeContext())
        try:
            await self._answer(request, exchange)
        except HttpError as error:
            exchange.fail(error)
        except Exception:  # as in `HttpConnection`: the client waits at the front for an answer
            log.exception("%s %s failed", request.method, request.path)
            exchange.fail(internal_error())
        self._send(FrontAnswer(message.number, exchange.status, exchange.content_type, exchange.headers, exchange.body))
