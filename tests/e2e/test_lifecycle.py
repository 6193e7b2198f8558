"""How a cluster starts, stops, and survives the death of its processes."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import MakeCluster
from tests.e2e.serving_cluster import DEMO_MODEL, END_TIMEOUT_S, ServingCluster

BODY = {"model": "slipstream-demo", "prompt": "def read(path):\n" * 8, "temperature": 0, "ignore_eos": True}


def complete(serving: ServingCluster, max_tokens: int = 4) -> str:
    request = urllib.request.Request(
        serving.base_url + "/v1/completions",
        data=json.dumps({**BODY, "max_tokens": max_tokens}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.loads(answer.read())["choices"][0]["text"])


def test_a_second_ctrl_c_does_not_wait_for_running_streams(make_cluster: MakeCluster) -> None:
    serving = make_cluster()
    serving.start()
    cut_off: list[Exception] = []

    def stream() -> None:
        try:
            complete(serving, 3000)
        except (OSError, http.client.HTTPException) as error:
            cut_off.append(error)

    client = threading.Thread(target=stream)
    client.start()
    serving.wait_for(lambda: b"vllm:num_requests_running 0" not in serving.get("/metrics")[1], 30)
    serving.interrupt()
    serving.wait_for(lambda: "draining" in serving.output, 30)
    serving.interrupt()
    assert serving.wait() == 0
    client.join(30)
    assert cut_off
    assert "stopping at once" in serving.output
    assert serving.left_behind(0.0) == []


def test_a_killed_driver_leaves_nothing(make_cluster: MakeCluster) -> None:
    serving = make_cluster()
    serving.start()
    assert len(serving.processes()) >= 5
    os.kill(serving.pid, signal.SIGKILL)
    serving.wait()
    assert serving.left_behind(END_TIMEOUT_S) == []


def test_a_driver_killed_together_with_its_reaper_takes_ray_and_workers_along(make_cluster: MakeCluster) -> None:
    serving = make_cluster()
    serving.start()
    processes = serving.processes()
    (reaper,) = (process for process in processes if "slipstream.cluster.reaper" in process.cmdline())
    reaper.kill()
    os.kill(serving.pid, signal.SIGKILL)
    serving.wait()
    # Ray's agents, which only the reaper ends at once, notice by themselves after about a minute.
    assert serving.left_behind(END_TIMEOUT_S, but="Agent") == []


def test_a_cluster_whose_ray_dies_ends_at_once_and_leaves_nothing(make_cluster: MakeCluster) -> None:
    serving = make_cluster()
    serving.start()
    (gcs,) = (process for process in serving.processes() if process.name() == "gcs_server")
    gcs.kill()
    assert serving.wait() == 1
    assert "Ray has ended under the cluster" in serving.output
    assert serving.left_behind(END_TIMEOUT_S) == []
    assert serving.state is None


@pytest.mark.parametrize("stop", [ServingCluster.interrupt, ServingCluster.terminate])
def test_a_signal_during_the_start_stops_it_and_leaves_nothing(
    make_cluster: MakeCluster, stop: Callable[[ServingCluster], None]
) -> None:
    serving = make_cluster()
    serving.launch()
    serving.wait_for(lambda: "Ray runs" in serving.output, 60)
    serving.processes()
    stop(serving)
    assert serving.wait() == 130
    assert serving.left_behind(0.0) == []
    assert "Traceback" not in serving.output


def test_a_model_that_cannot_be_loaded_is_one_sentence_and_leaves_nothing(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(DEMO_MODEL, broken)
    config = json.loads((broken / "config.json").read_text())
    config["hidden_size"] = 3 * config["hidden_size"]
    (broken / "config.json").write_text(json.dumps(config))
    serving = make_cluster(model_dir=broken)
    serving.launch()
    serving.wait_for_end(90)
    assert serving.wait() == 1
    sentences = [line for line in serving.output.splitlines() if line.startswith("slipstream: ")]
    assert len(sentences) == 1
    assert "-0: " in sentences[0]
    assert "Traceback" not in serving.output
    assert serving.left_behind(0.0) == []
