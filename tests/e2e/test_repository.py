"""A cluster with a repository of tensor models, one of which names a language model, and no other model: it serves
them, and heals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import grpc
import orjson
import pytest
from click.testing import CliRunner, Result
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slipstream.cluster.commands.explain_command import explain_command
from slipstream.cluster.commands.history_command import history_command
from slipstream.cluster.commands.models_command import models_command
from slipstream.cluster.commands.planner_command import planner_command
from slipstream.cluster.commands.update_commands import rollback_command, split_command, update_command
from tests.support.e2e.serving_cluster import DEMO_MODEL, ServingCluster, command_of
from tests.support.e2e.tensor_requests import BODY, HEALS_S, Asking, asked

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {
    "name": "e2e-tensors",
    "repository": {
        "paths": [str(ROOT / "configs/repository")],
        "control_mode": "explicit",
        "load_models": ["add_sub"],
        "instances": {"paced": {"min": 1, "max": 3, "shrink_after_s": 2}},
        "grpc": {"port": 0},
        "metrics": {"port": 0},
    },
    "planner": {"enabled": True, "interval_s": 0.5, "settle_s": 1},
    "restart": {"backoff_s": 0.1},
}
ENGINE = {"max_model_len": 512, "max_num_seqs": 4, "dtype": "float32"}
VERSIONED = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "INPUT1" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "VERSION" data_type: TYPE_INT32 dims: [ 1 ] }
version_policy { all {} }
"""
SAYS_VERSION = """
import numpy as np, triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("VERSION", np.int32([{version}]))]) for _ in requests]
"""
PACED = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "INPUT1" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
"""
TAKES_20_MS = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        first = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)]) for values in first]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a language model, `story`, two versions of a model, and one whose instances come and go."""
    folder = tmp_path_factory.mktemp("repository")
    write_story(folder, DEMO_MODEL)
    (folder / "story" / "config.pbtxt").write_text('backend: "vllm" instance_group [{ count: 1 kind: KIND_MODEL }]')
    for version in ("1", "2"):
        (folder / "versioned" / version).mkdir(parents=True)
        (folder / "versioned" / version / "model.py").write_text(SAYS_VERSION.format(version=version))
    (folder / "versioned" / "config.pbtxt").write_text(VERSIONED)
    (folder / "paced" / "1").mkdir(parents=True)
    (folder / "paced" / "1" / "model.py").write_text(TAKES_20_MS)
    (folder / "paced" / "config.pbtxt").write_text(PACED)
    return folder


def write_story(folder: Path, model: Path) -> None:
    (folder / "story" / "1").mkdir(parents=True, exist_ok=True)
    (folder / "story" / "1" / "model.json").write_text(json.dumps({"model": str(model), **ENGINE}))


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[ServingCluster]:
    paths = [*SETTINGS["repository"]["paths"], str(folder)]
    settings = SETTINGS | {"repository": SETTINGS["repository"] | {"paths": paths}}
    with ServingCluster(tmp_path_factory.mktemp("tensors"), settings) as cluster:
        yield cluster


def check_all_were_right(asking: Asking) -> None:
    assert asking.error is None
    assert {status for status, _ in asking.answers} == {200}
    assert all([one["data"] for one in answer["outputs"]] == [[4, 7], [-2, -3]] for _, answer in asking.answers)


def kill_and_wait(serving: ServingCluster, member: str, asking: Asking) -> None:
    """Returns when another process has taken the place of the member's, and has served."""
    (pid,) = serving.pids(member)
    asking.wait_for_more(5)
    os.kill(pid, signal.SIGKILL)
    serving.wait_for(lambda: serving.pids(member) not in ([], [pid]), HEALS_S)
    serving.wait_for(lambda: serving.member(member).state == "ready", HEALS_S)
    asking.wait_for_more(5)


def test_its_models_are_served_over_http_and_grpc(serving: ServingCluster) -> None:
    with Asking(serving) as asking:
        asking.wait_for_more(3)
    check_all_were_right(asking)
    state = serving.state
    assert state is not None
    assert (state.model, state.models) == ("", [])
    with grpc.insecure_channel(state.grpc_url.removeprefix("grpc://")) as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelReady(service_pb2.ModelReadyRequest(name="add_sub")).ready


def test_explain_says_where_a_tensor_request_ran(serving: ServingCluster) -> None:
    with contextlib.closing(Asking(serving)) as asking:
        asking.ask(**{"x-request-id": "tensor-1"})
    told = CliRunner().invoke(explain_command, ["tensor-1", "--url", serving.base_url])
    assert told.exit_code == 0, told.output
    assert told.output.startswith("request tensor-1 to add_sub, version 1: success\n")
    assert "execution 1 by add_sub_0_" in told.output
    listed = CliRunner().invoke(explain_command, ["--tensors", "--last", "1", "--url", serving.base_url])
    assert listed.output.startswith("tensor-1 ")


def test_clients_do_not_notice_the_end_of_the_instance_host(serving: ServingCluster) -> None:
    with Asking(serving) as asking:
        kill_and_wait(serving, "instances-0", asking)
    check_all_were_right(asking)


def test_clients_do_not_notice_the_end_of_the_router(serving: ServingCluster) -> None:
    before, asking = serving.state, Asking(serving)
    asking.post("/v2/repository/models/counter/load")
    with asking:
        kill_and_wait(serving, "router", asking)
    check_all_were_right(asking)
    after = serving.state
    assert before is not None
    assert after is not None
    assert (after.url, after.grpc_url, after.tensor_metrics_url) == (
        before.url,
        before.grpc_url,
        before.tensor_metrics_url,
    )
    with contextlib.closing(Asking(serving)) as later:
        index = later.post("/v2/repository/index")
    assert {model["name"] for model in index if model.get("state") == "READY"} == {"add_sub", "counter"}


def test_the_next_router_is_a_process_that_was_there_before(serving: ServingCluster) -> None:
    (pid,) = serving.pids("router")
    serving.wait_for(lambda: len(routers(serving)) == 2, HEALS_S)
    (standby,) = routers(serving) - {pid}
    with Asking(serving) as asking:
        kill_and_wait(serving, "router", asking)
    assert serving.pids("router") == [standby]


def routers(serving: ServingCluster) -> set[int]:
    """The processes of the router that runs and of the one that waits."""
    return {process.pid for process in serving.processes() if command_of(process).startswith("ray::ServingRouter")}


def story(serving: ServingCluster) -> tuple[Any, Any]:
    """The same text from the tensor model and from the API of OpenAI."""
    asking = {"max_tokens": 12, "temperature": 0}
    status, answer = asked(serving, "/v2/models/story/generate", {"text_input": "def read(", **asking})
    assert status == 200, answer
    status, completion = asked(serving, "/v1/completions", {"model": "story", "prompt": "def read(", **asking})
    assert status == 200, completion
    return answer["text_output"], "def read(" + completion["choices"][0]["text"]


def on(serving: ServingCluster, command: click.Command, *arguments: str) -> Result:
    """What a command for operators says of the cluster."""
    return CliRunner(env=serving.environment).invoke(command, [*arguments, "--name", serving.name])


def test_a_language_model_that_is_loaded_gets_workers_and_loses_them(serving: ServingCluster, folder: Path) -> None:
    assert asked(serving, "/v2/repository/models/story/load")[0] == 200
    text, same = story(serving)
    assert text == same
    state = serving.state
    assert state is not None
    assert [(model.model, bool(model.asked)) for model in state.models] == [("story", True)]
    refused = on(serving, models_command, "remove", "story")
    assert refused.exit_code == 1
    assert "story is served for a model of the repository" in refused.output

    write_story(folder, broken_model(folder))
    status, answer = asked(serving, "/v2/repository/models/story/load")
    assert status == 400
    assert "config.json" in answer["error"]
    assert story(serving) == (text, text)  # what served before serves on

    (pid,) = serving.pids("router")
    os.kill(pid, signal.SIGKILL)
    write_story(folder, DEMO_MODEL)
    serving.wait_for(lambda: serving.pids("router") not in ([], [pid]), HEALS_S)
    serving.wait_for(lambda: serving.member("router").state == "ready", HEALS_S)
    serving.wait_for(lambda: is_ready(serving, "story"), HEALS_S)
    assert story(serving) == (text, text)

    assert asked(serving, "/v2/repository/models/story/unload")[0] == 200
    serving.wait_for(lambda: serving.state is not None and not serving.state.models, HEALS_S)
    assert asked(serving, "/v1/completions", {"model": "story", "prompt": "def read("})[0] == 404


def is_ready(serving: ServingCluster, model: str) -> bool:
    index = asked(serving, "/v2/repository/index")[1]
    return any(one["name"] == model and one.get("state") == "READY" for one in index)


def broken_model(folder: Path) -> Path:
    """A folder that looks like a model."""
    broken = folder.parent / "broken"
    broken.mkdir(exist_ok=True)
    (broken / "model.safetensors").write_bytes(b"")
    return broken


def test_versions_divide_the_requests_as_operators_say(serving: ServingCluster) -> None:
    assert asked(serving, "/v2/repository/models/versioned/load")[0] == 200
    of_model = ("--model", "versioned")
    told = on(serving, split_command, "1=1", "2=1", *of_model)
    assert told.exit_code == 0, told.output
    assert told.output.startswith("version 1: 50 %, 0 requests")
    versions = [asked(serving, "/v2/models/versioned/infer", orjson.loads(BODY))[1] for _ in range(40)]
    assert {one["model_version"] for one in versions} == {"1", "2"}
    assert all(one["outputs"][0]["data"] == [int(one["model_version"])] for one in versions)
    assert on(serving, rollback_command, *of_model).exit_code == 0
    versions = [asked(serving, "/v2/models/versioned/infer", orjson.loads(BODY))[1] for _ in range(10)]
    assert {one["model_version"] for one in versions} == {"1"}
    assert on(serving, update_command, *of_model).output.startswith("version 1: 100 %, ")
    assert asked(serving, "/v2/repository/models/versioned/unload")[0] == 200


def num_paced(serving: ServingCluster) -> int | None:
    """How many instances of `paced` serve; None while they come or go, or while there is no router."""
    try:
        listed = orjson.loads(serving.get("/cluster/status")[1])["repository"]["instances"]
    except (OSError, KeyError):
        return None
    return next((one["count"] for one in listed if one["model"] == "paced" and not one["is_changing"]), None)


def planned(serving: ServingCluster) -> list[dict[str, Any]]:
    """What the planner has changed, the first change first."""
    shown = on(serving, planner_command, "--changes", "--json")
    assert shown.exit_code == 0, shown.output
    return list(reversed(orjson.loads(shown.output)["decisions"]))


def test_the_planner_follows_the_load_of_a_tensor_model_and_the_next_router_keeps_its_number(
    serving: ServingCluster,
) -> None:
    assert asked(serving, "/v2/repository/models/paced/load")[0] == 200
    with contextlib.ExitStack() as load:
        clients = [load.enter_context(Asking(serving, "paced")) for _ in range(4)]
        serving.wait_for(lambda: num_paced(serving) == 3, HEALS_S)
        kill_and_wait(serving, "router", clients[0])
        assert num_paced(serving) == 3
        history = on(serving, history_command).output
    assert [client.error for client in clients] == [None] * 4
    assert {status for client in clients for status, _ in client.answers} == {200}
    serving.wait_for(lambda: num_paced(serving) == 1, HEALS_S)
    # There are those of the repository's language model, too.
    changes = [(one["num_instances"], one["reason"]) for one in planned(serving) if one["model"] == "paced"]
    assert changes[:2] == [(2, "slo"), (3, "slo")]
    assert changes[-1] == (1, "cheaper")
    assert "3 would serve them in time" in history
    assert asked(serving, "/v2/repository/models/paced/unload")[0] == 200


def ledger_of(serving: ServingCluster) -> dict[str, int]:
    status, body = serving.get("/cluster/status")
    assert status == 200
    ledger: dict[str, int] = orjson.loads(body)["repository"]["ledger"]
    return ledger


def has_only_loaded(ledger: dict[str, int]) -> bool:
    return ledger["num_launches"] == ledger["num_connected"] == 3  # two of add_sub, one of counter


def test_the_ledger_is_empty_when_nothing_runs(serving: ServingCluster) -> None:
    with Asking(serving) as asking:
        asking.wait_for_more(20)
    check_all_were_right(asking)
    serving.wait_for(lambda: has_only_loaded(ledger_of(serving)), HEALS_S)  # a model was unloaded just now
    ledger = ledger_of(serving)
    assert ledger["num_hosts"] == 1
    assert not any(ledger[key] for key in ("num_requests", "num_lent", "num_leases", "leased_bytes"))
