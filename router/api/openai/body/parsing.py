"""Parses request bodies into checked objects, and translates their mistakes to OpenAI's errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.openai.body.unknown_fields import HEADER, UnknownFields
from slipstream.router.api.openai.schema.fields import UNION_TAGS
from slipstream.router.api.openai.schema.shown import shown
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.observability.front_counts import FieldCounts

log = logging.getLogger(__name__)

JSON = b"application/json"
MAX_PARAM_CHARS = 256  # the name may be anything that a client made up
MAX_IGNORED = 4096  # unknown fields; a body with more would be parsed twice for nothing
MAX_COMPLAINTS = 256  # pydantic words all of them or none, and a body may have a million unknown fields

SMALL_BODY_BYTES = 64 << 10  # however it is made up, it is parsed in a few milliseconds
MIN_MAX_VALUES = 1 << 18
VALUE_SIGNS = b",[{"  # one for each value, at least
VALUES_PER_TOKEN = 4  # a token of text may stand for so many brackets and commas, seldom for more

Body = TypeVar("Body", bound=BaseModel)


def max_values(max_model_len: int | None) -> int:
    """The most commas and brackets that the body of a prompt that fits the model can have, be it text or token ids."""
    return max(MIN_MAX_VALUES, VALUES_PER_TOKEN * (max_model_len or 0))


class BodyParser:
    """Parses the bodies of requests. With `ignores`, unknown fields are not errors: they are named in the header
    `x-slipstream-ignored`, in the log at level DEBUG, and counted in `ignored`. `max_model_len` is asked only for large
    bodies: it is that of the model with the longest context, as a body says which model it is for only once it is
    parsed."""

    def __init__(self, ignores: bool, ignored: FieldCounts, max_model_len: Callable[[], int | None]) -> None:
        self._ignores = ignores
        self._ignored = ignored
        self._max_model_len = max_model_len

    def parse(self, request: Request, exchange: ApiExchange, model: type[Body]) -> Body:
        """Like `parse_body`, of a request that is answered by `exchange`."""
        check_body(request, self._max_model_len)
        try:
            return model.model_validate_json(request.body)
        except ValidationError as error:
            if not self._ignores or error.error_count() > MAX_IGNORED:
                raise as_http_error(error) from None
        # Only bodies with unknown or wrong fields are parsed twice. The second time says which are unknown.
        try:
            body = model.model_validate_json(request.body, extra="allow")
        except ValidationError as error:
            raise as_http_error(error) from None
        found = UnknownFields(body)
        exchange.add_header(HEADER, found.header)
        log.debug("%s: ignored unknown fields: %s", exchange.request_id, found.header)
        for name in found.names:
            self._ignored.add(name)
        return body


def parse_body(request: Request, model: type[Body], max_model_len: Callable[[], int | None] = lambda: None) -> Body:
    """Parses and checks a body. Raises HttpError 400, which names the first bad field (none if there are very many),
    and those of `check_body`."""
    check_body(request, max_model_len)
    try:
        return model.model_validate_json(request.body)
    except ValidationError as error:
        raise as_http_error(error) from None


def check_body(request: Request, max_model_len: Callable[[], int | None]) -> None:
    """Raises HttpError 413 if the body has more commas and brackets than `max_values`; 415 if its content type is not
    JSON.

    Parsing holds up the event loop, and its time depends on the number of values: a text of 16 MiB is parsed in 10 ms,
    but a list of empty lists of that size takes seconds.
    """
    content_type = request.headers.get(b"content-type", JSON)
    if content_type != JSON and content_type.partition(b";")[0].strip().lower() != JSON:
        raise HttpError(
            415,
            f"The body must be application/json, not {content_type.decode('latin-1')}.",
            param="Content-Type",
            code="unsupported_media_type",
        )
    body = request.body
    if len(body) > SMALL_BODY_BYTES:
        most_values = max_values(max_model_len())
        if len(body) <= most_values:
            return  # counting takes longer than parsing the messages of a long conversation
        num_values = len(body) - len(body.translate(None, VALUE_SIGNS))
        if num_values > most_values:
            message = f"The body has {num_values} commas and brackets; for this model there may be {most_values}."
            raise HttpError(413, message, code="body_too_large")


def as_http_error(error: ValidationError) -> HttpError:
    """The first complaint about a body; if there are very many, only their number. A field that is not served comes
    before one that is missing, which it may stand for."""
    if error.error_count() > MAX_COMPLAINTS:
        message = f"The body has {error.error_count()} unknown or invalid fields."
        return HttpError(400, message, code="invalid_value")
    complaints = error.errors(include_url=False)
    first = complaints[0]
    if first["type"] == "missing":
        first = next((other for other in complaints if other["type"] == "unsupported"), first)
    return explain(first)


def explain(error: ErrorDetails) -> HttpError:
    """One complaint of the validator as an OpenAI error."""
    kind = error["type"]
    if kind == "json_invalid":
        return HttpError(400, f"The body is not valid JSON: {error['ctx']['error']}.", code="invalid_json")
    path = [str(part) for part in error["loc"] if part not in UNION_TAGS]
    if kind == "extra_forbidden" and error["loc"][-1] in UNION_TAGS:
        path.append(str(error["loc"][-1]))  # a client has a field of that name
    message = error["msg"]
    if kind in ("field", "unsupported"):
        context = error["ctx"]
        path += [context["field"]] if context["field"] else []
        message = context["message"]
    if not path:
        return HttpError(400, "The body must be a JSON object.", code="invalid_type")
    param = ".".join(path)[:MAX_PARAM_CHARS]
    if not param.isprintable():
        param = repr(param)[1:-1]
    if kind == "extra_forbidden":
        return HttpError(400, f"Unrecognized request argument supplied: {param}", param=param, code="unknown_parameter")
    if kind == "missing":
        return HttpError(400, f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    if kind == "unsupported":
        return HttpError(400, f"'{param}': {message}.", param=param, code="unsupported_parameter")
    if kind == "field":
        return HttpError(400, f"'{param}' {message}.", param=param, code="invalid_value")
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    got = shown(error["input"])
    return HttpError(400, f"Invalid value for '{param}': {message}, got {got}.", param=param, code=code)
