"""The ops of the device that is checked."""

from __future__ import annotations

from gpu_checks.setting import Setting

from slipstream.kernels.gpu_modules import gpu_module
from slipstream.kernels.ops import Ops, TorchOps


def device_ops(setting: Setting) -> Ops:
    module = gpu_module("gpu.triton_ops") if setting.device.type == "cuda" else None
    if module is None:
        return TorchOps()
    ops: Ops = module.TritonOps()
    return ops
