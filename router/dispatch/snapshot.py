"""What there is to see of a dispatcher's requests and workers at one moment: for its status, and for the planner."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from slipstream import __version__
from slipstream.router.config.router_config import SloConfig
from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.dispatch.table.versions import Versions
from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.registry.page_exchange import drift, refused_pairs
from slipstream.router.registry.worker_registry import WorkerRegistry
from slipstream.router.status.load_signals import Signals, WorkerSignals, role_times
from slipstream.router.status.status import Snapshot, WorkerStatus

MAX_TENANTS_SHOWN = 16


def snapshot_of(
    table: RequestTable, registry: WorkerRegistry, index: PrefixIndex, versions: Versions, now: float
) -> Snapshot:
    hellos = [worker.hello for worker in registry]
    return Snapshot(
        queue_depth=table.queue.depth_by_priority,
        longest_queues=dict(table.queue.num_by_tenant().most_common(MAX_TENANTS_SHOWN)),
        num_requests=len(table),
        num_requests_by_phase=dict(Counter(state.phase for state in table)),
        workers=tuple(WorkerStatus.of(worker, now, index.num_held(worker)) for worker in registry),
        totals=deepcopy(table.totals),
        prefix_index=index.status,
        output_forecasts=deepcopy(table.outputs.calibration),
        versions=versions.status(table.queue.num_waiting),
        refused_pairs=refused_pairs(hellos),
        drift=drift(hellos, __version__),
        closed_links=tuple(registry.links),
    )


def signals_of(
    table: RequestTable,
    registry: WorkerRegistry,
    slo: SloConfig,
    local_prefill_max_tokens: int | None,
    now: float,
    router_id: str,
) -> Signals:
    return Signals(
        at_s=now,
        router_id=router_id,
        slo_ttft_s=slo.ttft_ms / 1e3,
        slo_itl_s=slo.itl_ms / 1e3,
        num_waiting=len(table.queue),
        num_running=len(table) - len(table.queue),
        oldest_wait_s=max((now - since_s for since_s in table.queue.oldest_by_priority().values()), default=0.0),
        short=table.signals.window.short(now),
        long=table.signals.window.long(now),
        workers=tuple(WorkerSignals.of(worker, now) for worker in registry),
        times=role_times(registry),
        local_prefill_max_tokens=local_prefill_max_tokens,
        latest=table.signals.window.latest(now),
    )
