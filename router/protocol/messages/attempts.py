"""The messages about one attempt at a request, from its beginning to its end.

    router                    decode worker       prefill group
      |------ Generate ------------>|                   |      locally: the decode worker computes the prompt, too
      |<----- StepOutput ... -------|                   |      (where they are wanted, PromptScores come before)
      |                             |                   |
      |------ Reserve ------------->|                   |      remotely
      |<----- Reserved -------------|                   |
      |------ Prefill --------------------------------->|
      |                             |<===== pages ======|
      |<----- StepOutput (first token) -----------------|
      |------ Start --------------->|                   |
      |<----- HandedOff, StepOutput ...                 |

`Retain` may follow an end. `Cancel` drops an attempt at any time; `Failed` says that a worker has given it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.messages.prompt_scores import ScoredTokens
from slipstream.router.protocol.messages.request import EngineRequest, RetentionHint

FinishReason = Literal["stop", "length", "abort", "error"]
FaultKind = Literal["invalid_request", "logits_processor_failed"]


class Generate(NamedTuple):
    """Decode worker: prefill here in chunks and decode. Converts a reservation of the same attempt, if there is one."""

    seq: int
    request: EngineRequest


class Reserve(NamedTuple):
    """Decode worker: lease pages for the prompt and post receives for what `source` will send."""

    seq: int
    request: EngineRequest
    source: PeerId
    source_tp: int


class Prefill(NamedTuple):
    """Prefill group: compute the prompt, sample one token, send the pages that the ticket asks for."""

    seq: int
    request: EngineRequest
    ticket: HandoffTicket


class Start(NamedTuple):
    """Decode worker: decode on from `token_ids` as soon as the pages have arrived."""

    request_id: str
    attempt: int
    token_ids: tuple[int, ...]


class Cancel(NamedTuple):
    """Drop the attempt, and free its pages once no transfer can touch them any more. Unknown ids are ignored."""

    request_id: str
    attempt: int


class Retain(NamedTuple):
    """The pages of a request that came with a hint, and has ended, are kept by this hint from now on. Unknown requests
    are ignored: their pages may have gone."""

    request_id: str
    retention: RetentionHint


class Reserved(NamedTuple):
    """Decode worker: pages are leased and receives are posted. `num_cached_tokens` of the prompt were already cached
    there."""

    request_id: str
    attempt: int
    num_cached_tokens: int
    ticket: HandoffTicket


class TokenLogprob(NamedTuple):
    """The log-probability of a token; `top` are the best alternatives as (token id, logprob) pairs, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenChunk(NamedTuple):
    """Tokens `index .. index+len` of a request's output. `index` counts from the first token ever generated for it."""

    request_id: str
    attempt: int
    index: int  # type: ignore[assignment]  # hides `tuple.index`, which is never called on a chunk
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0


class StepOutput(NamedTuple):
    """All tokens of one engine step."""

    chunks: tuple[TokenChunk, ...]


class PromptScores(NamedTuple):
    """Log-probabilities of prompt tokens, from the worker that computes the prompt: in order, as they are computed, and
    all of them before the first token of the output or, without one, before its end."""

    request_id: str
    attempt: int
    scores: ScoredTokens


class HandedOff(NamedTuple):
    """Decode worker: all pages have arrived intact, and it owns them now."""

    request_id: str
    attempt: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker has given the attempt up and holds nothing of it any more. If it is not retryable, no other worker
    could do better, for the request itself is at fault, or a logits processor that it has chosen (`kind`).
    `is_unreachable`: the other end of its transfer could not be reached."""

    request_id: str
    attempt: int
    reason: str
    retryable: bool
    is_unreachable: bool = False
    kind: FaultKind = "invalid_request"
