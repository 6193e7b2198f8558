"""Which workers other models could give to one that is short of them, and whether that pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.planner.planner_decision import WorkerTransfer
from slipstream.cluster.planner.pool_options import max_step
from slipstream.cluster.planner.shared.model_view import ModelView
from slipstream.cluster.planner.slo_planner import WORTH
from slipstream.router.protocol.messages import ROLES, Role

SPARE_STEP = 0.5  # of its workers a model gives at once, where it can spare them


@dataclass(frozen=True, slots=True)
class Offer:
    """A worker that a model could give. `is_spare`: it keeps its levels without it."""

    giver: ModelView
    name: str
    role: Role
    is_spare: bool

    def suits(self, taker: ModelView, role: Role) -> bool:
        """A worker of that role needs the same devices there."""
        return self.giver.share.of(self.role) == taker.share.of(role)


def offers(
    taker: ModelView,
    others: Sequence[ModelView],
    fair: Mapping[str, int],
    wanted: int,
    num_free: int,
    config: PlannerConfig,
) -> tuple[list[Offer], list[WorkerTransfer]]:
    """At most `wanted` workers, those that can be spared first; where these and `num_free` free ones are too few, those
    of models that have more than is `fair`, if the gain is worth the loss. They count as gone from their models from
    then on. And what was not taken, and why."""
    found: list[Offer] = []
    rejected: list[WorkerTransfer] = []
    givers = sorted(others, key=lambda one: (not one.is_idle, -one.spare() / max(one.total, 1)))
    for giver in givers:
        spare = min(giver.spare() - len(giver.gone), giver.left - fair[giver.name])
        if spare > 0 and len(found) < wanted:
            found += _taken(giver, taker, min(spare, wanted - len(found)), True, config, rejected)
    missing = wanted - len(found) - num_free
    if missing > 0:
        found += _at_a_loss(taker, givers, fair, len(found) + num_free, missing, config, rejected)
    return found, rejected


def _taken(
    giver: ModelView,
    taker: ModelView,
    number: int,
    is_spare: bool,
    config: PlannerConfig,
    rejected: list[WorkerTransfer],
) -> list[Offer]:
    """So many workers of a model, or as many as it can part with at once."""
    if not giver.is_idle:
        step = max_step(giver.total, SPARE_STEP if is_spare else config.max_step)
        number = min(number, step - len(giver.gone))
    found: list[Offer] = []
    while len(found) < number:
        why = _why_not(giver, taker, waits=not (is_spare and (taker.is_grave or taker.is_waking)))
        going = giver.next_to_go() if why is None else None
        if going is None:
            why = why or "what runs there has no room elsewhere"
            rejected.append(WorkerTransfer(giver.name, taker.name, 1, 0.0, 0.0, "", why))
            break
        giver.gone.add(going[0])
        found.append(Offer(giver, *going, is_spare))
    return found


def _why_not(giver: ModelView, taker: ModelView, *, waits: bool = True) -> str | None:
    """`waits`: a change that would be taken back has to wait."""
    if not giver.is_steady:
        return "it changes, or has just changed"
    if not any(giver.share.of(one) == taker.share.of(other) for one in ROLES for other in ROLES):
        return "its workers have other devices"
    left = giver.left_after(len(giver.gone) + 1)
    if left is None:
        return "it has no worker to spare"
    return giver.planner.why_not(giver.context, left) if waits else None


def _at_a_loss(
    taker: ModelView,
    givers: Sequence[ModelView],
    fair: Mapping[str, int],
    num_found: int,
    missing: int,
    config: PlannerConfig,
    rejected: list[WorkerTransfer],
) -> list[Offer]:
    """One worker after the other from whichever model loses least by it."""
    found: list[Offer] = []
    loss = 0.0
    while len(found) < missing:
        rich = [one for one in givers if one.left > fair[one.name] and _why_not(one, taker) is None]
        rich = [one for one in rich if len(one.gone) < max_step(one.total, config.max_step)]
        if not rich:
            break
        giver = min(rich, key=loss_of_one)
        taken = _taken(giver, taker, 1, False, config, rejected)
        if not taken:
            break
        giver.gone.discard(taken[0].name)
        loss += loss_of_one(giver)
        giver.gone.add(taken[0].name)
        found += taken
    if not found:
        return []
    gain = gain_of(taker, num_found, len(found), config)
    if gain - loss > WORTH * taker.share.weight:
        return found
    for offer in found:
        offer.giver.gone.discard(offer.name)
    for name in dict.fromkeys(offer.giver.name for offer in found):
        number = sum(offer.giver.name == name for offer in found)
        why = "the gain is not worth the loss"
        rejected.append(WorkerTransfer(name, taker.name, number, round(gain, 4), round(loss, 4), "", why))
    return []


def loss_of_one(giver: ModelView) -> float:
    """The share of its requests that a model does not serve in time without one more worker, times its weight."""
    left = giver.left
    fewer = giver.served(left - 1) if left > 1 or giver.is_idle else 0.0
    return giver.share.weight * max(giver.served(left) - fewer, 0.0)


def gain_of(taker: ModelView, num_before: int, number: int, config: PlannerConfig) -> float:
    """The share of its requests that a model serves in time only with so many workers beyond `num_before` further ones,
    times its weight, for the part of the horizon that is left when they are there."""
    if taker.is_waking:
        served = 1.0 if not num_before else 0.0
    else:
        served = taker.served(taker.total + num_before + number) - taker.served(taker.total + num_before)
    left = max(1.0 - taker.planner.swap_s / config.horizon_s, 0.0)
    return taker.share.weight * max(served, 0.0) * left
