"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.messages import EngineRequest, FinishReason, StepTime, TokenChunk, TokenLogprob
from slipstream.workers.engine.batch_builder import BatchBuilder
from slipstream.workers.engine.input_processor import InputProcessor
from slipstream.workers.engine.kv_cache.prefix_cache import PrefixCache
from slipstream.workers.engine.limits.engine_errors import EngineRequestError
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.plan.executor import Executor
from slipstream.workers.engine.plan.step_plan import SampledTokens
from slipstream.workers.engine.scheduling.migrations import EngineMigrations
from slipstream.workers.engine.scheduling.reservation import Reservation
from slipstream.workers.engine.scheduling.scheduled_step import ScheduledStep
from slipstream.workers.engine.scheduling.scheduler import Scheduler
from slipstream.workers.engine.scheduling.sequence import AttemptKey, Sequence, SequenceState
from slipstream.workers.engine.step_counts import StepCounts
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much more the engine could take on now. `free_pages` are free or evictable, and not needed by queued
    sequences. `free_tokens` is `max_queued_tokens` minus the tokens not yet computed."""

    free_slots: int
    free_pages: int
    free_tokens: int


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


class NativeEngine:
    """Turns requests into tokens, one `step` at a time. It is owned by one thread. Without `grammars`, requests with a
    grammar are refused.

    Every accepted sequence ends in exactly one of these ways: an output with a `finish_reason` (its pages are then
    given back, except after `add_prefill`, where they are held until `release`), `abort`, or `release`.
    """

    def __init__(self, limits: EngineLimits, executor: Executor, grammars: GrammarCompiler | None = None) -> None:
        self.limits = limits
        self._executor = executor
        self._input_processor = InputProcessor(limits, grammars)
        self._scheduler = Scheduler(limits)
        self.migrations = EngineMigrations(limits, self._scheduler)
        self._composer = BatchBuilder(limits)
        self._last_step = ScheduledStep([])
        self._steps = StepCounts()
        self._num_sampled_tokens = 0

    def change_limits(self, limits: EngineLimits) -> None:
        """Changes the limits. Pages and what is cached in them stay. The engine must have no sequences."""
        self._scheduler.change_limits(limits)
        self._composer = BatchBuilder(limits)
        self.limits = self._input_processor.limits = limits

    # ---- requests

    def add(self, request: EngineRequest) -> None:
        """Compute a request here, prompt and output. If it is reserved and not started, the reservation becomes it.

        Raises EngineRequestError if it can never run here or its key is in use.
        """
        reserved = self._scheduler.get(_key(request))
        if reserved is None:
            self._scheduler.add(self._input_processor.sequence(request))
            return
        if reserved.state not in (SequenceState.RESERVED, SequenceState.LANDED):
            raise EngineRequestError("request_id", f"{reserved.key} is {reserved.state.value} here already")
        if reserved.tokens.tobytes() != request.prompt_ids + request.output_ids:
            raise EngineRequestError("prompt_ids", f"{reserved.key} was reserved for other tokens")
        self._scheduler.convert(reserved)

    def add_prefill(self, request: EngineRequest, ticket: HandoffTicket) -> None:
        """Compute a prompt, sample one token, and send the pages that the ticket asks for as they become complete.
        The pages are then held until `release`.

        Raises EngineRequestError if it can never run here, its key is in use, or the ticket does not fit the prompt.
        """
        sequence = self._input_processor.sequence(request, ticket)
        if self._scheduler.get(sequence.key) is not None:
            raise EngineRequestError("request_id", f"{sequence.key} is here already")
        num_pages = self.limits.pages_for(sequence.num_tokens)
        if ticket.first_page < 0 or ticket.num_pages < 1 or ticket.first_page + ticket.num_pages != num_pages:
            raise EngineRequestError(
                "ticket",
                f"asks for {ticket.num_pages} pages from page {ticket.first_page} on; the prompt has {num_pages} pages",
            )
        self._scheduler.add(sequence)

    def reserve(self, request: EngineRequest) -> Reservation | None:
        """Take a slot and pages for a prompt that is computed elsewhere; None if there are not enough now.

        Raises EngineRequestError if it can never run here or its key is in use.
        """
        sequence = self._input_processor.sequence(request)
        if self._scheduler.get(sequence.key) is not None:
            raise EngineRequestError("request_id", f"{sequence.key} is here already")
        if not self._scheduler.reserve(sequence):
            return None
        first_page = sequence.num_computed // self.limits.page_tokens
        wanted = sequence.pages[first_page : self.limits.pages_for(sequence.num_tokens)]
        return Reservation(sequence.key, sequence.num_computed, first_page, tuple(wanted))

    def adopt(self, request: EngineRequest, num_room_tokens: int) -> Reservation | None:
        """Take a slot and pages for a sequence that decodes elsewhere; None if there are not enough now. See `moves`.

        Raises EngineRequestError if it can never run here or its key is in use.
        """
        sequence = self._input_processor.sequence(request)
        if self._scheduler.get(sequence.key) is not None:
            raise EngineRequestError("request_id", f"{sequence.key} is here already")
        return self.migrations.adopt(sequence, num_room_tokens)

    def land(self, key: AttemptKey) -> bool:
        """All pages that a reservation waited for have arrived. Returns False if there is no such reservation (any
        more)."""
        sequence = self._scheduler.get(key)
        if sequence is None or sequence.state not in (SequenceState.RESERVED, SequenceState.STARTED):
            return False
        self._scheduler.land(sequence)
        return True

    def start(self, key: AttemptKey, token_ids: tuple[int, ...]) -> bool:
        """The first tokens of a reserved sequence are known; none of them ended it. It runs once it has also landed.
        False if there is no such reservation (any more).

        Raises EngineRequestError if there is no token, one is out of range, or they leave nothing to generate. An
        adopted sequence may lack no token.
        """
        sequence = self._scheduler.get(key)
        if sequence is None or sequence.state not in (SequenceState.RESERVED, SequenceState.LANDED):
            return False
        if sequence.is_adopted:
            self.migrations.check_start(sequence, token_ids)
        elif not token_ids:
            raise EngineRequestError("token_ids", f"{key} cannot start without a token")
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.limits.vocab_size:
            raise EngineRequestError("token_ids", f"{key} cannot start with {token_ids}")
        num_left = min(
            sequence.params.max_tokens - sequence.num_output, self.limits.max_model_len - sequence.num_tokens
        )
        if len(token_ids) >= num_left:
            raise EngineRequestError(
                "token_ids", f"{key} may have {num_left} more tokens and starts with {len(token_ids)}"
            )
        self._scheduler.start(sequence, token_ids)
        return True

    def release(self, key: AttemptKey) -> bool:
        """Give back a reservation, or held or draining pages; full pages become prefix cache. False if the key is
        unknown. Raises EngineRequestError if the sequence still waits or runs: that takes an `abort`."""
        sequence = self._scheduler.get(key)
        if sequence is None:
            return False
        if sequence.state in (SequenceState.WAITING, SequenceState.RUNNING):
            raise EngineRequestError("request_id", f"{key} is {sequence.state.value} and cannot be released")
        self._scheduler.release(sequence)
        return True

    def abort(self, key: AttemptKey, keep_pages: bool = False) -> bool:
        """Drop a sequence in any state; unknown keys are ignored. With `keep_pages` its pages stay as they are, in
        state `draining`, until `release`; so they do while `moves` sends them, until the end of that. Returns whether
        there are pages left to release."""
        sequence = self._scheduler.get(key)
        return sequence is not None and self._scheduler.abort(sequence, keep_pages)

    def grammar_ready(self) -> None:
        """A grammar was compiled, for which a sequence may have been waiting."""
        self._scheduler.look_again()

    # ---- steps

    def step(self) -> list[TokenChunk]:
        """Compute one step. Empty if nothing could be sampled; see `has_work`. An exception of the executor passes
        through, and the engine is not to be used after it."""
        step = self._last_step = self._scheduler.schedule()
        if not step:
            return []
        plan, rows = self._composer.compose(step)
        sampled = self._executor.execute(plan, rows)
        return self._postprocess(step, sampled)

    @property
    def last_step_has_prefill(self) -> bool:
        """Whether the last step computed prompts."""
        return bool(self._last_step.chunks)

    @property
    def last_step_num_decoding(self) -> int:
        """How many sequences got a token in the last step, apart from prompts."""
        return len(self._last_step.decoding)

    def last_step_time(self, seconds: float) -> StepTime | None:
        """What the last step computed, together with the seconds that it took; None if it computed nothing. To be
        called before any call that changes something, and only now and then, as it looks at every sequence of the
        step."""
        step = self._last_step
        if not step:
            return None
        new = sum(chunk.num_tokens for chunk in step.chunks)
        pairs = sum(chunk.num_tokens * (chunk.sequence.num_computed - chunk.num_tokens // 2) for chunk in step.chunks)
        context = sum([sequence.num_tokens for sequence in step.decoding])
        return StepTime(new, max(pairs, 0) // new if new else 0, len(step.decoding), context, seconds)

    @property
    def has_work(self) -> bool:
        """Whether a step could compute something. If not, only another call can change that."""
        return self._scheduler.has_work

    # ---- state

    def keys(self) -> list[AttemptKey]:
        """All sequences, in whatever state."""
        return self._scheduler.keys()

    def state(self, key: AttemptKey) -> SequenceState | None:
        sequence = self._scheduler.get(key)
        return None if sequence is None else sequence.state

    def capacity(self) -> Capacity:
        scheduler = self._scheduler
        return Capacity(
            scheduler.num_free_slots,
            scheduler.num_free_pages,
            max(0, self.limits.max_queued_tokens - scheduler.num_uncomputed_tokens),
        )

    def page_counts(self) -> dict[str, int]:
        """Number of pages by state: active, reserved, held, draining, cached, free. They sum to `num_pages`."""
        return self._scheduler.pages.counts()

    @property
    def prefix_cache(self) -> PrefixCache:
        """The prefix cache, to read."""
        return self._scheduler.pages.prefix_cache

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            total_steps=self._steps.num_steps,
            total_computed_tokens=self._steps.num_tokens,
            total_sampled_tokens=self._num_sampled_tokens,
            total_preemptions=scheduler.num_preemptions,
            total_prefix_queried_tokens=scheduler.pages.num_queried_tokens,
            total_prefix_hit_tokens=scheduler.pages.num_hit_tokens,
            total_step_sequences=self._steps.num_sequences,
            steps_by_size=tuple(self._steps.by_size()),
        )

    def check_integrity(self) -> None:
        """Raises AssertionError if pages and sequences do not add up. Looks at everything, for tests and idle times."""
        self._scheduler.check_integrity()

    # ---- inside

    def _postprocess(self, step: ScheduledStep, sampled: SampledTokens) -> list[TokenChunk]:
        self._scheduler.computed(step)
        num_decoding = len(step.decoding)
        self._steps.add(num_decoding + step.num_chunk_tokens, num_decoding + len(step.chunks))
        sequences = step.decoding
        if step.chunks:
            sequences = [*sequences, *(chunk.sequence for chunk in step.chunks if chunk.samples)]
        logprobs = sampled.logprobs
        outputs = []
        for at, (sequence, token_id) in enumerate(zip(sequences, sampled.token_ids, strict=True)):
            if token_id is None:
                outputs.append(self._fail(sequence))
            else:
                outputs.append(self._accept(sequence, token_id, None if logprobs is None else logprobs[at]))
        return outputs

    def _accept(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> TokenChunk:
        """Append a sampled token. If it is the last one, end or hold the sequence."""
        num_before = len(sequence.tokens)
        sequence.append(token_id)
        self._num_sampled_tokens += 1
        grammar = sequence.grammar
        is_stop = token_id in sequence.stop_ids and (num_before >= sequence.min_tokens or grammar is not None)
        reason: FinishReason | None = None
        if is_stop or (grammar is not None and grammar.is_at_end):
            reason = "stop"
        elif num_before + 1 >= sequence.max_tokens:
            reason = "length"
        if reason is not None or sequence.ticket is not None:
            self._end(sequence)
        assert sequence.num_cached is not None
        return TokenChunk(
            *sequence.key,
            num_before - sequence.num_prompt,
            (token_id,),
            () if logprob is None else (logprob,),
            reason,
            token_id if is_stop else None,
            sequence.num_cached,
        )

    def _fail(self, sequence: Sequence) -> TokenChunk:
        """No token could be picked. The fault may be in the KV, which must not be reused by others."""
        self._scheduler.pages.forget(sequence)
        self._end(sequence)
        assert sequence.num_cached is not None
        return TokenChunk(
            *sequence.key, sequence.num_output, (), finish_reason="error", num_cached_tokens=sequence.num_cached
        )

    def _end(self, sequence: Sequence) -> None:
        if sequence.ticket is not None:
            self._scheduler.hold(sequence)
        else:
            self._scheduler.finish(sequence)


def _key(request: EngineRequest) -> AttemptKey:
    return request.request_id, request.attempt
