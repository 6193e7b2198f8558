"""The ops of the device that is checked."""

from __future__ import annotations

import importlib
from typing import Any

from gpu_checks.setting import Setting

from slipstream.kernels.ops import Ops, TorchOps


def device_ops(setting: Setting) -> Ops:
    if setting.device.type != "cuda":
        return TorchOps()
    # Named here only: the module imports triton, which a dry run on a CPU does without.
    module: Any = importlib.import_module("slipstream.kernels.gpu.ops")
    ops: Ops = module.TritonOps()
    return ops
