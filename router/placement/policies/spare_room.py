"""Room for background work, beside what is kept free for requests that clients wait for.

A worker whose slots are all taken makes the next client wait until a sequence ends; so background work takes none of
the last quarter. (A worker with up to three slots has no such quarter.) In front of a prompt that a client waits for
there is at most half a queue of background prompts; a worker computes them in the order of priorities, too.
"""

from __future__ import annotations

from slipstream.router.registry.worker_registry import FEW, WorkerRegistry, WorkerState

KEPT_SHARE = 0.25  # of the slots and pages of a decode worker
KEPT_QUEUE = 0.5  # of the tokens that a prefill group takes


def has_spare_slot(worker: WorkerState) -> bool:
    """Whether a decode worker may be given background work now."""
    ledger, hello = worker.ledger, worker.hello
    return ledger.free_slots > hello.max_slots * KEPT_SHARE and ledger.free_pages > worker.num_pages * KEPT_SHARE


def has_spare_queue(group: WorkerState) -> bool:
    """Whether a prefill group may be given background work now."""
    return group.ledger.free_tokens > group.hello.max_queued_tokens * KEPT_QUEUE


def has_spare_room(registry: WorkerRegistry, version: str) -> bool:
    """Whether background work may be placed at all. This is asked at every event, so of many workers only the least
    loaded are looked at."""
    if not any(has_spare_slot(worker) for worker in registry.least_loaded("decode", FEW, version)):
        return False
    groups = registry.least_loaded("prefill", FEW, version)
    return not groups or any(has_spare_queue(group) for group in groups)
