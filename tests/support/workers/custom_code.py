"""A tiny model whose architecture is code in its own directory, as `trust_remote_code` is for."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.workers.tiny_models import build_tiny_model

RAN_FILE = "ran"  # beside the code, which adds the id of each process that runs it
CONFIG_CODE = """
import os
from pathlib import Path

from transformers import LlamaConfig

with open({ran!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")


class TwistedConfig(LlamaConfig):
    model_type = "twisted"
"""
MODEL_CODE = """
from transformers import LlamaForCausalLM

from .configuration_twisted import TwistedConfig


class TwistedForCausalLM(LlamaForCausalLM):
    config_class = TwistedConfig
"""


def build_custom_code_model(model_dir: Path) -> Path:
    """A Llama under a name of its own, which transformers does not know."""
    build_tiny_model("llama", model_dir)
    path = model_dir / "config.json"
    config = json.loads(path.read_text())
    config |= {
        "architectures": ["TwistedForCausalLM"],
        "model_type": "twisted",
        "auto_map": {
            "AutoConfig": "configuration_twisted.TwistedConfig",
            "AutoModelForCausalLM": "modeling_twisted.TwistedForCausalLM",
        },
    }
    path.write_text(json.dumps(config))
    (model_dir / "configuration_twisted.py").write_text(CONFIG_CODE.format(ran=str(model_dir / RAN_FILE)))
    (model_dir / "modeling_twisted.py").write_text(MODEL_CODE)
    return model_dir


def processes_that_ran(model_dir: Path) -> set[int]:
    path = model_dir / RAN_FILE
    return {int(line) for line in path.read_text().split()} if path.exists() else set()
