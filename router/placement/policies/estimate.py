"""What will happen to a request on a worker, and to those already there: times only, no judgement.

All of it follows from the worker's service times and its load. Where decoding and prefill share a worker, a step with a
chunk of a prompt takes as long as the chunk and the decoding together, and all streams there wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from slipstream.router.placement.policies.policy import PlacementJob
from slipstream.router.registry.capacity import fits_prefill
from slipstream.router.registry.worker_registry import WorkerState

MAX_SHARE = 0.9  # of a decode worker's time: at most so much of it counts as taken by prefill
NEVER_S = 3600.0  # the wait for a worker that is full, though not with anything that the router has placed there


class DecodeEstimate(NamedTuple):
    """The request decodes on `worker`. `num_here` sequences are there, `num_streams` of them are past their prefill.
    `step_before_s` and `step_s` are the time between tokens without it and with it."""

    worker: WorkerState
    fits: bool
    room_s: float  # until a slot and pages are free
    num_here: int
    num_streams: int
    step_before_s: float
    step_s: float
    their_remaining_tokens: float
    decode_s: float  # all of its own steps
    reserve_s: float
    overflow_s: float  # to compute again what will have to give way when all grow as predicted
    recent_prefills: tuple[float, float]  # prompts a second given to the worker, and the share of its time they take


class PrefillEstimate(NamedTuple):
    """The prompt is computed on `worker`. All in seconds: `queue_s` for the prompts ahead of it and `own_s` for itself,
    both corrected by `correction`; `raw_s` is their sum without that. `added_s` is what it adds to the steps of the
    streams that decode there."""

    worker: WorkerState
    fits: bool
    num_cached: int
    queue_s: float
    own_s: float
    raw_s: float
    chunk_s: float  # a step with a chunk of it
    added_s: float
    next_per_s: float  # prompts that will come there, a second of work: more, the longer each of them keeps it busy
    next_s: float  # what one of them takes
    noise: float


# As by calling the class with as many arguments, which takes twice as long.
_decode_estimate: Callable[
    [tuple[WorkerState, bool, float, int, int, float, float, float, float, float, float, tuple[float, float]]],
    DecodeEstimate,
] = partial(tuple.__new__, DecodeEstimate)
_prefill_estimate: Callable[
    [tuple[WorkerState, bool, int, float, float, float, float, float, float, float, float]], PrefillEstimate
] = partial(tuple.__new__, PrefillEstimate)


def estimate_decode(worker: WorkerState, job: PlacementJob, now: float) -> DecodeEstimate:
    # Every placement calls this for several workers, so expressions stand here in place of small functions.
    load, hello, ledger, times = worker.load, worker.hello, worker.ledger, worker.times
    num_tokens, job_remaining = job.num_tokens, job.remaining_tokens
    base_s, by_seq_s, by_token_s = times.coefficients("decode")
    num_here, context = load.num_seqs, load.context_tokens
    remaining = max(load.remaining_tokens, 0.0)
    if worker is job.placed_on:
        num_here -= 1
        context -= num_tokens
        remaining = max(remaining - job_remaining, 0.0)
    recent_prefills = load.recent_prefills(now)
    share = 1.0 - (recent_prefills[1] if recent_prefills[1] < MAX_SHARE else MAX_SHARE)
    step_before_s = (base_s + by_seq_s * num_here + by_token_s * context) / share if num_here else 0.0
    with_it = context + num_tokens + 0.5 * job_remaining
    step_s = (base_s + by_seq_s * (num_here + 1) + by_token_s * with_it) / share
    theirs = max(remaining / num_here, 1.0) if num_here else 0.0
    room_s = 0.0
    page_tokens, free_pages = hello.page_tokens, ledger.free_pages
    own_pages = -(-(num_tokens + 1) // page_tokens)
    if hello.group_pages or hello.state_pages or hello.reserves_output:
        own_pages = worker.decode_pages(num_tokens, job.most_tokens)
    grown, held = 1, 1.0  # pages: what one more block of tokens takes, and what a sequence holds for each of its blocks
    if hello.group_pages or hello.state_pages:
        grown, held = worker.pages_a_block((context + num_tokens) // (num_here + 1))
    # As `fits_decode`, without repeated lookups.
    fits = worker is job.placed_on or (ledger.free_slots >= 1 and free_pages >= own_pages)
    if not fits:
        if num_here == 0:
            room_s = NEVER_S
        else:
            pages_a_seq = max(context / num_here / page_tokens * held, 1.0)
            num_to_end = max(1 - ledger.free_slots, math.ceil((own_pages - free_pages) / pages_a_seq), 1)
            # Of n that have r tokens left on average, evenly spread, the k-th is through after 2 r k / (n + 1).
            room_s = 2.0 * theirs * min(num_to_end / (num_here + 1), 1.0) * step_before_s
            room_s *= 1 + job.num_waiting_before
    # Some end while others grow: about half of what is to come is there at once.
    to_come = 0.5 * (remaining + job_remaining) / page_tokens * grown + own_pages - free_pages
    if hello.reserves_output:
        to_come = 0.0  # none will have to give way
    overflow_s = to_come / held * page_tokens * times.coefficients("prefill")[1] if to_come > 0.0 else 0.0
    num_streams = num_here - load.num_pending
    return _decode_estimate(
        (
            worker,
            fits,
            room_s,
            num_here,
            num_streams if num_streams > 0 else 0,
            step_before_s,
            step_s,
            theirs,
            job_remaining * step_s,
            times.coefficients("reserve")[0],
            overflow_s,
            recent_prefills,
        )
    )


def estimate_prefill(
    worker: WorkerState, job: PlacementJob, num_cached: int, now: float, decoding: DecodeEstimate | None = None
) -> PrefillEstimate:
    """On a prefill group, or on the decode worker that `decoding` is about."""
    load, times, ledger, hello = worker.load, worker.times, worker.ledger, worker.hello
    (chunk_s, token_s, pair_s), noise = times.prefill_line()
    beside_s = base_s = 0.0
    chunk_tokens, num_tokens = hello.max_step_tokens, job.num_tokens
    num_streams = decoding.num_streams if decoding is not None else 0
    if decoding is not None and num_streams:
        base_s, by_seq_s, by_token_s = times.coefficients("decode")
        beside_s = by_seq_s * num_streams + by_token_s * load.context_tokens * num_streams / max(decoding.num_here, 1)
        chunk_tokens -= num_streams
    if chunk_tokens < 1:
        chunk_tokens = 1
    queue_s = load.abandoned_s(now) / times.correction
    queued, queued_pairs = queue_of(worker) if load.pending_tokens > 0 else (0, 0.0)
    if queued:
        queue_s += queued / chunk_tokens * (chunk_s + beside_s) + queued * token_s + queued_pairs * pair_s
    new = num_tokens - num_cached
    if new < 1:
        new = 1
    chunks = -(-new // chunk_tokens)
    alone_s = chunks * chunk_s + new * token_s + new * (num_tokens - 0.5 * new) * pair_s
    own_s = alone_s + chunks * beside_s
    fits = True
    if decoding is not None:
        if num_streams and not queued:
            queue_s += 0.5 * (base_s + beside_s)  # a step is under way
        prompts_per_s, share = decoding.recent_prefills
    else:
        fits = fits_prefill(worker, num_tokens)
        if not fits:
            queue_s += job.num_waiting_before * own_s
            lacking = worker.pages_for(num_tokens) - ledger.free_pages
            if lacking > 0:  # pages are free when they are sent: about when what is queued has been computed
                queue_s = max(queue_s, own_s) * (1.0 + lacking / hello.num_pages)
        prompts_per_s, share = load.recent_prefills(now)
    correction, raw_s = times.correction, queue_s + own_s
    added_s = alone_s - chunks * base_s
    return _prefill_estimate(
        (
            worker,
            fits,
            num_cached,
            queue_s * correction,
            own_s * correction,
            raw_s,
            (own_s / chunks) * correction,
            added_s * correction if added_s > 0.0 else 0.0,
            prompts_per_s / (1.0 - (share if share < MAX_SHARE else MAX_SHARE)),
            share / prompts_per_s * correction if prompts_per_s else 0.0,
            noise if noise > 0.1 else 0.1,
        )
    )


def queue_of(worker: WorkerState) -> tuple[int, float]:
    """Prompt tokens ahead of a new prompt, and their pairs of a new token and one before it.

    The worker's own count is exact and goes down with each chunk, but ends at the size of its queue; what was placed
    there and has no first token yet is an upper bound that does not know the chunks that are through.
    """
    load, hello = worker.load, worker.hello
    if load.pending_tokens <= 0:
        return 0, 0.0
    counted = hello.max_queued_tokens - worker.ledger.free_tokens
    if hello.role == "decode":
        counted -= load.num_running  # each has one token to compute
    if counted >= hello.max_queued_tokens:  # or more
        queued = max(load.pending_tokens, counted)
    else:
        queued = min(max(counted, 0), load.pending_tokens)
    return queued, load.pending_pairs * (queued / load.pending_tokens)


def gap_s(worker: WorkerState, job: PlacementJob, num_cached: int) -> float:
    """What the client waits for the second token after a hand-off to `worker`, which has `num_cached` tokens."""
    fixed_s, by_page_s = worker.times.coefficients("gap")
    return fixed_s + by_page_s * worker.pages_for(max(job.num_tokens - num_cached, 1))
