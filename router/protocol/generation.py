"""A generation request, its finish, and the reasons to refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from slipstream.router.protocol.messages import FinishReason, SamplingParams, TokenLogprob, pack_ids

Delta = list[tuple[int, TokenLogprob | None]]  # tokens that came together, in order
# Why the reader of a stream ends it: the client has left ("abort"), or a stop string was found ("stop").
EarlyEnd = Literal["abort", "stop"]
Phase = Literal["queued", "placed", "reserved", "prefill", "first_token", "transfer", "decode", "finished", "refused"]

# `openai.failures` gives each its HTTP status.
ErrorKind = Literal[
    "invalid_request",
    "prompt_too_long",
    "limit_exceeded",  # of its API key
    "not_ready",  # no worker yet
    "queue_full",
    "tenant_queue_full",
    "deadline_unreachable",  # because of those that wait already
    "queue_timeout",
    "request_timeout",
    "worker_failed",  # after all attempts
    "logits_processor_failed",  # a logits processor of the request
    "shutting_down",
    "model_not_found",  # it is not served, or is being removed
]


class Levels(NamedTuple):
    """The service levels that a request is placed and judged by: seconds to the first token, and between tokens."""

    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True)
class Slo:
    """The service level that the client asks for: seconds to the first token, and between tokens (None: the cluster's
    default). With `strict`, the request is refused at once if the first token cannot come in time."""

    ttft_s: float | None = None
    itl_s: float | None = None
    strict: bool = False

    def or_default(self, default: Levels) -> Levels:
        return Levels(
            self.ttft_s if self.ttft_s is not None else default.ttft_s,
            self.itl_s if self.itl_s is not None else default.itl_s,
        )


@dataclass(frozen=True, slots=True)
class Resumed:
    """How far a request had come at a router that has died since: its output so far as packed int32, and the version of
    the model that it ran on ("" if none was chosen yet)."""

    output_ids: bytes
    version: str


@dataclass(frozen=True, slots=True)
class Retention:
    """Another request that begins with the tokens of this one may follow: its answer may call tools, or the client
    asks to keep its KV for `pinned_s` seconds (0: it does not)."""

    pinned_s: float = 0.0


class GenerateRequest(NamedTuple):
    """One generation: a prompt, sampling parameters, and the tenant.

    `model` is the name of the model, after aliases have been resolved; "" is for a router that serves a single model.

    `request_id` is unique; `names` are other names that the client may ask about it by, and need not be unique.
    `prompt_ids` is a list, or packed by `messages.pack_ids`. A lower `priority` is more urgent. Requests with different
    `cache_salt` share no prefix cache. `tenant` is accounted and gets a fair share, and `weight` is its share of the
    cluster beside others of the same class.

    `session` names a conversation, whose requests are best placed where its KV is. `expected_output_tokens` is the
    client's guess, below `sampling.max_tokens`. `timeout_s` is the limit from being queued to the end, and can only
    shorten the router's own. If one HTTP request asks for several choices, `choice` numbers them.
    `local_prefill_max_tokens` is the limit for local prefill for this request alone. What `is_background`, such as a
    line of a batch, goes behind all other requests, whatever its `priority`. One that `follows` is a part of a request
    that was let in before, and is let in even by a router that drains."""

    request_id: str
    prompt_ids: bytes | list[int]
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    names: tuple[str, ...] = ()
    slo: Slo = Slo()
    session: str = ""
    expected_output_tokens: int | None = None
    timeout_s: float | None = None
    weight: float = 1.0
    local_prefill_max_tokens: int | None = None
    choice: int = 0
    trace_id: str = ""  # W3C Trace Context, 32 hex digits
    trace_span: str = ""  # the span of the HTTP request, 16 hex digits; "": the trace is not sampled
    version: str = ""  # the version of the model that the client asks for; "": any
    first_choice: str = ""  # the request id of the first choice of the same answer: all get the same version
    wants_record: bool = False  # the answer will contain the whole record, so its writer has to be sent it
    resumed: Resumed | None = None
    model: str = ""
    versions: tuple[str, ...] = ()  # whose tokenizer made the prompt, where versions have several; (): any version
    replaces: str = ""  # the id of an ended request of the same answer, which this one displaces in the history
    retention: Retention | None = None  # None: nothing is known that speaks for keeping its KV
    keeps_version: bool = True  # the session's requests get the same version; False: it only says where KV may be
    is_background: bool = False
    follows: bool = False

    def packed_prompt(self) -> bytes:
        """The prompt as packed int32. Raises ValueError, TypeError or OverflowError if it is not a list of token
        ids."""
        if not isinstance(self.prompt_ids, bytes):
            return pack_ids(self.prompt_ids)
        if len(self.prompt_ids) % 4:
            raise ValueError(f"packed prompt ids of {len(self.prompt_ids)} bytes are not whole int32 values")
        return self.prompt_ids


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens one request used. `num_cached_tokens` of its prompt were found in a prefix cache."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int


class Deadline(NamedTuple):
    """A limit in time, and the field of the request or the key of the configuration that sets it."""

    name: str
    limit_s: float

    def __str__(self) -> str:
        limit = f"{self.limit_s * 1e3:g} ms" if self.name.endswith("_ms") else f"{self.limit_s:g} s"
        return f"{limit} ({self.name})"


class Figure(NamedTuple):
    """A number that a decision was made by; its name says what it counts, and in which unit."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class GenerationError:
    """Why a request failed or was refused. `retry_after_s` is set if it makes sense to try again later."""

    kind: ErrorKind
    message: str
    retry_after_s: float | None = None
    figures: tuple[Figure, ...] = ()


NO_WORKERS_RETRY_S = 30.0  # an operator has to do something
SHUTTING_DOWN = GenerationError("shutting_down", "the server is shutting down", retry_after_s=1.0)


@dataclass(frozen=True, slots=True)
class GenerationFinish:
    """How a request ended; every request ends exactly once. `error` is set if and only if `reason` is "error"."""

    reason: FinishReason
    usage: Usage
    stop_token_id: int | None = None
    error: GenerationError | None = None


class AdmissionError(Exception):
    """The request was refused. `error` says why, and after how long it is worth trying again."""

    def __init__(self, error: GenerationError) -> None:
        super().__init__(error.message)
        self.error = error


class QueueFullError(AdmissionError):
    """`max_queued_requests` requests are waiting already."""

    def __init__(self, num_queued: int, max_queued: int, retry_after_s: float) -> None:
        message = f"{num_queued} requests are waiting already; at most {max_queued} may"
        figures = (Figure("num_waiting", num_queued), Figure("max_waiting", max_queued))
        super().__init__(GenerationError("queue_full", message, retry_after_s, figures))


class TenantQueueFullError(AdmissionError):
    """The tenant has as many requests waiting as one tenant may have."""

    def __init__(self, num_queued: int, max_queued: int, retry_after_s: float) -> None:
        message = f"{num_queued} requests of this tenant are waiting already; at most {max_queued} may"
        figures = (Figure("num_waiting_of_tenant", num_queued), Figure("max_waiting_of_tenant", max_queued))
        super().__init__(GenerationError("tenant_queue_full", message, retry_after_s, figures))


class DeadlineUnreachableError(AdmissionError):
    """The queue is so long that the request could not meet the deadline: of the predicted `wait_s`, even `least_wait_s`
    would be too long."""

    def __init__(
        self, deadline: Deadline, wait_s: float, least_wait_s: float, num_before: int, retry_after_s: float
    ) -> None:
        message = f"the queue takes about {wait_s:.1f} s, and the limit is {deadline}"
        figures = (
            Figure("num_waiting_before", num_before),
            Figure("predicted_wait_s", wait_s),
            Figure("least_wait_s", least_wait_s),
            Figure("deadline_s", deadline.limit_s),
        )
        super().__init__(GenerationError("deadline_unreachable", message, retry_after_s, figures))


class PromptTooLongError(AdmissionError):
    """No connected worker could ever hold the prompt."""

    def __init__(self, message: str) -> None:
        super().__init__(GenerationError("prompt_too_long", message))


class InvalidRequestError(AdmissionError):
    """A field has a value that cannot be accepted: an empty prompt, a number out of range, a request id in use."""

    def __init__(self, message: str) -> None:
        super().__init__(GenerationError("invalid_request", message))


class NoWorkersError(AdmissionError):
    """No decode worker is connected, and none will start without an operator."""

    def __init__(self, reason: str) -> None:
        message = f"no decode worker is left, and none can be started: {reason}"
        super().__init__(GenerationError("not_ready", message, retry_after_s=NO_WORKERS_RETRY_S))


class UnknownModelError(AdmissionError):
    """The router serves no model of this name, or it is being removed."""

    def __init__(self, message: str) -> None:
        super().__init__(GenerationError("model_not_found", message))


class ShuttingDownError(AdmissionError):
    """The router finishes its requests and accepts no new ones."""

    def __init__(self) -> None:
        super().__init__(SHUTTING_DOWN)
