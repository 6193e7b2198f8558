"""TLS between parts of a cluster: both ends have a certificate of one authority, and check that of the other.

    router: worker port                           worker
      presents cert_file                 <------  presents cert_file, where `mutual`
      checks that of workers (`mutual`)           checks that of the router: authority and name

A renewed certificate needs no restart: the router takes it up for the next connection, a worker when it connects.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

log = logging.getLogger(__name__)

FileTimes = tuple[tuple[int, int], ...]


class LinkTlsError(ValueError):
    """A file cannot be used: a sentence with its key and path."""


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
        """For a connection to the router. Raises LinkTlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._load(context, shows=self.mutual)
        return context

    def server_context(self) -> ssl.SSLContext:
        """For the port of the router. Raises LinkTlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION
        self._load(context, shows=True)
        context.verify_mode = ssl.CERT_REQUIRED if self.mutual else ssl.CERT_NONE
        return context

    def name_of(self, host: str) -> str:
        """What the router's certificate has to name when this host is connected to."""
        return self.server_name or host

    def _load(self, context: ssl.SSLContext, *, shows: bool) -> None:
        assert self.cert_file is not None
        assert self.key_file is not None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(self.ca_file)
        except (OSError, ValueError) as error:
            raise LinkTlsError(f"ca_file: cannot use {self.ca_file}: {error}") from error
        if not shows:
            return
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise LinkTlsError(f"cert_file: cannot use {self.cert_file} with {self.key_file}: {error}") from error


class LinkServerTls:
    """`context` serves every connection; `look` takes up renewed files, and leaves the old ones in place where they do
    not fit together."""

    def __init__(self, config: LinkTlsConfig) -> None:
        """Raises LinkTlsError."""
        self._config = config
        self._seen = self._times()
        self.context = config.server_context()

    def look(self) -> None:
        """To be called now and then."""
        times = self._times()
        if times == self._seen:
            return
        self._seen = times
        config = self._config
        try:
            config.server_context()  # apart from the context in use, which would be left with half of a bad pair
            assert config.cert_file is not None
            self.context.load_cert_chain(config.cert_file, config.key_file)
            self.context.load_verify_locations(config.ca_file)
        except (OSError, ValueError) as error:
            log.error("the certificate for workers stays as it was: %s", error)
        else:
            log.info("the certificate for workers was taken up anew from %s", config.cert_file)

    def _times(self) -> FileTimes:
        times = []
        for name in (self._config.cert_file, self._config.key_file, self._config.ca_file):
            try:
                status = Path(name or "").stat()
            except OSError:
                times.append((0, 0))  # loading it says why
            else:
                times.append((status.st_ino, status.st_mtime_ns))
        return tuple(times)


def _no_password() -> str:
    """Without this OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted; give one without a password")
