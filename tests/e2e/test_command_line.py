"""The commands of operators on clusters that really run, and on models that cannot be served."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from slipstream.router.process.listening import here
from tests.e2e.conftest import SMALL
from tests.support.e2e.freezing import frozen
from tests.support.e2e.serving_cluster import DEMO_MODEL, ServingCluster
from tests.support.e2e.streams import BackgroundStream, client_of, complete, prompt_of, streaming

NUM_TOKENS = 300


def slipstream(serving: ServingCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as the user who started the cluster."""
    command = [sys.executable, "-m", "slipstream.cluster.cli", *arguments]
    return subprocess.run(
        command, env=serving.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )


@pytest.fixture
def two_clusters(tmp_path: Path) -> Iterator[list[ServingCluster]]:
    """Started at the same time, by the same user. The second has no worker for prefill, and listens everywhere at all
    interfaces."""
    all_interfaces = {
        "router": {**SMALL["router"], "http": {"host": "::"}, "admin": {"host": "::", "port": 0}, "worker_host": "::"},
        "admin_api": {"host": "::"},
    }
    settings = {"first": SMALL, "second": {**SMALL, "prefill": {"replicas": 0}, **all_interfaces}}
    clusters = [
        ServingCluster(tmp_path / name, {**settings[name], "name": name}, home=tmp_path / "home") for name in settings
    ]
    try:
        for serving in clusters:
            serving.launch()
        for serving in clusters:
            serving.wait_for(lambda serving=serving: is_ready(serving), 110)  # type: ignore[misc]
        yield clusters
    finally:
        for serving in clusters:
            serving.end()


def is_ready(serving: ServingCluster) -> bool:
    return serving.state is not None and serving.state.phase == "ready"


def drained_by(serving: ServingCluster, stop: Callable[[], Any]) -> None:
    """Whatever stops a cluster in order: streams that run end as they would have, and nothing is left of it."""
    serving.processes()
    with client_of(serving) as client:
        prompts = [prompt_of(20, variant=1), prompt_of(100, variant=2)]
        expected = [complete(client, prompt, NUM_TOKENS) for prompt in prompts]
        streams = [BackgroundStream(serving, prompt, NUM_TOKENS) for prompt in prompts]
        with streaming(streams):
            for stream in streams:
                stream.wait_for_pieces(3)
            with frozen(*serving.pids("decode-0")):  # they do not end before
                stop()
                serving.wait_for(lambda: "draining" in serving.output, 60)
            texts = [stream.join() for stream in streams]
    assert [stream.error for stream in streams] == [None, None]
    assert [stream.finishes for stream in streams] == [["length"], ["length"]]
    assert texts == expected
    assert serving.wait() == 0
    assert serving.left_behind(1.0) == []
    assert serving.state is None
    assert "Traceback" not in serving.output


def test_two_clusters_run_side_by_side_and_each_ends_in_order(two_clusters: list[ServingCluster]) -> None:
    """One by `slipstream down`, the other by Ctrl-C; the second goes on serving when the first is gone."""
    first, second = two_clusters
    states = json.loads(slipstream(first, "status", "--json").stdout)
    assert [state["name"] for state in states] == ["first", "second"]
    for serving, state, workers in zip(two_clusters, states, (["prefill-0", "decode-0"], ["decode-0"]), strict=True):
        assert state["url"] == serving.base_url
        assert state["pid"] == serving.pid
        members = [(member["name"], member["state"]) for member in state["members"]]
        assert members == [(name, "ready") for name in ("router", *workers)]
        assert all(psutil.pid_exists(pid) for member in state["members"] for pid in member["pids"])
    assert first.base_url != second.base_url
    assert second.base_url.startswith(f"http://{'[::1]' if here('::') == '::1' else '127.0.0.1'}:")
    with urllib.request.urlopen(f"http://127.0.0.1:{second.base_url.rpartition(':')[2]}/health/ready", timeout=30):
        pass
    assert slipstream(second, "scale", "--name", "second", "decode=1").returncode == 0  # over the operators' port
    shown = slipstream(first, "status", "second")
    assert shown.returncode == 0
    assert second.base_url in shown.stdout
    assert "decode-0" in shown.stdout
    assert first.base_url not in shown.stdout
    assert slipstream(first, "down").returncode == 2  # which one?
    taken = slipstream(first, "serve", str(second.config_path))
    assert taken.returncode == 2
    assert "a cluster named second runs already" in taken.stderr

    commands: list[subprocess.Popen[bytes]] = []

    def down() -> None:
        command = [sys.executable, "-m", "slipstream.cluster.cli", "down", "first"]
        commands.append(subprocess.Popen(command, env=first.environment, stdout=subprocess.DEVNULL))

    drained_by(first, down)
    assert commands[0].wait(30) == 0
    assert [state["name"] for state in json.loads(slipstream(first, "status", "--json").stdout)] == ["second"]
    assert slipstream(first, "status", "first").returncode == 1
    drained_by(second, second.interrupt)
    assert json.loads(slipstream(second, "status", "--json").stdout) == []


def truncate(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def break_header(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(b"\xff" * 8 + weights.read_bytes()[8:])


def break_config(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "llama", ')


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (shutil.rmtree, "no such directory"),
        (truncate, "truncated"),
        (break_header, "truncated or no safetensors file"),
        (break_config, "not valid JSON"),
        (lambda model: (model / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda model: (model / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    ],
    ids=["no directory", "truncated weights", "broken weights", "broken config", "no tokenizer", "no weights"],
)
def test_a_damaged_model_is_one_sentence_at_once(tmp_path: Path, damage: Callable[[Path], Any], complaint: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(DEMO_MODEL, model)
    damage(model)
    serving = ServingCluster(tmp_path / "cluster", SMALL, model_dir=model)
    serving.launch()
    assert serving.wait(60) == 2
    (sentence,) = serving.output.splitlines()
    assert sentence.startswith("slipstream: ")
    assert complaint in sentence
    assert str(model) in sentence
    assert serving.left_behind(0.0) == []
