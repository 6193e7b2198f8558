"""The admin API's call that shows the history of the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from slipstream.cluster.history.change_log import ChangeFilter, ChangeLog

MAX_LIMIT = 10_000


def history_routes(changes: ChangeLog) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["history"])

    @routes.get("/history", summary="Every change: who, when, old, new and why; the oldest first")
    async def latest(
        last: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many of the latest.")] = 100,
        after: Annotated[int, Query(ge=0, description="Only those after the change with this number.")] = 0,
        since: Annotated[float, Query(ge=0, description="Only those since then, in seconds since the epoch.")] = 0.0,
        model: Annotated[str | None, Query(description="Only those of this model, and of all models.")] = None,
    ) -> dict[str, Any]:
        found = await asyncio.to_thread(changes.latest, last, ChangeFilter(after, since, model))
        return {"changes": [asdict(change) for change in found]}

    return routes
