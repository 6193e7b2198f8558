"""What a prompt costs the prompts that come to the same worker after it, in seconds.

They come in equal distances, at the rate of late. Those that come while the `queue_s` seconds of work before this
prompt last start later by all of its `own_s` seconds, those that come while it is computed by half of them on the mean:
`own_s * (queue_s + own_s / 2)` together, if one comes every second. How much time each has left is not known; if any
time up to the level is equally likely, x / level of those that find x seconds of work before them miss it, and all of
them where x is longer than the level. So behind a long queue this prompt makes only those late that come within its own
seconds: the others are late anyway.

But none of them has to wait there: a decode worker could compute it, too. It loses no more than the queue there costs
it and what it costs the streams there, which stand still meanwhile.
"""

from __future__ import annotations

from slipstream.router.placement.policies.estimate import PrefillEstimate
from slipstream.router.registry.worker_registry import WorkerState


class NextPrompts:
    """For one decision. Prompts to come have a level of `ttft_s`, and missing it costs them `allowed_s`."""

    __slots__ = ("_allowed_s", "_detours", "_ttft_s")

    def __init__(self, ttft_s: float, allowed_s: float) -> None:
        self._ttft_s = ttft_s
        self._allowed_s = allowed_s
        self._detours: list[tuple[WorkerState, float, int]] = []  # what the queue there costs, who would stand still

    def could_go_to(self, there: PrefillEstimate, num_streams: int) -> None:
        """That decode worker could compute them, too, and so many streams would wait for it."""
        queue_s, ttft_s = there.queue_s, self._ttft_s
        share_missed = queue_s / ttft_s if queue_s < ttft_s else 1.0
        self._detours.append((there.worker, queue_s + share_missed * self._allowed_s, num_streams))

    def loss_s(self, there: PrefillEstimate) -> float:
        """What all of them lose together if this prompt is computed there."""
        next_per_s = there.next_per_s
        if not next_per_s:
            return 0.0
        queue_s, own_s, ttft_s, next_s, worker = there.queue_s, there.own_s, self._ttft_s, there.next_s, there.worker
        busy_s = queue_s + own_s
        if busy_s <= 0.0:
            return 0.0
        late = 0.5 * busy_s * busy_s / ttft_s if busy_s < ttft_s else busy_s - 0.5 * ttft_s
        late -= 0.5 * queue_s * queue_s / ttft_s if queue_s < ttft_s else queue_s - 0.5 * ttft_s
        each_s = (own_s * (queue_s + 0.5 * own_s) + late * self._allowed_s) / busy_s
        for other, queue_loss_s, num_streams in self._detours:
            elsewhere_s = queue_loss_s + num_streams * next_s
            if elsewhere_s < each_s and other is not worker:
                each_s = elsewhere_s
        return next_per_s * busy_s * each_s
