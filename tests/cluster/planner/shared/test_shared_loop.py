"""The planner of several models at work in the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from slipstream.cluster.admin_api.planner_routes import planner_families
from slipstream.cluster.commands.planner_command import lines
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetError, FleetPort, FleetState
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.planner.planner_decision import MoveWorker, PlannerDecision, RemoveWorker, WorkerTransfer
from slipstream.cluster.planner.shared.model_share import ModelShare
from slipstream.cluster.planner.shared.shared_loop import SharedPlannerLoop
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.protocol.messages import Role
from slipstream.router.status.load_signals import Signals
from tests.support.cluster.fake_fleet import FakeFleet


class FakeModels:
    """A fleet for each model; `moved` keeps what was asked for."""

    def __init__(self, *models: str) -> None:
        self.fleets = {model: FakeFleet() for model in models}
        self.moved: list[tuple[str, str, Role]] = []

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.fleets)

    def of_model(self, model: str) -> FleetPort:
        return self.fleets[model]

    async def move(self, name: str, model: str, role: Role) -> None:
        if name == "missing":
            raise FleetError("unknown", "name", "there is no such worker")
        self.moved.append((name, model, role))


class MovesOne:
    """Decides the same at each look."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.followed: list[list[str]] = []
        self.seen: list[set[str]] = []

    def follow(self, shares: Sequence[ModelShare]) -> None:
        self.followed.append([share.name for share in shares])

    def decide(
        self, signals: Mapping[str, Signals], fleets: Mapping[str, FleetState], now: float
    ) -> dict[str, PlannerDecision]:
        self.seen.append(set(signals))
        why = "chat gives 1 worker to code: code keeps 50%"
        taken = WorkerTransfer("chat", "code", 1, 0.5, 0.0, why)
        rejected = WorkerTransfer("draft", "code", 1, 0.0, 0.0, "", "its workers have other devices")
        move, remove = MoveWorker(self.name, "code", "decode"), RemoveWorker("prefill-0")
        return {
            "chat": PlannerDecision(now, "gives", why, 1, 0),
            "code": PlannerDecision(now, "slo", why, 1, 2, (move, remove), (), (("isl", 5.0),), (taken, rejected)),
        }


def looked(planner: MovesOne, fleet: FakeModels, shares: list[ModelShare], num_looks: int = 1) -> DecisionLog:
    dispatcher, log = Dispatcher(DispatchConfig()), DecisionLog(10)

    async def signals(model: str) -> Signals:
        return dispatcher.signals(1.0)

    async def run() -> None:
        loop = SharedPlannerLoop(PlannerConfig(), planner, fleet, signals, lambda: list(shares), log)
        for _ in range(num_looks):
            await loop.look()
            shares.append(ModelShare("draft"))

    asyncio.run(run())
    return log


def test_what_is_decided_for_each_model_is_done_and_logged() -> None:
    planner, fleet = MovesOne("decode-0"), FakeModels("chat", "code")
    log = looked(planner, fleet, [ModelShare("chat"), ModelShare("code")])
    assert fleet.moved == [("decode-0", "code", "decode")]
    assert fleet.fleets["code"].asked == [("remove", "prefill-0", True)]
    assert fleet.fleets["chat"].asked == []
    assert log.num_actions == {"move": 1, "remove": 1}
    shown = [record.as_dict() for record in log.latest(10)]
    assert [one["model"] for one in shown] == ["code", "chat"]
    seen = next(family for family in planner_families(log) if family.name == "slipstream:planner_seen")
    assert [sample.labels["model_name"] for sample in seen.samples] == ["code"]
    table = "\n".join(lines(shown, with_alternatives=True))
    assert "decode-0 -> code decode, -prefill-0" in table
    assert "draft gives none to code: its workers have other devices" in table


def test_a_move_that_the_fleet_refuses_is_in_the_log_and_the_rest_is_done() -> None:
    planner, fleet = MovesOne("missing"), FakeModels("chat", "code")
    log = looked(planner, fleet, [ModelShare("chat"), ModelShare("code")])
    assert fleet.fleets["code"].asked == [("remove", "prefill-0", True)]
    assert "there is no such worker" in log.latest(2)[0].failed[0]


def test_models_that_come_while_it_runs_take_part_and_others_are_left_alone() -> None:
    planner, fleet = MovesOne("decode-0"), FakeModels("chat", "code", "draft")
    looked(planner, fleet, [ModelShare("chat"), ModelShare("code")], num_looks=2)
    assert planner.followed == [["chat", "code"], ["chat", "code", "draft"]]
    assert planner.seen == [{"chat", "code"}, {"chat", "code", "draft"}]


def test_a_log_of_one_model_says_nothing_of_models() -> None:
    log = DecisionLog(10)
    record = log.add(PlannerDecision(1.0, "holds", "all is well", 1, 1), 1.0)
    assert "model" not in record.as_dict()
    assert "MODEL" not in next(iter(lines([record.as_dict()], with_alternatives=False)))
