"""What the scripted models answer, and what they are asked: whole agent loops without a large model.

`scripted` speaks the demo model's format, `thinking` that of Qwen3 (Hermes calls), and thinks before each answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.clients.agent_models import make_thinking_model
from tests.support.clients.scripted_router import ScriptedModel

Rule = dict[str, Any]


def demo_call(name: str, /, **arguments: Any) -> str:
    return f'<|tool_call|>{{"name": {json.dumps(name)}, "arguments": {json.dumps(arguments)}}}'


def hermes_call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def thought(text: str) -> str:
    return f"<think>\n{text}\n</think>\n\n"


def rule(match: str, *reply: str, **keys: str) -> Rule:
    """Each part of the reply is tokenised by itself."""
    return {"match": match, "reply": [part.replace("\\\\g<", "\\g<") for part in reply], **keys}


PATH = r"(?P<path>/[\w./-]+\.txt)"
PATHS = rf"{PATH} and (?P<other>/[\w./-]+\.txt)"
SECRETS = r"code-(?P<secret>\d{4})"  # stands in files that only a tool can read

STEP, LAST_STEP = r"did step (?P<number>\d+)", r"did step 42\b"

SCRIPTED: list[Rule] = [
    # Questions that tools of the loop answer.
    rule(r"weather in (?P<city>\w+)", demo_call("get_weather", city=r"\g<city>")),
    rule(
        r"Compare (?P<city>\w+) and (?P<other>\w+)",
        *(demo_call("get_weather", city=r"\g<city>"), demo_call("get_weather", city=r"\g<other>")),
        cuts="characters",
    ),
    # An agent that hands over to another one, which looks at what that was for.
    rule(r"Hand over: what is the temperature in (?P<city>\w+)", demo_call("transfer_to_weatherman")),
    rule(r'"assistant": "Weatherman"', demo_call("get_weather", city="Paris")),
    # smolagents answers by a tool, too, and writes results as text of the user.
    rule(r"(?s)Observation:.*sunny in (?P<city>\w+)", demo_call("final_answer", answer=r"It is sunny in \g<city>.")),
    rule(r"sunny in (?P<city>\w+)", "It is sunny in ", r"\g<city>", "."),
    # A session of many turns, whose tool counts.
    rule("Do all steps", demo_call("step", after="0")),
    rule(LAST_STEP, "All done."),
    rule(STEP, demo_call("step", after=r"\g<number>")),
    # A call that does not end within a few tokens.
    rule("Write a long letter", demo_call("write_letter", text="dear friend, " * 40)),
    # Structured output by tools, as pydantic-ai, instructor and LangChain name them.
    rule("Describe (?P<city>Paris) as JSON", json.dumps({"name": r"\g<city>", "country": "France"})),
    rule("Describe (?P<city>Paris) by final_result", demo_call("final_result", name=r"\g<city>", country="France")),
    rule("Describe (?P<city>Paris) by PartialCity", demo_call("PartialCity", name=r"\g<city>", country="France")),
    rule("Describe (?P<city>Paris)", demo_call("City", name=r"\g<city>", country="France")),
    # Coding agents: one or two files, by the tool of each. opencode also asks for a title, without tools.
    rule(rf"(?s)title generator.*opencode: read {PATH}( and [\w./-]+)?", "Reading files"),
    rule(rf"opencode: read {PATH}", demo_call("read", filePath=r"\g<path>")),
    rule(rf"opencode: read {PATHS}", demo_call("read", filePath=r"\g<path>"), demo_call("read", filePath=r"\g<other>")),
    rule(rf"Cline: read {PATH}", demo_call("read_files", files=[{"path": r"\g<path>"}])),
    rule(
        rf"Cline: read {PATHS}",
        *(
            demo_call("read_files", files=[{"path": r"\g<path>"}]),
            demo_call("read_files", files=[{"path": r"\g<other>"}]),
        ),
    ),
    rule(rf"Continue: read {PATH}", demo_call("Read", filepath=r"\g<path>")),
    rule(rf"Continue: read {PATHS}", demo_call("Read", filepath=r"\g<path>"), demo_call("Read", filepath=r"\g<other>")),
    # aider has no tools: it takes whole files out of the text.
    rule(r"aider: write (?P<code>code-\d{4}) into (?P<file>[\w.]+)", "\\g<file>\n```\n\\g<code>\n```\n"),
    rule(rf"Codex: read {PATH}", demo_call("exec_command", cmd=r"cat \g<path>")),
    rule(
        rf"Codex: read {PATHS}",
        *(demo_call("exec_command", cmd=r"cat \g<path>"), demo_call("exec_command", cmd=r"cat \g<other>")),
    ),
    rule(rf"Claude Code: read {PATH}", demo_call("Read", file_path=r"\g<path>")),
    rule(
        rf"Claude Code: read {PATHS}",
        *(demo_call("Read", file_path=r"\g<path>"), demo_call("Read", file_path=r"\g<other>")),
    ),
    rule(SECRETS, r"The file says code-\g<secret>."),
]

THINKING: list[Rule] = [
    rule(
        r"weather in (?P<city>\w+)",
        *(thought(r"I need the weather of \g<city>."), hermes_call("get_weather", city=r"\g<city>")),
        cuts="characters",
    ),
    rule(
        r"Compare (?P<city>\w+) and (?P<other>\w+)",
        *(thought("I need both."), "I look.\n", hermes_call("get_weather", city=r"\g<city>"), "\n"),
        hermes_call("get_weather", city=r"\g<other>"),
    ),
    rule(r"sunny in (?P<city>\w+)", thought("Now I know."), r"It is sunny in \g<city>."),
    rule("Do all steps", thought("I begin."), hermes_call("step", after="0")),
    rule(LAST_STEP, thought("That was the last one."), "All done."),
    rule(STEP, thought(r"After \g<number> comes another one."), hermes_call("step", after=r"\g<number>")),
    rule(rf"(?s)title generator.*opencode: read {PATH}", "Reading files"),
    rule(rf"opencode: read {PATH}", thought("I read it."), hermes_call("read", filePath=r"\g<path>")),
    rule(rf"Cline: read {PATH}", thought("I read it."), hermes_call("read_files", files=[{"path": r"\g<path>"}])),
    rule(rf"Continue: read {PATH}", thought("I read it."), hermes_call("Read", filepath=r"\g<path>")),
    rule(rf"Codex: read {PATH}", thought("I read it."), hermes_call("exec_command", cmd=r"cat \g<path>")),
    rule(rf"Claude Code: read {PATH}", thought("I read it."), hermes_call("Read", file_path=r"\g<path>")),
    rule(SECRETS, thought("Now I know."), r"The file says code-\g<secret>."),
]


def models(folder: Path) -> list[ScriptedModel]:
    return [
        ScriptedModel("scripted", SCRIPTED),
        ScriptedModel("thinking", THINKING, make_thinking_model(folder / "thinking")),
    ]
