"""The planner at work: what it decides reaches the fleet and the log, and what breaks once is tried again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from pydantic import TypeAdapter

from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.admin_api.admin_app import build_app
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.admin_api.planner_routes import planner_routes
from slipstream.cluster.cli import main
from slipstream.cluster.commands.planner_command import lines
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.planner.planner_decision import (
    AddWorkers,
    Alternative,
    PlannerAction,
    PlannerDecision,
    RemoveWorker,
    SwitchRole,
)
from slipstream.cluster.planner.planner_loading import load_planner
from slipstream.cluster.planner.planner_loop import PlannerLoop
from slipstream.cluster.planner.slo_planner import SloPlanner
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.process.background_task import in_background
from slipstream.router.status.load_signals import Signals
from tests.support.cluster.fake_fleet import FakeFleet, FakeFleets, FakeRouterView

CHOICE = Alternative(1, 2, 0.95, 4.0, float("inf"), 0.02, 0.5, 0.5, 3.1)


def decision(*actions: PlannerAction) -> PlannerDecision:
    return PlannerDecision(1.0, "slo", "because", 1, 2, actions, (CHOICE,), (("backlog", 3.0),))


class Scripted:
    """A planner of one's own: decides what the test gives it, then holds."""

    def __init__(self, config: PlannerConfig) -> None:
        self.config = config
        self.script: list[PlannerDecision | Exception] = []

    def decide(self, signals: Signals, fleet: FleetState, now: float) -> PlannerDecision:
        if not self.script:
            return PlannerDecision(now, "holds", "nothing to do", fleet.num_prefill, fleet.num_decode)
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


class NoPlanner:
    def __init__(self, config: PlannerConfig) -> None:
        pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.005)


def steered(fleet: FakeFleet, script: Sequence[PlannerDecision | Exception], num_looks: int) -> DecisionLog:
    """The log after so many looks that came to something."""
    config = PlannerConfig(interval_s=0.01)
    planner, log = Scripted(config), DecisionLog(100)
    planner.script = list(script)
    dispatcher, num_asked = Dispatcher(DispatchConfig()), 0

    async def signals() -> Signals:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 2:
            raise ConnectionError("the router is being started again")
        return dispatcher.signals(float(num_asked))

    async def run() -> None:
        async with in_background(PlannerLoop(config, planner, fleet, signals, log).run()):
            await until(lambda: log.num_by_reason.total() >= num_looks)

    asyncio.run(run())
    return log


def test_what_is_decided_is_done_and_told() -> None:
    fleet = FakeFleet(2, 1)
    log = steered(fleet, [decision(SwitchRole("prefill-0", "decode"), AddWorkers("decode", 2))], 3)
    assert fleet.asked == [("switch", "prefill-0", "decode"), ("add", "decode", 2, None)]
    assert log.num_actions == {"switch": 1, "add": 2}
    assert log.num_errors == 1  # the router that was away for a look
    changes = log.latest(10, changes_only=True)
    assert [one.number for one in changes] == [1]
    assert log.latest(10)[0].number >= 3


def test_a_planner_that_breaks_and_a_fleet_that_refuses_do_not_end_it() -> None:
    fleet = FakeFleet(1, 1)
    log = steered(fleet, [ZeroDivisionError("a bug"), decision(RemoveWorker("missing"), RemoveWorker("prefill-0"))], 2)
    assert fleet.asked == [("remove", "prefill-0", True)]
    assert log.num_errors == 2
    assert log.num_failed == 1
    assert "missing" in log.latest(10, changes_only=True)[0].failed[0]


def test_the_planner_holds_for_as_long_as_an_update_takes() -> None:
    planner, dispatcher = SloPlanner(PlannerConfig()), Dispatcher(DispatchConfig())
    fleet = FleetState((), 1, 1, is_changing=True, is_held=True)
    for now in (0.0, 5.0, 3600.0):
        made = planner.decide(dispatcher.signals(now), fleet, now)
        assert (made.reason, made.actions) == ("changing", ())


def test_the_log_is_bounded_and_holds_do_not_push_changes_out() -> None:
    log = DecisionLog(3)
    log.add(decision(AddWorkers("decode", 1)), 0.0)
    for _ in range(10):
        log.add(decision(), 0.0)
    assert [one.number for one in log.latest(10)] == [11, 10, 9]
    assert [one.number for one in log.latest(10, changes_only=True)] == [1]


def answered(log: DecisionLog | None, path: str) -> httpx.Response:
    fleet = FakeFleets({"model": FakeFleet(2, 1)})
    parts = DriverParts(
        fleet, ClusterState("demo", 1, 2.0, "/c.yaml", "model"), FakeRouterView(), AdminTokens("token"), log
    )

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=build_app(parts, (planner_routes(log, fleet),)))
        shown = {"Authorization": "Bearer token"}
        async with httpx.AsyncClient(transport=transport, base_url="http://operator", headers=shown) as client:
            return await client.get(path)

    return asyncio.run(ask())


def test_decisions_are_told_with_what_was_rejected() -> None:
    log = DecisionLog(10)
    log.add(decision(SwitchRole("prefill-0", "decode")), 100.0, ("no such worker",))
    log.add(decision(), 101.0)
    reply = answered(log, "/v1/planner/decisions?last=1&changes=true").json()
    assert reply["enabled"]
    (one,) = reply["decisions"]
    assert one["actions"] == [{"action": "switch", "name": "prefill-0", "role": "decode"}]
    assert one["failed"] == ["no such worker"]
    assert one["seen"] == {"backlog": 3.0}
    assert one["alternatives"][0]["ttft_s"] is None  # never
    text = "\n".join(lines(reply["decisions"], True))
    assert "prefill-0 -> decode" in text
    assert "TTFT never" in text
    assert answered(log, "/v1/planner/decisions?last=0").status_code == 400
    assert answered(None, "/v1/planner/decisions").json() == {"enabled": False, "decisions": []}


def test_decisions_are_counted_for_prometheus() -> None:
    log = DecisionLog(10)
    log.add(decision(AddWorkers("decode", 2)), 100.0)
    page = answered(log, "/metrics").text
    for line in (
        'slipstream:fleet_workers{role="prefill"} 2.0',
        'slipstream:planner_decisions_total{reason="slo"} 1.0',
        'slipstream:planner_actions_total{action="add"} 2.0',
        'slipstream:planner_seen{figure="backlog"} 3.0',
        'slipstream:planner_predicted_attainment{num_decode="2",num_prefill="1"} 0.95',
    ):
        assert line in page


def test_how_long_a_planner_is_held_back_counts_from_the_first_hold_in_a_row() -> None:
    log = DecisionLog(10)
    for unix_s, reason in ((100.0, "changing"), (130.0, "backed_off"), (190.0, "best_there_is")):
        log.add(replace(decision(), reason=reason), unix_s)
    assert 'slipstream:planner_held_seconds{reason="best_there_is"} 90.0' in answered(log, "/metrics").text
    log.add(replace(decision(), reason="holds"), 200.0)
    assert 'slipstream:planner_held_seconds{reason="holds"} 0.0' in answered(log, "/metrics").text
    log.add(replace(decision(), reason="changing"), 300.0)
    assert log.held_s("") == 0.0


def test_a_planner_of_ones_own_is_a_class_in_the_configuration() -> None:
    config = PlannerConfig(class_name=f"{__name__}.Scripted")
    planner = load_planner(config)
    assert type(planner).__name__ == "Scripted"
    assert isinstance(load_planner(PlannerConfig()), SloPlanner)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("class_name", "no_such_module.Planner", "cannot import no_such_module"),
        ("class_name", f"{__name__}.Missing", "has no class Missing"),
        ("class_name", f"{__name__}.NoPlanner", "has no method decide"),
        ("class_name", "Planner", "must be module.Class, got 'Planner'"),
        ("target_attainment", 1.5, "must be over 0 and at most 1, got 1.5"),
        ("interval_s", 0, "must be over 0 and finite, got 0"),
        ("max_workers", 1, "must be at least 3 or null, got 1"),
        ("targt", 0.9, "unknown setting"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, key: str, value: object, said: str) -> None:
    root = Path(__file__).resolve().parents[3]
    model = root / "models" / "slipstream-demo"
    planner = {"min_decode": 2, "min_prefill": 1, key: value}
    path = tmp_path / "c.yaml"
    path.write_text(f"model: {{path: {model}}}\nplanner: {json.dumps(planner)}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert f"planner.{key}" in str(caught.value)
    assert said in str(caught.value)


def test_without_a_cluster_the_command_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["planner", "--name", "nowhere"], env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert result.exit_code == 1
    assert "nowhere" in result.output


def test_signals_survive_json() -> None:
    dispatcher = Dispatcher(DispatchConfig())
    signals = dispatcher.signals(5.0, "router")
    adapter = TypeAdapter(Signals)
    assert adapter.validate_json(adapter.dump_json(signals)) == signals
