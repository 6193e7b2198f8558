"""Models in ONNX and TorchScript files: computed by our backends, and by the same library within a Python model of the
real Triton Inference Server.

    .venv/bin/pip install onnx
    .venv/bin/python scripts/bench/kserve/bench_backends.py --triton ../triton --perf-analyzer perf_analyzer

Both servers have the same file, two instances with one thread each, and dynamic batching. The Python model joins the
requests of its batch and computes them at once; it imports numpy, PyTorch and ONNX Runtime from this interpreter's
packages. `small` adds two tensors of four numbers: its figures are what a backend costs beside our own Python models.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import sysconfig
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx
import torch
from bench_kserve import SHAPES, Cell, measure, show
from bench_repository import ADD_SUB, FOUR
from onnx import TensorProto, helper, numpy_helper
from tensor_servers import slipstream, triton

SIZE = 64
CHANNELS = (3, 32, 64, 80)
IMAGE = f"""
input {{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, {SIZE}, {SIZE} ] }}
output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] }}
"""
COMMON = """
max_batch_size: 8
dynamic_batching { }
instance_group { count: 2 kind: KIND_CPU }
"""
THREADS = {"onnxruntime": "intra_op_thread_count", "pytorch": "INTRA_OP_THREAD_COUNT"}
# The best that a Python model can do: one execution for all requests of a batch.
IN_PYTHON = """
import sys

sys.path.insert(0, {packages!r})
import numpy as np
import triton_python_backend_utils as pb_utils
{imports}


class TritonPythonModel:
    def initialize(self, args):
        path = args["model_repository"] + "/" + args["model_version"] + "/"
        {load}

    def execute(self, requests):
        parts = [pb_utils.get_input_tensor_by_name(request, "INPUT__0").as_numpy() for request in requests]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        {compute}
        responses, first = [], 0
        for part in parts:
            rows = output[first : first + len(part)]
            first += len(part)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT__0", rows)]))
        return responses
"""
ONNX_IN_PYTHON = {
    "imports": "import onnxruntime",
    "load": """options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path + "model.onnx", options)""",
    "compute": 'output = self.session.run(["OUTPUT__0"], {"INPUT__0": whole})[0]',
}
TORCH_IN_PYTHON = {
    "imports": "import torch",
    "load": """torch.set_num_threads(1)
        self.model = torch.jit.load(path + "model.pt").eval()""",
    "compute": """with torch.inference_mode():
            output = self.model(torch.from_numpy(whole)).numpy()""",
}
SHAPES.update({"onnx": [], "torch": [], "small": [], "small_python": []})


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = itertools.pairwise(CHANNELS)
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(one, other, 3, padding=1) for one, other in sizes)
        self.head = torch.nn.Linear(CHANNELS[-1], 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        output: torch.Tensor = self.head(x.mean((2, 3)))
        return output


def write_onnx(path: Path, network: Network) -> None:
    """The network, with its weights."""
    nodes, weights, last = [], [], "INPUT__0"

    def weight(name: str, values: torch.Tensor) -> str:
        weights.append(numpy_helper.from_array(values.detach().numpy(), name))
        return name

    for index, layer in enumerate(network.layers):
        inputs = [last, weight(f"w{index}", layer.weight), weight(f"b{index}", layer.bias)]
        nodes.append(helper.make_node("Conv", inputs, [f"c{index}"], pads=[1, 1, 1, 1]))
        last = f"r{index}"
        nodes.append(helper.make_node("Relu", [f"c{index}"], [last]))
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    head = ["flat", weight("w", network.head.weight), weight("b", network.head.bias)]
    nodes.append(helper.make_node("Gemm", head, ["OUTPUT__0"], transB=1))
    image = helper.make_tensor_value_info("INPUT__0", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])
    scores = helper.make_tensor_value_info("OUTPUT__0", TensorProto.FLOAT, ["n", 10])
    save_graph(path, helper.make_graph(nodes, "network", [image], [scores], initializer=weights))


def write_add_sub(path: Path) -> None:
    nodes = [helper.make_node("Add", ["A", "B"], ["SUM"]), helper.make_node("Sub", ["A", "B"], ["DIFF"])]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in names]
        for names in ("AB", ("SUM", "DIFF"))
    )
    save_graph(path, helper.make_graph(nodes, "add_sub", inputs, outputs))


def save_graph(path: Path, graph: Any) -> None:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def write_model(repository: Path, name: str, backend: str, tensors: str) -> Path:
    """The folder of its version."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    threads = f'parameters {{ key: "{THREADS[backend]}" value {{ string_value: "1" }} }}' if backend in THREADS else ""
    (repository / name / "config.pbtxt").write_text(f'backend: "{backend}" {COMMON} {tensors} {threads}')
    return version


def write_repositories(ours: Path, theirs: Path) -> None:
    torch.manual_seed(0)
    network = Network().eval()
    traced = torch.jit.trace(network, torch.rand(2, 3, SIZE, SIZE))  # type: ignore[no-untyped-call]
    packages = sysconfig.get_path("purelib")
    for name, backend, code in (("onnx", "onnxruntime", ONNX_IN_PYTHON), ("torch", "pytorch", TORCH_IN_PYTHON)):
        python = write_model(theirs, name, "python", IMAGE)
        (python / "model.py").write_text(IN_PYTHON.format(packages=packages, **code))
        for folder in (write_model(ours, name, backend, IMAGE), python):
            if name == "onnx":
                write_onnx(folder / "model.onnx", network)
            else:
                traced.save(str(folder / "model.pt"))
    write_add_sub(write_model(ours, "small", "onnxruntime", FOUR) / "model.onnx")
    (write_model(ours, "small_python", "python", FOUR) / "model.py").write_text(ADD_SUB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", type=Path, help="a virtual environment with nvidia-pytriton")
    parser.add_argument("--perf-analyzer", required=True, help="the program")
    parser.add_argument("--models", default="onnx,torch,small,small_python")
    parser.add_argument("--protocols", default="http,grpc")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--window-ms", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--real-time", action="store_true", help="servers and client run before all else (root)")
    args = parser.parse_args()
    cells: dict[tuple[str, str, int, str], Cell] = {}
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        write_repositories(folder / "ours", folder / "theirs")
        servers = [running.enter_context(slipstream(folder / "ours"))]
        if args.triton is not None:
            servers.append(running.enter_context(triton(args.triton, folder / "theirs")))
        if args.real_time:
            for server in servers:
                server.run_before_all_else()
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # which the client inherits
        for _ in range(args.repeats):
            for model in args.models.split(","):
                for protocol in args.protocols.split(","):
                    for clients in map(int, args.clients.split(",")):
                        for server in servers[: 1 if model.startswith("small") else None]:
                            one = measure(server, model, protocol, clients, args)
                            cell = cells.setdefault((model, protocol, clients, server.name), Cell())
                            cell.rates += one.rates
                            cell.p50_us += one.p50_us
                            cell.p99_us += one.p99_us
                            cell.cpu_us += one.cpu_us
                            print(f"{model} {protocol} {clients} {server.name}: {one.rates[0]:.0f}/s", file=sys.stderr)
    show(cells, [server.name for server in servers])


if __name__ == "__main__":
    main()
