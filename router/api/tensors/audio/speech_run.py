"""The calls of a speech model for one request."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.router.api.tensors.audio.transcript import Segment
from slipstream.router.api.tensors.audio.transcription_form import TranscriptionForm
from slipstream.router.api.tensors.models.endpoint_call import EndpointCall
from slipstream.router.api.tensors.models.endpoint_errors import misconfigured
from slipstream.router.api.tensors.models.model_tensors import NUMBERS, TEXT
from slipstream.router.api.tensors.models.tensor_arrays import Array
from slipstream.router.api.tensors.text.text_source import text_array
from slipstream.router.config.endpoints_config import TranscriptionsEndpoint
from slipstream.router.http.http_error import HttpError
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.model_spec import TensorSpec

AUDIO = ("samples", "waveform", "wav", "audio_signal", "input", "input_values")
LENGTH = ("num_samples", "length_samples", "audio_length")
TEXTS = ("text", "transcript", "transcription", "text_output", "texts")
TIMES = {"start": ("start", "starts", "start_s"), "end": ("end", "ends", "end_s")}


class SpeechRun:
    """Raises HttpError if the configuration does not fit the model, or the request asks for what it cannot do."""

    def __init__(self, call: EndpointCall, config: TranscriptionsEndpoint, form: TranscriptionForm, task: str) -> None:
        self._model = call.model()
        self._layout = call.layout(self._model)
        self._tensors = call.tensors(self._model, config.inputs)
        self._config = config
        self._audio = self._audio_input()
        self._inputs = self._other_inputs(form, task)
        key = "outputs.text"
        self._text = self._tensors.output(config.outputs.get("text", ""), frozenset({TEXT}), TEXTS, key)
        self._times = {role: found for role in TIMES if (found := self._output(role, TIMES[role])) is not None}
        self._language = self._output("language", ("language",))
        self.language = form.language

    @property
    def takes_samples(self) -> bool:
        """Otherwise the model takes the file."""
        return self._audio.datatype != TEXT

    @property
    def window(self) -> int | None:
        """How many samples go into one call; None: all."""
        size = self._audio.dims[-1] if self._audio.dims else -1
        if size > 0:
            return size
        window_s = self._config.window_s
        return None if window_s is None else max(1, round(window_s * self._config.sample_rate))

    def windows(self, samples: Array) -> list[Array]:
        size = self.window or len(samples)
        return [samples[begin : begin + size] for begin in range(0, len(samples), size)]

    async def of_file(self, data: bytes) -> AsyncGenerator[list[Segment], None]:
        """The segments of each response. A model that takes the file says when they are, or nothing is known."""
        file = np.empty(1, dtype=object)
        file[0] = data
        inputs = {self._audio.name: self._layout.placed(self._audio, file), **self._inputs}
        async with contextlib.aclosing(self._model.stream(inputs, self._wanted)) as responses:
            async for outputs in responses:
                yield self._segments(outputs, 0.0, 0.0)

    async def of_window(self, samples: Array, begin_s: float) -> AsyncGenerator[list[Segment], None]:
        """The segments of each response for one window."""
        size = self._audio.dims[-1] if self._audio.dims else -1
        filled = np.pad(samples, (0, size - len(samples))) if size > len(samples) else samples
        if self._audio.datatype.startswith("INT"):
            top = np.iinfo(DATATYPES[self._audio.datatype].numpy_name or "int16").max
            filled = np.clip(filled * top, -top, top)
        inputs = {self._audio.name: self._layout.placed(self._audio, filled[None]), **self._inputs}
        length = self._tensors.input_of("length", LENGTH)
        if length is not None:
            inputs[length.name] = self._layout.placed(length, np.array([len(samples)]))
        end_s = begin_s + len(samples) / self._config.sample_rate
        async with contextlib.aclosing(self._model.stream(inputs, self._wanted)) as responses:
            async for outputs in responses:
                yield self._segments(outputs, begin_s, end_s)

    @property
    def _wanted(self) -> Sequence[str]:
        return [self._text.name, *self._times.values(), *([self._language] if self._language else [])]

    def _segments(self, outputs: Mapping[str, Array], begin_s: float, end_s: float) -> list[Segment]:
        """Those of one response. Without times, the text is one segment as long as what was heard."""
        if self._language and self._language in outputs and outputs[self._language].size:
            self.language = bytes(outputs[self._language].ravel()[0]).decode("utf-8", "replace")
        texts = [bytes(one).decode("utf-8", "replace") for one in outputs.get(self._text.name, NOTHING).ravel()]
        times = {role: outputs[name].ravel() for role, name in self._times.items() if name in outputs}
        if len(times) < len(TIMES):
            return [Segment(begin_s, end_s, "".join(texts))] if any(texts) else []
        starts, ends = times["start"], times["end"]
        if not len(texts) == len(starts) == len(ends):
            counts = f"{len(texts)} texts, {len(starts)} starts and {len(ends)} ends"
            raise misconfigured(self._model.endpoint, f"the model gave {counts}")
        return [
            Segment(begin_s + float(start), begin_s + float(end), text)
            for start, end, text in zip(starts, ends, texts, strict=True)
            if text
        ]

    def _audio_input(self) -> TensorSpec:
        found = self._tensors.input_of("audio", AUDIO)
        if found is None:
            required = [one for one in self._model.spec.inputs if not one.is_optional]
            if len(required) != 1:
                raise misconfigured(self._model.endpoint, "inputs.audio must name the model's input of audio")
            found = required[0]
        if found.datatype not in NUMBERS | {TEXT, "INT16", "INT32"}:
            problem = f"inputs.audio, {found.name!r}, must be floats, INT16, INT32 or BYTES, not {found.datatype}"
            raise misconfigured(self._model.endpoint, problem)
        return found

    def _other_inputs(self, form: TranscriptionForm, task: str) -> dict[str, Array]:
        given: dict[str, Any] = {
            "language": form.language or None,
            "prompt": form.prompt or None,
            "temperature": form.temperature,
            "task": task,
        }
        inputs = {}
        for role, value in given.items():
            tensor = self._tensors.input_of(role)
            if tensor is None:
                if role == "task" and task == "translate":
                    message = "This model does not translate: it has no input of the role 'task'."
                    raise HttpError(400, message, param="model", code="unsupported_parameter")
                continue
            if value is None and tensor.is_optional:
                continue
            if tensor.datatype == TEXT:
                array = text_array(["" if value is None else str(value)])
            else:
                array = np.array([value or 0]).astype(DATATYPES[tensor.datatype].numpy_name or np.float32)
            inputs[tensor.name] = self._layout.placed(tensor, array)
        return inputs

    def _output(self, role: str, known_as: Sequence[str]) -> str | None:
        name = self._config.outputs.get(role)
        if name is not None:
            return self._tensors.named(name, self._model.spec.outputs, "output").name
        by_name = {output.name.lower(): output.name for output in self._model.spec.outputs}
        return next((by_name[one] for one in known_as if one in by_name), None)


NOTHING: Array = np.empty(0, dtype=object)
