"""Which version of the model a request gets. Sans-IO.

    admitted --the client names one--> that one
             --a further choice of an answer--> that of its first choice
             --its conversation has one that is still wanted--> that one
             --otherwise--> smooth weighted choice between those that can take it

A version is *live* while a decode worker of it takes new work, and *wanted* while the split gives it a share; without a
split all live ones share by the sequences that their decode workers can hold, which is what a rolling update needs. A
request keeps its version: KV, prefixes and retries never cross. It changes only where its version will not serve it
(`Versions.next_version`), and then its prompt and tokens so far are computed anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from copy import deepcopy

from slipstream.router.config import VersionsConfig, check_split
from slipstream.router.generation import GenerationFinish
from slipstream.router.placement.capacity import refusal
from slipstream.router.request_state import RequestState
from slipstream.router.roster import Roster
from slipstream.router.status import RetryCause
from slipstream.router.version_status import VersionCounts, VersionStatus

MAX_SESSIONS = 65_536
MAX_VERSIONS_COUNTED = 64  # the counts of the oldest go first
# Failures that may be the version's own fault, as opposed to a process that died or had no room.
ITS_OWN_FAULT: frozenset[RetryCause] = frozenset({"worker_failed", "bad_output"})
# A request that has tokens leaves a version only after so many failed attempts: its text would not go on the same.
FAILURES_WITH_TOKENS = 2


class Versions:
    """The split between versions, and who has which. Times are the dispatcher's."""

    def __init__(self, config: VersionsConfig, roster: Roster) -> None:
        self._config = config
        self._roster = roster
        self._split: dict[str, float] | None = None
        self._debts: dict[str, float] = {}  # of the smooth choice: who has the most is next
        self._sessions: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._lost_s: dict[str, float] = {}  # when a version lost its last decode worker, which may come back
        self._ended: set[str] = set()  # whose decode workers were sent away, or have been away for `wait_s`
        self.counts: OrderedDict[str, VersionCounts] = OrderedDict()
        if config.split is not None:
            self.set_split(config.split)

    # ---- what is known

    @property
    def split(self) -> dict[str, float] | None:
        return dict(self._split) if self._split is not None else None

    @property
    def live(self) -> tuple[str, ...]:
        """The versions that a client may ask for: those with a decode worker that takes new work."""
        return tuple(self._roster.decode_slots)

    def is_known(self, version: str) -> bool:
        """It is live, or may soon be again."""
        return version in self._roster.decode_slots or version in self._lost_s

    def counts_of(self, version: str) -> VersionCounts:
        counts = self.counts.get(version)
        if counts is None:
            counts = self.counts[version] = VersionCounts()
            if len(self.counts) > MAX_VERSIONS_COUNTED:
                self.counts.popitem(last=False)
        return counts

    def set_split(self, split: Mapping[str, float] | None) -> None:
        """Shares by version, of any sum; None: by the size of their pools. Versions that nobody serves yet may be
        named. Raises ValueError, and then nothing has changed."""
        if split is not None:
            check_split(split)
        self._split = dict(split) if split is not None else None
        self._debts.clear()

    def roster_changed(self, now: float, sent_away: str | None = None) -> None:
        """A worker came or went; one of the version `sent_away` is not expected back."""
        live = self._roster.decode_slots
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
        """When the patience with a version without workers is over."""
        if not self._lost_s or not self._roster.decode_slots:  # there is nowhere else to go
            return None
        return min(self._lost_s.values()) + self._config.wait_s

    def expire(self, now: float) -> None:
        for version, lost_s in list(self._lost_s.items()):
            if now >= lost_s + self._config.wait_s:
                del self._lost_s[version]
                self._ended.add(version)

    # ---- what a request gets

    def choose(self, state: RequestState, first_choice: str | None) -> str:
        """The version of a request that is being admitted, "" where no decode worker is there. `first_choice` is that
        of the first choice of the same answer."""
        request = state.request
        if request.version:
            chosen = request.version
        elif request.resumed is not None and request.resumed.output_ids:
            chosen = request.resumed.version  # whether it comes back or not
        elif first_choice is not None:
            chosen = first_choice
        elif len(self._roster.decode_slots) == 1:  # that holds the request, or it would not have been admitted
            chosen = next(iter(self._roster.decode_slots))
        else:
            chosen = self._of_session(state) or self._next(self._candidates(state))
        if chosen:
            self.counts_of(chosen).num_requests += 1
        self._note_session(state, chosen)
        return chosen

    def next_version(self, state: RequestState) -> str | None:
        """Where a waiting request had better go: its version will not serve it, or not soon. None: it stays.

        What the client has seen nothing of moves at once; a request with tokens only where nobody of its version is
        left and nobody is expected back."""
        version = state.version
        if state.request.version:
            return None
        is_live = version in self._roster.decode_slots
        if is_live and self._is_wanted(version):
            return None
        if len(state.output) and (is_live or not self._is_over(version)):
            return None
        others = {name: weight for name, weight in self._candidates(state).items() if name != version}
        return self._next(others) if others else None

    def serves(self, version: str) -> bool:
        """Nobody has to leave it."""
        return version in self._roster.decode_slots and self._is_wanted(version)

    def is_refused(self, state: RequestState) -> bool:
        """The version that the client has asked for, or that the request may not leave, is not coming back."""
        is_bound = bool(state.request.version) or (len(state.output) > 0 and not self._config.continue_across)
        return is_bound and state.version in self._ended and bool(self._roster.decode_slots)

    def after_failure(self, state: RequestState, cause: RetryCause) -> str | None:
        """Where the next attempt goes if its version may be at fault: to one with as large a share or, after a second
        failure, to any. None: it stays."""
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

    def finished(self, state: RequestState, finish: GenerationFinish) -> None:
        counts, timeline = self.counts_of(state.version), state.record.timeline
        counts.ends[finish.error.kind if finish.error is not None else finish.reason] += 1
        if timeline.first_token is not None:
            counts.num_first_tokens += 1
            counts.ttft_s += timeline.first_token - timeline.queued

    def moved(self, state: RequestState, version: str) -> None:
        self.counts_of(version).num_moved_in += 1
        self._note_session(state, version)

    def status(self, num_waiting: Mapping[str, int]) -> tuple[VersionStatus, ...]:
        """All that are live, wanted or still counted."""
        names = dict.fromkeys((*self.counts, *(self._split or ())))
        return tuple(
            VersionStatus(
                name,
                self._split.get(name) if self._split is not None else None,
                name in self._roster.decode_slots,
                len(self._roster.workers_of("prefill", name)),
                len(self._roster.workers_of("decode", name)),
                num_waiting.get(name, 0),
                deepcopy(self.counts.get(name, VersionCounts())),  # to be asked about makes no version known
            )
            for name in names
        )

    # ---- inside

    def _is_over(self, version: str) -> bool:
        return self._config.continue_across and (version in self._ended or not self._is_wanted(version))

    def _is_wanted(self, version: str) -> bool:
        return self._split is None or self._split.get(version, 0.0) > 0 or not self._wanted_live()

    def _wanted_live(self) -> dict[str, float]:
        """Live versions that have a share, with it."""
        slots = self._roster.decode_slots
        if self._split is None:
            return dict(slots)
        return {version: weight for version, weight in self._split.items() if weight > 0 and version in slots}

    def _candidates(self, state: RequestState) -> dict[str, float]:
        """Weights of those that could hold the request. If nobody wanted can, anybody live may."""
        num_tokens = state.num_tokens
        return self._able(num_tokens, self._wanted_live()) or self._able(num_tokens, self._roster.decode_slots)

    def _able(self, num_tokens: int, weights: Mapping[str, float]) -> dict[str, float]:
        """Those with a decode worker that could hold so many tokens."""
        return {
            version: weight
            for version, weight in weights.items()
            if refusal(num_tokens, self._roster.workers_of("decode", version)) is None
        }

    def _next(self, weights: Mapping[str, float]) -> str:
        """Smooth weighted round robin, as nginx does it: of any run of choices each version has its share, within one
        choice, and nobody gets several in a row for nothing."""
        if len(weights) < 2:
            return next(iter(weights), "")
        debts, total = self._debts, sum(weights.values())
        for version, weight in weights.items():
            debts[version] = debts.get(version, 0.0) + weight / total
        chosen = max(weights, key=lambda version: debts[version])
        debts[chosen] -= 1.0
        return chosen

    def _of_session(self, state: RequestState) -> str:
        """The version of its conversation, if that can go on there."""
        request = state.request
        version = self._sessions.get((request.tenant, request.session), "") if request.session else ""
        return version if version and version in self._candidates(state) else ""

    def _note_session(self, state: RequestState, version: str) -> None:
        request = state.request
        if not request.session or not version or request.version:
            return
        key = request.tenant, request.session
        self._sessions[key] = version
        self._sessions.move_to_end(key)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
