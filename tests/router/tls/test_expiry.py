"""Until when certificates are valid, as the files and the ports have it."""

from __future__ import annotations

import base64
import os
import ssl
from pathlib import Path

import pytest

from slipstream.router.observability.certificate_metrics import CertificatePage
from slipstream.router.tls.expiry import BEGIN, END, expires_at_s
from tests.support.router.authority import Authority


def of_openssl(file: str) -> float:
    """As Python's own decoder of certificates has it, which is not public."""
    shown = ssl._ssl._test_decode_cert(file)  # type: ignore[attr-defined]
    return ssl.cert_time_to_seconds(shown["notAfter"])


@pytest.mark.parametrize("days", [2, 400, 20_000])  # the last one is after 2050, which has another form
def test_the_end_is_that_which_openssl_shows(tmp_path: Path, days: int) -> None:
    cert = Authority(tmp_path / "ca").issue("router", days=days).cert_file
    assert cert is not None
    assert expires_at_s(Path(cert).read_text()) == of_openssl(cert)


def test_of_a_chain_the_first_certificate_counts(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    cert = authority.issue("router", days=1).cert_file
    assert cert is not None
    text = f"# of the router\n{Path(cert).read_text()}{authority.cert.read_text()}"
    assert expires_at_s(text) == of_openssl(cert) < of_openssl(str(authority.cert))


@pytest.mark.parametrize(
    "der", [b"", b"\x30\x03\x02\x01\x05", b"\x30\x84\xff\xff\xff\xff", b"\x30\x80" + bytes(40), bytes(range(48, 250))]
)
def test_what_is_no_certificate_has_no_end(der: bytes) -> None:
    assert expires_at_s(f"{BEGIN}\n{base64.b64encode(der).decode()}\n{END}\n") is None
    assert expires_at_s("-----BEGIN PRIVATE KEY-----") is None


def test_the_metric_follows_the_certificate_that_is_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.issue("router", days=2)
    assert files.cert_file is not None
    tls = files.server_tls("the certificate for workers")
    page = CertificatePage({"workers": tls, "http": None})

    def shown() -> dict[str, float]:
        return {one.labels["port"]: one.value for family in page.collect() for one in family.samples}

    first = of_openssl(files.cert_file)
    assert shown() == {"workers": first}
    renewed = authority.issue("renewed", days=30)
    assert renewed.cert_file is not None
    assert renewed.key_file is not None
    assert files.key_file is not None
    os.replace(renewed.cert_file, files.cert_file)
    tls.look()
    assert shown() == {"workers": first}  # the key is still that of the old one
    os.replace(renewed.key_file, files.key_file)
    tls.look()
    assert shown() == {"workers": of_openssl(files.cert_file)}
    assert shown()["workers"] > first + 86400
