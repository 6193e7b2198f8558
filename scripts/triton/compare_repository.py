"""Repository control side by side: the same calls to a cluster and to the real Triton server, and where answers differ.

    python3 -m venv ../ref && ../ref/bin/pip install nvidia-pytriton==0.7.0
    .venv/bin/python scripts/triton/compare_repository.py ../ref

Both serve a repository of small models, some of them faulty, in control mode `explicit`, each a copy of its own.
Differences are printed; known ones are named in `KNOWN`.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "kserve"))

from tensor_servers import TensorServer, slipstream, triton

OPTIONS = ["--model-control-mode=explicit", "--exit-on-error=false"]
TIMEOUT_S = 20.0
SETTLE_S = 1.0  # unloading goes on behind the answer
KNOWN = {
    "bad_type": "the real server loses the reason",
    "json_cut": "the two JSON parsers say differently what is missing",
}
TENSORS = """
input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ -1 ] }
"""
PYTHON = f'backend: "python" {TENSORS}'
CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(output_tensors=[]) for _ in requests]
"""
COMPLETING = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
        config.add_output({"name": "B", "data_type": "TYPE_STRING", "dims": [-1]})
        config.set_max_batch_size(16)
        config.set_dynamic_batching()
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        return None
"""
SEQUENCE = """
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""
PRIORITIES = """
dynamic_batching {
  priority_levels: 3 default_priority_level: 2
  priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 5 } }
  default_queue_policy { allow_timeout_override: true max_queue_size: 4 }
}
"""
MODELS: dict[str, tuple[str | None, str]] = {  # name -> config.pbtxt (None: there is none), model.py
    "plain": (PYTHON, CODE),
    "batching": (f"{PYTHON} max_batch_size: 8 dynamic_batching {{}}", CODE),
    "groups": (f'{PYTHON} instance_group [ {{ count: 2 }}, {{ kind: KIND_CPU name: "x" }} ]', CODE),
    "sequences": (f"{PYTHON} max_batch_size: 8 {SEQUENCE}", CODE),
    "priorities": (f"{PYTHON} max_batch_size: 4 {PRIORITIES}", CODE),
    "versions": (f"{PYTHON} version_policy {{ all {{}} }}", CODE),
    "platform_and_backend": (f'platform: "python" {PYTHON}', CODE),
    "nothing": (None, CODE),
    "completing": (None, COMPLETING),
    "bad_type": (None, COMPLETING.replace("TYPE_STRING", "TYPE_BAD")),
    "raising": (None, COMPLETING.replace("return config", 'raise ValueError("no")')),
    "returning_none": (None, COMPLETING.replace("return config", "return None")),
    "no_class": (PYTHON, "x = 1\n"),
    "no_dims": ('backend: "python" input { name: "A" data_type: TYPE_FP32 }', CODE),
    "no_labels": (
        'backend: "python" output { name: "B" data_type: TYPE_FP32 dims: 1 label_filename: "no" }',
        CODE,
    ),
    "no_version": (f"{PYTHON} version_policy {{ specific {{ versions: 7 }} }}", CODE),
    "no_backend": (f'backend: "own" {TENSORS}', CODE),
    "no_gpu": (f"{PYTHON} instance_group {{ kind: KIND_GPU }}", CODE),
    "no_name": (f'name: "other" {PYTHON}', CODE),
    "platform_only": (f'platform: "python" {TENSORS}', CODE),
    "unknown_field": (f"{PYTHON} bogus: 3", CODE),
    "bad_priority": (f"{PYTHON} max_batch_size: 4 dynamic_batching {{ priority_levels: 3 }}", CODE),
}


@dataclass(frozen=True, slots=True)
class Call:
    label: str
    method: str
    path: str
    body: bytes = b""
    wait_s: float = 0.0


def write_repository(folder: Path) -> None:
    for name, (config, code) in MODELS.items():
        for version in ("1", "3") if name == "versions" else ("1",):
            (folder / name / version).mkdir(parents=True)
            (folder / name / version / "model.py").write_text(code)
        if config is not None:
            (folder / name / "config.pbtxt").write_text(config)


def calls() -> Iterator[Call]:
    for name in MODELS:
        yield load(name)
        yield Call(name, "GET", f"/v2/models/{name}/ready")
        yield Call(name, "GET", f"/v2/models/{name}/config")
        yield Call(name, "GET", f"/v2/models/{name}")
    yield Call("index", "POST", "/v2/repository/index", wait_s=SETTLE_S)
    yield Call("index", "POST", "/v2/repository/index", b'{"ready": true}')
    yield Call("server", "GET", "/v2/health/ready")
    yield load("plain", config=json.dumps({"backend": "python", "max_batch_size": 3}))
    yield Call("plain", "GET", "/v2/models/plain/config")
    yield load("plain", config='{"bogus": 3}')
    yield load("plain", **{"file:1/model.py": encoded(CODE)})
    yield load("plain", **{"config": '{"backend": "python"}', "file:../model.py": encoded(CODE)})
    yield load("plain", unknown="x")
    yield Call("json_cut", "POST", "/v2/repository/models/plain/load", b"{")
    for name in ("plain", "fresh"):
        yield load(name, **{"config": '{"backend": "python", "max_batch_size": 7}', "file:5/model.py": encoded(CODE)})
        yield Call(name, "GET", f"/v2/models/{name}")
    yield Call("plain", "POST", "/v2/repository/models/plain/unload")
    yield Call("plain", "GET", "/v2/models/plain/ready", wait_s=SETTLE_S)
    yield Call("plain", "GET", "/v2/models/plain")
    yield Call("nosuch", "POST", "/v2/repository/models/nosuch/unload")
    yield load("nosuch")
    yield load("plain")
    yield Call("plain", "GET", "/v2/models/plain/config")
    for version in ("1", "9", "x"):
        yield Call("plain", "GET", f"/v2/models/plain/versions/{version}")


def load(name: str, **parameters: str) -> Call:
    body = json.dumps({"parameters": parameters}).encode() if parameters else b""
    return Call(name, "POST", f"/v2/repository/models/{name}/load", body)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def answer(server: TensorServer, call: Call, folder: Path) -> dict[str, Any]:
    """Status and body, with the order of an index and the folder of the repository taken out."""
    request = urllib.request.Request(f"http://{server.http}{call.path}", data=call.body or None, method=call.method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    except TimeoutError:
        status, text = 0, f"no answer within {TIMEOUT_S:.0f} s"
    text = text.replace(str(folder), "REPOSITORY")
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    if isinstance(body, list):
        body = {f"{entry['name']}:{entry.get('version', '')}": entry for entry in body}
    return {"status": status, "body": body}


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            yield from differences(theirs.get(key), ours.get(key), f"{path}.{key}")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, pair in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif theirs != ours:
        yield f"{path}: {theirs!r}, ours {ours!r}"


def compare(theirs: TensorServer, ours: TensorServer, folders: tuple[Path, Path]) -> int:
    """The number of differences that are not known."""
    num_unknown = 0
    for call in calls():
        time.sleep(call.wait_s)
        found = list(differences(answer(theirs, call, folders[0]), answer(ours, call, folders[1])))
        unknown = [line for line in found if call.label not in KNOWN and not any(name in line for name in KNOWN)]
        num_unknown += len(unknown)
        outcome = "equal" if not found else "differs" if unknown else f"known: {KNOWN.get(call.label, 'see above')}"
        print(f"{call.method:4} {call.path:50} {outcome}", flush=True)
        for line in unknown:
            print(f"     {line}")
    return num_unknown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", type=Path, help="a virtual environment with nvidia-pytriton")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folders = Path(parent) / "theirs", Path(parent) / "ours"
        write_repository(folders[0])
        shutil.copytree(folders[0], folders[1])
        with triton(args.environment, folders[0], OPTIONS) as theirs, slipstream(folders[1], options=OPTIONS) as ours:
            num_unknown = compare(theirs, ours, folders)
    print(f"{num_unknown} differences")
    return min(num_unknown, 1)


if __name__ == "__main__":
    sys.exit(main())
