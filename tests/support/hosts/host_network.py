"""Several hosts on one machine: network namespaces, joined by a switch that is one, too.

    this machine --- switch (a bridge) --- host 1 (198.18.N.1)
                          |'-------------- host 2 (198.18.N.2)
                          '--------------- ...

A host has a loopback and an `eth0` of its own; processes of two hosts meet only over the switch. The file system and
the processor they share. A link is cut with a neighbour entry that leads nowhere: frames are sent without an answer,
as with a switch that has lost a port, and unlike with a firewall that refuses. Needs root and iproute2.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

UNUSED_MAC = "02:00:00:00:00:fe"  # a hardware address that no interface has
PR_SET_PDEATHSIG = 1  # from linux/prctl.h


class NoNamespaces(Exception):  # noqa: N818 - reads as the sentence it carries
    """Network namespaces cannot be made here: one sentence with the reason."""


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise NoNamespaces(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(slots=True, eq=False)
class Host:
    """A machine as far as the network is concerned."""

    name: str
    address: str
    namespace: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes], folder: Path
    ) -> subprocess.Popen[bytes]:
        """Runs a program on this host; it dies with the thread that calls this."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self.started.append(process)
        return process

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, timeout_s: float = 100.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on this host to its end."""
        return subprocess.run(
            ["ip", "netns", "exec", self.namespace, *command],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def pids(self) -> list[int]:
        """All processes that are in this host's network."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """As when the power fails: every process at once, without a word to the others. Processes that are started
        meanwhile go, too."""
        for _ in range(50):
            family = []
            for pid in self.pids():
                try:
                    family.append(psutil.Process(pid))
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, psutil.NoSuchProcess):
                    continue
            if not family:
                break
            for process in self.started:
                process.poll()
            psutil.wait_procs(family, timeout=1.0)
        for process in self.started:
            process.wait(10)
        self.started.clear()


class Network:
    """Made by `with`, gone afterwards with every process in it. Raises NoNamespaces."""

    def __init__(self) -> None:
        self._tag = f"slip{os.getpid()}"
        self._subnet = ""
        self._switch = f"{self._tag}-switch"
        self._desk = f"sl{os.getpid()}"  # this machine's own end; names of interfaces have 15 letters at most
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Network:
        if shutil.which("ip") is None:
            raise NoNamespaces("iproute2 (ip) is not installed")
        if os.geteuid() != 0:
            raise NoNamespaces("network namespaces need root")
        used = _ip("-4", "-oneline", "addr")
        numbers = ((os.getpid() + n) % 251 for n in range(251))
        self._subnet = next(net for n in numbers if f" {(net := f'198.18.{n}')}." not in used)
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "bridge", "up")
            _ip("link", "add", self._desk, "type", "veth", "peer", "name", "desk", "netns", self._switch)
            _ip("-n", self._switch, "link", "set", "desk", "master", "bridge", "up")
            _ip("addr", "add", f"{self._subnet}.254/24", "dev", self._desk)
            _ip("link", "set", self._desk, "up")
        except NoNamespaces:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.hosts.values():
            host.kill()
        self._remove()

    @property
    def desk_address(self) -> str:
        """Where the hosts reach this machine."""
        return f"{self._subnet}.254"

    def add_host(self, name: str) -> Host:
        number = len(self.hosts) + 1
        host = Host(name, f"{self._subnet}.{number}", f"{self._tag}-{name}")
        _ip("netns", "add", host.namespace)
        self.hosts[name] = host
        port = f"port{number}"
        _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", host.namespace, "link", "set", "lo", "up")
        _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", host.namespace, "link", "set", "eth0", "up")
        # By the way there Ray finds out which address this host has; nothing is sent.
        _ip("-n", host.namespace, "route", "add", "8.8.8.8/32", "via", f"{self._subnet}.254")
        return host

    def cut(self, one: Host, other: Host) -> None:
        """Frames between the two get lost from now on, without a word."""
        for host, peer in ((one, other), (other, one)):
            _ip(
                "-n",
                host.namespace,
                "neigh",
                "replace",
                peer.address,
                "lladdr",
                UNUSED_MAC,
                "dev",
                "eth0",
                "nud",
                "permanent",
            )

    def heal(self, one: Host, other: Host) -> None:
        for host, peer in ((one, other), (other, one)):
            _ip("-n", host.namespace, "neigh", "del", peer.address, "dev", "eth0")

    def unplug(self, host: Host) -> None:
        """Takes the cable out of the switch."""
        _ip("-n", self._switch, "link", "set", f"port{list(self.hosts.values()).index(host) + 1}", "down")

    def _remove(self) -> None:
        names = {line.split()[0] for line in _ip("netns", "list").splitlines() if line}
        for name in (*(host.namespace for host in self.hosts.values()), self._switch):
            if name in names:
                _ip("netns", "del", name)  # its interfaces go along
        subprocess.run(["ip", "link", "del", self._desk], capture_output=True, timeout=30)
