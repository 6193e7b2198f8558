"""TLS of the HTTP port: certificates from files, taken up again when they are renewed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from slipstream.router.config import TlsConfig

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0

FileTimes = tuple[tuple[int, int], ...]


class ServerTls:
    """`context` serves every connection. Running ones keep the certificate that they began with."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises ValueError if the files are no certificate and key that fit together."""
        assert config.cert_file is not None
        assert config.key_file is not None
        self._cert, self._key = Path(config.cert_file), Path(config.key_file)
        self._seen = self._times()
        self._next_look_s = 0.0
        self.context = self._load()

    def look(self, now: float) -> None:
        """Takes up renewed files; asked at every new connection, it looks once a second. A pair that does not fit
        leaves the old one in place: the two files are seldom replaced in the same moment."""
        if now < self._next_look_s:
            return
        self._next_look_s = now + LOOK_EVERY_S
        times = self._times()
        if times == self._seen:
            return
        self._seen = times
        try:
            self._load()  # apart from the context in use, which would be left with half of a bad pair
            self.context.load_cert_chain(self._cert, self._key)
        except (OSError, ValueError) as error:
            log.error("the TLS certificate stays as it was: %s", error)
        else:
            log.info("the TLS certificate was taken up anew from %s", self._cert)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise ValueError(f"http.tls: cannot use {self._cert} and {self._key}: {error}") from error
        return context

    def _times(self) -> FileTimes:
        times = []
        for path in (self._cert, self._key):
            try:
                status = path.stat()
            except OSError:
                times.append((0, 0))  # loading it says why
            else:
                times.append((status.st_ino, status.st_mtime_ns))
        return tuple(times)


def _no_password() -> str:
    """Without this OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted; give one without a password")
