"""A real router process and real mock workers, over real connections."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from slipstream.router.protocol.messages import pack_ids
from slipstream.workers.mock.output_policy import expected_token

MODEL_DIR = Path(__file__).parents[3] / "models" / "slipstream-demo"
TIMEOUT_S = 60.0


def start(*command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def end(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)
    return process.returncode


@pytest.fixture
def router(tmp_path: Path) -> Iterator[dict[str, str]]:
    program: dict[str, Any] = {
        "model": "m",
        "model_dir": str(MODEL_DIR),
        "token": "secret",
        "has_prefill_pool": True,
        "drain_grace_s": 0,
        "router": {"http": {"port": 0}, "admin": {"port": 0}, "dispatch": {"local_prefill_max_tokens": 32}},
    }
    path = tmp_path / "router.json"
    path.write_text(json.dumps(program))
    process = start("slipstream.router.main", "--config", str(path))
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())
    assert end(process) == 0


def test_short_and_long_prompts_get_their_expected_tokens_and_a_drain_ends_well(router: dict[str, str]) -> None:
    workers = start(
        "slipstream.workers.mock.main",
        *("--router", router["workers"], "--model", "m", "--set", "vocab_size=300"),
        SLIPSTREAM_WORKER_TOKEN="secret",
    )
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    try:
        with httpx.Client(base_url=router["http"], timeout=TIMEOUT_S) as client:
            while client.get("/health/ready").status_code != 200:
                assert workers.poll() is None
            for isl in (8, 200):
                prompt = [20 + i % 100 for i in range(isl)]
                body = {"model": "m", "prompt": prompt, "max_tokens": 6}
                answer = client.post("/v1/completions", json=body)
                assert answer.status_code == 200, answer.text
                expected = [expected_token(pack_ids(prompt), i, 300) for i in range(6)]
                assert answer.json()["choices"][0]["text"] == tokenizer.decode(expected)
    finally:
        assert end(workers) == 0


@pytest.mark.parametrize("has_cache", [True, False])
def test_a_conversation_over_two_workers_of_each_role_finds_its_own_kv(router: dict[str, str], has_cache: bool) -> None:
    workers = start(
        "slipstream.workers.mock.main",
        *("--router", router["workers"], "--model", "m", "--count", "2"),
        *("--set", f"prefix_caching={str(has_cache).lower()}", "--set", "vocab_size=300"),
        *("--set", "step_s=0.001", "--set", "prefill_token_s=0.0003"),  # so that a cached prefix is worth something
        SLIPSTREAM_WORKER_TOKEN="secret",
    )
    try:
        with httpx.Client(base_url=router["http"], timeout=TIMEOUT_S) as client:
            while client.get("/health/ready").status_code != 200:
                assert workers.poll() is None
            cached = []
            for turn in range(1, 6):
                for other in (turn, 50 + turn):  # others in between
                    client.post("/v1/completions", json={"model": "m", "prompt": [30 + other] * 90, "max_tokens": 2})
                prompt = [20 + i % 200 for i in range(100 * turn)]
                answer = client.post("/v1/completions", json={"model": "m", "prompt": prompt, "max_tokens": 4})
                assert answer.status_code == 200, answer.text
                cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
            # The router may hear of a page a few milliseconds late, but it expected it there anyway.
            assert cached == ([100 * turn // 16 * 16 for turn in range(5)] if has_cache else [0] * 5)
    finally:
        assert end(workers) == 0


def test_workers_that_are_drained_for_another_role_come_back_in_it_and_serve(router: dict[str, str]) -> None:
    workers = start(
        "slipstream.workers.mock.main",
        *("--router", router["workers"], "--model", "m", "--set", "vocab_size=300", "--set", "step_s=0.05"),
        SLIPSTREAM_WORKER_TOKEN="secret",
    )
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    try:
        with (
            httpx.Client(base_url=router["http"], timeout=TIMEOUT_S) as client,
            httpx.Client(base_url=router["admin"], timeout=TIMEOUT_S) as operator,
        ):

            def until(roles: dict[str, str]) -> dict[str, int]:
                """The epochs of the workers, when they have these roles and none of them drains."""
                while True:
                    assert workers.poll() is None
                    listed = operator.get("/cluster/status").json()["workers"]
                    if {one["peer"]["name"]: one["role"] for one in listed if not one["draining"]} == roles:
                        return {one["peer"]["name"]: one["peer"]["epoch"] for one in listed}

            def ask(prompt: list[int], num_tokens: int) -> None:
                answer = client.post("/v1/completions", json={"model": "m", "prompt": prompt, "max_tokens": num_tokens})
                assert answer.status_code == 200, answer.text
                expected = [expected_token(pack_ids(prompt), i, 300) for i in range(num_tokens)]
                assert answer.json()["choices"][0]["text"] == tokenizer.decode(expected)

            before = until({"mock-prefill-0": "prefill", "mock-decode-0": "decode"})
            with ThreadPoolExecutor() as pool:
                running = [pool.submit(ask, [20 + number] * length, 60) for number, length in enumerate((8, 200))]
                while operator.get("/cluster/status").json()["num_running"] < len(running):
                    assert not any(request.done() for request in running)
                for name, role in (("mock-decode-0", "prefill"), ("mock-prefill-0", "decode")):
                    drained = operator.post(f"/cluster/workers/{name}/drain", json={"next_role": role})
                    assert drained.status_code == 202, drained.text
                for request in running:
                    request.result()
            after = until({"mock-prefill-0": "decode", "mock-decode-0": "prefill"})
            assert all(after[name] > before[name] for name in before)
            ask([20 + i % 100 for i in range(200)], 6)  # over both, the other way round
            operator.post("/cluster/workers/mock-decode-0/drain")
            operator.post("/cluster/workers/mock-prefill-0/drain")
            assert workers.wait(TIMEOUT_S) == 0
    finally:
        assert end(workers) == 0


def test_a_wrong_secret_is_told(router: dict[str, str]) -> None:
    arguments = ["--router", router["workers"], "--model", "m", "--role", "decode"]
    process = subprocess.run(
        [sys.executable, "-m", "slipstream.workers.mock.main", *arguments],
        env={**os.environ, "SLIPSTREAM_WORKER_TOKEN": "wrong"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert process.returncode == 1
    assert "rejected" in process.stderr
    assert "Traceback" not in process.stderr
