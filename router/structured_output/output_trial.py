"""Tries the grammars of an output's phases as wholes. Their parts that come from a client were tried alone."""

from __future__ import annotations

import re

from slipstream.router.protocol.grammar import grammar_of_phase, parser_limits
from slipstream.router.protocol.phased_grammar import Phase, PhasedGrammar
from slipstream.router.structured_output.byte_tokenizer import NUM_BYTES, byte_tokenizer_json

NUM_TRIED_TOKENS = 64
NONCHARACTER = "\ufdd0"  # no text of a grammar is a special token
TOKEN_ID = re.compile(r"<\[(\d+)\]>")


def complaint_of_output(spec: str) -> str | None:
    """Why the output of a `GrammarSpec` of the kind "output" cannot be followed; None if it can. To be called in a
    process that may be killed. Raises ValueError if it is none."""
    for phase in PhasedGrammar.of(spec).phases:
        fault = None if phase.grammar is None else _complaint(phase, phase.grammar)
        if fault is not None:
            return fault
    return None


def _complaint(phase: Phase, lark: str) -> str | None:
    from llguidance import LLMatcher, LLTokenizer

    ids = list(dict.fromkeys(TOKEN_ID.findall(lark)))
    new_id = {token_id: NUM_BYTES + number for number, token_id in enumerate(ids)}
    lark = TOKEN_ID.sub(lambda found: f"<[{new_id[found[1]]}]>", lark)
    num_tokens = NUM_BYTES + len(ids)
    tokenizer = LLTokenizer(
        byte_tokenizer_json([f"<{NONCHARACTER}{number}>" for number in range(len(ids) + 1)]), eos_token=num_tokens
    )
    grammar = grammar_of_phase(phase._replace(grammar=lark))
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    for number in range(NUM_TRIED_TOKENS):
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        allowed = [token for token in range(num_tokens) if mask and mask[token >> 3] >> (token & 7) & 1]
        if not allowed:
            break
        matcher.consume_token(allowed[number * 7919 % len(allowed)])
    if matcher.is_error() or not (matcher.is_accepting() or not matcher.is_stopped()):
        return matcher.get_error() or "nothing can follow it"
    return None
