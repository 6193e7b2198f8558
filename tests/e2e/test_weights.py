"""A cluster whose model is on a hub: downloaded, served, updated to a further commit, and kept when the hub fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import SMALL, TIMEOUT_S
from tests.support.e2e.altered_models import perturbed_model
from tests.support.e2e.serving_cluster import DEMO_MODEL, ServingCluster
from tests.support.e2e.streams import BackgroundStream, client_of, complete, prompt_of, streaming
from tests.support.router.hub_server import HubRepository, files_of, hub

pytestmark = pytest.mark.timeout(TIMEOUT_S)

MODEL = "org/demo"
SETTINGS: dict[str, Any] = {
    **SMALL,
    "name": "e2e-weights",
    "model": {"path": f"hf://{MODEL}"},
    "prefill": {"replicas": 0},
}


def update(serving: ServingCluster) -> subprocess.CompletedProcess[str]:
    """To what the address leads to now."""
    command = [sys.executable, "-m", "slipstream.cluster.cli", "update", str(serving.config_path)]
    return subprocess.run(command, env=serving.environment, capture_output=True, text=True, check=False)


def test_a_model_of_a_hub_is_served_and_updated_and_outlives_its_source(tmp_path: Path) -> None:
    repository = HubRepository(token="hf_right")
    first = repository.commit(files_of(DEMO_MODEL))
    with hub({MODEL: repository}) as server:
        serving = ServingCluster(tmp_path / "cluster", SETTINGS)
        serving.environment |= {"HF_ENDPOINT": server.url, "HF_TOKEN": "hf_right", "HF_HOME": str(tmp_path / "hf")}
        server.faults.cuts = [2_000_000, 100_000]
        with serving, client_of(serving) as client:
            prompt = prompt_of(20)
            before = complete(client, prompt, 60, model=MODEL)
            assert f"fetched hf://{MODEL} into {tmp_path}" in serving.output
            assert server.num_bytes["model.safetensors"] == (DEMO_MODEL / "model.safetensors").stat().st_size

            repository.token = "hf_other"
            refused = update(serving)
            assert refused.returncode == 1
            assert "model.path: hf://org/demo: the hub refuses the token" in refused.stderr
            assert complete(client, prompt, 60, model=MODEL) == before

            repository.token = "hf_right"
            second = repository.commit(files_of(perturbed_model(tmp_path / "perturbed")))
            stream = BackgroundStream(serving, prompt_of(30), 300, model=MODEL)
            with streaming([stream]):
                done = update(serving)
                assert done.returncode == 0, done.stdout + done.stderr
                assert f"fetching hf://{MODEL}: " in done.stderr
            assert stream.error is None
            assert stream.finishes == ["length"]
            assert complete(client, prompt, 60, model=MODEL) != before

            server.faults.status = 503
            failed = update(serving)
            assert failed.returncode == 1
            assert "model.path: hf://org/demo: the hub answers 503" in failed.stderr
            complete(client, prompt, 60, model=MODEL)
            versions = tmp_path / "cluster" / "cache" / "slipstream" / "models" / "hf--org--demo"
            assert sorted(path.name for path in versions.iterdir() if path.is_dir()) == sorted([first, second])
