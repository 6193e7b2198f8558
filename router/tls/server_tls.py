"""TLS of a listening port: its certificate comes from files, and is taken up again when they are renewed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.router.tls.expiry import expires_at_s
from slipstream.router.tls.tls_files import TlsFileError, file_times

LOOK_EVERY_S = 1.0
HANDSHAKE_FLIGHTS = 4  # a TLS 1.3 handshake takes three
NOT_YET_VALID, EXPIRED = 9, 10  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED

log = logging.getLogger(__name__)


class ServerTls:
    """`context` is that of the listening sockets, for good. A new connection goes on with `_current`: that way, an
    authority that has been removed from the files is trusted no more. Running connections keep what they began with.
    Where clients must present a certificate, each connection asks for it: a resumed session would show none.

    A certificate that has expired, or is not valid yet, is served as well, because some clients do not mind and the
    others see the reason; the log says so."""

    def __init__(self, load: Callable[[ssl.SSLContext], None], files: Sequence[str], what: str) -> None:
        """`load` reads the `files`, of which the first is the certificate, into a context, and raises TlsFileError if
        it cannot. `what` is what the log calls the certificate. Raises TlsFileError."""
        self._load, self._files, self._what = load, files, what
        self._seen = file_times(files)
        self.context = self._current = self._loaded()
        self.context.sni_callback = self._go_on
        self.expires_at_s = self._expiry()  # of the certificate that is served, in seconds since 1970

    async def watch(self) -> None:
        """Takes up renewed files, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Takes up the files if they were renewed. Those that do not fit together leave the old ones in place: they are
        seldom replaced in the same moment."""
        times = file_times(self._files)
        if times == self._seen:
            return
        self._seen = times
        try:
            self._current = self._loaded()
            self.expires_at_s = self._expiry()
        except TlsFileError as error:
            log.error("%s stays as it was: %s", self._what, error)
        else:
            log.info("%s was taken up anew from %s", self._what, self._files[0])

    def _go_on(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL asks this at each handshake, whether the client names a host or not."""
        if context is not self._current:
            connection.context = self._current

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        self._load(context)
        if context.verify_mode == ssl.CERT_REQUIRED:
            context.minimum_version = ssl.TLSVersion.TLSv1_3  # Python cannot switch off the sessions of TLS 1.2
            context.num_tickets = 0
        problem = _problem_of_time(context, self._files[0])
        if problem is not None:
            log.error("%s is one that clients will not trust: %s: %s", self._what, self._files[0], problem)
        return context

    def _expiry(self) -> float | None:
        """None if the file cannot be read any more."""
        try:
            return expires_at_s(Path(self._files[0]).read_text(encoding="latin-1"))
        except OSError:
            return None


def _problem_of_time(server: ssl.SSLContext, cert: str) -> str | None:
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
