"""Pages from a prefill process on one GPU to a decode process on another, by whole transfer agents over NCCL.

With --dry-run they go from CPU to CPU over gloo. Two ranks on one GPU cannot have an NCCL group.
"""

from __future__ import annotations

import os

import torch
from gpu_checks.ceilings import ceilings
from gpu_checks.page_transfer import DRY_JOB, FULL_JOB, measure
from gpu_checks.setting import Setting

STEP = "nccl"


def run(setting: Setting) -> None:
    if not setting.is_dry and torch.cuda.device_count() < 2:
        setting.add(STEP, "agents", note="skipped: NCCL needs two GPUs")
        return
    job = DRY_JOB if setting.is_dry else FULL_JOB
    devices = ("cpu", "cpu") if setting.is_dry else ("cuda:0", "cuda:1")
    measure(setting, STEP, "nccl", job, dict(os.environ), ceilings(setting), devices, target=None)
