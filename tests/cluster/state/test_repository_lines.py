"""What `slipstream status` says about a repository."""

from __future__ import annotations

from typing import Any

from slipstream.cluster.state.cluster_state import ClusterState, MemberStatus
from slipstream.cluster.state.cluster_status import describe
from slipstream.cluster.state.repository_lines import MAX_FAILED, repository_lines, start_lines


def state() -> ClusterState:
    return ClusterState(
        name="tensors",
        pid=1,
        started=0.0,
        config="c.yaml",
        model="",
        phase="ready",
        url="http://127.0.0.1:8000",
        grpc_url="grpc://127.0.0.1:8001",
        tensor_metrics_url="http://127.0.0.1:8002",
        members=[MemberStatus("router", "router", "ready"), MemberStatus("instances-0", "instances", "ready")],
    )


def model(name: str, phase: str, reason: str = "") -> dict[str, Any]:
    return {"name": name, "version": "1" if phase else "", "state": phase, "reason": reason}


ROUTER: dict[str, Any] = {
    "num_running": 0,
    "num_waiting": 0,
    "workers": [],
    "repository": {
        "ready": False,
        "models": [
            model("a", "READY"),
            model("b", "READY"),
            model("broken", "UNAVAILABLE", "Internal: ValueError: no\n\nAt:\n  model.py(1): <module>\n"),
            model("gone", "UNAVAILABLE", "unloaded"),
            model("never loaded", ""),
        ],
    },
}


def test_a_cluster_with_a_repository_alone_shows_its_models_and_no_pools() -> None:
    lines = list(describe(state(), ROUTER))
    assert lines[:3] == [
        "tensors: ready, a model repository at http://127.0.0.1:8000, 0 running, 0 waiting",
        "  repository: 2 ready, 2 unavailable; gRPC at 127.0.0.1:8001; metrics at http://127.0.0.1:8002/metrics",
        "    broken version 1: Internal: ValueError: no",
    ]
    assert not any("decode" in line for line in lines)
    assert any("instances-0" in line for line in lines)


def test_the_start_names_the_models_that_have_failed() -> None:
    assert list(start_lines(ROUTER["repository"])) == [
        "the models are loaded, but for these:",
        "  broken version 1: Internal: ValueError: no",
    ]
    assert list(start_lines({"models": [model("a", "READY")]})) == ["the models are loaded"]


def test_only_some_of_many_failed_models_are_named() -> None:
    models = [model(f"m{n}", "UNAVAILABLE", "broken") for n in range(MAX_FAILED + 3)]
    lines = list(repository_lines(state(), {"models": models}))
    assert len(lines) == 1 + MAX_FAILED + 1
    assert lines[-1] == "    and 3 more"


def test_a_cluster_without_models_has_none_in_its_state() -> None:
    assert state().models == []
    assert state().public()["models"] == []


def test_the_only_model_beside_a_repository_can_be_forgotten() -> None:
    served = ClusterState(name="c", pid=1, started=0.0, config="c.yaml", model="m", version="1", wanted={"decode": 2})
    served.forget_model("m")
    assert (served.models, served.version, served.wanted) == ([], "", {})


def test_a_model_that_serves_although_its_reload_has_failed_is_ready_and_named() -> None:
    reloaded = model("a", "READY", "not reloaded: no field named 'x'")
    lines = list(repository_lines(state(), {"models": [reloaded, model("b", "READY")]}))
    assert lines[0].startswith("  repository: 2 ready; ")
    assert lines[1:] == ["    a version 1: not reloaded: no field named 'x'"]
