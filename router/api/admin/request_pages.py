"""The HTTP pages about requests: a list of the latest, and the full explanation of one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Protocol
from urllib.parse import parse_qsl

import orjson

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.http.exchange import JSON
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.infer.requests.request_record import InferHistory
from slipstream.router.observability.explain.explain import (
    OUTCOMES,
    PHASES,
    Json,
    explanation,
    outcome,
    summary,
    unix_offset_s,
)
from slipstream.router.observability.explain.explain_infer import (
    infer_explanation,
    infer_listing,
    infer_summary,
    infer_text,
    phase_of,
)
from slipstream.router.observability.explain.explain_table import listing, table
from slipstream.router.requests.history import RequestRecord

TEXT = "text/plain; charset=utf-8"
DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
LIST_FIELDS = ("limit", "tenant", "outcome", "format", "model", "kind")  # of the query
EXPLAIN_FIELDS = ("format",)


class RequestHistory(Protocol):
    """What the pages need of `History`."""

    def get(self, request_id: str) -> RequestRecord | None: ...
    def latest(self) -> Iterable[RequestRecord]: ...


class RequestPages:
    """Answers in JSON, or as a table if `?format=text` or the Accept header asks for plain text."""

    def __init__(self, records: RequestHistory) -> None:
        self._records = records
        self._tensor_requests = InferHistory(0)

    def show_tensor_requests(self, history: InferHistory) -> None:
        """Shows requests to tensor models as well."""
        self._tensor_requests = history

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the pages."""
        routes.add("GET", "/v1/requests", self.list, query=LIST_FIELDS)
        routes.add_item("GET", "/v1/requests/", "/explain", self.explain, query=EXPLAIN_FIELDS)

    async def list(self, request: Request, exchange: ApiExchange) -> None:
        """The latest requests, newest first; `limit`, `tenant`, `model` and `outcome` (or phase) select among them.
        `kind=infer` lists those to tensor models."""
        fields = query_fields(request, LIST_FIELDS)
        if is_infer(fields.get("kind")):
            self._list_tensor_requests(request, exchange, fields)
            return
        limit = limit_of(fields.get("limit", str(DEFAULT_LIMIT)))
        tenant, model, wanted = fields.get("tenant"), fields.get("model"), outcome_of(fields.get("outcome"))
        records = (
            record
            for record in self._records.latest()
            if exchange.context.caller.may_see(record.tenant)
            and tenant in (None, record.tenant)
            and model in (None, record.model)
            and wanted in (None, outcome(record.finish), record.phase)
        )
        offset_s = unix_offset_s()
        explained = [summary(record, offset_s) for record in islice(records, limit)]
        if wants_text(request, fields):
            exchange.respond(200, listing(explained).encode(), TEXT)
        else:
            exchange.respond(200, orjson.dumps({"object": "list", "data": explained}), JSON)

    def _list_tensor_requests(self, request: Request, exchange: ApiExchange, fields: dict[str, str]) -> None:
        limit, tenant, model = (
            limit_of(fields.get("limit", str(DEFAULT_LIMIT))),
            fields.get("tenant"),
            fields.get("model"),
        )
        offset_s, wanted = unix_offset_s(), fields.get("outcome")
        entries = (
            infer_summary(record, offset_s)
            for record in self._tensor_requests.latest()
            if exchange.context.caller.may_see(record.tenant)
            and tenant in (None, record.tenant)
            and model in (None, record.model)
            and wanted in (None, record.outcome, phase_of(record))
        )
        found = list(islice(entries, limit))
        respond(exchange, infer_listing(found) if wants_text(request, fields) else {"object": "list", "data": found})

    async def explain(self, request: Request, exchange: ApiExchange, request_id: str) -> None:
        """The way one request took through the cluster, and why."""
        as_text = wants_text(request, query_fields(request, EXPLAIN_FIELDS))
        record = self._records.get(request_id)
        may_see = exchange.context.caller.may_see
        if record is not None and not may_see(record.tenant):
            # Another tenant may have used the same X-Request-Id since.
            same = (found for found in self._records.latest() if request_id in found.names and may_see(found.tenant))
            record = next(same, None)
        tensor_request = self._tensor_requests.find(request_id, may_see) if record is None else None
        if tensor_request is not None:
            entry = infer_explanation(tensor_request, unix_offset_s())
            respond(exchange, infer_text(entry) if as_text else entry)
            return
        if record is None:
            message = (
                f"There is no record of request {request_id!r}: it never arrived here, or later requests have "
                "displaced its record."
            )
            raise HttpError(404, message, param="id", code="request_not_found")
        explained = explanation(record, unix_offset_s())
        if as_text:
            exchange.respond(200, table(explained).encode(), TEXT)
        else:
            exchange.respond(200, orjson.dumps(explained), JSON)


def respond(exchange: ApiExchange, answer: str | Json) -> None:
    if isinstance(answer, str):
        exchange.respond(200, answer.encode(), TEXT)
    else:
        exchange.respond(200, orjson.dumps(answer), JSON)


def is_infer(kind: str | None) -> bool:
    """Whether the requests to tensor models are asked for. Raises HttpError 400."""
    if kind in (None, "generate", "infer"):
        return kind == "infer"
    message = f"'kind' is generate or infer, not {kind[:64]!r}."
    raise HttpError(400, message, param="kind", code="invalid_value")


def wants_text(request: Request, fields: dict[str, str]) -> bool:
    """Whether the client wants text rather than JSON. Raises HttpError 400 for an unknown format."""
    form = fields.get("format")
    if form is None:
        return request.headers.get(b"accept", b"").strip().lower().startswith(b"text/plain")
    if form not in ("json", "text"):
        raise HttpError(400, f"'format' is json or text, not {form[:64]!r}.", param="format", code="invalid_value")
    return form == "text"


def query_fields(request: Request, known: tuple[str, ...]) -> dict[str, str]:
    """The fields of the query. Raises HttpError 400 that names a field that is unknown or occurs twice."""
    fields = dict(parse_qsl(request.query, keep_blank_values=True, errors="replace"))
    for name in fields:
        if name not in known:
            message = f"Unrecognized query parameter: {name[:64]!r}; known are {', '.join(known)}."
            raise HttpError(400, message, param=name[:64], code="unknown_parameter")
    return fields


def outcome_of(text: str | None) -> str | None:
    """An outcome or a phase to select by. Raises HttpError 400: a list for a misspelt one would be empty, as if all
    were well."""
    if text is None or text in OUTCOMES or text in PHASES:
        return text
    known = ", ".join((*OUTCOMES, *PHASES))
    message = f"'outcome' must be one of {known}; got {text[:64]!r}."
    raise HttpError(400, message, param="outcome", code="invalid_value")


def limit_of(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= MAX_LIMIT:
        return int(text)
    raise HttpError(400, f"'limit' must be 1 to {MAX_LIMIT}, got {text[:64]!r}.", param="limit", code="invalid_value")
