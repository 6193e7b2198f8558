"""What restricts the tokens of an output: vLLM's `allowed_token_ids`, `bad_words` and `logits_processors`."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from slipstream.router.api.openai.body.sampling import check_token_ids, invalid
from slipstream.router.api.openai.schema.generation_fields import GenerationFields
from slipstream.router.api.openai.schema.vllm_fields import ProcessorObject
from slipstream.router.http.http_error import HttpError
from slipstream.router.protocol.messages import ProcessorCall, SamplingParams, pack_ids, unpack_ids
from slipstream.router.registry.worker_abilities import WorkerAbilities
from slipstream.router.text.tokenizer import Tokenizer

MAX_ARGUMENT_BYTES = 4096
MAX_WORD_TOKENS = 1024  # far more than a word of the longest permitted text has


class Restrictions(NamedTuple):
    """Those of one request, as they are sent to workers."""

    allowed_token_ids: bytes = b""
    bad_words: tuple[tuple[int, ...], ...] = ()
    logits_processors: tuple[ProcessorCall, ...] = ()

    def applied(self, params: SamplingParams) -> SamplingParams:
        """The parameters with these restrictions."""
        return params._replace(**self._asdict()) if any(self) else params


NO_RESTRICTIONS = Restrictions()


async def restrictions_of(body: GenerationFields, tokenizer: Tokenizer, abilities: WorkerAbilities) -> Restrictions:
    """Raises HttpError 400 for token ids beyond the vocabulary, a word without tokens, and a logits processor that is
    not registered."""
    if not (body.allowed_token_ids or body.bad_words or body.logits_processors):
        return NO_RESTRICTIONS
    allowed = body.allowed_token_ids or []
    check_token_ids("allowed_token_ids", allowed, tokenizer.vocab_size)
    words = await bad_words(body.bad_words, tokenizer) if body.bad_words else ()
    return Restrictions(pack_ids(sorted(set(allowed))), words, processor_calls(body, abilities))


async def bad_words(words: list[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences that each word may be written as: at the beginning of a text, and behind a space. vLLM leaves
    out the second where it has another number of tokens, and so permits it; here both are forbidden. A word of spaces
    stays as it is."""
    plain = [word.lstrip(" ") or word for word in words]
    texts = [text for word in plain for text in (word, f" {word}")]
    packed = await tokenizer.encode(texts, MAX_WORD_TOKENS, add_special_tokens=False)
    for word, token_ids in zip(words, packed[::2], strict=True):
        if not token_ids:
            raise invalid("bad_words", f"'bad_words' has {word!r}, which is no word: it has no tokens.")
    return tuple(dict.fromkeys([tuple(unpack_ids(token_ids)) for token_ids in packed]))


def processor_calls(body: GenerationFields, abilities: WorkerAbilities) -> tuple[ProcessorCall, ...]:
    """While no worker is connected, names are not checked here, but by the worker that gets the request."""
    calls = []
    for choice in body.logits_processors or []:
        name, arguments = choice, None
        if isinstance(choice, ProcessorObject):
            name, arguments = choice.name or choice.qualname or "", choice.args or choice.kwargs
        assert isinstance(name, str)
        if abilities.is_known and name not in abilities.logits_processors:
            raise not_registered(name, abilities)
        packed = orjson.dumps(arguments).decode() if arguments else ""
        if len(packed) > MAX_ARGUMENT_BYTES:
            message = (
                f"The arguments of {name!r} have {len(packed)} bytes as JSON; at most {MAX_ARGUMENT_BYTES} may be."
            )
            raise invalid("logits_processors", message)
        calls.append(ProcessorCall(name, packed))
    return tuple(calls)


def not_registered(name: str, abilities: WorkerAbilities) -> HttpError:
    known = ", ".join(map(repr, abilities.logits_processors)) or "none"
    message = (
        f"The logits processor {name[:64]!r} is not registered; registered: {known}. Functions are registered by the "
        "configuration of the cluster, at engine.logits_processors, and chosen by the names that they have there."
    )
    return invalid("logits_processors", message)
