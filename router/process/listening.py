"""Listening sockets for the addresses that a configuration can name.

127.0.0.1, ::1, 10.0.0.5    that address
localhost, a host's name    every address that the name has on this machine, all with one port
0.0.0.0                     all interfaces, IPv4
::                          all interfaces, IPv6 and IPv4 with one socket; IPv4 alone where the system has no IPv6
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterable

from slipstream.router.process.addresses import Endpoint

ANY_IPV4, ANY_IPV6 = "0.0.0.0", "::"
NOT_HERE = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})  # a family, or an address, that this machine lacks
MAX_TRIES = 16  # to find a port that is free at every address of a name
UNIX_SOCKET_MODE = 0o660  # its user and group may connect


def bound_at(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Sockets that are bound to every address of `host` on one port, 0: a free one. With `reuse_port`, others that say
    so as well may share it. Raises OSError."""
    for _ in range(MAX_TRIES - 1):
        try:
            return _bound_once(host, port, reuse_port)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE:
                raise
    return _bound_once(host, port, reuse_port)


def listening_at(host: str, port: int, backlog: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Sockets as from `bound_at` that listen with this backlog. Raises OSError."""
    sockets = bound_at(host, port, reuse_port=reuse_port)
    try:
        for sock in sockets:
            sock.listen(backlog)
    except OSError:
        close_all(sockets)
        raise
    return sockets


def cannot_listen(error: OSError, host: str, port: int) -> OSError:
    """One clear sentence."""
    why = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return OSError(error.errno, f"cannot listen for HTTP on {Endpoint(host, port)}: {why}")


def close_all(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _bound_once(host: str, port: int, reuse_port: bool) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in _addresses_of(host):
            try:
                sockets.append(_bound(family, address, port, reuse_port))
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
                missing = error  # a name may have an address that this machine lacks, as long as it has another one
                continue
            port = sockets[0].getsockname()[1]
    except OSError:
        close_all(sockets)
        raise
    if not sockets:
        assert missing is not None, "a name has an address"
        raise missing
    return sockets


def _addresses_of(host: str) -> list[tuple[int, str]]:
    if host == ANY_IPV6 and not _has_ipv6():
        host = ANY_IPV4
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((int(info[0]), str(info[4][0])) for info in found))


def _bound(family: int, address: str, port: int, reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # Beside the IPv6 address of a name there is a socket for its IPv4 address; "::" is both.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != ANY_IPV6))
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock


def _has_ipv6() -> bool:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def here(host: str) -> str:
    """The address by which this machine reaches what listens on `host`."""
    if host == ANY_IPV4:
        return "127.0.0.1"
    if host == ANY_IPV6:
        return "::1" if _has_loopback_ipv6() else "127.0.0.1"
    return host


def _has_loopback_ipv6() -> bool:
    """Whether there is ::1. A container without IPv6 may let a socket listen on "::" and have no such address."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def is_any(host: str) -> bool:
    """Whether it stands for all interfaces."""
    return host in (ANY_IPV4, ANY_IPV6)


def listening_at_path(path: str, backlog: int) -> socket.socket:
    """A Unix socket at `path` that listens; what a killed process has left there is replaced. Its user and group may
    connect, as far as they can reach its folder. Raises OSError if another process listens there, or something else is
    there."""
    why = why_path_is_taken(path)
    if why is not None:
        raise OSError(errno.EADDRINUSE, why)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        sock.bind(path)
        os.chmod(path, UNIX_SOCKET_MODE)  # before it listens, so before any connection
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def why_path_is_taken(path: str) -> str | None:
    """Why no Unix socket can be made at `path`; None: there is nothing, or a socket without a listener. Raises
    OSError if that cannot be seen."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(mode):
        return "there is a file that is no socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except BlockingIOError:  # its queue is full, so it has one
            pass
    return "another program listens there"


def remove_path(path: str) -> None:
    """Removes the Unix socket, so that clients no longer find it. Idempotent."""
    with contextlib.suppress(OSError):
        os.unlink(path)
