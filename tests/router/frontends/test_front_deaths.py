"""Fronts and dispatchers that are killed, stopped or drained, or do not start: real processes, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
import yaml

from slipstream.router.access.access import Access
from slipstream.router.access.api_key import digest_of
from slipstream.router.access.usage import UsageCounts
from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.frontends import front_pool as pool_module
from slipstream.router.frontends.front_link import FrontLink
from slipstream.router.frontends.front_messages import Ask, Enter, FrontAnswer, Settle
from slipstream.router.frontends.tally import FrontTally
from slipstream.router.http.exchange import Exchange as HttpExchange
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.http.reader import Request
from slipstream.router.observability.front_counts import FrontMetrics
from slipstream.router.process.addresses import Addresses, Endpoint
from slipstream.router.router import Router
from tests.router.test_http_router import CONFIG, TOKEN, PlayedWorker, ask, completion, until_ready
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, run
from tests.support.router.routing import NUM_CLIENTS, NUM_FRONTS, ended_well, fronts_of, routing, stream_of, until


def test_a_front_that_is_killed_takes_its_own_streams_and_is_started_anew() -> None:
    async def main() -> None:
        async with routing() as (router, addresses, worker):
            worker.may_go_on.clear()
            exchanges = [await stream_of(addresses.http, max_tokens=3) for _ in range(NUM_CLIENTS)]
            pool = fronts_of(router)
            victim = max(pool._fronts, key=lambda front: front.link.num_running)
            num_lost = victim.link.num_running
            assert num_lost > 0
            os.kill(victim.process.pid, signal.SIGKILL)
            await until(lambda: router.service.snapshot_of(MODEL).num_requests == NUM_CLIENTS - num_lost)
            await until(worker.cancelled.is_set)
            worker.may_go_on.set()
            rests = [await exchange.reader.read() for exchange in exchanges]
            for exchange in exchanges:
                exchange.writer.close()
            assert sum(map(ended_well, rests)) == NUM_CLIENTS - num_lost
            await until(lambda: len(pool.pids) == NUM_FRONTS and victim.process.pid not in pool.pids)
            await asyncio.gather(*(front.listens for front in pool._fronts))
            for _ in range(NUM_CLIENTS):
                status, _ = await ask(addresses.http, "POST", "/v1/completions", completion(max_tokens=2))
                assert status == 200

    run(main, deadline_s=110)


def test_a_front_that_was_stopped_is_killed_and_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LOOK_EVERY_S", 0.5)
    monkeypatch.setattr(pool_module, "SILENT_S", 4.0)

    async def main() -> None:
        async with routing() as (router, addresses, _):
            pool = fronts_of(router)
            victim, *others = pool.pids
            os.kill(victim, signal.SIGSTOP)
            await until(lambda: len(pool.pids) == NUM_FRONTS and victim not in pool.pids)
            assert set(others) <= set(pool.pids)
            await asyncio.gather(*(front.listens for front in pool._fronts))
            for _ in range(NUM_CLIENTS):
                status, _ = await ask(addresses.http, "POST", "/v1/completions", completion(max_tokens=2))
                assert status == 200

    run(main, deadline_s=110)


def test_a_front_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    failures = [OSError(errno.EAGAIN, "no more processes"), OSError(errno.ENOMEM, "no memory")]

    def sometimes(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return start(*arguments, **options)

    async def main() -> None:
        async with routing() as (router, _, _):
            pool = fronts_of(router)
            victim = pool.pids[0]
            monkeypatch.setattr(subprocess, "Popen", sometimes)
            os.kill(victim, signal.SIGKILL)
            await until(lambda: not failures and len(pool.pids) == NUM_FRONTS and victim not in pool.pids)
            await asyncio.gather(*(front.listens for front in pool._fronts))

    run(main, deadline_s=110)


def test_where_one_front_does_not_start_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = subprocess.Popen, list[int]()

    def one_of_two(*arguments: Any, **options: Any) -> Any:
        command = ["false"] if begun else arguments[0]
        process = start(command, **options)
        begun.append(process.pid)
        return process

    async def main() -> None:
        monkeypatch.setattr(subprocess, "Popen", one_of_two)
        with pytest.raises(OSError, match="before it listened"):
            await Router(replace(CONFIG, frontends=NUM_FRONTS), [ModelSource(MODEL, MODEL_DIR)], TOKEN).start()
        assert len(begun) == NUM_FRONTS
        assert not any(map(psutil.pid_exists, begun))

    run(main, deadline_s=110)


def test_a_question_that_the_dispatcher_stumbles_over_is_answered_all_the_same() -> None:
    async def stumble(request: Request, exchange: HttpExchange) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        sent: list[Any] = []
        metrics = FrontMetrics()
        service = GenerationService(CONFIG, models={MODEL: CONFIG.dispatch}, token=TOKEN)
        link = FrontLink(service, Access(), FrontTally(metrics, Counter()), stumble, sent.append)
        link.received(Ask(7, "GET", "/metrics", "", (), b""))
        await until(lambda: bool(sent))
        assert isinstance(sent[0], FrontAnswer)
        assert (sent[0].number, sent[0].status) == (7, 500)

    run(main)


@pytest.mark.parametrize(("clients_outlive_it", "num_requests"), [(True, 1), (False, 2)])
def test_a_request_that_the_next_front_goes_on_with_counts_once(
    tmp_path: Path, clients_outlive_it: bool, num_requests: int
) -> None:
    digest = digest_of(b"secret")
    (tmp_path / "keys.yaml").write_text(f"keys: [{{name: alice, sha256: '{digest.hex()}', max_concurrent: 1}}]")

    async def main() -> None:
        access = Access(AccessConfig(str(tmp_path / "keys.yaml")))
        access.open()
        service = GenerationService(CONFIG, models={MODEL: CONFIG.dispatch}, token=TOKEN)

        def link() -> FrontLink:
            tally = FrontTally(FrontMetrics(), Counter())
            return FrontLink(service, access, tally, ignore, [].append, clients_outlive_it=clients_outlive_it)

        killed, following = link(), link()
        killed.received(Enter(1, digest, MODEL, 100, 1, False))
        killed.lost()
        following.received(Enter(1, digest, MODEL, 100, 1, True))
        following.received(Settle(1, MODEL, UsageCounts(1, 0, 30, 0, 12)))
        [(account, used)] = access.usage
        assert account.key == "alice"
        assert used == UsageCounts(num_requests, num_requests - 1, 30, 0, 12)
        await access.close()

    run(main)


async def ignore(request: Request, exchange: HttpExchange) -> None:
    """Answers nothing."""


def test_fronts_of_a_killed_dispatcher_end_their_streams_with_an_error_and_then_themselves(tmp_path: Path) -> None:
    program = {"model": MODEL, "model_dir": str(MODEL_DIR), "token": TOKEN}
    program |= {"router": {"http": {"port": 0}, "frontends": NUM_FRONTS}}
    (tmp_path / "router.yaml").write_text(yaml.safe_dump(program))

    command = [sys.executable, "-m", "slipstream.router.main", "--config", str(tmp_path / "router.yaml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as router:

        async def main() -> None:
            assert router.stdout is not None
            said = orjson.loads(router.stdout.readline())
            http, workers = (Endpoint(*split(said[key])) for key in ("http", "workers"))
            worker = await PlayedWorker("decode", Addresses(http, workers)).join()
            await until_ready(http)
            fronts = psutil.Process(router.pid).children()
            assert len(fronts) == NUM_FRONTS
            worker.may_go_on.clear()
            exchanges = [await stream_of(http, max_tokens=5) for _ in range(NUM_CLIENTS)]
            router.kill()
            for exchange in exchanges:
                rest = await exchange.reader.read()
                exchange.writer.close()
                assert not ended_well(rest)
                assert b"shutting_down" in rest
            await until(lambda: not any(front.is_running() for front in fronts))
            worker.leave()

        run(main, deadline_s=110)


def split(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("http://").rpartition(":")
    return host, int(port)


def test_a_drain_lets_streams_end_and_turns_new_connections_away() -> None:
    async def main() -> None:
        async with routing() as (router, addresses, worker):
            worker.may_go_on.clear()
            exchange = await stream_of(addresses.http, max_tokens=3)
            draining = asyncio.create_task(router.drain(60))
            refused = False
            while not refused:
                try:
                    refused = (await ask(addresses.http, "GET", "/health/live"))[0] != 200
                except (OSError, IndexError):
                    refused = True
            worker.may_go_on.set()
            assert ended_well(await exchange.reader.read())
            exchange.writer.close()
            await draining
            pids = [front.process.pid for front in fronts_of(router)._fronts]
        assert not any(map(psutil.pid_exists, pids))

    run(main, deadline_s=110)


def test_a_front_whose_link_breaks_while_it_drains_is_followed_by_one_that_lets_its_streams_end() -> None:
    """It ends, as if its dispatcher had been killed, but has not ended what ran there."""

    async def main() -> None:
        with contextlib.closing(SocketHolder()) as holder:
            async with routing(holder_path=holder.path) as (router, addresses, worker):
                worker.may_go_on.clear()
                exchange = await stream_of(addresses.http, max_tokens=3)
                pool = fronts_of(router)
                busy = max(pool._fronts, key=lambda front: front.link.num_running)
                draining = asyncio.create_task(router.drain(60))
                await until(lambda: pool._drained_s is not None)
                busy.protocol.abort()
                await until(lambda: busy not in pool._fronts)
                worker.may_go_on.set()
                assert ended_well(await exchange.reader.read())
                exchange.writer.close()
                await draining

    run(main, deadline_s=110)
