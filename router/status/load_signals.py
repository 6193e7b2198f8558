"""The recent load, how well it was served, and the present workers: the picture that a planner decides from.

These are plain frozen values, also available as JSON (`GET /cluster/signals`), so that a planner in another process,
one in a simulator and a test all see the same. `signal_window` does the counting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slipstream.router.protocol.messages import Role
from slipstream.router.registry.service_times import ServiceTimes
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState

NUM_POINTS = 10  # at 5, 15, ... 95 percent, which is enough to average over a distribution


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of `count` values. `cv2` is the variance over the square of the mean: 0 if all values are equal,
    1 if they are exponential. Quantiles and `points` (at 5, 15, ... 95 percent; empty without values) are exact to 5
    percent."""

    count: int = 0
    mean: float = 0.0
    cv2: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    points: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassSignals:
    """The requests of one priority class. The levels are means over its arrivals, of each request's own levels or else
    the cluster's. `num_good` requests finished and kept both of their levels."""

    priority: int
    num_arrivals: int
    ttft_slo_s: float
    itl_slo_s: float
    num_first: int
    num_ttft_met: int
    num_finished: int
    num_itl_met: int
    num_good: int


@dataclass(frozen=True, slots=True)
class WindowSignals:
    """The last `span_s` seconds. Each value counts a request when the value became known: `isl` when it arrived,
    `ttft_s` with its first token, `osl` and `itl_s` (its mean gap) when it finished. `expected_osl` is the mean
    forecast of the requests that were placed, which knows of longer answers before the first of them has ended;
    `foreseen_osl` is the mean forecast of those that finished, to be compared with `osl`.

    `num_refused` were rejected for load alone, and are not among the arrivals. `burstiness` is the variance of arrivals
    a second over their mean (1: Poisson), from the differences of neighbouring seconds, so that a trend does not count
    as burstiness.
    """

    span_s: float
    num_arrivals: int = 0
    num_refused: int = 0
    num_failed: int = 0  # requests that were admitted and ended with an error
    num_left: int = 0  # requests whose client left
    burstiness: float = 1.0
    isl: Spread = Spread()
    osl: Spread = Spread()
    expected_osl: float = 0.0
    foreseen_osl: float = 0.0
    num_prompt_tokens: int = 0  # of requests that had their first token
    num_cached_tokens: int = 0  # of these prompt tokens
    num_remote: int = 0  # how many of these requests were prefilled on a prefill group
    num_output_tokens: int = 0  # of requests that ended
    queue_wait_s: Spread = Spread()
    ttft_s: Spread = Spread()
    itl_s: Spread = Spread()
    classes: tuple[ClassSignals, ...] = ()

    @property
    def offered_per_s(self) -> float:
        """Requests per second, including rejected ones."""
        return (self.num_arrivals + self.num_refused) / self.span_s if self.span_s > 0 else 0.0

    @property
    def cached_share(self) -> float:
        """The share of prompt tokens that were found in prefix caches."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    @property
    def ttft_attainment(self) -> float | None:
        """The share of first tokens that came in time; None if there were none."""
        num_first = sum(one.num_first for one in self.classes)
        return sum(one.num_ttft_met for one in self.classes) / num_first if num_first else None

    @property
    def itl_attainment(self) -> float | None:
        """The share of whole answers whose tokens came in time on average; None if there were none."""
        num_finished = sum(one.num_finished for one in self.classes)
        return sum(one.num_itl_met for one in self.classes) / num_finished if num_finished else None

    @property
    def attainment(self) -> float | None:
        """The share of ended requests that kept both levels. Failed ones are included, but not those whose client
        left."""
        num_ended = sum(one.num_finished for one in self.classes) + self.num_failed
        return sum(one.num_good for one in self.classes) / num_ended if num_ended else None


@dataclass(frozen=True, slots=True)
class RoleTimes:
    """The fitted service times of a pool, in seconds (see `registry.service_times`). `reality` is the factor by which
    first tokens came later than predicted, on average over the workers of the role."""

    role: Role
    decode: tuple[float, float, float]  # per step, per sequence, per token of context
    prefill: tuple[float, float, float]  # per chunk, per new token, per pair of a new token and an earlier one
    transfer: tuple[float, float]  # per hand-off, per page
    gap: tuple[float, float]  # the client's wait for the second token after a hand-off: fixed part, per page
    reserve_s: float
    num_prefill_samples: int = 0
    num_decode_samples: int = 0
    reality: float = 1.0

    @classmethod
    def of(cls, role: Role, pool: ServiceTimes, other: ServiceTimes, workers: Iterable[WorkerState]) -> RoleTimes:
        """The times of a pool. One without samples is assumed to be like the other pool, as in placement."""
        times = ServiceTimes(pool, other)
        realities = [worker.times.correction for worker in workers]
        base_s, by_seq_s, by_token_s = times.decode
        chunk_s, token_s, pair_s = times.prefill
        transfer_s, page_s = times.coefficients("transfer")
        gap_s, gap_page_s = times.coefficients("gap")
        return cls(
            role,
            (base_s, by_seq_s, by_token_s),
            (chunk_s, token_s, pair_s),
            (transfer_s, page_s),
            (gap_s, gap_page_s),
            times.coefficients("reserve")[0],
            pool.num_samples("prefill"),
            pool.num_samples("decode"),
            sum(realities) / len(realities) if realities else 1.0,
        )


@dataclass(frozen=True, slots=True)
class WorkerSignals:
    """A connected worker: its sizes, its credits, and what the router knows to be on it. `num_running` of its sequences
    are past their prefill. `prefill_share` of its time went lately into the prompts that were placed there."""

    name: str
    role: Role
    draining: bool
    tp: int
    page_tokens: int
    num_pages: int
    max_slots: int
    max_queued_tokens: int
    max_step_tokens: int
    max_model_len: int
    free_slots: int
    free_pages: int
    free_tokens: int
    num_seqs: int
    num_running: int
    context_tokens: int
    remaining_tokens: float
    num_pending: int
    pending_tokens: int
    prefill_share: float
    group_pages: tuple[int, ...] = ()  # these two as in `Hello`
    state_pages: int = 0

    @property
    def used_share(self) -> float:
        """The share in use: of slots or pages (whichever is larger) for decode, of the queue for prefill."""
        if self.role == "prefill":
            return 1.0 - min(max(self.free_tokens / self.max_queued_tokens, 0.0), 1.0)
        # Not of `max_slots`: a worker that sizes its steps by the ITL level may offer far fewer.
        num_slots = max(self.num_seqs + self.free_slots, 1)
        return 1.0 - min(max(min(self.free_slots / num_slots, self.free_pages / self.num_pages), 0.0), 1.0)

    @classmethod
    def of(cls, worker: WorkerState, now: float) -> WorkerSignals:
        hello, ledger, load = worker.hello, worker.ledger, worker.load
        return cls(
            name=worker.name,
            role=hello.role,
            draining=worker.draining,
            tp=hello.tp,
            page_tokens=hello.page_tokens,
            num_pages=worker.num_pages,
            max_slots=hello.max_slots,
            max_queued_tokens=hello.max_queued_tokens,
            max_step_tokens=hello.max_step_tokens,
            max_model_len=hello.max_model_len,
            free_slots=ledger.free_slots,
            free_pages=ledger.free_pages,
            free_tokens=ledger.free_tokens,
            num_seqs=load.num_seqs,
            num_running=load.num_running,
            context_tokens=load.context_tokens,
            remaining_tokens=max(load.remaining_tokens, 0.0),
            num_pending=load.num_pending,
            pending_tokens=load.pending_tokens,
            prefill_share=min(load.recent_prefills(now)[1] * worker.times.correction, 1.0),
            group_pages=hello.group_pages,
            state_pages=hello.state_pages,
        )


@dataclass(frozen=True, slots=True)
class Signals:
    """`at_s` is the router's clock. `slo_*` are the levels of requests that do not say their own. `router_id` changes
    when the router starts anew: its counts begin at nothing then. `local_prefill_max_tokens` is the line that the
    configuration draws for placement, if it draws one. `latest` are the last few seconds of `short`: a load that has
    just become another one shows there first."""

    at_s: float
    router_id: str
    slo_ttft_s: float
    slo_itl_s: float
    num_waiting: int
    num_running: int
    oldest_wait_s: float
    short: WindowSignals
    long: WindowSignals
    workers: tuple[WorkerSignals, ...] = ()
    times: tuple[RoleTimes, ...] = ()
    local_prefill_max_tokens: int | None = None
    latest: WindowSignals = WindowSignals(0.0)

    def times_of(self, role: Role) -> RoleTimes | None:
        return next((times for times in self.times if times.role == role), None)

    def worker(self, name: str) -> WorkerSignals | None:
        return next((worker for worker in self.workers if worker.name == name), None)


def role_times(registry: WorkerRegistry) -> tuple[RoleTimes, ...]:
    """The service times of both roles."""
    roles: tuple[tuple[Role, Role], ...] = (("prefill", "decode"), ("decode", "prefill"))
    return tuple(
        RoleTimes.of(role, registry.pools[role], registry.pools[other], (w for w in registry if w.hello.role == role))
        for role, other in roles
    )
