"""A cluster with a repository of tensor models and no other model: it serves them, and heals."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import orjson
import pytest
from click.testing import CliRunner
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slipstream.cluster.commands.explain_command import explain_command
from tests.support.e2e.serving_cluster import ServingCluster, command_of

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {
    "name": "e2e-tensors",
    "repository": {
        "paths": [str(ROOT / "configs/repository")],
        "control_mode": "explicit",
        "load_models": ["add_sub"],
        "grpc": {"port": 0},
        "metrics": {"port": 0},
    },
    "restart": {"backoff_s": 0.1},
}
BODY = orjson.dumps(
    {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]},
            {"name": "INPUT1", "datatype": "FP32", "shape": [2], "data": [3, 5]},
        ]
    }
)
HEALS_S = 60.0


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingCluster]:
    with ServingCluster(tmp_path_factory.mktemp("tensors"), SETTINGS) as cluster:
        yield cluster


class Asking:
    """Sends one request after the other on a connection that stays open, in a thread, until `stop`."""

    def __init__(self, serving: ServingCluster) -> None:
        at = urlsplit(serving.base_url)
        assert at.hostname is not None
        self._connection = http.client.HTTPConnection(at.hostname, at.port, timeout=HEALS_S)
        self._is_to_end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers: list[tuple[int, Any]] = []
        self.error: Exception | None = None

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._is_to_end.set()
        self._thread.join()
        self.close()

    def close(self) -> None:
        self._connection.close()

    def _run(self) -> None:
        try:
            while not self._is_to_end.is_set():
                self.answers.append(self.ask())
        except (OSError, http.client.HTTPException) as error:
            self.error = error

    def ask(self, **headers: str) -> tuple[int, Any]:
        self._connection.request("POST", "/v2/models/add_sub/infer", BODY, headers)
        answer = self._connection.getresponse()
        return answer.status, orjson.loads(answer.read())

    def post(self, path: str) -> Any:
        """What is answered to a POST without a body."""
        self._connection.request("POST", path)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return orjson.loads(body or b"null")

    def wait_for_more(self, count: int) -> None:
        wanted, until_s = len(self.answers) + count, time.monotonic() + HEALS_S
        while len(self.answers) < wanted and self._thread.is_alive() and time.monotonic() < until_s:
            time.sleep(0.01)


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


def test_the_ledger_is_empty_when_nothing_runs(serving: ServingCluster) -> None:
    with Asking(serving) as asking:
        asking.wait_for_more(20)
    check_all_were_right(asking)
    status, body = serving.get("/cluster/status")
    assert status == 200
    ledger = orjson.loads(body)["repository"]["ledger"]
    assert ledger["num_hosts"] == 1
    assert ledger["num_launches"] == ledger["num_connected"] >= 2  # those of add_sub
    assert not any(ledger[key] for key in ("num_requests", "num_lent", "num_leases", "leased_bytes"))
