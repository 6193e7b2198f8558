"""Connects the dispatcher to a placement policy: describes requests to it, and carries its decisions out."""

from __future__ import annotations

from itertools import islice

from slipstream.router.config.router_config import DispatchConfig, PlacementConfig, PolicyName, SloConfig
from slipstream.router.placement.hold_policy import HoldPolicy
from slipstream.router.placement.placed_request import PlacedRequest, PlacedRequests
from slipstream.router.placement.policies.estimate import estimate_decode, estimate_prefill
from slipstream.router.placement.policies.isl_threshold import IslThreshold
from slipstream.router.placement.policies.kv import Kv
from slipstream.router.placement.policies.least_loaded import LeastLoaded
from slipstream.router.placement.policies.policy import PlacementJob, PlacementPolicy
from slipstream.router.placement.policies.round_robin import RoundRobin
from slipstream.router.placement.policies.shortlist import (
    PrefixView,
    SessionView,
    Shortlist,
    reachable,
    shortlist,
    spare,
)
from slipstream.router.placement.policies.slo import SloPolicy
from slipstream.router.registry.worker_load import PendingPrefill
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState
from slipstream.router.requests.placement_decision import Decision, Placement, PromptTimes, Wait, where_to
from slipstream.router.requests.request_state import RequestState

# A request waits at least this long for a better worker: waits of nanoseconds would only cost turns of the event loop.
MIN_WAIT_S = 1e-3


def make_policy(name: PolicyName, parameters: PlacementConfig, slo: SloConfig) -> PlacementPolicy:
    match name:
        case "slo":
            return SloPolicy(slo)
        case "kv":
            return Kv(parameters.kv_prefill_scale)
        case "least_loaded":
            return LeastLoaded()
        case "round_robin":
            return RoundRobin()
        case "isl_threshold":
            return IslThreshold(parameters.threshold_tokens, parameters.threshold_queued_prompts)


class Placer:
    """Places requests by the policy, and keeps the load of the workers up to date. Sans-IO."""

    def __init__(
        self,
        config: DispatchConfig,
        registry: WorkerRegistry,
        index: PrefixView,
        sessions: SessionView,
        placed: PlacedRequests,
    ) -> None:
        self._config = config
        self._registry = registry
        self._index = index
        self._sessions = sessions
        self._placed = placed
        self.holds = HoldPolicy(registry, placed)
        self._policy = make_policy(config.policy, config.placement, config.slo)

    def follow(self, config: DispatchConfig) -> None:
        """Uses these settings from now on."""
        if (config.policy, config.placement, config.slo) != (
            self._config.policy,
            self._config.placement,
            self._config.slo,
        ):
            self._policy = make_policy(config.policy, config.placement, config.slo)
            self.holds = HoldPolicy(self._registry, self._placed)
        self._config = config

    def place(self, state: RequestState, now: float, num_waiting_before: int = 0) -> Placement | Wait:
        """Where the request goes now. `num_waiting_before` requests ahead of it wait for a better worker."""
        wait = self.holds.request_hold(state, now)
        if wait is not None:
            return wait
        found = self._rate(state, now, num_waiting_before)
        if isinstance(found, Wait):
            self.holds.hold_request(state, found, now)
        return found

    def _rate(self, state: RequestState, now: float, num_waiting_before: int) -> Placement | Wait:
        candidates = shortlist(
            state, self._registry, self._index, self._sessions, self._config.placement.max_candidates
        )
        if not candidates.decodes:
            return Wait("worker")
        candidates = reachable(candidates, state, self._registry.links, now)
        if state.is_background:
            candidates = spare(candidates)
            if not candidates.decodes:
                return Wait("decode")
        job, placed = self._job(state, now), self._placed.of(state)
        job.may_wait = placed.wait_until_s is None or now < placed.wait_until_s
        job.num_waiting_before = num_waiting_before
        placed.cached = candidates.cached
        found = self._policy.place(job, candidates, now)
        if isinstance(found, Placement) and found.decision.reason == "prefill_incompatible":
            return self._with_mismatch(found)
        return found

    def _with_mismatch(self, placement: Placement) -> Placement:
        """The placement, with the difference between the pages of the decode worker and of the first prefill group that
        does not fit it."""
        decode, decision = placement.decode, placement.decision
        groups = self._registry.workers_of("prefill", decode.version)
        reasons = filter(None, (self._registry.links.mismatch(group.hello, decode.hello) for group in groups))
        why = "; ".join((decision.why, *islice(reasons, 1)))
        return placement._replace(decision=decision._replace(why=why))

    def wait(self, state: RequestState, saving_s: float, now: float) -> float:
        """The request waits for a better worker, which saves `saving_s`. Returns until when it may."""
        placed = self._placed.of(state)
        if placed.wait_until_s is None:
            placed.wait_until_s = now + max(saving_s, MIN_WAIT_S)
        return placed.wait_until_s

    def begin(self, state: RequestState, placement: Placement, now: float) -> PlacedRequest:
        """The request takes this placement. Adds it to the load of its workers."""
        self.holds.release(state.request_id)
        decode, group, _, prompt = placement
        placed, num_output = self._placed.of(state), len(state.output)
        cached, placed.cached = placed.cached, {}
        placed.decode_cached_tokens = cached.get(decode, 0)
        worker = group if group is not None else decode
        num_cached = cached.get(worker, 0)
        if prompt is None:
            prompt = self._predicted(state, worker, num_cached, now)
        pending = _pending(state.num_tokens, worker, num_cached, prompt, now)
        if group is not None:
            self._registry.links.used(group.hello, decode.hello, now)
        placed.placed(decode, num_output + state.forecast.remaining(num_output), now)
        placed.prefill_placed(worker, pending)
        return placed

    def reconsider(
        self, state: RequestState, decode: WorkerState, group: WorkerState, num_cached_tokens: int, now: float
    ) -> Decision | None:
        """The decode worker has reserved pages and holds `num_cached_tokens` already. Returns a new decision if the
        prompt should be prefilled there after all, None if the prefill group should go ahead."""
        local_max_tokens = self._local_max_tokens(state)
        if local_max_tokens is not None:
            if state.num_tokens - num_cached_tokens > local_max_tokens:
                return None
            return self._cached_prefix(
                Decision(decode.peer, None, "cached_prefix", "", ()), state, decode, num_cached_tokens
            )
        if num_cached_tokens <= self._placed.of(state).decode_cached_tokens:
            return None  # no more than when remote was better
        job = self._job(state, now)
        job.may_wait = False
        job.placed_on = decode
        pair = Shortlist([decode], [group], cached={decode: num_cached_tokens})
        found = self._policy.place(job, pair, now)
        if isinstance(found, Wait) or found.prefill is not None:
            return None
        return self._cached_prefix(found.decision, state, decode, num_cached_tokens)

    def prefill_locally(self, state: RequestState, decode: WorkerState, num_cached_tokens: int, now: float) -> None:
        """The prompt is computed on the decode worker after all, in the pages reserved there."""
        placed = self._placed.of(state)
        placed.prefill_withdrawn()
        placed.num_predicted_cached = None  # the prediction was for the prefill group
        prompt = self._predicted(state, decode, num_cached_tokens, now)
        placed.prefill_placed(decode, _pending(state.num_tokens, decode, num_cached_tokens, prompt, now))

    def _cached_prefix(
        self, decision: Decision, state: RequestState, decode: WorkerState, num_cached_tokens: int
    ) -> Decision:
        facts = f"{num_cached_tokens} of {state.num_tokens} tokens are in its prefix cache"
        return decision._replace(
            reason="cached_prefix",
            why=f"{where_to(decode, None)}: cached_prefix; {facts}",
            policy=self._policy.name,
        )

    def _local_max_tokens(self, state: RequestState) -> int | None:
        own = state.request.local_prefill_max_tokens
        return own if own is not None else self._config.local_prefill_max_tokens

    def _job(self, state: RequestState, now: float) -> PlacementJob:
        forecast = state.forecast
        return PlacementJob(
            state.num_tokens,
            forecast,
            forecast.remaining(len(state.output)),
            *state.levels,
            0.0 if state.output else now - state.record.timeline.queued,
            self._local_max_tokens(state),
            most_tokens=state.most_tokens,
            wants_output=state.request.sampling.max_tokens > 0,
        )

    def _predicted(self, state: RequestState, worker: WorkerState, num_cached: int, now: float) -> PromptTimes:
        job = self._job(state, now)
        there = estimate_decode(worker, job, now) if worker.hello.role == "decode" else None
        estimate = estimate_prefill(worker, job, num_cached, now, there)
        return PromptTimes(estimate.own_s, estimate.raw_s)


def _pending(num_tokens: int, worker: WorkerState, num_cached: int, prompt: PromptTimes, now: float) -> PendingPrefill:
    new = max(num_tokens - num_cached, 1)
    return PendingPrefill(
        new, new * (num_tokens - 0.5 * new), prompt.own_s / worker.times.correction, prompt.raw_s, now
    )
