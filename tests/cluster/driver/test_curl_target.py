"""The command that `serve` prints reaches the API, with curl itself and certificates of several kinds."""

from __future__ import annotations

import http.server
import shlex
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipstream.cluster.driver.curl_target import CurlTarget
from slipstream.router.config.router_config import TlsConfig

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"reached")

    def log_message(self, *_: object) -> None:
        pass


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def signed_by_itself(folder: Path, names: str) -> TlsConfig:
    tls = TlsConfig(str(folder / "cert file.pem"), str(folder / "key.pem"))
    extra = ["-addext", f"subjectAltName={names}"] if names else []
    command = ["req", "-x509", *KEY, "-subj", "/CN=localhost", *extra, "-days", "2"]
    openssl(*command, "-out", str(tls.cert_file), "-keyout", str(tls.key_file))
    return tls


def signed_by_an_authority(folder: Path) -> TlsConfig:
    """Whose own certificate is nowhere in the file."""
    authority = signed_by_itself(folder, "")
    request, names, own = folder / "request.pem", folder / "names", folder / "own.pem"
    names.write_text("subjectAltName=DNS:llm.example.com")
    openssl("req", *KEY, "-subj", "/CN=ours", "-out", request, "-keyout", folder / "own.key")
    signer = ["-CA", str(authority.cert_file), "-CAkey", str(authority.key_file), "-CAcreateserial"]
    openssl("x509", "-req", "-in", request, *signer, "-days", "2", "-extfile", names, "-out", own)
    return TlsConfig(str(own), str(folder / "own.key"))


@contextmanager
def serving(tls: TlsConfig) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert tls.cert_file is not None
    context.load_cert_chain(tls.cert_file, tls.key_file)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def asked(target: CurlTarget) -> str:
    command = shlex.split(f"curl -sS --max-time 10 --noproxy '*' {target.options}{target.url}/")
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return done.stdout or done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize(
    ("names", "host"),
    [
        ("IP:127.0.0.1", "127.0.0.1"),
        ("DNS:localhost", "localhost"),
        ("DNS:*.example.com,DNS:llm.example.com", "llm.example.com"),
        ("IP:10.9.8.7", "10.9.8.7"),
        ("", "localhost"),
    ],
)
def test_a_certificate_of_no_known_authority_is_named_to_curl(names: str, host: str, tmp_path: Path) -> None:
    tls = signed_by_itself(tmp_path, names)
    with serving(tls) as url:
        target = CurlTarget.of(url, tls)
        assert target.url == url.replace("127.0.0.1", host)
        assert f"--cacert {shlex.quote(str(tls.cert_file))}" in target.options
        assert asked(target) == "reached"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_a_certificate_of_an_authority_of_ones_own_is_trusted_by_curl_as_it_is(tmp_path: Path) -> None:
    tls = signed_by_an_authority(tmp_path)
    with serving(tls) as url:
        assert asked(CurlTarget.of(url, tls)) == "reached"


def test_a_certificate_that_the_system_trusts_needs_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = signed_by_itself(tmp_path, "IP:127.0.0.1")
    assert tls.cert_file is not None
    monkeypatch.setenv("SSL_CERT_FILE", tls.cert_file)
    assert CurlTarget.of("https://127.0.0.1:8443", tls) == CurlTarget("https://127.0.0.1:8443")


def test_without_tls_the_url_is_left_as_it_is() -> None:
    assert CurlTarget.of("http://127.0.0.1:8000", TlsConfig()) == CurlTarget("http://127.0.0.1:8000")
