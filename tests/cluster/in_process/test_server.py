"""A server within the test's own process, with models in processes of their own."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import slipstream
from tests.support.cluster.program_models import CHAIN_CONFIG, MODELS, write_ensemble, write_model, write_models

Flag = slipstream.RequestFlag
ONE = np.array([1], np.int32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slipstream.Server]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository)
    write_ensemble(repository, "chain", CHAIN_CONFIG)
    with slipstream.Server(model_repository=str(repository)) as server:
        yield server
        ledger = server.running.thread.call(lambda: server.running.tensors.ledger)
        assert {name: ledger[name] for name in ("num_requests", "num_lent", "num_leases")} == {
            "num_requests": 0,
            "num_lent": 0,
            "num_leases": 0,
        }


def only(responses: Iterator[slipstream.InferenceResponse]) -> slipstream.InferenceResponse:
    response, *more = responses
    assert not more
    assert response.final
    return response


def test_arrays_lists_and_tensors_go_in_and_come_out(server: slipstream.Server) -> None:
    fp16, fp32 = np.random.rand(1, 100).astype(np.float16), torch.rand(3, 2)
    response = only(
        server.model("any").infer(
            inputs={
                "fp16_input": fp16,
                "fp32_input": fp32,
                "bool_input": [[True, False, True]],
                "string_input": slipstream.Tensor.from_string_array([["grün", "b"]]),
            },
            request_id="mine",
            parameters={"int": 0, "float": 0.5, "bool": False, "string": "test"},
        )
    )
    np.testing.assert_array_equal(np.from_dlpack(response.outputs["fp16_output"]), fp16)
    assert torch.equal(torch.utils.dlpack.from_dlpack(response.outputs["fp32_output"]), fp32)
    assert np.asarray(response.outputs["bool_output"]).tolist() == [[True, False, True]]
    assert response.outputs["string_output"].to_string_array().tolist() == [["grün", "b"]]
    parameters = json.loads(response.outputs["parameters"].to_string_array()[0])
    assert parameters == {"int": 0, "float": 0.5, "bool": False, "string": "test"}
    assert (response.request_id, response.model.name, response.model.version) == ("mine", "any", 1)


def test_large_arrays_are_the_programs_own(server: slipstream.Server) -> None:
    array = np.random.rand(500, 1000).astype(np.float32)
    outputs = [only(server.model("any").infer(inputs={"fp32_input": array * k})).outputs for k in (1, 2, 3)]
    for k, output in zip((1, 2, 3), outputs, strict=True):
        shown = np.from_dlpack(output["fp32_output"])
        np.testing.assert_array_equal(shown, array * k)


@pytest.mark.parametrize("num_columns", [3, 100_000])
def test_an_ensemble_is_served_as_a_model(server: slipstream.Server, num_columns: int) -> None:
    array = np.random.rand(2, num_columns).astype(np.float32)
    output = only(server.model("chain").infer(inputs={"IN": array})).outputs["OUT"]
    np.testing.assert_array_equal(np.from_dlpack(output), array)


def test_responses_come_one_by_one_while_the_program_goes_on(server: slipstream.Server, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    responses = server.model("stream").infer(inputs={"COUNT": ONE * 3, "GATE": [gate]})
    texts = []
    for number in range(3):
        Path(gate + str(number)).touch()
        response = next(responses)
        texts.append(response.outputs["text_output"].to_string_array()[0])
        assert not response.final
    last = next(responses)
    assert (texts, last.final, last.outputs) == (["token 0", "token 1", "token 2"], True, {})
    with pytest.raises(StopIteration):
        next(responses)


def test_a_request_that_is_cancelled_ends_with_an_error(server: slipstream.Server, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    Path(gate + "0").touch()
    responses = server.model("stream").infer(inputs={"COUNT": ONE * 2, "GATE": [gate]}, raise_on_error=False)
    assert next(responses).outputs["text_output"].to_bytes_array()[0] == b"token 0"
    responses.cancel()
    *_, last = responses
    assert last.final
    assert last.error is not None


def test_a_program_with_an_event_loop_awaits_responses(server: slipstream.Server) -> None:
    async def texts(count: int) -> list[str]:
        responses = server.model("stream").async_infer(inputs={"COUNT": ONE * count, "GATE": [""]})
        outputs = [response.outputs async for response in responses]
        return [output["text_output"].to_string_array()[0] for output in outputs if output]

    async def all_texts() -> list[list[str]]:
        return list(await asyncio.gather(*map(texts, (1, 3, 2))))

    assert [len(each) for each in asyncio.run(all_texts())] == [1, 3, 2]


def test_responses_go_to_a_queue_and_to_the_iterator(server: slipstream.Server) -> None:
    model, shared = server.model("any"), queue.SimpleQueue[Any]()
    iterators = [model.infer(inputs={"fp32_input": [[k]]} | two(k), response_queue=shared) for k in range(2)]
    values = sorted(float(np.asarray(shared.get(timeout=20).outputs["fp16_output"])[0, 0]) for _ in iterators)
    assert values == [0, 1]
    for k, responses in enumerate(iterators):
        assert np.asarray(only(responses).outputs["fp16_output"]).tolist() == [[k]]
    assert shared.empty()

    async def through_a_queue() -> list[float]:
        queue_of_loop: asyncio.Queue[slipstream.InferenceResponse] = asyncio.Queue()
        responses = [model.async_infer(inputs=two(k), response_queue=queue_of_loop) for k in range(2)]
        found = [np.asarray((await queue_of_loop.get()).outputs["fp16_output"]).item() for _ in responses]
        for each in responses:
            assert [response.final async for response in each] == [True]
        return sorted(found)

    assert asyncio.run(through_a_queue()) == [0, 1]
    with pytest.raises(slipstream.InvalidArgumentError, match="response_queue"):
        model.infer(inputs=two(1), response_queue=asyncio.Queue())


def two(value: float) -> dict[str, Any]:
    return {"fp32_input": np.zeros((1, 1), np.float32), "fp16_input": np.full((1, 1), value, np.float16)}


def test_many_threads_ask_at_once(server: slipstream.Server) -> None:
    wrong: list[int] = []

    def ask(k: int) -> None:
        for _ in range(20):
            output = only(server.model("any").infer(inputs=two(k))).outputs["fp16_output"]
            if np.asarray(output).item() != k:
                wrong.append(k)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_sequence_has_its_state(server: slipstream.Server) -> None:
    model = server.model("sum")

    def add(value: int, sequence: int | str, flags: int = 0) -> int:
        inputs = {"VALUE": np.array([[value]], np.int32)}
        response = only(model.infer(inputs=inputs, correlation_id=sequence, flags=flags))
        return int(np.asarray(response.outputs["SUM"]).item())

    assert [add(1, 7, Flag.SEQUENCE_START), add(10, "other", Flag.SEQUENCE_START), add(2, 7)] == [1, 10, 3]
    assert [add(3, 7, Flag.SEQUENCE_END), add(5, "other", Flag.SEQUENCE_END)] == [6, 15]
    with pytest.raises(slipstream.InvalidArgumentError, match="must specify the START flag"):
        add(1, 7)


def test_errors_of_a_model_are_raised_or_given(server: slipstream.Server) -> None:
    model = server.model("faulty")
    with pytest.raises(slipstream.InternalError, match="ValueError: on request") as raised:
        only(model.infer(inputs={"HOW": ["raise"]}, request_id="a"))
    response = raised.value.args[1]
    assert str(raised.value).startswith("Failed to process the request(s) for model 'faulty_0")
    assert (response.request_id, response.final, response.error) == ("a", True, raised.value)
    given = only(model.infer(inputs={"HOW": ["too busy"]}, raise_on_error=False))
    assert isinstance(given.error, slipstream.UnavailableError)
    assert given.outputs == {}


@pytest.mark.parametrize(
    ("model", "settings", "error", "text"),
    [
        ("nothing", {}, slipstream.NotFoundError, "unknown model: 'nothing' is not found"),
        ("faulty", {}, slipstream.InvalidArgumentError, "expected 1 inputs but got 0"),
        ("faulty", {"inputs": {"HOW": [1]}}, slipstream.InvalidArgumentError, "data-type is 'INT64'"),
        ("faulty", {"inputs": {"HOW": ["a", "b"]}}, slipstream.InvalidArgumentError, "unexpected shape"),
        ("any", {"parameters": {"p": None}}, slipstream.InvalidArgumentError, "Request Parameter"),
        ("any", {"parameters": {"p": {"a": 1}}}, slipstream.InvalidArgumentError, "Request Parameter"),
        ("any", {"inputs": {"fp16_input": "text"}}, slipstream.InvalidArgumentError, "not supported"),
    ],
)
def test_a_wrong_request_is_refused_at_once(
    server: slipstream.Server, model: str, settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        server.model(model).infer(**settings)


def test_outputs_cannot_go_to_memory_that_is_not_there(server: slipstream.Server) -> None:
    only(server.model("any").infer(inputs=two(1), output_memory_type="cpu"))
    with pytest.raises(slipstream.InvalidArgumentError, match="Memory type unsupported not supported"):
        only(server.model("any").infer(inputs=two(1), output_memory_type="unsupported"))


def test_a_model_says_what_it_is(server: slipstream.Server) -> None:
    model = server.models()["sum"]
    assert model.ready()
    assert not server.model("sum", 9).ready()
    assert model.metadata()["inputs"] == [{"name": "VALUE", "datatype": "INT32", "shape": [-1, 1]}]
    assert model.config()["max_batch_size"] == 4
    assert model.batch_properties() is slipstream.ModelBatchFlag.FIRST_DIM
    assert server.model("stream").batch_properties() is slipstream.ModelBatchFlag.UNKNOWN
    assert model.transaction_properties() is slipstream.ModelTxnPropertyFlag.ONE_TO_ONE
    assert server.model("stream").transaction_properties() is slipstream.ModelTxnPropertyFlag.DECOUPLED
    assert model.statistics()["model_stats"][0]["name"] == "sum"
    with pytest.raises(slipstream.NotFoundError):
        server.model("nothing").config()


def test_a_request_is_made_first_and_sent_later(server: slipstream.Server) -> None:
    request = server.models()["any"].create_request(request_id="later")
    request.inputs["fp16_input"] = np.ones((1, 1), np.float16)
    assert only(server.model("any").infer(request)).request_id == "later"
    assert slipstream.InferenceRequest(server.model("any")).inputs == {}


def test_the_index_has_all_models(server: slipstream.Server) -> None:
    models = server.models()
    assert set(models) == {(name, 1) for name in (*MODELS, "chain")}
    assert (models["any", 1].state, models["any"].version) == ("READY", -1)
    with pytest.raises(KeyError, match="nothing"):
        models["nothing"]
    assert server.live()
    assert server.metadata()["name"] == "triton"


def test_metrics_are_those_of_models_and_of_the_program(server: slipstream.Server) -> None:
    family = slipstream.MetricFamily(slipstream.MetricKind.COUNTER, "program_calls", "Calls")
    metric = slipstream.Metric(family, {"side": "left"})
    metric.increment(2)
    gauge = slipstream.Metric(slipstream.MetricFamily(slipstream.MetricKind.GAUGE, "program_level", "Level"))
    gauge.set_value(-1.5)
    page = server.metrics()
    assert 'nv_inference_count{model="any",version="1"}' in page
    assert 'program_calls{side="left"} 2' in page
    assert "program_level -1.5" in page
    with pytest.raises(slipstream.InvalidArgumentError, match="monotonically"):
        metric.increment(-1)
    with pytest.raises(slipstream.UnsupportedError, match="does not support Set"):
        metric.set_value(1)
    del metric, family
    assert "program_calls" not in server.metrics()


def test_models_are_loaded_and_unloaded_by_the_program(tmp_path: Path) -> None:
    write_models(tmp_path / "a", "any", "sum")
    write_models(tmp_path / "b", "stream")
    options = slipstream.Options(
        model_repository=str(tmp_path / "a"), model_control_mode=slipstream.ModelControlMode.EXPLICIT
    )
    with slipstream.Server(options) as server:
        assert {key: model.state for key, model in server.models().items()} == {("any", -1): None, ("sum", -1): None}
        config = {"backend": "python", "max_batch_size": 2, "output": server_output()}
        server.load("any", {"config": json.dumps(config), "file:1/model.py": code_of_version()})
        assert only(server.model("any").infer()).outputs["OUT"].to_string_array().tolist() == [["from a file"]]
        server.unload("any", wait_until_unloaded=True)
        assert server.models()["any", 1].state == "UNAVAILABLE"
        with pytest.raises(slipstream.TritonError):
            server.model("any").infer()
        server.register_model_repository(str(tmp_path / "b"), {"stream": "renamed"})
        assert ("renamed", -1) in server.models()
        model = server.load("renamed")
        assert len(list(model.infer(inputs={"COUNT": ONE, "GATE": [""]}))) == 2
        with pytest.raises(slipstream.AlreadyExistsError, match="already been registered"):
            server.register_model_repository(str(tmp_path / "b"))
        server.unregister_model_repository(str(tmp_path / "b"))
        with pytest.raises(slipstream.InvalidArgumentError, match="repository not found"):
            server.unregister_model_repository(str(tmp_path / "b"))
        with pytest.raises(slipstream.InternalError, match="failed to load 'stream'"):
            server.load("stream")


def server_output() -> list[dict[str, Any]]:
    return [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}]


def code_of_version() -> bytes:
    return b"""
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        out = pb_utils.Tensor("OUT", np.array([["from a file"]], dtype=object))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""


def test_a_changed_repository_is_read_when_the_program_says_so(tmp_path: Path) -> None:
    write_models(tmp_path, "any")
    mode = slipstream.ModelControlMode.POLL
    with slipstream.Server(model_repository=str(tmp_path), model_control_mode=mode) as server:
        write_models(tmp_path, "sum")
        assert not server.model("sum").ready()
        server.poll_model_repository()
        assert server.model("sum").ready()
        with pytest.raises(slipstream.UnavailableError, match="explicit model load / unload is not allowed"):
            server.unload("sum")


def test_a_model_that_cannot_be_loaded_ends_the_start(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", "", "raise ValueError('no weights')")
    server = slipstream.Server(model_repository=str(tmp_path))
    with pytest.raises(slipstream.TritonError, match="no weights"):
        server.start()
    with pytest.raises(slipstream.InvalidArgumentError, match="not started"):
        server.ready()
    server.options.exit_on_error = False
    with pytest.raises(slipstream.UnavailableError, match=r"broken: .*no weights"):
        server.start(wait_until_ready=True)
    assert not server.ready()
    server.stop()


def test_a_start_that_takes_too_long_is_given_up_waiting_for(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = f"""
class TritonPythonModel:
    def initialize(self, args):
        while not os.path.exists({str(gate)!r}):
            time.sleep(0.01)
    def execute(self, requests):
        return [pb_utils.InferenceResponse() for _ in requests]
"""
    output = 'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }'
    write_model(tmp_path / "models", "slow", output, wait)
    server = slipstream.Server(model_repository=str(tmp_path / "models"))
    with pytest.raises(slipstream.UnavailableError, match="Timeout before ready"):
        server.start(wait_until_ready=True, timeout=0.2)
    assert not server.ready()
    gate.touch()
    server.stop()


def test_a_server_that_nothing_refers_to_ends(tmp_path: Path) -> None:
    write_models(tmp_path, "any")
    before = set(threading.enumerate())
    responses = slipstream.Server(model_repository=str(tmp_path)).start().model("any").infer(inputs=two(1))
    (thread,) = [one for one in threading.enumerate() if one not in before and one.name == "slipstream"]
    assert only(responses).final
    del responses
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_the_log_goes_to_a_file_if_the_options_say_so(tmp_path: Path) -> None:
    write_models(tmp_path / "models", "any")
    log = tmp_path / "log"
    with slipstream.Server(model_repository=str(tmp_path / "models"), log_info=True, log_file=str(log)):
        assert "model 'any' serves version 1" in log.read_text()
    lines = log.read_text()
    logging.getLogger("slipstream").warning("not of the server")
    assert log.read_text() == lines


def test_a_request_that_does_not_end_in_time_is_cut_off_by_a_stop(tmp_path: Path) -> None:
    write_models(tmp_path / "models", "stream")
    server = slipstream.Server(model_repository=str(tmp_path / "models"), exit_timeout=1).start()
    nowhere = str(tmp_path / "nowhere")
    responses = server.model("stream").infer(inputs={"COUNT": ONE, "GATE": [nowhere]}, raise_on_error=False)
    with pytest.raises(slipstream.InternalError, match="Exit timeout expired"):
        server.stop()
    assert isinstance(only(responses).error, slipstream.TritonError)


def test_a_stop_lets_requests_end(tmp_path: Path) -> None:
    write_models(tmp_path / "models", "stream")
    server = slipstream.Server(model_repository=str(tmp_path / "models")).start()
    gate = str(tmp_path / "gate")
    responses = server.model("stream").infer(inputs={"COUNT": ONE, "GATE": [gate]})
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    Path(gate + "0").touch()
    assert next(responses).outputs["text_output"].to_string_array()[0] == "token 0"
    assert next(responses).final
    stopping.join(20)
    assert not stopping.is_alive()


def test_several_servers_run_beside_each_other_and_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_models(tmp_path / name, "any")
    servers = [slipstream.Server(model_repository=str(tmp_path / name)).start() for name in ("a", "b")]
    for k, each in enumerate(servers):
        assert np.asarray(only(each.model("any").infer(inputs=two(k))).outputs["fp16_output"]).item() == k
    model = servers[0].model("any")
    servers[0].stop()
    with pytest.raises(slipstream.InvalidArgumentError, match="not started"):
        model.infer(inputs=two(1))
    assert servers[1].ready()
    servers[0].start(wait_until_ready=True)
    assert only(model.infer(inputs=two(1))).final
    with pytest.raises(slipstream.InvalidArgumentError, match="already started"):
        servers[0].start()
    for each in servers:
        each.stop()


def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(slipstream.InternalError, match="nowhere"):
        slipstream.Server(model_repository=str(tmp_path / "nowhere")).start()
    with pytest.raises(slipstream.InvalidArgumentError, match="must be specified"):
        slipstream.Server(model_repository=None).start()
