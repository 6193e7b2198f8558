"""How far the model is off, learned from what is seen of the workers that are there: the times that it predicts are
multiplied by these factors, as NVIDIA Dynamo's planner does.

Where requests wait all the time, what is served is what can be served, and that is compared. Where they do not, times
to the first token and between tokens are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slipstream.cluster.planner.model.queueing_model import Outlook
from slipstream.router.status.load_signals import Signals

LEAST, MOST = 0.5, 8.0
STEP = 1.3  # at most so far in one look
RATE = 0.4  # of the error's logarithm is taken up
MIN_SAMPLES = 8  # of the short window
TOO_FULL = 0.9  # share of slots or pages in use
SMALL = 0.1
MEANS_NOTHING = 0.95  # waits near saturation are anything


@dataclass(slots=True)
class Corrections:
    """Factors on the times of a prompt and of a decode step."""

    prefill: float = 1.0
    decode: float = 1.0

    def doubt(self) -> None:
        """The load is another one: what the model is off by has to do with how prompts and answers meet, and so half of
        what was learned (of its logarithm) is taken back."""
        self.prefill, self.decode = math.sqrt(self.prefill), math.sqrt(self.decode)

    def learn(self, predicted: Outlook, itl_s: float, per_s: float, signals: Signals, is_behind: bool) -> None:
        """`predicted` is of the workers that are there, under the load of `per_s` that has come to them lately, with
        the corrections so far. `itl_s` is its time between tokens; where answers are late, that of as many as run: near
        saturation a load that is a little off makes other batches altogether, and that is no fault of the times.
        `is_behind`: requests have been waiting through the whole short window."""
        short = signals.short
        num_first = short.ttft_s.count
        if is_behind:
            if predicted.load <= 0.0 or num_first < MIN_SAMPLES:
                return
            can_serve = per_s / predicted.load
            ratio = can_serve / (num_first / short.span_s)
            decode = [worker.used_share for worker in signals.workers if worker.role == "decode"]
            if decode and sum(decode) / len(decode) > TOO_FULL:
                self.decode = _moved(self.decode, ratio)
            else:
                self.prefill = _moved(self.prefill, ratio)
            return
        if num_first >= MIN_SAMPLES:
            if predicted.load < MEANS_NOTHING:
                self.prefill = _moved(self.prefill, _error(short.ttft_s.mean, predicted.ttft_s, signals.slo_ttft_s))
            elif short.ttft_s.mean > signals.slo_ttft_s:
                pass  # it should not keep up, and does not
            elif predicted.prefill_load >= predicted.decode_load:
                self.prefill = _moved(self.prefill, 0.5)
            else:
                self.decode = _moved(self.decode, 0.5)
        if short.itl_s.count >= MIN_SAMPLES and itl_s > 0.0 and predicted.decode_load < MEANS_NOTHING:
            self.decode = _moved(self.decode, _error(short.itl_s.mean, itl_s, signals.slo_itl_s))


def _error(seen_s: float, predicted_s: float, slo_s: float) -> float:
    """How many times as long it took. What is small beside the level says little: timers and messages are in it."""
    return (seen_s + SMALL * slo_s) / (predicted_s + SMALL * slo_s)


def _moved(factor: float, ratio: float) -> float:
    step: float = max(ratio, 1e-6) ** RATE
    return min(max(factor * min(max(step, 1.0 / STEP), STEP), LEAST), MOST)
