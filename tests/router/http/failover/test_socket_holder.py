"""Sockets at the socket holder outlive the process that gave them, and are closed when they should be."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from slipstream.router.http.failover import failover_session as session_module
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.held_connection import MAX_LIVES, HeldConnection
from slipstream.router.http.failover.held_listener import HeldListener
from slipstream.router.http.failover.holder.holder_messages import MESSAGE, HolderMessageKind
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.http.failover.holder_link import HolderLink
from slipstream.router.http.failover.journal import AnswerPhase
from tests.support.router.held_router import TIMEOUT_S, Router, StartRouter, accepted, connect, is_closed


@pytest.fixture
def start(holder: SocketHolder) -> Iterator[StartRouter]:
    """Starts one router after the other."""
    routers: list[Router] = []

    def start(place: int = 0, num_fronts: int = 0) -> Router:
        routers.append(Router(holder, place, num_fronts))
        return routers[-1]

    yield start
    for router in routers:
        router.kill()


def test_connections_and_what_was_noted_of_them_are_inherited(start: StartRouter) -> None:
    first = start()
    listening = first.listen()
    address = listening.getsockname()
    with connect(listening) as client:
        sock, number, journal = first.accept(listening)
        client.sendall(b"question")
        journal.received(sock.recv(100))
        journal.begun()
        journal.sent(b"answer", AnswerPhase.STREAMING)
        sock.sendall(b"ans")  # and is killed before the rest
        first.kill()
        with socket.create_connection(address, timeout=TIMEOUT_S):  # who comes now waits, and is not refused
            second = start().failover
            assert [one.getsockname() for one in second.listening] == [address]
            (restored,) = second.connections
            assert (restored.held.number, restored.unsent, restored.is_running) == (number, b"wer", True)
            assert restored.unfinished.request == b"question"
            with second.listening[0].accept()[0]:
                pass
        restored.sock.sendall(restored.unsent)
        with closing(client.makefile("rb")) as read:
            assert read.read(6) == b"answer"


def test_a_forgotten_connection_is_closed_for_its_client(start: StartRouter) -> None:
    router = start()
    listening = router.listen()
    with connect(listening) as client:
        sock, number, _ = router.accept(listening)
        sock.close()
        router.failover.forget(number)
        assert client.recv(1) == b""
    router.kill()
    assert not start().failover.connections


def test_after_a_farewell_nothing_is_kept(start: StartRouter) -> None:
    router = start()
    listening = router.listen()
    with connect(listening) as client:
        router.accept(listening)
        router.failover.farewell()
        router.kill()
        assert client.recv(1) == b""
    assert not start().failover.listening


def test_a_router_that_takes_no_more_clients_leaves_those_that_it_has_to_the_next(start: StartRouter) -> None:
    router = start()
    listening = router.listen()
    address = listening.getsockname()
    with connect(listening) as client:
        _, number, _ = router.accept(listening)
        with socket.create_server(("127.0.0.1", 0)) as for_workers:
            router.failover.keep_listening([for_workers], for_workers=True)
            router.failover.stop_listening()
        router.kill()
        following = start().failover
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=TIMEOUT_S)
        assert not following.listening
        assert len(following.for_workers) == 1
        assert [one.held.number for one in following.connections] == [number]
        following.farewell()
        assert client.recv(1) == b""


def test_a_closed_keeper_lets_go_of_everything_and_leaves_no_file(holder: SocketHolder, start: StartRouter) -> None:
    router = start()
    listening = router.listen()
    with connect(listening) as client:
        router.accept(listening)
        router.kill()
        holder.close()
        assert client.recv(1) == b""
    assert not holder.path.parent.exists()
    assert FailoverSession.of_holder(holder.path) is None


def test_without_a_socket_holder_a_router_serves_and_keeps_nothing(tmp_path: Path) -> None:
    assert FailoverSession.of_holder(tmp_path / "missing.sock") is None


def test_a_socket_holder_that_has_gone_is_no_reason_to_fail(holder: SocketHolder, start: StartRouter) -> None:
    router = start()
    listening = router.listen()
    holder.close()
    with connect(listening):
        sock, _ = listening.accept()
        while (held := router.failover.keep(sock)) is not None:  # what was under way to it may still be taken
            held.journal.close()
        router.failover.forget(1)
        sock.close()


@pytest.mark.parametrize("read_bytes", [0, 4])
def test_what_was_read_and_not_noted_ends_the_connection(start: StartRouter, read_bytes: int) -> None:
    router = start()
    listening = router.listen()
    with connect(listening) as client:
        sock, _, journal = router.accept(listening)
        client.sendall(b"question")
        journal.received(sock.recv(4))
        assert len(sock.recv(read_bytes, socket.MSG_WAITALL)) == read_bytes
        router.kill()
        assert len(start().failover.connections) == (1 if read_bytes == 0 else 0)
        assert read_bytes == 0 or is_closed(client)


@pytest.mark.parametrize("phase", AnswerPhase)
def test_an_exchange_that_has_outlived_several_routers_is_given_up_if_it_has_not_ended(
    start: StartRouter, phase: AnswerPhase
) -> None:
    """One that has got nothing of its answer is held, to get an error."""
    router = start()
    listening = router.listen()
    with connect(listening):
        _, _, journal = router.accept(listening)
        journal.sent(b"", phase)
        for _ in range(MAX_LIVES):
            journal.outlive()
        router.kill()
        connections = start().failover.connections
        assert len(connections) == (phase in (AnswerPhase.ENDED, AnswerPhase.CLOSING, AnswerPhase.RUNNING))
        assert [connection.is_given_up for connection in connections] == [phase == AnswerPhase.RUNNING] * len(
            connections
        )


def test_nonsense_from_a_router_costs_it_its_own_link_only(holder: SocketHolder, start: StartRouter) -> None:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with stranger:
        stranger.connect(str(holder.path))
        stranger.settimeout(TIMEOUT_S)
        stranger.send(b"nonsense")
        assert stranger.recv(100) == b""
    start()


def test_many_connections_that_are_given_up_at_once_are_all_forgotten(start: StartRouter) -> None:
    async def main() -> None:
        router = start()
        listening = router.listen()
        clients = []
        for client, sock, number, journal in accepted(router, listening, 200):
            clients.append(client)
            sock.close()
            journal.close()
            router.failover.forget(number)
        loop = asyncio.get_running_loop()
        for client in clients:
            assert await loop.run_in_executor(None, is_closed, client)
            client.close()

    asyncio.run(main())


def test_a_router_that_can_go_on_with_none_of_many_connections_tells_so_and_starts(start: StartRouter) -> None:
    router = start()
    listening = router.listen()
    clients = []
    for client, _, _, journal in accepted(router, listening, 1000):
        clients.append(client)
        journal.spoil()
        journal.close()
    router.kill()
    assert not start().failover.connections
    for client in clients:
        assert is_closed(client)
        client.close()


def test_a_connection_whose_descriptors_got_lost_ends_alone(holder: SocketHolder, start: StartRouter) -> None:
    router = start()
    listening = router.listen()
    with connect(listening) as client, connect(listening) as other:
        sock, _ = listening.accept()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:  # as the system hands them over in part
            link.connect(str(holder.path))
            link.send(MESSAGE.pack(HolderMessageKind.HELLO, 1))
            socket.send_fds(link, [MESSAGE.pack(HolderMessageKind.CONNECTION, 1)], [sock.fileno()])
            link.send(MESSAGE.pack(HolderMessageKind.CONNECTION, 2))
        sock.close()
        assert is_closed(client)
        at_other_place = FailoverSession.of_holder(holder.path, 1)
        assert at_other_place is not None
        assert not at_other_place.connections
        at_other_place.close()
        router.accept(listening)
        router.kill()
        assert len(start().failover.connections) == 1
        other.close()


def test_what_there_is_no_room_for_is_not_kept(holder: SocketHolder, start: StartRouter) -> None:
    router = start()
    listening = router.listen()
    place = holder._slots[0]
    with connect(listening) as client:
        place._max_files = 3
        router.accept(listening)
        router.kill()
        assert is_closed(client)
    assert not start().failover.connections


def test_after_a_hand_over_that_failed_the_next_router_begins_with_nothing(
    start: StartRouter, holder: SocketHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = start()
    listening = router.listen()
    clients = []
    for _ in range(500):
        clients.append(connect(listening))
        router.accept(listening)[2].close()
    address = listening.getsockname()
    router.kill()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf, monkeypatch.context() as impatient:
        impatient.setattr("slipstream.router.http.failover.holder.socket_holder.PATIENCE_S", 1.0)
        deaf.connect(str(holder.path))
        deaf.send(MESSAGE.pack(HolderMessageKind.HELLO, 0))  # and takes nothing
        hung_up = select.poll()
        hung_up.register(deaf, 0)
        assert hung_up.poll(TIMEOUT_S * 1e3)
    for client in clients:
        assert is_closed(client)
        client.close()
    following = start()
    assert not following.failover.listening
    socket.create_server(address).close()


def test_a_burst_of_clients_is_kept_to_the_last(start: StartRouter) -> None:
    num_clients = 600

    async def main() -> None:
        router, served = start(), asyncio.Queue[HeldConnection | None]()

        async def serve(sock: socket.socket, held: HeldConnection | None) -> None:
            router.sockets.append(sock)
            served.put_nowait(held)

        listener = HeldListener(router.listen(), router.failover, serve)
        clients = [socket.create_connection(listener.sock.getsockname()) for _ in range(num_clients)]
        for _ in range(num_clients):
            held = await asyncio.wait_for(served.get(), TIMEOUT_S)
            assert held is not None
            held.journal.close()
        for client in clients:
            client.close()
        listener.close()

    asyncio.run(main())


def test_descriptors_are_not_leaked(start: StartRouter) -> None:
    before = num_open_files()
    for _ in range(4):
        router = start()
        listening = router.listen()
        with connect(listening):
            sock, number, journal = router.accept(listening)
            journal.close()
            sock.close()
            router.failover.forget(number)
            router.failover.farewell()
            router.kill()
    until_s = time.monotonic() + TIMEOUT_S
    while num_open_files() > before:  # until the socket holder has closed the last link and what came over it
        assert time.monotonic() < until_s


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def break_links(holder: SocketHolder) -> None:
    for link in list(holder._links):
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)


async def rejoined(failover: FailoverSession) -> None:
    """Returns when the link that was broken is there again."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (failover._rejoining is not None and failover._link is None):
            await asyncio.sleep(0)
        await failover._rejoining


def test_a_link_that_breaks_is_made_anew_and_the_socket_holder_hears_what_has_changed(
    holder: SocketHolder, start: StartRouter
) -> None:
    async def main() -> None:
        router = start()
        router.failover.attend()
        listening = router.listen()
        with connect(listening), connect(listening) as left, connect(listening):
            _, number, _ = router.accept(listening)
            sock, left_number, _ = router.accept(listening)
            third, _ = listening.accept()
            break_links(holder)
            while router.failover._link is not None:
                await asyncio.sleep(0)
            assert not router.failover.has_room  # so that no client is accepted for the moment
            assert router.failover.keep(third) is None
            sock.close()
            router.failover.forget(left_number)
            await rejoined(router.failover)
            assert await asyncio.to_thread(is_closed, left)
            following = router.failover.keep_from_now_on(third)
            assert following is not None
            router.kill()
            third.close()
            restored = start().failover
            assert {one.held.number for one in restored.connections} == {number, following.number}
            assert len(restored.listening) == 1

    asyncio.run(main())


def test_a_link_for_which_no_file_is_free_is_made_later(
    holder: SocketHolder, start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        router, refused = start(), asyncio.Event()

        def refuse() -> HolderLink:
            refused.set()
            raise OSError(errno.EMFILE, "Too many open files")

        router.failover.attend()
        with monkeypatch.context() as full:
            full.setattr(session_module, "HolderLink", refuse)
            break_links(holder)
            async with asyncio.timeout(TIMEOUT_S):
                await refused.wait()
        await rejoined(router.failover)
        assert router.failover.has_room

    asyncio.run(main())


def test_sockets_that_were_lost_on_their_way_to_the_socket_holder_are_handed_over_again(
    holder: SocketHolder, start: StartRouter
) -> None:
    async def main() -> None:
        router = start()
        router.failover.attend()
        listening = router.listen()
        with connect(listening):
            _, number, _ = router.accept(listening)
            while not holder._slots[0]._held.keys() >= {number}:
                await asyncio.sleep(0)
            holder._slots[0].forget_all()
            break_links(holder)
            await rejoined(router.failover)
            assert not router.failover.has(number)
            router.kill()
            assert len(start().failover.listening) == 1

    asyncio.run(main())


STOPS_ITSELF = """
import os, signal, socket, sys
from pathlib import Path
from slipstream.router.http.failover.failover_session import FailoverSession

failover = FailoverSession.of_holder(Path(sys.argv[1]))
listening = socket.create_server(("127.0.0.1", 0))
failover.keep_listening([listening])
print(listening.getsockname()[1], flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_router_that_was_stopped_is_ended_before_the_next_one_gets_its_place(
    holder: SocketHolder, start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.router.http.failover.holder.socket_holder.LEAVING_S", 0.1)
    command = [sys.executable, "-c", STOPS_ITSELF, str(holder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stopped:
        assert stopped.stdout is not None
        port = int(stopped.stdout.readline())
        (listening,) = start().failover.listening
        assert listening.getsockname()[1] == port
        assert stopped.wait(TIMEOUT_S) == -signal.SIGKILL


def test_a_router_whose_place_another_one_has_had_does_not_get_it_back(
    holder: SocketHolder, start: StartRouter
) -> None:
    start().kill()
    command = [sys.executable, "-c", STOPS_ITSELF.rpartition("os.kill")[0], str(holder.path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with closing(HolderLink()) as link:
        link.greet(holder.path, HolderMessageKind.AGAIN, 0, 0)
        with pytest.raises(ConnectionResetError):
            link.receive()


@pytest.mark.parametrize(("before", "after", "stay"), [(2, 2, {1, 2}), (2, 3, {1, 2}), (3, 2, {1, 2}), (2, 1, set())])
def test_clients_of_fronts_that_there_are_no_more_end(
    start: StartRouter, before: int, after: int, stay: set[int]
) -> None:
    dispatcher = start(0, before)
    with ExitStack() as clients:
        by_place = {}
        routers = [dispatcher]
        for place in range(1, before + 1):
            routers.append(start(place))
            listening = routers[-1].listen()
            by_place[place] = clients.enter_context(connect(listening))
            routers[-1].accept(listening)
        workers = socket.create_server(("127.0.0.1", 0))
        dispatcher.sockets.append(workers)
        dispatcher.failover.keep_listening([workers], for_workers=True)
        for router in routers:
            router.kill()
        assert len(start(0, after).failover.for_workers) == 1
        for place, client in by_place.items():
            if place not in stay:
                assert is_closed(client)
        assert {place for place in by_place if start(place).failover.connections} == stay


def test_a_socket_holder_that_lets_go_ends_the_clients_and_frees_the_ports(
    holder: SocketHolder, start: StartRouter
) -> None:
    router = start()
    listening = router.listen()
    address = listening.getsockname()
    with connect(listening) as client:
        router.accept(listening)
        router.kill()
        holder.let_go()
        assert is_closed(client)
    socket.create_server(address).close()
    assert not start().failover.listening


def test_a_closed_estate_leaves_nothing_with_the_loop(start: StartRouter) -> None:
    async def main() -> None:
        failover = start().failover
        failover.attend()
        assert failover._link is not None
        fd = failover._link.fileno()
        failover.close()
        assert not asyncio.get_running_loop().remove_reader(fd)

    asyncio.run(main())
