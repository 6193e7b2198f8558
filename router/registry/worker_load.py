"""What the router knows of a worker's load beyond what the worker reports.

Credits say how many tokens and pages are free. They do not say how many of the sequences already decode, how much
context a step reads, or how long the sequences will stay. That follows from what the router has placed there and which
tokens have come back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WINDOW_S = 10.0  # over which prompts a second and the share of prefill are averaged


@dataclass(slots=True)
class PendingPrefill:
    """A prompt whose first token has not come yet: what it adds to its worker's load, and what was predicted when it
    was placed. `num_pairs` counts pairs of a new token and one before it. `work_s` is the time that the prompt takes,
    `predicted_s` the time until its first token, prompts ahead of it included; both without the worker's `correction`.
    """

    num_tokens: int
    num_pairs: float
    work_s: float
    predicted_s: float
    begun_s: float


@dataclass(slots=True)
class WorkerLoad:
    """`num_seqs` sequences are placed on the worker to be decoded there, `num_running` of them have their first token.
    `context_tokens` and `remaining_tokens` (output still predicted to come) are sums over all of them. `pending_*` are
    sums over the prompts that wait for their first token."""

    num_seqs: int = 0
    num_running: int = 0
    context_tokens: int = 0
    remaining_tokens: float = 0.0
    num_pending: int = 0
    pending_tokens: int = 0
    pending_pairs: float = 0.0
    _prompts_per_s: float = 0.0
    _prefill_share: float = 0.0
    _at_s: float = 0.0
    _abandoned_until_s: float = -math.inf

    def begin_prefill(self, pending: PendingPrefill) -> None:
        self.num_pending += 1
        self.pending_tokens += pending.num_tokens
        self.pending_pairs += pending.num_pairs
        prompts_per_s, share = self.recent_prefills(pending.begun_s)
        self._prompts_per_s = prompts_per_s + 1.0 / WINDOW_S
        self._prefill_share = share + pending.work_s / WINDOW_S
        self._at_s = pending.begun_s

    def end_prefill(self, pending: PendingPrefill) -> None:
        self.num_pending -= 1
        self.pending_tokens -= pending.num_tokens
        self.pending_pairs -= pending.num_pairs
        if self.num_pending == 0:
            self.pending_pairs = 0.0  # what rounding has left

    def abandon_chunk(self, pending: PendingPrefill, chunk_tokens: int, correction: float, now: float) -> None:
        """The prompt is not wanted any more, and was the only one there: a worker ends its step first, of which half is
        over on the mean."""
        if self.num_pending == 0:
            share = min(chunk_tokens / max(pending.num_tokens, 1), 1.0)
            until_s = now + 0.5 * share * pending.work_s * correction
            self._abandoned_until_s = max(self._abandoned_until_s, until_s)

    def abandoned_s(self, now: float) -> float:
        """How long the worker still computes a prompt that is no longer wanted."""
        return self._abandoned_until_s - now if self._abandoned_until_s > now else 0.0

    def add_sequence(self, num_tokens: int, remaining_tokens: float) -> None:
        self.num_seqs += 1
        self.context_tokens += num_tokens
        self.remaining_tokens += remaining_tokens

    def remove_sequence(self, num_tokens: int, remaining_tokens: float) -> None:
        self.num_seqs -= 1
        self.context_tokens -= num_tokens
        self.remaining_tokens -= remaining_tokens
        if self.num_seqs == 0:
            self.remaining_tokens = 0.0  # what rounding has left

    def recent_prefills(self, now: float) -> tuple[float, float]:
        """Prompts a second given to the worker, and the share of its time that they take."""
        if not self._prompts_per_s:
            return 0.0, 0.0
        if now <= self._at_s:
            return self._prompts_per_s, self._prefill_share
        fade = math.exp((self._at_s - now) / WINDOW_S)
        return self._prompts_per_s * fade, self._prefill_share * fade
