"""The whole path once: a command, a stream of text, and the end."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from tests.support.e2e.serving_cluster import ServingCluster, command_of


def stream(serving: ServingCluster, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of an answer, without the closing `[DONE]`."""
    request = urllib.request.Request(
        serving.base_url + path,
        data=json.dumps({"stream": True, **body}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        lines = [line.decode().strip() for line in answer]
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"])


def test_a_ready_cluster_says_so(cluster: ServingCluster) -> None:
    assert cluster.get("/health/live")[0] == 200
    assert cluster.get("/health/ready")[0] == 200
    status, body = cluster.get("/v1/models")
    assert status == 200
    assert [model["id"] for model in json.loads(body)["data"]] == ["slipstream-demo"]


def test_ray_runs_without_its_dashboard_and_its_server_for_clients(cluster: ServingCluster) -> None:
    commands = [command_of(process) for process in cluster.processes()]
    assert any("raylet" in command for command in commands)
    assert not [command for command in commands if "dashboard.py" in command or "ray.util.client" in command]


def test_a_chat_completion_streams_text(cluster: ServingCluster) -> None:
    messages = [{"role": "user", "content": "Write a function that reads a file."}]
    events = stream(
        cluster,
        "/v1/chat/completions",
        {"model": "slipstream-demo", "messages": messages, "max_tokens": 16, "temperature": 0},
    )
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert text.strip()
    assert events[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_short_and_long_prompts_are_answered_the_same_every_time(cluster: ServingCluster) -> None:
    for prompt in ("def main():", "import os\nimport sys\n\n\n" * 20 + "def main():"):
        body = {"model": "slipstream-demo", "prompt": prompt, "max_tokens": 12, "temperature": 0}
        first, second = (text_of(stream(cluster, "/v1/completions", body)) for _ in range(2))
        assert first
        assert first == second
