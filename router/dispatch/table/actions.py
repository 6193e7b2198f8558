"""Actions: what the dispatcher's shell has to do.

Actions that occur several times per request are named tuples, because a frozen dataclass takes three times as long to
create.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.generation import GenerationFinish
from slipstream.router.protocol.messages import RouterMessage, TokenLogprob
from slipstream.router.protocol.messages.prompt_scores import ScoredTokens


class Send(NamedTuple):
    """Sends a message to a worker, after all earlier ones to that worker."""

    worker: PeerId
    message: RouterMessage


@dataclass(frozen=True, slots=True)
class Close:
    """Close a worker's connection; the dispatcher has already forgotten the worker."""

    worker: PeerId
    reason: str


class Emit(NamedTuple):
    """The next tokens for the client. `logprobs` is empty or has one entry per token."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]


class EmitScores(NamedTuple):
    """The next log-probabilities of the prompt, before the first token."""

    request_id: str
    scores: ScoredTokens


# Makes an `Emit` from a tuple of its fields. Calling the class takes twice as long, on every token.
emit_of: Callable[[tuple[str, tuple[int, ...], tuple[TokenLogprob, ...]]], Emit] = partial(tuple.__new__, Emit)


class Finish(NamedTuple):
    """The end of a request, after its last tokens. Every submitted request gets exactly one."""

    request_id: str
    finish: GenerationFinish


Action = Send | Close | Emit | EmitScores | Finish
