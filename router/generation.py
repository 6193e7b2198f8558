"""What the front asks for and what it gets: a generation request, its end, and the reasons to say no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from slipstream.router.messages import FinishReason, SamplingParams, pack_ids

# Why the reader of a stream ends it: it has left, or it has found what the output was to stop at.
EarlyEnd = Literal["abort", "stop"]
Phase = Literal["queued", "placed", "reserved", "prefill", "first_token", "transfer", "decode", "finished"]

# Who is at fault, and so the HTTP status: the request (400), its size (400), load (503 with Retry-After), its
# tenant's load (429 with Retry-After), load that leaves its deadline no hope (503 with Retry-After), load in spite of
# hope (503), its deadline (504), the workers after all retries (500 or an error event in the stream), the server
# leaving (503).
ErrorKind = Literal[
    "invalid_request",
    "prompt_too_long",
    "queue_full",
    "tenant_queue_full",
    "deadline_unreachable",
    "queue_timeout",
    "request_timeout",
    "worker_failed",
    "shutting_down",
]


@dataclass(frozen=True, slots=True)
class Slo:
    """What the client hopes for, in seconds: time to first token, and between tokens. None: the cluster's default.
    `strict`: who cannot have the first token in time wants to be told so at once."""

    ttft_s: float | None = None
    itl_s: float | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Resumed:
    """A request that was let in by a router that is gone: how far it has come there, as packed int32, and with which
    version of the model, "" if none was known."""

    output_ids: bytes
    version: str


class GenerateRequest(NamedTuple):
    """`prompt_ids` as a list or packed by `messages.pack_ids`. Lower `priority` is more urgent. `cache_salt` keeps
    prefix caches of different values apart; `tenant` is for accounting and fairness. `request_id` is unique; `names`
    are what else the client may ask for it by, and may be used again.

    `session` names a conversation, whose requests had better go where its KV is. `expected_output_tokens` is the
    client's guess, below `sampling.max_tokens`. `timeout_s`, from being queued to the end, can only shorten the
    router's own limit. `weight` is the tenant's share of the cluster beside others of its class; `choice` counts the
    requests that one question of a client became. `local_prefill_max_tokens` draws the line between local and remote
    prefill for this request alone."""

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
    version: str = ""  # of the model, that the client has asked for; "": any
    first_choice: str = ""  # the request id of the first choice of the same answer: all have one version
    wants_record: bool = False  # the answer will tell the whole record, so it must get to whoever writes the answer
    resumed: Resumed | None = None

    def packed_prompt(self) -> bytes:
        """The prompt as packed int32. Raises ValueError or OverflowError if it is not one."""
        if not isinstance(self.prompt_ids, bytes):
            return pack_ids(self.prompt_ids)
        if len(self.prompt_ids) % 4:
            raise ValueError(f"packed prompt ids of {len(self.prompt_ids)} bytes are not whole int32 values")
        return self.prompt_ids


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. `num_cached_tokens` of the prompt were found in a prefix cache."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class GenerationError:
    """`retry_after_s` is given where trying again later makes sense."""

    kind: ErrorKind
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class GenerationFinish:
    """The one end of every request. `error` is given exactly when `reason` is "error"."""

    reason: FinishReason
    usage: Usage
    stop_token_id: int | None = None
    error: GenerationError | None = None


class AdmissionError(Exception):
    """The request was not taken. `error` says why, and after how long another try is worth it."""

    def __init__(self, error: GenerationError) -> None:
        super().__init__(error.message)
        self.error = error


class QueueFullError(AdmissionError):
    """`max_queued_requests` are waiting already."""

    def __init__(self, num_queued: int, retry_after_s: float) -> None:
        super().__init__(GenerationError("queue_full", f"{num_queued} requests are waiting already", retry_after_s))


class TenantQueueFullError(AdmissionError):
    """So many requests of one tenant are waiting that a further one would be at the cost of others."""

    def __init__(self, num_queued: int, retry_after_s: float) -> None:
        message = f"{num_queued} requests of this tenant are waiting already"
        super().__init__(GenerationError("tenant_queue_full", message, retry_after_s))


class DeadlineUnreachableError(AdmissionError):
    """The queue is so long that the request could not keep the deadline called `name`."""

    def __init__(self, name: str, limit_s: float, wait_s: float, retry_after_s: float) -> None:
        message = f"the queue takes about {wait_s:.1f} s, which leaves no hope for {name} ({limit_s:g} s)"
        super().__init__(GenerationError("deadline_unreachable", message, retry_after_s))


class PromptTooLongError(AdmissionError):
    """No connected worker could ever hold the prompt."""

    def __init__(self, message: str) -> None:
        super().__init__(GenerationError("prompt_too_long", message))


class InvalidRequestError(AdmissionError):
    """A value that no worker could accept: an empty prompt, a number out of range, a request id in use."""

    def __init__(self, message: str) -> None:
        super().__init__(GenerationError("invalid_request", message))


class ShuttingDownError(AdmissionError):
    """The router finishes what it has and takes nothing new."""

    def __init__(self) -> None:
        super().__init__(GenerationError("shutting_down", "the server is shutting down", retry_after_s=1.0))
