"""Pages of a list of items, as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.router.api.page_query import PageQuery, list_json
from slipstream.router.http.reader import Request

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
Json = dict[str, Any]


def wanted_items(request: Request) -> PageQuery:
    """Raises HttpError 400."""
    return PageQuery.of(request, limit=DEFAULT_LIMIT, most=MAX_LIMIT)


def item_page(items: Sequence[Json], wanted: PageQuery) -> Json:
    """The page of a list that is oldest first. Raises HttpError 400 if there is no item `after`."""
    ordered = list(reversed(items)) if wanted.newest_first else list(items)
    begin = 0
    if wanted.after:
        begin = next((index + 1 for index, item in enumerate(ordered) if item["id"] == wanted.after), 0)
        if not begin:
            raise wanted.unknown_after()
    page = ordered[begin : begin + wanted.limit]
    return list_json(page, has_more=begin + wanted.limit < len(ordered))
