"""The operators' HTTP calls about a router's workers, for routers that run without a supervisor."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import unquote

import orjson
from pydantic import BaseModel, ConfigDict

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.openai.body.parsing import parse_body
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.protocol.messages import Role


class DrainableWorkers(Protocol):
    """What the pages need of `WorkerPort`."""

    def drain(self, name: str, next_role: Role | None = None, migrate: bool = True) -> bool: ...


class DrainBody(BaseModel):
    """`next_role` None: the worker exits when it is empty. With `migrate`, its running sequences move to others."""

    model_config = ConfigDict(extra="forbid", strict=True)

    next_role: Role | None = None
    migrate: bool = True


class WorkerPages:
    """In a cluster with a supervisor, use `slipstream drain` instead: the supervisor would restart a worker that
    ends."""

    def __init__(self, workers: DrainableWorkers) -> None:
        self._workers = workers

    def add_to(self, routes: ApiRoutes) -> None:
        routes.add_item("POST", "/cluster/workers/", "/drain", self.drain, body=DrainBody)

    async def drain(self, request: Request, exchange: ApiExchange, item: str) -> None:
        """Starts to empty a worker and answers 202. The worker's connection ends when it is empty."""
        exchange.refuse_if_repeated()
        body = parse_body(request, DrainBody) if request.body else DrainBody()
        name = unquote(item)
        if not self._workers.drain(name, body.next_role, body.migrate):
            raise HttpError(404, f"No worker {name!r} is connected.", param="name", code="worker_not_found")
        exchange.respond(202, orjson.dumps({"name": name, "next_role": body.next_role, "draining": True}))
