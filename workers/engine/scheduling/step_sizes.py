"""How many tokens a step computes and how many sequences run: constants, or what keeps the ITL level.

Pure: the driver hands in the times of steps, and the scheduler asks for the size of the next one.
"""

from __future__ import annotations

import math

from slipstream.router.protocol.messages import StepTime
from slipstream.router.registry.service_times import ServiceTimes
from slipstream.workers.engine.limits.engine_limits import EngineLimits

LEAST_STEP_TOKENS = 32  # of prompts in a step beside decoding, so that prompts advance where the level cannot be kept
LEAST_EFFICIENT_TOKENS = 256
FIXED_SHARE = 1 / 32  # of the time of a step without decoding that its fixed cost may be
LEVEL_SHARE = 0.95  # of the level that steps are to take on average: single ones take longer
MOST_SAVED_LEVELS = 4.0  # a step takes at most so much longer as earlier ones were shorter
FIRST_NUM_SEQS = 32
GROWTH = 2.0  # of the sequences beyond what has been seen in a step: further than that, the times are a guess
HYSTERESIS = 0.1  # relative; smaller changes are not made
MEAN_RATE = 0.1  # how fast means follow samples


class StepSizes:
    """The constants of `limits`, or with `auto_step_tokens` and `auto_num_seqs` what follows from step times, with
    those constants as bounds.

    *Tokens of a step.* A step in which sequences decode takes on average no longer than the ITL level: what earlier
    steps have saved, a step with a prompt may use, within bounds. A step without decoding is as large as it takes to
    make its fixed cost small; more would only delay the prompts that are computed together.

    *Sequences.* As many as can decode together within the level. If not even one can, the level says nothing, and as
    many run as there is room for.

    The times are those that the router learns from the same samples. Without a level both are at their bounds, but for
    steps without decoding.
    """

    def __init__(self, limits: EngineLimits, level_s: float | None = None) -> None:
        self.level_s = level_s
        self.times = ServiceTimes()
        self._saved_s = 0.0
        self._prefill_context = 0.0  # tokens that a token of a prompt attends to, on average
        self._decode_context = 0.0  # of a sequence, on average
        self._most_seen_seqs = 0.0
        self.change_limits(limits)

    def change_limits(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.max_num_seqs = limits.max_num_seqs
        if limits.auto_num_seqs:
            self.max_num_seqs = min(FIRST_NUM_SEQS, limits.max_num_seqs)

    @property
    def is_auto(self) -> bool:
        """Whether it wants to know the times of steps."""
        return self._limits.auto_step_tokens or self._limits.auto_num_seqs

    def step_tokens(self, num_decoding: int, context_tokens: int) -> int:
        """How many tokens the next step may compute if so many sequences decode, which attend to so many tokens, and
        there is a prompt to compute."""
        most = self._limits.max_step_tokens
        if not self._limits.auto_step_tokens:
            return most
        chunk_s, token_s, pair_s = self.times.prefill
        token_s += pair_s * self._prefill_context
        if token_s <= 0.0:
            return most
        efficient = max(chunk_s / FIXED_SHARE / token_s, LEAST_EFFICIENT_TOKENS)
        if num_decoding and self.level_s is not None:
            _, by_seq_s, by_token_s = self.times.decode
            room_s = LEVEL_SHARE * self.level_s + self._saved_s
            room_s -= chunk_s + by_seq_s * num_decoding + by_token_s * context_tokens
            efficient = min(efficient, max(room_s / token_s, LEAST_STEP_TOKENS))
        return min(num_decoding + int(efficient), most)

    def step_took(self, num_decoding: int, seconds: float) -> None:
        """A step has ended, in which so many sequences decoded."""
        if self.level_s is None or not num_decoding:
            self._saved_s = 0.0
            return
        most_s = MOST_SAVED_LEVELS * self.level_s
        self._saved_s = min(max(self._saved_s + LEVEL_SHARE * self.level_s - seconds, -most_s), most_s)

    def observe(self, sample: StepTime) -> None:
        """The times of a step, or the sum of some. Now and then, as the router gets them."""
        self.times.observe_step(sample)
        if sample.num_prefill_tokens:
            self._prefill_context += MEAN_RATE * (sample.prefill_context_tokens - self._prefill_context)
        if sample.num_decoding:
            of_each = sample.decode_context_tokens / sample.num_decoding
            self._decode_context += MEAN_RATE * (of_each - self._decode_context) if self._decode_context else of_each
            self._most_seen_seqs = max(self._most_seen_seqs, sample.num_decoding / sample.num_steps)
            if self._limits.auto_num_seqs:
                self._adapt_num_seqs()

    def _adapt_num_seqs(self) -> None:
        most = self._limits.max_num_seqs
        wanted = float(most)
        if self.level_s is not None:
            base_s, by_seq_s, by_token_s = self.times.decode
            room_s = LEVEL_SHARE * self.level_s - base_s
            of_seq_s = by_seq_s + by_token_s * self._decode_context
            if room_s >= of_seq_s > 0.0:
                wanted = min(room_s / of_seq_s, most)
        wanted = max(min(wanted, max(GROWTH * self._most_seen_seqs, FIRST_NUM_SEQS)), 1.0)
        if wanted == most or not math.isclose(wanted, self.max_num_seqs, rel_tol=HYSTERESIS):
            self.max_num_seqs = min(int(wanted), most)
