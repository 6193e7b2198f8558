"""Triton's client over HTTP."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shared_memory
from tritonclient.utils import InferenceServerException

FIRST, SECOND = np.array([1, 2.5], np.float32), np.array([3, -5], np.float32)
LARGE = np.arange(4_000_000, dtype=np.float32)


@pytest.fixture
def client(tensor_url: str) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(tensor_url, concurrency=4)


def tensor(name: str, array: np.ndarray, datatype: str = "FP32", *, binary: bool = True) -> triton.InferInput:
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def test_it_finds_the_server_and_its_models(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_sub")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("add_sub")["inputs"][0]["datatype"] == "FP32"
    assert client.get_model_config("norm")["max_batch_size"] == 64
    assert {model["state"] for model in client.get_model_repository_index()} == {"READY"}
    assert client.get_inference_statistics("add_sub")["model_stats"][0]["name"] == "add_sub"


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_it_infers(client: triton.InferenceServerClient, binary: bool, coding: str | None) -> None:
    inputs = [tensor("INPUT0", FIRST, binary=binary), tensor("INPUT1", SECOND, binary=binary)]
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("SUM", "DIFFERENCE")]
    result = client.infer(
        "add_sub",
        inputs,
        outputs=outputs,
        request_id="7",
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert result.get_response()["id"] == "7"
    np.testing.assert_array_equal(result.as_numpy("SUM"), FIRST + SECOND)
    np.testing.assert_array_equal(result.as_numpy("DIFFERENCE"), FIRST - SECOND)


def test_it_infers_large_tensors_side_by_side(client: triton.InferenceServerClient) -> None:
    inputs = [tensor("INPUT0", LARGE), tensor("INPUT1", LARGE)]
    requests = [client.async_infer("add_sub", inputs) for _ in range(4)]
    for request in requests:
        np.testing.assert_array_equal(request.get_result().as_numpy("SUM"), LARGE + LARGE)


def test_texts_arrive(client: triton.InferenceServerClient) -> None:
    text = np.array(["hé"], dtype=object)
    result = client.infer("echo", [tensor("text_input", text, "BYTES")])
    assert result.as_numpy("text_output")[0].decode() == "hé"


def test_a_sequence_is_one(client: triton.InferenceServerClient) -> None:
    totals = []
    for number in (1, 2, 3):
        value = tensor("VALUE", np.array([[number]], np.int32), "INT32")
        flags = {"sequence_start": number == 1, "sequence_end": number == 3}
        totals.append(client.infer("accumulator", [value], sequence_id=77, **flags).as_numpy("TOTAL").item())
    assert totals == [1, 3, 6]


def test_tensors_stay_in_shared_memory(client: triton.InferenceServerClient) -> None:
    num_bytes = FIRST.nbytes
    region = shared_memory.create_shared_memory_region("region", "/test-tritonclient", 3 * num_bytes)
    try:
        shared_memory.set_shared_memory_region(region, [FIRST, SECOND])
        client.register_system_shared_memory("region", "/test-tritonclient", 3 * num_bytes)
        inputs = [triton.InferInput(name, [2], "FP32") for name in ("INPUT0", "INPUT1")]
        for number, given in enumerate(inputs):
            given.set_shared_memory("region", num_bytes, offset=number * num_bytes)
        output = triton.InferRequestedOutput("SUM")
        output.set_shared_memory("region", num_bytes, offset=2 * num_bytes)
        result = client.infer("add_sub", inputs, outputs=[output])
        assert result.get_output("SUM") == {"name": "SUM", "datatype": "FP32", "shape": [2]}
        total = shared_memory.get_contents_as_numpy(region, np.float32, [2], offset=2 * num_bytes)
        np.testing.assert_array_equal(total, FIRST + SECOND)
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status() == []
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_errors_have_their_text_and_status(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="unexpected inference input 'X'") as refused:
        client.infer("add_sub", [tensor("X", FIRST), tensor("INPUT1", SECOND)])
    assert refused.value.status() == "400"
