"""Conversations of agents, as their clients send them: tools, calls, and results that grow the prompt turn by turn.

Each session has a task of its own below a system message and tools that all share. A turn brings what the assistant
said and called, and the result of that call; the request has everything before it once more. Texts are words, lines of
code and numbers, with the signs of which control tokens are made, too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NUM_TOOLS = 16
SYSTEM_TOKENS = 2_000
TOOL_TOKENS = 120
TASK_TOKENS = 200
SAID_TOKENS = 80
CALLED_TOKENS = 60
FIRST_RESULT_TOKENS = 400
LINES = (
    "    if ({0} < {1} && {2} > 0) {{ return {3}[{4}]; }}  // {5} {6}",
    "{0} {1} {2} {3}, {4} {5}; {6}",
    "  - {0}: '{1} {2}' ({3} {4}) -> {5} | {6}",
    "def {0}_{1}({2}: int) -> list[{3}]:  # {4} {5} {6}",
    "{0} {1} {2} {3} {4} {5} {6}.",
    '<{0} class="{1}">{2} {3} {4}</{0}> {5} {6}',
    "2026-11-26 10:42:17 {0} [{1}] {2} {3} {4}={5} {6}",
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """`chars_per_token` is that of such texts with the model's tokenizer. The last turn has about `max_tokens`."""

    num_turns: int
    max_tokens: int
    chars_per_token: float

    @property
    def result_tokens(self) -> int:
        """Of each turn's result, the first one apart."""
        fixed = SYSTEM_TOKENS + NUM_TOOLS * TOOL_TOKENS + TASK_TOKENS + FIRST_RESULT_TOKENS
        grown = self.num_turns * (SAID_TOKENS + CALLED_TOKENS)
        return max((self.max_tokens - fixed - grown) // max(self.num_turns - 1, 1), 16)


class Texts:
    """Texts of so many tokens, made of words."""

    def __init__(self, words: Sequence[str], chars_per_token: float, seed: int) -> None:
        self._words = words
        self._chars_per_token = chars_per_token
        self._random = random.Random(seed)

    def of(self, num_tokens: int) -> str:
        lines: list[str] = []
        left = int(num_tokens * self._chars_per_token)
        while left > 0:
            line = self._random.choice(LINES).format(*self._random.choices(self._words, k=7))
            lines.append(line)
            left -= len(line) + 1
        return "\n".join(lines)

    def number(self) -> int:
        return self._random.getrandbits(96)


@dataclass(frozen=True, slots=True)
class Setting:
    """What all sessions share."""

    system: dict[str, Any]
    tools: list[dict[str, Any]]

    @classmethod
    def of(cls, words: Sequence[str], sizes: Sizes) -> Setting:
        texts = Texts(words, sizes.chars_per_token, 0)
        return cls(
            {"role": "system", "content": texts.of(SYSTEM_TOKENS)},
            [tool(f"tool_{number}", texts) for number in range(NUM_TOOLS)],
        )


def tool(name: str, texts: Texts) -> dict[str, Any]:
    text = texts.of(TOOL_TOKENS // 4)
    properties = {
        "path": {"type": "string", "description": text},
        "limit": {"type": "integer", "description": texts.of(TOOL_TOKENS // 8)},
        "mode": {"type": "string", "enum": ["read", "write", "append"]},
    }
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}


class Session:
    """The messages of one conversation. `grow` adds a turn."""

    def __init__(self, setting: Setting, words: Sequence[str], sizes: Sizes, seed: int) -> None:
        self._sizes = sizes
        self._texts = Texts(words, sizes.chars_per_token, seed)
        self._num_calls = 0
        task = {"role": "user", "content": self._texts.of(TASK_TOKENS)}
        self.messages: list[dict[str, Any]] = [setting.system, task]
        self.new = list(self.messages)  # since the request before

    def grow(self) -> None:
        texts = self._texts
        call_id = f"call_{texts.number():024x}"
        arguments = {"path": texts.of(CALLED_TOKENS), "limit": self._num_calls, "mode": "read"}
        function = {"name": f"tool_{self._num_calls % NUM_TOOLS}", "arguments": json.dumps(arguments)}
        call = {"id": call_id, "type": "function", "function": function}
        size = self._sizes.result_tokens if self._num_calls else FIRST_RESULT_TOKENS
        self.new = [
            {"role": "assistant", "content": texts.of(SAID_TOKENS), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": texts.of(size)},
        ]
        self.messages += self.new
        self._num_calls += 1
