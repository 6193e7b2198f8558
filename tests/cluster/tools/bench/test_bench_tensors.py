"""`slipstream bench` of tensor models: its data, over HTTP and gRPC, and in process."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from click.testing import CliRunner

from slipstream.cluster.tools.bench.bench_command import bench_command
from slipstream.cluster.tools.bench.client.bench_target import BenchError, Target
from slipstream.cluster.tools.bench.load.answer_slos import Slos
from slipstream.cluster.tools.bench.load.load_level import Extent, LoadLevel
from slipstream.cluster.tools.bench.tensors.clients.grpc_client import GrpcInferClient
from slipstream.cluster.tools.bench.tensors.clients.http_client import HttpInferClient
from slipstream.cluster.tools.bench.tensors.clients.infer_client import InferClient
from slipstream.cluster.tools.bench.tensors.data_file import streams_of_file
from slipstream.cluster.tools.bench.tensors.model_facts import InputFact, TensorModelFacts
from slipstream.cluster.tools.bench.tensors.shared_inputs import in_shared_memory
from slipstream.cluster.tools.bench.tensors.tensor_data import InferSource, MadeData, batched
from slipstream.cluster.tools.bench.tensors.tensor_levels import (
    TensorRun,
    TensorStage,
    run_tensor_stages,
    tensor_measures,
)
from tests.support.cluster.program_models import write_models
from tests.support.router.fake_tensor_service import FakeTensorService
from tests.support.router.grpc_lab import grpc_lab
from tests.support.router.kserve_site import kserve_site

PAIR = TensorModelFacts("pair", [InputFact("A", "FP32", (-1, 2)), InputFact("T", "BYTES", (1,))], max_batch_size=4)


def written(folder: Path, text: str) -> Path:
    path = folder / "data.json"
    path.write_text(text)
    return path


def test_perf_analyzers_forms_of_data_are_read(tmp_path: Path) -> None:
    data = [
        {"A": [1, 2, 3, 4], "T": ["x"]},
        {"A": {"content": [[1, 2]], "shape": [1, 2]}, "T": {"b64": "AAE="}},
        {"A": {"b64": "AACAPwAAAEA="}, "T": "grün"},
    ]
    path = written(tmp_path, json.dumps({"data": data}))
    ((first, second, third),) = streams_of_file(path, PAIR, {})
    assert (first[0].shape, np.frombuffer(first[0].data, np.float32).tolist()) == ((2, 2), [1, 2, 3, 4])
    assert first[1].data == b"\1\0\0\0x"
    assert (second[0].shape, second[1].data) == ((1, 2), b"\2\0\0\0\0\1")
    assert np.frombuffer(third[0].data, np.float32).tolist() == [1, 2]
    assert third[1].data == b"\5\0\0\0" + "grün".encode()


def test_lines_of_json_and_lists_are_requests_and_sequences(tmp_path: Path) -> None:
    line = json.dumps({"A": [1, 2], "T": ["x"]})
    assert [len(stream) for stream in streams_of_file(written(tmp_path, f"{line}\n{line}\n"), PAIR, {})] == [2]
    sequences = written(tmp_path, json.dumps({"data": [[json.loads(line)] * 3, [json.loads(line)]]}))
    assert [len(stream) for stream in streams_of_file(sequences, PAIR, {})] == [3, 1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"data": [{"A": [1, 2]}]}', "request 1: no data for input 'T'"),
        ('{"data": [{"A": [1, 2], "T": ["x"], "B": [1]}]}', "pair has no input 'B'"),
        ('{"data": [{"A": [1, 2, 3], "T": ["x"]}]}', r"input A: 3 elements for the shape \[1, 2\]"),
        ('{"data": [{"A": ["a", 2], "T": ["x"]}]}', "input A: could not convert"),
        ('{"data": []}', "expected a list"),
        ("nothing", "not JSON"),
    ],
)
def test_wrong_data_is_refused_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(BenchError, match=reason):
        streams_of_file(written(tmp_path, text), PAIR, {})


def test_made_up_data_fits_the_model_and_its_batches() -> None:
    made = MadeData(text_length=3, shapes={"A": (5, 2)})
    ((first, *_),) = batched([made.inputs(PAIR, seed=1)], PAIR, 2)
    assert [(one.shape, len(one.data)) for one in first] == [((2, 5, 2), 2 * 5 * 2 * 4), ((2, 1), 2 * (4 + 3))]
    assert made.inputs(PAIR, seed=1) == made.inputs(PAIR, seed=1)
    assert MadeData(is_zero=True, shapes={"A": (1, 2)}).inputs(PAIR, 0)[0][0].data == bytes(8)
    with pytest.raises(BenchError, match="give --shape A:SIZE"):
        MadeData().inputs(PAIR, 0)
    with pytest.raises(BenchError, match="--batch-size 5: the max_batch_size of pair is 4"):
        batched([made.inputs(PAIR, 0)], PAIR, 5)


def test_sequences_have_their_own_id_and_begin_and_end_once() -> None:
    inputs = MadeData(shapes={"A": (1, 2)}).inputs(PAIR, 0)
    conversations = InferSource([inputs], 3).conversations(seed=7)
    first, second = next(conversations).turns, next(conversations).turns
    places = [turn.sequence for turn in first]
    assert [(place.is_start, place.is_end) for place in places] == [(True, False), (False, False), (False, True)]
    assert len({place.id for place in places}) == 1
    assert second[0].sequence.id != places[0].id


def complete(service: FakeTensorService, model: str) -> None:
    """Writes the model's inputs into its configuration, as a server does."""
    spec = service.specs[model]
    fields = orjson.loads(spec.config_json)
    fields["input"] = [{"name": i.name, "data_type": f"TYPE_{i.datatype}", "dims": i.dims} for i in spec.inputs]
    fields["model_transaction_policy"] = {"decoupled": spec.is_decoupled}
    service.specs[model] = replace(spec, config_json=orjson.dumps(fields))


async def run(
    client: InferClient, *, num_requests: int = 40, shared: bool = False, **shapes: tuple[int, ...]
) -> TensorRun:
    facts = TensorModelFacts.of_config(await client.config())
    streams = batched([MadeData(shapes=shapes).inputs(facts, 0)], facts, 1)
    extent = Extent(num_requests, num_warm_up=2, timeout_s=10.0)
    if shared:
        async with in_shared_memory(client, streams) as placed:
            stage = TensorStage(LoadLevel(4), extent, InferSource(placed))
            (found,) = await run_tensor_stages(client, facts, [stage], 0, io.StringIO())
            return found
    stage = TensorStage(LoadLevel(4), extent, InferSource(streams))
    (found,) = await run_tensor_stages(client, facts, [stage], 0, io.StringIO())
    return found


@pytest.mark.parametrize("shared", [False, True])
def test_http_requests_are_counted_and_each_has_its_latency(shared: bool) -> None:
    async def measured() -> None:
        async with kserve_site() as site:
            complete(site.models, "add_sub")
            client = HttpInferClient(Target("127.0.0.1", site.port, "", is_tls=False), "add_sub", "", 10.0)
            found = tensor_measures(await run(client, shared=shared), Slos({}))
            await client.close()
            assert found.get("request_count") == 40
            assert (found.get("error_count"), found.errors) == (0, {})
            assert found.get("request_latency", "p99") > 0
            assert len(site.models.submitted) == 42
            assert site.models.submitted[0].array("A").shape == (1, 4)

    asyncio.run(measured())


def test_grpc_requests_and_streams_of_decoupled_models_are_measured() -> None:
    async def measured() -> None:
        async with grpc_lab() as lab:
            for model, shapes in (("add_sub", {}), ("repeat", {"IN": (3,)})):
                complete(lab.service, model)
                client = GrpcInferClient(Target("127.0.0.1", lab.port, "", is_tls=False), model, "", 10.0)
                found = tensor_measures(await run(client, **shapes), Slos({}))
                await client.close()
                assert (found.get("request_count"), found.errors) == (40, {})
                assert found.get("responses_per_request") == (3 if model == "repeat" else None)

    asyncio.run(measured())


def test_failed_requests_are_counted_by_kind_and_an_unknown_model_is_an_error() -> None:
    async def measured() -> None:
        async with kserve_site() as site:
            target = Target("127.0.0.1", site.port, "", is_tls=False)
            complete(site.models, "add_sub")
            site.models.answers["add_sub"] = lambda submission: submission.array("nothing")
            with pytest.raises(BenchError, match="no request of the warm-up succeeded: HTTP 500"):
                await run(HttpInferClient(target, "add_sub", "", 10.0))
            with pytest.raises(BenchError, match="unknown model: 'nowhere'"):
                await run(HttpInferClient(target, "nowhere", "", 10.0))

    asyncio.run(measured())


def test_sequences_of_a_repository_run_in_process(tmp_path: Path) -> None:
    write_models(tmp_path / "models", "sum")
    report = tmp_path / "report.json"
    words = ["--kind", "in-process", str(tmp_path / "models"), "--model", "sum", "--concurrency", "2"]
    words += ["--request-count", "24", "--sequence-length", "4", "--json", str(report)]
    result = CliRunner().invoke(bench_command, words)
    assert result.exit_code == 0, result.output
    (level,) = json.loads(report.read_text())["levels"]
    assert level["metrics"]["request_count"]["avg"] == 24
    assert level["errors"] == []
    assert level["server"]["sum"]["success_count"] == 24
    assert level["server"]["sum"]["compute_infer_ms"] > 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--kind", "kserve", "h:1"], "--model: give the name of one model"),
        (["--kind", "kserve", "h:1", "--model", "m", "--osl", "5"], "--osl needs --kind openai"),
        (["h:1", "--shape", "A:1"], "--shape needs --kind kserve or in-process"),
        (["--kind", "kserve", "h:1", "--model", "m", "--shape", "A"], "--shape: expected INPUT:SIZE"),
        (["--kind", "in-process", "/nowhere", "--model", "m"], "/nowhere: is no folder with a repository"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], reason: str) -> None:
    result = CliRunner().invoke(bench_command, words)
    assert result.exit_code in (1, 2)
    assert reason in result.output
