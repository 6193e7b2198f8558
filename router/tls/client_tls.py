"""TLS of a client of an HTTP server."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from typing import Any, ClassVar

from slipstream.router.tls.tls_files import load_authorities, load_pair


@dataclass(frozen=True, slots=True)
class ClientTlsConfig:
    """PEM files: the authorities that are trusted (null: those of this system), and a certificate with its key for a
    server that asks for one. `server_name` is what the server's certificate has to name; null: the host of its URL. The
    files are read for each connection, so renewed ones need no restart."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        for key, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
            if getattr(self, other) and not getattr(self, key):
                raise ValueError(f"{key} must be given beside {other}, got {getattr(self, key)!r}")
        for key in ("ca_file", "cert_file", "key_file", "server_name"):
            if getattr(self, key) == "":
                raise ValueError(f"{key} must not be empty; leave it out or give null, got ''")

    def context(self) -> ssl.SSLContext:
        """Raises TlsFileError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca_file is None:
            context.load_default_certs()
        else:
            load_authorities(context, self.ca_file)
        if self.cert_file is not None and self.key_file is not None:
            load_pair(context, self.cert_file, self.key_file)
        return context


class VerifiedConnection(http.client.HTTPConnection):
    """A connection over TLS to a server that must have a certificate with the right name."""

    default_port = http.client.HTTPS_PORT

    def __init__(self, host: str, port: int | None = None, *, tls: ClientTlsConfig, timeout: float) -> None:
        """Raises TlsFileError."""
        super().__init__(host, port, timeout=timeout)
        self._context = tls.context()
        self._server_name = tls.server_name or self.host

    def connect(self) -> None:
        """Raises OSError; ssl.SSLCertVerificationError is one."""
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self._server_name)
