"""What a router learns of its workers: how many are wanted, and that one is to be drained."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.router_config import AdminConfig
from slipstream.router.process.addresses import Addresses, Endpoint
from slipstream.router.protocol.messages import Drain
from slipstream.router.protocol.wire import Message
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.router import Router
from tests.router.test_http_router import CONFIG, TOKEN, PlayedWorker, ask, completion, readiness, routing, until_ready
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, run


class DrainedWorker(PlayedWorker):
    """Keeps the drains that it hears of."""

    def __init__(self, *arguments: object, **fields: object) -> None:
        super().__init__(*arguments, **fields)  # type: ignore[arg-type]
        self.drains: list[Drain] = []

    def _received(self, message: Message) -> None:
        if isinstance(message, Drain):
            self.drains.append(message)
        else:
            super()._received(message)


def test_asleep_requests_wait_and_the_first_worker_takes_them() -> None:
    async def main() -> None:
        async with routing() as (router, addresses):
            assert await readiness(addresses.http) != "ready"
            router.models.expect({MODEL: ExpectedWorkers(0, 0)})
            await until_ready(addresses.http)
            waiting = asyncio.create_task(ask(addresses.http, "POST", "/v1/completions", completion(max_tokens=3)))
            router.models.expect({MODEL: ExpectedWorkers(0, 1)})
            assert await readiness(addresses.http) == "ready"  # it is on its way
            worker = await PlayedWorker("decode", addresses).join()
            status, answer = await waiting
            assert status == 200, answer
            worker.leave()
            while await readiness(addresses.http) == "ready":  # this one was wanted
                await asyncio.sleep(0.002)

    run(main)


def test_who_has_slept_stays_ready_while_the_first_worker_is_tried_out() -> None:
    async def main() -> None:
        async with routing() as (router, addresses):
            router.models.expect({MODEL: ExpectedWorkers(0, 0)})
            router.models.expect({MODEL: ExpectedWorkers(0, 1)})
            worker = PlayedWorker("decode", addresses)
            worker.may_go_on.clear()
            await worker.join()
            assert await readiness(addresses.http) == "ready"
            worker.leave()

    run(main)


def test_a_router_that_begins_anew_lets_requests_wait_for_the_workers_that_will_come_back() -> None:
    async def main() -> None:
        async with routing() as (router, addresses):
            router.models.expect({MODEL: ExpectedWorkers(0, 1)})
            assert await readiness(addresses.http) != "ready"
            waiting = asyncio.create_task(ask(addresses.http, "POST", "/v1/completions", completion(max_tokens=3)))
            while not orjson.loads(router.front.status_body())["num_waiting"]:
                await asyncio.sleep(0.002)
            worker = await PlayedWorker("decode", addresses).join()
            status, answer = await waiting
            assert status == 200, answer
            worker.leave()

    run(main)


def test_a_prefill_pool_that_is_wanted_no_more_is_not_waited_for() -> None:
    async def main() -> None:
        async with routing(has_prefill_pool=True) as (router, addresses):
            worker = await PlayedWorker("decode", addresses).join()
            assert await readiness(addresses.http) == "Not ready: no prefill worker has connected yet."
            router.models.expect({MODEL: ExpectedWorkers(0, 1)})
            await until_ready(addresses.http)
            worker.leave()

    run(main)


def test_a_later_router_of_a_cluster_that_has_served_is_ready_with_any_answer() -> None:
    """Its prefill hosts may be gone or cut off; decode workers compute prompts themselves meanwhile."""

    async def main() -> None:
        async with routing(has_prefill_pool=True) as (router, addresses):
            router.models.expect({MODEL: ExpectedWorkers(1, 1, has_served=True)})
            assert await readiness(addresses.http) == "Not ready: no decode worker has connected yet."
            worker = await PlayedWorker("decode", addresses).join()
            await until_ready(addresses.http)
            worker.leave()

    run(main)


@contextlib.asynccontextmanager
async def with_admin_port() -> AsyncIterator[tuple[Addresses, Endpoint]]:
    router = Router(replace(CONFIG, admin=AdminConfig(port=0)), [ModelSource(MODEL, MODEL_DIR)], TOKEN)
    addresses = await router.start()
    assert addresses.admin is not None
    try:
        yield addresses, addresses.admin
    finally:
        await router.stop()


@pytest.mark.parametrize("body", [None, {"next_role": "prefill"}, {"migrate": False}])
def test_a_worker_is_drained_at_the_operators_port(body: dict[str, object] | None) -> None:
    async def main() -> None:
        async with with_admin_port() as (addresses, admin):
            worker = DrainedWorker("decode", addresses)
            await worker.join()
            await until_ready(addresses.http)
            status, answer = await ask(admin, "POST", "/cluster/workers/decode-0/drain", body)
            assert (status, orjson.loads(answer)["draining"]) == (202, True)
            while not worker.drains:
                await asyncio.sleep(0.002)
            assert worker.drains == [Drain((body or {}).get("next_role"))]  # type: ignore[arg-type]
            reply = orjson.loads((await ask(admin, "GET", "/cluster/status"))[1])
            assert [one["draining"] for one in reply["workers"]] == [True]
            worker.leave()

    run(main)


def test_what_cannot_be_drained_is_named_and_nobody_drains_at_the_port_of_the_api() -> None:
    async def main() -> None:
        async with with_admin_port() as (addresses, admin):
            status, answer = await ask(admin, "POST", "/cluster/workers/decode-9/drain")
            assert (status, orjson.loads(answer)["error"]["param"]) == (404, "name")
            for body, param in (({"next_role": "router"}, "next_role"), ({"x": 1}, "x"), ({"migrate": 1}, "migrate")):
                status, answer = await ask(admin, "POST", "/cluster/workers/decode-9/drain", body)
                assert (status, orjson.loads(answer)["error"]["param"]) == (400, param)
            assert (await ask(addresses.http, "POST", "/cluster/workers/decode-9/drain"))[0] == 404
        async with routing() as (_, addresses):  # without an admin port, and without keys to tell who asks
            assert (await ask(addresses.http, "POST", "/cluster/workers/decode-9/drain"))[0] == 404

    run(main)
