"""The `signature` of a block of thinking.

Anthropic's vouches for the text, which comes back in the next request. Here nothing has to be vouched for: a client may
write whatever it likes into its conversation. Where the text is not shown, the signature carries it, so that the model
gets it back; it is not encrypted.
"""

from __future__ import annotations

import base64
from hashlib import blake2b

CARRIED = "slipstream-thinking-1:"
DIGEST_BYTES = 24


def signature_of(thinking: str, is_shown: bool) -> str:
    raw = thinking.encode("utf-8", "replace")
    if is_shown:
        return base64.b64encode(blake2b(raw, digest_size=DIGEST_BYTES).digest()).decode()
    return CARRIED + base64.b64encode(raw).decode()


def carried_by(signature: str) -> str:
    """The text that a signature carries; "" if it is none of this server that does."""
    if not signature.startswith(CARRIED):
        return ""
    try:
        return base64.b64decode(signature[len(CARRIED) :], validate=True).decode()
    except ValueError:  # not base64, or not UTF-8 within
        return ""
