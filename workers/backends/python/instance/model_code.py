"""The code of a model: its import, and the completion of its configuration."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from slipstream.workers.backends.python.instance.failure_text import InstanceError
from slipstream.workers.backends.python.model_api.model_config import ModelConfig


def import_model(model_file: str, version: str) -> Any:
    """The module `<version>.<file>`, as models and what they pickle know themselves; `<file>` if it is the code of a
    backend, which does not lie in a version's folder. The folders of the version and of the model are on `sys.path`,
    behind everything else. Nothing is written there: Python would take compiled code for that of a file that was
    changed within a second and has as many bytes, and a new folder changes the version's time, by which `poll` knows
    changes. Raises what the code raises."""
    sys.dont_write_bytecode = True
    if not os.path.exists(model_file):
        raise InstanceError(f"Python model file not found in '{model_file}'")
    folder, file = os.path.split(model_file)
    name, extension = os.path.splitext(file)
    if extension != ".py":
        raise InstanceError(f"Model name must end with '.py'. Model name is \"{file}\".")
    for path in (folder, os.path.dirname(folder)):
        if path not in sys.path:
            sys.path.append(path)
    module = f"{version}.{name}" if os.path.basename(folder) == version else name
    __import__(module)  # as an import statement, whose traceback has no frames of importlib's functions
    return sys.modules[module]


def complete_config(module: Any, config: dict[str, Any]) -> dict[str, Any]:
    """What the model makes of its configuration. Raises what its code raises."""
    model_class = module.TritonPythonModel
    if not hasattr(model_class, "auto_complete_config"):
        return config
    completed = model_class.auto_complete_config(ModelConfig(json.dumps(config)))
    if not isinstance(completed, ModelConfig):
        raise InstanceError(
            f"auto_complete_config function in model '{config['name']}' must return a valid pb.ModelConfig object."
        )
    return completed.as_dict()
