"""Grammars: which tokens may come next, so that the output of a sequence matches a schema, an expression or a grammar.

What may come next depends only on the grammar and the output so far. If a sequence comes from another worker, or is
resumed after a failure, its grammar reads the tokens that it brings, and continues as if it had been here from the
start.

Grammars are compiled on a thread beside the engine's, from the moment a sequence is accepted. A sequence whose grammar
is not ready stands back, and the others go on. The first grammar of a worker also loads the tokenizer (about 20 ms for
the demo model, about a second for 128,000 tokens).
"""

from __future__ import annotations

import json
import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.router.model_files.manifest import Manifest
from slipstream.router.model_files.text_copy import read_text
from slipstream.router.protocol.grammar import grammar_of, parser_limits
from slipstream.router.protocol.messages import GrammarSpec

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_COMPILED = 64

log = logging.getLogger(__name__)


class GrammarCompiler:
    """The compiled grammars of one model, whose `vocab_size` may be padded beyond its tokenizer's. For one thread.

    `on_ready` is called, on any thread, when a grammar is ready. Without it, callers wait for the grammars they need.
    With a `manifest`, the tokenizer is read from files that are those of its version, or from the router's copy of
    them, or not at all: others may have taken their place since the model was loaded.
    """

    def __init__(
        self,
        model_dir: Path,
        vocab_size: int,
        eos_ids: Iterable[int],
        on_ready: Callable[[], None] | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        self._on_ready = on_ready
        self._model_dir = model_dir
        self._manifests = () if manifest is None else (manifest,)
        self._vocab_size = vocab_size
        self._eos_ids = sorted(eos_ids)
        self._tokenizer: LLTokenizer | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
        self._compiled: OrderedDict[GrammarSpec, Future[LLMatcher | None]] = OrderedDict()

    def follow(self, grammar: GrammarSpec, tokens: array[int], num_prompt: int) -> GrammarMatcher:
        """The grammar of a sequence, which follows the output in its `tokens` as they grow."""
        compiled = self._compiled.get(grammar)
        if compiled is None or (compiled.done() and self._tokenizer is None):  # which may be readable by now
            compiled = self._compiled[grammar] = self._pool.submit(self._compile, grammar)
            if self._on_ready is not None:
                on_ready = self._on_ready
                compiled.add_done_callback(lambda compiled: on_ready())
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarMatcher(compiled, tokens, num_prompt, is_waited_for=self._on_ready is None)

    def _compile(self, grammar: GrammarSpec) -> LLMatcher | None:
        """Compiles a grammar. If that fails, it logs why and returns None; sequences with the grammar then end in an
        error."""
        from llguidance import LLMatcher, LLTokenizer

        try:
            if self._tokenizer is None:
                # It has been read as JSON: text that is not would be taken for a file name.
                text = read_text(self._model_dir, self._manifests, vocabulary)
                text = without_tokens_beyond(json.loads(text), self._vocab_size) or text
                self._tokenizer = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos_ids or None)
            matcher = LLMatcher(self._tokenizer, grammar_of(grammar), log_level=0, limits=parser_limits())
        except (OSError, ValueError) as error:  # a GrammarError is one
            log.warning("a grammar cannot be followed: %s", error)
            return None
        if matcher.is_error():
            log.warning("a grammar cannot be followed: %s", matcher.get_error())
            return None
        return matcher


def without_tokens_beyond(tokenizer: dict[str, Any], vocab_size: int) -> str | None:
    """A tokenizer.json without the added tokens that the model does not have, with which grammars would be refused;
    None if there are none."""
    added = tokenizer.get("added_tokens") or []
    known = [token for token in added if token["id"] < vocab_size]
    return json.dumps(tokenizer | {"added_tokens": known}) if len(known) < len(added) else None


def vocabulary(model_dir: Path) -> str:
    """The tokens of a model's tokenizer, in the form of tokenizer.json. Raises OSError or ValueError."""
    from slipstream.router.text.added_tokens import complete_json
    from slipstream.router.text.tokenizer_files import TokenizerFiles

    return complete_json(TokenizerFiles.read(model_dir))


class GrammarMatcher:
    """The grammar of one sequence, whose tokens it reads as they grow."""

    __slots__ = ("_compiled", "_is_waited_for", "_matcher", "_num_read", "_tokens")

    def __init__(
        self, compiled: Future[LLMatcher | None], tokens: array[int], num_prompt: int, *, is_waited_for: bool
    ) -> None:
        self._is_waited_for = is_waited_for
        self._compiled = compiled
        self._matcher: LLMatcher | None = None
        self._tokens = tokens
        self._num_read = num_prompt

    @property
    def is_ready(self) -> bool:
        """Whether the next token can be picked; if not, `on_ready` will be called."""
        return self._is_waited_for or self._compiled.done()

    @property
    def is_at_end(self) -> bool:
        """Whether the output is complete, so that nothing more can follow."""
        matcher = self._read()
        return matcher is not None and matcher.is_stopped() and not matcher.is_error()

    def write_allowed(self, mask: NDArray[np.uint8], held_back: Iterable[int] = ()) -> None:
        """Sets the bits of `mask` (lowest first) of the tokens that may come next; those in `held_back` only if there
        are no others. Sets none if the output has left the grammar, or if the grammar is too complex."""
        matcher = self._read()
        mask[:] = 0
        if matcher is None:
            return
        allowed = np.frombuffer(matcher.compute_bitmask(), np.uint8)[: len(mask)]
        if matcher.is_error():
            log.warning("a grammar cannot be followed further: %s", matcher.get_error())
            return
        mask[: len(allowed)] = allowed
        for token_id in held_back:
            mask[token_id >> 3] &= ~np.uint8(1 << (token_id & 7))
        if not mask.any():
            mask[: len(allowed)] = allowed

    def _read(self) -> LLMatcher | None:
        if self._matcher is None:
            prototype = self._compiled.result()
            if prototype is None:
                return None
            self._matcher = prototype.deep_copy()
        if self._num_read < len(self._tokens):
            self._matcher.consume_tokens(self._tokens[self._num_read :].tolist())
            self._num_read = len(self._tokens)
        return self._matcher
