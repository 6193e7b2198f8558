"""Tools for a model whose chat template does not know them: their definitions stand in the system message, and calls
and results of the history in the texts of messages. The words are those of the Hermes format (Nous Research's Hermes 2
Pro, Qwen2.5), which many models have learnt, unless the model is known to write calls in a form of its own. llama.cpp
does the same for such templates, with words of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.router.text.template.chat_template import to_json
from slipstream.router.text.template.turn import Call, Turn

INTRODUCTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{definitions}
</tools>

For each function call, return a json object with function name and arguments{within}:
{example}"""
HERMES_CALL = """<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


def with_definitions(
    turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]], example: str, takes_system: bool
) -> list[Turn]:
    """The conversation with the tools in its system message, or in the user's first one where the template takes no
    system messages. `example` shows how a call is to be written."""
    within = " within <tool_call></tool_call> XML tags" if example == HERMES_CALL else " in this form"
    shown = "\n".join(map(to_json, tools))
    definitions = INTRODUCTION.format(definitions=shown, within=within, example=example)
    first = turns[0]
    if first.role in ("system", "developer"):
        return [first._replace(content="\n\n".join(filter(None, (first.text, definitions)))), *turns[1:]]
    if takes_system:
        return [Turn("system", definitions), *turns]
    at = next((at for at, turn in enumerate(turns) if turn.role == "user"), 0)
    text = "\n\n".join(filter(None, (definitions, turns[at].text)))
    return [*turns[:at], turns[at]._replace(content=text), *turns[at + 1 :]]


def with_calls_as_text(turns: Sequence[Turn]) -> list[Turn]:
    """The conversation with calls and results as text. Results that follow one another, and a user's message behind
    them, are one message, because many templates take roles only in turns."""
    made: list[Turn] = []
    follows_result = False
    for turn in turns:
        is_result = turn.role == "tool"
        if turn.calls:
            turn = Turn("assistant", "\n".join(filter(None, (turn.text, *map(_call_text, turn.calls)))), turn.name)
        elif is_result:
            turn = Turn("user", f"<tool_response>\n{turn.text}\n</tool_response>")
        if follows_result and turn.role == "user":
            made[-1] = made[-1]._replace(content=f"{made[-1].text}\n{turn.text}")
        else:
            made.append(turn)
        follows_result = is_result or (follows_result and turn.role == "user")
    return made


def _call_text(call: Call) -> str:
    arguments = call.as_object()
    written = call.arguments or "{}" if arguments is not None else to_json(call.arguments)
    return f'<tool_call>\n{{"name": {to_json(call.name)}, "arguments": {written}}}\n</tool_call>'
