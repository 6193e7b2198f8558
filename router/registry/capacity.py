"""What a request takes of a worker, and whether the worker has it."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.registry.credits import Charge
from slipstream.router.registry.worker_registry import WorkerState


def decode_charge(worker: WorkerState, num_tokens: int, most_tokens: int) -> Charge:
    """What a sequence of `num_tokens`, which may come to have `most_tokens`, takes of a decode worker."""
    return Charge(slots=1, pages=worker.decode_pages(num_tokens, most_tokens))


def prefill_charge(worker: WorkerState, num_tokens: int) -> Charge:
    """What a prefill of `num_tokens` takes of a prefill group: pages and its queue's tokens."""
    return Charge(pages=worker.pages_for(num_tokens), tokens=num_tokens)


def can_ever_hold(worker: WorkerState, num_tokens: int) -> bool:
    """Whether the worker, idle, has room for the tokens and one more."""
    hello = worker.hello
    return num_tokens < hello.max_model_len and worker.pages_for(num_tokens + 1) <= hello.num_pages


def refusal(num_tokens: int, decode_workers: Sequence[WorkerState]) -> str | None:
    """Why no decode worker could ever take the request; None if one could, or if none is there to ask."""
    if not decode_workers or any(can_ever_hold(worker, num_tokens) for worker in decode_workers):
        return None
    longest = max(_longest(worker) for worker in decode_workers)
    return f"a sequence of {num_tokens} tokens leaves no room for output: at most {longest} tokens fit"


def fits_decode(worker: WorkerState, num_tokens: int, most_tokens: int) -> bool:
    """Whether a decode worker's credits cover the sequence now."""
    ledger = worker.ledger
    return ledger.free_slots >= 1 and ledger.free_pages >= worker.decode_pages(num_tokens, most_tokens)


def fits_prefill(worker: WorkerState, num_tokens: int, most_tokens: int = 0) -> bool:
    """Whether a prefill group's credits cover the prompt now, whatever the answer may come to."""
    # An idle group takes any prompt that fits its pages, even one longer than its queue is meant to be.
    ledger, hello = worker.ledger, worker.hello
    return ledger.free_pages >= worker.pages_for(num_tokens) and ledger.free_tokens >= min(
        num_tokens, hello.max_queued_tokens
    )


def _longest(worker: WorkerState) -> int:
    """The most tokens that a sequence of the worker can have. With page groups or states, it says so itself."""
    hello = worker.hello
    if hello.group_pages or hello.state_pages:
        return hello.max_model_len
    return min(hello.max_model_len, hello.num_pages * hello.page_tokens)
