"""TLS of the admin API's port."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, ClassVar

from slipstream.router.tls.client_tls import ClientTlsConfig
from slipstream.router.tls.server_tls import ServerTls
from slipstream.router.tls.tls_files import load_authorities, load_pair

NEEDS = {  # each key, and what it needs beside it
    "cert_file": ("key_file",),
    "key_file": ("cert_file",),
    "ca_file": ("cert_file",),
    "client_ca_file": ("cert_file",),
    "client_cert_file": ("client_key_file", "client_ca_file", "cert_file"),
    "client_key_file": ("client_cert_file",),
    "server_name": ("cert_file",),
}


@dataclass(frozen=True, slots=True)
class AdminTlsConfig:
    """PEM files. `cert_file` and `key_file` are the server's. With `client_ca_file`, callers must present a certificate
    of one of its authorities. The others are for callers on this host, which are commands and the router: `ca_file`
    has the authorities that they trust (null: those of this system), and they present `client_cert_file` (null:
    `cert_file`). `server_name` is what the server's certificate names, if that is not the address `admin_api.host`."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    cert_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None
    client_ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        for key, others in NEEDS.items():
            if getattr(self, key) == "":
                raise ValueError(f"{key} must not be empty; leave it out or give null, got ''")
            missing = next((other for other in others if getattr(self, other) is None), None)
            if getattr(self, key) is not None and missing is not None:
                raise ValueError(f"{missing} must be given beside {key}, got None")

    @property
    def is_on(self) -> bool:
        return self.cert_file is not None

    @property
    def caller(self) -> ClientTlsConfig:
        """What callers on this host use."""
        if not self.is_on:
            return ClientTlsConfig()
        if self.client_ca_file is None:
            return ClientTlsConfig(self.ca_file, server_name=self.server_name)
        cert = self.client_cert_file or self.cert_file
        return ClientTlsConfig(self.ca_file, cert, self.client_key_file or self.key_file, self.server_name)

    def check_caller(self) -> None:
        """Raises TlsFileError if the files of callers on this host cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca_file is not None:
            load_authorities(context, self.ca_file)
        if self.client_cert_file is not None and self.client_key_file is not None:
            load_pair(context, self.client_cert_file, self.client_key_file, ("client_cert_file", "client_key_file"))

    def server_tls(self) -> ServerTls:
        """For the port. Raises TlsFileError."""
        files = (self.cert_file or "", self.key_file or "")
        clients = () if self.client_ca_file is None else (self.client_ca_file,)
        return ServerTls(self._load, (*files, *clients), "the admin API's certificate")

    def _load(self, context: ssl.SSLContext) -> None:
        assert self.cert_file is not None
        assert self.key_file is not None
        load_pair(context, self.cert_file, self.key_file)
        context.set_alpn_protocols(["http/1.1"])
        if self.client_ca_file is not None:
            load_authorities(context, self.client_ca_file, "client_ca_file")
            context.verify_mode = ssl.CERT_REQUIRED
