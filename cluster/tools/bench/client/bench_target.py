"""The server to measure: its endpoint, and what all requests to it have in common."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

EndpointKind = Literal["chat", "completions"]
PATHS: dict[EndpointKind, str] = {"chat": "/chat/completions", "completions": "/completions"}


class BenchError(Exception):
    """Nothing can be measured. The text is one sentence that says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """`base` is the path of the API, `/v1` on most servers. `check_certificate` False: any certificate is accepted."""

    host: str
    port: int
    base: str
    is_tls: bool
    model: str = ""
    kind: EndpointKind = "chat"
    key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    check_certificate: bool = True

    @classmethod
    def of_url(cls, url: str) -> Target:
        """`HOST:PORT`, `http(s)://HOST[:PORT]`, with or without `/v1` or the whole path of an endpoint. Raises
        BenchError."""
        whole = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(whole)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise BenchError(f"{url!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise BenchError(f"{url!r} is no URL of a server; expected http://HOST:PORT")
        base, kind = parts.path.rstrip("/"), None
        for name, path in PATHS.items():
            if base.endswith(path):
                base, kind = base.removesuffix(path), name
        is_tls = parts.scheme == "https"
        target = cls(host, port or (443 if is_tls else 80), base or "/v1", is_tls)
        return target if kind is None or kind == "chat" else cls(host, target.port, target.base, is_tls, kind=kind)

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def root(self) -> str:
        """The server's URL without a path."""
        return f"{'https' if self.is_tls else 'http'}://{self.netloc}"

    @property
    def url(self) -> str:
        return f"{self.root}{self.base}{PATHS[self.kind]}"

    def ssl_context(self) -> ssl.SSLContext | None:
        if not self.is_tls:
            return None
        context = ssl.create_default_context()
        if not self.check_certificate:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def request(self, body: dict[str, Any]) -> bytes:
        """A complete HTTP request, ready to be sent."""
        data = json.dumps({"model": self.model, **body, **self.extra}).encode()
        lines = [f"POST {self.base}{PATHS[self.kind]} HTTP/1.1", f"host: {self.netloc}"]
        lines += ["content-type: application/json", "accept: text/event-stream", f"content-length: {len(data)}"]
        if self.key:
            lines.append(f"authorization: Bearer {self.key}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data
