"""TLS, the number of connections, and requests that mean two things at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.config.router_config import HttpConfig, TlsConfig
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request, RequestReader
from slipstream.router.http.server import MAX_TURNED_AWAY, HttpServer
from slipstream.router.http.tls import http_tls
from slipstream.router.process.open_files import allow_all_files
from slipstream.router.tls import server_tls
from slipstream.router.tls.tls_files import TlsFileError
from tests.support.router.fake_cluster import FrontUnderTest, front, run
from tests.support.router.http_site import CONFIG, serving
from tests.support.router.raw_client import Client, get, post


class Authority:
    """A CA of our own, with certificates for 127.0.0.1, made by the openssl command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.pem"
        signs = ("-addext", "keyUsage=critical,keyCertSign")  # Python 3.13 asks for what the standard wants
        named = ("-subj", "/CN=test CA", "-days", "2", "-out", self.ca)
        self._openssl("req", "-x509", *self._new_key("ca"), *signs, *named)
        self.key = folder / "server.key"
        self.config = TlsConfig(str(folder / "server.pem"), str(self.key))

    def issue(self, name: str, days: int = 2) -> None:
        """Puts a new certificate and key in the place of the server's. One for -1 days has expired."""
        request, certificate = self.folder / "request", self.folder / "new.pem"
        self._openssl("req", *self._new_key("new"), "-subj", f"/CN={name}", "-out", request)
        names = self.folder / "names"
        names.write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        self._openssl(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.folder / "ca.key", "-CAcreateserial"),
            *("-days", days, "-extfile", names, "-out", certificate),
        )
        os.replace(self.folder / "new.key", self.folder / "server.key")
        os.replace(certificate, self.folder / "server.pem")

    def _new_key(self, name: str) -> list[object]:
        return [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            self.folder / f"{name}.key",
        ]

    def _openssl(self, *arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    def client(self, **versions: ssl.TLSVersion) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        context.set_alpn_protocols(["h2", "http/1.1"])
        for key, value in versions.items():
            setattr(context, key, value)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.issue("first")
    return made


async def tls_client(port: int, context: ssl.SSLContext) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port, ssl=context))


def name_of(client: Client) -> str:
    subject = client.writer.get_extra_info("peercert")["subject"]
    return str(dict(pair[0] for pair in subject)["commonName"])


def test_requests_streams_and_keep_alive_over_tls(authority: Authority) -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, tls=authority.config)) as (site, server, port):
            client = await tls_client(port, authority.client())
            assert client.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            for i in range(3):
                client.send(post("/echo", b"x" * (i * 300_000)))
                assert (await client.response())[2] == b"x" * (i * 300_000)
            client.send(post("/stream"))
            await site.started.wait()
            site.release.set()
            assert (await client.response())[2] == b"data: 0\n\ndata: 1\n\n"
            assert server.num_connections == 1
            await client.close()

    run(main)


def test_a_client_that_leaves_over_tls_cancels_its_handler(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, tls=authority.config)) as (site, _, port):
            client = await tls_client(port, authority.client())
            client.send(post("/wait"))
            await site.started.wait()
            await client.close()
            await site.cancelled.wait()

    run(main)
    assert caplog.text == ""


def test_a_refused_body_over_tls_still_gets_its_reason(authority: Authority) -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, tls=authority.config)) as (_, _, port):
            client = await tls_client(port, authority.client())
            client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 100_000)
            status, _, body = await client.response()
            assert (status, orjson.loads(body)["error"]["code"]) == (413, "body_too_large")
            await client.close()

    run(main)


def test_old_protocol_versions_and_plain_http_get_nowhere(authority: Authority) -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, tls=authority.config)) as (_, _, port):
            context = authority.client()
            context.set_ciphers("DEFAULT@SECLEVEL=0")
            with pytest.warns(DeprecationWarning, match="TLS"):
                context.minimum_version = ssl.TLSVersion.TLSv1
            with pytest.warns(DeprecationWarning, match="TLS"):
                context.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await tls_client(port, context)
            client = await tls_client(port, authority.client(maximum_version=ssl.TLSVersion.TLSv1_2))
            await client.close()
            plain = await Client.connect(port)
            plain.send(get("/hello"))
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in await plain.reader.read()
            await plain.close()

    run(main)


def test_a_renewed_certificate_is_taken_up_and_half_of_a_pair_is_not(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_tls, "LOOK_EVERY_S", 0.01)

    async def main() -> None:
        async with serving(replace(CONFIG, tls=authority.config)) as (_, _, port):

            async def name() -> str:
                client = await tls_client(port, authority.client())
                client.send(get("/hello"))  # answered, so the server has seen the connection
                assert (await client.response())[2] == b"hello"
                found = name_of(client)
                await client.close()
                return found

            async def until(said: str) -> None:
                """No client connects meanwhile: the first one who comes afterwards sees the new certificate."""
                caplog.clear()
                async with asyncio.timeout(30):
                    while said not in caplog.text:
                        await asyncio.sleep(0.01)

            caplog.set_level(logging.INFO)
            assert await name() == "first"
            old_key = authority.key.read_bytes()
            authority.issue("second")
            await until("was taken up anew")
            assert await name() == "second"
            authority.key.write_bytes(old_key)
            await until("the TLS certificate stays as it was")
            assert await name() == "second"
            authority.issue("third")
            await until("was taken up anew")
            assert await name() == "third"

    run(main)


def test_files_that_are_no_pair_keep_the_server_from_starting(authority: Authority, tmp_path: Path) -> None:
    good, empty = authority.config, tmp_path / "empty"
    empty.touch()
    for config, complaint in (
        (
            replace(good, key_file=str(tmp_path / "ca.key")),
            r"http\.tls\.key_file: .*ca\.key: not the key of .*server\.pem",
        ),
        (replace(good, cert_file=str(tmp_path / "none")), r"http\.tls\.cert_file: .*none: No such file"),
        (replace(good, key_file=str(tmp_path)), r"http\.tls\.key_file: .*: Is a directory"),
        (replace(good, cert_file=good.key_file), r"http\.tls\.cert_file: .*server\.key: there is no CERTIFICATE"),
        (replace(good, key_file=str(empty)), r"http\.tls\.key_file: .*empty: there is no PRIVATE KEY"),
    ):
        with pytest.raises(TlsFileError, match=complaint):
            http_tls(config)
    with pytest.raises(ValueError, match="key_file must be given beside cert_file"):
        TlsConfig(cert_file="a")


def test_a_certificate_that_no_client_will_trust_is_served_and_the_log_says_why(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    http_tls(authority.config)
    assert not caplog.records
    authority.issue("late", days=-1)

    async def main() -> None:
        async with serving(replace(CONFIG, tls=authority.config)) as (_, _, port):
            with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
                await tls_client(port, authority.client())

    run(main)
    assert ["certificate has expired" in record.getMessage() for record in caplog.records] == [True]


def test_connections_beyond_the_limit_get_an_honest_503_and_health_still_answers() -> None:
    async def main() -> None:
        async with front() as site:
            await site.server.stop()
            server = HttpServer(HttpConfig(port=0, max_connections=3), site.server._handler, ExchangeContext)
            port = await server.start()
            limited = FrontUnderTest(site.service, site.tokenizer, server, port)
            held = [await Client.connect(port) for _ in range(3)]
            for client in held:
                client.send(get("/health/live"))
                assert (await client.response())[0] == 200
            for _ in range(2):
                status, headers, body = await limited.post("/v1/completions", prompt="hi")
                assert (status, orjson.loads(body)["error"]["code"]) == (503, "too_many_connections")
                assert (headers["connection"], headers["retry-after"]) == ("close", "1")
                for path in ("/health/ready", "/health", "/ping"):
                    assert (await limited.request("GET", path))[0] == 200
            await held.pop().close()
            while server.num_connections > 2:
                await asyncio.sleep(0)
            assert (await limited.post("/v1/completions", prompt="hi"))[0] == 200
            for client in held:
                client.send(get("/health/live"))
                assert (await client.response())[0] == 200
                await client.close()
            await server.stop()

    run(main)


def test_a_crowd_beyond_the_limit_is_cut_off_and_does_not_pile_up() -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, max_connections=1)) as (_, server, port):
            clients = [await Client.connect(port) for _ in range(1 + MAX_TURNED_AWAY)]
            while server.num_connections < len(clients):
                await asyncio.sleep(0)
            further = await Client.connect(port)
            with contextlib.suppress(ConnectionError):
                assert await further.at_end()
            assert server.num_connections == len(clients)
            clients[0].send(get("/hello"))
            assert (await clients[0].response())[0] == 200
            for client in (*clients, further):
                await client.close()

    run(main)


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    program = (
        "import resource; from slipstream.router.process.open_files import allow_all_files;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)); allow_all_files();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) == min(hard, 1 << 20)


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: 5 5\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length : 5\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b" Content-Length: 5\r\n",
        b"X: a\r\n folded: b\r\nContent-Length: 5\r\n",
        b"X: a\rContent-Length: 5\r\n",
        b"X: a\nTransfer-Encoding: chunked\r\n",
        b"X: a\0b\r\nContent-Length: 5\r\n",
        b"X\0: a\r\nContent-Length: 5\r\n",
    ],
)
def test_a_request_whose_length_could_be_read_in_two_ways_is_refused(head: bytes) -> None:
    reader = RequestReader(8192, 1 << 20)
    smuggled = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    arrived = list(reader.feed(b"POST /echo HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n" + smuggled))
    assert len(arrived) == 1, arrived
    assert isinstance(arrived[0], HttpError)
    assert arrived[0].status in (400, 413)
    assert reader.state == "broken"
    assert not reader.feed(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


@pytest.mark.parametrize(
    "chunks",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\nhello",
        b"\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nX\r\n\r\n",
    ],
)
def test_broken_chunks_are_refused(chunks: bytes) -> None:
    reader = RequestReader(8192, 1 << 20)
    arrived = list(reader.feed(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks))
    assert [type(one) for one in arrived] == [HttpError]
    assert reader.state == "broken"


@pytest.mark.parametrize("size", [b"FFFFFFFFFFFFFFFF", b"fffffff;a=b", b"00100001"])
@pytest.mark.parametrize("before", [b"", b"3\r\nabc\r\n"])
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_chunk_that_will_be_too_long_is_refused_before_it_comes(size: bytes, before: bytes, step: int) -> None:
    reader = RequestReader(8192, 1 << 20)
    data = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + before + size + b"\r\nab"
    arrived = [one for i in range(0, len(data), step) for one in reader.feed(data[i : i + step])]
    assert [one.status for one in arrived if isinstance(one, HttpError)] == [413]
    assert len(arrived) == 1


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_what_looks_like_a_long_chunk_is_none(step: int) -> None:
    """Digits in the data of a chunk, and in an extension that is longer than what is looked at."""
    reader = RequestReader(8192, 1 << 20)
    chunks = b"8\r\nFFFFFF\r\n\r\n" + b"10;x=" + b"F" * 100 + b"\r\nFFFFFFFFFFFFFFFF\r\n0\r\n\r\n"
    data = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    [request] = [one for i in range(0, len(data), step) for one in reader.feed(data[i : i + step])]
    assert request.body == b"FFFFFF\r\n" + b"F" * 16  # type: ignore[union-attr]


def test_bytes_after_a_request_are_the_next_one_or_refused() -> None:
    reader = RequestReader(8192, 1 << 20)
    arrived = list(reader.feed(post("/echo", b"abc") + b"garbage\r\n\r\n" + get("/hello")))
    assert [type(one).__name__ for one in arrived] == ["Request", "HttpError"]


def test_a_body_in_chunks_of_a_byte_takes_no_more_memory_than_its_bytes() -> None:
    reader = RequestReader(8192, 1 << 20)
    reader.feed(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(64):
        assert not reader.feed(b"2\r\nab\r\n" * 1024)
    assert isinstance(reader._body, bytearray)
    assert sys.getsizeof(reader._body) < 4 * 64 * 2048
    [request] = reader.feed(b"0\r\n\r\n")
    assert request.body == b"ab" * (64 * 1024)  # type: ignore[union-attr]
    assert len(reader._body) == 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % i for i in range(200)) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 9000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"y" * 19_000, 431),
        (b"GET /" + b"y" * 9000, 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"y" * 19_000, 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n" + b"y" * 0x200000, 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n", 413),
    ],
)
def test_whatever_is_too_large_is_refused_by_its_size(data: bytes, status: int) -> None:
    for step in (10_000, 1000):  # what is unfinished is counted from the second piece on
        reader = RequestReader(8192, 1 << 20)
        arrived = [one for i in range(0, len(data), step) for one in reader.feed(data[i : i + step])]
        assert [one.status for one in arrived if isinstance(one, HttpError)] == [status]
        assert len(arrived) == 1


def test_a_trickle_of_body_bytes_does_not_extend_the_time_out() -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, body_timeout_s=0.3)) as (_, _, port):
            client = await Client.connect(port)
            client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")

            async def trickle() -> None:
                while True:
                    client.send(b"x")
                    await asyncio.sleep(0.02)

            feeding = asyncio.create_task(trickle())
            status, headers, _ = await client.response()
            feeding.cancel()
            assert (status, headers["connection"]) == (408, "close")
            await client.close()

    run(main)


def test_thousands_of_idle_connections_are_held_and_others_are_served_beside_them() -> None:
    """All that fit into the files that this process may have open, both ends of each; `scripts/
    bench_idle_connections.py` holds 10,000 from outside."""
    num_connections = min(3000, (allow_all_files() - 500) // 2)

    async def main() -> None:
        async with serving(replace(CONFIG, max_connections=num_connections + 1)) as (_, server, port):
            held: list[Client] = []
            while len(held) < num_connections:
                held += await asyncio.gather(
                    *(Client.connect(port) for _ in range(min(250, num_connections - len(held))))
                )
            while server.num_connections < num_connections:
                await asyncio.sleep(0)
            another = await Client.connect(port)
            for client in (another, held[0], held[-1]):
                client.send(get("/hello"))
                assert (await client.response())[2] == b"hello"
            assert server.num_connections == num_connections + 1
            for client in (another, *held):
                client.writer.transport.abort()
            while server.num_connections:
                await asyncio.sleep(0)

    run(main, deadline_s=90.0)


def test_an_upgrade_that_is_ignored_leaves_the_version_as_it_was() -> None:
    reader = RequestReader(8192, 1 << 20)
    head = b"POST /echo HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n"
    [request] = reader.feed(head + b"abc")
    assert isinstance(request, Request)
    assert (request.http10, request.keep_alive, request.body) == (True, False, b"abc")
    [refusal] = RequestReader(8192, 1 << 20).feed(head.replace(b"1.0", b"1.1") + b"abc")
    assert isinstance(refusal, HttpError), "HTTP/1.1 needs a Host"
    [refusal] = RequestReader(8192, 1 << 20).feed(head.replace(b"1.0", b"2.0") + b"abc")
    assert isinstance(refusal, HttpError)
    assert refusal.status == 505


@pytest.mark.parametrize(
    ("version", "codings", "status"),
    [
        (b"1.1", (b"gzip", b"chunked"), 501),
        (b"1.1", (b"gzip, deflate", b"chunked"), 501),
        (b"1.1", (b"gzip", b", chunked"), 501),
        (b"1.0", (b"chunked",), 400),
        (b"1.0", (b"gzip",), 400),
    ],
)
def test_codings_count_over_all_their_headers_and_not_in_http_1_0(
    version: bytes, codings: tuple[bytes, ...], status: int
) -> None:
    headers = b"".join(b"Transfer-Encoding: %b\r\n" % one for one in codings)
    [refusal] = RequestReader(8192, 1 << 20).feed(
        b"POST /echo HTTP/%b\r\nHost: x\r\n%b\r\n0\r\n\r\n" % (version, headers)
    )
    assert isinstance(refusal, HttpError)
    assert refusal.status == status
