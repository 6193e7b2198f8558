"""What a worker says of itself in its greeting."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from slipstream import __version__
from slipstream.kernels.cpu.native_library import native_library
from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.messages import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.telemetry.engine_build import build_of, driver_version
from slipstream.workers.telemetry.plain_build import plain_build
from tests.support.workers.tiny_models import build_tiny_model


@pytest.mark.parametrize("kernels", ["auto", "off"])
def test_a_worker_names_its_versions_and_what_its_kernels_are_made_for(tmp_path: Path, kernels: str) -> None:
    if kernels == "auto" and native_library() is None:
        pytest.skip("no native library here")
    model_dir = build_tiny_model("llama", tmp_path / "llama")
    config = EngineConfig(num_pages=8, num_threads=1, dtype="float32", cpu_kernels=kernels)  # type: ignore[arg-type]
    runner = build_runner(model_dir, config, engine_limits(model_dir, config).num_pages)
    build = build_of(runner)
    assert (build.slipstream, build.python, build.torch) == (__version__, platform.python_version(), torch.__version__)
    assert (build.cuda, build.driver, build.dtype) == ("", "", "float32")
    expected = ("avx512", "avx2") if kernels == "auto" else (f"torch {torch.backends.cpu.get_cpu_capability()}",)
    assert build.instructions in expected


def test_the_driver_of_a_gpu_is_read_from_its_module(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("535.104.05\n")
    assert driver_version(tmp_path / "version") == "535.104.05"
    assert driver_version(tmp_path / "none") == ""


def test_a_mock_worker_tells_its_version_and_no_layout() -> None:
    hello = MockProfile().hello(PeerId("w", 1), "decode", "m", TransferAddress("127.0.0.1", 1))
    assert (hello.oldest_version, hello.version) == (OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION)
    assert hello.build == plain_build()
    assert hello.layout.num_layers == 0
