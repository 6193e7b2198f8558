"""TLS between parts of a cluster: both ends have a certificate of one authority, and check that of the other.

    router: worker port                           worker
      presents cert_file                 <------  presents cert_file, where `mutual`
      checks that of workers (`mutual`)           checks that of the router: authority and name

A renewed certificate needs no restart: the router takes it up for the next connection, a worker when it connects.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, ClassVar

from slipstream.router.tls.server_tls import ServerTls
from slipstream.router.tls.tls_files import load_authorities, load_pair


@dataclass(frozen=True, slots=True)
class LinkTlsConfig:
    """PEM files, at the same paths on every host: a certificate (with its chain), its key, and the certificates of the
    authorities that are trusted. `server_name` is what the router's certificate has to name; null: the address that
    workers connect to. With `mutual` the router accepts only workers that present a certificate of an authority."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    cert_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None
    mutual: bool = True
    server_name: str | None = None

    def __post_init__(self) -> None:
        given = [key for key in ("cert_file", "key_file", "ca_file") if getattr(self, key)]
        if given and len(given) < 3:
            missing = next(key for key in ("cert_file", "key_file", "ca_file") if key not in given)
            raise ValueError(f"{missing} must be given beside {given[0]}, got {getattr(self, missing)!r}")
        if self.server_name == "":
            raise ValueError("server_name must name a host or be null, got ''")

    @property
    def is_on(self) -> bool:
        return bool(self.cert_file)

    def client_context(self) -> ssl.SSLContext:
        """For a connection to the router. Raises TlsFileError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load_authorities(context)
        if self.mutual:
            self._load_pair(context)
        return context

    def server_tls(self, what: str) -> ServerTls:
        """For a port of the router. `what` is what the log calls its certificate. Raises TlsFileError."""
        return ServerTls(self._load_server, (self.cert_file or "", self.key_file or "", self.ca_file or ""), what)

    def name_of(self, host: str) -> str:
        """What the router's certificate has to name when this host is connected to."""
        return self.server_name or host

    def _load_server(self, context: ssl.SSLContext) -> None:
        self._load_pair(context)
        self._load_authorities(context)
        context.verify_mode = ssl.CERT_REQUIRED if self.mutual else ssl.CERT_NONE

    def _load_pair(self, context: ssl.SSLContext) -> None:
        assert self.cert_file is not None
        assert self.key_file is not None
        load_pair(context, self.cert_file, self.key_file)

    def _load_authorities(self, context: ssl.SSLContext) -> None:
        assert self.ca_file is not None
        load_authorities(context, self.ca_file)
