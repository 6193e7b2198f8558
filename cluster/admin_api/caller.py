"""Who calls the admin API, for the history."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from slipstream.cluster.fleet.author import Author

MAX_REASON_CHARS = 500


def author_of(
    request: Request,
    reason: Annotated[str, Query(max_length=MAX_REASON_CHARS, description="Why; it stands in the history.")] = "",
) -> Author:
    """The name of the token that was presented, and the reason that was given."""
    return Author(request.state.caller, reason)


Caller = Annotated[Author, Depends(author_of)]
