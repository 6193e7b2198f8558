"""Pages of a list of items, as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from slipstream.router.api.openai.body.shown import shown
from slipstream.router.http.http_error import HttpError

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
Json = dict[str, Any]


class ItemPage(NamedTuple):
    """Which part of a list is wanted: up to `limit` items behind the one with the id `after`."""

    limit: int = DEFAULT_LIMIT
    newest_first: bool = True
    after: str = ""

    @classmethod
    def of(cls, query: str) -> ItemPage:
        """Raises HttpError 400."""
        fields = dict(parse_qsl(query, keep_blank_values=True, errors="replace"))
        limit, order = fields.get("limit", str(DEFAULT_LIMIT)), fields.get("order", "desc")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= MAX_LIMIT and len(limit) < 4):
            message = f"Invalid value for 'limit': it must be from 1 to {MAX_LIMIT}, got {shown(limit)}."
            raise HttpError(400, message, param="limit", code="invalid_value")
        if order not in ("asc", "desc"):
            message = f"Invalid value for 'order': it must be 'asc' or 'desc', got {shown(order)}."
            raise HttpError(400, message, param="order", code="invalid_value")
        return cls(int(limit), order == "desc", fields.get("after", ""))


def item_page(items: Sequence[Json], wanted: ItemPage) -> Json:
    """The page of a list that is oldest first. Raises HttpError 400 if there is no item `after`."""
    ordered = list(reversed(items)) if wanted.newest_first else list(items)
    begin = 0
    if wanted.after:
        begin = next((index + 1 for index, item in enumerate(ordered) if item["id"] == wanted.after), 0)
        if not begin:
            raise no_such_item(wanted.after)
    page = ordered[begin : begin + wanted.limit]
    return list_json(page, has_more=begin + wanted.limit < len(ordered))


def list_json(page: Sequence[Json], has_more: bool) -> Json:
    ids = [item["id"] for item in page] or [""]
    return {"object": "list", "data": list(page), "first_id": ids[0], "last_id": ids[-1], "has_more": has_more}


def no_such_item(after: str) -> HttpError:
    message = f"Invalid value for 'after': the list has no item {shown(after)}."
    return HttpError(400, message, param="after", code="invalid_value")
