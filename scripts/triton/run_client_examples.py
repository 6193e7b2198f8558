"""The example programs of Triton's client library, unmodified, against a cluster that serves a repository.

    git clone https://github.com/triton-inference-server/client ../triton-client
    python3 -m venv ../clients && ../clients/bin/pip install 'tritonclient[all]==2.73.0'
    .venv/bin/python scripts/triton/run_client_examples.py ../triton-client --python ../clients/bin/python

Prints a line for each program. Left out are those for images (a model of hundreds of megabytes) and for CUDA.
`--triton VENV` runs them against the real server, too (see `scripts/bench/kserve/bench_kserve.py`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "kserve"))

from example_models import FURTHER_MODELS, MODELS, write_models
from example_run import run_example
from tensor_servers import TensorServer, slipstream, triton

EXAMPLES = Path("src") / "python" / "examples"
PROGRAMS = [
    ("simple_http_infer_client.py", "http", []),
    ("simple_http_infer_client.py", "http", ["--request-compression-algorithm", "gzip"]),
    ("simple_http_infer_client.py", "http", ["--response-compression-algorithm", "deflate"]),
    ("simple_http_aio_infer_client.py", "http", []),
    ("simple_http_async_infer_client.py", "http", []),
    ("simple_http_health_metadata.py", "http", []),
    ("simple_http_string_infer_client.py", "http", []),
    ("simple_http_shm_client.py", "http", []),
    ("simple_http_shm_string_client.py", "http", []),
    ("simple_http_sequence_sync_infer_client.py", "http", []),
    ("simple_http_sequence_sync_infer_client.py", "http", ["-d", "-o", "1"]),
    ("simple_grpc_infer_client.py", "grpc", []),
    ("simple_grpc_infer_client.py", "grpc", ["-C", "gzip"]),
    ("simple_grpc_aio_infer_client.py", "grpc", []),
    ("simple_grpc_async_infer_client.py", "grpc", []),
    ("simple_grpc_custom_args_client.py", "grpc", []),
    ("simple_grpc_keepalive_client.py", "grpc", []),
    ("simple_grpc_health_metadata.py", "grpc", []),
    ("simple_grpc_string_infer_client.py", "grpc", []),
    ("simple_grpc_shm_client.py", "grpc", []),
    ("simple_grpc_shm_string_client.py", "grpc", []),
    ("simple_grpc_sequence_sync_infer_client.py", "grpc", []),
    ("simple_grpc_sequence_sync_infer_client.py", "grpc", ["-d", "-o", "2"]),
    ("simple_grpc_sequence_stream_infer_client.py", "grpc", ["-o", "3"]),
    ("simple_grpc_sequence_stream_infer_client.py", "grpc", ["-d", "-o", "4"]),
    ("simple_grpc_aio_sequence_stream_infer_client.py", "grpc", ["-o", "5"]),
    ("simple_grpc_custom_repeat.py", "grpc", []),
    ("grpc_explicit_int_content_client.py", "grpc", []),
    ("grpc_explicit_int8_content_client.py", "grpc", []),
    ("grpc_explicit_byte_content_client.py", "grpc", []),
    ("reuse_infer_objects_client.py", "http", []),
    ("reuse_infer_objects_client.py", "grpc", ["-i", "grpc"]),
]
CONTROL = [
    ("simple_http_model_control.py", "http", []),
    ("simple_grpc_model_control.py", "grpc", []),
]


def run(server: TensorServer, program: tuple[str, str, list[str]], args: argparse.Namespace) -> bool:
    """One program; prints how it ended."""
    name, protocol, options = program
    url = server.http if protocol == "http" else server.grpc
    command = [args.python, str(args.checkout / EXAMPLES / name), "-u", url, *options]
    return run_example(f"{server.name:12} {' '.join((name, *options))}", command)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="of the client library's repository")
    parser.add_argument("--python", required=True, help="an interpreter that has tritonclient[all]")
    parser.add_argument("--triton", type=Path, help="a virtual environment with nvidia-pytriton")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    args = parser.parse_args()
    num_failed = 0
    with tempfile.TemporaryDirectory() as folder:
        all_models, counted_models = Path(folder) / "all", Path(folder) / "counted"
        write_models(all_models, MODELS | FURTHER_MODELS)
        write_models(counted_models, MODELS)
        explicit = ("--model-control-mode=explicit",)
        runs = [(all_models, PROGRAMS, ()), *((counted_models, [program], explicit) for program in CONTROL)]
        for repository, programs, options in runs:
            chosen = [program for program in programs if args.only in program[0]]
            if not chosen:
                continue
            with ExitStack() as running:
                servers = [running.enter_context(slipstream(repository, options=options))]
                if args.triton is not None:
                    servers.append(running.enter_context(triton(args.triton, repository, options)))
                num_failed += sum(not run(server, program, args) for program in chosen for server in servers)
    print(f"{num_failed} failed")
    return min(num_failed, 1)


if __name__ == "__main__":
    sys.exit(main())
