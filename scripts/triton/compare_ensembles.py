"""Ensembles side by side: the same calls to a cluster and to the real Triton server, and where answers differ.

    python3 -m venv ../ref && ../ref/bin/pip install nvidia-pytriton==0.7.0
    .venv/bin/python scripts/triton/compare_ensembles.py ../ref

Both serve the same ensembles of Python models in control mode `explicit`, some of them faulty, each a copy of its own.
Differences are printed; known ones are named in `KNOWN`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "kserve"))

from compare_repository import OPTIONS, SETTLE_S, Call, answer, differences, load
from tensor_servers import TensorServer, slipstream, triton

KNOWN = {  # label -> why
    "missing": "all models that are missing are named",
    "index": "an ensemble that could not be loaded has its reason",
    "cached": "the parameters of a cached answer are kept",
    "fork": "outputs have the order of the configuration",
    "config": "fields of newer servers",
}
TYPE = "TYPE_INT32"
HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"
ADD_ONE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if value.ravel()[0] == 13:
                error = pb_utils.TritonError("thirteen", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
            elif value.ravel()[0] == 15:
                responses.append(pb_utils.InferenceResponse([]))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value + 1)]))
        return responses
"""
ADD_UP = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            other = pb_utils.get_input_tensor_by_name(request, "B")
            total = value if other is None else value + other.as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)]))
        return responses
"""
TWO = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            outputs = [pb_utils.Tensor("OUT", value)]
            if value.ravel()[0] != 7:
                outputs.append(pb_utils.Tensor("OUT2", 2 * value))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
COUNT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            for number in range(int(value.ravel()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full_like(value, number))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def tensor(kind: str, name: str, data_type: str = TYPE, dims: str = "-1", more: str = "") -> str:
    return f'{kind} {{ name: "{name}" data_type: {data_type} dims: [ {dims} ] {more} }}\n'


def tensors(inputs: str = "IN", outputs: str = "OUT", data_type: str = TYPE, dims: str = "-1") -> str:
    given = [tensor("input", name, data_type, dims) for name in inputs.split()]
    return "".join(given + [tensor("output", name, data_type, dims) for name in outputs.split()])


OPTIONAL = "optional: true"
SUM = tensor("input", "A") + tensor("input", "B") + tensor("output", "OUT")
SUM_OF_SOME = tensor("input", "A") + tensor("input", "B", more=OPTIONAL) + tensor("output", "OUT")
SOME = tensor("input", "IN") + tensor("input", "MORE", more=OPTIONAL) + tensor("output", "OUT")
MODELS: dict[str, tuple[str, str]] = {
    "a": (tensors(), ADD_ONE),
    "b": (tensors(), ADD_ONE),
    "c": (tensors(), ADD_ONE),
    "batching": (tensors() + "max_batch_size: 8 dynamic_batching { }", ADD_ONE),
    "small_batch": (tensors() + "max_batch_size: 4", ADD_ONE),
    "sum": (SUM, ADD_UP),
    "sum_of_some": (SUM_OF_SOME, ADD_UP),
    "two": (tensors(outputs="OUT OUT2"), TWO),
    "count": (tensors() + "model_transaction_policy { decoupled: true }", COUNT),
    "floats": (tensors(data_type="TYPE_FP32"), ADD_ONE),
    "fixed": (tensors(dims="3"), ADD_ONE),
}
IN_OUT = ({"IN": "IN"}, {"OUT": "OUT"})
Steps = list[tuple[str, Mapping[str, str], Mapping[str, str]]]
ENSEMBLES: dict[str, tuple[str, Steps]] = {
    "three": (
        tensors(),
        [("a", {"IN": "IN"}, {"OUT": "x"}), ("b", {"IN": "x"}, {"OUT": "y"}), ("c", {"IN": "y"}, {"OUT": "OUT"})],
    ),
    "mixed": (
        tensors() + "max_batch_size: 8",
        [("batching", {"IN": "IN"}, {"OUT": "x"}), ("a", {"IN": "x"}, {"OUT": "OUT"})],
    ),
    "nested": (tensors(), [("three", {"IN": "IN"}, {"OUT": "x"}), ("a", {"IN": "x"}, {"OUT": "OUT"})]),
    "fork": (
        tensors(outputs="O1 O2"),
        [("a", {"IN": "IN"}, {"OUT": "O1"}), ("b", {"IN": "IN"}, {"OUT": "O2"})],
    ),
    "some": (SOME, [("sum_of_some", {"A": "IN", "B": "MORE"}, {"OUT": "OUT"})]),
    "needed": (SOME, [("sum", {"A": "IN", "B": "MORE"}, {"OUT": "OUT"})]),
    "lacks_output": (tensors(outputs="O1 O2"), [("two", {"IN": "IN"}, {"OUT": "O1", "OUT2": "O2"})]),
    "lacks_input": (
        tensors(),
        [("two", {"IN": "IN"}, {"OUT": "x", "OUT2": "y"}), ("sum", {"A": "x", "B": "y"}, {"OUT": "OUT"})],
    ),
    "lacks_option": (
        tensors(),
        [("two", {"IN": "IN"}, {"OUT": "x", "OUT2": "y"}), ("sum_of_some", {"A": "x", "B": "y"}, {"OUT": "OUT"})],
    ),
    "stream": (
        tensors(),
        [("a", {"IN": "IN"}, {"OUT": "x"}), ("count", {"IN": "x"}, {"OUT": "y"}), ("b", {"IN": "y"}, {"OUT": "OUT"})],
    ),
    "cached": (tensors() + "response_cache { enable: true }", [("a", *IN_OUT)]),
    "bad_batch": (tensors() + "max_batch_size: 8", [("small_batch", *IN_OUT)]),
    "bad_type": (tensors(), [("a", {"IN": "IN"}, {"OUT": "x"}), ("floats", {"IN": "x"}, {"OUT": "OUT"})]),
    "bad_shape": (tensors(dims="4"), [("fixed", *IN_OUT)]),
    "unmapped": (tensors(), [("sum", {"A": "IN"}, {"OUT": "OUT"})]),
    "bad_input": (tensors(), [("a", {"IN": "IN", "Q": "IN"}, {"OUT": "OUT"})]),
    "bad_output": (tensors(), [("a", {"IN": "IN"}, {"Q": "OUT"})]),
    "missing": (tensors(), [("no", {"IN": "IN"}, {"OUT": "x"}), ("nor", {"IN": "x"}, {"OUT": "OUT"})]),
    "circle": (tensors(), [("circle_too", *IN_OUT)]),
    "circle_too": (tensors(), [("circle", *IN_OUT)]),
    "two_streams": (
        tensors(),
        [("count", {"IN": "IN"}, {"OUT": "x"}), ("sum", {"A": "x", "B": "IN"}, {"OUT": "OUT"})],
    ),
}


def write_repository(folder: Path) -> None:
    for name, (config, code) in MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(HEAD + code)
        (folder / name / "config.pbtxt").write_text(f'backend: "python"\n{config}')
    for name, (config, steps) in ENSEMBLES.items():
        (folder / name / "1").mkdir(parents=True)
        texts = [
            f'step {{ model_name: "{model}" model_version: -1 {mapped("input_map", reads)} '
            f"{mapped('output_map', writes)} }}\n"
            for model, reads, writes in steps
        ]
        text = f'platform: "ensemble"\n{config}\nensemble_scheduling {{\n{"".join(texts)}}}\n'
        (folder / name / "config.pbtxt").write_text(text)


def mapped(name: str, names: Mapping[str, str]) -> str:
    return " ".join(f'{name} {{ key: "{key}" value: "{value}" }}' for key, value in names.items())


def infer(model: str, *values: int, shape: list[int] | None = None, **more: Any) -> Call:
    """A request with the input IN; others may be given in `more`."""
    given = {"name": "IN", "datatype": "INT32", "shape": shape or [len(values)], "data": list(values)}
    body = {"inputs": [given], **more}
    return Call(model, "POST", f"/v2/models/{model}/infer", json.dumps(body).encode())


def wanting(model: str, value: int, *outputs: str) -> Call:
    return infer(model, value, outputs=[{"name": name} for name in outputs])


def unload(name: str, *, with_dependents: bool = False) -> Call:
    body = {"parameters": {"unload_dependents": True}} if with_dependents else {}
    return Call(name, "POST", f"/v2/repository/models/{name}/unload", json.dumps(body).encode())


def index(wait_s: float = 0.0) -> Call:
    return Call("index", "POST", "/v2/repository/index", b"{}", wait_s)


def calls() -> Iterator[Call]:
    for name in ENSEMBLES:
        if name != "circle_too":
            yield load(name)
    yield index()
    yield from (infer("three", value) for value in (1, 11, 12, 13, 15))
    yield from (infer("mixed", 1, 2, shape=shape) for shape in ([1, 2], [2, 1]))
    yield infer("mixed", *range(9), shape=[9, 1])
    yield from (infer(name, 1) for name in ("nested", "fork", "some", "needed", "stream"))
    yield from (wanting("fork", 1, *outputs) for outputs in (("O1",), ("O2", "O1"), ("NO",)))
    yield from (wanting("lacks_output", 7, *outputs) for outputs in (("O1", "O2"), ("O1",), ("O2",)))
    yield from (infer(name, value) for name in ("lacks_input", "lacks_option") for value in (6, 7))
    sequence = {"sequence_id": 77, "sequence_start": True}
    yield infer("three", 1, id="R", parameters={"priority": 1, "timeout": 1_000_000, "p": "x", **sequence})
    yield from (infer("cached", 1), infer("cached", 1))
    for name in ("three", "stream"):
        yield Call(name, "GET", f"/v2/models/{name}")
        yield Call("config", "GET", f"/v2/models/{name}/config")
    yield Call("three", "POST", "/v2/models/three/generate", b'{"IN": [1]}')
    yield Call("stream", "POST", "/v2/models/stream/generate_stream", b'{"IN": [2]}')
    yield from life_cycle()


def life_cycle() -> Iterator[Call]:
    """What becomes of ensembles when their models are unloaded and loaded."""
    yield from (unload("a"), infer("three", 1), Call("three", "GET", "/v2/models/three/ready"), infer("nested", 1))
    yield from (load("a"), infer("three", 1), infer("nested", 1))
    yield unload("nested", with_dependents=True)
    yield from (unload("three", with_dependents=True), infer("three", 1), infer("fork", 1), index(2 * SETTLE_S))


def compare(theirs: TensorServer, ours: TensorServer, folders: tuple[Path, Path]) -> int:
    """The number of differences that are not known."""
    num_unknown = 0
    for call in calls():
        time.sleep(call.wait_s)
        found = list(differences(answer(theirs, call, folders[0]), answer(ours, call, folders[1])))
        known = KNOWN.get(call.label, "")
        outcome = "equal" if not found else f"known: {known}" if known else "differs"
        print(f"{call.method:4} {call.path:50} {outcome}", flush=True)
        if found and not known:
            num_unknown += len(found)
            print("".join(f"     {line}\n" for line in found), end="")
    return num_unknown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", type=Path, help="a virtual environment with nvidia-pytriton")
    args = parser.parse_args()
    options = [*OPTIONS, "--cache-config=local,size=1048576"]
    with tempfile.TemporaryDirectory() as parent:
        folders = Path(parent) / "theirs", Path(parent) / "ours"
        write_repository(folders[0])
        shutil.copytree(folders[0], folders[1])
        caches = next(args.environment.resolve().glob("lib/*/site-packages/pytriton/tritonserver/caches"))
        own = [*options, f"--cache-directory={caches}"]
        with triton(args.environment, folders[0], own) as theirs, slipstream(folders[1], options=options) as ours:
            num_unknown = compare(theirs, ours, folders)
    print(f"{num_unknown} differences")
    return min(num_unknown, 1)


if __name__ == "__main__":
    sys.exit(main())
