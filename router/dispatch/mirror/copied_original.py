"""The receiver of a request that is copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.router.dispatch.mirror.mirror import Pair
from slipstream.router.protocol.generation import GenerationFinish
from slipstream.router.protocol.messages import TokenLogprob
from slipstream.router.protocol.messages.prompt_scores import ScoredTokens
from slipstream.router.requests.history import RequestRecord
from slipstream.router.requests.receiver import Receiver


@dataclass(slots=True)
class CopiedOriginal:
    """Notes the tokens of the output, and passes everything on to the client's own receiver."""

    receiver: Receiver
    pair: Pair
    ended: Callable[[Pair, GenerationFinish], None]

    @property
    def record(self) -> RequestRecord:
        return self.receiver.record

    def deliver(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> None:
        self.receiver.deliver(token_ids, logprobs)
        self.pair.answer.extend(token_ids)

    def deliver_scores(self, scores: ScoredTokens) -> None:
        self.receiver.deliver_scores(scores)

    def end(self, finish: GenerationFinish) -> None:
        self.receiver.end(finish)
        self.ended(self.pair, finish)
