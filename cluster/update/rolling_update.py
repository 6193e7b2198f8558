"""A rolling update as a state machine. Sans-IO: it takes the observed state and a time, and returns actions.

    starting --new groups of each role serve--> canary --promoted, or no finding--> rolling --no old group--> done
        |   mirror: copies only  ^ (both only if asked for)| step by step, if asked for |
        '---------------- a finding, or an operator -------+---------------------------'
                                                           v
                                                      rolling_back --no new group, all old ones--> rolled_back

If the files of the old version are gone, none of its groups can be started again. Then a roll-back ends with those that
are left. If no decode group of it is left either, there is no way back: the new version stays.

It looks at what there is and never at what it did before. So a group that dies, a router that comes back without its
split, and a call that failed need no special code: the next step asks for what is missing. While groups of the new
version start, all new requests go to the old one, so that no request waits for a version that may never come up.

A step of a canary first exchanges groups until the new version has those that its share takes, then sets the split,
then is judged, once it has seen enough. Where a router is followed by another one, what is judged begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from slipstream.cluster.fleet.author import DRIVER, Author
from slipstream.cluster.fleet.fleet_port import FleetState, MemberState
from slipstream.cluster.fleet.update_plan import (
    ENDED,
    Phase,
    SetMirror,
    SetSplit,
    UpdateAction,
    UpdateEvent,
    UpdatePlan,
    VersionLoad,
)
from slipstream.cluster.update.group_exchange import GroupExchange
from slipstream.cluster.update.verdict import (
    MIN_COMPARED,
    comparison,
    failing,
    is_counted_anew,
    much_slower,
    since,
    worse,
)
from slipstream.router.protocol.messages import ROLES, Role

DECODE_FIRST: tuple[Role, Role] = ("decode", "prefill")  # if there is little room, decode groups get it
MAX_EVENTS = 200
MAX_DEATHS = 3  # of new groups that had already served; a single one may be an accident


class RollingUpdate:
    """`events` tell what happened and why. `split` is what the router's split should be; it is set again whenever the
    router has another one. `old_files_gone` is set from outside, to a sentence about a file of the old version that is
    gone, or None."""

    def __init__(self, plan: UpdatePlan, now: float, by: Author = DRIVER) -> None:
        self.plan = plan
        self.phase: Phase = "starting"
        self.reason = ""  # why it was rolled back
        self.events: list[UpdateEvent] = []
        self.split: dict[str, float] | None = {plan.old: 100.0, plan.new: 0.0}
        self.mirror = plan.options.mirror_percent  # of the requests are copied to the new version, which gets no others
        self.figures = ""  # how the new version compares with the old one, in the present phase
        self.old_files_gone: str | None = None
        self._back_to = dict(plan.initial)  # how many groups of the old version a roll-back ends with
        self._fleet: FleetState | None = None  # as last seen
        self._since_s = now
        self._before: dict[str, VersionLoad] | None = None  # the counts when the update began
        self._phase_loads: dict[str, VersionLoad] = {}  # the counts when the phase began
        self._last_loads: dict[str, VersionLoad] = {}
        self._unready_since_s: dict[str, float] = {}  # by new group
        self._last_states: dict[str, MemberState] = {}
        self._num_deaths = 0
        self.num_steps_begun = 0  # of `plan.options.shares`
        self._num_steps_passed = 0
        self._note(now, f"update from version {plan.old} to {plan.new}", by)

    @property
    def is_over(self) -> bool:
        return self.phase in ENDED

    def set_split(self, split: dict[str, float], now: float, by: Author = DRIVER) -> None:
        """Changes the split between the two versions. Giving everything to the new one promotes it. Raises
        ValueError."""
        plan = self.plan
        unknown = [version for version in split if version not in (plan.old, plan.new)]
        if unknown:
            raise ValueError(f"split names {unknown[0]!r}; this update has {plan.old!r} and {plan.new!r}")
        if self.phase not in ("mirror", "canary"):
            raise ValueError(f"split can be changed while the new version is tried, and the update is {self.phase}")
        self.split = {plan.old: split.get(plan.old, 0.0), plan.new: split.get(plan.new, 0.0)}
        if self.phase == "mirror":
            self._note(now, f"the mirror ends: {self.figures}", by)
            self.mirror = None
            self.num_steps_begun = self._num_steps_passed + 1  # a step of the operator's own
        if self.split[plan.old] == 0:
            self._begin_rolling(now, "the operator gave all requests to the new version", by)
        elif self.phase == "mirror":
            self._enter("canary", now, f"split {split_text(self.split)}", by)
        else:
            self._note(now, f"split {split_text(self.split)}", by)

    def roll_back(self, now: float, reason: str, by: Author = DRIVER) -> None:
        """Sends all new requests to the old version, then removes the new groups. Raises ValueError if the update has
        ended, or if there is no way back."""
        if self.is_over:
            raise ValueError(f"the update is {self.phase}")
        if self.phase == "rolling_back":
            return
        if self._is_one_way:
            raise ValueError(f"no decode worker of version {self.plan.old} is left, and {self.old_files_gone}")
        self._begin_rolling_back(now, reason, by)

    def give_up(self, now: float, reason: str) -> None:
        """Rolls back for a reason that was found, not chosen. If there is no way back, the new version stays."""
        if self.is_over or self.phase == "rolling_back":
            return
        if self._is_one_way:
            self.reason = reason
            self.split = self.mirror = None
            gone = f"there is no way back to {self.plan.old}: {self.old_files_gone}"
            self._enter("done", now, f"version {self.plan.new} stays as it is, because {gone} ({reason})")
        else:
            self._begin_rolling_back(now, reason)

    @property
    def _is_one_way(self) -> bool:
        """Whether a roll-back would end without a decode worker."""
        fleet, plan = self._fleet, self.plan
        if self.old_files_gone is None or fleet is None:
            return False
        return fleet.num_ready(plan.old, "decode") == 0 and fleet.num_ready(plan.new, "decode") > 0

    def _begin_rolling_back(self, now: float, reason: str, by: Author = DRIVER) -> None:
        self.reason = reason
        self.split = {self.plan.old: 100.0, self.plan.new: 0.0}
        if self.phase == "mirror":
            self._note(now, f"the mirror ends: {self.figures}", by)
        self.mirror = None
        self._enter("rolling_back", now, f"rolling back: {reason}", by)

    def step(
        self,
        fleet: FleetState,
        loads: Mapping[str, VersionLoad] | None,
        router_split: dict[str, float] | None,
        now: float,
        router_mirror: float | None = None,
    ) -> list[UpdateAction]:
        """The actions to take now. `loads` None: the router does not answer, so nothing is judged and no group leaves.
        `router_mirror` is how many percent of the requests it copies to the new version."""
        self._fleet = fleet
        if self.is_over:
            return self._router_actions(router_split, router_mirror) if loads is not None else []
        if loads is not None:
            if self._before is None:
                self._before = dict(loads)
            if not self._phase_loads:
                self._phase_loads = dict(loads)
            if any(is_counted_anew(loads.get(name, VersionLoad()), last) for name, last in self._last_loads.items()):
                self._begin_anew(loads, now)
            else:
                self._judge(loads, now)
            self._last_loads = dict(loads)
        self._look_at_starts(fleet, loads is not None, now)
        self._advance(fleet, now)
        if loads is None:
            return []
        actions = self._router_actions(router_split, router_mirror)
        if actions or self.is_over:
            return actions  # groups leave only after the requests have
        return [*self._changes(fleet, now)]

    def _router_actions(self, split: dict[str, float] | None, mirror: float | None) -> list[UpdateAction]:
        """What the router is to do otherwise. The mirror begins before the new version has workers, and it ends before
        the version gets requests."""
        actions: list[UpdateAction] = []
        if mirror != self.mirror:
            actions.append(SetMirror(self.plan.new, self.mirror, f"{self.phase}: {self.mirror} % are copied"))
        if split != self.split:
            actions.append(SetSplit(self.split, f"{self.phase}: {split_text(self.split)}"))
        return actions

    def _begin_anew(self, loads: Mapping[str, VersionLoad], now: float) -> None:
        """Requests that waited for the new router say nothing about the versions."""
        self._before, self._phase_loads = dict(loads), dict(loads)
        if self.phase in ("mirror", "canary"):
            self._since_s = now

    def _judge(self, loads: Mapping[str, VersionLoad], now: float) -> None:
        if self.phase not in ("mirror", "canary", "rolling"):
            return
        plan, options = self.plan, self.plan.options
        assert self._before is not None
        new, old = (self._load(loads, self._before, version) for version in (plan.new, plan.old))
        finding = failing(new, old)
        in_phase, old_in_phase = (self._load(loads, self._phase_loads, version) for version in (plan.new, plan.old))
        is_mirror = self.phase == "mirror"
        is_tried = options.goes_on and (is_mirror or (self.phase == "canary" and self._is_step_begun))
        is_seen = is_tried and in_phase.num_ended >= options.min_requests and now - self._since_s >= options.canary_s
        if is_tried and min(old_in_phase.ttft.num, old_in_phase.itl.num) < MIN_COMPARED:
            old_in_phase = old  # at a large share of the new version, the old one may get hardly any requests
        copies = f"{in_phase.mirror.text}; " if in_phase.mirror is not None else ""
        self.figures = f"{copies}{comparison(in_phase, old_in_phase)}"
        if finding is None and is_tried:
            finding = much_slower(in_phase, old_in_phase)
        if finding is None and is_seen:
            finding = worse(in_phase, old_in_phase, options.tolerance_percent / 100)
        if finding is not None:
            self.give_up(now, f"version {plan.new}: {finding}")
        elif is_seen:
            what = "copies" if is_mirror else "requests"
            seen = f"{in_phase.num_ended} {what} ended on the new version without a finding ({self.figures})"
            if is_mirror:
                self._begin_trial(now, seen)
            else:
                self._pass_step(seen, now)

    @property
    def _is_step_begun(self) -> bool:
        return self.num_steps_begun > self._num_steps_passed

    def _pass_step(self, why: str, now: float) -> None:
        self._num_steps_passed += 1
        shares = self.plan.options.shares
        if self._num_steps_passed >= len(shares):
            self._begin_rolling(now, why)
        else:
            self._note(now, f"{why}; next: {shares[self._num_steps_passed]:g} %")

    @staticmethod
    def _load(loads: Mapping[str, VersionLoad], then: Mapping[str, VersionLoad], version: str) -> VersionLoad:
        return since(loads.get(version, VersionLoad()), then.get(version, VersionLoad()))

    def _look_at_starts(self, fleet: FleetState, is_router_there: bool, now: float) -> None:
        """Rolls back if groups of the new version do not come up, or die again and again. A group that is up and only
        waits for an absent router is not late, nor is one whose model is being downloaded."""
        if self.phase == "rolling_back":
            return
        limit_s = self.plan.options.start_timeout_s
        new = fleet.of_version(self.plan.new)
        for member in new:
            if (
                member.state not in ("ready", "draining", "connecting")
                and self._last_states.get(member.name) == "ready"
            ):
                self._num_deaths += 1  # leaving `ready` counts, because `dead` can be too short to be seen
            if member.state != "connecting":  # a group that served is in that state again whenever the router is lost
                self._last_states[member.name] = member.state
            if member.state == "ready":
                self._unready_since_s.pop(member.name, None)
                continue
            if member.state == "fetching" or (member.state == "connecting" and not is_router_there):
                self._unready_since_s[member.name] = now
            waited_s = now - self._unready_since_s.setdefault(member.name, now)
            why = f" ({member.detail})" if member.detail else ""
            if member.state == "failed":
                self.give_up(now, f"{member.name} could not be started{why}")
            elif waited_s > limit_s:
                self.give_up(now, f"{member.name} is {member.state}{why} and was not ready within {limit_s:g} s")
            elif self._num_deaths >= MAX_DEATHS:
                self.give_up(now, f"groups of version {self.plan.new} died {self._num_deaths} times{why}")
            else:
                continue
            return
        if self.phase == "starting" and not new and now - self._since_s > limit_s:
            self.give_up(now, f"there was no room for a group of the new version within {limit_s:g} s")

    def _advance(self, fleet: FleetState, now: float) -> None:
        plan = self.plan
        if self.phase == "starting" and self._new_serves(fleet):
            if self.mirror is not None and any(plan.wanted.values()):
                until = "for its verdict" if plan.options.goes_on else "for an operator"
                text = f"the new version serves; {self.mirror:g} % of the requests are copied to it, waiting {until}"
                self._enter("mirror", now, text)
            else:
                self._begin_trial(now, "the new version serves")
        if self.phase == "canary" and not self._is_step_begun and self._has_groups_of_step(fleet):
            self._begin_step(now)
        if self.phase == "rolling" and self._is_replaced(fleet):
            self.split = None
            self._enter("done", now, f"version {plan.new} has taken over")
        if self.phase == "rolling_back":
            if self.old_files_gone is not None:
                self._back_to = {role: min(num, fleet.num_ready(plan.old, role)) for role, num in self._back_to.items()}
            if self._is_restored(fleet):
                self.split = None
                missing = [
                    f"{role} {n} of {plan.initial[role]}" for role, n in self._back_to.items() if n < plan.initial[role]
                ]
                how = f"with fewer groups ({', '.join(missing)}: {self.old_files_gone})" if missing else "as before"
                self._enter("rolled_back", now, f"version {plan.old} serves {how}: {self.reason}")

    def _begin_trial(self, now: float, why: str) -> None:
        self.mirror = None
        if not self.plan.options.shares or not any(self.plan.wanted.values()):  # at zero there is nothing to try
            self._begin_rolling(now, why)
        else:
            self._enter("canary", now, why)

    def _begin_step(self, now: float) -> None:
        plan, shares = self.plan, self.plan.options.shares
        percent = shares[self.num_steps_begun]
        self.num_steps_begun += 1
        self.split = {plan.old: 100.0 - percent, plan.new: percent}
        self._since_s = now
        self._phase_loads = {}
        step = f"step {self.num_steps_begun} of {len(shares)}: " if len(shares) > 1 else ""
        until = "for its verdict" if plan.options.goes_on else "for an operator"
        self._note(now, f"{step}split {split_text(self.split)}, waiting {until}")

    def _num_at_step(self, role: Role) -> int:
        """How many groups of the new version a step needs, of those that are wanted in the end."""
        shares, wanted = self.plan.options.shares, self.plan.wanted[role]
        if not self.plan.options.steps:
            return min(1, wanted)
        percent = shares[min(self._num_steps_passed, len(shares) - 1)]
        return min(max(math.ceil(wanted * percent / 100), 1), wanted)

    def _has_groups_of_step(self, fleet: FleetState) -> bool:
        return all(fleet.num_ready(self.plan.new, role) >= self._num_at_step(role) for role in ROLES)

    def _new_serves(self, fleet: FleetState) -> bool:
        return all(fleet.num_ready(self.plan.new, role) > 0 for role in ROLES if self.plan.wanted[role] > 0)

    def _is_replaced(self, fleet: FleetState) -> bool:
        plan = self.plan
        is_there = all(fleet.num_ready(plan.new, role) >= plan.wanted[role] for role in ROLES)
        return is_there and not any(member.version == plan.old for member in fleet.members)

    def _is_restored(self, fleet: FleetState) -> bool:
        plan = self.plan
        is_there = all(fleet.num_ready(plan.old, role) >= self._back_to[role] for role in ROLES)
        return is_there and not any(member.version == plan.new for member in fleet.members)

    def _changes(self, fleet: FleetState, now: float) -> Iterator[UpdateAction]:
        plan = self.plan
        for role in DECODE_FIRST:
            to_new = GroupExchange(plan, fleet, now, role, plan.new, plan.old, plan.wanted[role])
            if self.phase == "starting":
                yield from to_new.begin()
            elif self.phase == "canary" and plan.options.steps:
                num_new = self._num_at_step(role)
                most = max(plan.wanted[role], plan.initial[role]) + plan.options.surge
                yield from replace(to_new, target=num_new).advance(keep=max(most - num_new, 1))
            elif self.phase == "rolling":
                yield from to_new.advance()
            elif self.phase == "rolling_back":
                yield from GroupExchange(plan, fleet, now, role, plan.old, plan.new, self._back_to[role]).advance()

    def _begin_rolling(self, now: float, why: str, by: Author = DRIVER) -> None:
        self.split = None
        self._enter("rolling", now, f"{why}; groups are exchanged one by one", by)

    def _enter(self, phase: Phase, now: float, text: str, by: Author = DRIVER) -> None:
        self.phase = phase
        self._since_s = now
        self._phase_loads = {}
        self._note(now, text, by)

    def _note(self, now: float, text: str, by: Author = DRIVER) -> None:
        self.events.append(UpdateEvent(now, self.phase, text, by))
        del self.events[:-MAX_EVENTS]


def split_text(split: Mapping[str, float] | None) -> str:
    """A split as text for people."""
    if split is None:
        return "by the size of the pools"
    return " ".join(f"{version}={weight:g}" for version, weight in split.items())
