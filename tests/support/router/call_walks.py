"""Outputs drawn at random from the grammar of a format's calls, byte by byte, and what the parser makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from slipstream.router.parsers.description.output_format import OutputFormat
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens
from slipstream.router.parsers.grammar.output_grammar import output_grammar
from slipstream.router.parsers.grammar.tool_grammar import ToolGrammar
from slipstream.router.protocol.grammar import DEFAULT_JSON, grammar_of_phase, parser_limits
from slipstream.router.protocol.phased_grammar import PhasedGrammar
from slipstream.router.structured_output.byte_tokenizer import NUM_BYTES, byte_tokenizer_json
from slipstream.router.structured_output.json_grammar import json_grammar_spec
from tests.support.router.output_writer import TAGS, Answer, answer_of, parsed
from tests.support.router.tool_schemas import ToolSchema

LIKED = np.zeros(1024, np.bool_)
LIKED[32:127] = LIKED[NUM_BYTES:] = True
CLOSING = np.zeros(1024, np.bool_)
CLOSING[[ord(c) for c in '"}])<,\n']] = CLOSING[NUM_BYTES:] = True
MAX_TOKENS = 6000


def grammar_of_tool(tool: ToolSchema) -> ToolGrammar:
    """As the trial of a request makes it."""
    schema = json.dumps(tool.parameters)
    return ToolGrammar(tool.name, json_grammar_spec(schema, DEFAULT_JSON).spec, schema)


@dataclass
class CallWalker:
    """The calls of one format, with all its tags as special tokens of the vocabulary, or none of them, or, `is_plain`,
    as tokens that are not special."""

    form: OutputFormat
    markers: MarkerTokens
    tokenizer: LLTokenizer
    eos: int

    @staticmethod
    def of(form: OutputFormat, is_special: bool, is_plain: bool = False) -> CallWalker:
        texts = sorted({tag for text in form.texts() for tag in TAGS.findall(text)}) if is_special else []
        eos = NUM_BYTES + len(texts)
        ids = {text: NUM_BYTES + number for number, text in enumerate(texts)}
        return CallWalker(
            form,
            MarkerTokens(plain=ids) if is_plain else MarkerTokens(ids),
            LLTokenizer(byte_tokenizer_json([*texts, "<|eos|>"]), eos_token=eos),
            eos,
        )

    def matcher(self, tools: Sequence[ToolGrammar], is_parallel: bool = True) -> LLMatcher:
        """What calls have to follow from the first token on."""
        spec = output_grammar(self.form, self.markers, tools=tools, choice="required", is_parallel=is_parallel)
        assert spec is not None
        phase = PhasedGrammar.of(spec.spec).phases[-1]  # of channels: behind a message of reasoning
        matcher = LLMatcher(self.tokenizer, grammar_of_phase(phase), log_level=0, limits=parser_limits())
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def draw(self, prototype: LLMatcher, seed: int, soft_limit: int = 150) -> list[int] | None:
        """Tokens up to the end of the output; None if there are too many. Beyond `soft_limit` it takes what ends
        texts and objects where it can."""
        matcher, rng = prototype.deep_copy(), random.Random(seed)
        drawn: list[int] = []
        planned: list[int] = []  # the rest of a marker that is written as text
        markers = [list(text.encode()) for text in self.form.texts() if len(text) > 2]
        while len(drawn) < MAX_TOKENS:
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[: self.eos + 1])
            assert len(allowed), f"a dead end: {matcher.get_error()} behind {self.tokenizer.decode_str(drawn)!r}"
            if allowed[-1] == self.eos and (len(allowed) == 1 or rng.random() < 0.5):
                return drawn
            allowed = allowed[allowed != self.eos]
            closing = allowed[CLOSING[allowed]]
            liked = allowed[LIKED[allowed]]
            ends = len(closing) and rng.random() < (0.95 if len(drawn) > soft_limit else 0.35)
            if not planned and markers and len(drawn) > soft_limit and rng.random() < 0.2:
                planned = list(rng.choice(markers))
            token_id = planned.pop(0) if planned else -1
            if token_id not in allowed:
                planned = []
                token_id = int(rng.choice(closing if ends else liked if len(liked) else allowed))
            matcher.consume_token(token_id)
            drawn.append(token_id)
        return None

    def read(self, drawn: Sequence[int], tools: Sequence[ToolSchema]) -> Answer:
        """What the parser makes of it, in pieces of one character."""
        shown = self.form.marker_characters(self.markers.special)
        character = {self.markers.special[text]: mark for text, mark in shown.items()}
        character |= {token_id: text for text, token_id in self.markers.plain.items()}
        if self.form.channels is not None:  # which the prompt has written
            drawn = drawn[2 + len(self.form.channels.role) :]
        pieces: list[str] = []
        run = bytearray()
        for token_id in drawn:
            if token_id < NUM_BYTES:
                run.append(token_id)
            else:
                pieces += [*run.decode(), *character.get(token_id, "")]
                run.clear()
        schemas = {tool.name: tool.parameters for tool in tools}
        return answer_of(parsed(self.form.bound(shown), [*pieces, *run.decode()], tools=schemas))


def check_calls(answer: Answer, tools: Sequence[ToolSchema]) -> None:
    """Raises an error if it is not only calls of the tools with arguments that their schemas allow."""
    schemas: dict[str, dict[str, Any]] = {tool.name: tool.parameters for tool in tools}
    assert answer.calls
    assert not answer.content.strip()
    for name, arguments in answer.calls:
        jsonschema.validate(json.loads(arguments), schemas[name])
