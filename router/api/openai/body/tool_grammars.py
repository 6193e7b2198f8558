"""The grammar of a request with tools, or with a grammar behind reasoning.

The schema of each tool is tried alone, so that a bad one is named, and each verdict is remembered: an agent sends its
tools with every request. A schema that cannot be followed makes the request fail only where the tool is `strict` or
named by `tool_choice`. Otherwise the arguments of that tool are any JSON object, and all others are as constrained as
they would be: agents pass on schemas that they have not written.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson

from slipstream.router.api.openai.body.sampling import invalid
from slipstream.router.api.openai.body.structured_output import (
    MAX_GRAMMAR_BYTES,
    RequestGrammars,
    cannot_be_followed,
)
from slipstream.router.api.openai.schema.tools import NO_PARAMETERS
from slipstream.router.parsers.description.output_format import OutputFormat
from slipstream.router.parsers.grammar.calls import unwritable_name
from slipstream.router.parsers.grammar.lark_rules import TooLongError
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens
from slipstream.router.parsers.grammar.output_grammar import CallChoice, ReasoningState, output_grammar
from slipstream.router.parsers.grammar.tool_grammar import ToolGrammar
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.structured_output.bounded_cache import BoundedCache

log = logging.getLogger(__name__)

MAX_CACHED_BYTES = 64 << 20
MAX_WRITTEN_AT_ONCE = 32 << 10  # of schemas; more take over 50 ms, and are written on a thread


class RequestTool(NamedTuple):
    """A tool that may be called. `field` is where its parameters stand in the request
    (`tools.3.function.parameters`). With `is_strict`, parameters that cannot be followed are an error."""

    name: str
    parameters: Mapping[str, Any] | None
    field: str
    is_strict: bool = False


class _Tried(NamedTuple):
    """A tool with the grammar of its arguments, or that of any object and the reason."""

    tool: ToolGrammar
    fault: str | None


class _Outputs(NamedTuple):
    """What was made for a request."""

    grammar: GrammarSpec | None
    fault: str | None = None


class ToolGrammars:
    """The grammars of one API for requests with tools. Used on its event loop only."""

    def __init__(self, grammars: RequestGrammars) -> None:
        self._grammars = grammars
        self._tools: BoundedCache[tuple[str, bytes], _Tried] = BoundedCache(MAX_CACHED_BYTES)
        self._outputs: BoundedCache[tuple[Hashable, ...], _Outputs] = BoundedCache(MAX_CACHED_BYTES)

    async def of(
        self,
        form: OutputFormat | None,
        markers: MarkerTokens,
        tools: Sequence[RequestTool] = (),
        choice: CallChoice = "none",
        *,
        is_parallel: bool = True,
        content: GrammarSpec | None = None,
        reasoning: ReasoningState = "over",
    ) -> GrammarSpec | None:
        """The grammar of an answer of a model, None if nothing is asked of it.

        `form` and `markers` are those of the model; `markers` stays the same object. `tools` are those that may be
        called: all of the request, those of `allowed_tools`, or the named one, which is to be given as strict. `choice`
        is "required" for a named one, too. `content` is what `RequestGrammars.of` found for the request; beside tools
        the answer is then either calls or that. `reasoning`: whether the prompt ends within reasoning ("begun"), or
        behind it or the model has none ("over"), or the model may begin with it ("possible").

        Raises HttpError 400 that names the parameters of a strict tool that cannot be followed, 503 if too many schemas
        are waiting for their trial.
        """
        tried: list[ToolGrammar] = []
        for tool in tools:
            found = self._known(tool) or await self._try(tool)
            if found.fault is not None and tool.is_strict:
                raise invalid(tool.field, cannot_be_followed(tool.field, found.fault))
            tried.append(found.tool)
        name = "" if form is None else form.name
        strict = tuple(tool.is_strict for tool in tools)  # what is remembered has been checked for these
        key = (name, markers, choice, is_parallel, content, reasoning, tuple(tried), strict)
        made = self._outputs.get(key)
        if made is None:
            check_names(form, tools, tried)
            made = await self._make(form, markers, tried, choice, is_parallel, content, reasoning)
            if made.fault is not None and any(strict):
                raise invalid("tools", cannot_be_followed("tools", made.fault))
            self._outputs.put(key, made, num_chars(tried, content, made.grammar))
        return made.grammar

    def _known(self, tool: RequestTool) -> _Tried | None:
        return self._tools.get((tool.name, _dumped(tool.parameters, tool.field)))

    async def _try(self, tool: RequestTool) -> _Tried:
        parameters = _dumped(tool.parameters, tool.field)
        text = parameters.decode()
        found = _Tried(ToolGrammar(tool.name, parameters=text), None)
        schema, fault = _object_schema(tool.parameters), None
        if schema is None:
            fault = f"its 'type' is {(tool.parameters or {}).get('type')!r:.60}, and not 'object'"
        elif len(parameters) > MAX_GRAMMAR_BYTES:
            fault = f"it has {len(parameters)} bytes; there may be {MAX_GRAMMAR_BYTES}"
        else:
            grammar, fault = await self._grammars.verdict(GrammarSpec("json", _dumped(schema, tool.field).decode()))
            if grammar is not None:
                found = _Tried(ToolGrammar(tool.name, grammar.spec, text), None)
        if fault is not None:
            log.info("the arguments of the tool %.64r are any JSON object: %s", tool.name, fault[:200])
            found = found._replace(fault=fault)
        self._tools.put((tool.name, parameters), found, 2 * len(parameters) + len(found.tool.schema))
        return found

    async def _make(
        self,
        form: OutputFormat | None,
        markers: MarkerTokens,
        tools: Sequence[ToolGrammar],
        choice: CallChoice,
        is_parallel: bool,
        content: GrammarSpec | None,
        reasoning: ReasoningState,
    ) -> _Outputs:
        """All parts together can be too much, be it that none is alone: then the arguments of all tools are any JSON
        object. If that is too much as well, the answer is not constrained."""
        fault: str | None = None
        for written in (tools, [ToolGrammar(tool.name, parameters=tool.parameters) for tool in tools]):
            write = partial(
                output_grammar,
                form,
                markers,
                tools=written,
                choice=choice,
                is_parallel=is_parallel,
                content=content,
                reasoning=reasoning,
            )
            is_long = sum(len(tool.schema) for tool in written) > MAX_WRITTEN_AT_ONCE
            try:
                grammar = await asyncio.to_thread(write) if is_long else write()
            except TooLongError as error:
                fault = fault or str(error)
                continue
            except RecursionError:
                fault = fault or "it is nested too deeply"
                continue
            if grammar is None or grammar is content:
                return _Outputs(grammar)
            final, why = await self._grammars.verdict(grammar)
            if final is not None:
                return _Outputs(final, fault)
            why = (why or "").partition("\n")[0]  # behind it are llguidance's own details
            fault = fault or why
            log.warning("the grammar of an output with %d tools cannot be followed: %.200s", len(tools), why)
        return _Outputs(None, fault)


def num_chars(tools: Sequence[ToolGrammar], content: GrammarSpec | None, made: GrammarSpec | None) -> int:
    """The length of what a remembered grammar was made from, and of itself."""
    specs = sum([len(grammar.spec) for grammar in (content, made) if grammar is not None])
    return specs + sum([len(tool.schema) + len(tool.parameters) for tool in tools])


def check_names(form: OutputFormat | None, tools: Sequence[RequestTool], tried: Sequence[ToolGrammar]) -> None:
    """Raises HttpError 400 for a strict tool with a required property whose name cannot stand in the model's format."""
    for tool, grammar in zip(tools, tried, strict=True):
        if tool.is_strict and form is not None and form.calls is not None:
            name = unwritable_name(form.calls, grammar)
            if name is not None:
                fault = f"a property cannot be named {name!r:.60} in the format of this model's calls"
                raise invalid(tool.field, cannot_be_followed(tool.field, fault))


def _dumped(value: Any, field: str) -> bytes:
    """The value of a field as JSON. Raises HttpError 400 for what is nested too deeply."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # integers beyond 64 bits, for instance
        try:
            return json.dumps(value, separators=(",", ":")).encode()
        except RecursionError as error:
            raise invalid(field, cannot_be_followed(field, "it is nested too deeply")) from error


def _object_schema(parameters: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The schema of the arguments, which are an object whatever it says; None if it excludes that."""
    if parameters is None:
        return NO_PARAMETERS
    given = parameters.get("type", "object")
    if given == "object":
        return parameters if "type" in parameters else {"type": "object", **parameters}
    if isinstance(given, list) and "object" in given:
        return {**parameters, "type": "object"}
    return None
