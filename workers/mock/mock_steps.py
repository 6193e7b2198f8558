"""The steps of a mock worker: which attempts compute what, how long that takes by its profile, and the tokens."""

from __future__ import annotations

from collections import deque

from slipstream.router.protocol.messages import FinishReason, PromptScores, Role, StepTime, TokenChunk
from slipstream.workers.engine.step_counts import StepCounts
from slipstream.workers.interface.engine import AttemptKey
from slipstream.workers.mock.mock_attempt import MockAttempt, MockState
from slipstream.workers.mock.mock_attempts import MockAttempts
from slipstream.workers.mock.mock_scores import prompt_scores
from slipstream.workers.mock.mock_transfers import MockTransfers
from slipstream.workers.telemetry.step_times import StepSampler


class MockSteps:
    """Queued prompts and decoding attempts. A step computes one token of each decoding attempt and then, within
    `max_step_tokens`, the prompts in order."""

    def __init__(self, book: MockAttempts, transfers: MockTransfers, role: Role, steps: StepSampler) -> None:
        self._book = book
        self._profile = book.profile
        self._transfers = transfers
        self._role = role
        self._queue: deque[MockAttempt] = deque()
        self._decoding: dict[AttemptKey, MockAttempt] = {}
        self._context_tokens = 0  # the sum over decoding attempts
        self._step_chunks: list[tuple[MockAttempt, int]] = []  # prompt tokens in the current step
        self._step_decoding: list[MockAttempt] = []
        self._steps = steps
        self.step_ends_s: float | None = None
        self.num_queued_tokens = 0
        self.counts = StepCounts()
        self.num_sampled_tokens = 0
        self.prompt_scores: list[PromptScores] = []  # of prompts that were computed, to be sent before their tokens

    @property
    def num_decoding(self) -> int:
        return len(self._decoding)

    def decoding(self, key: AttemptKey) -> MockAttempt | None:
        """The attempt, if it is decoding here."""
        return self._decoding.get(key)

    def is_in_step(self, key: AttemptKey) -> bool:
        """Whether the step under way computes a token of its output."""
        return self._decoding.get(key) in self._step_decoding

    def enqueue(self, attempt: MockAttempt) -> None:
        """Queues an attempt, whose prompt is to be computed here except for what is cached."""
        attempt.state = MockState.QUEUED
        attempt.num_uncomputed = attempt.num_tokens - self._book.known_tokens(attempt)
        self.num_queued_tokens += attempt.num_uncomputed
        self._queue.append(attempt)

    def decode(self, attempt: MockAttempt) -> None:
        attempt.state = MockState.DECODING
        self._decoding[attempt.key] = attempt
        self._context_tokens += attempt.num_tokens

    def freeze(self, attempt: MockAttempt) -> None:
        """Takes an attempt out of the batch."""
        del self._decoding[attempt.key]
        attempt.state = MockState.FROZEN
        self._context_tokens -= attempt.num_tokens

    def drop(self, attempt: MockAttempt) -> None:
        """Drops an attempt that is no longer wanted."""
        if attempt.state is MockState.QUEUED:
            self.num_queued_tokens -= attempt.num_uncomputed
            if attempt in self._queue:
                self._queue.remove(attempt)
        elif attempt.state is MockState.DECODING:
            del self._decoding[attempt.key]
            self._context_tokens -= attempt.num_tokens

    def begin_step(self, now_s: float) -> None:
        """Begins a step, if none is under way and there is something to compute."""
        if self.step_ends_s is not None or not (self._queue or self._decoding):
            return
        profile = self._profile
        self._step_decoding = list(self._decoding.values())
        budget = profile.max_step_tokens - len(self._step_decoding)
        num_prompt_tokens = 0
        for attempt in self._queue:
            if budget <= 0:
                break
            if not attempt.has_begun:
                self._begin_prompt(attempt)
            take = min(budget, attempt.num_uncomputed)
            self._step_chunks.append((attempt, take))
            budget -= take
            num_prompt_tokens += take
        self.counts.add(len(self._step_decoding) + num_prompt_tokens, len(self._step_decoding) + len(self._step_chunks))
        seconds = profile.step_seconds(len(self._step_decoding), num_prompt_tokens, self._context_tokens)
        self.step_ends_s = now_s + seconds
        if self._steps.wants(num_prompt_tokens > 0, now_s):
            pairs = sum(take * (one.num_tokens - one.num_uncomputed + take // 2) for one, take in self._step_chunks)
            mean = pairs // num_prompt_tokens if num_prompt_tokens else 0
            sample = StepTime(num_prompt_tokens, mean, len(self._step_decoding), self._context_tokens, seconds)
            self._steps.add(sample, now_s)

    def end_step(self) -> list[TokenChunk]:
        """Ends the step under way and returns its tokens."""
        self.step_ends_s = None
        chunks = []
        for attempt in self._step_decoding:
            if attempt.state is MockState.DECODING and attempt in self._book:
                self._context_tokens += 1
                chunks.append(self._sample(attempt))
        for attempt, num_tokens in self._step_chunks:
            if attempt not in self._book:
                continue
            attempt.num_uncomputed -= num_tokens
            self.num_queued_tokens -= num_tokens
            num_computed = attempt.num_tokens - attempt.num_uncomputed
            self._book.pages.remember(attempt.lease, num_computed // self._profile.page_tokens)
            if attempt.num_uncomputed == 0:
                self._queue.popleft()
                if attempt.request.sampling.prompt_logprobs is not None:
                    self.prompt_scores += prompt_scores(attempt.request, self._profile.vocab_size)
                chunks.append(self._prompt_computed(attempt))
        self._step_decoding, self._step_chunks = [], []
        return chunks

    def _begin_prompt(self, attempt: MockAttempt) -> None:
        attempt.has_begun = True
        self._book.find_more(attempt)
        self.num_queued_tokens -= attempt.num_uncomputed
        attempt.num_uncomputed = attempt.num_tokens - self._book.known_tokens(attempt)
        self.num_queued_tokens += attempt.num_uncomputed
        self._book.count_cached(attempt)

    def _prompt_computed(self, attempt: MockAttempt) -> TokenChunk:
        """A prompt is complete: returns its first token, and lets the attempt decode here or send its pages."""
        if self._role == "prefill":
            self._transfers.begin(attempt)
            return self._next_chunk(attempt)
        self.decode(attempt)
        self._context_tokens += 1
        return self._sample(attempt)

    def _sample(self, attempt: MockAttempt) -> TokenChunk:
        if attempt.num_tokens % self._profile.page_tokens == 0:
            self._book.fill_page(attempt)
        chunk = self._next_chunk(attempt)
        if chunk.finish_reason is not None:
            self.drop(attempt)
            self._book.remove(attempt)
        return chunk

    def _next_chunk(self, attempt: MockAttempt) -> TokenChunk:
        request_id, number = attempt.key
        if not attempt.max_output:
            return TokenChunk(request_id, number, 0, (), finish_reason="length", num_cached_tokens=attempt.num_cached)
        index = attempt.num_output
        token_id = attempt.output.token_at(index)
        attempt.num_output += 1
        if attempt.tokens is not None:
            attempt.tokens.append(token_id)
        self.num_sampled_tokens += 1
        is_stop = token_id in attempt.stop_ids and index >= attempt.request.sampling.min_tokens
        reason: FinishReason | None = "stop" if is_stop else None
        if reason is None and attempt.num_output >= attempt.max_output:
            reason = "length"
        stop_token_id = token_id if is_stop else None
        return TokenChunk(request_id, number, index, (token_id,), (), reason, stop_token_id, attempt.num_cached)
