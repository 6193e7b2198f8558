"""Beam search in a request: vLLM's old fields `use_beam_search`, `length_penalty`, `early_stopping`, with `n` or
`best_of` beams. What would change which token comes next has no meaning for it, or is not served, and is refused by
name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.router.api.openai.body.sampling import invalid
from slipstream.router.api.openai.schema.fields import is_one_of, refusal
from slipstream.router.api.openai.schema.generation_fields import GenerationFields
from slipstream.router.beam_search.beam_search import BeamSettings
from slipstream.router.http.http_error import HttpError

MAX_BEAMS = 8
MAX_STOP_TOKENS = 8  # each end token makes every step ask for `num_beams` more candidates
MAX_BEAMS_OF_ALL = 64  # of all prompts of a request: each is a request of its own in every step
# Fields that do not go with a search, and the values that ask for nothing. A temperature of 1 is many clients' default.
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "stream": (False,),
    "temperature": (0, 0.0, 1, 1.0),
    "top_p": (1, 1.0),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "stop": ([],),
    "include_stop_str_in_output": (False,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "logits_processors": ([],),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "explain": (False,),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "detokenize": (True,),
    "tools": ([],),
    "functions": ([],),
}


def check_no_beams(body: GenerationFields) -> None:
    """Raises HttpError 400 if a request without beam search says how to search."""
    for field, neutral in (("length_penalty", (1, 1.0)), ("early_stopping", (False,))):
        value = getattr(body, field)
        if value is not None and not is_one_of(value, neutral):
            raise invalid(field, f"'{field}' is only allowed where `use_beam_search` is true.")


def check_beams(body: GenerationFields, num_prompts: int, says_ends: bool) -> None:
    """Raises HttpError 400 if the search that a request asks for is not served. `says_ends`: the workers have said
    which tokens end an output."""
    if not says_ends and not body.ignore_eos:
        message = "'use_beam_search' is not served while all workers are of Slipstream 0.1.0."
        raise HttpError(400, message, param="use_beam_search", code="unsupported_parameter")
    num_beams, field = body.candidates_per_prompt, "n" if getattr(body, "best_of", None) is None else "best_of"
    if not 2 <= num_beams <= MAX_BEAMS:
        message = (
            f"'{field}' is the number of beams where `use_beam_search` is true: 2 to {MAX_BEAMS}, got {num_beams}."
        )
        raise invalid(field, message)
    if num_prompts * num_beams > MAX_BEAMS_OF_ALL:
        message = f"{num_beams} beams for each of {num_prompts} prompts are more than {MAX_BEAMS_OF_ALL}."
        raise invalid(field, message)
    for name, neutral in NEUTRAL.items():
        value = getattr(body, name, None)
        if value is not None and not is_one_of(value, neutral):
            raise unserved(name, value, neutral)
    if body.stated_max_tokens == 0:
        raise unserved("max_tokens", 0, ())
    if getattr(body, "echo", None) and getattr(body, "logprobs", None) is not None:
        message = "'echo' is not supported together with 'logprobs' where `use_beam_search` is true."
        raise HttpError(400, message, param="echo", code="unsupported_parameter")
    if body.response_format is not None and body.response_format.type != "text":
        raise unserved("response_format.type", body.response_format.type, ("text",))
    if len(body.stop_token_ids or ()) > MAX_STOP_TOKENS:
        message = f"'stop_token_ids' may have {MAX_STOP_TOKENS} ids where `use_beam_search` is true."
        raise invalid("stop_token_ids", message)


def beam_settings(body: GenerationFields, max_tokens: int) -> BeamSettings:
    """How to search for an output of up to `max_tokens` tokens."""
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    return BeamSettings(body.candidates_per_prompt, max_tokens, penalty, body.early_stopping or False)


def unserved(field: str, value: Any, neutral: Sequence[Any]) -> HttpError:
    message = f"'{field}': {refusal(value, (*neutral, None))}; it does not go with `use_beam_search`."
    return HttpError(400, message, param=field, code="unsupported_parameter")
