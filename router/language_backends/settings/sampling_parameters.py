"""The parameters of a request as fields of a completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from slipstream.router.tensors.infer_error import InferError

NO_LORA = "LoRA feature is not enabled."
MAX_JSON_BYTES = 1 << 20  # of an input: what is checked value by value takes the event loop's time
MAX_SHOWN = 100  # characters of a value in an error
NO_EFFECT = frozenset({"detokenize", "output_kind", "priority"})


def loaded(text: str | bytes) -> Any:
    """Raises ValueError."""
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"it has {len(text)} bytes; there may be {MAX_JSON_BYTES}")
    return orjson.loads(text)


def json_object(name: str, text: str | bytes) -> dict[str, Any]:
    """An input that has parameters. Raises InferError."""
    try:
        found = loaded(text)
    except ValueError as error:
        raise InferError(f"'{name}' is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InferError(f"'{name}' is no JSON object")
    return found


def integer(value: Any) -> Any:
    if isinstance(value, list | dict):
        raise ValueError
    return int(value) if isinstance(value, str) or (isinstance(value, float) and value.is_integer()) else value


def number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def boolean(value: Any) -> Any:
    """What clients write in the place of a boolean, whose parameters may all be texts."""
    if isinstance(value, str):
        if value.lower() in ("true", "1"):
            return True
        if value.lower() in ("false", "0"):
            return False
        raise ValueError
    return value


def json_value(value: Any) -> Any:
    """A list or an object, which a parameter can only be as text."""
    return loaded(value) if isinstance(value, str) else value


def stop_strings(value: Any) -> Any:
    """One string, a list, or a list as JSON."""
    return loaded(value) if isinstance(value, str) and value.startswith("[") else value


# The parameters of vLLM's sampling that are served, and how a text is read as one.
READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs"), integer),
    **dict.fromkeys(("temperature", "top_p", "min_p"), number),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty"), number),
    **dict.fromkeys(("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens"), boolean),
    **dict.fromkeys(("include_stop_str_in_output", "use_beam_search"), boolean),
    **dict.fromkeys(
        ("stop_token_ids", "bad_words", "allowed_token_ids", "logit_bias", "structured_outputs"), json_value
    ),
    **dict.fromkeys(("guided_json", "logits_processors"), json_value),
    **dict.fromkeys(("guided_regex", "guided_grammar", "session_id"), lambda value: value),
    "guided_choice": json_value,
    "stop": stop_strings,
}


def sampling_fields(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Their values may be texts. Raises InferError for one that is not served, or that cannot be read."""
    fields = {}
    for name, value in parameters.items():
        if name == "lora_name":
            raise InferError(NO_LORA)
        if value is None or name in NO_EFFECT:
            continue
        reader = READERS.get(name)
        if reader is None:
            raise InferError(f"parameter '{name}' is not served; served are {', '.join(sorted(READERS))}")
        try:
            fields[name] = reader(value)
        except ValueError:
            raise InferError(f"parameter '{name}' cannot be read, got {repr(value)[:MAX_SHOWN]}") from None
    return fields
