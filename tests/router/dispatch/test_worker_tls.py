"""Workers come over TLS where the configuration asks for it, and no others get in."""

from __future__ import annotations

import asyncio
import pickle
import socket
import ssl
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.router import Router
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.router.tls.tls_files import TlsFileError, load_authorities
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_program import MockConfig, MockProgram
from tests.support.router.authority import Authority

MODEL_DIR = Path(__file__).parents[3] / "models" / "slipstream-demo"
JOIN_S = 20.0
REFUSED_S = 1.0  # in which a worker that is not to come has tried several times


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


async def joins(router_tls: LinkTlsConfig, worker_tls: LinkTlsConfig, within_s: float) -> bool:
    """Whether a worker with these files is connected to a router with those, within some time."""
    config = RouterConfig(http=HttpConfig(port=0), worker_tls=router_tls)
    router = Router(config, [ModelSource("m", MODEL_DIR)], "secret")
    at = (await router.start()).workers
    worker = MockConfig("w", "decode", "m", at.host, at.port, "secret", MockProfile(), tls=worker_tls)
    running = asyncio.create_task(MockProgram(worker).run())
    try:
        async with asyncio.timeout(within_s):
            await router.service.wait_for_join()
        return True
    except TimeoutError:
        return False
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await router.stop()


def run(coroutine: Coroutine[Any, Any, bool]) -> bool:
    return uvloop.run(coroutine)


@pytest.mark.parametrize("mutual", [True, False])
def test_a_worker_of_the_authority_joins(authority: Authority, mutual: bool) -> None:
    tls = replace(authority.issue("host"), mutual=mutual)
    assert run(joins(tls, tls, JOIN_S))


def test_a_worker_without_tls_does_not_join(authority: Authority) -> None:
    assert not run(joins(authority.issue("host"), LinkTlsConfig(), REFUSED_S))


def test_a_worker_does_not_talk_to_a_router_without_tls(authority: Authority) -> None:
    assert not run(joins(LinkTlsConfig(), authority.issue("host"), REFUSED_S))


def test_a_worker_of_another_authority_does_not_join(authority: Authority, tmp_path: Path) -> None:
    stranger = replace(Authority(tmp_path / "other").issue("stranger"), ca_file=str(authority.cert))
    assert not run(joins(authority.issue("host"), stranger, REFUSED_S))


def test_a_worker_without_a_certificate_does_not_join_where_it_is_asked_for_one(authority: Authority) -> None:
    tls = authority.issue("host")
    assert not run(joins(tls, replace(tls, mutual=False), REFUSED_S))


def test_a_router_with_another_name_is_not_trusted(authority: Authority) -> None:
    elsewhere = authority.issue("elsewhere", "DNS:router.example")
    assert not run(joins(elsewhere, elsewhere, REFUSED_S))
    named = replace(elsewhere, server_name="router.example")
    assert run(joins(named, named, JOIN_S))


def test_a_renewed_certificate_is_taken_up_and_a_broken_one_is_not(authority: Authority) -> None:
    tls = authority.issue("renewed")
    server, client = tls.server_tls("the certificate for workers"), tls.client_context()

    def serial() -> int:
        async def shown() -> int:
            listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=server.context)
            host, port = listener.sockets[0].getsockname()
            _, writer = await asyncio.open_connection(host, port, ssl=client)
            number = writer.get_extra_info("peercert")["serialNumber"]
            writer.close()
            listener.close()
            return int(number, 16)

        return asyncio.run(shown())

    first = serial()
    authority.issue("renewed")
    server.look()
    second = serial()
    assert second != first
    assert tls.cert_file is not None
    Path(tls.cert_file).write_text("no certificate")
    server.look()
    assert serial() == second


def test_an_authority_that_is_exchanged_is_trusted_no_more(tmp_path: Path) -> None:
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    old, new = first.issue("worker"), second.issue("worker")
    port = first.issue("router")
    server = replace(port, ca_file=str(tmp_path / "trusted.pem"))
    trusted = Path(server.ca_file or "")
    trusted.write_bytes(first.cert.read_bytes())
    tls = server.server_tls("the certificate for workers")

    def gets_in(worker: LinkTlsConfig) -> bool:
        async def greeted() -> bool:
            async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"welcome")
                writer.close()

            listener = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=tls.context)
            context = replace(worker, ca_file=str(first.cert)).client_context()
            async with listener:
                try:
                    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname(), ssl=context)
                    answer = await reader.read()
                    writer.close()
                except OSError:
                    return False
            return answer == b"welcome"

        return asyncio.run(greeted())

    assert (gets_in(old), gets_in(new)) == (True, False)
    trusted.write_bytes(second.cert.read_bytes())
    tls.look()
    assert (gets_in(old), gets_in(new)) == (False, True)


def test_no_session_stands_for_a_certificate(authority: Authority) -> None:
    tls = authority.issue("resumed")
    server = tls.server_tls("the certificate for workers")

    def has_ticket(newest: ssl.TLSVersion) -> bool:
        """Whether a client may come again without its certificate. Raises OSError if it is not let in."""
        client = tls.client_context()
        client.maximum_version = newest
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
            pool.submit(greet, listener)
            plain = socket.create_connection(listener.getsockname())
            with plain, client.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                assert connection.recv(16) == b"welcome"
                return connection.session is not None and connection.session.has_ticket

    def greet(listener: socket.socket) -> None:
        with listener.accept()[0] as plain, server.context.wrap_socket(plain, server_side=True) as connection:
            connection.sendall(b"welcome")

    assert not has_ticket(ssl.TLSVersion.TLSv1_3)
    with pytest.raises(OSError, match=r"(?i)version|EOF|reset"):
        has_ticket(ssl.TLSVersion.TLSv1_2)


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    tls = authority.issue("named")
    with pytest.raises(ValueError, match="ca_file must be given beside cert_file, got None"):
        replace(tls, ca_file=None)
    with pytest.raises(TlsFileError, match=r"ca_file: .*missing.pem: No such file"):
        replace(tls, ca_file=str(tmp_path / "missing.pem")).server_tls("the certificate for workers")
    with pytest.raises(TlsFileError, match=r"key_file: .*named.key: not the key of .*ca.pem"):
        replace(tls, cert_file=str(authority.cert)).client_context()


def test_what_is_wrong_with_a_file_crosses_processes(tmp_path: Path) -> None:
    with pytest.raises(TlsFileError) as raised:
        load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), str(tmp_path / "none.pem"))
    error = raised.value.within("http.tls.")
    carried = pickle.loads(pickle.dumps(error))
    assert (str(carried), carried.key, carried.reason) == (str(error), error.key, error.reason)
