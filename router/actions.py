"""What the dispatcher wants done.

What there is several times a request is a tuple: a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.generation import GenerationFinish
from slipstream.router.messages import RouterMessage, TokenLogprob


class Send(NamedTuple):
    """A message for a worker, in order."""

    worker: PeerId
    message: RouterMessage


@dataclass(frozen=True, slots=True)
class Close:
    """Close a worker's connection; the dispatcher has already forgotten the worker."""

    worker: PeerId
    reason: str


class Emit(NamedTuple):
    """The next tokens for the client. `logprobs` is empty or has one entry a token."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]


# An `Emit` of a tuple of its fields: as by calling the class, which takes twice as long, for each token.
emit_of: Callable[[tuple[str, tuple[int, ...], tuple[TokenLogprob, ...]]], Emit] = partial(tuple.__new__, Emit)


class Finish(NamedTuple):
    """The end of a request, after its last tokens. Exactly one comes for each submitted request."""

    request_id: str
    finish: GenerationFinish


Action = Send | Close | Emit | Finish
