"""Admission control: refuses requests that no worker could serve, and those for which there is too much load: the
queue is full, or their deadline is out of reach.

It is worse to refuse a request that would have been served than to let one time out. So a deadline counts as out of
reach only if there is a queue, and even half of the predicted wait would be too long.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.queue.backlog_estimate import BacklogEstimate
from slipstream.router.dispatch.queue.placement_rate import PlacementRate
from slipstream.router.dispatch.queue.queues_by_version import QueuesByVersion
from slipstream.router.dispatch.queue.work_queue import priority_class
from slipstream.router.dispatch.table.versions import Versions
from slipstream.router.protocol.generation import (
    Deadline,
    DeadlineUnreachableError,
    GenerateRequest,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    TenantQueueFullError,
)
from slipstream.router.protocol.older_peers import VERSION_OF_0_1_0
from slipstream.router.registry.capacity import refusal
from slipstream.router.registry.worker_registry import WorkerState

WAIT_SHARE = 0.5  # the share of the predicted wait that a deadline is compared with


def check_request(request: GenerateRequest, versions: Versions, decode_workers: Sequence[WorkerState]) -> bytes:
    """Returns the prompt as packed int32. Raises InvalidRequestError or PromptTooLongError if no worker could serve the
    request."""
    if request.sampling.max_tokens < 0:
        raise InvalidRequestError(f"max_tokens must be at least 0, got {request.sampling.max_tokens}")
    try:
        prompt_ids = request.packed_prompt()
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidRequestError(f"the prompt is not a list of token ids: {error}") from error
    if not prompt_ids:
        raise InvalidRequestError("the prompt is empty")
    newer = request.sampling.beyond_0_1_0
    for worker in decode_workers if newer else ():
        if worker.hello.version == VERSION_OF_0_1_0:
            raise InvalidRequestError(f"{', '.join(newer)}: not served while {worker.name} is of Slipstream 0.1.0")
    if request.version and not versions.is_known(request.version):
        raise InvalidRequestError(f"version {request.version!r} of the model is not served")
    refused = refusal(len(prompt_ids) // 4, decode_workers)
    if refused is not None:
        raise PromptTooLongError(refused)
    if (
        request.resumed is not None
        and request.resumed.output_ids
        and len(request.resumed.output_ids) >= 4 * request.sampling.max_tokens
    ):
        raise InvalidRequestError("the output so far leaves no room for another token")
    return prompt_ids


def check_load(
    request: GenerateRequest,
    queue: QueuesByVersion,
    placement_rate: PlacementRate,
    backlog: BacklogEstimate,
    config: DispatchConfig,
    now: float,
) -> None:
    """Raises AdmissionError if there is too much load for the request. While the pace of the queue is not known, the
    work `backlog` says which of its own deadlines are out of reach."""
    if not queue:
        return
    if len(queue) >= config.max_queued_requests:
        raise QueueFullError(len(queue), config.max_queued_requests, placement_rate.retry_after_s(len(queue), now))
    num_own = queue.num_waiting_of(request.tenant)
    most_own = most_queued_of(request.tenant, config)
    if num_own >= most_own:
        raise TenantQueueFullError(num_own, most_own, placement_rate.retry_after_s(num_own, now))
    num_before = queue.num_before(request.tenant, priority_class(request))
    own_deadlines = own_deadlines_of(request, config)
    wait_s = placement_rate.wait_s(num_before, now)
    if num_before and own_deadlines and not placement_rate.is_known:
        wait_s = max(wait_s, backlog.seconds(num_before))
    least_wait_s = wait_s * WAIT_SHARE
    for deadline in (Deadline("queue_timeout_s", config.queue_timeout_s), *own_deadlines):
        if least_wait_s > deadline.limit_s:
            late_s = least_wait_s - deadline.limit_s
            raise DeadlineUnreachableError(deadline, wait_s, least_wait_s, num_before, max(late_s, 1.0))


def most_queued_of(tenant: str, config: DispatchConfig) -> int:
    """How many requests of one tenant may wait at once. A named tenant may fill half of the queue, so the other half is
    always left for the rest; requests without a tenant may fill all of it, because their clients are unknown."""
    if config.max_queued_per_tenant is not None:
        return config.max_queued_per_tenant
    return max(config.max_queued_requests // 2, 1) if tenant else config.max_queued_requests


def own_deadlines_of(request: GenerateRequest, config: DispatchConfig) -> list[Deadline]:
    """The deadlines that the client has set itself."""
    deadlines = []
    if request.timeout_s is not None:
        deadlines.append(Deadline("timeout_s", request.timeout_s))
    if request.slo.ttft_s is not None and (request.slo.strict or config.strict_slo):
        deadlines.append(Deadline("slo.ttft_ms", request.slo.ttft_s))
    return deadlines
