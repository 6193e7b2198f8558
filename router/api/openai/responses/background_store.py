"""Responses in the background in the store.

kind                  id          body
response              resp_...    as of other responses, with the request until the response ends; pinned until then
background_response   resp_...    a `BackgroundJob`, as long as a process has to generate the response; pinned

Whether a response has ended is decided by its own object, which is not pinned then. So a cancellation and the end of
the generation cannot both happen. A response that is cancelled or deleted has no job, which ends its generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from slipstream.router.api.openai.responses.response_store import (
    RESPONSE,
    ResponseStore,
    is_unfinished,
    not_found,
    response_object,
    stored_response,
)
from slipstream.router.api.store_failure import store_failure
from slipstream.router.config.background_config import BackgroundConfig
from slipstream.router.http.failover.journal import Identity
from slipstream.router.http.http_error import HttpError
from slipstream.router.protocol.model_id import ModelId
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError
from slipstream.router.store.stored_object import StoredObject

JOB = "background_response"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """`key_digest`, in hexadecimal, is that of the key that it came with ("": there are no keys). `seed`, `model` and
    `version` are those of the answer's identity."""

    id: str
    owner: str
    key_digest: str
    created_s: int
    seed: int
    model: str
    version: str
    session: str
    request_id: str
    is_stream: bool

    @classmethod
    def of(cls, stored: StoredObject) -> BackgroundJob:
        return cls(**orjson.loads(stored.body))

    def stored(self) -> StoredObject:
        return StoredObject(JOB, self.id, self.owner, self.created_s, orjson.dumps(asdict(self)), is_pinned=True)

    @property
    def identity(self) -> Identity:
        number = int(self.id.partition("_")[2], 16)
        return Identity(number, self.created_s, self.seed, ModelId(self.model, self.version))


class BackgroundStore:
    """Methods raise StoreError, but for `begin` and `cancel`."""

    def __init__(self, store: ObjectStore, responses: ResponseStore) -> None:
        self.objects = store
        self._responses = responses

    async def get(self, response_id: str, owner: str) -> StoredObject | None:
        return await self.objects.get(RESPONSE, response_id, owner)

    async def has_job(self, response_id: str, owner: str) -> bool:
        return await self.objects.get(JOB, response_id, owner) is not None

    async def begin(
        self, job: BackgroundJob, response: Json, own_input: Sequence[Json], request: bytes, config: BackgroundConfig
    ) -> StoredObject:
        """Returns the job's object. Raises HttpError 429 if there are too many already, 507 if there is no room."""
        parent = response["previous_response_id"] or ""
        shown = response_object(orjson.dumps(response), own_input, job.owner, job.id, parent, job.created_s)
        body = b'%b,"request":%b}' % (shown.body[:-1], orjson.dumps(request.decode("utf-8", "replace")))
        shown = shown._replace(body=body, is_pinned=True, blob_bytes=int(job.is_stream))
        stored = job.stored()
        try:
            owners = [one.owner for one in await self.objects.pinned(JOB)]
            if len(owners) >= config.max_unfinished or owners.count(job.owner) >= config.max_tenant_unfinished:
                message = "Too many responses are queued or in progress in the background. Try again later."
                headers = (("retry-after", "10"),)
                raise HttpError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", headers=headers)
            await self.objects.put(shown, stored)
        except StoreError as error:
            raise store_failure(error) from error
        return stored

    async def note_progress(self, response_id: str, owner: str) -> None:
        """It is in progress from now on."""

        def begun(stored: StoredObject | None) -> StoredObject | None:
            if stored is None or not is_unfinished(stored):
                return None
            body = orjson.loads(stored.body)
            if body["response"]["status"] == "in_progress":
                return None
            body["response"]["status"] = "in_progress"
            return stored._replace(body=orjson.dumps(body))

        await self.objects.change(RESPONSE, response_id, owner, begun)

    async def fail(self, response_id: str, owner: str, error: Json) -> None:
        """It ends without an answer. `error` has OpenAI's `code` and `message`."""

        def failed(stored: StoredObject | None) -> StoredObject | None:
            return None if stored is None else self._ended(stored, {"status": "failed", "error": error})

        await self.objects.change(RESPONSE, response_id, owner, failed)

    async def cancel(self, response_id: str, owner: str) -> Json:
        """Ends it, unless it has ended already. Returns the response. Raises HttpError 404, and 400 if it is not one in
        the background."""

        def cancelled(stored: StoredObject | None) -> StoredObject | None:
            return None if stored is None else self._ended(stored, {"status": "cancelled"})

        try:
            stored = await self.objects.change(RESPONSE, response_id, owner, cancelled)
            if stored is None:
                raise not_found("Response", response_id)
            response = stored_response(stored).response
            if not response["background"]:
                message = "Cannot cancel a synchronous response: close the connection to end it."
                raise HttpError(400, message, param="response_id", code="invalid_value")
            await self.remove_job(response_id, owner)
        except StoreError as error:
            raise store_failure(error) from error
        return response

    async def remove_job(self, response_id: str, owner: str) -> None:
        await self.objects.delete(JOB, response_id, owner)

    def _ended(self, stored: StoredObject, changes: Json) -> StoredObject | None:
        if not is_unfinished(stored):
            return None
        body = orjson.loads(stored.body)
        response = body["response"] | changes
        own = orjson.dumps({"response": response, "input": body["input"]})
        (sized,) = self._responses.with_events(stored._replace(body=own, is_pinned=False, expires_s=None))
        return sized
