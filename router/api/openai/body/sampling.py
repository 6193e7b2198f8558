"""Turns the fields of a request into `SamplingParams`, with every default filled in."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.api.openai.schema.generation_fields import GenerationFields
from slipstream.router.http.http_error import HttpError
from slipstream.router.model_files.sampling_defaults import PLAIN, SamplingDefaults
from slipstream.router.protocol.messages import GrammarSpec, SamplingParams

SEED_MASK = 2**63 - 1


def sampling_params(
    body: GenerationFields,
    *,
    max_tokens: int,
    logprobs: int | None,
    seed: int,
    vocab_size: int,
    grammar: GrammarSpec | None = None,
    defaults: SamplingDefaults = PLAIN,
) -> SamplingParams:
    """What a request leaves out, or sets to null, is as in `defaults`; penalties that these do not know are off.

    Raises HttpError 400 for token ids beyond `vocab_size` and for min_tokens over max_tokens.
    """
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid("min_tokens", f"'min_tokens' is {min_tokens}, more than the {max_tokens} tokens to generate.")
    check_token_ids("stop_token_ids", body.stop_token_ids or [], vocab_size)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=or_default(body.temperature, defaults.temperature),
        top_p=or_default(body.top_p, defaults.top_p),
        top_k=max(defaults.top_k if body.top_k is None else body.top_k, 0),  # vLLM's -1 is "off" too
        min_p=or_default(body.min_p, defaults.min_p),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=or_default(body.repetition_penalty, defaults.repetition_penalty),
        logit_bias=logit_bias_pairs(body.logit_bias, vocab_size) if body.logit_bias else (),
        seed=seed & SEED_MASK,
        logprobs=logprobs,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        grammar=grammar,
    )


def or_default(value: float | None, default: float) -> float:
    """`value` unless it is None; 0 is a value."""
    return default if value is None else float(value)


def logit_bias_pairs(logit_bias: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    """The (token id, bias) pairs. Keys in JSON are strings, of which only the plain decimal form of a token id is
    accepted. Raises HttpError 400."""
    pairs = []
    for key, bias in logit_bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and str(int(key)) == key):
            raise invalid(f"logit_bias.{key[:32]}", f"Invalid key in 'logit_bias': {key[:32]!r} is not a token id.")
        check_token_ids("logit_bias", [int(key)], vocab_size)
        pairs.append((int(key), float(bias)))
    return tuple(pairs)


def check_token_ids(param: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises HttpError 400 if an id is not in the vocabulary."""
    if token_ids and max(token_ids) >= vocab_size:
        raise invalid(param, f"'{param}' has token id {max(token_ids)}; the model's vocabulary has {vocab_size}.")


def invalid(param: str, message: str) -> HttpError:
    return HttpError(400, message, param=param, code="invalid_value")
