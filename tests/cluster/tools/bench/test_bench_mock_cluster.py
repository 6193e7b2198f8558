"""`slipstream bench` on a real router with mock workers: exact lengths, a sweep, a profile that can be planned with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from slipstream.cluster.tools.bench.bench_command import bench_command
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile

MODEL_DIR = Path(__file__).resolve().parents[4] / "models" / "slipstream-demo"
TIMEOUT_S = 60.0


def start(*command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a router with a prefill and a decode worker."""
    config = tmp_path / "router.json"
    program = {"model": "m", "model_dir": str(MODEL_DIR), "token": "secret", "has_prefill_pool": True}
    config.write_text(json.dumps({**program, "router": {"http": {"port": 0}}}))
    router = start("slipstream.router.main", "--config", str(config))
    assert router.stdout is not None
    addresses = json.loads(router.stdout.readline())
    settings = {"vocab_size": 300, "max_model_len": 400, "max_slots": 4, "step_s": 0.001, "prefill_token_s": 0.00002}
    workers = start(
        *("slipstream.workers.mock.main", "--router", addresses["workers"], "--model", "m"),
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
        SLIPSTREAM_WORKER_TOKEN="secret",
    )
    try:
        with httpx.Client(base_url=addresses["http"], timeout=TIMEOUT_S) as client:
            while client.get("/health/ready").status_code != 200:
                assert workers.poll() is None
        yield addresses["http"]
    finally:
        end(workers)
        end(router)


def bench(*words: str | Path) -> Result:
    result = CliRunner().invoke(bench_command, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert result.exit_code == 0, result.output
    return result


def test_lengths_are_exact_and_a_conversation_finds_its_prefix(url: str, tmp_path: Path) -> None:
    file = tmp_path / "o.json"
    options = ["--tokenizer", MODEL_DIR, "--osl", 8, "--json", file, "--warm-up", 2]
    bench(url, *options, "--isl", 50, "--concurrency", "1,4", "--request-count", 12, "--endpoint", "completions")
    for level in json.loads(file.read_text())["levels"]:
        metrics = level["metrics"]
        lengths = metrics["input_sequence_length"]
        assert (lengths["min"], lengths["max"]) == (51, 51)  # the tokenizer begins every text with a token of its own
        assert (metrics["output_sequence_length"]["min"], metrics["output_sequence_length"]["max"]) == (8, 8)
        assert (metrics["request_count"]["avg"], metrics["error_count"]["avg"]) == (12, 0)
        assert metrics["time_to_first_token"]["max"] <= metrics["request_latency"]["max"]
    bench(url, *options, "--isl", 64, "--turns", 3, "--request-count", 6)
    metrics = json.loads(file.read_text())["levels"][0]["metrics"]
    assert metrics["cached_tokens"]["max"] >= 64


def test_a_profile_comes_of_a_cluster(url: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    result = bench(url, "--tokenizer", MODEL_DIR, "--profile", file)
    assert "decode step, 8 sequences" in result.output
    profile = WorkerProfile.read(file)
    assert profile.name == "mine"
    assert (profile.page_tokens, profile.max_model_len, profile.decode.max_slots) == (16, 400, 4)
    assert profile.decode.decode_s(1, 100) > 0
    assert profile.prefill.prefill_s(100) > 0
    assert profile.gpus == 0 or not profile.shared_cores
