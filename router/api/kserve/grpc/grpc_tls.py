"""TLS of the gRPC port, whose certificate is taken up again when its files are renewed."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from slipstream.router.config.kserve_config import GrpcTlsConfig
from slipstream.router.tls.server_tls import ServerTls
from slipstream.router.tls.tls_files import TlsFileError, load_authorities, load_pair

SECTION = "repository.grpc.tls."


class GrpcTls:
    """`files` watches and checks them, as those of the other ports. gRPC has a TLS of its own, which gets what the
    files hold and asks for it at each new connection."""

    def __init__(self, config: GrpcTlsConfig) -> None:
        """Raises TlsFileError if the files do not fit together."""
        assert config.cert_file is not None
        assert config.key_file is not None
        self._cert, self._key, self._client_ca = config.cert_file, config.key_file, config.client_ca_file
        self._certificates: grpc.ServerCertificateConfiguration
        names = [self._cert, self._key] + ([self._client_ca] if self._client_ca is not None else [])
        self.files = ServerTls(self._load, names, "the TLS certificate of gRPC")

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._certificates, self._present, require_client_authentication=self._client_ca is not None
        )

    def _present(self) -> grpc.ServerCertificateConfiguration:
        """Called by threads of gRPC."""
        return self._certificates

    def _load(self, context: ssl.SSLContext) -> None:
        """Of files that are replaced meanwhile, `files` sees the new times at its next look."""
        try:
            load_pair(context, self._cert, self._key)
            if self._client_ca is not None:
                load_authorities(context, self._client_ca, "client_ca_file")
            self._certificates = self._read()
        except TlsFileError as error:
            raise error.within(SECTION) from error

    def _read(self) -> grpc.ServerCertificateConfiguration:
        """Raises TlsFileError."""
        try:
            pair = Path(self._key).read_bytes(), Path(self._cert).read_bytes()
            clients = Path(self._client_ca).read_bytes() if self._client_ca is not None else None
        except OSError as error:
            raise TlsFileError("cert_file", f"{error.filename}: {error.strerror}") from error
        return grpc.ssl_server_certificate_configuration([pair], clients)
