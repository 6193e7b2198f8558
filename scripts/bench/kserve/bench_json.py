"""JSON tensor requests over HTTP beside MLServer and the real Triton Inference Server, with `wrk` as the client.

    python3.11 -m venv ../mlserver && ../mlserver/bin/pip install mlserver==1.7.1
    .venv/bin/python scripts/bench/kserve/bench_json.py --mlserver ../mlserver [--triton ../triton]    # apt install wrk

MLServer runs the model in its own process. Each cell is a closed loop of so many connections; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench_repository import write_repository
from tensor_servers import ROOT, TensorServer, free_port, served, slipstream, triton

MODEL = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class AddSub(MLModel):
    async def predict(self, payload):
        a, b = (NumpyCodec.decode_input(one) for one in payload.inputs)
        outputs = [NumpyCodec.encode_output("SUM", a + b), NumpyCodec.encode_output("DIFF", a - b)]
        return InferenceResponse(model_name=self.name, outputs=outputs)
"""
INPUTS = [{"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]} for name in "AB"]
POST = f"""
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{json.dumps({"inputs": INPUTS})}'
"""


@contextmanager
def mlserver(venv: Path, folder: Path) -> Iterator[TensorServer]:
    """A server of one model that adds and subtracts."""
    http, grpc = free_port(), free_port()
    (folder / "add_sub_model.py").write_text(MODEL)
    (folder / "model-settings.json").write_text(
        json.dumps({"name": "add_sub", "implementation": "add_sub_model.AddSub"})
    )
    settings = {"http_port": http, "grpc_port": grpc, "metrics_port": free_port(), "parallel_workers": 0}
    (folder / "settings.json").write_text(json.dumps({**settings, "debug": False}))
    command = [str(venv / "bin" / "mlserver"), "start", str(folder)]
    yield from served("mlserver", command, http, grpc, ROOT, {"PYTHONPATH": str(folder)})


def rate_of(server: TensorServer, script: Path, clients: int, seconds: int) -> float:
    """Requests a second. Raises RuntimeError if one was refused."""
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}", "-s", str(script)]
    url = f"http://{server.http}/v2/models/add_sub/infer"
    text = subprocess.run([*command, url], check=True, capture_output=True, text=True, env=os.environ).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if found is None or "Non-2xx" in text:
        raise RuntimeError(f"{server.name}: {text}")
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlserver", type=Path, required=True, help="a virtual environment")
    parser.add_argument("--triton", type=Path, help="a virtual environment with nvidia-pytriton")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    rates: dict[tuple[int, str], list[float]] = defaultdict(list)
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        write_repository(folder / "repository")
        (folder / "mlserver").mkdir()
        script = folder / "post.lua"
        script.write_text(POST)
        servers = [running.enter_context(slipstream(folder / "repository"))]
        servers.append(running.enter_context(mlserver(args.mlserver, folder / "mlserver")))
        if args.triton is not None:
            servers.append(running.enter_context(triton(args.triton, folder / "repository")))
        for _ in range(args.repeats):
            for clients in map(int, args.clients.split(",")):
                for server in servers:
                    rates[clients, server.name].append(rate_of(server, script, clients, args.seconds))
    print("| clients | server | requests/s | min to max |\n|--:|---|--:|--:|")
    for (clients, name), found in rates.items():
        print(f"| {clients} | {name} | {statistics.median(found):.0f} | {min(found):.0f} to {max(found):.0f} |")


if __name__ == "__main__":
    main()
