"""Turns requests into sequences. A request that could never run here is refused, naming the field at fault."""

from __future__ import annotations

from array import array
from itertools import count

import numpy as np

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.block_hash import HashChain, root_digest
from slipstream.router.protocol.messages import EngineRequest, SamplingParams
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.plan.step_plan import is_greedy
from slipstream.workers.engine.plan.token_bans import TokenBans
from slipstream.workers.engine.plan.token_counts import TokenCounts
from slipstream.workers.engine.processors.registered_processors import NO_PROCESSORS, LogitsProcessors
from slipstream.workers.engine.processors.row_processors import RowProcessors
from slipstream.workers.engine.scheduling.sequence import Sequence
from slipstream.workers.engine.structured_output.grammar_matcher import SequenceGrammar
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler
from slipstream.workers.interface.engine import EngineRequestError


class InputProcessor:
    """Sequences are numbered in order of arrival. Without `grammars`, requests with a grammar are refused."""

    def __init__(
        self,
        limits: EngineLimits,
        grammars: GrammarCompiler | None,
        processors: LogitsProcessors = NO_PROCESSORS,
    ) -> None:
        self.limits = limits
        self._grammars = grammars
        self._processors = processors
        self._arrivals = count()
        # A model directory may name tokens that the model does not have, which can be ignored.
        self._eos_ids = frozenset(t for t in limits.eos_token_ids if t < limits.vocab_size)

    def sequence(self, request: EngineRequest, ticket: HandoffTicket | None = None) -> Sequence:
        """A new sequence from a request. Raises EngineRequestError for what could never run."""
        params = request.sampling
        prompt = _token_ids("prompt_ids", request.prompt_ids, self.limits.vocab_size)
        resumed = _token_ids("output_ids", request.output_ids, self.limits.vocab_size)
        self._check(request, len(prompt), len(resumed))
        tokens = array("i", request.prompt_ids)
        tokens.frombytes(request.output_ids)
        # A grammar determines where the output ends; that of phases does so only where it has begun.
        ignores_eos = params.ignore_eos and (params.grammar is None or params.grammar.kind == "output")
        in_vocabulary = [t for t in params.stop_token_ids if 0 <= t < self.limits.vocab_size]
        return Sequence(
            key=(request.request_id, request.attempt),
            arrival=next(self._arrivals),
            priority=request.priority,
            params=params,
            tokens=tokens,
            num_prompt=len(prompt),
            stop_ids=frozenset(in_vocabulary) | (frozenset() if ignores_eos else self._eos_ids),
            chain=self._chain(request.cache_salt),
            counts=_token_counts(params, prompt, resumed),
            max_model_len=self.limits.max_model_len,
            is_greedy=is_greedy(params),
            grammar=self._grammar(params, tokens, len(prompt)),
            bans=self._bans(params, tokens, len(prompt)),
            processors=self._row_processors(params, tokens, len(prompt)),
            ticket=ticket,
            retention=request.retention,
            num_scored=request.num_scored,
            num_to_score=len(prompt) - 1 if params.prompt_logprobs is not None else 0,
        )

    def _check(self, request: EngineRequest, num_prompt: int, num_resumed: int) -> None:
        """Raises EngineRequestError if this engine could never run the request."""
        params, num_tokens = request.sampling, num_prompt + num_resumed
        if num_prompt == 0:
            raise EngineRequestError("prompt_ids", "is empty")
        if num_tokens >= self.limits.max_model_len:
            raise EngineRequestError(
                "prompt_ids",
                f"{num_tokens} tokens leave no room for output: max_model_len is {self.limits.max_model_len}",
            )
        if num_resumed and num_resumed >= params.max_tokens:
            raise EngineRequestError("max_tokens", f"{params.max_tokens} with {num_resumed} tokens generated already")
        if params.max_tokens < 0:
            raise EngineRequestError("max_tokens", f"must be at least 0, got {params.max_tokens}")
        if params.prompt_logprobs is not None and params.prompt_logprobs < 0:
            raise EngineRequestError("prompt_logprobs", f"must be at least 0, got {params.prompt_logprobs}")
        if request.num_scored < 0:
            raise EngineRequestError("num_scored", f"must be at least 0, got {request.num_scored}")
        for token_id, _ in params.logit_bias:
            if not 0 <= token_id < self.limits.vocab_size:
                raise EngineRequestError("logit_bias", f"token id {token_id} is not in the vocabulary")
        if params.grammar is not None and self._grammars is None:
            raise EngineRequestError("grammar", "is not served by this engine")

    def _grammar(self, params: SamplingParams, tokens: array[int], num_prompt: int) -> SequenceGrammar | None:
        if params.grammar is None or self._grammars is None:
            return None
        try:
            return self._grammars.follow(params.grammar, tokens, num_prompt)
        except ValueError as error:
            raise EngineRequestError("grammar", str(error)) from error

    def _bans(self, params: SamplingParams, tokens: array[int], num_prompt: int) -> TokenBans | None:
        if not params.allowed_token_ids and not params.bad_words:
            return None
        _token_ids("allowed_token_ids", params.allowed_token_ids, self.limits.vocab_size)
        for word in params.bad_words:
            if not word or not 0 <= min(word) <= max(word) < self.limits.vocab_size:
                raise EngineRequestError("bad_words", f"token ids {list(word)} are not in the vocabulary")
        return TokenBans(params, tokens, num_prompt, self.limits.vocab_size)

    def _row_processors(self, params: SamplingParams, tokens: array[int], num_prompt: int) -> RowProcessors | None:
        if not params.logits_processors:
            return None
        try:
            return RowProcessors(self._processors, params.logits_processors, tokens, num_prompt)
        except ValueError as error:
            raise EngineRequestError("logits_processors", str(error)) from error

    def _chain(self, cache_salt: str) -> HashChain | None:
        if not self.limits.prefix_caching:
            return None
        return HashChain(root_digest(self.limits.model_id, cache_salt), self.limits.block_tokens)


def _token_ids(field: str, packed: bytes, vocab_size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    if len(packed) % 4:
        raise EngineRequestError(field, f"{len(packed)} bytes are not whole int32 values")
    ids = np.frombuffer(packed, np.int32)
    if len(ids) and not (ids.min() >= 0 and ids.max() < vocab_size):
        raise EngineRequestError(field, f"token ids must be in 0 .. {vocab_size - 1}, got {ids.min()} .. {ids.max()}")
    return ids


def _token_counts(
    params: SamplingParams,
    prompt: np.ndarray[tuple[int], np.dtype[np.int32]],
    resumed: np.ndarray[tuple[int], np.dtype[np.int32]],
) -> TokenCounts | None:
    """The counts, if a penalty needs them. Tokens of the prompt are included only for the penalty that uses them."""
    if params.repetition_penalty != 1.0:
        return TokenCounts(prompt, resumed)
    if params.presence_penalty or params.frequency_penalty:
        return TokenCounts(prompt[:0], resumed)
    return None
