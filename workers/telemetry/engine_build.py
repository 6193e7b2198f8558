"""The `Build` of a process that computes with a model, for its greeting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from slipstream.kernels.cpu.native_library import native_library
from slipstream.router.protocol.messages import Build
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.models.interface.model import Model
from slipstream.workers.models.native_model import NativeModel
from slipstream.workers.telemetry.expert_load import Rows
from slipstream.workers.telemetry.plain_build import plain_build

DRIVER_FILE = Path("/sys/module/nvidia/version")


def build_of(runner: ModelRunner) -> Build:
    """The build of this process, whose rank computes with that runner."""
    build = replace(
        plain_build(),
        torch=torch.__version__,
        instructions=_instructions(runner),
        dtype=str(runner.model.dtype).removeprefix("torch."),
    )
    if runner.kv.device.type != "cuda":
        return build
    return replace(build, cuda=torch.version.cuda or "", driver=driver_version())


def expert_rows(model: Model) -> Rows | None:
    """How often rows have chosen each expert, where that is counted: by the native kernels."""
    return model.expert_rows if isinstance(model, NativeModel) else None


def driver_version(file: Path = DRIVER_FILE) -> str:
    """The version of NVIDIA's kernel module; "": there is none."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _instructions(runner: ModelRunner) -> str:
    """What the kernels are made for: two that differ in it may round differently."""
    device = runner.kv.device
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"cuda {major}.{minor}"
    library = native_library() if isinstance(runner.model, NativeModel) else None
    if library is not None:
        return Path(library._name).stem.removeprefix("_")
    return f"torch {torch.backends.cpu.get_cpu_capability()}"
