"""The headers by which agents name their conversation, beside the body's fields."""

from __future__ import annotations

import re
from collections.abc import Mapping

# The most exact first. `session-id` (before: `session_id`) is Codex's, `x-session-id` and `x-session-affinity` are
# opencode's and those of gateways such as OpenRouter, the last two are sent by opencode and Claude Code to their own.
SESSION_HEADERS = (
    b"x-session-id",
    b"session-id",
    b"session_id",
    b"x-session-affinity",
    b"x-opencode-session",
    b"x-claude-code-session-id",
)
NAME = re.compile(rb"[!-~]{1,512}")


def session_in(headers: Mapping[bytes, bytes]) -> str:
    """The name of the conversation; "" if there is none, or one that is no name."""
    for header in SESSION_HEADERS:
        name = headers.get(header)
        if name is not None and NAME.fullmatch(name):
            return name.decode("ascii")
    return ""
