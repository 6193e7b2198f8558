"""How often wrong tokens may be tried."""

from __future__ import annotations

import hashlib
from collections import deque

MAX_WRONG = 20  # in the span
SPAN_S = 60.0
MAX_KNOWN = 64


class TokenTrials:
    """Tokens that were right before are never held back, so that wrong ones keep no administrator out who is there
    already. Digests of them are kept, not the tokens."""

    def __init__(self) -> None:
        self._right: dict[bytes, None] = {}  # the latest is last
        self._wrong_s: deque[float] = deque()

    def wait_s(self, token: bytes, now_s: float) -> float:
        """For how long the token may not be tried; 0: now."""
        while self._wrong_s and now_s - self._wrong_s[0] >= SPAN_S:
            self._wrong_s.popleft()
        if len(self._wrong_s) < MAX_WRONG or digest_of(token) in self._right:
            return 0.0
        return self._wrong_s[0] + SPAN_S - now_s

    def note(self, token: bytes, now_s: float, *, is_right: bool) -> None:
        """A token was tried."""
        digest = digest_of(token)
        self._right.pop(digest, None)
        if is_right:
            self._right[digest] = None
            if len(self._right) > MAX_KNOWN:
                del self._right[next(iter(self._right))]
        else:
            self._wrong_s.append(now_s)


def digest_of(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
