"""Which model each conversation is for, where a benchmark asks for several."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from slipstream.cluster.tools.bench.client.conversation import Conversation, Source, Turn
from slipstream.cluster.tools.bench.client.prompt_text import PromptWords

ModelSelection = Literal["round_robin", "random"]  # AIPerf's names of `--model-selection-strategy`


@dataclass(frozen=True, slots=True)
class ForModels:
    """The conversations of a source, each for one of `models` (at least one): in turn, or at random. Those of a
    workload that names its models are left as they are."""

    source: Source
    models: tuple[str, ...]
    selection: ModelSelection = "round_robin"

    def conversations(self, words: PromptWords, seed: int) -> Iterator[Conversation[Turn]]:
        """The same for the same seed."""
        rng = random.Random(seed)
        in_turn = itertools.cycle(self.models)
        for conversation in self.source.conversations(words, seed):
            if any(turn.model for turn in conversation.turns):
                yield conversation
                continue
            model = next(in_turn) if self.selection == "round_robin" else rng.choice(self.models)
            yield replace(conversation, turns=[replace(turn, model=model) for turn in conversation.turns])
