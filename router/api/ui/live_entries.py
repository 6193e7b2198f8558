"""The present state of a cluster as entries by key, each small, so that only those that have changed are sent again.

router               readiness, whether calls of the admin API are forwarded
model/NAME           requests by phase, queue by class and tenant, totals, levels that were kept
worker/NAME          a connected worker: load, credits, pages by state, counters
transfers            hand-offs that have landed in the last seconds, by pair of workers
repository           tensor models and their instances
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from slipstream import __version__
from slipstream.router.api.admin.cluster_pages import ObservedService, UnreadyBecause
from slipstream.router.requests.history import RequestRecord
from slipstream.router.status.load_signals import Signals, WindowSignals
from slipstream.router.status.status import Snapshot, WorkerStatus
from slipstream.router.status.version_status import VersionStatus

Json = dict[str, Any]
Entries = dict[str, Json]
TRANSFER_SPAN_S = 10.0  # over which hand-offs are shown
MAX_TENANTS = 20  # of a model, those with the most requests first


class LatestRequests(Protocol):
    """What is needed of `History`: the records of the latest requests, the newest first."""

    def latest(self) -> Iterable[RequestRecord]: ...


class LiveEntries:
    """Reads them from what the router knows. `calls_admin`: the page may call the admin API. `repository` is None
    without one."""

    def __init__(
        self, service: ObservedService, unready_because: UnreadyBecause, history: LatestRequests, *, calls_admin: bool
    ) -> None:
        self._service = service
        self._unready_because = unready_because
        self._history = history
        self._calls_admin = calls_admin
        self.repository: Callable[[], Json] | None = None

    def read(self) -> Entries:
        """All entries, as of now."""
        unready = self._unready_because()
        entries: Entries = {
            "router": {
                "slipstream": __version__,
                "ready": unready is None,
                "unready_because": unready,
                "calls_admin": self._calls_admin,
            },
        }
        tenants, transfers = self._of_requests()
        for name in self._service.models:
            snapshot, signals = self._service.snapshot_of(name), self._service.signals_of(name)
            entries[f"model/{name}"] = {
                "name": name,
                "ready": self._unready_because(name) is None,
                "unready_because": self._unready_because(name),
                "tenants": dict(tenants.get(name, Counter()).most_common(MAX_TENANTS)),
                **model_entry(snapshot, signals),
            }
            for worker in snapshot.workers:
                entries[f"worker/{worker.peer.name}"] = worker_entry(worker, name)
        if transfers:
            pairs = [[*pair, num, num_bytes] for pair, (num, num_bytes) in sorted(transfers.items())]
            entries["transfers"] = {"span_s": TRANSFER_SPAN_S, "pairs": pairs}
        if self.repository is not None:
            entries["repository"] = self.repository()
        return entries

    def _of_requests(self) -> tuple[dict[str, Counter[str]], dict[tuple[str, str], tuple[int, int]]]:
        """By model, how many requests of each tenant have not ended; and, by prefill and decode worker, how many
        hand-offs have landed lately, and their bytes."""
        tenants: dict[str, Counter[str]] = {}
        transfers: dict[tuple[str, str], tuple[int, int]] = {}
        since_s = time.monotonic() - TRANSFER_SPAN_S
        for record in self._history.latest():
            if record.timeline.finished is None:
                tenants.setdefault(record.model, Counter())[record.tenant] += 1
            landed = record.landed
            if landed is not None and landed.time_s >= since_s and (pair := pair_of(record)) is not None:
                num, num_bytes = transfers.get(pair, (0, 0))
                transfers[pair] = num + 1, num_bytes + landed.num_bytes
        return tenants, transfers


def pair_of(record: RequestRecord) -> tuple[str, str] | None:
    """The prefill and the decode worker of the latest placement, if there were two."""
    for event in reversed(record.events):
        decision = event.decision
        if decision is not None and decision.prefill is not None:
            return decision.prefill.name, decision.decode.name
    return None


def model_entry(snapshot: Snapshot, signals: Signals) -> Json:
    totals = snapshot.totals
    return {
        "num_waiting": snapshot.num_waiting,
        "num_running": snapshot.num_running,
        "phases": snapshot.num_requests_by_phase,
        "queue_depth": {str(priority): num for priority, num in snapshot.queue_depth.items()},
        "oldest_wait_s": round(signals.oldest_wait_s, 3),
        "slo": {"ttft_s": signals.slo_ttft_s, "itl_s": signals.slo_itl_s},
        "window": window_entry(signals.short),
        "versions": [version_entry(version) for version in snapshot.versions],
        "closed_links": [list(pair) for pair in snapshot.closed_links],
        "drift": list(snapshot.drift),
        "totals": {
            "prompt_tokens": totals.num_prompt_tokens,
            "output_tokens": totals.num_output_tokens,
            "transfers": totals.num_transfers,
            "transfer_bytes": totals.transfer_bytes,
            "placements": dict(totals.placements),
            "retries": totals.retries.total(),
            "rejections": dict(totals.rejections),
            "finishes": dict(totals.finishes),
            "migrations": dict(totals.migrations),
        },
    }


def version_entry(version: VersionStatus) -> Json:
    return {
        "name": version.name,
        "weight": version.weight,
        "is_live": version.is_live,
        "is_mirror": version.mirror is not None,
        "num_prefill": version.num_prefill,
        "num_decode": version.num_decode,
        "num_waiting": version.num_waiting,
    }


def window_entry(window: WindowSignals) -> Json:
    """The last seconds: rates, latencies in seconds, and the shares of requests that kept their levels."""
    return {
        "span_s": round(window.span_s, 1),
        "requests_per_s": round(window.offered_per_s, 3),
        "num_refused": window.num_refused,
        "num_failed": window.num_failed,
        "isl_mean": round(window.isl.mean, 1),
        "osl_mean": round(window.osl.mean, 1),
        "ttft_p50_s": round(window.ttft_s.p50, 4),
        "ttft_p99_s": round(window.ttft_s.p99, 4),
        "itl_p50_s": round(window.itl_s.p50, 5),
        "itl_p99_s": round(window.itl_s.p99, 5),
        "queue_p99_s": round(window.queue_wait_s.p99, 4),
        "cached_share": round(window.cached_share, 4),
        "attainment": window.attainment,
        "ttft_attainment": window.ttft_attainment,
        "itl_attainment": window.itl_attainment,
    }


def worker_entry(worker: WorkerStatus, model: str) -> Json:
    stats = worker.stats
    return {
        "name": worker.peer.name,
        "model": model,
        "role": worker.role,
        "version": worker.version,
        "tp": worker.tp,
        "pid": worker.pid,
        "epoch": worker.peer.epoch,
        "is_draining": worker.draining,
        "num_requests": worker.num_requests,
        "max_slots": worker.max_slots,
        "free_slots": worker.free_slots,
        "num_pages": worker.num_pages,
        "free_pages": worker.free_pages,
        "free_tokens": worker.free_tokens,
        "reality": round(worker.reality, 2),
        "num_running": stats.num_running if stats is not None else None,
        "num_waiting": stats.num_waiting if stats is not None else None,
        "pages": dict(stats.pages) if stats is not None else {},
        "counters": {
            name: value for name, value in (stats.counters if stats is not None else ()) if "_le_" not in name
        },
        "build": worker.build.slipstream,
        "instructions": worker.build.instructions,
    }
