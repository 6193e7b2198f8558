"""What a planner says: what to change, why, and what else it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.router.protocol.messages import Role
from slipstream.router.status.load_signals import Signals

Reason = Literal[
    # nothing is to be done
    "holds",  # the levels are kept, and nothing cheaper would
    "changing",  # a change is under way
    "settling",  # one was just made, and what is seen is not of it yet
    "no_workers",  # nothing is known: no worker, no request
    "best_there_is",  # the levels are not kept, and nothing within the limits would do better
    "backed_off",  # what would help has failed lately, or was taken back again and again
    # something is
    "slo",  # the levels would not be kept otherwise
    "goodput",  # nothing within the limits keeps them, and this serves the most
    "cheaper",  # fewer workers keep them, with room to spare
    "idle",  # to zero
    "wakes",  # from zero
    "limits",  # the numbers are outside what the configuration allows
    "gives",  # another model needs a worker more
]


@dataclass(frozen=True, slots=True)
class AddWorkers:
    role: Role
    count: int

    def __str__(self) -> str:
        return f"+{self.count} {self.role}"


@dataclass(frozen=True, slots=True)
class RemoveWorker:
    name: str

    def __str__(self) -> str:
        return f"-{self.name}"


@dataclass(frozen=True, slots=True)
class SwitchRole:
    name: str
    role: Role

    def __str__(self) -> str:
        return f"{self.name} -> {self.role}"


@dataclass(frozen=True, slots=True)
class MoveWorker:
    """A worker of another model becomes one of `model`."""

    name: str
    model: str
    role: Role

    def __str__(self) -> str:
        return f"{self.name} -> {self.model} {self.role}"


@dataclass(frozen=True, slots=True)
class SetInstances:
    """A version of a tensor model has `count` instances from now on."""

    model: str
    version: str
    count: int

    def __str__(self) -> str:
        return instances_in_words(self.count)


PlannerAction = AddWorkers | RemoveWorker | SwitchRole | MoveWorker | SetInstances


@dataclass(frozen=True, slots=True)
class Alternative:
    """A number of workers of each role, and what it was predicted to do. `attainment` is the share of requests that
    would keep both levels, `goodput_per_s` that many a second. `cost` is in workers: those that run, and those that the
    change keeps busy, over the horizon. `rejected`: why it was not taken, "" for the one that was. `price_per_hour` is
    that of the workers, where it is known."""

    num_prefill: int
    num_decode: int
    attainment: float
    goodput_per_s: float
    ttft_s: float
    itl_s: float
    prefill_load: float  # of the busiest stage's time, over 1 where it does not keep up
    decode_load: float
    cost: float
    rejected: str = ""
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerTransfer:
    """Workers that one model might give to another one. `gain` and `loss` are shares of the requests of the taker and
    of the giver, each times the weight of the model. `rejected`: why that was not done, "" where it was."""

    giver: str
    taker: str
    num_workers: int
    gain: float
    loss: float
    why: str
    rejected: str = ""


@dataclass(frozen=True, slots=True)
class PlannerDecision:
    """`why` is one line for a human. `seen` are figures of the load that it was made for, by name. `transfers`: from
    which models the workers might come, where there are several. `num_instances`: of a tensor model, which has no
    workers; None: it is another one."""

    at_s: float
    reason: Reason
    why: str
    num_prefill: int
    num_decode: int
    actions: tuple[PlannerAction, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    seen: tuple[tuple[str, float], ...] = ()
    transfers: tuple[WorkerTransfer, ...] = ()
    num_instances: int | None = None

    @property
    def is_hold(self) -> bool:
        return not self.actions

    @property
    def size(self) -> str:
        """What the model is to have, in words."""
        if self.num_instances is None:
            return f"{self.num_prefill}P{self.num_decode}D"
        return instances_in_words(self.num_instances)


def instances_in_words(count: int) -> str:
    return f"{count} instance{'' if count == 1 else 's'}"


class Planner(Protocol):
    """Asked every `planner.interval_s`. No clock, no I/O: the same object runs in the driver, in tests and in the
    simulator. `now` never goes back; it is on the clock of the caller."""

    def decide(self, signals: Signals, fleet: FleetState, now: float) -> PlannerDecision: ...
