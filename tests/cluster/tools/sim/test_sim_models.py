"""`slipstream sim` with several models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.cli import main
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock
from slipstream.cluster.tools.sim.sim_config import SimConfigError, load_sim_config
from slipstream.cluster.tools.sim.sim_fleet import SimModelFleet
from slipstream.cluster.tools.sim.sim_run import find_profile
from slipstream.cluster.tools.sim.sim_world import Machines, World, WorldConfig
from slipstream.router.config.router_config import DispatchConfig

MODELS = """
models:
  - {name: chat, workload: "chat,rate=2", price_per_hour: 2}
  - {name: code, workload: "isl=500,osl=20,rate=1", price_per_hour: 3}
seconds: 10
"""


def test_a_file_with_models_reports_each_of_them_in_every_division(tmp_path: Path) -> None:
    file, out = tmp_path / "sim.yaml", tmp_path / "out.json"
    file.write_text(MODELS)
    result = CliRunner().invoke(main, ["sim", str(file), "-s", "all 3", "-q", "--json", str(out)])
    assert result.exit_code == 0, result.output
    runs = json.loads(out.read_text())["runs"]
    assert [run["name"] for run in runs] == ["1 colocated + 2 colocated", "2 colocated + 1 colocated"]
    for run, price in zip(runs, (2 + 2 * 3, 2 * 2 + 3), strict=True):
        assert set(run["models"]) == {"chat", "code"}
        seconds = run["models"]["chat"]["simulated_s"]
        assert run["worker_hours"] == pytest.approx(3 * seconds / 3600)
        assert run["cost"] == pytest.approx(price * seconds / 3600)
    assert "cost per million tokens" in result.output


def test_a_common_workload_gives_each_model_the_requests_that_name_it(tmp_path: Path) -> None:
    file, out, trace = tmp_path / "sim.yaml", tmp_path / "out.json", tmp_path / "trace.jsonl"
    rows = [{"timestamp": 50 * n, "input_length": 50, "output_length": 5, "model": "aab"[n % 3]} for n in range(30)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    file.write_text("models: [{name: a}, {name: b}]\n")
    words = ["sim", str(file), "--workload", str(trace), "-q", "--json", str(out)]
    assert CliRunner().invoke(main, words).exit_code == 0
    (run,) = json.loads(out.read_text())["runs"]
    assert {name: one["num_requests"] for name, one in run["models"].items()} == {"a": 20, "b": 10}
    file.write_text("models: [{name: a}, {name: c}]\n")
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "'b' is none of the models a, c" in result.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: [{name: a}]", "models must be at least two"),
        ("models: [{name: a}, {name: a}]", "names of their own, got 'a' 2 times"),
        ("models: [{name: a}, {name: b, weight: 0}]", "weight must be over 0"),
        ('models: [{name: a}, {name: b}]\nsplits: ["4"]', "a split of 2 models is such as 1:3\\+4"),
        ('models: [{name: a}, {name: b}]\nsplits: ["all 1"]', "2 models need at least as many workers"),
    ],
)
def test_models_that_cannot_be_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "sim.yaml"
    file.write_text(text)
    with pytest.raises(SimConfigError, match=said):
        load_sim_config(file, {})


def test_a_worker_moves_to_another_model_with_its_name() -> None:
    clock, machines = VirtualClock(), Machines()
    profile = find_profile("h200-llama-8b")
    worlds = {
        name: World(WorldConfig(DispatchConfig(), profile, 16, False), clock, machines) for name in ("chat", "code")
    }
    fleet = SimModelFleet(worlds, 3)
    fleet.of_model("chat").start("decode", 2)
    with pytest.raises(StopIteration):
        fleet.move("w1", "code", "prefill").send(None)
    (moving,) = fleet.of_model("code").state().members
    assert (moving.name, moving.role, moving.state, moving.model) == ("w1", "prefill", "draining", "code")
    assert [one.name for one in fleet.of_model("chat").state().members] == ["w0"]
    while clock.now_s < profile.model_swap_s:
        clock.step()
    assert [worker.hello.role for worker in worlds["code"].workers.values()] == ["prefill"]
    assert [worker.name for worker in worlds["chat"].workers.values()] == ["w0"]
    assert fleet.of_model("code").state().max_members == 2
    with pytest.raises(FleetError, match="there is no model draft"):
        fleet.move("w1", "draft", "decode").send(None)
