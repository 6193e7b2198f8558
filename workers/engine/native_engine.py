"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items

import numpy as np

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.messages import (
    EngineRequest,
    Failed,
    FinishReason,
    PromptScores,
    StepTime,
    TokenChunk,
    TokenLogprob,
)
from slipstream.router.protocol.messages.prompt_scores import MAX_SCORED_TOKENS, ScoredTokens
from slipstream.workers.engine.batch_builder import BatchBuilder
from slipstream.workers.engine.input_processor import InputProcessor
from slipstream.workers.engine.kv_cache.prefix_cache import PrefixCache
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.plan.executor import Executor, PageMemory
from slipstream.workers.engine.plan.step_plan import SampledTokens, ScoredRows, TokenFailure
from slipstream.workers.engine.processors.registered_processors import NO_PROCESSORS, LogitsProcessors
from slipstream.workers.engine.scheduling.migrations import NativeMigrations
from slipstream.workers.engine.scheduling.scheduled_step import ScheduledChunk, ScheduledStep
from slipstream.workers.engine.scheduling.scheduler import Scheduler
from slipstream.workers.engine.scheduling.sequence import Sequence, SequenceState
from slipstream.workers.engine.scheduling.wanted_pages import WantedPages
from slipstream.workers.engine.step_counts import StepCounts
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler
from slipstream.workers.interface.engine import (
    AttemptKey,
    Capacity,
    EngineRequestError,
    EngineStats,
    PageUse,
    Reservation,
)

RETURN_PAGES_A_STEP = 4096  # a bound on how long the sequences of a step wait for it


class NativeEngine:
    """This project's own `SteppedEngine`. It queues what it has no room for. It is owned by one thread. Without
    `grammars`, requests with a grammar are refused. `memory` is where the pages above the limit are returned; without
    it they only stay unused."""

    def __init__(
        self,
        limits: EngineLimits,
        executor: Executor,
        grammars: GrammarCompiler | None = None,
        memory: PageMemory | None = None,
        processors: LogitsProcessors = NO_PROCESSORS,
    ) -> None:
        self.limits = limits
        self._executor = executor
        self._memory = memory
        self._input_processor = InputProcessor(limits, grammars, processors)
        self._scheduler = Scheduler(limits)
        self.migrations = NativeMigrations(limits, self._scheduler)
        self._batch_builder = BatchBuilder(limits)
        self._last_step = ScheduledStep([])
        self._steps = StepCounts()
        self._num_sampled_tokens = 0
        self._failures: list[Failed] = []
        self._prompt_scores: list[PromptScores] = []

    def change_limits(self, limits: EngineLimits) -> None:
        """Changes the limits. Pages and what is cached in them stay. The engine must have no sequences."""
        self._scheduler.change_limits(limits)
        self._batch_builder = BatchBuilder(limits)
        self.limits = self._input_processor.limits = limits

    def add(self, request: EngineRequest) -> None:
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
        sequence = self._input_processor.sequence(request, ticket)
        if self._scheduler.get(sequence.key) is not None:
            raise EngineRequestError("request_id", f"{sequence.key} is here already")
        limits = self.limits
        wanted = WantedPages.of_prompt(limits, max(ticket.first_page, 0), sequence.num_tokens)
        if ticket.first_page < 0 or ticket.num_pages < 1 or ticket.num_pages != wanted.num_pages:
            end = f"to page {wanted.end - 1}" if limits.has_windows else f"the prompt has {wanted.end} pages"
            raise EngineRequestError(
                "ticket", f"asks for {ticket.num_pages} pages from page {ticket.first_page} on; {end}"
            )
        if limits.whole_pages_for(sequence.num_tokens) > limits.num_pages:
            raise EngineRequestError("prompt_ids", f"{sequence.num_tokens} tokens do not fit the pool at once")
        self._scheduler.add(sequence)

    def reserve(self, request: EngineRequest) -> Reservation | None:
        sequence = self._input_processor.sequence(request)
        if self._scheduler.get(sequence.key) is not None:
            raise EngineRequestError("request_id", f"{sequence.key} is here already")
        if not self._scheduler.reserve(sequence):
            return None
        first_block, num_cached = sequence.num_computed // self.limits.page_tokens, sequence.num_computed
        if self.limits.has_states:
            num_cached = sequence.num_cached = self._scheduler.pages.num_resumable(sequence)
        wanted = WantedPages.of_prompt(self.limits, first_block, sequence.num_tokens)
        return Reservation(
            sequence.key, num_cached, first_block, tuple(wanted.ids(sequence.tables, sequence.state_pages))
        )

    def adopt(self, request: EngineRequest, num_room_tokens: int) -> Reservation | None:
        sequence = self._input_processor.sequence(request)
        if self._scheduler.get(sequence.key) is not None:
            raise EngineRequestError("request_id", f"{sequence.key} is here already")
        return self.migrations.adopt(sequence, num_room_tokens)

    def land(self, key: AttemptKey) -> bool:
        """Returns False if there is no such reservation (any more)."""
        sequence = self._scheduler.get(key)
        if sequence is None or sequence.state not in (SequenceState.RESERVED, SequenceState.STARTED):
            return False
        self._scheduler.land(sequence)
        return True

    def start(self, key: AttemptKey, token_ids: tuple[int, ...]) -> bool:
        """Returns False if there is no such reservation (any more)."""
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
        """Returns False if the key is unknown. Raises EngineRequestError if the sequence still waits or runs: that
        takes an `abort`."""
        sequence = self._scheduler.get(key)
        if sequence is None:
            return False
        if sequence.state in (SequenceState.WAITING, SequenceState.RUNNING):
            raise EngineRequestError("request_id", f"{key} is {sequence.state.value} and cannot be released")
        self._scheduler.release(sequence)
        return True

    def abort(self, key: AttemptKey, keep_pages: bool = False) -> bool:
        """Returns whether there are pages left to release. Until then they are `draining`."""
        sequence = self._scheduler.get(key)
        return sequence is not None and self._scheduler.abort(sequence, keep_pages)

    def grammar_ready(self) -> None:
        self._scheduler.look_again()

    def set_page_limit(self, num_pages: int) -> None:
        """The memory of the pages above it is returned by the next steps."""
        self._scheduler.set_page_limit(num_pages)

    @property
    def has_elastic_pages(self) -> bool:
        """Whether the memory of pages above the limit is returned."""
        return self._memory is not None

    def page_use(self) -> PageUse:
        pool = self._scheduler.pages.pool
        return PageUse(pool.num_held, pool.num_used, pool.num_cached, self._scheduler.num_wanted_pages)

    def step(self) -> list[TokenChunk]:
        """An exception of the executor passes through, and the engine is not to be used after it."""
        if self._scheduler.pages.pool.has_returnable:
            self._return_pages()
        step = self._last_step = self._scheduler.schedule()
        if not step:
            return []
        plan, rows = self._batch_builder.build(step)
        sampled = self._executor.execute(plan, rows)
        return self._postprocess(step, sampled)

    def take_failures(self) -> list[Failed]:
        failures, self._failures = self._failures, []
        return failures

    def take_prompt_scores(self) -> list[PromptScores]:
        scores, self._prompt_scores = self._prompt_scores, []
        return scores

    @property
    def last_step_has_prefill(self) -> bool:
        return bool(self._last_step.chunks)

    @property
    def last_step_num_decoding(self) -> int:
        return len(self._last_step.decoding)

    def last_step_chunks(self) -> list[tuple[AttemptKey, int]]:
        return [(chunk.sequence.key, chunk.num_tokens) for chunk in self._last_step.chunks]

    def follow_level(self, itl_s: float | None) -> None:
        self._scheduler.sizes.level_s = itl_s

    def learn_step_times(self, profile: Iterable[StepTime]) -> None:
        """Takes the times of steps that were tried before the first request."""
        for sample in profile:
            self._scheduler.sizes.observe(sample)

    def step_took(self, seconds: float, sample: StepTime | None) -> None:
        sizes = self._scheduler.sizes
        if sizes.is_auto:
            sizes.step_took(len(self._last_step.decoding), seconds)
            if sample is not None:
                sizes.observe(sample)

    def last_step_time(self, seconds: float) -> StepTime | None:
        step = self._last_step
        if not step:
            return None
        new = sum(chunk.num_tokens for chunk in step.chunks)
        pairs = sum(chunk.num_tokens * (chunk.sequence.num_computed - chunk.num_tokens // 2) for chunk in step.chunks)
        context = sum([sequence.num_tokens for sequence in step.decoding])
        return StepTime(new, max(pairs, 0) // new if new else 0, len(step.decoding), context, seconds)

    def _return_pages(self) -> None:
        pages = self._scheduler.pages.pool.take_returnable(RETURN_PAGES_A_STEP)
        if self._memory is not None:
            self._memory.return_pages(pages)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or self._scheduler.pages.pool.has_returnable

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
        """The states are active, reserved, held, draining, cached, free, and withheld if there are any. They sum to
        `num_pages`."""
        return self._scheduler.pages.pool.counts()

    @property
    def prefix_cache(self) -> PrefixCache:
        return self._scheduler.pages.pool.cache

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

    def _postprocess(self, step: ScheduledStep, sampled: SampledTokens) -> list[TokenChunk]:
        self._scheduler.computed(step)
        num_decoding = len(step.decoding)
        self._steps.add(num_decoding + step.num_chunk_tokens, num_decoding + len(step.chunks))
        sequences = step.decoding
        if step.chunks:
            sequences = [*sequences, *(chunk.sequence for chunk in step.chunks if chunk.samples)]
        logprobs, failures = sampled.logprobs, sampled.failures or {}
        unsound = self._keep_scores(step.chunks, sampled.prompt_scores) if step.num_scored_tokens else ()
        outputs = [self._fail(sequence, None) for sequence in unsound]
        for at, (sequence, token_id) in enumerate(zip(sequences, sampled.token_ids, strict=True)):
            if unsound and sequence in unsound:
                continue
            if token_id is None:
                outputs.append(self._fail(sequence, failures.get(at)))
            else:
                outputs.append(self._accept(sequence, token_id, None if logprobs is None else logprobs[at]))
        return outputs

    def _keep_scores(self, chunks: Items[ScheduledChunk], scored: Items[ScoredRows]) -> list[Sequence]:
        """Takes the log-probabilities that the step has computed for prompts. Returns the sequences for which they are
        no numbers."""
        unsound = []
        for chunk, rows in zip([chunk for chunk in chunks if chunk.scores], scored, strict=True):
            sequence = chunk.sequence
            if np.isnan(rows.logprobs).any():
                unsound.append(sequence)
                continue
            sequence.num_scored = chunk.scores.stop
            for at in range(0, len(chunk.scores), MAX_SCORED_TOKENS):
                part = slice(at, at + MAX_SCORED_TOKENS)
                columns = (rows.logprobs[part], rows.ranks[part], rows.top_ids[part], rows.top_logprobs[part])
                packed = b"".join([column.tobytes() for column in columns])
                scores = ScoredTokens(chunk.scores.start + 1 + at, rows.top_ids.shape[1], packed)
                self._prompt_scores.append(PromptScores(*sequence.key, scores))
        return unsound

    def _accept(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> TokenChunk:
        """Append a sampled token. If it is the last one, end or hold the sequence."""
        num_before = len(sequence.tokens)
        if num_before >= sequence.max_tokens:  # of a request that wants no output
            self._end(sequence)
            return TokenChunk(*sequence.key, 0, (), finish_reason="length", num_cached_tokens=sequence.num_cached or 0)
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
        elif grammar is not None:
            self._scheduler.follow_grammar(sequence)
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

    def _fail(self, sequence: Sequence, failure: TokenFailure | None) -> TokenChunk:
        """No token could be picked. Without a `failure`, the fault may be in the KV, which must not be reused by
        others."""
        if failure is None:
            self._scheduler.pages.forget(sequence)
        else:
            self._failures.append(Failed(*sequence.key, failure.message, retryable=False, kind=failure.kind))
        self._end(sequence)
        assert sequence.num_cached is not None
        return TokenChunk(
            *sequence.key,
            sequence.num_output,
            (),
            finish_reason="error",
            num_cached_tokens=sequence.num_cached,
        )

    def _end(self, sequence: Sequence) -> None:
        if sequence.ticket is not None:
            self._scheduler.hold(sequence)
        else:
            self._scheduler.finish(sequence)


def _key(request: EngineRequest) -> AttemptKey:
    return request.request_id, request.attempt
