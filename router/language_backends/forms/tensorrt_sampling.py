"""How tokens are drawn, as requests of `tensorrtllm` say it: greedily, unless they ask for more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from slipstream.router.api.openai.body.sampling import SEED_MASK
from slipstream.router.language_backends.forms.request_values import RequestValues
from slipstream.router.language_backends.settings.sampling_parameters import json_object, sampling_fields
from slipstream.router.tensors.infer_error import InferError

NEVER = 2**31  # token ids from here on, and negative ones, end nothing
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
GUIDES = {"json_schema": "json", "regex": "regex", "ebnf_grammar": "grammar"}
UNSERVED = (
    *("draft_input_ids", "draft_logits", "num_draft_tokens", "decoder_input_ids", "decoder_text_input"),
    *("prompt_embedding_table", "image_input", "lora_task_id", "lora_weights", "lora_config"),
)
UNSERVED_FLAGS = ("return_context_logits", "return_generation_logits", "use_draft_logits")


def sampling_of(values: RequestValues, row: int, defaults: Mapping[str, Any], max_beam_width: int) -> dict[str, Any]:
    """Fields of a completion. `defaults` are those of the model's configuration. Raises InferError."""
    check_served(values, row, max_beam_width)
    fields: dict[str, Any] = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, **defaults}
    top_k, top_p = first(values, row, "runtime_top_k", "top_k"), first(values, row, "runtime_top_p", "top_p")
    check_finite(top_p=top_p, temperature=values.one("temperature", row))
    temperature = values.one("temperature", row, defaults.get("temperature"))
    if (top_k or 0) > 1:
        fields["top_k"] = top_k
    if 0 < (top_p or 0) < 1:
        fields["top_p"] = top_p
    draws = fields["top_k"] > 1 or fields["top_p"] < 1 or (top_p or 0) >= 1
    fields["temperature"] = 0.0 if not draws or top_k == 1 else 1.0 if temperature is None else temperature
    fields["seed"] = (first(values, row, "random_seed", "seed") or 0) & SEED_MASK
    for name in PENALTIES:
        if values.one(name, row) is not None:
            fields[name] = values.one(name, row)
    min_tokens = first(values, row, "min_length", "min_tokens")
    if min_tokens:
        fields["min_tokens"] = min_tokens
    fields["n"] = values.one("num_return_sequences", 0, 1) or 1
    if values.one("return_log_probs", row):
        fields["logprobs"] = 0
    return {**fields, **end_of(values, row), **structure_of(values, row), **sampling_config(values, row)}


def check_served(values: RequestValues, row: int, max_beam_width: int) -> None:
    """Raises InferError."""
    for name in UNSERVED:
        if any(values.row(name, row)):
            raise InferError(f"'{name}' is not served: the model takes text and generates text")
    for name in UNSERVED_FLAGS:
        if values.one(name, row):
            raise InferError(f"'{name}' is not served; 'return_log_probs' is")
    beam_width = values.one("beam_width", row, 1)
    if beam_width > max_beam_width:
        raise InferError(f"'beam_width' is {beam_width}, and the model's 'max_beam_width' is {max_beam_width}")
    if beam_width > 1:
        raise InferError(f"'beam_width' is {beam_width}: beams are searched by the API of OpenAI, 'use_beam_search'")


def check_finite(**numbers: float | None) -> None:
    """Raises InferError."""
    for name, number in numbers.items():
        if number is not None and not math.isfinite(number):
            raise InferError(f"'{name}' is {number}, and must be a finite number")


def end_of(values: RequestValues, row: int) -> dict[str, Any]:
    """The model's own end tokens end an output, and `end_id` too; -1: nothing does."""
    end_id = values.one("end_id", row)
    if end_id is None:
        return {}
    return {"stop_token_ids": [end_id]} if 0 <= end_id < NEVER else {"ignore_eos": True}


def structure_of(values: RequestValues, row: int) -> dict[str, Any]:
    guide_type = values.text("guided_decoding_guide_type", row)
    if not guide_type:
        return {}
    if guide_type == "json":
        return {"structured_outputs": {"json_object": True}}
    if guide_type not in GUIDES:
        served = ", ".join(["json", *GUIDES])
        raise InferError(f"'guided_decoding_guide_type' is {guide_type!r}; served are {served}")
    return {"structured_outputs": {GUIDES[guide_type]: values.text("guided_decoding_guide", row)}}


def sampling_config(values: RequestValues, row: int) -> dict[str, Any]:
    """Further fields as JSON, in an input of texts."""
    given = values.one("sampling_config", row)
    if not isinstance(given, bytes) or not given:
        return {}
    return sampling_fields(json_object("sampling_config", given))


def logit_bias(values: RequestValues, row: int) -> dict[str, float]:
    """Of `embedding_bias`, which has one number for each token of the vocabulary."""
    return {str(token_id): bias for token_id, bias in enumerate(values.row("embedding_bias", row)) if bias}


def first(values: RequestValues, row: int, *names: str) -> Any:
    return next((value for name in names if (value := values.one(name, row)) is not None), None)
