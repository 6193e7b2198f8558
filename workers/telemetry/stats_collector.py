"""Decides when to send statistics to the router, and which."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from slipstream.router.protocol.messages import Stats
from slipstream.workers.interface.engine import EngineCounters
from slipstream.workers.interface.page_transfers import PageTransfers, TransferOutcome
from slipstream.workers.telemetry.expert_load import ExpertLoad
from slipstream.workers.telemetry.rank_usage import GroupUsage

USAGE_INTERVAL_S = 10.0
IDLE_STATES = frozenset({"free", "cached", "withheld"})


@dataclass(slots=True)
class StatsCollector:
    """Sends `Stats` at most every `interval_s` while they change, and at once when the last page has been released.

    The counters are totals since the worker started: `steps`, `computed_tokens`, `step_sequences` (summed over all
    steps) and `sampled_tokens`; `step_tokens_le_N` and `step_sequences_le_N`, the steps in each bucket; `preemptions`,
    `prefix_cache_queries` and `prefix_cache_hits` (tokens looked up and found); of hand-offs that have ended on all
    ranks `kv_transfers`, `kv_transfers_failed`, `kv_transfers_cancelled`, `kv_transfer_seconds` and
    `kv_transfer_bytes_sent` or `_received`; `kv_transfer_checksum_failures` in messages. `leases_held` are the
    hand-offs under way now. `retained_pages` are held now for conversations that will probably come back; of such pages
    `retained_pages_used` were used by a request, `retained_pages_expired` were not before their time was over, and
    `retained_pages_displaced` had to make room. With expert parallelism, `expert_imbalance` is that of `ExpertLoad`.
    With `usage`, that of each rank is sent as well. A change of it alone is sent every `USAGE_INTERVAL_S`, so that the
    figures of an idle worker are not those of its last work.
    """

    engine: EngineCounters
    transfers: PageTransfers
    interval_s: float = 1.0
    expert_load: ExpertLoad | None = None
    usage: GroupUsage | None = None
    _totals: Counter[str] = field(default_factory=Counter)
    _seconds: float = 0.0
    _last: Stats | None = None
    _last_at_s: float = float("-inf")
    _was_busy: bool = False
    _is_stale: bool = True  # something may have changed since `_last`

    def count_transfer(self, outcome: TransferOutcome) -> None:
        self._totals["kv_transfer_bytes_sent" if outcome.is_sent else "kv_transfer_bytes_received"] += outcome.num_bytes
        if outcome.failure is None:
            self._totals["kv_transfers"] += 1
        else:
            self._totals["kv_transfers_cancelled" if outcome.is_cancelled else "kv_transfers_failed"] += 1
        self._seconds += outcome.seconds

    def start_over(self) -> None:
        """A new router connection: it knows nothing yet."""
        self._last = None
        self._last_at_s = float("-inf")

    def due(self, now_s: float) -> Stats | None:
        """The `Stats` to send now, if any. To be called after every turn of the loop."""
        pages = self.engine.page_counts()
        is_busy = any(count for state, count in pages.items() if state not in IDLE_STATES)
        came_to_rest = self._was_busy and not is_busy
        self._was_busy = is_busy
        self._is_stale = True
        if not came_to_rest and now_s < self._last_at_s + self.interval_s:
            return None
        stats = self._take(pages)
        self._is_stale = False
        wants_usage = self.usage is not None and now_s >= self._last_at_s + USAGE_INTERVAL_S
        if stats == self._last and not wants_usage:
            return None
        self._last, self._last_at_s = stats, now_s
        return stats if self.usage is None else replace(stats, usage=self.usage.ranks)

    def next_due_s(self) -> float | None:
        """When an idle loop should call `due` again; None: only after something has happened."""
        if self._is_stale:
            return self._last_at_s + self.interval_s
        return self._last_at_s + USAGE_INTERVAL_S if self.usage is not None else None

    def _take(self, pages: dict[str, int]) -> Stats:
        engine, retained = self.engine.stats(), self.engine.prefix_cache.order.counts
        counters = {
            "steps": engine.total_steps,
            "computed_tokens": engine.total_computed_tokens,
            "sampled_tokens": engine.total_sampled_tokens,
            "step_sequences": engine.total_step_sequences,
            "preemptions": engine.total_preemptions,
            "prefix_cache_queries": engine.total_prefix_queried_tokens,
            "prefix_cache_hits": engine.total_prefix_hit_tokens,
            **dict(engine.steps_by_size),
            **self._totals,
            "kv_transfer_seconds": self._seconds,
            "kv_transfer_checksum_failures": self.transfers.total_checksum_failures,
            "leases_held": self.transfers.num_active,
            "retained_pages": retained.num_held,
            "retained_pages_used": retained.hits,
            "retained_pages_expired": retained.expired,
            "retained_pages_displaced": retained.displaced,
        }
        if self.expert_load is not None:
            counters["expert_imbalance"] = self.expert_load.imbalance()
        return Stats(
            engine.num_running,
            engine.num_waiting,
            tuple(pages.items()),
            tuple((name, float(value)) for name, value in counters.items()),
        )
