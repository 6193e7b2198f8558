"""One cluster with models of each kind: a native family, experts and a latent that transformers computes as a flat
batch, recurrent layers beside attention, and attention of its own. Clients go on while models come and go, and
processes die. Every answer is that of the model alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from slipstream.cluster.cli import main as cli
from tests.e2e.conftest import SMALL
from tests.support.e2e.observation import Scrape, moved, wait_until_at_rest
from tests.support.e2e.reference import Reference
from tests.support.e2e.serving_cluster import DEMO_MODEL, ServingCluster
from tests.support.e2e.streams import BackgroundStream, client_of, streaming
from tests.support.workers.general_models import build_general_model
from tests.support.workers.tiny_models import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE, byte_tokenizer

LONG = "A long one, which a prefill worker computes, so that its pages and states go to a decode worker."
PROMPTS = ("def read(path):", LONG, "The model says 42 to")
NUM_TOKENS = 40
PAUSE_S = 2.0  # of each client after an answer, so that the workers that start get their share of the cores
NUM_TRIES = 4  # to kill a worker before its answer ends
ADDED = "falcon"  # while the others serve
# Pages and states go from the prefill to the decode worker of one model.
POOLS: dict[str, dict[str, Any]] = {
    "demo": {},
    "deepseek": {},
    "next": {"prefill": {"replicas": 1}, "engine": {"page_tokens": 8}},
}
TOKENIZER: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
}
GENERAL: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek": ("deepseek_v3", {}),
    "next": ("qwen3_next", {}),
    "falcon": ("falcon", {"alibi": True, "new_decoder_architecture": False, "num_kv_heads": 1}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    dirs = {"demo": DEMO_MODEL}
    for name, (kind, settings) in GENERAL.items():
        dirs[name] = build_general_model(kind, folder / name, **TOKENIZER, **settings)
        byte_tokenizer().save_pretrained(dirs[name])
    return dirs


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> dict[str, dict[str, str]]:
    """What each model says to each prompt, according to `generate` of transformers."""
    references = {name: Reference(path) for name, path in models.items()}
    return {
        name: {prompt: reference.text(reference.encode(prompt), NUM_TOKENS) for prompt in PROMPTS}
        for name, reference in references.items()
    }


class Client:
    """Asks a model for one answer after the other, with the openai client, and compares each."""

    def __init__(self, cluster: ServingCluster, model: str, expected: dict[str, str]) -> None:
        self._cluster = cluster
        self.model = model
        self._expected = expected
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.num_right = 0
        self.failures: list[str] = []

    def stream(self, prompt: str) -> BackgroundStream:
        return BackgroundStream(self._cluster, prompt, NUM_TOKENS, **self._fields)

    @property
    def _fields(self) -> dict[str, Any]:
        special_ids = range(9) if self.model == "demo" else range(256, VOCAB_SIZE)
        return {"model": self.model, "logit_bias": {str(token_id): -100 for token_id in special_ids}}

    def _run(self) -> None:
        with client_of(self._cluster) as client:
            while not self._ends.is_set():
                for prompt, expected in self._expected.items():
                    self._ask(client, prompt, expected)
                    self._ends.wait(PAUSE_S)

    def _ask(self, client: openai.OpenAI, prompt: str, expected: str) -> None:
        asked = {**self._fields, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0}
        try:
            with client.completions.create(stream=True, **asked) as chunks:
                text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
        except (openai.OpenAIError, httpx.HTTPError) as error:
            self.failures.append(f"{self.model}: {error!r}")
            return
        if text == expected:
            self.num_right += 1
        else:
            self.failures.append(f"{self.model}: {text!r} instead of {expected!r}")

    @contextmanager
    def asking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ends.set()
            self._thread.join()


def command(cluster: ServingCluster, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", cli.__module__, *arguments],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def model_names(cluster: ServingCluster) -> list[str]:
    return [model["id"] for model in json.loads(cluster.get("/v1/models")[1])["data"]]


def worker_of(cluster: ServingCluster, model: str, role: str = "decode") -> str:
    """The first one."""
    state = cluster.state
    assert state is not None
    return next(member.name for member in state.members if (member.model, member.role) == (model, role))


def kill_while_they_stream(cluster: ServingCluster, clients: list[Client], expected: dict[str, dict[str, str]]) -> None:
    """The decode worker of each of these models, in the middle of an answer to the long prompt; then the router."""
    # An answer takes tenths of a second. On a busy machine it may have ended when its worker is killed.
    assert any(kill_decode_workers(cluster, clients, expected) > 0 for _ in range(NUM_TRIES))
    old = cluster.pids("router")
    os.kill(old[0], signal.SIGKILL)
    cluster.wait_until_restarted("router", old)


def kill_decode_workers(cluster: ServingCluster, clients: list[Client], expected: dict[str, dict[str, str]]) -> float:
    """So many requests were started again."""
    before = Scrape.of(cluster)
    streams = {client.model: client.stream(LONG) for client in clients}
    old = {name: cluster.pids(name) for name in (worker_of(cluster, model) for model in streams)}
    with streaming(list(streams.values())):
        for stream in streams.values():
            stream.wait_for_pieces(1)
        for pids in old.values():
            os.kill(pids[0], signal.SIGKILL)
        assert {model: stream.join() for model, stream in streams.items()} == {
            model: expected[model][LONG] for model in streams
        }
    num_retries = moved(before, Scrape.of(cluster), "slipstream:retries_total")
    for name, pids in old.items():
        cluster.wait_until_restarted(name, pids)
    return num_retries


def test_clients_of_all_models_get_right_answers_while_models_and_processes_come_and_go(
    models: dict[str, Path], expected: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    entries = [{"name": name, "path": str(models[name]), **pools} for name, pools in POOLS.items()]
    added = tmp_path / "falcon.yaml"
    added.write_text(yaml.safe_dump({"name": ADDED, "path": str(models[ADDED]), "aliases": ["bird"]}))
    with ServingCluster(tmp_path / "cluster", {**SMALL, "name": "e2e-models", "models": entries}) as cluster:
        demo, deepseek, hybrid, falcon = (
            Client(cluster, name, expected[name]) for name in ("demo", "deepseek", "next", ADDED)
        )
        with demo.asking(), deepseek.asking(), hybrid.asking():
            assert command(cluster, "models", "add", str(added)) == "added falcon\n"
            assert model_names(cluster) == [*POOLS, ADDED, "bird"]
            with falcon.asking():
                kill_while_they_stream(cluster, [hybrid, falcon], expected)
                worker = worker_of(cluster, "next", "prefill")
                cluster.wait_for(lambda: cluster.member(worker).state == "ready", 60.0)  # at the new router
                pids = cluster.pids(worker)
                assert "ready" in command(cluster, "move", worker, "deepseek", "--role", "decode")
                assert (cluster.member(worker).model, cluster.pids(worker)) == ("deepseek", pids)
            last = falcon.stream(PROMPTS[0])
            with streaming([last]):
                last.wait_for_pieces(1)
                assert command(cluster, "models", "remove", ADDED) == "removed falcon\n"
                assert last.join() == expected[ADDED][PROMPTS[0]]
            status, body = cluster.get(f"/v1/models/{ADDED}")
            assert (status, "'demo', 'deepseek', 'next'" in body.decode()) == (404, True)
            assert ADDED not in command(cluster, "models", "list")
        assert [*demo.failures, *deepseek.failures, *hybrid.failures, *falcon.failures] == []
        assert min(one.num_right for one in (demo, deepseek, hybrid, falcon)) >= len(PROMPTS)
        wait_until_at_rest(cluster)
        state = cluster.state
        assert state is not None
        assert [model.model for model in state.models] == list(POOLS)
