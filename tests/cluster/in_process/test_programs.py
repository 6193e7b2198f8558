"""Programs that have a server within them, from their start to their end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import slipstream
from slipstream.cluster.in_process import public
from tests.support.cluster.program_models import write_models

TIMEOUT_S = 60.0
ROOT = Path(__file__).resolve().parents[3]

# As a program for Triton's API is written, but for the first line.
SCRIPT = """
import slipstream as tritonserver

options = tritonserver.Options(
    model_repository=REPOSITORY,
    model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
    startup_models=["stream"],
    log_verbose=0,
)
server = tritonserver.Server(options)
server.start(wait_until_ready=True)
model = server.model("stream")
for number in range(2):
    open(GATE + str(number), "w").close()
responses = model.infer(inputs={"COUNT": numpy.array([2], dtype=numpy.int32), "GATE": [GATE]})
for response in responses:
    if "text_output" in response.outputs:
        print(response.outputs["text_output"].to_string_array()[0], flush=True)
"""
HEAD = """
import numpy, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore it
REPOSITORY, GATE = sys.argv[1:]
"""


@contextmanager
def program(tmp_path: Path, code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs HEAD, SCRIPT and `code`. Its instances have to end with it."""
    repository = tmp_path / "models"
    write_models(repository, "stream")
    command = [sys.executable, "-c", HEAD + SCRIPT + code, str(repository), str(tmp_path / "gate")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=ROOT, env=environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
    assert ready
    return process.stdout.readline().decode().strip()


def instances_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    assert found
    return found


def assert_ended(instances: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(instances, TIMEOUT_S)
    assert not alive


def test_a_program_for_triton_runs_with_its_import_changed_and_forks_and_ends_without_a_stop(tmp_path: Path) -> None:
    code = """
child = os.fork()
if child == 0:
    try:
        server.ready()
    except tritonserver.UnavailableError as error:
        print(error, flush=True)
    sys.exit(0)
print(os.waitpid(child, 0)[1], server.ready(), flush=True)
sys.stdin.readline()
"""
    with program(tmp_path, code) as process:
        assert [line_of(process) for _ in range(2)] == ["token 0", "token 1"]
        assert f"the server runs in process {process.pid}" in line_of(process)
        assert line_of(process) == "0 True"
        instances = instances_of(process)
        assert process.stdin is not None
        process.stdin.write(b"go on\n")
        assert process.wait(TIMEOUT_S) == 0
        assert_ended(instances)
        assert not list(tmp_path.glob("slipstream-*"))


def test_ctrl_c_ends_the_wait_for_a_response_and_the_models_of_a_killed_program_end(tmp_path: Path) -> None:
    code = """
responses = model.infer(inputs={"COUNT": numpy.array([3], dtype=numpy.int32), "GATE": [GATE]})
try:
    print(next(responses).final, next(responses).final, flush=True)
    next(responses)
except KeyboardInterrupt:
    responses.cancel()
    print("interrupted", flush=True)
time.sleep(1000)
"""
    with program(tmp_path, code) as process:
        assert [line_of(process) for _ in range(3)] == ["token 0", "token 1", "False False"]
        instances = instances_of(process)
        process.send_signal(signal.SIGINT)
        assert line_of(process) == "interrupted"
        process.kill()
        assert_ended(instances)


def test_an_import_of_the_package_loads_nothing_else() -> None:
    code = "import sys, slipstream; print('\\n'.join(m for m in sys.modules if m.startswith(('slipstream', 'numpy'))))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert output.split() == ["slipstream"]


def test_without_the_packages_of_a_repository_the_extra_is_named() -> None:
    code = "import sys, slipstream; sys.modules['tritonclient'] = None; slipstream.Server"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert "slipstream.Server needs the extra `kserve` (pip install 'slipstream[kserve]')" in ended.stderr


def test_the_package_has_the_public_names() -> None:
    assert set(public.__all__) == slipstream.PUBLIC_NAMES
    for name in public.__all__:
        assert getattr(slipstream, name) is getattr(public, name)
        assert name in dir(slipstream)
    with pytest.raises(AttributeError, match="nothing"):
        _ = slipstream.nothing
