"""The calls of tools in a conversation, and their results: OpenAI's rules for their order, in its words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slipstream.router.api.openai.body.sampling import invalid
from slipstream.router.api.openai.schema.messages import CalledFunction, ChatMessage
from slipstream.router.http.http_error import HttpError
from slipstream.router.text.template.chat_template import to_json
from slipstream.router.text.template.turn import Call, Turn

RESULT_ROLES = frozenset({"tool", "function"})


def has_tools(messages: Sequence[ChatMessage]) -> bool:
    """Whether a message has calls, or is the result of one."""
    for message in messages:
        if message.role in RESULT_ROLES or message.tool_calls or message.function_call is not None:
            return True
    return False


def turns_of(messages: Sequence[ChatMessage]) -> list[Turn]:
    """The messages, those of OpenAI's older functions in the form of tools. Raises HttpError 400 for a result that
    follows no call, or another one, and for a call without a result."""
    turns: list[Turn] = []
    open_calls = OpenCalls()
    for index, message in enumerate(messages):
        if message.role in RESULT_ROLES:
            turns.append(open_calls.answered_by(index, message))
        else:
            open_calls.check_all_answered()
            calls = calls_of(index, message)
            open_calls = OpenCalls(index, calls, is_legacy=message.function_call is not None)
            reasoning = message.reasoning or message.reasoning_content
            turns.append(Turn(message.role, content_of(message), message.name, calls, reasoning=reasoning))
    open_calls.check_all_answered()
    return turns


class OpenCalls:
    """The calls of the assistant's message at `index`, and which of them wait for their results."""

    def __init__(self, index: int = 0, calls: Sequence[Call] = (), is_legacy: bool = False) -> None:
        self._index = index
        self._is_legacy = is_legacy
        self._names = {call.id: call.name for call in calls}
        self._num_unanswered = Counter(call.id for call in calls)

    def answered_by(self, index: int, message: ChatMessage) -> Turn:
        """The result of one of the calls. Raises HttpError 400."""
        role, field = message.role, "function_call" if message.role == "function" else "tool_calls"
        if not self._names or self._is_legacy != (role == "function"):
            message_text = f"messages with role '{role}' must be a response to a preceeding message with '{field}'."
            raise invalid(f"messages.{index}.role", f"Invalid parameter: {message_text}")
        call_id = message.tool_call_id or ""
        if self._is_legacy:
            (call_id, name), *_ = self._names.items()
            if message.name != name:
                raise invalid(
                    f"messages.{index}.name", f"'name' of {message.name!r} is not {name!r}, which was called."
                )
        if call_id not in self._names:
            text = f"'tool_call_id' of {call_id!r} not found in 'tool_calls' of previous message."
            raise invalid(f"messages.{index}.tool_call_id", f"Invalid parameter: {text}")
        if not self._num_unanswered[call_id]:
            text = f"Duplicate value for 'tool_call_id' of {call_id!r} in 'messages.{index}'."
            raise invalid(f"messages.{index}.tool_call_id", text)
        self._num_unanswered[call_id] -= 1
        return Turn("tool", content_of(message), message.name or self._names[call_id], call_id=call_id)

    def check_all_answered(self) -> None:
        """Raises HttpError 400."""
        left = list(self._num_unanswered.elements())
        if left and not self._is_legacy:  # a function may have been called and left at that
            raise unanswered(self._index, left)


def unanswered(index: int, call_ids: Sequence[str]) -> HttpError:
    message = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids of 'messages.{index}' did not have response messages: {', '.join(call_ids[:16])}"
    )
    return invalid(f"messages.{index}.tool_calls", message)


def calls_of(index: int, message: ChatMessage) -> tuple[Call, ...]:
    if message.function_call is not None:
        return (call_of(f"call_function_{index}", message.function_call),)
    return tuple(call_of(call.id, call.function) for call in message.tool_calls or ())


def call_of(call_id: str, function: CalledFunction) -> Call:
    arguments = function.arguments
    return Call(call_id, function.name, to_json(arguments) if isinstance(arguments, dict) else arguments or "")


def content_of(message: ChatMessage) -> str | list[str] | None:
    content = message.content
    return [part.text for part in content] if isinstance(content, list) else content
