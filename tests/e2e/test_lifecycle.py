"""How a start ends that is interrupted or cannot succeed; `test_ends` has the ends of clusters that serve."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.e2e.conftest import MakeCluster
from tests.support.e2e.serving_cluster import DEMO_MODEL, ServingCluster

# One worker, without another one for prompts: what is tried here would be the same for each further process.
ONE_WORKER = {"prefill": {"replicas": 0}}


@pytest.mark.parametrize("stop", [ServingCluster.interrupt, ServingCluster.terminate])
def test_a_signal_during_the_start_stops_it_and_leaves_nothing(
    make_cluster: MakeCluster, stop: Callable[[ServingCluster], None]
) -> None:
    serving = make_cluster(ONE_WORKER)  # it still has to load torch when Ray runs
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
    weights = broken / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"].fill_(math.nan)  # which no header shows
    save_file(tensors, weights)
    serving = make_cluster(ONE_WORKER, model_dir=broken)
    serving.launch()
    serving.wait_for_end(90)
    assert serving.wait() == 1
    sentences = [line for line in serving.output.splitlines() if line.startswith("slipstream: ")]
    assert len(sentences) == 1
    assert "-0: " in sentences[0]
    assert "Traceback" not in serving.output
    assert serving.left_behind(0.0) == []
