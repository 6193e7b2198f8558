"""A language model in the repository of a server within the test's own process, with real workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import slipstream

DEMO_MODEL = Path(__file__).resolve().parents[3] / "models" / "slipstream-demo"
GREEDY = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slipstream.Server]:
    repository = tmp_path_factory.mktemp("models")
    (repository / "chat" / "1").mkdir(parents=True)
    (repository / "chat" / "config.pbtxt").write_text('backend: "vllm"')
    engine = {"model": str(DEMO_MODEL), "max_model_len": 256}
    (repository / "chat" / "1" / "model.json").write_text(json.dumps(engine))
    with slipstream.Server(model_repository=str(repository)) as server:
        yield server


def texts(server: slipstream.Server, *, stream: bool) -> list[str]:
    inputs: dict[str, Any] = {"text_input": ["def main"], "stream": [stream], "exclude_input_in_output": [True]}
    inputs["sampling_parameters"] = [json.dumps(GREEDY)]
    outputs = [response.outputs for response in server.model("chat").infer(inputs=inputs)]
    return [output["text_output"].to_string_array()[0] for output in outputs if output]


def workers() -> dict[str, psutil.Process]:
    found = {}
    for process in psutil.Process().children(recursive=True):
        command = " ".join(process.cmdline())
        if "slipstream.workers.main" in command:
            found["decode" if "decode" in command else "prefill"] = process
    return found


def test_an_answer_is_streamed_and_is_the_same_as_a_whole(server: slipstream.Server) -> None:
    deltas = texts(server, stream=True)
    assert len(deltas) > 1
    assert texts(server, stream=False) == ["".join(deltas)]
    assert server.model("chat").transaction_properties() is slipstream.ModelTxnPropertyFlag.DECOUPLED


def test_a_worker_that_dies_comes_back(server: slipstream.Server) -> None:
    before = texts(server, stream=False)
    dead = workers()["decode"]
    dead.kill()
    dead.wait(20)
    assert texts(server, stream=False) == before
    assert workers()["decode"].pid != dead.pid


def test_no_worker_is_left_after_a_stop_or_an_unload(server: slipstream.Server) -> None:
    processes = list(workers().values())
    server.stop()
    assert not any(process.is_running() for process in processes)
    server.options.model_control_mode = slipstream.ModelControlMode.EXPLICIT
    server.start()
    assert workers() == {}
    server.load("chat")
    assert len(texts(server, stream=False)) == 1
    processes = list(workers().values())
    assert processes
    server.unload("chat", wait_until_unloaded=True)
    _, alive = psutil.wait_procs(processes, 20)
    assert not alive


def test_a_language_model_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    (tmp_path / "chat" / "1").mkdir(parents=True)
    (tmp_path / "chat" / "config.pbtxt").write_text('backend: "vllm"')
    (tmp_path / "chat" / "1" / "model.json").write_text(json.dumps({"model": str(tmp_path / "nowhere")}))
    with pytest.raises(slipstream.TritonError, match="nowhere"):
        slipstream.Server(model_repository=str(tmp_path)).start()
