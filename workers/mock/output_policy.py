"""What a mock worker answers: the tokens of an output as a function of the prompt and the position alone, so that an
answer that was moved, retried or resumed is the one that it would have been otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from xxhash import xxh3_64_intdigest

FIRST_TOKEN_ID = 16  # below are the special tokens of most vocabularies
_SPREAD = 0x9E37_79B9_7F4A_7C15  # 2**64 / golden ratio: neighbouring positions get unrelated tokens


class PlannedOutput(Protocol):
    """The output of one prompt. It has no end of its own: `end_token_ids` of the policy end it, or `max_tokens`."""

    def token_at(self, position: int) -> int: ...


class OutputPolicy(Protocol):
    """`end_token_ids` are those of the model, empty if no answer ends by itself. A policy that does not serve grammars
    has requests with one refused; one that does ignores them."""

    @property
    def end_token_ids(self) -> frozenset[int]: ...

    @property
    def serves_grammars(self) -> bool: ...

    def output_of(self, prompt_ids: bytes) -> PlannedOutput:
        """The output of a prompt (packed int32). Raises EngineRequestError if there is none."""
        ...


def expected_token(prompt_ids: bytes, position: int, vocab_size: int) -> int:
    """The token at `position` of the output that `HashTokens` gives to a prompt (packed int32)."""
    return HashTokens(vocab_size).output_of(prompt_ids).token_at(position)


@dataclass(frozen=True, slots=True)
class HashOutput:
    seed: int
    num_choices: int

    def token_at(self, position: int) -> int:
        mixed = (self.seed + position * _SPREAD) & 0xFFFF_FFFF_FFFF_FFFF
        return FIRST_TOKEN_ID + (mixed >> 24) % self.num_choices


@dataclass(frozen=True, slots=True)
class HashTokens:
    """Ordinary tokens that follow from a hash of the prompt. They form no text that a grammar could ask for."""

    vocab_size: int
    end_token_ids: frozenset[int] = frozenset()
    serves_grammars: bool = False

    def output_of(self, prompt_ids: bytes) -> HashOutput:
        return HashOutput(xxh3_64_intdigest(prompt_ids), self.vocab_size - FIRST_TOKEN_ID)
