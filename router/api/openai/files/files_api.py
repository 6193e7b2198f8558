"""OpenAI's endpoints of files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import orjson

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.openai.files.file_limits import (
    MAX_EXPIRY_S,
    MAX_NAME_CHARS,
    MIN_EXPIRY_S,
    NO_MODEL,
    no_file,
)
from slipstream.router.api.openai.files.file_object import KIND, FileFacts, new_file, shown
from slipstream.router.api.openai.files.multipart import FormPart, parse_form
from slipstream.router.api.page_query import PAGE_FIELDS, PageQuery, invalid, list_json, query_fields
from slipstream.router.api.store_failure import store_failure
from slipstream.router.http.http_error import HttpError, router_restarted
from slipstream.router.http.reader import Request
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError
from slipstream.router.store.stored_object import Page, StoredObject

PATH = "/v1/files"
MAX_FILES = 10_000  # of a page
WHOLE_BYTES = 256 * 1024  # of a file that is sent as one answer; a larger one is sent in parts of this size
BINARY = "application/octet-stream"


class FilesApi:
    """Every caller sees the files of its tenant."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        routes.add("POST", PATH, self.upload)
        routes.add("GET", PATH, self.list, query=("purpose", *PAGE_FIELDS))
        routes.add_item("GET", f"{PATH}/", "/content", self.content)
        routes.add_item("GET", f"{PATH}/", "", self.retrieve)
        routes.add_item("DELETE", f"{PATH}/", "", self.delete)

    async def upload(self, request: Request, exchange: ApiExchange) -> None:
        """Keeps a file. If the router is killed meanwhile, the next one finds it under the same id."""
        context = exchange.context
        owner = context.caller.tenant("")
        try:
            form = await self._store.in_files(
                "parse", lambda: parse_form(request.body, request.headers.get(b"content-type", b""))
            )
            identity = context.checkpoint.identity(NO_MODEL)
            file_id = f"file-{identity.number:032x}"
            stored = await self._store.get(KIND, file_id, owner)
            if stored is None:
                file, facts = _described(form)
                expires_s = _expiry(form, identity.created_s) or self._store.expiry_of(identity.created_s)
                new = new_file(file_id, owner, identity.created_s, facts, expires_s)
                stored = await self._store.put_blob(new, [file.data])
        except StoreError as error:
            raise store_failure(error) from error
        exchange.respond(200, orjson.dumps(shown(stored)))

    async def list(self, request: Request, exchange: ApiExchange) -> None:
        """The files of the caller's tenant, the newest first."""
        query = PageQuery.of(request, limit=MAX_FILES, most=MAX_FILES)
        purpose = query_fields(request).get("purpose")
        try:
            page = await self._store.page(
                KIND,
                exchange.context.caller.tenant(""),
                after=query.after,
                limit=query.limit,
                newest_first=query.newest_first,
                having=None if purpose is None else ("purpose", purpose),
            )
            if page is None:
                raise query.unknown_after()
            body = await self._store.in_files("list", partial(list_body, page))
        except StoreError as error:
            raise store_failure(error) from error
        exchange.respond(200, body)

    async def retrieve(self, request: Request, exchange: ApiExchange, file_id: str) -> None:
        """What is known of a file."""
        exchange.respond(200, orjson.dumps(shown(await self._found(exchange, file_id))))

    async def content(self, request: Request, exchange: ApiExchange, file_id: str) -> None:
        """The bytes of a file."""
        stored = await self._found(exchange, file_id)
        if exchange.head_sent:  # by a router that was killed; it is not known how far it came
            raise router_restarted("The router was killed while it sent the file.")
        path = self._store.blobs.path(stored.id)
        try:
            if stored.blob_bytes <= WHOLE_BYTES:
                exchange.respond(200, await self._store.in_files("read", path.read_bytes), BINARY)
                return
            await self._send_parts(exchange, path)
        except (OSError, StoreError) as error:
            if isinstance(error, StoreError):
                raise store_failure(error) from error
            raise store_failure(StoreError(f"the content of {stored.id} is gone: {error.strerror}")) from error

    async def _send_parts(self, exchange: ApiExchange, path: Path) -> None:
        file = await self._store.in_files("read", lambda: path.open("rb"))
        with file:
            exchange.start(200, BINARY)
            while part := await self._store.in_files("read", lambda: file.read(WHOLE_BYTES)):
                exchange.write(part)
                await exchange.drain()
            exchange.finish()

    async def delete(self, request: Request, exchange: ApiExchange, file_id: str) -> None:
        """Removes a file."""
        try:
            was_there = await self._store.delete(KIND, file_id, exchange.context.caller.tenant(""))
        except StoreError as error:
            raise store_failure(error) from error
        if not was_there:
            raise no_file(file_id)
        exchange.respond(200, orjson.dumps({"id": file_id, "object": "file", "deleted": True}))

    async def _found(self, exchange: ApiExchange, file_id: str) -> StoredObject:
        """Raises HttpError 404, 503."""
        try:
            stored = await self._store.get(KIND, file_id, exchange.context.caller.tenant(""))
        except StoreError as error:
            raise store_failure(error) from error
        if stored is None:
            raise no_file(file_id)
        return stored


def list_body(page: Page) -> bytes:
    return orjson.dumps(list_json([shown(one) for one in page.objects], page.has_more))


def _described(form: Mapping[str, FormPart]) -> tuple[FormPart, FileFacts]:
    """Raises HttpError 400."""
    for name in ("file", "purpose"):
        if name not in form:
            raise HttpError(400, f"'{name}' is missing.", param=name, code="missing_required_parameter")
    file, purpose = form["file"], form["purpose"].text()
    if purpose != "batch":
        raise invalid("purpose", f"must be batch, the only purpose that is served, got {purpose[:64]!r}")
    if file.filename is None:
        raise invalid("file", "must be a file, with a name")
    return file, FileFacts(Path(file.filename).name[:MAX_NAME_CHARS], "batch")


def _expiry(form: Mapping[str, FormPart], created_s: int) -> float | None:
    """When the file expires, in seconds since the epoch. Raises HttpError 400."""
    if "expires_after[anchor]" not in form and "expires_after[seconds]" not in form:
        return None
    anchor = form["expires_after[anchor]"].text() if "expires_after[anchor]" in form else "created_at"
    seconds = form["expires_after[seconds]"].text() if "expires_after[seconds]" in form else ""
    if anchor != "created_at":
        raise invalid("expires_after[anchor]", f"must be created_at, got {anchor[:64]!r}")
    if not (seconds.isascii() and seconds.isdigit() and MIN_EXPIRY_S <= int(seconds[:12]) <= MAX_EXPIRY_S):
        limits = f"must be a whole number from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}"
        raise invalid("expires_after[seconds]", f"{limits}, got {seconds[:64]!r}")
    return created_s + float(seconds)
