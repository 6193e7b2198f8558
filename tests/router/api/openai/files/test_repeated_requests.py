"""A router is killed after it has done what a request asks for, and before it could answer: the next one gets the same
request, and does it once."""

from __future__ import annotations

from pathlib import Path

import orjson

from slipstream.router.api.exchange_context import ApiRoutes, ExchangeContext
from slipstream.router.api.held_exchange import HeldExchange
from slipstream.router.api.openai.batches.batch_runner import BatchRunner
from slipstream.router.api.openai.batches.batches_api import BatchesApi
from slipstream.router.api.openai.files.files_api import FilesApi
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.config.store_config import StoreConfig
from slipstream.router.http.failover.journal import Identity
from slipstream.router.http.failover.stream_checkpoint import NoCheckpoint
from slipstream.router.http.reader import Request
from slipstream.router.protocol.model_id import ModelId
from slipstream.router.store.object_store import ObjectStore
from tests.router.api.openai.files.test_files_api import TYPE, form
from tests.support.router.fake_lines import FakeLines
from tests.support.router.in_loop import in_loop

CHAT = "/v1/chat/completions"


class KeptIdentity(NoCheckpoint):
    """What the previous router had noted."""

    def identity(self, model: ModelId) -> Identity:
        return Identity(7, 1_700_000_000, 1, model)


@in_loop
async def test_a_repeated_upload_or_batch_is_the_one_that_was_made(tmp_path: Path) -> None:
    store = ObjectStore(StoreConfig(directory=str(tmp_path), max_age_s=1e9))
    await store.open()
    routes = ApiRoutes()
    FilesApi(store).add_to(routes)
    runner = BatchRunner(store, FakeLines(), BatchesConfig(), store.errors)
    BatchesApi(store, runner, routes, 10).add_to(routes)

    async def never() -> None:
        raise AssertionError

    routes.add("POST", CHAT, lambda request, exchange: never())

    async def answer(path: str, body: bytes, headers: dict[bytes, bytes]) -> bytes:
        request = Request("POST", path, "", headers, body, keep_alive=True, http10=False)
        exchange = HeldExchange(request, ExchangeContext(KeptIdentity()))
        await routes(request, exchange)
        assert exchange.status == 200
        return exchange.body

    upload = form(("purpose", None, b"batch"), ("file", "f", b"x"))
    headers = {b"content-type": TYPE["Content-Type"].encode()}
    first = await answer("/v1/files", upload, headers)
    assert await answer("/v1/files", upload, headers) == first
    created = orjson.dumps({"input_file_id": orjson.loads(first)["id"], "endpoint": CHAT, "completion_window": "24h"})
    batch = await answer("/v1/batches", created, {})
    assert await answer("/v1/batches", created, {}) == batch
    assert (await store.counts()).by_kind == {"batch": 1, "file": 1}
    await store.close()
