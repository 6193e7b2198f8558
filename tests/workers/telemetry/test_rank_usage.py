"""What a rank measures of its process and its GPU."""

from __future__ import annotations

import queue
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from slipstream.router.protocol.messages import GpuUsage, RankUsage
from slipstream.workers.telemetry.rank_usage import RankUsageSampler
from tests.support.router.fake_nvml import GPU_IS_LOST, FakeGpu, FakeNvml

WAIT_S = 10.0
CPU = torch.device("cpu")


def test_a_rank_measures_its_process_again_and_again_until_it_ends() -> None:
    taken: queue.Queue[RankUsage] = queue.Queue()
    with RankUsageSampler(3, CPU, taken.put, interval_s=0.001):
        before = taken.get(timeout=WAIT_S)
        until_s = time.process_time() + 0.05
        while time.process_time() < until_s:
            pass
        later = before
        while later.cpu_seconds <= before.cpu_seconds:
            later = taken.get(timeout=WAIT_S)
    assert before.rank == 3
    assert before.resident_memory_bytes > 1_000_000
    assert before.gpus == ()
    assert "usage" not in {thread.name for thread in threading.enumerate()}


def test_a_rank_measures_its_own_gpu_only_and_closes_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(FakeGpu("GPU-6"), FakeGpu("GPU-7"))
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="7"))
    taken: queue.Queue[RankUsage] = queue.Queue()
    with RankUsageSampler(0, torch.device("cuda:1"), taken.put):
        assert taken.get(timeout=WAIT_S).gpus == (GpuUsage("GPU-7", 0.25, 10, 1000, 30.5, 41),)
    assert library.num_open == 0


def test_a_gpu_that_is_lost_leaves_the_rest_of_the_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu("GPU-7", fails={"nvmlDeviceGetUUID": GPU_IS_LOST})
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpu))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="7"))
    taken: queue.Queue[RankUsage] = queue.Queue()
    with RankUsageSampler(0, torch.device("cuda:0"), taken.put):
        assert taken.get(timeout=WAIT_S).gpus == ()


def test_without_a_gpu_its_library_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    taken: queue.Queue[RankUsage] = queue.Queue()
    with RankUsageSampler(0, CPU, taken.put):
        taken.get(timeout=WAIT_S)
    assert "pynvml" not in sys.modules
