"""Batches of requests as a backend's model gets them, and what becomes of its outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from slipstream.workers.backends.backend import Arrays, BackendError
from slipstream.workers.backends.hosting.array_batches import KEPT_FROM_BYTES, ArrayBatches
from slipstream.workers.backends.hosting.backend_runner import BackendRunner
from slipstream.workers.backends.hosting.response_texts import ResponseTexts
from slipstream.workers.backends.python.instance.memory.output_memory import OutputMemory
from slipstream.workers.backends.python.instance.memory.shared_files import SharedFiles
from slipstream.workers.backends.python.instance.wire.frames import FrameMessage
from slipstream.workers.backends.python.instance.wire.tensor_writer import TensorWriter
from slipstream.workers.backends.python.model_api.tensors.bytes_elements import deserialize, serialize
from tests.support.workers.instance_process import request, shared_file

INLINE_BYTES = 1 << 16
SHARED = "slipstream-test-hosting"


class Model:
    """LoadedModel with a function."""

    def __init__(self, compute: Callable[[Arrays], Arrays]) -> None:
        self._compute = compute
        self.calls: list[tuple[dict[str, Any], list[str]]] = []  # shapes and wanted outputs

    def execute(self, inputs: Arrays, wanted: Sequence[str]) -> Arrays:
        self.calls.append(({name: array.shape for name, array in inputs.items()}, list(wanted)))
        return self._compute(inputs)

    def close(self) -> None: ...


class Lab:
    """One instance's side of the connection."""

    def __init__(self, memory: OutputMemory) -> None:
        self.memory = memory
        self.files = SharedFiles()
        self.writer = TensorWriter(memory, self.files)
        self.writer.configure(INLINE_BYTES, True)
        self.sent: list[tuple[dict[str, Any], bytes]] = []

    def send(self, head: str, pieces: list[Any], num_bytes: int) -> None:
        payload = b"".join(bytes(memoryview(piece).cast("B")) for piece in pieces)
        assert len(payload) == num_bytes
        self.sent.append((json.loads(head), payload))

    def run(
        self,
        model: Model,
        outputs: dict[str, str],
        requests: list[dict[str, Any]],
        payload: bytes = b"",
        batched: bool = True,
    ) -> dict[str, Any]:
        """`executed`."""
        batches = ArrayBatches(self.files, is_batched=batched)
        runner = BackendRunner(model, batches, ResponseTexts(outputs, self.writer), batched)
        head = {"type": "execute", "batch": 3, "requests": requests}
        runner.execute(FrameMessage(head, bytearray(payload)), self)  # type: ignore[arg-type]
        return self.sent[-1][0]

    def array(self, tensor: list[Any], dtype: Any) -> np.ndarray[Any, Any]:
        _, _, shape, place = tensor
        own = self.sent[-1][1]
        data = own[place[0] : sum(place)] if len(place) == 2 else bytes(self.files.bytes_at(*place))
        return np.frombuffer(data, dtype).reshape(shape)


@pytest.fixture
def lab() -> Iterator[Lab]:
    memory = OutputMemory("slipstream-test-hosting-out")
    yield Lab(memory)
    assert memory.num_used == 0, "memory of responses that were not sent, or not released"
    memory.begin_again()


def doubled(inputs: Arrays) -> Arrays:
    return {"Y": 2 * inputs["X"], "Z": inputs["X"] + 1}


def tensors(*arrays: np.ndarray[Any, Any], datatype: str = "FP32") -> tuple[list[dict[str, Any]], bytes]:
    """A request for each array, and their payload."""
    requests, payload = [], b""
    for number, array in enumerate(arrays):
        data = serialize(array) if datatype == "BYTES" else array.tobytes()
        payload += bytes(-len(payload) % 8)
        requests.append(request(number, [["X", datatype, list(array.shape), [len(payload), len(data)]]]))
        payload += data
    return requests, payload


ONE, TWO = np.array([[1, 2]], np.float32), np.array([[3, 4], [5, 6]], np.float32)
OUTPUTS = {"Y": "FP32", "Z": "FP32"}


def test_requests_are_computed_at_once_and_get_their_own_rows(lab: Lab) -> None:
    model = Model(doubled)
    executed = lab.run(model, OUTPUTS, *tensors(ONE, TWO))
    assert model.calls == [({"X": (3, 2)}, ["Y", "Z"])]
    assert (executed["batch"], executed["error"]) == (3, None)
    for response, array in zip(executed["responses"], (ONE, TWO), strict=True):
        assert [output[:3] for output in response["outputs"]] == [[name, "FP32", list(array.shape)] for name in "YZ"]
        np.testing.assert_array_equal(lab.array(response["outputs"][0], np.float32), 2 * array)
        np.testing.assert_array_equal(lab.array(response["outputs"][1], np.float32), array + 1)


def test_without_batches_each_request_is_computed_alone(lab: Lab) -> None:
    model = Model(doubled)
    executed = lab.run(model, OUTPUTS, *tensors(ONE[0], TWO[0]), batched=False)
    assert model.calls == [({"X": (2,)}, ["Y", "Z"])] * 2
    assert [len(response["outputs"]) for response in executed["responses"]] == [2, 2]
    np.testing.assert_array_equal(lab.array(executed["responses"][1]["outputs"][0], np.float32), 2 * TWO[0])


def test_only_outputs_that_some_request_wants_are_computed(lab: Lab) -> None:
    model = Model(doubled)
    requests, payload = tensors(ONE, TWO)
    requests[0]["outputs"], requests[1]["outputs"] = ["Z"], ["Z"]
    executed = lab.run(model, OUTPUTS, requests, payload)
    assert model.calls[0][1] == ["Z"]
    requests[1]["outputs"] = ["Y"]
    executed = lab.run(model, OUTPUTS, requests, payload)
    assert model.calls[1][1] == ["Y", "Z"]
    assert [[output[0] for output in response["outputs"]] for response in executed["responses"]] == [["Z"], ["Y"]]


def test_a_place_without_a_request_has_rows_but_no_response(lab: Lab) -> None:
    requests, payload = tensors(ONE, TWO)
    requests[0]["is_null"] = True
    executed = lab.run(Model(doubled), OUTPUTS, requests, payload)
    assert executed["responses"][0] is None
    np.testing.assert_array_equal(lab.array(executed["responses"][1]["outputs"][0], np.float32), 2 * TWO)


def test_bytes_are_elements_and_go_back_as_such(lab: Lab) -> None:
    def upper(inputs: Arrays) -> Arrays:
        return {"Y": np.array([[text.decode().upper()] for (text,) in inputs["X"]], dtype=object)}

    arrays = [np.array([[b"a"], ["ü".encode()]], dtype=object), np.array([[b""]], dtype=object)]
    executed = lab.run(Model(upper), {"Y": "BYTES"}, *tensors(*arrays, datatype="BYTES"))
    payload = lab.sent[-1][1]
    places = [response["outputs"][0][3] for response in executed["responses"]]
    assert [deserialize(payload[begin : begin + size]) for begin, size in places] == [[b"A", "Ü".encode()], [b""]]


def test_bfloat16_is_given_as_its_bits(lab: Lab) -> None:
    bits = np.array([[0x3F80, 0xC000]], np.uint16)
    executed = lab.run(Model(lambda inputs: {"Y": inputs["X"]}), {"Y": "BF16"}, *tensors(bits, datatype="BF16"))
    np.testing.assert_array_equal(lab.array(executed["responses"][0]["outputs"][0], np.uint16), bits)


def test_large_tensors_stay_in_shared_memory_and_are_not_copied_for_one_request(lab: Lab) -> None:
    rows = np.arange(KEPT_FROM_BYTES // 2, dtype=np.float32).reshape(2, -1)
    seen: list[np.ndarray[Any, Any]] = []

    def observe(inputs: Arrays) -> Arrays:
        seen.append(inputs["X"])
        return {"Y": inputs["X"]}

    with shared_file(SHARED, rows.tobytes() * 2) as mapping:
        place = [SHARED, 0, rows.nbytes]
        requests = [request(n, [["X", "FP32", list(rows.shape), place]]) for n in range(2)]
        executed = lab.run(Model(observe), {"Y": "FP32"}, requests[:1])
        assert not seen[0].flags.writeable
        mapping[0:4] = np.float32(7).tobytes()
        assert seen[0][0, 0] == 7
        mapping[0:4] = np.float32(0).tobytes()
        seen.clear()
        output = executed["responses"][0]["outputs"][0]
        np.testing.assert_array_equal(lab.array(output, np.float32), rows)
        lab.memory.release(*output[3][:2])
        executed = lab.run(Model(observe), {"Y": "FP32"}, requests)
        assert seen[0].shape == (4, rows.shape[1])
        for response in executed["responses"]:
            output = response["outputs"][0]
            np.testing.assert_array_equal(lab.array(output, np.float32), rows)
            lab.memory.release(*output[3][:2])
        seen.clear()


def test_outputs_go_where_a_client_wants_them(lab: Lab) -> None:
    requests, payload = tensors(ONE, TWO)
    with shared_file(SHARED, bytes(64)) as mapping:
        requests[1]["into"] = {"Y": [SHARED, 8, 32]}
        executed = lab.run(Model(doubled), OUTPUTS, requests, payload)
        assert executed["responses"][1]["outputs"][0][3] == [SHARED, 8, 16]
        np.testing.assert_array_equal(np.frombuffer(mapping[8:24], np.float32).reshape(2, 2), 2 * TWO)


def refuse(inputs: Arrays) -> Arrays:
    raise BackendError("no such word", "INVALID_ARG")


def crash(inputs: Arrays) -> Arrays:
    raise KeyError("word")


@pytest.mark.parametrize(
    ("compute", "error", "code"),
    [
        (refuse, "no such word", "INVALID_ARG"),
        (crash, "KeyError: 'word'", "INTERNAL"),
        (
            lambda inputs: {"Y": inputs["X"]},
            "output 'Z' is not among those that the model has computed",
            "INTERNAL",
        ),
        (
            lambda inputs: {"Y": inputs["X"], "Z": inputs["X"].astype(np.float64)},
            "unexpected datatype float64 of output 'Z', expecting FP32",
            "INVALID_ARG",
        ),
        (
            lambda inputs: {"Y": inputs["X"], "Z": inputs["X"][:1]},
            "output 'Z' has shape [1, 2]: its first dimension must be that of the batch, 3",
            "INTERNAL",
        ),
    ],
)
def test_a_failure_is_said_for_the_whole_batch(
    lab: Lab, compute: Callable[[Arrays], Arrays], error: str, code: str
) -> None:
    executed = lab.run(Model(compute), OUTPUTS, *tensors(ONE, TWO))
    assert (executed["responses"], executed["error"], executed["error_code"]) == ([], error, code)


def test_shapes_that_do_not_fit_together_are_refused(lab: Lab) -> None:
    executed = lab.run(Model(doubled), OUTPUTS, *tensors(ONE, TWO[:, :1]))
    assert executed["error"].startswith("input 'X' of the requests of a batch: all the input array dimensions")


def test_a_failure_after_large_outputs_gives_their_memory_back(lab: Lab) -> None:
    large = np.zeros((1, INLINE_BYTES), np.float32)
    calls = iter([{"Y": large}, {}])
    requests, payload = tensors(ONE, ONE)
    executed = lab.run(Model(lambda _: next(calls)), {"Y": "FP32"}, requests, payload, batched=False)
    assert executed["error"] == "output 'Y' is not among those that the model has computed"
