"""An instance and the processes around it: routers that go and come, hosts that end, signals, children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.workers.instance_process import request, running_instance

COUNTER = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.count = 0

        def execute(self, requests):
            self.count += 1
            if requests[0].request_id() == "large":
                tensor = pb_utils.Tensor("OUT", np.zeros(100_000, dtype=np.int32))
            else:
                tensor = pb_utils.Tensor("OUT", np.array([self.count], dtype=np.int32))
            return [pb_utils.InferenceResponse([tensor])]

        def finalize(self):
            print("finalised")
"""


def test_an_instance_outlives_its_router(tmp_path: Path) -> None:
    with running_instance(tmp_path, COUNTER) as instance:
        instance.initialize({"OUT": "INT32"})
        first = instance.execute(request(1, id="large"))["responses"][0]["outputs"][0][3][0]
        instance.peer.close()
        hello = instance.accept()
        assert (hello["state"], hello["pid"]) == ("ready", instance.process.pid)
        executed = instance.execute(request(1))
        assert instance.peer.array(executed["responses"][0]["outputs"][0]).tolist() == [2]
        second = instance.execute(request(2, id="large"))["responses"][0]["outputs"][0][3][0]
        assert first != second, "the name of a removed file was used again"
        assert not Path("/dev/shm", first).exists()


LATE = """
    import threading
    import triton_python_backend_utils as pb_utils

    go_on = threading.Event()

    class TritonPythonModel:
        def execute(self, requests):
            if requests[0].request_id() == "late":
                sender = requests[0].get_response_sender()
                def respond():
                    go_on.wait()
                    assert sender.is_cancelled()
                    sender.send(pb_utils.InferenceResponse(), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                threading.Thread(target=respond).start()
                return None
            go_on.set()
            sender = requests[0].get_response_sender()
            sender.send(pb_utils.InferenceResponse(), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_a_response_to_a_request_of_a_lost_router_goes_nowhere(tmp_path: Path) -> None:
    with running_instance(tmp_path, LATE) as instance:
        instance.initialize({"OUT": "INT32"}, is_decoupled=True)
        instance.execute(request(5, id="late"))
        instance.peer.close()
        instance.accept()
        instance.execute(request(6))
        assert instance.peer.receive("response")["n"] == 6
        instance.execute(request(7))
        assert instance.peer.receive("response")["n"] == 7


def test_sigterm_finalises_the_model(tmp_path: Path) -> None:
    with running_instance(tmp_path, COUNTER) as instance:
        instance.initialize({"OUT": "INT32"})
        instance.process.send_signal(signal.SIGINT)
        instance.execute(request(1, id="large"))
        instance.process.send_signal(signal.SIGTERM)
        assert instance.process.wait(20) == 0
        assert instance.log.read_text() == "finalised\n"
        assert not list(Path("/dev/shm").glob(f"slipstream-{instance.launch}-*"))


def test_a_refused_instance_ends(tmp_path: Path) -> None:
    with running_instance(tmp_path, COUNTER) as instance:
        instance.peer.send({"type": "refused", "reason": "an unknown launch"})
        assert instance.process.wait(20) == 1
        assert "an unknown launch" in instance.log.read_text()


STARTER = """
import sys
from pathlib import Path
from tests.support.workers.instance_process import InstanceProcess
instance = InstanceProcess(Path(sys.argv[1]), Path(sys.argv[2]).read_text())
print(instance.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal of a parent's death is Linux's")
def test_an_instance_ends_with_the_host_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("import time\n", encoding="utf-8")
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path), str(tmp_path / "code")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
        text=True,
    )
    try:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        os.kill(pid, 0)
        starter.kill()
        starter.wait()
        deadline = time.monotonic() + 10
        while is_running(pid):
            assert time.monotonic() < deadline, f"process {pid} runs on"
            time.sleep(0.01)
    finally:
        starter.kill()
        starter.communicate()


def is_running(pid: int) -> bool:
    """Whether the process is there, and not a zombie whose parent has not asked for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


FORKER = """
    import multiprocessing
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def double(value):
        pb_utils.Logger.log_info("from a child")
        return 2 * value

    class TritonPythonModel:
        def execute(self, requests):
            with multiprocessing.get_context(requests[0].request_id()).Pool(1) as pool:
                doubled = pool.apply(double, (4,))
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([doubled], dtype=np.int32))])]
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_model_may_start_processes_of_its_own(tmp_path: Path, method: str) -> None:
    with running_instance(tmp_path, FORKER) as instance:
        instance.initialize({"OUT": "INT32"})
        executed = instance.execute(request(1, id=method))
        assert executed["error"] is None
        assert np.array_equal(instance.peer.array(executed["responses"][0]["outputs"][0]), [8])
        assert "from a child" in instance.log.read_text()
        assert not instance.peer.has_unread("log")
