from __future__ import annotations

import socket
from pathlib import Path

import pytest

from slipstream.cluster import own_ray


def test_rays_port_is_none_that_an_outgoing_connection_can_get() -> None:
    first, last = map(int, own_ray.LOCAL_PORT_RANGE.read_text().split())
    ports = {own_ray.quiet_port() for _ in range(20)}
    assert not ports & set(range(first, last + 1))
    assert len(ports) > 1  # two clusters that start at the same time do not both try the same


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "range").write_text(f"{port + 1}\t60999\n")
        monkeypatch.setattr(own_ray, "LOCAL_PORT_RANGE", tmp_path / "range")
        monkeypatch.setattr(own_ray, "FIRST_QUIET_PORT", port)
        assert own_ray.quiet_port() != port


def test_where_no_such_port_is_left_the_kernel_picks_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(own_ray, "LOCAL_PORT_RANGE", tmp_path / "range")
    assert 1024 <= own_ray.quiet_port() <= 65535
