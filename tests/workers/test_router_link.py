"""The connection to the router: patient, redirectable, and deaf to what is not for workers."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.messages import PROTOCOL_VERSION, Cancel, Failed, Hello, Ping, Pong, Start, Welcome
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.workers import router_link
from slipstream.workers.engine_loop import EngineEvent, LinkLost
from slipstream.workers.process.inbox import Inbox
from slipstream.workers.router_link import NO_TLS, RouterLink
from slipstream.workers.telemetry.worker_report import WorkerFailed
from tests.support.router.authority import Authority
from tests.support.workers.scripted_router import ScriptedRouter, held_port

TIMEOUT_S = 20.0


@dataclass
class LinkBench:
    link: RouterLink
    inbox: Inbox[EngineEvent]
    loop: asyncio.AbstractEventLoop
    failures: queue.SimpleQueue[str]
    seen: list[EngineEvent] = field(default_factory=list)

    def take(self, count: int) -> list[EngineEvent]:
        """The next `count` events for the engine."""
        while len(self.seen) < count:
            events = self.inbox.take(TIMEOUT_S)
            assert events, f"{count} events did not come: {self.seen}"
            self.seen += events
        taken, self.seen = self.seen[:count], self.seen[count:]
        return taken


@contextmanager
def linked(port: int, inbox_limit: int = 100, tls: LinkTlsConfig = NO_TLS) -> Iterator[LinkBench]:
    loop = uvloop.new_event_loop()
    inbox: Inbox[EngineEvent] = Inbox(inbox_limit)
    failures: queue.SimpleQueue[str] = queue.SimpleQueue()

    def failed(error: WorkerFailed) -> None:
        failures.put(str(error))

    link = RouterLink(loop, "127.0.0.1", port, inbox, failed, tls)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield LinkBench(link, inbox, loop, failures)
    finally:
        asyncio.run_coroutine_threadsafe(link.close(), loop).result(TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()


def hello(epoch: int = 1) -> Hello:
    return Hello(PROTOCOL_VERSION, "t", PeerId("w", epoch), "decode", "m", 1, 1, (), 16, 8, 4, 64, 128)


def test_it_keeps_trying_until_the_router_is_there() -> None:
    with held_port() as port, linked(port) as bench:
        bench.link.connect(hello())
        assert bench.inbox.take(0.2) == []
        with ScriptedRouter(port) as router:
            assert router.connection("w").hello == hello()
            assert bench.take(1) == [Welcome("scripted")]


def test_after_a_loss_it_says_so_once_and_goes_where_it_was_redirected() -> None:
    with ScriptedRouter() as first, ScriptedRouter() as second, linked(first.port) as bench:
        bench.link.connect(hello())
        connection = first.connection("w")
        assert bench.take(1) == [Welcome("scripted")]
        bench.loop.call_soon_threadsafe(bench.link.redirect, "127.0.0.1", second.port)
        connection.drop()
        assert bench.take(1) == [LinkLost()]
        bench.link.connect(hello(2))
        assert second.connection("w").hello.worker.epoch == 2
        assert bench.take(1) == [Welcome("scripted")]


def test_messages_go_both_ways_and_pings_are_answered_without_the_engine() -> None:
    with ScriptedRouter() as router, linked(router.port) as bench:
        bench.link.connect(hello())
        connection = router.connection("w")
        bench.take(1)
        connection.send(Ping(7))
        assert connection.wait(Pong) == Pong(7)
        connection.send(Start("r", 0, (1, 2)))
        assert bench.take(1) == [Start("r", 0, (1, 2))]
        bench.link.send([Failed("r", 0, "why", True), Failed("s", 1, "why", False)])
        connection.wait(Failed, lambda m: m.request_id == "s")
        assert [m.request_id for m in connection.all(Failed)] == ["r", "s"]


def test_a_rejection_is_final() -> None:
    with ScriptedRouter(rejection="bad token") as router, linked(router.port) as bench:
        bench.link.connect(hello())
        assert bench.failures.get(timeout=TIMEOUT_S) == "the router rejected this worker: bad token"
        assert bench.inbox.take(0.2) == []


def test_a_router_that_does_not_know_the_model_yet_is_asked_again() -> None:
    with held_port() as port, linked(port) as bench:
        with ScriptedRouter(port, rejection="model 'm', this router serves 'n'", is_final=False) as router:
            bench.link.connect(hello())
            router.wait_for_rejections(2)
        with ScriptedRouter(port) as router:
            assert router.connection("w").hello == hello()
            assert bench.take(1) == [Welcome("scripted")]
        assert bench.failures.empty()


def test_a_worker_whose_router_was_followed_by_a_stranger_waits_for_its_own() -> None:
    with held_port() as port, linked(port) as bench:
        with ScriptedRouter() as router:
            bench.link.redirect("127.0.0.1", router.port)
            bench.link.connect(hello())
            assert isinstance(bench.take(1)[0], Welcome)
        assert isinstance(bench.take(1)[0], LinkLost)
        with ScriptedRouter(rejection="bad token") as stranger:
            bench.loop.call_soon_threadsafe(bench.link.redirect, "127.0.0.1", stranger.port)
            bench.link.connect(hello(2))
            stranger.wait_for_rejections(2)
            with ScriptedRouter() as router:
                bench.loop.call_soon_threadsafe(bench.link.redirect, "127.0.0.1", router.port)
                assert isinstance(bench.take(1)[0], Welcome)
        assert bench.failures.empty()


def test_an_address_that_cannot_be_one_is_a_failure_and_not_retried_for_ever() -> None:
    with held_port() as port, linked(port) as bench:
        bench.loop.call_soon_threadsafe(bench.link.redirect, "no..host", 1)
        bench.link.connect(hello())
        assert bench.failures.get(timeout=TIMEOUT_S).startswith("cannot connect to no..host:1: ")


def test_a_certificate_that_is_half_written_after_a_welcome_is_waited_for(tmp_path: Path) -> None:
    tls = Authority(tmp_path / "ca").issue("host")
    written = Path(tls.cert_file or "").read_text()
    with ScriptedRouter(tls=tls) as router, linked(router.port, tls=tls) as bench:
        bench.link.connect(hello())
        connection = router.connection("w")
        assert bench.take(1) == [Welcome("scripted")]
        Path(tls.cert_file or "").write_text(written[:100])
        connection.drop()
        assert bench.take(1) == [LinkLost()]
        bench.link.connect(hello(2))
        assert bench.inbox.take(0.3) == []
        assert bench.failures.empty()
        Path(tls.cert_file or "").write_text(written)
        assert bench.take(1) == [Welcome("scripted")]


def test_a_certificate_that_is_no_one_from_the_start_is_a_failure(tmp_path: Path) -> None:
    tls = Authority(tmp_path / "ca").issue("host")
    Path(tls.cert_file or "").write_text("none")
    with held_port() as port, linked(port, tls=tls) as bench:
        bench.link.connect(hello())
        assert "there is no CERTIFICATE in PEM form" in bench.failures.get(timeout=TIMEOUT_S)


def test_a_router_that_is_silent_in_the_handshake_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_link, "ANSWER_TIMEOUT_S", 0.2)
    tls = Authority(tmp_path / "ca").issue("host")
    with socket.create_server(("127.0.0.1", 0)) as silent, linked(silent.getsockname()[1], tls=tls) as bench:
        silent.settimeout(TIMEOUT_S)
        bench.link.connect(hello())
        first, second = silent.accept()[0], silent.accept()[0]
        first.close()
        second.close()


def test_a_router_that_floods_the_engine_is_cut_off() -> None:
    with ScriptedRouter() as router, linked(router.port, inbox_limit=3) as bench:
        bench.link.connect(hello())
        connection = router.connection("w")
        bench.take(1)
        for attempt in range(10):
            connection.send(Cancel("r", attempt))
        connection.wait_lost()
        assert bench.take(4) == [*(Cancel("r", attempt) for attempt in range(3)), LinkLost()]
