"""A cluster that is asked what no server should be asked; meanwhile it must go on answering others."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from tritonclient.grpc import service_pb2 as pb

from tests.support.e2e.serving_cluster import ROOT, ServingCluster
from tests.support.hostile.audio_requests import of_audio
from tests.support.hostile.endpoint_requests import of_embeddings, of_images, of_rerank
from tests.support.hostile.hostile_request import MIB, TRITON, HostileRequest
from tests.support.hostile.language_requests import of_texts, of_tokens, streamed_requests
from tests.support.hostile.repository_requests import of_ensembles, of_loads
from tests.support.tensor_faults.faulted_graphs import ONE_INSTANCE, TOKENS, write_graphs
from tests.support.tensor_faults.faulted_models import HEAD
from tests.support.tensor_faults.graph_load import tell
from tests.support.tensor_faults.grpc_client import GrpcTensorClient
from tests.support.tensor_faults.http_client import HttpTensorClient
from tests.support.tensor_faults.tensor_call import Refused
from tests.support.tensor_faults.tensor_faults import addresses

KINDS = (of_texts, of_tokens, of_ensembles, of_embeddings, of_rerank, of_images, of_audio, of_loads)
SERVED = ("three", "told", "split", "linear", "encoder", "keypad", "noise", "tokens")
ANSWER_S = 30.0  # within which the answer has to be there
STALL_S = 3.0  # for which others may have to wait, on a machine that does other things as well
GROWTH_MIB = 400  # of the router, for one request: what is hostile by its size has up to 16 MiB
NOISE_CONFIG = """
backend: "python"
max_batch_size: 4
input [
  { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "seed" data_type: TYPE_INT64 dims: [ 1 ] }
]
output { name: "image" data_type: TYPE_UINT8 dims: [ 32, 32, 3 ] }
"""
NOISE = """
class TritonPythonModel:
    def execute(self, requests):
        images = [np.zeros((len(one.inputs()[0].as_numpy()), 32, 32, 3), np.uint8) for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("image", image)]) for image in images]
"""
BROKEN = {  # a model, its backend, the file of its version
    "no_onnx": ("onnxruntime", "model.onnx", b"not a model"),
    "cut_json": ("vllm", "model.json", b'{"model": "/tm'),
    "deep_json": ("vllm", "model.json", b"[" * 100_000),
    "odd_json": ("vllm", "model.json", b'{"model": {"a": 1}, "max_model_len": "many"}'),
    "list_json": ("vllm", "model.json", b"[1, 2]"),
    "engine_json": ("vllm", "model.json", b'{"model": "/nonexistent", "max_model_len": 1e999}'),
}


@dataclass(slots=True)
class HostileOutcome:
    num_requests: int = 0
    wrong: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    longest_stall: tuple[float, str] = (0.0, "")
    largest_growth: tuple[float, str] = (0.0, "")

    def lines(self) -> list[str]:
        return [
            f"{self.num_requests} hostile requests; "
            f"the slowest answer took {self.slowest[0]:.2f} s ({self.slowest[1]}), "
            f"another client waited for {self.longest_stall[0]:.2f} s at most ({self.longest_stall[1]}), "
            f"the router grew by {self.largest_growth[0]:.0f} MiB at most ({self.largest_growth[1]})",
            *(f"  WRONG     {what}" for what in self.wrong),
        ]


def hostile_settings(repository: Path) -> dict[str, Any]:
    endpoints = {
        "embeddings": {"encoder": {}},
        "rerank": {"reranker": {"embeddings": "encoder"}},
        "images": {"noise": {}},
        "transcriptions": {"keypad": {}},
    }
    return {
        "name": "hostile",
        "repository": {
            "paths": [str(repository)],
            "control_mode": "explicit",
            "load_models": list(SERVED),
            "language_models": {"tokens": "story"},
            "grpc": {"port": 0},
            "metrics": {"port": 0},
            "endpoints": endpoints,
        },
    }


def write_hostile_repository(folder: Path) -> None:
    write_graphs(folder)
    shutil.copytree(ROOT / "scripts/tensor_examples/repository/keypad", folder / "keypad")
    models = {"noise": (NOISE_CONFIG + ONE_INSTANCE, "model.py", (HEAD + NOISE).encode()), "tokens": (TOKENS, "", b"")}
    onnx = (folder / "linear" / "1" / "model.onnx").read_bytes()
    broken = {"cut_onnx": ("onnxruntime", "model.onnx", onnx[: len(onnx) // 2]), **BROKEN}
    models |= {name: (f'backend: "{backend}"', file, text) for name, (backend, file, text) in broken.items()}
    for name, (config, file, text) in models.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        if file:
            (folder / name / "1" / file).write_bytes(text)


def run_hostile(folder: Path, wanted: str, say: Callable[[str], None]) -> HostileOutcome:
    """Those requests whose name contains `wanted`."""
    write_hostile_repository(folder / "repository")
    outcome = HostileOutcome()
    with ServingCluster(folder / "cluster", hostile_settings(folder / "repository")) as serving:
        try:
            asyncio.run(_ask_all(serving, outcome, wanted, say))
        finally:
            (folder / "logs.txt").write_text(f"{serving.output}\n{serving.logs}")
    return outcome


async def _ask_all(serving: ServingCluster, outcome: HostileOutcome, wanted: str, say: Callable[[str], None]) -> None:
    (pid,) = serving.pids("router")
    beside = Beside(HttpTensorClient(*addresses(serving)[0]), psutil.Process(pid))
    before = await tell(HttpTensorClient(*addresses(serving)[0]), 1)
    for request in chain.from_iterable(kind() for kind in KINDS):
        if wanted in request.name:
            ask = partial(_asked, HttpTensorClient(*addresses(serving)[0]), request)
            await _ask(request.name, request.allowed, ask, beside, outcome, say)
    client = GrpcTensorClient(addresses(serving)[1])
    for name, message in streamed_requests():
        if wanted in name:
            await _ask(name, TRITON, partial(_streamed, client, message), beside, outcome, say)
    await client.close()
    await beside.stop()
    after = await tell(HttpTensorClient(*addresses(serving)[0]), 1)
    if before != after:
        outcome.wrong.append(f"afterwards the language model says {after!r} instead of {before!r}")
    if serving.pids("router") != [pid]:
        outcome.wrong.append("the router has died")
    ledger = json.loads(serving.get("/cluster/status")[1])["repository"]["ledger"]
    left = {key: ledger[key] for key in ("num_requests", "num_lent", "num_leases", "leased_bytes") if ledger[key]}
    outcome.wrong += [f"left afterwards: {left}"] if left else []


async def _asked(client: HttpTensorClient, request: HostileRequest) -> tuple[int, bytes]:
    try:
        status, _, answer = await client.post(request.path, request.body, request.headers)
    finally:
        await client.close()
    return status, answer


async def _streamed(client: GrpcTensorClient, message: pb.ModelInferRequest) -> tuple[int, bytes]:
    """An error counts as HTTP's 400."""
    try:
        outputs = [one async for one in client.stream_message(message, 9)]
    except Refused as error:
        return 400, error.message.encode()
    return 200, repr(outputs).encode()


async def _ask(
    name: str,
    allowed: tuple[int, ...],
    ask: Callable[[], Awaitable[tuple[int, bytes]]],
    beside: Beside,
    outcome: HostileOutcome,
    say: Callable[[str], None],
) -> None:
    beside.begin()
    begun_s = time.monotonic()
    status, answer = 0, b""
    try:
        async with asyncio.timeout(ANSWER_S):
            status, answer = await ask()
    except (OSError, TimeoutError) as error:
        answer = repr(error).encode()
    took_s = time.monotonic() - begun_s
    await asyncio.sleep(0.05)
    stall_s, growth_mib = beside.longest_s, beside.growth_mib
    outcome.num_requests += 1
    outcome.slowest = max(outcome.slowest, (took_s, name))
    outcome.longest_stall = max(outcome.longest_stall, (stall_s, name))
    outcome.largest_growth = max(outcome.largest_growth, (growth_mib, name))
    text = answer[:160].decode(errors="replace")
    said = f"{name}: {status} after {took_s:.2f} s, stall {stall_s:.2f} s, {growth_mib:+.0f} MiB: {text}"
    say(said)
    is_long = len(answer) > MIB
    if status not in allowed or is_long or stall_s > STALL_S or growth_mib > GROWTH_MIB:
        outcome.wrong.append(said)


class Beside:
    """Another client, which asks for metadata all the time, and the router's memory."""

    def __init__(self, client: HttpTensorClient, router: psutil.Process) -> None:
        self._client, self._router = client, router
        self._task = asyncio.create_task(self._run())
        self._before_mib = 0.0
        self.longest_s = 0.0
        self.growth_mib = 0.0

    def begin(self) -> None:
        self._before_mib = self._memory_mib()
        self.longest_s = self.growth_mib = 0.0

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _run(self) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                await self._client.post("/v2/repository/index")
                self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
                self.growth_mib = max(self.growth_mib, self._memory_mib() - self._before_mib)
            except (OSError, psutil.Error):
                self.longest_s = ANSWER_S
            await asyncio.sleep(0.02)

    def _memory_mib(self) -> float:
        found = self._router.memory_info()
        return float(found.rss - found.shared) / MIB
