"""Responses in the background: they begin, are followed and are cancelled here, and are generated without a client."""

from __future__ import annotations

import orjson

from slipstream.router.access.key_ring import KeyRing
from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.openai.responses.answer.response_document import ResponseDocument
from slipstream.router.api.openai.responses.answer.response_format import number_of
from slipstream.router.api.openai.responses.background_run import BackgroundRun
from slipstream.router.api.openai.responses.background_store import JOB, BackgroundJob, BackgroundStore, Json
from slipstream.router.api.openai.responses.body.chat_translation import chat_of
from slipstream.router.api.openai.responses.body.request_body import ResponsesRequest
from slipstream.router.api.openai.responses.event_replay import EventReplay
from slipstream.router.api.openai.responses.response_generator import LEFT_OUT_HEADER, ResponseGenerator
from slipstream.router.api.openai.responses.response_store import ResponseStore, not_found, owner_of, stored_response
from slipstream.router.api.openai.responses.stored_items import shown_items
from slipstream.router.api.store_failure import store_failure
from slipstream.router.config.background_config import BackgroundConfig
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.store.job_runner import JobRunner
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError
from slipstream.router.store.stored_object import StoredObject

LOOK_EVERY_S = 0.5  # for what other processes have cancelled, or were generating when they died


class BackgroundResponses:
    """Of one process. Life cycle: `start`, then any calls, then `stop`."""

    def __init__(
        self,
        store: ObjectStore,
        responses: ResponseStore,
        generator: ResponseGenerator,
        keys: KeyRing,
        config: BackgroundConfig,
        ping_s: float | None,
    ) -> None:
        """`ping_s`: see `Pings`."""
        self._store = BackgroundStore(store, responses)
        self._responses = responses
        self._generator = generator
        self._keys = keys
        self._config = config
        self._ping_s = ping_s
        self._runner = JobRunner(
            store, JOB, self._run_of, config.max_running, LOOK_EVERY_S, discard=BackgroundRun.discard
        )

    def start(self) -> None:
        self._runner.start()

    async def stop(self) -> None:
        """Leaves what runs to the next process. Safe to call twice."""
        await self._runner.stop()

    async def create(self, body: ResponsesRequest, request: Request, exchange: ApiExchange, arrived_s: float) -> None:
        """Stores a response to come, and answers with it, or with its events. If the router is killed meanwhile, the
        next one answers with the same. Raises HttpError."""
        self._responses.check_is_there("background")
        if body.tool_set.left_out:
            exchange.add_header(LEFT_OUT_HEADER, ", ".join(dict.fromkeys(body.tool_set.left_out)))
        own, messages, root = await self._generator.conversation(body, exchange)
        received = self._generator.received(
            chat_of(body, messages, exchange.context.session or root), exchange, arrived_s
        )
        head, owner, key = received.head, owner_of(exchange), exchange.context.caller.key
        try:
            before = await self._store.get(head.id, owner)
        except StoreError as error:
            raise store_failure(error) from error
        if before is not None:
            response = stored_response(before).response
        else:
            document = ResponseDocument(body, head, received.model.defaults, is_stored=True)
            response = document.at_begin("queued")
            own_input = shown_items([placed.item for placed in own], number_of(head))
            job = BackgroundJob(
                id=head.id,
                owner=owner,
                key_digest=key.digest.hex() if key is not None else "",
                created_s=head.created_s,
                seed=received.seed,
                model=received.model.name,
                version=received.version,
                session=exchange.context.session,
                request_id=exchange.request_id,
                is_stream=bool(body.stream),
            )
            await self._begin(job, response, own_input, request.body)
        if body.stream:
            await self._send_events(exchange, head.id, -1)
        else:
            exchange.respond(200, orjson.dumps(response))

    async def replay(self, exchange: ApiExchange, response_id: str, after: int) -> None:
        """The events behind the one with the number `after`. Raises HttpError."""
        try:
            stored = await self._store.get(response_id, owner_of(exchange))
        except StoreError as error:
            raise store_failure(error) from error
        if stored is None:
            raise not_found("Response", response_id)
        if not stored.blob_bytes:
            message = "'stream' is only supported for responses that were created with 'background' and 'stream'."
            raise HttpError(400, message, param="stream", code="invalid_value")
        await self._send_events(exchange, response_id, after)

    async def cancel(self, response_id: str, owner: str) -> Json:
        """Ends a response, unless it has ended. Returns it. Raises HttpError 400, 404."""
        response = await self._store.cancel(response_id, owner)
        self._runner.look()
        return response

    async def end(self, response_id: str, owner: str) -> None:
        """A response was deleted. Raises HttpError 503."""
        try:
            await self._store.remove_job(response_id, owner)
        except StoreError as error:
            raise store_failure(error) from error
        self._runner.look()

    async def _begin(self, job: BackgroundJob, response: Json, own_input: list[Json], request: bytes) -> None:
        """Raises HttpError."""
        run = self._new_run(job)
        try:
            is_claimed = self._runner.has_room and await run.claim()
            stored = await self._store.begin(job, response, own_input, request, self._config)
        except StoreError as error:
            run.discard()
            run.close()
            raise store_failure(error) from error
        except HttpError:
            run.discard()
            run.close()
            raise
        except BaseException:  # it may be stored by now
            run.close()
            raise
        if is_claimed and self._runner.has_room:
            self._runner.begin(stored, run)
        else:
            run.close()

    async def _send_events(self, exchange: ApiExchange, response_id: str, after: int) -> None:
        replay = EventReplay(self._store, exchange, response_id, owner_of(exchange), after)
        try:
            await replay.send(self._ping_s)
        except StoreError as error:
            raise store_failure(error) from error

    def _run_of(self, stored: StoredObject) -> BackgroundRun:
        return self._new_run(BackgroundJob.of(stored))

    def _new_run(self, job: BackgroundJob) -> BackgroundRun:
        return BackgroundRun(self._store, self._generator, self._keys, job)
