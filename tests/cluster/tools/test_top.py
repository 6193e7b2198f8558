"""Frames of `slipstream top` from recorded state."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.cluster.tools.top.top_frame import bar, frame


def worker(name: str, role: str, used: int, model: str = "m") -> dict[str, Any]:
    return {
        "peer": {"name": name, "epoch": 1},
        "role": role,
        "model": model,
        "version": "",
        "draining": False,
        "num_requests": used,
        "max_slots": 10,
        "free_slots": 10 - used,
        "num_pages": 100,
        "free_pages": 100 - used,
    }


def cluster(**router: Any) -> dict[str, Any]:
    workers = [worker("decode-0", "decode", 2), worker("decode-1", "decode", 9), worker("x-0", "prefill", 0, "other")]
    shown = {"num_running": 11, "num_waiting": 3, "queue_depth": {"0": 3}, "workers": workers}
    spread = {"count": 4, "p50": 0.02, "p99": 0.5}
    window = {"span_s": 10.0, "num_arrivals": 20, "num_refused": 1, "num_failed": 0, "ttft_s": spread, "itl_s": spread}
    return {"name": "c", "phase": "ready", "router": shown | router, "signals": {"short": window}}


def test_a_frame_has_the_load_the_queue_the_levels_and_every_worker() -> None:
    text = "\n".join(frame(cluster(), columns=200))
    assert "11 running, 3 waiting" in text
    assert "class 0: 3" in text
    assert "2.0 req/s, TTFT p50 0.02 p99 0.50 s, ITL p50 20 p99 500 ms, 1 refused" in text
    assert "[#########.]   90%" in text


def test_workers_are_sorted_and_filtered() -> None:
    by_load = [line.split()[0] for line in frame(cluster(), columns=200, order="load") if "-" in line.split(" ")[0]]
    assert by_load == ["decode-1", "decode-0", "x-0"]
    of_model = "\n".join(frame(cluster(), columns=200, model="other"))
    assert "x-0" in of_model
    assert "decode-0" not in of_model


def test_a_narrow_terminal_gets_no_longer_lines() -> None:
    assert max(map(len, frame(cluster(), columns=40))) <= 40


def test_without_a_router_a_frame_says_so() -> None:
    assert frame({"name": "c", "phase": "ready", "router": None}, columns=80) == [
        "c: ready, the router does not answer now"
    ]


def test_names_of_others_cannot_control_the_terminal() -> None:
    hostile = worker("\x1b[2Jboo", "decode", 1)
    assert "\x1b" not in "".join(frame(cluster(workers=[hostile]), columns=200))


def test_a_bar_stays_within_its_ends() -> None:
    assert (bar(-1), bar(2)) == ("[..........]", "[##########]")


def test_a_frame_has_the_longest_queues_of_tenants_and_the_decisions_of_the_planner() -> None:
    decision = {
        "unix_s": 0,
        "reason": "load",
        "why": "too slow",
        "actions": [{"action": "add", "count": 1, "role": "decode"}],
    }
    holds = {"unix_s": 0, "reason": "holds", "why": "enough", "actions": [], "model": "m"}
    waiting = {f"t{number}": number for number in range(1, 11)}
    text = "\n".join(frame(cluster(longest_queues=waiting) | {"decisions": [decision, holds]}, columns=200))
    assert "queue by tenant  t10: 10, t9: 9" in text
    assert "t2: 2" not in text
    assert "+1 decode: too slow" in text
    assert "m: holds: enough" in text


@pytest.mark.parametrize(("waiting", "shown"), [({"": 5}, []), ({"": 5, "a": 6}, ["queue by tenant  a: 6, -: 5"])])
def test_requests_without_a_tenant_have_no_queue_of_their_own_unless_there_are_others(
    waiting: dict[str, int], shown: list[str]
) -> None:
    lines = frame(cluster(longest_queues=waiting), columns=200)
    assert [line for line in lines if line.startswith("queue by tenant")] == shown


def test_tensor_models_have_their_state_and_their_instances() -> None:
    models = [
        {"name": "echo", "version": "1", "state": "READY", "reason": ""},
        {"name": "rag", "version": "2", "state": "UNAVAILABLE", "reason": "no file"},
    ]
    repository = {"models": models, "instances": [{"model": "echo", "version": "1", "count": 3}]}
    text = "\n".join(frame(cluster(repository=repository), columns=200))
    assert "echo          1        READY                3" in text
    assert "rag           2        UNAVAILABLE no file  -" in text
