"""A model that is written in Python: `TritonPythonModel` of its file."""

from __future__ import annotations

import sys
from typing import Any, Callable

from slipstream.workers.backends.python.instance.batch_execution import BatchExecutor
from slipstream.workers.backends.python.instance.failure_text import failure_text
from slipstream.workers.backends.python.instance.hosted_model import InstanceMemory
from slipstream.workers.backends.python.instance.model_code import complete_config, import_model
from slipstream.workers.backends.python.instance.settings import Settings


class PythonModel:
    """HostedModel. `log_failure` gets the text of what a coroutine raises that no one awaits."""

    def __init__(self, settings: Settings, log_failure: Callable[[str], None]) -> None:
        self._settings = settings
        self._log_failure = log_failure
        self._module: Any = None
        self._model: Any = None
        self._background: Any = None  # a BackgroundLoop, once a coroutine has come

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        return complete_config(self._imported(), config)

    def initialize(self, head: dict[str, Any], memory: InstanceMemory) -> BatchExecutor:
        model = self._imported().TritonPythonModel()
        if hasattr(model, "initialize"):
            model.initialize(dict(head["args"]))
        self._model = model
        return BatchExecutor(
            model,
            self._settings.name,
            self._settings.model_file,
            head["outputs"],
            head["is_decoupled"],
            memory.writer,
            memory.inputs,
            self._run_coroutine,
        )

    def finalize(self) -> None:
        if self._background is not None:
            self._background.stop()
        if self._model is not None and hasattr(self._model, "finalize"):
            try:
                self._model.finalize()
            except Exception as exception:
                print(failure_text(exception), file=sys.stderr)

    def failure_of(self, exception: BaseException) -> tuple[str, str]:
        return failure_text(exception), "INTERNAL"

    def _imported(self) -> Any:
        if self._module is None:
            self._module = import_model(self._settings.model_file, self._settings.version)
        return self._module

    def _run_coroutine(self, coroutine: Any, in_background: bool) -> Any:
        if self._background is None:
            # asyncio costs every process milliseconds and memory; only models that are asynchronous pay it.
            from slipstream.workers.backends.python.instance.background_loop import BackgroundLoop

            self._background = BackgroundLoop(self._log_failure)
        return self._background.run(coroutine, in_background)
