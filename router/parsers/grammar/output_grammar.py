"""The grammar of a whole output: reasoning, content and calls, as phases (`protocol.phased_grammar`).

    choice      content                   phases
    auto        free                      [reasoning] -> content -> calls (grammar)
    auto        follows a grammar         [reasoning] -> calls or content (grammar)
    required    -                         [reasoning] -> calls (grammar)
    none        follows a grammar         [reasoning] -> content (grammar)

Reasoning is always free. With the choice "auto" the calls' grammar begins where the model has begun a call, which it
does by a marker, or, in formats without one, by the first characters of the content and a tool's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from slipstream.router.parsers.description.output_format import CallsPart, OutputFormat, ReasoningPart
from slipstream.router.parsers.grammar.calls import calls_rule, marker_texts, start_of_call
from slipstream.router.parsers.grammar.channels import channel_phases
from slipstream.router.parsers.grammar.lark_rules import SPACE, LarkRules, either, sequence
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens
from slipstream.router.parsers.grammar.tool_grammar import ToolGrammar
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.protocol.phased_grammar import Phase, PhasedGrammar, Trigger

CallChoice = Literal["none", "auto", "required"]
ReasoningState = Literal["begun", "possible", "over"]
CONTENT = "@content"


def output_grammar(
    form: OutputFormat | None,
    markers: MarkerTokens,
    *,
    tools: Sequence[ToolGrammar] = (),
    choice: CallChoice = "none",
    is_parallel: bool = True,
    content: GrammarSpec | None = None,
    reasoning: ReasoningState = "over",
) -> GrammarSpec | None:
    """The grammar of an output, None if nothing is asked of it.

    `tools` are those that may be called: all of the request, the allowed ones, or the named one, for which `choice` is
    "required". `is_parallel`: there may be several calls. `content` is what the content has to follow where it is no
    call. `reasoning`: whether the prompt ends within a section of reasoning, or the model may begin one, or neither.

    Without a format there are neither calls nor reasoning.
    """
    if not tools or form is None or (form.calls is None and form.channels is None):
        tools, choice = (), "none"
    if choice == "none":
        tools = ()
    if form is None or (form.channels is None and (form.reasoning is None or reasoning == "over") and not tools):
        return content
    if not tools and content is None:
        return None
    if form.channels is not None:
        phases = channel_phases(form.channels, markers, tools, choice, content)
    else:
        writer = _PhaseWriter(form, markers, tools, is_parallel, content)
        free = choice == "auto" and content is None
        phases = writer.free_content(reasoning) if free else writer.bound_content(reasoning, choice)
    begin = 1 if form.channels is not None and reasoning == "begun" else 0
    return PhasedGrammar(phases, begin, markers.shown_ids(form)).spec()


class _PhaseWriter:
    def __init__(
        self,
        form: OutputFormat,
        markers: MarkerTokens,
        tools: Sequence[ToolGrammar],
        is_parallel: bool,
        content: GrammarSpec | None,
    ) -> None:
        self._form, self._markers, self._tools = form, markers, tools
        self._is_parallel, self._content = is_parallel, content

    def free_content(self, reasoning: ReasoningState) -> tuple[Phase, ...]:
        """Content is free until a call begins."""
        part, section = self._form.calls, self._form.reasoning
        assert part is not None
        rules = LarkRules()
        grammar = rules.text(self._calls(rules, part))
        if section is None or (reasoning == "over" and not section.anywhere):
            return Phase(self._call_triggers(part, 1)), Phase(grammar=grammar)
        calls, content = 3, 2
        start = Phase((*self._opens(section, 1), *self._call_triggers(part, calls)))
        within = Phase((*self._closes(section, content), *self._special_triggers(part, calls)))
        behind = Phase((*(self._opens(section, 1) if section.anywhere else ()), *self._call_triggers(part, calls)))
        phases = (start, within, behind, Phase(grammar=grammar))
        return _beginning_with(phases, {"begun": 1, "possible": 0, "over": 2}[reasoning])

    def bound_content(self, reasoning: ReasoningState, choice: CallChoice) -> tuple[Phase, ...]:
        """Behind reasoning there is nothing but calls, or content that follows a grammar."""
        part, section = self._form.calls, self._form.reasoning
        rules = LarkRules()
        options = [self._calls(rules, part)] if part is not None and self._tools else []
        if choice != "required":
            options.append(CONTENT)
        body = sequence(SPACE if choice == "required" else "", either(options))
        if section is None or reasoning == "over":
            return (self._bound(rules, body),)
        spellings = either(map(self._markers.lark, section.closes))
        behind = self._bound(rules, f"({spellings} {SPACE})? {body}")
        calls = self._special_triggers(part, 1) if part is not None and self._tools else ()
        within = Phase((*self._closes(section, 1), *calls), may_end=False)
        if reasoning == "begun":
            return within, behind
        first = self._bound(rules, either([body, *map(self._markers.lark, section.opens)]))
        within = within._replace(triggers=tuple(trigger._replace(to=2) for trigger in within.triggers))
        opens = tuple(Trigger(self._markers.parts(text), 1) for text in section.opens)
        return first._replace(triggers=opens), within, behind

    def _bound(self, rules: LarkRules, start: str) -> Phase:
        return Phase(grammar=rules.text(start), content=self._content if CONTENT in start else None)

    def _calls(self, rules: LarkRules, part: CallsPart) -> str:
        return calls_rule(rules, self._markers, part, self._tools, is_parallel=self._is_parallel)

    def _opens(self, section: ReasoningPart, to: int) -> tuple[Trigger, ...]:
        return tuple(Trigger(self._markers.parts(text), to, not section.anywhere) for text in section.opens)

    def _closes(self, section: ReasoningPart, to: int) -> tuple[Trigger, ...]:
        return tuple(Trigger(self._markers.parts(text), to) for text in section.closes)

    def _call_triggers(self, part: CallsPart, to: int) -> tuple[Trigger, ...]:
        triggers = [Trigger(self._markers.parts(text), to) for text in marker_texts(part)]
        if part.only_at_start:
            starts = [start_of_call(part, tool.name) for tool in self._tools]
            triggers += [Trigger(self._markers.parts(text), to, at_start=True) for text in starts]
        return tuple(triggers)

    def _special_triggers(self, part: CallsPart, to: int) -> tuple[Trigger, ...]:
        """Those that end reasoning, too."""
        return tuple(
            trigger
            for trigger in self._call_triggers(part, to)
            if not trigger.at_start and isinstance(trigger.marker[0], int)
        )


def _beginning_with(phases: tuple[Phase, ...], begin: int) -> tuple[Phase, ...]:
    """The phases that can be reached, renumbered so that `begin` is the first."""
    order = [begin]
    for number in order:  # which grows
        order += dict.fromkeys(trigger.to for trigger in phases[number].triggers if trigger.to not in order)
    number_of = {old: new for new, old in enumerate(order)}
    return tuple(
        phases[old]._replace(
            triggers=tuple(trigger._replace(to=number_of[trigger.to]) for trigger in phases[old].triggers)
        )
        for old in order
    )
