"""Who receives the output of a request."""

from __future__ import annotations

from typing import Protocol

from slipstream.router.protocol.generation import GenerationFinish
from slipstream.router.protocol.messages import TokenLogprob
from slipstream.router.protocol.messages.prompt_scores import ScoredTokens
from slipstream.router.requests.history import RequestRecord


class Receiver(Protocol):
    """Receives the output of a request: a stream of this process, or a link to another process."""

    @property
    def record(self) -> RequestRecord: ...
    def deliver(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> None: ...
    def deliver_scores(self, scores: ScoredTokens) -> None: ...
    def end(self, finish: GenerationFinish) -> None: ...
