"""Runs one output of a language model to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream.router.api.generation.answer.choice import Choice
from slipstream.router.api.generation.answer.failures import GenerationFailed
from slipstream.router.language_backends.generation.output_part import OutputPart
from slipstream.router.protocol.generation import Delta

OnPart = Callable[[OutputPart], None]


class OutputRun:
    """`on_part` gets what the output grows by, in order; the last part has the reason of its end."""

    __slots__ = ("_choice", "_last", "_on_part", "_total_logprob")

    def __init__(self, choice: Choice[Any], on_part: OnPart) -> None:
        self._choice = choice
        self._on_part = on_part
        self._last = OutputPart()  # what came with the end
        self._total_logprob = 0.0

    async def to_end(self) -> None:
        """Raises GenerationFailed."""
        stream, output = self._choice.stream, self._choice.output
        is_over = False
        while not is_over:
            is_over = await stream.each(self._take) or output.stopped
        if output.stopped:
            stream.cancel("stop")
        elif stream.finish is None or stream.finish.reason not in ("stop", "length"):
            assert stream.finish is not None
            raise GenerationFailed(stream.finish)
        last = self._last
        last.text += output.finish()
        last.reason = "stop" if output.stopped or stream.finish is None else stream.finish.reason
        last.total_logprob = self._total_logprob
        self._choice.reason = "length" if last.reason == "length" else "stop"
        self._on_part(last)

    def _take(self, delta: Delta) -> bool:
        choice, output = self._choice, self._choice.output
        finish = choice.stream.finish  # set by the time the last delta arrives
        ends_with_stop_token = finish is not None and delta[-1][0] == finish.stop_token_id
        hides_last = ends_with_stop_token and choice.hides_stop_token
        choice.meter.served_by(choice.stream.record.version)
        choice.meter.tokens(len(delta))
        num_before = output.num_tokens
        text = output.add(delta, hides_last)
        tokens = delta[: output.num_tokens - num_before]
        for _, logprob in tokens:
            if logprob is not None:
                self._total_logprob += logprob.logprob
        part = OutputPart(text, tokens, hides_last and not output.stopped, total_logprob=self._total_logprob)
        if output.stopped or finish is not None:
            self._last = part
        else:
            self._on_part(part)
        return not output.stopped
