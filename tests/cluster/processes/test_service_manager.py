"""What systemd hears of a service: a socket stands in for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.cluster.processes.service_manager import ServiceManager


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        yield listening


def heard(systemd: socket.socket) -> list[str]:
    return systemd.recv(4096).decode().split("\n")


def test_it_hears_when_the_service_is_ready_alive_and_stopping(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    manager = ServiceManager.of_this_process()
    assert (manager.watchdog_s, manager.alive_every_s) == (3.0, 1.5)
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ), "children would inherit them"
    manager.ready()
    assert heard(systemd) == ["READY=1", "STATUS=serving"]
    manager.alive()
    assert heard(systemd) == ["WATCHDOG=1"]
    manager.starting_again("the driver has ended with 9")
    assert heard(systemd) == ["STATUS=the driver has ended with 9; starting again"]
    manager.stopping()
    assert heard(systemd) == ["STOPPING=1", "STATUS=draining"]


def test_it_may_listen_at_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # the kernel chooses an abstract name
        listening.settimeout(10)
        name: bytes = listening.getsockname()
        ServiceManager(f"@{name[1:].decode()}").ready()
        assert heard(listening) == ["READY=1", "STATUS=serving"]


@pytest.mark.parametrize("watched", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}])
def test_a_watchdog_that_does_not_watch_this_process_hears_nothing(
    watched: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "@anywhere")
    for key, value in watched.items():
        monkeypatch.setenv(key, value)
    assert ServiceManager.of_this_process().alive_every_s is None


def test_without_systemd_and_after_its_end_nothing_fails(tmp_path: Path) -> None:
    ServiceManager().ready()
    ServiceManager(str(tmp_path / "gone")).ready()
