"""`truncation: auto`: the oldest messages of a conversation are left out until it fits."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.api.openai.schema.messages import ChatMessage
from slipstream.router.text.tokenizer import size_of

MAX_ATTEMPTS = 8
MESSAGE_CHARS = 16  # of the template around a message
MARGIN = 0.95  # the estimate is of characters, which have unequal numbers of tokens
INSTRUCTING_ROLES = ("system", "developer")


def turns_of(messages: Sequence[ChatMessage]) -> list[list[ChatMessage]]:
    """The messages that have to go together: calls, and their results."""
    turns: list[list[ChatMessage]] = []
    for message in messages:
        if message.role == "tool" and turns:
            turns[-1].append(message)
        else:
            turns.append([message])
    return turns


def shortened(messages: Sequence[ChatMessage], num_tokens: int, max_tokens: int) -> list[ChatMessage] | None:
    """The messages without the oldest, estimated to have at most `max_tokens`; at least one turn less. `num_tokens` is
    what they have now. Instructions at the beginning stay, and so does the last turn; None: there is nothing else. The
    rest begins with a message of the user if one is left: many templates refuse conversations that do not."""
    num_fixed = next((index for index, one in enumerate(messages) if one.role not in INSTRUCTING_ROLES), len(messages))
    turns = turns_of(messages[num_fixed:])
    if len(turns) <= 1:
        return None
    sizes = [sum(map(size, turn)) for turn in turns]
    fixed = sum(map(size, messages[:num_fixed]))
    kept = fixed + sum(sizes)
    most = kept * MARGIN * max_tokens / max(num_tokens, 1)
    num_left_out = 0
    while num_left_out < len(turns) - 1 and (not num_left_out or kept > most):
        kept -= sizes[num_left_out]
        num_left_out += 1
    users = (index for index in range(num_left_out, len(turns)) if turns[index][0].role == "user")
    num_left_out = next(users, num_left_out)
    rest = [message for turn in turns[num_left_out:] for message in turn]
    return [*messages[:num_fixed], *rest]


def size(message: ChatMessage) -> int:
    """In characters."""
    content = message.content
    text = content if isinstance(content, str) else "".join([part.text for part in content or ()])
    calls = sum([len(call.function.name) + size_of(call.function.arguments) for call in message.tool_calls or ()])
    return len(text) + len(message.reasoning or "") + calls + MESSAGE_CHARS
