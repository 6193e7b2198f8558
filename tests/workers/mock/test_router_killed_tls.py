"""kill -9 of a router whose clients use TLS: they hear of it at once, and clients to come wait for the next one."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.workers.mock.test_router_killed import TIMEOUT_S, Serving, read_whole, request_of, text_of


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two fronts"])
def serving(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("killed")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key))
    command = ["openssl", "req", "-x509", *new_key, "-subj", "/CN=router", "-days", "2", "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    serving = Serving(folder, request.param, {"cert_file": str(certificate), "key_file": str(key)})
    try:
        yield serving
    finally:
        serving.close()


def connect(serving: Serving) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(serving.address, timeout=TIMEOUT_S))


def read_to_the_end(sock: socket.socket) -> bytes:
    """Also one that is broken off without a word."""
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except (ssl.SSLError, ConnectionResetError):
        pass
    return data


def test_running_clients_hear_of_a_kill_before_there_is_another_router_and_new_ones_wait_for_it(
    serving: Serving,
) -> None:
    with connect(serving) as streaming, connect(serving) as waiting, connect(serving) as idle:
        streaming.sendall(request_of([30] * 20, 1500, stream=True))
        assert streaming.recv(15) == b"HTTP/1.1 200 OK"
        waiting.sendall(request_of([31] * 20, 1500))
        serving.kill()
        received = [read_to_the_end(sock) for sock in (streaming, waiting, idle)]  # or a TimeoutError
    assert received[2] == b""
    if serving.num_fronts > 1:  # which have survived, and can say why
        last_event = received[0].rpartition(b"data: ")[2].partition(b"\n")[0]
        assert json.loads(last_event)["error"]["code"] == "shutting_down"
        assert json.loads(received[1].rpartition(b"\r\n")[2])["error"]["code"] == "shutting_down"
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(connect, serving)
        serving.start_router()
        with following.result(TIMEOUT_S) as sock:
            sock.sendall(request_of([30] * 20, 5))
            assert read_whole(sock)["choices"][0]["text"] == text_of([30] * 20, 5)
