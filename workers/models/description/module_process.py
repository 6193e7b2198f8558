"""Runs one of our modules on a model directory in a process of its own, with a bound for time. Such a process imports
torch and transformers, which takes seconds and hundreds of megabytes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from slipstream.router.process.module_command import module_command
from slipstream.workers.models.directory.json_keys import ModelError

TIMEOUT_S = 300
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


def run_in_subprocess(module: str, arguments: Iterable[str], model_dir: Path) -> bytes:
    """Returns what the module prints. Raises ModelError if it fails or takes too long."""
    try:
        done = subprocess.run(
            module_command(module, *arguments),
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"{model_dir}: transformers has not described the model within {TIMEOUT_S} s") from None
    except OSError as error:
        raise ModelError(f"{model_dir}: no process can be started to describe it: {error.strerror or error}") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = lines[-1] if lines else f"its process ended with {done.returncode}"
        raise ModelError(f"{model_dir}: transformers cannot describe the model: {why}")
    return done.stdout
