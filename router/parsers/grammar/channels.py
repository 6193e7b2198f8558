"""The phases of an output in harmony's channels (gpt-oss).

    header --<|message|>--> body --<|start|>--> header            free
      |
      +-- to=functions. --> a call (grammar)

Where the first message has to be a call or content that follows a grammar, there may be one message of reasoning
before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.parsers.description.output_format import ChannelsPart
from slipstream.router.parsers.grammar.lark_rules import SPACE, LarkRules, either, sequence
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens, quoted
from slipstream.router.parsers.grammar.tool_grammar import ToolGrammar
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.protocol.phased_grammar import Phase, Trigger


def channel_phases(
    part: ChannelsPart,
    markers: MarkerTokens,
    tools: Sequence[ToolGrammar],
    choice: str,
    content: GrammarSpec | None,
) -> tuple[Phase, ...]:
    """The prompt ends behind the role of the first message; if it ends within a message of reasoning, the output begins
    in the second phase. There is one call at most."""
    writer = _MessageWriter(part, markers)
    rules = LarkRules()
    if choice == "auto" and content is None:
        call = Phase(grammar=rules.text(writer.recipient_and_call(rules, tools)))
        header = Phase(
            (
                Trigger(markers.parts(part.message), 1),
                Trigger(markers.parts(part.recipient + part.recipient_prefix), 2),
            )
        )
        return header, Phase((Trigger(markers.parts(part.start), 0),)), call
    options = [writer.call(rules, tools)] if tools else []
    if choice != "required":
        options.append(sequence(writer.header(part.content_channel), "@content"))
    messages = either(options)
    analysis = part.channel + part.reasoning_channel + part.message
    next_message = sequence(markers.lark(part.end + part.start + part.role), f"({messages})")
    bound = content if choice != "required" else None
    return (
        Phase(
            (Trigger(markers.parts(analysis), 1),),
            rules.text(either([messages, markers.lark(analysis)])),
            bound,
        ),
        Phase((Trigger(markers.parts(part.end), 2),), may_end=False),
        Phase(grammar=rules.text(next_message), content=bound),
    )


class _MessageWriter:
    def __init__(self, part: ChannelsPart, markers: MarkerTokens) -> None:
        self._part, self._markers = part, markers

    def header(self, channel: str) -> str:
        """From the channel to the text of a message that may be JSON."""
        return sequence(self._markers.lark(self._part.channel + channel), self._json_and_message())

    def call(self, rules: LarkRules, tools: Sequence[ToolGrammar]) -> str:
        """A whole message with a call behind its role."""
        channel = self._markers.lark(self._part.channel + self._part.call_channel)
        return sequence(channel, self.recipient_and_call(rules, tools))

    def recipient_and_call(self, rules: LarkRules, tools: Sequence[ToolGrammar]) -> str:
        """From the recipient on, which stands behind the channel or, before it, behind the role."""
        part = self._part
        channel = self._markers.lark(part.channel + part.call_channel)
        options = [
            rules.rule(
                sequence(
                    quoted(tool.name),
                    f"({channel})?",
                    self._json_and_message(),
                    rules.json(tool.rewritten, tool.definitions),
                    SPACE,
                    self._markers.lark(part.call),
                )
            )
            for tool in tools
        ]
        return rules.rule(sequence(quoted(part.recipient + part.recipient_prefix), either(options)))

    def _json_and_message(self) -> str:
        constrain = self._markers.lark(self._part.constrain)
        json = f'({SPACE} {constrain} "json" | WS "json")?'
        return sequence(json, SPACE, self._markers.lark(self._part.message))
