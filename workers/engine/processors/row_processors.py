"""The logits processors of one sequence."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slipstream.router.protocol.messages import ProcessorCall
from slipstream.workers.engine.processors.registered_processors import LogitsProcessor, LogitsProcessors

MAX_SHOWN_CHARS = 200

log = logging.getLogger(__name__)


class ProcessorError(Exception):
    """A processor has failed. The text names it, and says how."""


class RowProcessors:
    """The processors that a request has chosen, in its order, over the `tokens` of its sequence as they grow."""

    __slots__ = ("_calls", "_num_prompt", "_prompt_ids", "_tokens")

    def __init__(
        self, registered: LogitsProcessors, calls: Sequence[ProcessorCall], tokens: array[int], num_prompt: int
    ) -> None:
        """Raises UnknownProcessorError, and ValueError if arguments are no JSON object."""
        arguments = [json.loads(call.args) if call.args else {} for call in calls]
        for call, given in zip(calls, arguments, strict=True):
            if not isinstance(given, dict):
                raise ValueError(f"the arguments of {call.name!r} are no object")
        self._calls: list[tuple[LogitsProcessor, dict[str, Any]]] = list(
            zip(registered.chosen(calls), arguments, strict=True)
        )
        self._tokens = tokens
        self._num_prompt = num_prompt
        self._prompt_ids = tuple(tokens[:num_prompt])

    def apply(self, logits: Tensor) -> Tensor:
        """The scores [vocab], float32 on the CPU, after all processors. A token that is forbidden already stays so.
        Raises ProcessorError."""
        output_ids = tuple(self._tokens[self._num_prompt :])
        forbidden = logits == float("-inf")
        scores = logits
        for processor, arguments in self._calls:
            try:
                returned = processor(self._prompt_ids, output_ids, scores.clone(), arguments)
                scores = torch.as_tensor(returned).to("cpu", torch.float32)
            except (Exception, SystemExit) as error:
                log.warning("logits processor %r failed", processor.name, exc_info=True)
                raise ProcessorError(f"{processor.name!r} raised {_shown(error)}") from error
            if scores.shape != logits.shape:
                shapes = f"{tuple(scores.shape)} scores instead of {tuple(logits.shape)}"
                raise ProcessorError(f"{processor.name!r} returned {shapes}")
            if scores.isnan().any() or bool((scores == float("inf")).any()):
                raise ProcessorError(f"{processor.name!r} returned a score that is not a number, or infinite")
        return scores.masked_fill(forbidden, float("-inf"))


def _shown(error: BaseException) -> str:
    said = f"{type(error).__name__}: {error}"
    return said if len(said) <= MAX_SHOWN_CHARS else f"{said[: MAX_SHOWN_CHARS - 3]}..."
