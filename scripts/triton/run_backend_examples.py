"""The examples of Triton's Python backend, models and clients unmodified, against a cluster.

    git clone https://github.com/triton-inference-server/python_backend ../python_backend
    python3 -m venv ../clients && ../clients/bin/pip install 'tritonclient[all]==2.73.0' requests
    .venv/bin/python scripts/triton/run_backend_examples.py ../python_backend --python ../clients/bin/python

Prints a line for each client. The clients ask at ports 8000 to 8002, which must be free. Left out are the examples that
need jax, TensorRT or a model that is downloaded.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "kserve"))

from example_run import run_example
from tensor_servers import slipstream

MODELS = {  # name in the repository -> its model and configuration among the examples
    "add_sub": ("add_sub/model.py", "add_sub/config.pbtxt"),
    "nobatch_auto_complete": ("auto_complete/nobatch_model.py", ""),
    "batch_auto_complete": ("auto_complete/batch_model.py", ""),
    "bls_sync": ("bls/sync_model.py", "bls/sync_config.pbtxt"),
    "bls_async": ("bls/async_model.py", "bls/async_config.pbtxt"),
    "bls_decoupled_sync": ("bls_decoupled/sync_model.py", "bls_decoupled/sync_config.pbtxt"),
    "bls_decoupled_async": ("bls_decoupled/async_model.py", "bls_decoupled/async_config.pbtxt"),
    "custom_metrics": ("custom_metrics/model.py", "custom_metrics/config.pbtxt"),
    "repeat_int32": ("decoupled/repeat_model.py", "decoupled/repeat_config.pbtxt"),
    "square_int32": ("decoupled/square_model.py", "decoupled/square_config.pbtxt"),
    "pytorch": ("pytorch/model.py", "pytorch/config.pbtxt"),
}
CLIENTS = [
    *("add_sub/client.py", "auto_complete/client.py", "bls/sync_client.py", "bls/async_client.py"),
    *("bls_decoupled/sync_client.py", "bls_decoupled/async_client.py", "custom_metrics/client.py"),
    *("decoupled/repeat_client.py", "decoupled/square_client.py", "pytorch/client.py"),
]
PORTS = (8000, 8001, 8002)


def write_repository(folder: Path, examples: Path) -> None:
    for name, (model, config) in MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        shutil.copy(examples / model, folder / name / "1" / "model.py")
        if config:
            shutil.copy(examples / config, folder / name / "config.pbtxt")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="of the Python backend's repository")
    parser.add_argument("--python", required=True, help="an interpreter that has tritonclient[all] and requests")
    args = parser.parse_args()
    examples = args.checkout / "examples"
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder), examples)
        with slipstream(Path(folder), ports=PORTS):
            num_failed = sum(not run_example(client, [args.python, str(examples / client)]) for client in CLIENTS)
    print(f"{num_failed} failed")
    return min(num_failed, 1)


if __name__ == "__main__":
    sys.exit(main())
