"""The URL and the options with which curl on this machine reaches the API, whatever its certificate is for."""

from __future__ import annotations

import shlex
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from slipstream.router.config.router_config import TlsConfig

HANDSHAKE_FLIGHTS = 4  # a TLS 1.3 handshake takes three


@dataclass(frozen=True, slots=True)
class CurlTarget:
    """`options` go before the URL: empty, or with a space at the end."""

    url: str
    options: str = ""

    @classmethod
    def of(cls, url: str, tls: TlsConfig) -> CurlTarget:
        """A certificate that the system does not trust is given to curl as the authority to trust, and the URL has a
        name that it is for. `url` has a name or an address by which this machine is reached."""
        if not tls.is_on or tls.cert_file is None:
            return cls(url)
        try:
            is_trusted = not _refusal(_client(ssl.create_default_context()), tls)
            own = _client(ssl.create_default_context(cafile=tls.cert_file))
            options = "" if is_trusted else f"--cacert {shlex.quote(tls.cert_file)} "
            at = urlsplit(url)
            own.check_hostname = True
            if at.hostname is None or not _refusal(own, tls, at.hostname):
                return cls(url, options)
            own.check_hostname = False
            name = _name_of(own, tls)
        except (OSError, ValueError):  # the start has refused such files, or they are being renewed
            return cls(url)
        if name is None:
            return cls(url, options)
        return cls(f"https://{name}:{at.port}", f"{options}--connect-to {name}:{at.port}:{at.netloc} ")


def _client(context: ssl.SSLContext) -> ssl.SSLContext:
    """As curl, it takes a certificate without its authority if that itself is trusted."""
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _refusal(client: ssl.SSLContext, tls: TlsConfig, host: str | None = None) -> str:
    """Why the client refuses the certificate, or "" if it does not. Raises OSError, ValueError."""
    try:
        _greet(client, tls, host)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    return ""


def _name_of(client: ssl.SSLContext, tls: TlsConfig) -> str | None:
    """A name or an address that the certificate is for, and not a pattern; None: it has none."""
    certificate: Mapping[str, Any] = _greet(client, tls).getpeercert() or {}
    alternatives = certificate.get("subjectAltName", ())
    names = [str(name) for kind, name in alternatives if kind in ("DNS", "IP Address")]
    names += [str(part[0][1]) for part in certificate.get("subject", ()) if part[0][0] == "commonName"]
    return next((name for name in names if "*" not in name and ":" not in name), None)


def _greet(client: ssl.SSLContext, tls: TlsConfig, host: str | None = None) -> ssl.SSLObject:
    """The client's end of a connection in memory: Python shows a certificate only to the other side of one."""
    assert tls.cert_file is not None
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tls.cert_file, tls.key_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(HANDSHAKE_FLIGHTS):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours
