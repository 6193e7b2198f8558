"""Decides which version of the model a request gets. Sans-IO.

    admitted --the client names a version---------------------------> that one
             --it is a further choice of an answer------------------> that of the first choice
             --its conversation has a version that is still wanted--> that one
             --otherwise--------------------------------------------> smooth weighted choice of those that can take it

A version is *live* while one of its decode workers takes new work, and *wanted* while the split gives it a share.
Without a split, all live versions share in proportion to the sequences that their decode workers can hold, which is
what a rolling update needs. A request keeps its version, because KV and prefixes never cross versions. It changes only
if its version will not serve it (`Versions.next_version`), and then its prompt and tokens so far are computed again.

Where versions have different tokenizers, a request's tokens mean something to some of them only (`request.versions`).
It goes to no other one: if none of these comes back, it fails.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from copy import deepcopy

from slipstream.router.config.router_config import VersionsConfig, check_split
from slipstream.router.protocol.generation import GenerationFinish
from slipstream.router.registry.capacity import refusal
from slipstream.router.registry.worker_registry import WorkerRegistry
from slipstream.router.requests.request_state import RequestState
from slipstream.router.status.status import RetryCause
from slipstream.router.status.version_status import VersionCounts, VersionStatus

MAX_SESSIONS = 65_536
MAX_VERSIONS_COUNTED = 64  # beyond these, the counts of the oldest versions are dropped
# Failures that may be the version's own fault, as opposed to a process that died or had no room.
ITS_OWN_FAULT: frozenset[RetryCause] = frozenset({"worker_failed", "bad_output"})
# A request that has tokens leaves its version only after so many failed attempts, because another version would
# continue the text differently.
FAILURES_WITH_TOKENS = 2


class Versions:
    """The split between versions, and what is known about each of them. Times are those of the dispatcher's clock."""

    def __init__(self, config: VersionsConfig, registry: WorkerRegistry) -> None:
        self._config = config
        self._registry = registry
        self._split: dict[str, float] | None = None
        self._debts: dict[str, float] = {}  # for the smooth weighted choice: the version with the highest debt is next
        self._sessions: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._lost_s: dict[str, float] = {}  # when a version lost its last decode worker, if that may come back
        self._ended: set[str] = set()  # versions whose decode workers were drained, or have been lost for `wait_s`
        self.counts: OrderedDict[str, VersionCounts] = OrderedDict()
        if config.split is not None:
            self.set_split(config.split)

    @property
    def live(self) -> tuple[str, ...]:
        """The versions that a client may ask for: those with a decode worker that takes new work."""
        return tuple(self._registry.decode_slots)

    @property
    def shares(self) -> dict[str, float]:
        """The shares of new requests of the live versions, in any unit."""
        return self._wanted_live() or dict(self._registry.decode_slots)

    def is_known(self, version: str) -> bool:
        """Whether a version is live, or may soon be live again."""
        return version in self._registry.decode_slots or version in self._lost_s

    def counts_of(self, version: str) -> VersionCounts:
        counts = self.counts.get(version)
        if counts is None:
            counts = self.counts[version] = VersionCounts()
            if len(self.counts) > MAX_VERSIONS_COUNTED:
                self.counts.popitem(last=False)
        return counts

    def set_split(self, split: Mapping[str, float] | None) -> None:
        """Sets the shares by version, in any unit; None: in proportion to the size of their pools. Versions that no
        worker serves yet may be named. Raises ValueError for an invalid split; then nothing has changed."""
        if split is not None:
            check_split(split)
        self._split = dict(split) if split is not None else None
        self._debts.clear()

    def workers_changed(self, now: float, sent_away: str | None = None) -> None:
        """A worker joined or left. If one was drained, `sent_away` is its version: it is not expected back."""
        live = self._registry.decode_slots
        for version in live:
            self._lost_s.pop(version, None)
            self._ended.discard(version)
            self.counts_of(version)
        self._ended &= self.counts.keys()
        for version in self.counts:
            if version not in live and version not in self._ended:
                self._lost_s.setdefault(version, now)
        if sent_away is not None and sent_away not in live:
            self._lost_s.pop(sent_away, None)
            self._ended.add(sent_away)

    def next_deadline(self) -> float | None:
        """When the next version without workers will have been waited for long enough."""
        if not self._lost_s or not self._registry.decode_slots:  # no other version could take its requests
            return None
        return min(self._lost_s.values()) + self._config.wait_s

    def expire(self, now: float) -> None:
        for version, lost_s in list(self._lost_s.items()):
            if now >= lost_s + self._config.wait_s:
                del self._lost_s[version]
                self._ended.add(version)

    def choose(self, state: RequestState, first_choice: str | None, now: float) -> str:
        """The version for a request that is being admitted; "" while there is no decode worker. `first_choice` is the
        version of the first choice of the same answer. A version that the previous router had is waited for as one is
        whose workers have been lost."""
        request = state.request
        if request.version:
            chosen = request.version
        elif request.resumed is not None and request.resumed.output_ids:
            chosen = request.resumed.version
            if self._registry.decode_slots and not self.is_known(chosen) and chosen not in self._ended:
                self._lost_s[chosen] = now
        elif first_choice is not None:
            chosen = first_choice
        elif len(self._registry.decode_slots) == 1 and not request.versions:
            # It can hold the request, which would not have been admitted otherwise.
            chosen = next(iter(self._registry.decode_slots))
        else:
            chosen = self._of_session(state) or self._next(self._candidates(state))
            if not chosen and request.versions and self._registry.decode_slots:
                chosen = next(filter(self.is_known, request.versions), request.versions[0])
                if not self.is_known(chosen) and chosen not in self._ended:
                    self._lost_s[chosen] = now
        if chosen:
            self.counts_of(chosen).num_requests += 1
        self._note_session(state, chosen)
        return chosen

    def next_version(self, state: RequestState) -> str | None:
        """The version that a waiting request should change to, because its own will not serve it, or not soon. None: it
        stays.

        A request without tokens changes at once. One with tokens changes only if no worker of its version is left and
        none is expected back."""
        version = state.version
        if state.request.version:
            return None
        is_live = version in self._registry.decode_slots
        if is_live and self._is_wanted(version):
            return None
        if len(state.output) and (is_live or not self._is_over(version)):
            return None
        others = {name: weight for name, weight in self._candidates(state).items() if name != version}
        return self._next(others) if others else None

    def serves(self, version: str) -> bool:
        """Whether the version serves all its requests, so that none of them has to leave it."""
        return version in self._registry.decode_slots and self._is_wanted(version)

    def is_refused(self, state: RequestState) -> bool:
        """Whether the request can no longer be served: the version that its client asked for, or that it may not leave,
        is not coming back."""
        request = state.request
        is_bound = bool(request.version) or (len(state.output) > 0 and not self._config.continue_across)
        if request.versions and not is_bound:
            is_bound = not self._registry.decode_slots.keys() & set(request.versions)
        return is_bound and state.version in self._ended and bool(self._registry.decode_slots)

    def after_failure(self, state: RequestState, cause: RetryCause) -> str | None:
        """The version for the next attempt, if the present one may be at fault for the failure: one with at least as
        large a share or, after a second failure, any other. None: the request stays."""
        if cause not in ITS_OWN_FAULT:
            return None
        self.counts_of(state.version).num_failed_attempts += 1
        state.failed_versions.add(state.version)
        if state.request.version:
            return None
        if len(state.output) and (state.num_failures < FAILURES_WITH_TOKENS or not self._config.continue_across):
            return None
        candidates = self._candidates(state)
        own = candidates.get(state.version, 0.0)
        others = {
            name: weight
            for name, weight in candidates.items()
            if name not in state.failed_versions and (weight >= own or state.num_failures > 1)
        }
        return self._next(others) if others else None

    def finished(self, state: RequestState, finish: GenerationFinish, now: float) -> None:
        counts, timeline = self.counts_of(state.version), state.record.timeline
        counts.ends[finish.error.kind if finish.error is not None else finish.reason] += 1
        if timeline.first_token is None:
            return
        ttft_s = timeline.first_token - timeline.queued
        counts.num_first_tokens += 1
        counts.ttft_s += ttft_s
        counts.ttft_moments.add(ttft_s)
        num_intervals = finish.usage.num_output_tokens - 1
        if num_intervals > 0 and finish.error is None:
            itl_s = (now - timeline.first_token) / num_intervals
            counts.num_itls += 1
            counts.itl_s += itl_s
            counts.itl_moments.add(itl_s)

    def moved(self, state: RequestState, version: str) -> None:
        self.counts_of(version).num_moved_in += 1
        self._note_session(state, version)

    def status(self, num_waiting: Mapping[str, int]) -> tuple[VersionStatus, ...]:
        """The status of all versions that are live, wanted or still counted."""
        names = dict.fromkeys((*self.counts, *(self._split or ())))
        return tuple(
            VersionStatus(
                name,
                self._split.get(name) if self._split is not None else None,
                name in self._registry.decode_slots,
                len(self._registry.workers_of("prefill", name)),
                len(self._registry.workers_of("decode", name)),
                num_waiting.get(name, 0),
                deepcopy(self.counts.get(name, VersionCounts())),  # `get`: asking about a version must not add it
            )
            for name in names
        )

    def _is_over(self, version: str) -> bool:
        return self._config.continue_across and (version in self._ended or not self._is_wanted(version))

    def _is_wanted(self, version: str) -> bool:
        return self._split is None or self._split.get(version, 0.0) > 0 or not self._wanted_live()

    def _wanted_live(self) -> dict[str, float]:
        """The live versions that have a share, with that share."""
        slots = self._registry.decode_slots
        if self._split is None:
            return dict(slots)
        return {version: weight for version, weight in self._split.items() if weight > 0 and version in slots}

    def _candidates(self, state: RequestState) -> dict[str, float]:
        """The weights of the wanted versions that could hold the request; if there are none, of any live ones."""
        return self._able(state, self._wanted_live()) or self._able(state, self._registry.decode_slots)

    def _able(self, state: RequestState, weights: Mapping[str, float]) -> dict[str, float]:
        """Those of `weights` whose tokens the request has, with a decode worker that could hold it."""
        num_tokens, versions = state.num_tokens, state.request.versions
        return {
            version: weight
            for version, weight in weights.items()
            if (not versions or version in versions)
            and refusal(num_tokens, self._registry.workers_of("decode", version)) is None
        }

    def _next(self, weights: Mapping[str, float]) -> str:
        """Smooth weighted round robin, as in nginx: in any series of choices, each version's number is within one of
        its share, and choices of the same version are spread out."""
        if len(weights) < 2:
            return next(iter(weights), "")
        debts, total = self._debts, sum(weights.values())
        for version, weight in weights.items():
            debts[version] = debts.get(version, 0.0) + weight / total
        chosen = max(weights, key=lambda version: debts[version])
        debts[chosen] -= 1.0
        return chosen

    def _of_session(self, state: RequestState) -> str:
        """The version of the request's conversation, if it can continue there."""
        request = state.request
        if not request.session or not request.keeps_version:
            return ""
        version = self._sessions.get((request.tenant, request.session), "")
        return version if version and version in self._candidates(state) else ""

    def _note_session(self, state: RequestState, version: str) -> None:
        request = state.request
        if not request.session or not request.keeps_version or not version or request.version:
            return
        key = request.tenant, request.session
        self._sessions[key] = version
        self._sessions.move_to_end(key)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
