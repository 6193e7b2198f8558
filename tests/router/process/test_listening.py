"""Sockets for the addresses that a configuration can name."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from slipstream.router.process import listening
from slipstream.router.process.addresses import Endpoint
from slipstream.router.process.listening import bound_at, close_all, here, listening_at, listening_at_path

needs_ipv6 = pytest.mark.skipif(not listening._has_loopback_ipv6(), reason="no IPv6 at the loopback device")


def accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("reuse_port", [False, True])
@pytest.mark.parametrize(
    ("host", "ipv4", "ipv6"),
    [
        ("::", True, True),
        ("0.0.0.0", True, False),
        ("127.0.0.1", True, False),
        ("::1", False, True),
    ],
)
@needs_ipv6
def test_an_address_is_listened_at_with_the_families_that_it_stands_for(
    host: str, ipv4: bool, ipv6: bool, reuse_port: bool
) -> None:
    sockets = listening_at(host, 0, 8, reuse_port=reuse_port)
    (port,) = {sock.getsockname()[1] for sock in sockets}
    assert (accepts("127.0.0.1", port), accepts("::1", port)) == (ipv4, ipv6)
    assert accepts(here(host), port)
    close_all(sockets)


@needs_ipv6
def test_a_name_with_two_addresses_has_one_port_at_both(monkeypatch: pytest.MonkeyPatch) -> None:
    both(monkeypatch)
    sockets = listening_at("both.example", 0, 8)
    assert len(sockets) == 2
    (port,) = {sock.getsockname()[1] for sock in sockets}
    assert accepts("127.0.0.1", port)
    assert accepts("::1", port)
    with pytest.raises(OSError, match="in use"):
        bound_at("both.example", port)
    close_all(sockets)


def test_an_address_of_a_name_that_this_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    both(monkeypatch, ipv6="2001:db8::1")
    (sock,) = listening_at("both.example", 0, 8)
    assert sock.family == socket.AF_INET
    sock.close()


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EADDRNOTAVAIL)):
        listening_at("192.0.2.1", 0, 8)


def test_where_the_system_has_no_ipv6_all_interfaces_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_has_ipv6", lambda: False)
    monkeypatch.setattr(listening, "_has_loopback_ipv6", lambda: False)
    (sock,) = listening_at("::", 0, 8)
    assert sock.family == socket.AF_INET
    assert accepts(here("::"), sock.getsockname()[1])
    sock.close()


@pytest.mark.parametrize(
    ("host", "text"), [("::1", "[::1]:80"), ("127.0.0.1", "127.0.0.1:80"), ("host.example", "host.example:80")]
)
def test_an_endpoint_is_written_as_urls_have_it(host: str, text: str) -> None:
    assert str(Endpoint(host, 80)) == text


def test_a_unix_socket_replaces_one_that_nobody_listens_at(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listening_at_path(path, 8).close()  # as a process that was killed leaves it
    sock = listening_at_path(path, 8)
    assert os.stat(path).st_mode & 0o777 == 0o660
    with pytest.raises(OSError, match="another program listens there"):
        listening_at_path(path, 8)
    sock.close()


def test_a_unix_socket_does_not_replace_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(OSError, match="no socket"):
        listening_at_path(str(path), 8)
    assert path.read_text() == "precious"


def both(monkeypatch: pytest.MonkeyPatch, ipv6: str = "::1") -> None:
    """A name that has an address of each family."""
    found = [(int(socket.AF_INET6), ipv6), (int(socket.AF_INET), "127.0.0.1")]
    monkeypatch.setattr(listening, "_addresses_of", lambda host: found)
