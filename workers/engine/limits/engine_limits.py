"""The limits of one engine: plain numbers that follow from configuration, model and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.limits.page_demand import PageDemand


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """`model_id` seeds the hashes of the prefix cache. If a router has to know these, it is the name that it serves.

    The pool holds at least one sequence of full length, so that any accepted request can finish once it is alone.

    `windows` are those of the page groups (see `models.directory.page_groups`): a block takes a page in each, and a
    group with a window gives back the pages that no query will see any more. A prompt that is sent while it is computed
    takes all its pages at once, which `holds_prompts` counts, for prefill workers: it must not have to wait for others'
    pages, because its own, which are being sent, cannot be taken back. Where sequences reserve their output, what they
    are promised counts all their pages, too, given back or not.

    Where the model has states that do not grow with the text, a sequence takes `state_pages` pages beside those of its
    tokens. If it stores nothing else, it has one page, of as many tokens as there can be, and no `state_pages`; then
    `state_block_tokens` are the tokens of a block of the prefix cache.
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
    auto_step_tokens: bool = False  # steps are sized by the ITL level, and `max_step_tokens` is the most
    auto_num_seqs: bool = False  # so is the number of sequences that run, of which `max_num_seqs` are the most
    reserves_output: bool = False  # a sequence is admitted only with room for its whole answer: none is preempted
    windows: tuple[int | None, ...] = (None,)
    holds_prompts: bool = False
    state_pages: int = 0
    state_block_tokens: int | None = None
    max_scored_tokens: int | None = None  # prompt tokens of a step whose log-probabilities are computed; None: any

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

    @property
    def has_windows(self) -> bool:
        """Whether sequences give back pages before they end."""
        return self.windows[-1] is not None

    @property
    def has_states(self) -> bool:
        """Whether a cached prefix is of use only together with the state behind it."""
        return self.state_pages > 0 or self.state_block_tokens is not None

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of the prefix cache: those of a page, where pages hold tokens."""
        return self.state_block_tokens or self.page_tokens

    @property
    def checkpoint_pages(self) -> int:
        """Pages of the copy of a state."""
        return self.state_pages or (1 if self.has_states else 0)

    @property
    def most_blocks(self) -> tuple[int | None, ...]:
        """The most pages that a sequence holds of each group at a time; None: one for each block."""
        return self._demand.most_blocks

    def pages_for(self, num_tokens: int) -> int:
        """The most pages that a sequence holds while it comes to have the KV of so many tokens."""
        if self.windows == (None,):
            return -(-num_tokens // self.page_tokens) + self.state_pages
        return self._demand.pages_for(num_tokens)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill: the pages of a group without a window."""
        return -(-num_tokens // self.page_tokens)

    def whole_pages_for(self, num_tokens: int) -> int:
        """Pages of so many tokens in all groups, those that were given back included, and of the state."""
        return self.blocks_for(num_tokens) * len(self.windows) + self.state_pages

    def first_block(self, window: int | None, position: int) -> int:
        """The first block that a query at `position` sees, or any query after it."""
        return 0 if window is None else max(0, position - window + 1) // self.page_tokens

    @property
    def _demand(self) -> PageDemand:
        return PageDemand(
            self.page_tokens,
            self.windows,
            self.max_step_tokens,
            self.holds_prompts or self.reserves_output,
            self.state_pages,
        )
