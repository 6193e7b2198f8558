"""The query of a list that is given out by pages: `after`, `limit`, `order`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request

PAGE_FIELDS = ("after", "limit", "order")
MAX_SHOWN = 64  # characters of a bad value


@dataclass(frozen=True, slots=True)
class PageQuery:
    """At most `limit` objects behind the one with the id `after` ("": from the beginning of the list)."""

    after: str
    limit: int
    newest_first: bool

    @classmethod
    def of(cls, request: Request, *, limit: int, most: int) -> PageQuery:
        """`limit` is the default. Raises HttpError 400."""
        fields = query_fields(request)
        given, order = fields.get("limit", str(limit)), fields.get("order", "desc")
        if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= most):
            raise invalid("limit", f"must be a whole number from 1 to {most}, got {given[:MAX_SHOWN]!r}")
        if order not in ("asc", "desc"):
            raise invalid("order", f"must be asc or desc, got {order[:MAX_SHOWN]!r}")
        return cls(fields.get("after", ""), int(given), order == "desc")

    def unknown_after(self) -> HttpError:
        """For an `after` that is not in the list."""
        return invalid("after", f"names nothing of this list, got {self.after[:MAX_SHOWN]!r}")


def list_json(objects: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """OpenAI's form of a page; its schema wants texts as ids, also of an empty one."""
    first, last = (objects[0]["id"], objects[-1]["id"]) if objects else ("", "")
    return {"object": "list", "data": list(objects), "first_id": first, "last_id": last, "has_more": has_more}


def query_fields(request: Request) -> dict[str, str]:
    """The fields of a query; of repeated ones the last."""
    try:
        return dict(parse_qsl(request.query, keep_blank_values=True, max_num_fields=64))
    except ValueError as error:
        raise HttpError(400, f"The query cannot be read: {error}.", code="invalid_value") from None


def invalid(field: str, sentence: str) -> HttpError:
    return HttpError(400, f"'{field}' {sentence}.", param=field, code="invalid_value")
