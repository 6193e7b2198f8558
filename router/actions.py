"""What the dispatcher wants done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.generation import GenerationFinish
from slipstream.router.messages import RouterMessage, TokenLogprob


@dataclass(frozen=True, slots=True)
class Send:
    """A message for a worker, in order."""

    worker: PeerId
    message: RouterMessage


@dataclass(frozen=True, slots=True)
class Close:
    """Close a worker's connection; the dispatcher has already forgotten the worker."""

    worker: PeerId
    reason: str


class Emit(NamedTuple):
    """The next tokens for the client. `logprobs` is empty or has one entry a token. (A tuple, as there is one for each
    token, and a frozen dataclass takes twice as long to make.)"""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a request, after its last tokens. Exactly one comes for each submitted request."""

    request_id: str
    finish: GenerationFinish


Action = Send | Close | Emit | Finish
