"""A model that a backend loads and computes."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from slipstream.workers.backends.backend import BackendError, LoadedModel, ModelContext
from slipstream.workers.backends.hosting.array_batches import ArrayBatches
from slipstream.workers.backends.hosting.backend_module import backend_module
from slipstream.workers.backends.hosting.backend_runner import BackendRunner
from slipstream.workers.backends.hosting.failures import failure_of
from slipstream.workers.backends.hosting.response_texts import ResponseTexts
from slipstream.workers.backends.python.instance.hosted_model import InstanceMemory
from slipstream.workers.backends.python.instance.settings import Settings


class BackendModel:
    """HostedModel. Its backend is imported when the first command comes, so that a failure reaches the router."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._model: LoadedModel | None = None

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        context = self._context(config)
        completed = self._module().complete(context)
        assert isinstance(completed, dict), completed
        return completed

    def initialize(self, head: dict[str, Any], memory: InstanceMemory) -> BackendRunner:
        context = self._context(json.loads(head["args"]["model_config"]))
        refuse_unserved(context)
        model = self._model = self._module().load(context)
        batches = ArrayBatches(memory.files, is_batched=context.max_batch_size > 0)
        return BackendRunner(model, batches, ResponseTexts(head["outputs"], memory.writer), context.max_batch_size > 0)

    def finalize(self) -> None:
        if self._model is not None:
            try:
                self._model.close()
            except Exception:
                traceback.print_exc(file=sys.stderr)

    def failure_of(self, exception: BaseException) -> tuple[str, str]:
        return failure_of(exception)

    def _module(self) -> ModuleType:
        backend = self._settings.backend
        return backend_module(backend["name"], backend.get("file", ""))

    def _context(self, config: dict[str, Any]) -> ModelContext:
        settings = self._settings
        file = Path(settings.model_file)
        backend = settings.backend
        return ModelContext(
            name=config["name"],
            version=settings.version,
            version_folder=Path(backend["version_folder"]),
            model_file=file,
            config=config,
            instance=settings.name,
            kind=backend["kind"],
            device=backend["device"],
            settings=backend["settings"],
        )


def refuse_unserved(context: ModelContext) -> None:
    """What no backend has here. Raises BackendError."""
    if context.config.get("model_transaction_policy", {}).get("decoupled"):
        text = f"model '{context.name}': backend '{context.config['backend']}' does not serve decoupled models"
        raise BackendError(text, "UNSUPPORTED")
    ragged = [tensor["name"] for tensor in context.config.get("input", ()) if tensor.get("allow_ragged_batch")]
    if ragged or context.config.get("batch_input") or context.config.get("batch_output"):
        text = f"model '{context.name}': batches of requests with different shapes are not served (allow_ragged_batch)"
        raise BackendError(text, "UNSUPPORTED")
