"""One request on its way through the engine."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.block_hash import HashChain
from slipstream.router.protocol.messages import RetentionHint, SamplingParams
from slipstream.workers.engine.kv_cache.page_states import PageState
from slipstream.workers.engine.plan.token_bans import TokenBans
from slipstream.workers.engine.plan.token_counts import TokenCounts
from slipstream.workers.engine.processors.row_processors import RowProcessors
from slipstream.workers.engine.structured_output.grammar_matcher import SequenceGrammar
from slipstream.workers.interface.engine import AttemptKey


class SequenceState(Enum):
    """
             add, add_prefill                     reserve, adopt
                    |                                |
                    v       admit                    v       land            start
                 WAITING ---------> RUNNING      RESERVED ---------> LANDED -------> RUNNING
                    ^                |  |  |         |       start            land
                    +----preempt-----+  |  |         +-------------> STARTED -------> RUNNING
                                        |  |         |
                 FINISHED <-------------+  |         +-- add (compute it here) --> RUNNING or, if landed, WAITING
                                        ^  v
                                        | HELD   (prefill only: its token is sampled, its pages are being sent)
                                        |
                                        +--> FROZEN   (freeze, resume: its last pages are being sent to another worker)

    abort: any state -> FINISHED, or -> DRAINING where pages must stay.  release: HELD, DRAINING, FROZEN and the three
    reserved states -> FINISHED.
    """

    WAITING = "waiting"  # owns no pages
    RUNNING = "running"  # owns active pages and a slot
    RESERVED = "reserved"  # owns reserved pages; their KV is on its way
    LANDED = "landed"  # the KV is here, the first token is not
    STARTED = "started"  # the first token is here, the KV is not
    HELD = "held"
    FROZEN = "frozen"  # stands still between two steps, with its slot and its pages
    DRAINING = "draining"
    FINISHED = "finished"


_S = SequenceState
_TRANSITIONS: dict[SequenceState, frozenset[SequenceState]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.FINISHED}),
    _S.RUNNING: frozenset({_S.WAITING, _S.HELD, _S.FROZEN, _S.DRAINING, _S.FINISHED}),
    _S.RESERVED: frozenset({_S.LANDED, _S.STARTED, _S.RUNNING, _S.WAITING, _S.DRAINING, _S.FINISHED}),
    _S.LANDED: frozenset({_S.RUNNING, _S.WAITING, _S.DRAINING, _S.FINISHED}),
    _S.STARTED: frozenset({_S.RUNNING, _S.DRAINING, _S.FINISHED}),
    _S.HELD: frozenset({_S.DRAINING, _S.FINISHED}),
    _S.FROZEN: frozenset({_S.RUNNING, _S.DRAINING, _S.FINISHED}),
    _S.DRAINING: frozenset({_S.FINISHED}),
    _S.FINISHED: frozenset(),
}
# The states that have a slot without being in the batch.
RESERVED_STATES = (_S.RESERVED, _S.LANDED, _S.STARTED, _S.FROZEN)

_OWNERS: dict[SequenceState, PageState] = {
    _S.RUNNING: PageState.ACTIVE,
    _S.RESERVED: PageState.RESERVED,
    _S.LANDED: PageState.RESERVED,
    _S.STARTED: PageState.RESERVED,
    _S.HELD: PageState.HELD,
    _S.FROZEN: PageState.HELD,
    _S.DRAINING: PageState.DRAINING,
}


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, pages and progress of one attempt.

    `tokens` is prompt and output in one int32 array; the output of earlier attempts is output like any other,
    except that its KV has to be computed or received together with the prompt's.
    """

    key: AttemptKey
    arrival: int  # order in which sequences came; breaks ties of priority
    priority: int  # lower runs first
    params: SamplingParams
    tokens: array[int]
    num_prompt: int
    stop_ids: frozenset[int]
    chain: HashChain | None  # None: no prefix caching
    counts: TokenCounts | None  # None: no penalties
    max_model_len: int
    is_greedy: bool  # nothing is wanted of the scores but the highest, where no token is masked
    grammar: SequenceGrammar | None = None  # reads the same tokens
    bans: TokenBans | None = None  # also
    processors: RowProcessors | None = None  # also
    ticket: HandoffTicket | None = None  # set: prefill only
    state: SequenceState = SequenceState.WAITING
    pages: array[int] = field(default_factory=lambda: array("i"))  # those of the first page group, block by block
    state_pages: array[int] = field(default_factory=lambda: array("i"))  # of the state after `num_computed` tokens
    num_computed: int = 0  # tokens whose KV is in the pages
    num_remembered: int = 0  # blocks offered to the prefix cache
    num_sends: int = 0  # transfers to another worker that read its pages while it decodes
    is_adopted: bool = False  # it decoded elsewhere and goes on here
    num_cached: int | None = None  # tokens found in the prefix cache when pages were first taken
    is_plainly_greedy: bool = field(init=False)  # and its grammar masks none
    num_to_land: int = field(init=False)  # tokens whose KV a reservation waits for
    min_tokens: int = field(init=False)  # `stop_ids` cannot be sampled before it has so many tokens
    max_tokens: int = field(init=False)  # it ends when it has so many tokens
    more_pages: tuple[array[int], ...] = ()  # those of other page groups
    first_blocks: tuple[int, ...] = ()  # by page group: entries of its pages before this block stand for no page
    stops: list[int] = field(default_factory=list)  # numbers of tokens after which to keep the state, the next one last
    output_checkpoint: int | None = None  # blocks before the state that was last kept while it decoded
    retention: RetentionHint | None = None
    num_scored: int = 0  # prompt tokens behind the first whose log-probabilities are known
    num_to_score: int = 0  # of so many they are wanted

    def __post_init__(self) -> None:
        self.is_plainly_greedy = self.is_greedy and self.grammar is None
        self.num_to_land = self.num_tokens
        self.min_tokens = self.num_prompt + self.params.min_tokens
        self.max_tokens = min(self.num_prompt + self.params.max_tokens, self.max_model_len)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def is_scored(self) -> bool:
        """Whether no log-probabilities of its prompt are missing."""
        return self.num_scored >= self.num_to_score

    @property
    def num_cacheable(self) -> int:
        """Tokens that it may take from the prefix cache. What follows is computed: the last one, from whose scores the
        next is sampled, and those whose scores say how likely the next one of the prompt is."""
        return len(self.tokens) - 1 if self.is_scored else self.num_scored

    @property
    def most_tokens(self) -> int:
        """Tokens that it needs pages for at most, as long as it is here. For a prefill only, those of the prompt."""
        return self.num_tokens if self.ticket is not None else self.max_tokens

    @property
    def order(self) -> tuple[int, int]:
        """The order of sequences: by priority, then by arrival. The last running one is preempted first."""
        return self.priority, self.arrival

    @property
    def is_ready(self) -> bool:
        """Whether its next token could be picked. If not, its grammar is still being compiled."""
        return self.grammar is None or self.grammar.is_ready

    def look_at_grammar(self) -> None:
        """After a token of a sequence with a grammar that is ready: whether that masks the next one."""
        assert self.grammar is not None
        self.is_plainly_greedy = self.is_greedy and not self.grammar.restricts

    @property
    def is_preemptible(self) -> bool:
        """Whether it may be preempted: not while its pages are being sent, as they have to stay in place."""
        return self.ticket is None and not self.num_sends

    @property
    def tables(self) -> tuple[array[int], ...]:
        """Its pages by page group, block by block."""
        return (self.pages, *self.more_pages)

    @property
    def held_pages(self) -> array[int]:
        """All pages that it holds: group by group, and then those of its state."""
        if not self.more_pages and not any(self.first_blocks):
            return self.pages + self.state_pages if self.state_pages else self.pages
        held = array("i")
        for table, first in zip(self.tables, self.first_blocks, strict=True):
            held += table[first:]
        return held + self.state_pages

    @property
    def page_owner(self) -> PageState | None:
        """The state under which `PageStates` counts this sequence's pages; None if it has none."""
        return _OWNERS.get(self.state)

    def move(self, to: SequenceState) -> None:
        assert to in _TRANSITIONS[self.state], f"{self.key}: {self.state.value} -> {to.value}"
        self.state = to

    def append(self, token_id: int) -> None:
        self.tokens.append(token_id)
        if self.counts is not None:
            self.counts.add(token_id)
