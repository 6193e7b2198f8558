"""A router with several front processes and one decode worker, which the test plays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.router_config import ApiConfig, DispatchConfig
from slipstream.router.config.ui_config import UiConfig
from slipstream.router.frontends.front_pool import FrontPool
from slipstream.router.process.addresses import Addresses, Endpoint
from slipstream.router.router import Router
from tests.router.test_http_router import CONFIG, TOKEN, Exchange, PlayedWorker, completion, until_ready
from tests.support.router.fake_cluster import MODEL, MODEL_DIR

NUM_FRONTS = 2
NUM_CLIENTS = 8  # on connections of their own, which the system divides; all on one front is less than 1 % likely


@contextlib.asynccontextmanager
async def routing(
    access: AccessConfig | None = None,
    *,
    fronts: int = NUM_FRONTS,
    dispatch: DispatchConfig = CONFIG.dispatch,
    api: ApiConfig = CONFIG.api,
    holder_path: Path | None = None,
    ui: UiConfig = CONFIG.ui,
    **http: Any,
) -> AsyncIterator[tuple[Router, Addresses, PlayedWorker]]:
    """Ready, with one decode worker."""
    config = replace(
        CONFIG,
        frontends=fronts,
        access=access or AccessConfig(),
        dispatch=dispatch,
        api=api,
        ui=ui,
        http=replace(CONFIG.http, **http),
    )
    router = Router(config, [ModelSource(MODEL, MODEL_DIR)], TOKEN, holder_path=holder_path)
    addresses = await router.start()
    await router.take_over()
    worker = PlayedWorker("decode", addresses)
    try:
        await worker.join()
        await until_ready(addresses.http)
        yield router, addresses, worker
    finally:
        worker.leave()
        await router.stop()


def fronts_of(router: Router) -> FrontPool:
    assert isinstance(router._server, FrontPool)
    return router._server


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def stream_of(at: Endpoint, max_tokens: int, prompt: int = 5) -> Exchange:
    """A stream whose first event has arrived."""
    body = completion(prompt, max_tokens=max_tokens, ignore_eos=True, stream=True)
    exchange = await Exchange.begin(at, "POST", "/v1/completions", body)
    await exchange.reader.readuntil(b"data: ")
    return exchange


def ended_well(rest: bytes) -> bool:
    return b"data: [DONE]" in rest
