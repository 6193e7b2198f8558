"""The decisions of a planner, kept for those who want to know what it did and why."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from slipstream.cluster.planner.planner_decision import (
    AddWorkers,
    Alternative,
    MoveWorker,
    PlannerAction,
    PlannerDecision,
    Reason,
    RemoveWorker,
    SetInstances,
    SwitchRole,
)

# Reasons for which the planner leaves undone what it would do, or waits for what it has begun.
HELD_BACK: frozenset[Reason] = frozenset({"backed_off", "best_there_is", "changing"})


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """`number` counts from 1. `unix_s`: when. `failed`: what the cluster would not do of it, and why. `model`: for
    which of several models."""

    number: int
    unix_s: float
    decision: PlannerDecision
    failed: tuple[str, ...] = ()
    model: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The record as it stands in JSON."""
        decision = self.decision
        shown: dict[str, Any] = {
            "number": self.number,
            "unix_s": self.unix_s,
            "reason": decision.reason,
            "why": decision.why,
            "num_prefill": decision.num_prefill,
            "num_decode": decision.num_decode,
            "actions": [_action_shown(action) for action in decision.actions],
            "failed": list(self.failed),
            "seen": dict(decision.seen),
            "alternatives": [_alternative_json(one) for one in decision.alternatives],
        }
        if decision.num_instances is not None:
            shown["num_instances"] = decision.num_instances
        if self.model:
            shown["model"] = self.model
            shown["transfers"] = [asdict(one) for one in decision.transfers]
        return shown


class DecisionLog:
    """The latest `capacity` decisions, and as many that changed something, so that holds do not push those out.
    `on_change` is called with each of the latter."""

    def __init__(self, capacity: int, on_change: Callable[[DecisionRecord], None] | None = None) -> None:
        self._on_change = on_change
        self._all: deque[DecisionRecord] = deque(maxlen=capacity)
        self._changes: deque[DecisionRecord] = deque(maxlen=capacity)
        self.latest_of: dict[str, DecisionRecord] = {}  # by model; "" where there is one
        self.num_by_reason: Counter[str] = Counter()
        self.num_actions: Counter[str] = Counter()
        self.num_failed = 0  # actions
        self.num_errors = 0  # looks that came to nothing: no router, or a planner that broke
        self._held_since: dict[str, float] = {}  # by model: unix seconds of the first of the latest holds in a row

    def add(
        self, decision: PlannerDecision, unix_s: float, failed: tuple[str, ...] = (), model: str = ""
    ) -> DecisionRecord:
        record = DecisionRecord(self.num_by_reason.total() + 1, unix_s, decision, failed, model)
        self._all.append(record)
        self.latest_of[model] = record
        if decision.reason in HELD_BACK:
            self._held_since.setdefault(model, unix_s)
        else:
            self._held_since.pop(model, None)
        if decision.actions:
            self._changes.append(record)
        self.num_by_reason[decision.reason] += 1
        for action in decision.actions:
            self.num_actions[_kind(action)] += action.count if isinstance(action, AddWorkers) else 1
        self.num_failed += len(failed)
        if decision.actions and self._on_change is not None:
            self._on_change(record)
        return record

    def latest(self, limit: int, *, changes_only: bool = False) -> list[DecisionRecord]:
        """The last one first."""
        return list(islice(reversed(self._changes if changes_only else self._all), limit))

    def held_s(self, model: str) -> float:
        """For how long all decisions about it have been of `HELD_BACK`; 0: the last one was not."""
        since_s = self._held_since.get(model)
        return 0.0 if since_s is None else max(self.latest_of[model].unix_s - since_s, 0.0)

    @property
    def last(self) -> DecisionRecord | None:
        return self._all[-1] if self._all else None


def _kind(action: PlannerAction) -> str:
    match action:
        case AddWorkers():
            return "add"
        case RemoveWorker():
            return "remove"
        case SwitchRole():
            return "switch"
        case MoveWorker():
            return "move"
        case SetInstances():
            return "instances"


def _action_shown(action: PlannerAction) -> dict[str, Any]:
    return {"action": _kind(action), **asdict(action)}


def decision_json(decision: PlannerDecision) -> dict[str, Any]:
    """All of a decision, without prices and transfers where there are none."""
    shown = asdict(decision)
    shown["alternatives"] = tuple(_priced(one) for one in shown["alternatives"])
    if not decision.transfers:
        del shown["transfers"]
    if decision.num_instances is None:
        del shown["num_instances"]
    return shown


def _alternative_json(one: Alternative) -> dict[str, Any]:
    return _finite(_priced(asdict(one)))


def _priced(shown: dict[str, Any]) -> dict[str, Any]:
    """Leaves out a price that is not known."""
    if shown["price_per_hour"] is None:
        del shown["price_per_hour"]
    return shown


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: a time that has no end is null."""
    return {key: None if value == float("inf") else value for key, value in values.items()}
