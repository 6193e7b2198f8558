"""The hosts that the other tests here stand on: what is cut gets nothing through, and nothing stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hosts.host_network import Host, Network, NoNamespaces

LISTEN = (
    "import socket; s = socket.create_server(('', 5000)); print('up', flush=True)\nwhile True: s.accept()[0].close()"
)
CALL = "import socket, sys; socket.create_connection((sys.argv[1], 5000), 1.0)"


@pytest.fixture
def pair(network: Network, tmp_path: Path) -> tuple[Host, Host]:
    """Two hosts; on the second somebody listens."""
    one, other = network.add_host(f"one-{tmp_path.name[-8:]}"), network.add_host(f"other-{tmp_path.name[-8:]}")
    output = tmp_path / "listener.txt"
    with output.open("wb") as file:
        listener = other.start([sys.executable, "-c", LISTEN], os.environ, file, tmp_path)
    while "up" not in output.read_text():
        assert listener.poll() is None, output.read_text()
    return one, other


def reaches(one: Host, other: Host) -> bool:
    return one.run([sys.executable, "-c", CALL, other.address], os.environ, Path("/tmp")).returncode == 0


def test_hosts_reach_each_other_but_over_a_cut_link(network: Network, pair: tuple[Host, Host]) -> None:
    one, other = pair
    assert reaches(one, other)
    network.cut(one, other)
    assert not reaches(one, other)
    network.heal(one, other)
    assert reaches(one, other)
    network.unplug(other)
    assert not reaches(one, other)


def test_a_host_that_is_killed_has_no_process_left(pair: tuple[Host, Host]) -> None:
    _, other = pair
    assert other.pids()
    other.kill()
    assert other.pids() == []


def test_nothing_of_a_network_stays_behind(tmp_path: Path) -> None:
    script = (
        "from tests.support.hosts.host_network import Network\n"
        "with Network() as network:\n"
        "    network.add_host('some')\n"
        "    print(network.hosts['some'].namespace)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60)
    if done.returncode != 0 and "NoNamespaces" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip().removesuffix("-some")
    assert name not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def test_without_root_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoNamespaces, match=r"network namespaces need root|not installed"):
        Network().__enter__()
