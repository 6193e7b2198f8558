"""Which datatypes the tensors of a language model may have: a wrong one is found when the model is loaded, and not by
each request."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slipstream.router.tensors.model_spec import ModelSpec, TensorSpec

INTEGERS = tuple(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
NUMBERS = ("FP16", "FP32", "FP64", *INTEGERS)
TEXT_INPUTS = (
    *("text_input", "sampling_parameters", "image", "embedding_request", "stop_words", "bad_words"),
    *("guided_decoding_guide_type", "guided_decoding_guide"),
)
INTEGER_INPUTS = (
    *("input_ids", "input_lengths", "request_output_len", "max_tokens", "min_length", "min_tokens", "end_id", "pad_id"),
    *("top_k", "runtime_top_k", "beam_width", "num_return_sequences", "random_seed", "seed"),
    *("stop_words_list", "bad_words_list"),
)
NUMBER_INPUTS = (
    *("temperature", "top_p", "runtime_top_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    "embedding_bias",
)
FLAG_INPUTS = (
    *("stream", "streaming", "stop", "exclude_input_in_output", "return_log_probs", "return_finish_reason"),
    *("return_cumulative_logprob", "return_logprobs", "return_num_input_tokens", "return_num_output_tokens"),
)
INPUTS: dict[str, Collection[str]] = {
    **dict.fromkeys(TEXT_INPUTS, ("BYTES",)),
    **dict.fromkeys(INTEGER_INPUTS, INTEGERS),
    **dict.fromkeys(NUMBER_INPUTS, NUMBERS),
    **dict.fromkeys(FLAG_INPUTS, ("BOOL", *INTEGERS)),
}
OUTPUTS: dict[str, Collection[str]] = {
    **dict.fromkeys(("text_output", "finish_reason", "logprobs"), ("BYTES",)),
    **dict.fromkeys(("cumulative_logprob", "cum_log_probs", "output_log_probs"), ("FP32",)),
    **dict.fromkeys(("num_input_tokens", "num_output_tokens"), ("UINT32",)),
    **dict.fromkeys(("output_ids", "sequence_length", "batch_index", "sequence_index"), ("INT32",)),
}


def check_datatypes(spec: ModelSpec) -> None:
    """Raises ValueError. Tensors that no language model knows may be anything."""
    _check("input", spec.inputs, INPUTS)
    _check("output", spec.outputs, OUTPUTS)


def _check(kind: str, tensors: Iterable[TensorSpec], allowed: dict[str, Collection[str]]) -> None:
    for tensor in tensors:
        datatypes = allowed.get(tensor.name, (tensor.datatype,))
        if tensor.datatype not in datatypes:
            raise ValueError(f"{kind} '{tensor.name}' must be {' or '.join(datatypes)}, got {tensor.datatype}")
