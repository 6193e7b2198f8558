"""Where the processes of the driver's machine can listen, and how they are reached there."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.driver.listeners import ListenAddress, why_no_unix_socket, why_not_there
from slipstream.cluster.driver.urls import port_of, url_of
from slipstream.cluster.supervisor.members.deployment import reachable
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.process.addresses import Endpoint
from slipstream.router.process.listening import close_all, here, listening_at, listening_at_path


def with_unix_socket(path: Path) -> ClusterConfig:
    router = dataclasses.replace(RouterConfig(), http=HttpConfig(unix_socket=str(path)))
    return ClusterConfig(ServedModelConfig("model"), router=router)


@pytest.mark.parametrize("host", ["::", "0.0.0.0", "127.0.0.1", "localhost"])
def test_a_port_that_is_taken_at_one_of_the_addresses_is_named(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert why_not_there(ListenAddress("router.http", host, 0)) is None
        reason = why_not_there(ListenAddress("router.admin", host, port))
        assert reason is not None
        assert reason.startswith(f"router.admin.port: port {port} at {host} is in use")


def test_an_address_of_another_machine_and_a_name_that_is_none_are_named() -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        reason = why_not_there(ListenAddress("router", host, 0))
        assert reason is not None
        assert reason.startswith(f"router.worker_host: nothing can listen at {host} on this machine: ")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, None),
        (lambda path: path.write_text("precious"), "there is a file that is no socket"),
        (lambda path: path.parent.rmdir(), "there is no folder "),
        (lambda path: listening_at_path(str(path), 1).close(), None),  # as a router that was killed leaves it
    ],
)
def test_why_there_can_be_no_unix_socket(tmp_path: Path, make: object, why: str | None) -> None:
    path = tmp_path / "folder" / "http.sock"
    path.parent.mkdir()
    make(path)  # type: ignore[operator]
    reason = why_no_unix_socket(with_unix_socket(path))
    if why is None:
        assert reason is None
    else:
        assert reason is not None
        assert reason.startswith(f"router.http.unix_socket: nothing can listen at {path}: {why}")


@pytest.mark.parametrize("host", ["::", "0.0.0.0", "127.0.0.1"])
def test_what_is_shown_leads_to_what_listens(host: str) -> None:
    sockets = listening_at(host, 0, 1)
    port = sockets[0].getsockname()[1]
    url = url_of("http", Endpoint(host, port))
    assert port_of(url) == port
    assert url == f"http://{Endpoint(here(host), port)}"
    socket.create_connection((here(host), port), 5).close()
    close_all(sockets)


@pytest.mark.parametrize(
    ("listening", "expected"),
    [("::", "10.0.0.7"), ("0.0.0.0", "10.0.0.7"), ("192.0.2.9", "192.0.2.9"), ("router.example", "router.example")],
)
def test_others_are_told_an_address_that_leads_to_all_interfaces(listening: str, expected: str) -> None:
    assert reachable(listening, "10.0.0.7") == expected
