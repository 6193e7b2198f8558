"""TLS of the HTTP port: certificates from files, taken up again when they are renewed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Literal

from slipstream.router.config.router_config import TlsConfig

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
HANDSHAKE_FLIGHTS = 4  # a TLS 1.3 handshake takes three
NOT_YET_VALID, EXPIRED = 9, 10  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED
MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")

FileTimes = tuple[tuple[int, int], ...]
TlsKey = Literal["cert_file", "key_file"]


class TlsFileError(ValueError):
    """One of the files cannot be used: `key` is its key in `TlsConfig`, and `reason` a sentence with its path."""

    def __init__(self, key: TlsKey, reason: str) -> None:
        super().__init__(f"http.tls.{key}: {reason}")
        self.key = key
        self.reason = reason


class ServerTls:
    """`context` serves every connection. Running ones keep the certificate that they began with. One that has expired,
    or is not valid yet, is served as well, because some clients do not mind and the others see the reason; the log says
    so."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises TlsFileError if the files are no certificate and key that fit together."""
        assert config.cert_file is not None
        assert config.key_file is not None
        self._cert, self._key = Path(config.cert_file), Path(config.key_file)
        self._seen = self._times()
        self.context = self._load()

    async def watch(self) -> None:
        """Takes up renewed files, until it is cancelled. A pair that does not fit leaves the old one in place: the two
        files are seldom replaced in the same moment."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._look()

    def _look(self) -> None:
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
        _check_holds("cert_file", self._cert, b"CERTIFICATE")
        _check_holds("key_file", self._key, b"PRIVATE KEY")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except _EncryptedKeyError as error:
            raise TlsFileError("key_file", f"{self._key}: the key is encrypted; give one without a password") from error
        except (OSError, ValueError) as error:  # SSLError is an OSError
            if isinstance(error, ssl.SSLError) and error.reason in MISMATCHES:
                raise TlsFileError("key_file", f"{self._key}: not the key of {self._cert}") from error
            raise TlsFileError("cert_file", f"cannot use {self._cert} with the key {self._key}: {error}") from error
        problem = _problem_of_time(context, self._cert)
        if problem is not None:
            log.error("http.tls.cert_file: clients will not trust %s: %s", self._cert, problem)
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


class _EncryptedKeyError(ValueError):
    """OpenSSL asks for the password of the key."""


def _no_password() -> str:
    """Without this OpenSSL would ask at the terminal."""
    raise _EncryptedKeyError


def _check_holds(key: TlsKey, path: Path, what: bytes) -> None:
    """Raises TlsFileError unless there is a PEM block of that kind: of what is missing OpenSSL says only "PEM lib"."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TlsFileError(key, f"{path}: {error.strerror or error}") from error
    if what + b"-----" not in data:
        raise TlsFileError(key, f"{path}: there is no {what.decode()} in PEM form in it")


def _problem_of_time(server: ssl.SSLContext, cert: Path) -> str | None:
    """What a client would say of the time for which the certificate is valid; None: nothing. Python shows a certificate
    only to the other side of a connection, so one is made in memory, whose client trusts just this file."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(cert)
        ends = (
            client.wrap_bio(to_client, to_server),
            server.wrap_bio(to_server, to_client, server_side=True),
        )
        for _ in range(HANDSHAKE_FLIGHTS):
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message) if error.verify_code in (NOT_YET_VALID, EXPIRED) else None
    except ssl.SSLError:  # whatever else a client may not like is not for this to judge
        return None
    return None
