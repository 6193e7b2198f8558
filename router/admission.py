"""Who is let in: bounds of the queue, and deadlines that a request has no hope to meet.

To turn somebody away who would have been served is worse than to let somebody wait in vain. So a deadline counts as
out of reach only while there is a queue, a known pace, and even half of the wait that they predict is too long.
"""

from __future__ import annotations

from slipstream.router.config import DispatchConfig
from slipstream.router.generation import (
    DeadlineUnreachableError,
    GenerateRequest,
    QueueFullError,
    TenantQueueFullError,
)
from slipstream.router.pace import PlacementPace
from slipstream.router.version_lanes import VersionLanes

HOPE = 0.5  # of the predicted wait


def check_admission(
    request: GenerateRequest, queue: VersionLanes, pace: PlacementPace, config: DispatchConfig, now: float
) -> None:
    """Raises AdmissionError if the request had better come back later."""
    if not queue:
        return
    if len(queue) >= config.max_queued_requests:
        raise QueueFullError(len(queue), pace.retry_after_s(len(queue), now))
    num_own = queue.num_waiting_of(request.tenant)
    if num_own >= most_queued_of(request.tenant, config):
        raise TenantQueueFullError(num_own, pace.retry_after_s(num_own, now))
    wait_s = pace.wait_s(queue.num_before(request.tenant, request.priority), now)
    if wait_s is None:
        return
    for name, limit_s in deadlines_of(request, config):
        if wait_s * HOPE > limit_s:
            late_s = wait_s * HOPE - limit_s
            raise DeadlineUnreachableError(name, limit_s, wait_s, max(late_s, 1.0))


def most_queued_of(tenant: str, config: DispatchConfig) -> int:
    """How many requests of one tenant may wait. Half of the places are always left to the others, if there can be
    any: requests without a tenant are everybody's."""
    if config.max_queued_per_tenant is not None:
        return config.max_queued_per_tenant
    return max(config.max_queued_requests // 2, 1) if tenant else config.max_queued_requests


def deadlines_of(request: GenerateRequest, config: DispatchConfig) -> list[tuple[str, float]]:
    """What the wait in the queue must stay below, by name."""
    deadlines = [("queue_timeout_s", config.queue_timeout_s)]
    if request.timeout_s is not None:
        deadlines.append(("timeout_s", request.timeout_s))
    if request.slo.ttft_s is not None and (request.slo.strict or config.strict_slo):
        deadlines.append(("slo.ttft_ms", request.slo.ttft_s))
    return deadlines
