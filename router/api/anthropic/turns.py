"""The turns of a conversation: messages of one role that follow each other are one turn, as in Anthropic's API. The
results of tools come in the turn behind their calls, each of which has one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from slipstream.router.api.anthropic.content_blocks import (
    InputMessage,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from slipstream.router.api.openai.body.sampling import invalid
from slipstream.router.http.http_error import HttpError

MAX_NAMED = 16  # ids in an error
REMINDER = "<system-reminder>\n{text}\n</system-reminder>"  # in which Claude Code gives hints in users' messages


class PlacedBlock(NamedTuple):
    """A block and its place in the request."""

    block: Any
    place: str


class InputTurn(NamedTuple):
    """`place` is that of its first message."""

    role: Literal["user", "assistant", "system"]
    blocks: list[PlacedBlock]
    place: str

    @property
    def calls(self) -> list[ToolUseBlock]:
        return [placed.block for placed in self.blocks if isinstance(placed.block, ToolUseBlock)]

    @property
    def results(self) -> list[ToolResultBlock]:
        return [placed.block for placed in self.blocks if isinstance(placed.block, ToolResultBlock)]

    @property
    def texts(self) -> list[str]:
        return [placed.block.text for placed in self.blocks if isinstance(placed.block, TextBlock)]


def turns_of(messages: Sequence[InputMessage], shows_later_system: bool) -> list[InputTurn]:
    """Where a template does not show a system's message that comes later, it is a part of the user's. Raises HttpError
    400 for calls and results that do not fit together, and for a message without content."""
    turns: list[InputTurn] = []
    for index, message in enumerate(messages):
        place, role = f"messages.{index}", message.role
        blocks = [PlacedBlock(block, f"{place}.content.{at}") for at, block in enumerate(message.blocks)]
        if not blocks and not (role == "assistant" and index == len(messages) - 1):
            raise invalid(f"{place}.content", f"'{place}.content' is empty; only that of a last 'assistant' may be.")
        if role == "system" and not shows_later_system:
            role, blocks = "user", [reminding(placed) for placed in blocks]
        if turns and turns[-1].role == role:
            turns[-1].blocks.extend(blocks)
        else:
            turns.append(InputTurn(role, blocks, place))
    check_results(turns)
    return turns


def reminding(placed: PlacedBlock) -> PlacedBlock:
    text = REMINDER.format(text=placed.block.text)
    return placed._replace(block=TextBlock.model_construct(type="text", text=text, cache_control=None, citations=None))


def check_results(turns: Sequence[InputTurn]) -> None:
    """Raises HttpError 400 for a call without a result, a result without a call, and ids that come twice."""
    open_ids: list[str] = []
    caller = ""
    for turn in turns:
        wanted, open_ids = set(open_ids), []
        for placed in turn.blocks:
            if isinstance(placed.block, ToolResultBlock):
                call_id = placed.block.tool_use_id
                if call_id not in wanted:
                    raise not_called(placed.place, call_id)
                wanted.discard(call_id)
            elif isinstance(placed.block, ToolUseBlock):
                if placed.block.id in open_ids:
                    message = f"'{placed.place}.id' is {placed.block.id!r}, which another call of the turn has."
                    raise invalid(f"{placed.place}.id", message)
                open_ids.append(placed.block.id)
        if wanted:
            raise unanswered(caller, wanted)
        caller = turn.place
    if open_ids:
        raise unanswered(caller, open_ids)


def not_called(place: str, call_id: str) -> HttpError:
    message = (
        f"'{place}': unexpected `tool_use_id` in a `tool_result` block: {call_id}. Each `tool_result` block must have "
        "a `tool_use` block in the message before, and be its only result."
    )
    return invalid(f"{place}.tool_use_id", message)


def unanswered(place: str, call_ids: Iterable[str]) -> HttpError:
    named = ", ".join(sorted(call_ids)[:MAX_NAMED])
    message = (
        f"'{place}': `tool_use` ids were found without `tool_result` blocks immediately after: {named}. Each "
        "`tool_use` block must have a `tool_result` block in the next message."
    )
    return invalid(place, message)
