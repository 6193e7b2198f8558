"""Texts that a schema's grammar accepts, byte for byte, without a model."""

from __future__ import annotations

import json
import random
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from slipstream.router.protocol.grammar import JsonStyle, grammar_of, parser_limits
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.structured_output.json_grammar import json_grammar_spec

TOKENIZER = LLTokenizer("byte")
LIKED = b'"}],:0123456789.-abcxyz{[ntf'


def grammar_spec_of(schema: Any, **style: Any) -> GrammarSpec:
    """Raises GrammarError."""
    return json_grammar_spec(json.dumps(schema), JsonStyle(**style))


def matcher_of(grammar: GrammarSpec) -> LLMatcher:
    matcher = LLMatcher(TOKENIZER, grammar_of(grammar), log_level=0, limits=parser_limits())
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def accepts(grammar: GrammarSpec, text: str) -> bool:
    matcher = matcher_of(grammar)
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


def drawn_text(prototype: LLMatcher, seed: int, max_bytes: int = 300) -> str | None:
    """A text of the grammar; None if none has ended in time. Quotes and brackets that close are preferred."""
    matcher, chance = prototype.deep_copy(), random.Random(seed)
    out = bytearray()
    while len(out) < max_bytes:
        if matcher.is_error():
            return None
        if matcher.is_stopped() or (matcher.is_accepting() and chance.random() < 0.4):
            return out.decode()
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
        if not allowed:
            return out.decode() if matcher.is_accepting() else None
        liked = [byte for byte in allowed if byte in LIKED]
        closing = [byte for byte in allowed if byte in b'"}]']
        pool = closing if closing and chance.random() < 0.35 else liked or allowed
        byte = chance.choice(pool)
        matcher.consume_token(byte)
        out.append(byte)
    return None
