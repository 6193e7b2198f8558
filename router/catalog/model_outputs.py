"""How the outputs of a model are read: the format of its calls and of its reasoning, with the tokens of its vocabulary.

    tool_call_parser, reasoning_parser   auto: what the chat template and config.json show     a name: that format
                                         none: not read

A chat template that knows tools and a model of a known format are served in that format. For all others the tools stand
in the system message in Hermes' form, in which calls are read then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.router.catalog.call_example import call_example
from slipstream.router.parsers.description.output_format import BoundFormat, OutputFormat
from slipstream.router.parsers.detection import AUTO, FORMATS, NONE, choose, combined
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens
from slipstream.router.parsers.parser_names import DETECTED, ParserNames
from slipstream.router.text.detokenizer import PieceTable
from slipstream.router.text.tokenizer import Tokenizer

FALLBACK = "hermes"


class ModelOutputs:
    """`format` is that of the model, `bound_format` is bound to its vocabulary; None: outputs are only text.
    `call_example` shows how a call is written, for a model whose template does not know tools. `tool_forms` is how the
    template takes tools."""

    def __init__(self, tokenizer: Tokenizer, form: OutputFormat | None, tools_in_text: bool = False) -> None:
        """`tools_in_text`: whatever the template says of tools is left aside, as the model's format is not known."""
        self.tokenizer = tokenizer
        shown = {} if form is None else form.marker_characters(tokenizer.special_tokens)
        self.format = form
        self.bound_format: BoundFormat | None = None if form is None else form.bound(shown)
        self.markers = MarkerTokens.of(tokenizer.added_tokens)
        self.reads_calls = form is not None and (form.calls is not None or form.channels is not None)
        self.reads_reasoning = form is not None and (form.reasoning is not None or form.channels is not None)
        self.call_example = "" if form is None or form.calls is None else call_example(form.calls)
        self.tool_forms = tokenizer.tool_forms
        if tools_in_text:
            self.tool_forms = self.tool_forms._replace(knows_tools=False, calls=None)
        self._pieces = tokenizer.pieces_showing(shown) if shown else tokenizer.pieces
        self._raw_pieces: dict[bool, PieceTable] = {}  # with all special tokens, by whether markers are shown as such

    @classmethod
    def of(cls, tokenizer: Tokenizer, config: Mapping[str, Any], names: ParserNames = DETECTED) -> ModelOutputs:
        """The outputs of a model with this config.json, read by the parsers of these names. A detected format of calls
        counts where the template shows something of it: tools or calls."""
        template, forms = tokenizer.chat_template, tokenizer.tool_forms
        if template is None:
            return cls(tokenizer, None)
        calls = choose(names.calls, NONE, template.source, config)
        reasoning = choose(NONE, names.reasoning, template.source, config)
        if names.calls == AUTO and (calls is None or not (forms.knows_tools or forms.calls is not None)):
            return cls(tokenizer, combined(FORMATS[FALLBACK], reasoning), tools_in_text=True)
        return cls(tokenizer, combined(calls, reasoning))

    def described(self) -> str:
        """What is read, in one sentence without a stop."""
        form = self.format
        if form is None:
            return "neither calls of tools nor reasoning are read"
        if form.channels is not None:
            return f"calls of tools and reasoning are read as {form.name}"
        calls, _, reasoning = form.name.partition("+")
        if form.calls is None:
            return f"no calls of tools are read; reasoning as {form.name}"
        of_reasoning = f"as {reasoning or calls}" if form.reasoning is not None else "is not read"
        return f"calls of tools are read as {calls}, reasoning {of_reasoning}"

    def pieces(self, is_parsed: bool, shows_special: bool) -> PieceTable:
        """What tokens contribute to the text: with the markers of the format if it `is_parsed`, and with all other
        special tokens as they are written if it `shows_special`."""
        if not shows_special:
            return self._pieces if is_parsed else self.tokenizer.pieces
        table = self._raw_pieces.get(is_parsed)
        if table is None:
            shown = self.bound_format.special if is_parsed and self.bound_format is not None else {}
            table = self._raw_pieces[is_parsed] = self.tokenizer.pieces_showing(shown, shows_special=True)
        return table
