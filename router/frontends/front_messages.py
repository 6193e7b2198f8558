"""Messages between a front process and the dispatcher's process, over a socket pair of their own.

    front                        dispatcher
      <----------- Begin -------------          once: what to serve, and where
      ------------ Listening --------->
      ------------ Submit ------------>  ... Scored, Output(emitted, ended), many to a message
      ------------ TurnEnded --------->          which tools an answer calls
      ------------ Enter ------------->  Entered          limits of API keys, counted here alone
      ------------ Settle, Counts ---->
      ------------ Refused ----------->          by a limit, or before it was submitted
      ------------ Ask --------------->  FrontAnswer      every path that is not a generation's
      <----------- TakeOver -----------          once, when the workers to come are known
      <----------- LoadModel ---------->  ModelLoaded      read, and not served yet
      <----------- NameModel, RemoveModel
      <----------- ServedLimits, Leave, DrainFront

Requests have numbers that the front gives; ids would be most of each token's message. Fields called `pickled` hold
objects that only Slipstream's own processes, of one version, ever exchange.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.router.access.usage import UsageCounts
from slipstream.router.http.http_error import HttpError, RequestError
from slipstream.router.protocol.generation import (
    EarlyEnd,
    GenerateRequest,
    GenerationError,
    GenerationFinish,
    Resumed,
    Retention,
    Slo,
)
from slipstream.router.protocol.messages import SamplingParams, TokenLogprob
from slipstream.router.protocol.messages.prompt_scores import ScoredTokens
from slipstream.router.protocol.wire import Vocabulary
from slipstream.router.registry.worker_abilities import NO_ABILITIES, WorkerAbilities
from slipstream.router.requests.history import Timeline


@dataclass(frozen=True, slots=True)
class Listening:
    port: int


@dataclass(frozen=True, slots=True)
class Submit:
    """A `GenerateRequest`."""

    number: int
    request_id: str
    prompt_ids: bytes
    sampling: SamplingParams
    priority: int
    cache_salt: str
    tenant: str
    names: tuple[str, ...]
    slo: Slo
    session: str
    expected_output_tokens: int | None
    timeout_s: float | None
    weight: float
    local_prefill_max_tokens: int | None
    choice: int
    trace_id: str
    trace_span: str
    version: str
    first_choice: str
    wants_record: bool
    resumed: Resumed | None
    model: str
    versions: tuple[str, ...]
    replaces: str
    retention: Retention | None
    keeps_version: bool
    is_background: bool = False
    follows: bool = False

    @classmethod
    def of(cls, request: GenerateRequest, number: int) -> Submit:
        """Raises ValueError or OverflowError if the prompt is none."""
        return cls(number=number, **request._asdict() | {"prompt_ids": request.packed_prompt()})

    def request(self) -> GenerateRequest:
        return GenerateRequest(**{name: getattr(self, name) for name in GenerateRequest._fields})


@dataclass(frozen=True, slots=True)
class CancelRequest:
    number: int
    reason: EarlyEnd = "abort"


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The answer of a request that has ended, which came with a `Retention`, calls these tools."""

    model: str
    request_id: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Enter:
    """Let in a request of the API key with this digest, if its limits allow."""

    number: int
    digest: bytes
    model: str
    num_tokens: int
    num_sequences: int
    is_resumed: bool


@dataclass(frozen=True, slots=True)
class Settle:
    """What a request has used. `number` is that of its Enter; 0: it needed none, because there are no keys."""

    number: int
    model: str
    used: UsageCounts


@dataclass(frozen=True, slots=True)
class Counts:
    """All that the front has counted since it began, a JSON object; and how many clients are connected to it."""

    counts: bytes
    num_connections: int


@dataclass(frozen=True, slots=True)
class Ask:
    """An HTTP request that the dispatcher's process answers."""

    number: int
    method: str
    path: str
    query: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """The client no longer waits for the answer."""

    number: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was refused without a Submit. `pickled` is a `RejectedRequest`, for `explain`."""

    pickled: bytes


@dataclass(frozen=True, slots=True)
class Begin:
    """`pickled` is a `FrontSetup`."""

    pickled: bytes


@dataclass(frozen=True, slots=True)
class ServedLimits:
    """What depends on the workers of a model that are connected."""

    model: str
    max_model_len: int | None
    versions: tuple[str, ...] = ()
    shares: tuple[tuple[str, float], ...] = ()  # of new requests, by version
    abilities: WorkerAbilities = NO_ABILITIES


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Read the files of a model. `pickled` is a `FrontModel`. `number` is that of a load that is awaited; 0: the
    model is served already."""

    pickled: bytes
    number: int = 0


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """`error` says why a model cannot be read; "": it has been read. `number` is that of the `LoadModel`."""

    model: str
    error: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class NameModel:
    """A model that has been read is to be served under its name and these aliases; one that `is_leaving` begins no more
    answers."""

    model: str
    aliases: tuple[str, ...]
    is_leaving: bool


@dataclass(frozen=True, slots=True)
class RemoveModel:
    """Forget a model, be it served or only read."""

    model: str


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Continue with the clients of the previous front."""


@dataclass(frozen=True, slots=True)
class Emitted:
    number: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    version: str = ""  # of the model, if it is another one than before


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of the prompt of a request, before its first token."""

    number: int
    scores: ScoredTokens


@dataclass(frozen=True, slots=True)
class Ended:
    """After the last tokens of the request, or instead of any: a refusal is an end, too. `pickled` is the record if it
    was wanted."""

    number: int
    finish: GenerationFinish
    timeline: Timeline
    pickled: bytes


@dataclass(frozen=True, slots=True)
class Output:
    """What became known in one turn of the dispatcher's loop. Of one request, tokens come before its end."""

    emitted: tuple[Emitted, ...]
    ended: tuple[Ended, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An `HttpError`; a `RequestError` has an `error`."""

    status: int
    message: str
    kind: str
    param: str | None
    code: str | None
    headers: tuple[tuple[str, str], ...]
    error: GenerationError | None

    @classmethod
    def of(cls, refused: HttpError) -> Refusal:
        error = refused.error if isinstance(refused, RequestError) else None
        return cls(refused.status, refused.message, refused.kind, refused.param, refused.code, refused.headers, error)

    def exception(self) -> HttpError:
        if self.error is None:
            return HttpError(
                self.status, self.message, kind=self.kind, param=self.param, code=self.code, headers=self.headers
            )
        return RequestError(
            self.status,
            self.message,
            self.error,
            kind=self.kind,
            param=self.param,
            code=self.code,
            headers=self.headers,
        )


@dataclass(frozen=True, slots=True)
class Entered:
    """`header_lines` for the response; `refusal` if it was not let in."""

    number: int
    header_lines: str
    refusal: Refusal | None


@dataclass(frozen=True, slots=True)
class FrontAnswer:
    number: int
    status: int
    content_type: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Leave:
    """Connections are to be closed after their next response."""


@dataclass(frozen=True, slots=True)
class DrainFront:
    """Accept no more connections, end what runs within `deadline_s`, then exit."""

    deadline_s: float


FrontMessage = (
    Listening | Submit | CancelRequest | Enter | Settle | Counts | Ask | Forget | Refused | ModelLoaded | TurnEnded
)
ModelChange = LoadModel | NameModel | RemoveModel
DispatcherMessage = (
    Begin | ServedLimits | ModelChange | TakeOver | Scored | Output | Entered | FrontAnswer | Leave | DrainFront
)

FRONTS = Vocabulary(
    {
        Listening: 1,
        Submit: 2,
        CancelRequest: 3,
        Enter: 4,
        Settle: 5,
        Counts: 6,
        Ask: 7,
        Forget: 8,
        Refused: 9,
        ModelLoaded: 10,
        TurnEnded: 11,
        Begin: 32,
        ServedLimits: 33,
        Output: 34,
        Entered: 35,
        FrontAnswer: 36,
        DrainFront: 37,
        TakeOver: 38,
        Leave: 39,
        LoadModel: 40,
        NameModel: 41,
        RemoveModel: 42,
        Scored: 43,
    }
)
