"""What is in the `encrypted_content` of a reasoning item.

Clients that keep a conversation themselves (`store: false`) give reasoning back by this field alone. It is not
encrypted, because the client has the same text in the item's `content` or `summary`; what another server has sealed is
of no use to a model here, and is left out of its prompt.
"""

from __future__ import annotations

import base64

PREFIX = "slipstream-reasoning-1:"


def sealed(reasoning: str) -> str:
    return PREFIX + base64.b64encode(reasoning.encode("utf-8", "replace")).decode()


def unsealed(content: str) -> str:
    """The reasoning; "" if it is none that this server has sealed."""
    if not content.startswith(PREFIX):
        return ""
    try:
        return base64.b64decode(content[len(PREFIX) :], validate=True).decode()
    except ValueError:  # not base64, or not UTF-8 within
        return ""
