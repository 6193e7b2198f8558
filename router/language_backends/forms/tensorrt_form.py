"""Requests of the backend `tensorrtllm`, which have tokens or a text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.language_backends.forms.completed_tensors import add_missing, tensor_config
from slipstream.router.language_backends.forms.request_values import RequestValues
from slipstream.router.language_backends.forms.tensorrt_answer import TensorRtAnswer
from slipstream.router.language_backends.forms.tensorrt_sampling import first, logit_bias, sampling_of
from slipstream.router.language_backends.forms.word_lists import words_of
from slipstream.router.language_backends.generation.tensor_generation import RowRequest, TensorGeneration
from slipstream.router.language_backends.settings.language_settings import LanguageSettings
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.model_spec import ModelSpec

TOKENS_INPUT, TEXT_INPUT = "input_ids", "text_input"
TEXT_INPUTS = (
    tensor_config(TEXT_INPUT, "TYPE_STRING", 1),
    tensor_config("max_tokens", "TYPE_INT32", 1, is_optional=True),
    *(tensor_config(name, "TYPE_STRING", -1, is_optional=True) for name in ("bad_words", "stop_words")),
    *(
        tensor_config(name, "TYPE_INT32", 1, is_optional=True)
        for name in ("end_id", "pad_id", "top_k", "min_length", "beam_width", "num_return_sequences")
    ),
    *(
        tensor_config(name, "TYPE_FP32", 1, is_optional=True)
        for name in ("top_p", "temperature", "length_penalty", "repetition_penalty", "presence_penalty")
    ),
    tensor_config("frequency_penalty", "TYPE_FP32", 1, is_optional=True),
    tensor_config("random_seed", "TYPE_UINT64", 1, is_optional=True),
    *(
        tensor_config(name, "TYPE_BOOL", 1, is_optional=True)
        for name in ("return_log_probs", "stream", "exclude_input_in_output")
    ),
)
TEXT_OUTPUTS = (
    tensor_config("text_output", "TYPE_STRING", -1),
    tensor_config("cum_log_probs", "TYPE_FP32", -1),
    tensor_config("output_log_probs", "TYPE_FP32", -1, -1),
)
NO_STREAM = "Streaming is only supported if model is deployed using decoupled mode."


@dataclass(slots=True)
class TensorRtForm:
    """RequestForm. With `has_tokens`, prompts and outputs are token ids, else texts."""

    settings: LanguageSettings
    has_tokens: bool
    _spec: ModelSpec = field(init=False)

    def complete(self, config: dict[str, Any]) -> None:
        if not config.get("input"):
            add_missing(config, "input", TEXT_INPUTS)
        if not config.get("output"):
            add_missing(config, "output", TEXT_OUTPUTS)

    def bind(self, spec: ModelSpec) -> None:
        self._spec = spec

    def failure(self, error: InferError) -> InferError:
        return error

    def read(self, active: ActiveRequest) -> TensorGeneration:
        values, spec = RequestValues(active.request, active.batch_size), self._spec
        is_streamed = bool(first(values, 0, "streaming", "stream"))
        if is_streamed and not spec.is_decoupled:
            raise InferError(NO_STREAM)
        rows = range(active.batch_size)
        if values.one("stop", 0):
            return TensorGeneration((), is_streamed, TensorRtAnswer(spec, frozenset(), (), 0), stops=True)
        excludes = bool(values.one("exclude_input_in_output", 0, default=self.settings.excludes_input))
        requests = [self._row(values, row) for row in rows]
        prefixes = [
            request.fields["prompt"][:0] if excludes or is_streamed else request.fields["prompt"]
            for request in requests
        ]
        asked = {output.name for output in active.request.requested}
        outputs = frozenset(tensor.name for tensor in spec.outputs if not asked or tensor.name in asked)
        answer = TensorRtAnswer(spec, outputs, prefixes, pad_of(values))
        return TensorGeneration(requests, is_streamed, answer)

    def _row(self, values: RequestValues, row: int) -> RowRequest:
        settings = self.settings
        fields = sampling_of(values, row, settings.sampling, settings.max_beam_width)
        bias = logit_bias(values, row)
        if bias:
            fields["logit_bias"] = bias
        if not self.has_tokens:
            return self._text(values, row, fields)
        fields |= {
            "prompt": prompt_of(values, row),
            "max_tokens": output_length(values, row),
            "detokenize": False,
        }
        stop_words = words_of("stop_words_list", values.row("stop_words_list", row))
        return RowRequest(fields, stop_words, words_of("bad_words_list", values.row("bad_words_list", row)))

    def _text(self, values: RequestValues, row: int, fields: dict[str, Any]) -> RowRequest:
        fields["prompt"] = values.text(TEXT_INPUT, row)
        max_tokens = first(values, row, "max_tokens", "request_output_len")
        if max_tokens is not None:
            fields["max_tokens"] = max_tokens
        stop_words = values.texts("stop_words", row)
        if stop_words:
            fields |= {"stop": stop_words, "include_stop_str_in_output": True}
        bad_words = values.texts("bad_words", row)
        if bad_words:
            fields["bad_words"] = bad_words
        return RowRequest(fields)


def prompt_of(values: RequestValues, row: int) -> list[int]:
    """Raises InferError."""
    token_ids = values.row(TOKENS_INPUT, row)
    length = values.one("input_lengths", row, len(token_ids))
    if not 0 <= length <= len(token_ids):
        raise InferError(f"'input_lengths' is {length}, and '{TOKENS_INPUT}' has {len(token_ids)} tokens")
    if not length:
        raise InferError(f"'{TOKENS_INPUT}' has no tokens")
    lowest = min(token_ids[:length])
    if lowest < 0:
        raise InferError(f"'{TOKENS_INPUT}' must have token ids of at least 0, got {lowest}")
    return list(token_ids[:length])


def output_length(values: RequestValues, row: int) -> int | None:
    """Raises InferError."""
    length: int | None = values.one("request_output_len", row)
    if length is not None and length < 1:
        raise InferError(f"'request_output_len' must be at least 1, got {length}")
    return length


def pad_of(values: RequestValues) -> int:
    """What fills the outputs that are shorter than others."""
    pad_id = first(values, 0, "pad_id", "end_id")
    return pad_id if pad_id is not None and 0 <= pad_id < 2**31 else 0
