"""A worker on a CPU does not pay for the GPU's kernels."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slipstream.kernels.gpu_modules import gpu_module


def test_starting_up_does_not_import_triton() -> None:
    modules = "slipstream.workers.engine.engine_builder, slipstream.workers.transfers.device_pages"
    program = f"import sys, {modules}; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_where_there_is_no_triton_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert gpu_module("gpu.triton_ops") is None
