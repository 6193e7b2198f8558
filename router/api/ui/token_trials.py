"""How often wrong tokens may be tried."""

from __future__ import annotations

import hashlib
import ipaddress
from collections import deque

MAX_WRONG = 20  # of an address, in the span
SPAN_S = 60.0
MAX_KNOWN = 64
MAX_ADDRESSES = 1024  # those whose latest wrong token is the oldest are forgotten


class TokenTrials:
    """Wrong tokens are counted by the address that they come from, so that they keep no administrator out who is at
    another one. Tokens that were right before are never held back: behind a proxy all have its address. Digests of
    them are kept, not the tokens."""

    def __init__(self) -> None:
        self._right: dict[bytes, None] = {}  # the latest is last
        self._wrong_s: dict[str, deque[float]] = {}  # by network, the latest is last

    def wait_s(self, address: str, token: bytes, now_s: float) -> float:
        """For how long the token may not be tried from there; 0: now."""
        wrong_s = self._wrong_s.get(network_of(address), ())
        recent = [at_s for at_s in wrong_s if now_s - at_s < SPAN_S]
        if len(recent) < MAX_WRONG or digest_of(token) in self._right:
            return 0.0
        return recent[0] + SPAN_S - now_s

    def note(self, address: str, token: bytes, now_s: float, *, is_right: bool) -> None:
        """A token was tried."""
        digest = digest_of(token)
        self._right.pop(digest, None)
        if is_right:
            self._right[digest] = None
            if len(self._right) > MAX_KNOWN:
                del self._right[next(iter(self._right))]
            return
        network = network_of(address)
        wrong_s = self._wrong_s.pop(network, None) or deque(maxlen=MAX_WRONG)
        wrong_s.append(now_s)
        self._wrong_s[network] = wrong_s
        if len(self._wrong_s) > MAX_ADDRESSES:
            del self._wrong_s[next(iter(self._wrong_s))]


def network_of(address: str) -> str:
    """The address itself, and of IPv6 its /64: one host may use any address in it."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # of a Unix socket
        return address
    if not isinstance(found, ipaddress.IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


def digest_of(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
