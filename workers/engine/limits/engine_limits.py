"""The limits of one engine: plain numbers that follow from configuration, model and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipstream.workers.engine.limits.engine_errors import EngineConfigError


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """`model_id` seeds the hashes of the prefix cache. If a router has to know these, it is the name that it serves.

    The pool holds at least one sequence of full length, so that any accepted request can finish once it is alone.
    """

    num_pages: int
    page_tokens: int
    max_model_len: int
    max_num_seqs: int
    max_step_tokens: int
    max_queued_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    model_id: str
    prefix_caching: bool = True
    reserves_output: bool = False  # a sequence is admitted only with room for its whole answer: none is preempted

    def __post_init__(self) -> None:
        if self.max_model_len < 2:
            raise EngineConfigError(f"max_model_len must be at least 2, got {self.max_model_len}")
        if self.pages_for(self.max_model_len) > self.num_pages:
            raise EngineConfigError(
                f"max_model_len {self.max_model_len} needs {self.pages_for(self.max_model_len)} pages of "
                f"{self.page_tokens} tokens, the pool has num_pages {self.num_pages}"
            )

    @property
    def of_one_sequence(self) -> EngineLimits:
        """The limits of a pool that holds one sequence of full length."""
        return replace(self, num_pages=min(self.num_pages, self.pages_for(self.max_model_len)))

    @property
    def max_slots(self) -> int:
        """What the router calls the sequences of a step."""
        return self.max_num_seqs

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold the KV of so many tokens."""
        return -(-num_tokens // self.page_tokens)
