"""How long a worker's steps and transfers take, learned from what it measures and from what the router sees.

    step       decode_s(sequences, context) + prefill_s(chunk)
    decode     base + by sequence + by token of context that the sequences attend to
    prefill    by chunk + by new token + by pair of a new token and a token before it
    transfer   base + by page, from the first page's departure; `gap`: the part of it that the client waits for
    reserve    from Reserve to Reserved, as the router sees it: the way there and back, and the step in between

A worker without samples of a kind is assumed to be like its pool, a pool without samples like the other pool (same
model, most likely the same hardware); without any samples, priors hold. What a worker reports of its steps may be
wrong: `correction` compares the first tokens predicted from it with those that came, and corrects within bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.router.protocol.messages import StepTime
from slipstream.router.registry.least_squares import LinearEstimate, LinearFit

# Roughly a model of a few billion parameters on an older GPU. Any start does, as the first samples overrule it.
DECODE_PRIOR = (8e-3, 1e-4, 2e-8)
PREFILL_PRIOR = (4e-3, 1e-4, 2e-9)
TRANSFER_PRIOR = (2e-3, 5e-5)
GAP_PRIOR = (1e-3, 2e-5)
RESERVE_PRIOR = (3e-3,)

KINDS = ("decode", "prefill", "transfer", "gap", "reserve")
_PRIORS: dict[str, Sequence[float]] = {
    "decode": DECODE_PRIOR,
    "prefill": PREFILL_PRIOR,
    "transfer": TRANSFER_PRIOR,
    "gap": GAP_PRIOR,
    "reserve": RESERVE_PRIOR,
}
CORRECTION_RATE = 0.1
CORRECTION_STEP = 8.0  # the largest error that one first token may show; it changes `correction` by 8 ** 0.1 = 1.23
MIN_CORRECTION, MAX_CORRECTION = 0.25, 1e6  # a worker that is slower than it says does harm, a faster one none
HAND_OFF_KINDS = ("transfer", "gap", "reserve")
SETTLED_SAMPLES, SETTLED_EVERY = 100, 4  # every fourth, no multiple of 3, so that all three kinds have their turn
POOLED_SAMPLES, POOLED_EVERY = 16, 8  # a pool learns a worker's first 16 samples, then every eighth
MESSAGE_S = 5e-3  # below this, messages and timers count as much as the work


class ServiceTimes:
    """The times of one worker, or of a pool. `pool` learns what this one learns, and is used for kinds of which this
    one has no samples. `stand_in`, another pool, is used for kinds of which that one has none either."""

    __slots__ = ("_fits", "_num_offered", "_pool", "_stand_in", "correction")

    def __init__(self, pool: ServiceTimes | None = None, stand_in: ServiceTimes | None = None) -> None:
        self._pool = pool
        self._stand_in = stand_in
        self._fits: dict[str, LinearFit] = {}
        self._num_offered = 0
        self.correction = 1.0  # first tokens come so many times later than the worker's own times say

    def observe_step(self, sample: StepTime) -> None:
        """A step, or the sum of some. Samples that cannot be true are dropped."""
        num_seqs, context = sample.num_decoding, sample.decode_context_tokens
        if sample.num_prefill_tokens == 0:
            if num_seqs > 0:
                self._observe("decode", (sample.num_steps, num_seqs, context), sample.seconds)
            return
        seconds = sample.seconds
        if num_seqs > 0:  # what the sequences add; the base is in the chunk's
            _, by_seq, by_token = self.decode
            seconds = max(seconds - by_seq * num_seqs - by_token * context, seconds * 0.1)
        tokens = float(sample.num_prefill_tokens)
        self._observe("prefill", (1.0, tokens, tokens * sample.prefill_context_tokens), seconds)

    def observe_transfer(self, num_pages: int, seconds: float) -> None:
        """The time of a transfer, as the decode worker measured it."""
        self._observe("transfer", (1.0, num_pages), seconds)

    def observe_gap(self, num_pages: int, seconds: float) -> None:
        """From the first token to the hand-off, as the router saw them; 0 if the pages were faster."""
        self._observe("gap", (1.0, num_pages), seconds)

    def observe_reserve(self, seconds: float) -> None:
        """From Reserve to Reserved, as the router saw them."""
        self._observe("reserve", (1.0,), seconds)

    def observe_first_token(self, predicted_s: float, seconds: float) -> None:
        """A first token came after `seconds`; the worker's own times, without `correction`, had predicted
        `predicted_s`."""
        if not (0.0 <= seconds < math.inf and 0.0 <= predicted_s < math.inf):
            return
        error = (seconds + MESSAGE_S) / (predicted_s + MESSAGE_S) / self.correction
        moved = self.correction * min(max(error, 1.0 / CORRECTION_STEP), CORRECTION_STEP) ** CORRECTION_RATE
        self.correction = min(max(moved, MIN_CORRECTION), MAX_CORRECTION)

    def _observe(self, kind: str, features: Sequence[float], seconds: float) -> None:
        fit = self._fits.get(kind)
        if fit is None:
            fit = LinearFit(self._start(kind))
            if not fit.observe(features, seconds):
                return
            self._fits[kind] = fit
        else:
            if fit.num_samples > SETTLED_SAMPLES and kind in HAND_OFF_KINDS:
                self._num_offered += 1
                if self._num_offered % SETTLED_EVERY:
                    return  # every hand-off brings three, and a fit that is settled learns little from one
            fit.observe(features, seconds)
        # A pool knows the work after its first samples, and would get thousands a second of a thousand workers.
        if self._pool is not None and (fit.num_samples <= POOLED_SAMPLES or fit.num_samples % POOLED_EVERY == 0):
            self._pool._observe(kind, features, seconds)

    def _start(self, kind: str) -> Sequence[float]:
        """What a first sample is compared with: the pool's line, where no coefficient of that has vanished."""
        prior = _PRIORS[kind]
        known = self._known(kind)
        if known is None:
            return prior
        return tuple(max(w, 1e-6 * first) for w, first in zip(known.coefficients, prior, strict=True))

    def _known(self, kind: str) -> LinearFit | None:
        fit = self._fits.get(kind)
        if fit is None and self._pool is not None:
            fit = self._pool._known(kind)
        if fit is None and self._stand_in is not None:
            fit = self._stand_in._fits.get(kind)
        return fit

    def coefficients(self, kind: str) -> Sequence[float]:
        """The seconds of each term of a kind, in the order of the table above."""
        fit = self._fits.get(kind)
        if fit is None:
            fit = self._known(kind)
            if fit is None:
                return _PRIORS[kind]
        return fit.coefficients

    def prefill_line(self) -> tuple[Sequence[float], float]:
        """The coefficients of `prefill` and its noise: every placement asks both of several workers."""
        fit = self._fits.get("prefill") or self._known("prefill")
        return (fit.coefficients, fit.noise) if fit is not None else (PREFILL_PRIOR, 1.0)

    @property
    def decode(self) -> Sequence[float]:
        """Seconds a step, a sequence and a token of context."""
        return self.coefficients("decode")

    @property
    def prefill(self) -> Sequence[float]:
        """Seconds a chunk, a new token and a pair of a new token and one before it."""
        return self.coefficients("prefill")

    def num_samples(self, kind: str) -> int:
        """How many samples of a kind this one has itself."""
        fit = self._fits.get(kind)
        return fit.num_samples if fit is not None else 0

    def noise(self, kind: str) -> float:
        """How far single measurements lie from the prediction, relative to it."""
        fit = self._fits.get(kind) or self._known(kind)
        return fit.noise if fit is not None else 1.0

    def decode_step_s(self, num_seqs: int, context_tokens: int) -> LinearEstimate:
        """A step that decodes only."""
        return self._predict("decode", (1.0, num_seqs, context_tokens))

    def prefill_s(self, num_new_tokens: int, context_tokens: int = 0, chunk_tokens: int = 2048) -> LinearEstimate:
        """All chunks of a prompt of which `context_tokens` are cached, on a worker that does nothing else."""
        return self._predict("prefill", prefill_features(num_new_tokens, context_tokens, chunk_tokens))

    def transfer_s(self, num_pages: int) -> LinearEstimate:
        """From the first page's departure until all have landed."""
        return self._predict("transfer", (1.0, num_pages))

    def gap_s(self, num_pages: int) -> LinearEstimate:
        """What a client waits for the second token beyond a decode step."""
        return self._predict("gap", (1.0, num_pages))

    def reserve_s(self) -> LinearEstimate:
        """From Reserve to Reserved."""
        return self._predict("reserve", (1.0,))

    def _predict(self, kind: str, features: Sequence[float]) -> LinearEstimate:
        fit = self._known(kind)
        return (fit if fit is not None else LinearFit(_PRIORS[kind])).predict(features)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: a profile from which the simulator makes workers."""
        return {
            "fits": {kind: fit.to_dict() for kind, fit in self._fits.items()},
            "reality": self.correction,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], pool: ServiceTimes | None = None) -> ServiceTimes:
        """The inverse of `to_dict`. Raises ValueError or KeyError for values that `to_dict` cannot have made."""
        times = cls(pool)
        for kind, fit in values["fits"].items():
            if kind not in KINDS:
                raise ValueError(f"there are no times of {kind!r}, only of {', '.join(KINDS)}")
            times._fits[kind] = LinearFit.from_dict(fit)
            if len(times._fits[kind].coefficients) != len(_PRIORS[kind]):
                raise ValueError(f"the times of {kind!r} have {len(_PRIORS[kind])} coefficients")
        correction = float(values["reality"])
        if not MIN_CORRECTION <= correction <= MAX_CORRECTION:
            raise ValueError(f"reality must be in {MIN_CORRECTION} .. {MAX_CORRECTION}, got {correction}")
        times.correction = correction
        return times


def prefill_features(num_new_tokens: int, context_tokens: int, chunk_tokens: int) -> tuple[float, float, float]:
    """Chunks, new tokens, and pairs of a new token and one before it."""
    chunks = -(-num_new_tokens // max(chunk_tokens, 1))
    return chunks, num_new_tokens, num_new_tokens * (context_tokens + num_new_tokens / 2)
