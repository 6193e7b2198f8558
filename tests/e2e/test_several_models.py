"""One cluster with three models, whose clients go on while models come and go, and processes die: every answer is that
of its model alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from slipstream.cluster.cli import main as cli
from tests.e2e.conftest import SMALL
from tests.support.e2e.reference import Reference
from tests.support.e2e.serving_cluster import DEMO_MODEL, ServingCluster
from tests.support.e2e.streams import BackgroundStream

PROMPTS = ("def read(path):", "Once upon a time", "The model says 42 to")
NUM_TOKENS = 250
PAUSE_S = 0.05  # of each client after an answer, so that the workers that start get their share of the cores
SPECIAL_IDS = {"demo": range(9), "qwen": range(256, 259), "mistral": range(256, 259)}


def alone(model_dir: Path) -> dict[str, str]:
    """What a model says to each prompt, according to transformers."""
    reference = Reference(model_dir)
    return {prompt: reference.text(reference.encode(prompt), NUM_TOKENS) for prompt in PROMPTS}


class Client:
    """Asks a model for one answer after the other, and compares each."""

    def __init__(self, cluster: ServingCluster, model: str, expected: dict[str, str]) -> None:
        self._cluster = cluster
        self._model = model
        self._expected = expected
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.num_right = 0
        self.failures: list[str] = []

    def stream(self, prompt: str) -> BackgroundStream:
        bias = {str(token_id): -100 for token_id in SPECIAL_IDS[self._model]}
        return BackgroundStream(self._cluster, prompt, NUM_TOKENS, model=self._model, logit_bias=bias)

    def _run(self) -> None:
        while not self._ends.is_set():
            for prompt, expected in self._expected.items():
                stream = self.stream(prompt)
                stream.start()
                text = stream.join()
                if stream.error is not None:
                    self.failures.append(f"{self._model}: {stream.error}")
                elif text != expected:
                    self.failures.append(f"{self._model}: {text!r} instead of {expected!r}")
                else:
                    self.num_right += 1
                self._ends.wait(PAUSE_S)

    @contextmanager
    def asking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ends.set()
            self._thread.join()


def command(cluster: ServingCluster, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", cli.__module__, *arguments],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def model_names(cluster: ServingCluster) -> list[str]:
    return [model["id"] for model in json.loads(cluster.get("/v1/models")[1])["data"]]


def worker_of(cluster: ServingCluster, model: str) -> str:
    state = cluster.state
    assert state is not None
    return next(member.name for member in state.members if member.model == model)


@pytest.fixture(scope="module")
def models(tiny_model_dir: Callable[[str], Path]) -> dict[str, Path]:
    return {"demo": DEMO_MODEL, "qwen": tiny_model_dir("qwen3"), "mistral": tiny_model_dir("mistral")}


def test_clients_of_all_models_get_right_answers_while_models_and_processes_come_and_go(
    models: dict[str, Path], tmp_path: Path
) -> None:
    expected = {name: alone(path) for name, path in models.items()}
    settings = {
        **SMALL,
        "name": "e2e-models",
        "models": [
            {"name": "demo", "path": str(models["demo"]), "prefill": {"replicas": 1}},
            {"name": "qwen", "path": str(models["qwen"]), "engine": {"page_tokens": 8, "kv_cache_mib": 16}},
        ],
    }
    added = tmp_path / "mistral.yaml"
    added.write_text(yaml.safe_dump({"name": "mistral", "path": str(models["mistral"]), "aliases": ["mini"]}))
    with ServingCluster(tmp_path / "cluster", settings) as cluster:
        demo, qwen, mistral = (Client(cluster, name, expected[name]) for name in models)
        with demo.asking(), qwen.asking():
            assert command(cluster, "models", "add", str(added)) == "added mistral\n"
            assert model_names(cluster) == ["demo", "qwen", "mistral", "mini"]
            with mistral.asking():
                decode = [f"decode-{number}" for number in range(3)]
                assert {cluster.member(name).model for name in decode} == set(models)
                old = {name: cluster.pids(name) for name in (*decode, "router")}
                for name in decode:
                    os.kill(old[name][0], signal.SIGKILL)
                for name in decode:
                    cluster.wait_until_restarted(name, old[name])
                os.kill(old["router"][0], signal.SIGKILL)
                cluster.wait_until_restarted("router", old["router"])
                cluster.wait_for(lambda: cluster.member("prefill-0").state == "ready", 60.0)  # at the new router
                moved = command(cluster, "move", "prefill-0", "qwen", "--role", "decode")  # with the same process
                assert "ready" in moved
                assert (cluster.member("prefill-0").model, cluster.member("prefill-0").restarts) == ("qwen", 0)
            worker = worker_of(cluster, "qwen")
            pids = cluster.pids(worker)
            for model in ("mistral", "qwen"):  # meanwhile, the requests of a model without workers wait
                command(cluster, "move", worker, model)
                assert (cluster.member(worker).model, cluster.pids(worker)) == (model, pids)
            last = mistral.stream(PROMPTS[0])
            last.start()
            last.wait_for_pieces(1)
            assert command(cluster, "models", "remove", "mistral") == "removed mistral\n"
            assert last.join() == expected["mistral"][PROMPTS[0]]
            status, body = cluster.get("/v1/models/mistral")
            assert (status, "'demo', 'qwen'" in body.decode()) == (404, True)
            assert "mistral" not in command(cluster, "models", "list")
        assert [*demo.failures, *qwen.failures, *mistral.failures] == []
        assert min(demo.num_right, qwen.num_right, mistral.num_right) >= len(PROMPTS)
        state = cluster.state
        assert state is not None
        assert [model.model for model in state.models] == ["demo", "qwen"]
