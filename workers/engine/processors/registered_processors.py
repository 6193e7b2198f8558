"""The logits processors that the configuration registers by name (`engine.logits_processors`).

    def processor(prompt_ids, output_ids, logits, **arguments): return logits

`prompt_ids` and `output_ids` are tuples of token ids, `logits` is a float32 tensor `[vocab]` of the processor's own on
the CPU. It returns as many scores, as a tensor or an array. It must be a function of its arguments alone: a request
that goes on at another worker calls the one there.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.router.protocol.messages import ProcessorCall
from slipstream.workers.engine.limits.engine_errors import EngineConfigError

Function = Callable[..., Any]

SLOW_S = 0.05  # of one call: as long as a step of a large model
LOG_EVERY_S = 60.0

log = logging.getLogger(__name__)


class UnknownProcessorError(ValueError):
    """No processor of this name is registered."""


class LogitsProcessor:
    """One function by its name. Slow calls are logged, as the sequences of all clients wait for each."""

    __slots__ = ("_function", "_logged_s", "_num_slow", "name")

    def __init__(self, name: str, function: Function) -> None:
        self.name = name
        self._function = function
        self._num_slow = 0  # since the last line in the log
        self._logged_s = -LOG_EVERY_S

    def __call__(
        self, prompt_ids: tuple[int, ...], output_ids: tuple[int, ...], logits: Any, arguments: Mapping[str, Any]
    ) -> Any:
        begin_s = time.monotonic()
        try:
            return self._function(prompt_ids, output_ids, logits, **arguments)
        finally:
            now = time.monotonic()
            if now - begin_s > SLOW_S:
                self._was_slow(now - begin_s, now)

    def _was_slow(self, seconds: float, now: float) -> None:
        self._num_slow += 1
        if now - self._logged_s >= LOG_EVERY_S:
            log.warning(
                "logits processor %r took %.0f ms for one token, and all sequences of this worker waited; slow calls "
                "since the last such line: %d",
                self.name,
                seconds * 1e3,
                self._num_slow,
            )
            self._logged_s, self._num_slow = now, 0


class LogitsProcessors:
    """The processors of a worker."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._processors = {name: LogitsProcessor(name, function) for name, function in functions.items()}

    @classmethod
    def load(cls, registered: Mapping[str, str]) -> LogitsProcessors:
        """Imports them, each from `package.module:function`. Raises EngineConfigError, which names the key."""
        return cls({name: _imported(name, target) for name, target in registered.items()})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._processors))

    def chosen(self, calls: Sequence[ProcessorCall]) -> list[LogitsProcessor]:
        """Those that a request calls, in order. Raises UnknownProcessorError."""
        for call in calls:
            if call.name not in self._processors:
                known = ", ".join(map(repr, self.names)) or "none"
                raise UnknownProcessorError(f"{call.name!r} is not registered at this worker; registered: {known}")
        return [self._processors[call.name] for call in calls]


NO_PROCESSORS = LogitsProcessors({})


def _imported(name: str, target: str) -> Function:
    key = f"engine.logits_processors.{name}"
    module, _, attributes = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (Exception, SystemExit) as error:  # whatever the code of the module does
        raise EngineConfigError(f"{key}: cannot import {target!r}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise EngineConfigError(f"{key}: {target!r} is not a function, but {type(found).__name__}")
    function: Function = found
    return function
