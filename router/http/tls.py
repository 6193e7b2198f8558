"""TLS of the HTTP port."""

from __future__ import annotations

import ssl

from slipstream.router.config.router_config import TlsConfig
from slipstream.router.tls.server_tls import ServerTls
from slipstream.router.tls.tls_files import TlsFileError, load_pair


def http_tls(config: TlsConfig) -> ServerTls:
    """Raises TlsFileError if the files are no certificate and key that fit together."""
    cert, key = config.cert_file, config.key_file
    assert cert is not None
    assert key is not None

    def load(context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["http/1.1"])
        try:
            load_pair(context, cert, key)
        except TlsFileError as error:
            raise error.within("http.tls.") from error

    return ServerTls(load, (cert, key), "the TLS certificate")
