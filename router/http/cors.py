"""CORS (https://fetch.spec.whatwg.org/#http-cors-protocol): pages of which origins may read answers in a browser.

Keys travel in the Authorization header, which a page sets itself, so credentials (cookies) are never allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from slipstream.router.http.reader import Request

EXPOSED = (
    "retry-after, x-request-id, x-slipstream-ignored, x-slipstream-max-tokens, x-ratelimit-limit-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, "
    "x-ratelimit-reset-requests, x-ratelimit-reset-tokens"
)
METHODS = "GET, HEAD, POST, OPTIONS"
MAX_AGE_S = 7200  # that a browser may remember a preflight; the most that Chromium takes
HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,4096}")
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
VARY = "vary: origin\r\n"


class CorsPolicy:
    """The header lines of an answer are rendered once for each origin."""

    def __init__(self, origins: Iterable[str]) -> None:
        allowed = {normal(origin) for origin in origins}
        self._any = self._lines("*") if "*" in allowed else None
        self._lines_of = {origin.encode(): self._lines(origin) + VARY for origin in allowed}

    @classmethod
    def of(cls, origins: tuple[str, ...]) -> CorsPolicy | None:
        """None: there are no CORS headers."""
        return cls(origins) if origins else None

    def lines_for(self, origin: bytes | None) -> str:
        """The header lines of an answer to a page of that origin; None: the request names none."""
        if self._any is not None:
            return self._any if origin is not None else ""
        return self._lines_of.get(origin, VARY) if origin is not None else VARY

    def lines_of(self, request: Request) -> str:
        """The header lines of the answer to `request`. A preflight's answer also allows all
        headers that it names, because clients have many of their own (x-stainless-*)."""
        origin = request.headers.get(b"origin")
        lines = self.lines_for(origin)
        if request.method != "OPTIONS" or b"access-control-request-method" not in request.headers:
            return lines
        if lines in ("", VARY):  # not one of ours: without these lines the browser refuses
            return lines
        lines += f"access-control-allow-methods: {METHODS}\r\naccess-control-max-age: {MAX_AGE_S}\r\n"
        asked = request.headers.get(b"access-control-request-headers", b"")
        if HEADER_NAMES.fullmatch(asked):
            lines += f"access-control-allow-headers: {asked.decode('ascii')}\r\n"
        return f"{lines}vary: access-control-request-headers\r\n"

    @staticmethod
    def _lines(origin: str) -> str:
        return f"access-control-allow-origin: {origin}\r\naccess-control-expose-headers: {EXPOSED}\r\n"


def normal(origin: str) -> str:
    """As a browser writes it: in lower case, without the port that its scheme implies."""
    origin = origin.lower()
    return origin.removesuffix(DEFAULT_PORTS.get(urlsplit(origin).scheme, ""))
