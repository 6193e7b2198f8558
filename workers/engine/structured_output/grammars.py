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
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.router.model_files.manifest import Manifest
from slipstream.router.model_files.text_copy import read_text
from slipstream.router.protocol.grammar import grammar_of, grammar_of_phase, parser_limits
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.protocol.phased_grammar import Phase, PhasedGrammar
from slipstream.workers.engine.structured_output.grammar_matcher import GrammarMatcher, SequenceGrammar
from slipstream.workers.engine.structured_output.phased_matcher import PhasedMatcher
from slipstream.workers.engine.structured_output.token_bytes import TokenBytes
from slipstream.workers.engine.structured_output.token_names import TokenNames
from slipstream.workers.engine.structured_output.trigger_scanner import OutputShape, TriggerScanner

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_COMPILED = 64
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

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
        self._token_bytes: TokenBytes | None = None
        self._names = TokenNames(())
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
        self._compiled: OrderedDict[GrammarSpec | Phase, Future[LLMatcher | None]] = OrderedDict()
        self._phased: OrderedDict[str, PhasedGrammar] = OrderedDict()
        self._scanners: OrderedDict[OutputShape, Future[TriggerScanner | None]] = OrderedDict()

    def follow(self, grammar: GrammarSpec, tokens: array[int], num_prompt: int) -> SequenceGrammar:
        """The grammar of a sequence, which follows the output in its `tokens` as they grow. Raises ValueError if it is
        of the kind "output" and cannot be read."""
        is_waited_for = self._on_ready is None
        if grammar.kind != "output":
            return GrammarMatcher(self._matcher(grammar), tokens, num_prompt, is_waited_for=is_waited_for)
        phased = self._phased.get(grammar.spec)
        if phased is None:
            phased = _kept(self._phased, grammar.spec, PhasedGrammar.of(grammar.spec))
        self._phased.move_to_end(grammar.spec)
        shape = OutputShape.of(phased)
        scanner = self._scanners.get(shape)
        if scanner is None or self._may_be_readable_now(scanner):
            scanner = _kept(self._scanners, shape, self._submitted(self._scanner, shape))
        self._scanners.move_to_end(shape)
        compiled = {
            number: self._matcher(phase._replace(triggers=()))
            for number, phase in enumerate(phased.phases)
            if phase.grammar is not None
        }
        return PhasedMatcher(
            phased, scanner, compiled, self._tokens_of, self._eos_ids, tokens, num_prompt, is_waited_for=is_waited_for
        )

    def _matcher(self, grammar: GrammarSpec | Phase) -> Future[LLMatcher | None]:
        compiled = self._compiled.get(grammar)
        if compiled is None or self._may_be_readable_now(compiled):
            compiled = _kept(self._compiled, grammar, self._submitted(self._compile, grammar))
        self._compiled.move_to_end(grammar)
        return compiled

    def _may_be_readable_now(self, work: Future[Any]) -> bool:
        """Whether the tokenizer could not be read when something was compiled."""
        return work.done() and self._tokenizer is None

    def _submitted(self, work: Callable[[Any], T], what: Any) -> Future[T]:
        """Does work on the thread for it."""
        future = self._pool.submit(work, what)
        if self._on_ready is not None:
            on_ready = self._on_ready
            future.add_done_callback(lambda future: on_ready())
        return future

    def _compile(self, grammar: GrammarSpec | Phase) -> LLMatcher | None:
        """Compiles a grammar. If that fails, it logs why and returns None; sequences with the grammar then end in an
        error."""
        from llguidance import LLMatcher

        try:
            tokenizer = self._read_tokenizer()
            text = grammar_of_phase(grammar) if isinstance(grammar, Phase) else grammar_of(grammar)
            matcher = LLMatcher(tokenizer, with_ids(text, self._names), log_level=0, limits=parser_limits())
        except (OSError, ValueError) as error:  # a GrammarError is one
            log.warning("a grammar cannot be followed: %s", error)
            return None
        if matcher.is_error():
            log.warning("a grammar cannot be followed: %s", matcher.get_error())
            return None
        return matcher

    def _scanner(self, shape: OutputShape) -> TriggerScanner | None:
        try:
            self._read_tokenizer()
        except (OSError, ValueError) as error:
            log.warning("no grammar can be followed: %s", error)
            return None
        assert self._token_bytes is not None
        return TriggerScanner(shape, self._token_bytes)

    def _read_tokenizer(self) -> LLTokenizer:
        """Raises OSError or ValueError."""
        from llguidance import LLTokenizer

        if self._tokenizer is None:
            # It has been read as JSON: text that is not would be taken for a file name.
            text = read_text(self._model_dir, self._manifests, vocabulary)
            spec = without_tokens_beyond(json.loads(text), self._vocab_size)
            names = TokenNames(spec.get("added_tokens") or [])
            tokenizer = LLTokenizer(
                json.dumps(names.renamed(spec)),
                n_vocab=self._vocab_size,
                eos_token=self._eos_ids or names.end_id(),
            )
            self._token_bytes, self._names = TokenBytes.read(tokenizer, spec), names
            self._tokenizer = tokenizer
        return self._tokenizer

    def _tokens_of(self, text: bytes) -> list[int]:
        """Tokens with this text of an output. To be called when something was compiled."""
        assert self._tokenizer is not None
        return self._tokenizer.tokenize_bytes(self._names.in_output(text))


def _kept(table: OrderedDict[K, V], key: K, value: V) -> V:
    """Remembers what was made for a key, and forgets the one that was not asked for longest."""
    table[key] = value
    if len(table) > MAX_COMPILED:
        table.popitem(last=False)
    return value


def with_ids(grammar: str, names: TokenNames) -> str:
    """A grammar in llguidance's format, with the ids of the special tokens that it names. It is Lark, or JSON with
    several grammars."""
    if not grammar.startswith("{"):
        return names.in_lark(grammar)
    if '"lark_grammar"' not in grammar:
        return grammar
    parts = json.loads(grammar)
    for part in parts["grammars"]:
        if part.get("lark_grammar"):
            part["lark_grammar"] = names.in_lark(part["lark_grammar"])
    return json.dumps(parts)


def without_tokens_beyond(tokenizer: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """A tokenizer.json without the added tokens that the model does not have, with which grammars would be refused."""
    added = tokenizer.get("added_tokens") or []
    return tokenizer | {"added_tokens": [token for token in added if token["id"] < vocab_size]}


def vocabulary(model_dir: Path) -> str:
    """The tokens of a model's tokenizer, in the form of tokenizer.json. Raises OSError or ValueError."""
    from slipstream.router.text.added_tokens import complete_json
    from slipstream.router.text.tokenizer_files import TokenizerFiles

    return complete_json(TokenizerFiles.read(model_dir))
