"""What a worker asks of an engine: any object with these methods serves requests behind `roles.WorkerProtocol`.

The engine owns pages and computes tokens. It knows nothing of the router: the roles turn messages into these calls.
Tokens come out of its steps, which its driver makes. `tests/workers/interface` is the contract as tests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.messages import (
    EngineRequest,
    Failed,
    PromptScores,
    RetentionHint,
    StepTime,
    TokenChunk,
)
from slipstream.workers.interface.cache_changes import CacheChanges

AttemptKey = tuple[str, int]  # (request_id, attempt)


class EngineRequestError(ValueError):
    """The request itself is at fault: no worker with this model and these limits could run it. `field` names the
    part of the request."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class NoRoomError(RuntimeError):
    """The engine has no queue, and no room for the request now. It may be tried again."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation. `page_ids` are the pages wanted from elsewhere: all those of the prompt from page number
    `first_page` on, the last of which may be partial. The pages before already hold `num_cached_tokens` tokens;
    where there are states, these are the tokens that it could go on from if it computed the prompt itself. An engine
    that only counts pages may give them any numbers. Where layers have windows, only pages that will be seen
    are wanted, and `num_tokens` says which those are: see `HandoffTicket`."""

    key: AttemptKey
    num_cached_tokens: int
    first_page: int
    page_ids: Sequence[int]
    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much more the engine could take on now. `free_pages` are free or evictable, and not needed by queued
    sequences. `free_tokens` is `max_queued_tokens` minus the tokens not yet computed."""

    free_slots: int
    free_pages: int
    free_tokens: int


@dataclass(frozen=True, slots=True)
class PageUse:
    """The pages of an engine. `num_held` take memory, or may take it at any moment: all that its limit allows, or more
    as long as they are in use or their memory has not been returned. `num_wanted` more are needed by what waits for
    pages."""

    num_held: int
    num_used: int
    num_cached: int
    num_wanted: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges, and totals (`total_*`) since the engine was created. `total_step_sequences` is the sum over all steps;
    `steps_by_size` is that of `StepCounts`."""

    num_running: int
    num_waiting: int
    total_steps: int
    total_computed_tokens: int
    total_sampled_tokens: int
    total_preemptions: int
    total_prefix_queried_tokens: int
    total_prefix_hit_tokens: int
    total_step_sequences: int
    steps_by_size: tuple[tuple[str, int], ...]


class RetentionTotals(Protocol):
    """Numbers of pages; `RetentionCounts` says which."""

    num_held: int
    hits: int
    expired: int
    displaced: int


class HintedOrder(Protocol):
    """What decides which cached pages are given up first, by the router's hints."""

    @property
    def counts(self) -> RetentionTotals: ...

    def advance(self, now_s: float) -> None:
        """Sets the time, by which holds end."""

    def retain(self, request_id: str, hint: RetentionHint) -> None:
        """A better hint about a request that has ended. Unknown ones are ignored."""


class BlockSource(Protocol):
    """The prefix cache, as far as it is reported to the router."""

    changes: CacheChanges

    @property
    def order(self) -> HintedOrder: ...

    def digests(self) -> Collection[bytes]:
        """The digests of all pages that can be found in the cache now."""


class EngineMigrations(Protocol):
    """Sequences that move to another worker while they decode. `num_room_tokens` 0 asks only for the pages that are
    full at the source by now; otherwise it is the number of tokens that may be added before the source has stopped."""

    def extend(self, key: AttemptKey, token_ids: tuple[int, ...], num_room_tokens: int) -> Reservation | None:
        """Destination: the sequence has grown at its source. Returns what is wanted next; None if there are too few
        pages now.

        Raises EngineRequestError if it does not wait for that, or a token is out of range.
        """

    def copied(self, key: AttemptKey) -> object:
        """Destination: the full pages that were wanted have arrived."""

    def check_ticket(self, key: AttemptKey, ticket: HandoffTicket, freeze: bool) -> None:
        """Source: raises EngineRequestError if the sequence does not decode here, or the ticket is not for what it
        has."""

    def interrupt(self, key: AttemptKey) -> bool:
        """Source: whether a step is under way that computes the sequence's next token. It can be frozen once that step
        has ended, and an engine that makes several steps at a time stops it then. Never so for an engine that is only
        called between its steps."""

    def freeze(self, key: AttemptKey) -> int:
        """Source: stops a sequence, for which `check_ticket` has raised nothing, between two steps; returns how many
        tokens of output it has."""

    def resume(self, key: AttemptKey) -> object:
        """Source: a frozen sequence decodes on. Others are left as they are."""

    def begin_send(self, key: AttemptKey, ticket: HandoffTicket) -> Sequence[int]:
        """Source: the ticket's pages, which stay in place until `end_send`."""

    def end_send(self, key: AttemptKey) -> None:
        """Source: the transfer has ended: the pages may go, unless another one still reads them."""


class Engine(Protocol):
    """Pages and tokens of one model.

    Every accepted sequence ends in exactly one of these ways: an output with a `finish_reason` (its pages are then
    given back, except after `add_prefill`, where they are held until `release`), `abort`, or `release`.
    """

    @property
    def migrations(self) -> EngineMigrations: ...

    def add(self, request: EngineRequest) -> None:
        """Compute a request here, prompt and output. If it is reserved and not started, the reservation becomes it.

        Raises EngineRequestError if it can never run here or its key is in use, and NoRoomError.
        """

    def add_prefill(self, request: EngineRequest, ticket: HandoffTicket) -> None:
        """Compute a prompt, sample one token, and send the pages that the ticket asks for as they become complete.
        The pages are then held until `release`.

        Raises EngineRequestError if it can never run here, its key is in use, or the ticket does not fit the prompt,
        and NoRoomError.
        """

    def reserve(self, request: EngineRequest) -> Reservation | None:
        """Take a slot and pages for a prompt that is computed elsewhere; None if there are not enough now.

        Raises EngineRequestError if it can never run here or its key is in use.
        """

    def adopt(self, request: EngineRequest, num_room_tokens: int) -> Reservation | None:
        """Take a slot and pages for a sequence that decodes elsewhere (see `EngineMigrations`); None if there are not
        enough now. Raises EngineRequestError if it can never run here or its key is in use."""

    def land(self, key: AttemptKey) -> object:
        """All pages that a reservation waited for have arrived."""

    def start(self, key: AttemptKey, token_ids: tuple[int, ...]) -> object:
        """The first tokens of a reserved sequence are known; none of them ended it. It runs once it has also landed.

        Raises EngineRequestError if there is no token, one is out of range, or they leave nothing to generate. An
        adopted sequence may lack no token.
        """

    def release(self, key: AttemptKey) -> object:
        """Give back a reservation, or held or draining pages; full pages become prefix cache. Unknown keys are
        ignored."""

    def abort(self, key: AttemptKey, keep_pages: bool = False) -> object:
        """Drop a sequence in any state; unknown keys are ignored. With `keep_pages` its pages stay as they are until
        `release`; so they do while they are sent to where it moves, until the end of that."""

    def capacity(self) -> Capacity: ...

    def set_page_limit(self, num_pages: int) -> None:
        """From now on at most so many pages are in use or cached, of those that there are. Free and cached pages above
        it are withheld at once; a page in use is withheld when its last owner gives it back. No sequence ends for that,
        but as long as there are too few pages, sequences wait or are preempted. The limit changes nothing about which
        requests can ever run: one that needs more than the limit waits for a higher one."""

    def page_use(self) -> PageUse: ...

    @property
    def prefix_cache(self) -> BlockSource: ...


class EngineCounters(Protocol):
    """What an engine counts, for statistics."""

    @property
    def prefix_cache(self) -> BlockSource: ...

    def page_counts(self) -> dict[str, int]:
        """Number of pages by state. All but `free` and `cached` are in use."""

    def stats(self) -> EngineStats: ...


class SteppedEngine(Engine, Protocol):
    """An engine whose driver makes its steps one by one and waits for each: what `EngineLoop` runs."""

    @property
    def has_work(self) -> bool:
        """Whether a step could compute something. If not, only another call can change that."""

    def step(self) -> list[TokenChunk]:
        """Computes one step. Empty if nothing could be sampled; see `has_work`. Whatever it raises is the end of the
        engine."""

    def take_failures(self) -> Sequence[Failed]:
        """Why sequences ended with "error" since the last call, where no other worker could do better."""

    def take_prompt_scores(self) -> Sequence[PromptScores]:
        """The log-probabilities of prompts that steps have computed since the last call, in order."""

    def grammar_ready(self) -> None:
        """A grammar was compiled, for which a sequence may have been waiting."""

    @property
    def last_step_has_prefill(self) -> bool:
        """Whether the last step computed prompts."""

    @property
    def last_step_num_decoding(self) -> int:
        """How many sequences got a token in the last step, apart from prompts."""

    def last_step_chunks(self) -> Sequence[tuple[AttemptKey, int]]:
        """The sequences whose prompts the last step computed, with the number of tokens of each. Only asked for while
        requests are traced."""

    def follow_level(self, itl_s: float | None) -> None:
        """The mean time between two tokens of a sequence that is to be kept; None: there is none. An engine that sizes
        its steps does so by this."""

    def step_took(self, seconds: float, sample: StepTime | None) -> None:
        """How long the last step took, with the time since the step before. Called after each step; with what
        `last_step_time` said if it was asked."""

    def last_step_time(self, seconds: float) -> StepTime | None:
        """What the last step computed, together with the seconds that it took; None if it computed nothing. To be
        called before any call that changes something, and only now and then, as it may look at every sequence of the
        step."""
