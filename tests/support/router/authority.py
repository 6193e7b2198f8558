"""Certificates of an authority that a test makes itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

from slipstream.router.tls.link_tls import LinkTlsConfig


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.cert, self._key, self._folder = folder / "ca.pem", folder / "ca.key", folder
        self._new("-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", self._key, "-out", self.cert)

    def issue(self, name: str, address: str = "IP:127.0.0.1", days: int = 2) -> LinkTlsConfig:
        """A new certificate and key, in files called by `name`. With `days` -1 it has expired."""
        cert, key, request = (self._folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        self._new("-subj", f"/CN={name}", "-keyout", key, "-out", request)
        names = self._folder / f"{name}.ext"
        names.write_text(f"subjectAltName={address}\n")
        signed = ("-CA", self.cert, "-CAkey", self._key, "-CAcreateserial", "-extfile", names)
        openssl("x509", "-req", "-in", request, "-days", str(days), *signed, "-out", cert)
        return LinkTlsConfig(str(cert), str(key), str(self.cert))

    @staticmethod
    def _new(*arguments: str | Path) -> None:
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *arguments)
