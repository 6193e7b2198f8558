"""One response in the background, from where it is to its end. It may be given up at any step, and gone on with by
another process: what has ended is in the store, and the tokens until then are in a journal."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

import orjson

from slipstream.router.access.key_ring import KeyRing
from slipstream.router.api.exchange_context import ApiExchange, ExchangeContext
from slipstream.router.api.openai.responses.answer.response_format import ERROR_CODES
from slipstream.router.api.openai.responses.background_store import BackgroundJob, BackgroundStore
from slipstream.router.api.openai.responses.recorded_exchange import EventRecorder, RecordedExchange
from slipstream.router.api.openai.responses.response_store import NotWantedError, is_unfinished
from slipstream.router.api.openai.responses.run_files import RunCheckpoint, RunFiles
from slipstream.router.http.failover.held_connection import MAX_LIVES
from slipstream.router.http.failover.journal import Journal
from slipstream.router.http.http_error import HttpError, internal_error
from slipstream.router.http.reader import Request
from slipstream.router.store.store_errors import StoreError

PATH = "/v1/responses"
HEADERS = {b"content-type": b"application/json"}
REFUSED_FOR_NOW = frozenset({429, 503, 507})  # there will be room in time
RETRY_S, MAX_RETRY_S = 1.0, 60.0  # if the refusal does not say after how long; at most
MAX_WAIT_S = 86_400.0  # for room, since the request came

log = logging.getLogger(__name__)


class RequestServer(Protocol):
    """What a run needs of `ResponseGenerator`."""

    async def serve(self, request: Request, exchange: ApiExchange) -> None: ...


class BackgroundRun:
    """Life cycle of a `Job`."""

    def __init__(
        self,
        store: BackgroundStore,
        server: RequestServer,
        keys: KeyRing,
        job: BackgroundJob,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._server = server
        self._keys = keys
        self._job = job
        self._clock = clock
        self._files = RunFiles(store.objects.blobs, job.id)
        self._is_discarded = False

    async def claim(self) -> bool:
        return await self._store.objects.in_files("claim", self._files.claim)

    def discard(self) -> None:
        """The response was cancelled or deleted: it is not gone on with."""
        self._is_discarded = True

    def close(self) -> None:
        if self._is_discarded:
            self._store.objects.files.submit(self._files.remove)
        self._store.objects.files.submit(self._files.close)  # behind what may still be written

    async def run(self) -> None:
        job, store = self._job, self._store
        stored = await store.get(job.id, job.owner)
        if is_unfinished(stored) and stored is not None and await store.has_job(job.id, job.owner):
            request = orjson.loads(stored.body)["request"]
            journal = await store.objects.in_files("open", lambda: self._files.open(job.is_stream))
            try:
                await self._generate(request.encode(), journal)
            except NotWantedError:
                log.info("the response %s has ended before it was complete", job.id)
            except HttpError as error:
                await self._fail(error)
            except StoreError:
                raise
            except Exception:  # as in `HttpConnection`: it ends, whatever happened
                log.exception("the response %s failed in the background", job.id)
                await self._fail(internal_error())
        # In this order: as long as there is a job, a process looks after it.
        await store.objects.in_files("remove", self._files.remove)
        await store.remove_job(job.id, job.owner)

    async def _generate(self, body: bytes, journal: Journal) -> None:
        """Raises HttpError, NotWantedError, StoreError."""
        job, files, objects = self._job, self._files, self._store.objects
        if journal.num_lives > MAX_LIVES:
            message = "The response has outlived many routers without a token, and may be what kills them."
            raise HttpError(500, message, kind="server_error", code="server_error")
        await self._store.note_progress(job.id, job.owner)
        request = Request("POST", PATH, "", dict(HEADERS), body, keep_alive=True, http10=False)
        while True:
            checkpoint = RunCheckpoint(journal, job.identity)
            if files.num_events and checkpoint.resumed(0) is None:
                message = "The router was killed, and a stream with log-probabilities does not go on."
                raise HttpError(500, message, kind="server_error", code="router_restarted")
            recorder = EventRecorder(objects, files)  # one that is refused for now has made no events
            exchange = RecordedExchange(request, ExchangeContext(checkpoint), recorder)
            exchange.request_id = job.request_id
            exchange.context.session = job.session
            try:
                exchange.context.caller = self._keys.caller_by(job.key_digest)
                await self._server.serve(request, exchange)
                return
            except HttpError as error:
                if error.status not in REFUSED_FOR_NOW or self._clock() >= job.created_s + MAX_WAIT_S:
                    raise
                retry_in_s = retry_after_s(error)
            finally:
                await recorder.done()
            await asyncio.sleep(retry_in_s)

    async def _fail(self, error: HttpError) -> None:
        shown = {"code": ERROR_CODES.get(error.kind, "server_error"), "message": error.message}
        await self._store.fail(self._job.id, self._job.owner, shown)


def retry_after_s(error: HttpError) -> float:
    """After how long to ask again, by the headers Retry-After-Ms and Retry-After."""
    found = dict(error.headers)
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return min(float(found[name]) * unit_s, MAX_RETRY_S)
        except (KeyError, ValueError):
            continue
    return RETRY_S
