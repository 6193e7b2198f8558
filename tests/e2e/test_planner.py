"""A planner in a running cluster: one of our own, whose decisions are carried out and can be asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.conftest import SMALL
from tests.e2e.test_smoke import stream, text_of
from tests.support.e2e.serving_cluster import ServingCluster

OWN = '''
from slipstream.cluster.planner.planner_decision import PlannerDecision, SwitchRole


class Once:
    """Wants no prefill worker."""

    def __init__(self, config):
        self.num_looks = 0

    def decide(self, signals, fleet, now):
        self.num_looks += 1
        if self.num_looks == 1:
            raise RuntimeError("the first look finds a bug")
        actions = ()
        if fleet.num_prefill == 1 and not fleet.is_changing:
            actions = (SwitchRole("prefill-0", "decode"),)
        seen = (("requests_per_s", signals.short.offered_per_s), ("workers", float(len(signals.workers))))
        return PlannerDecision(now, "slo", "decode workers are enough", 0, 2, actions, (), seen)
'''


def roles(serving: ServingCluster) -> list[tuple[str, str]]:
    workers = json.loads(serving.get("/cluster/status")[1])["workers"]
    return sorted((worker["peer"]["name"], worker["role"]) for worker in workers)


def planner_says(serving: ServingCluster) -> dict[str, Any]:
    command = [sys.executable, "-m", "slipstream.cluster.cli", "planner", "--changes", "--json"]
    done = subprocess.run(command, env=serving.environment, capture_output=True, text=True, check=True)
    decisions: dict[str, Any] = json.loads(done.stdout)
    return decisions


def test_a_planner_of_ones_own_switches_a_role_and_its_decisions_can_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "own_planner.py").write_text(OWN)
    planner = {"enabled": True, "interval_s": 0.5, "class_name": "own_planner.Once"}
    serving = ServingCluster(tmp_path / "c", {**SMALL, "planner": planner})
    serving.environment["PYTHONPATH"] = str(tmp_path)
    with serving:
        wanted = [("decode-0", "decode"), ("prefill-0", "decode")]
        serving.wait_for(lambda: roles(serving) == wanted, 60.0)
        events = stream(serving, "/v1/completions", {"model": "slipstream-demo", "prompt": "def f(", "max_tokens": 8})
        signals = json.loads(serving.get("/cluster/signals")[1])  # now: it is among those of the last 10 s
        assert text_of(events)
        (change,) = planner_says(serving)["decisions"]
        assert change["actions"] == [{"action": "switch", "name": "prefill-0", "role": "decode"}]
        assert change["failed"] == []
        assert change["seen"]["workers"] == 2.0
        assert {worker["name"] for worker in signals["workers"]} == {"decode-0", "prefill-0"}
        assert signals["short"]["num_arrivals"] >= 1
        serving.wait_for(lambda: "planner: decode workers are enough" in serving.output, 60.0)
