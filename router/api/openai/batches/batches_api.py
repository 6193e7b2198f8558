"""OpenAI's endpoints of batches."""

from __future__ import annotations

import re
import time
from typing import Annotated, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.openai.batches.batch import CANCELLABLE, KIND, Batch
from slipstream.router.api.openai.batches.batch_input import ENDPOINTS
from slipstream.router.api.openai.batches.batch_runner import BatchRunner
from slipstream.router.api.openai.batches.result_files import ResultFiles
from slipstream.router.api.openai.body.parsing import parse_body
from slipstream.router.api.openai.files import file_object
from slipstream.router.api.openai.files.file_limits import MAX_EXPIRY_S, MIN_EXPIRY_S, NO_MODEL, no_file
from slipstream.router.api.page_query import PAGE_FIELDS, PageQuery, invalid, list_json
from slipstream.router.api.store_failure import store_failure
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError
from slipstream.router.store.stored_object import StoredObject

PATH = "/v1/batches"
MAX_METADATA = 16
MAX_BATCHES = 100  # of a page
WINDOW = re.compile(r"([1-9]\d{0,5})([smhd])")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Text = Annotated[str, Field(max_length=512)]


class ExpiresAfter(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)]


class BatchBody(BaseModel):
    """What a client sends. `completion_window` is a whole number and a unit: `s`, `m`, `h`, `d`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input_file_id: Annotated[str, Field(min_length=1, max_length=256)]
    endpoint: str
    completion_window: str
    metadata: (
        Annotated[dict[Annotated[str, Field(min_length=1, max_length=64)], Text], Field(max_length=MAX_METADATA)] | None
    ) = None
    output_expires_after: ExpiresAfter | None = None


class BatchesApi:
    """Every caller sees the batches of its tenant, which may have `max_tenant_unfinished` that are not over. `routes`
    are those that lines go through."""

    def __init__(self, store: ObjectStore, runner: BatchRunner, routes: ApiRoutes, max_tenant_unfinished: int) -> None:
        self._max_tenant_unfinished = max_tenant_unfinished
        self._store = store
        self._runner = runner
        self._routes = routes

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        routes.add("POST", PATH, self.create, body=BatchBody)
        routes.add("GET", PATH, self.list, query=PAGE_FIELDS)
        routes.add_item("POST", f"{PATH}/", "/cancel", self.cancel)
        routes.add_item("GET", f"{PATH}/", "", self.retrieve)

    async def create(self, request: Request, exchange: ApiExchange) -> None:
        """Begins a batch. If the router is killed meanwhile, the next one begins the same one."""
        body = parse_body(request, BatchBody)
        if body.endpoint not in ENDPOINTS or not self._routes.has(body.endpoint):
            served = " or ".join(endpoint for endpoint in ENDPOINTS if self._routes.has(endpoint))
            raise invalid("endpoint", f"must be {served}, got {body.endpoint[:64]!r}")
        window_s = window_seconds(body.completion_window)
        caller, checkpoint = exchange.context.caller, exchange.context.checkpoint
        identity = checkpoint.identity(NO_MODEL)
        batch = Batch(
            id=f"batch_{identity.number:032x}",
            owner=caller.tenant(""),
            key_digest=caller.key.digest.hex() if caller.key is not None else "",
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            created_at=identity.created_s,
            expires_at=identity.created_s + window_s,
            metadata=body.metadata,
            output_expires_after_s=body.output_expires_after.seconds if body.output_expires_after else None,
        )
        try:
            batch = await self._begun(batch)
        except StoreError as error:
            raise store_failure(error) from error
        self._runner.look()
        exchange.respond(200, orjson.dumps(batch.shown()))

    async def _begun(self, batch: Batch) -> Batch:
        """Raises HttpError 404 if there is no such file, 429 if the tenant has too many batches."""
        before = await self._store.get(KIND, batch.id, batch.owner)
        if before is not None:
            return Batch.of(before)
        file = await self._store.get(file_object.KIND, batch.input_file_id, batch.owner)
        if file is None or file_object.facts_of(file).purpose != "batch":
            raise no_file(batch.input_file_id, "input_file_id")
        num_unfinished = await self._store.num_pinned(KIND, batch.owner)
        if num_unfinished >= self._max_tenant_unfinished:
            raise too_many_batches(num_unfinished, self._max_tenant_unfinished)
        files = ResultFiles(self._store.blobs, batch.id)
        try:
            num_bytes = await self._store.in_files("keep_input", lambda: files.keep_input(file.id))
            await self._store.put(batch.stored(num_bytes))
        except StoreError:
            self._store.files.submit(files.remove)
            raise
        finally:
            self._store.files.submit(files.close)
        return batch

    async def list(self, request: Request, exchange: ApiExchange) -> None:
        """The batches of the caller's tenant, the newest first."""
        query = PageQuery.of(request, limit=20, most=MAX_BATCHES)
        owner = exchange.context.caller.tenant("")
        try:
            page = await self._store.page(
                KIND, owner, after=query.after, limit=query.limit, newest_first=query.newest_first
            )
            if page is None:
                raise query.unknown_after()
            shown = [Batch.of(stored).shown() for stored in page.objects]
        except StoreError as error:
            raise store_failure(error) from error
        exchange.respond(200, orjson.dumps(list_json(shown, page.has_more)))

    async def retrieve(self, request: Request, exchange: ApiExchange, batch_id: str) -> None:
        """The state of a batch."""
        try:
            stored = await self._store.get(KIND, batch_id, exchange.context.caller.tenant(""))
            if stored is None:
                raise no_batch(batch_id)
            batch = Batch.of(stored)
        except StoreError as error:
            raise store_failure(error) from error
        exchange.respond(200, orjson.dumps(batch.shown()))

    async def cancel(self, request: Request, exchange: ApiExchange, batch_id: str) -> None:
        """Ends a batch; what it has so far is given out."""
        now = time.time()

        def cancelled(stored: StoredObject | None) -> StoredObject | None:
            if stored is None or Batch.of(stored).status not in CANCELLABLE:
                return None
            return Batch.of(stored).cancelling(now).stored(stored.blob_bytes)

        try:
            stored = await self._store.change(KIND, batch_id, exchange.context.caller.tenant(""), cancelled)
            if stored is None:
                raise no_batch(batch_id)
            batch = Batch.of(stored)
        except StoreError as error:
            raise store_failure(error) from error
        if batch.status not in CANCELLABLE:
            message = f"A batch that is {batch.status} cannot be cancelled."
            raise HttpError(409, message, param="batch_id", code="batch_not_cancellable")
        self._runner.changed(batch_id)
        self._runner.look()
        exchange.respond(200, orjson.dumps(batch.shown()))


def window_seconds(window: str) -> int:
    """The seconds of a completion window, such as 24h. Raises HttpError 400."""
    found = WINDOW.fullmatch(window)
    seconds = int(found[1]) * UNITS_S[found[2]] if found else 0
    if not 0 < seconds <= MAX_EXPIRY_S:
        raise invalid("completion_window", f"must be like 24h, and at most 30d, got {window[:64]!r}")
    return seconds


def too_many_batches(num_unfinished: int, max_tenant_unfinished: int) -> HttpError:
    message = (
        f"{num_unfinished} batches are not finished yet, and at most {max_tenant_unfinished} may be "
        "(router.batches.max_tenant_unfinished)."
    )
    return HttpError(429, message, kind="rate_limit_error", code="too_many_batches", headers=(("retry-after", "60"),))


def no_batch(batch_id: str) -> HttpError:
    return HttpError(404, f"There is no batch {batch_id[:256]!r}.", param="batch_id", code="batch_not_found")
