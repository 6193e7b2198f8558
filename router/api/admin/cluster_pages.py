"""The HTTP pages about the state of the cluster, as a whole or of one model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import orjson

from slipstream import __version__
from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.api.admin.request_pages import query_fields
from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.registry.worker_profile import RoleProfile
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.status import Snapshot

MODEL_FIELD = ("model",)  # of the query
MAX_NAMES = 20  # of models in an error
Json = dict[str, Any]


class ObservedService(Protocol):
    """What the pages need of `GenerationService`."""

    @property
    def models(self) -> tuple[str, ...]: ...
    def max_model_len_of(self, model: str) -> int | None: ...
    def snapshot_of(self, model: str) -> Snapshot: ...
    def worker_profiles_of(self, model: str) -> tuple[RoleProfile, ...]: ...
    def signals_of(self, model: str) -> Signals: ...


class UnreadyBecause(Protocol):
    """Why the cluster, or one of its models, is not ready; None: it is."""

    def __call__(self, model: str = "") -> str | None: ...


class ClusterPages:
    """With one model, `/cluster/status` has its fields; with several it has their sums, and those of each model below
    `models`. A repository of tensor models has its state below `repository`. The other pages are about one model, which
    the query names if there are several."""

    def __init__(self, service: ObservedService, unready_because: UnreadyBecause) -> None:
        self._service = service
        self._unready_because = unready_because
        self._repository: Callable[[], Json] | None = None

    def show_repository(self, status: Callable[[], Json]) -> None:
        """Shows what `status` returns from now on."""
        self._repository = status

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the pages."""
        routes.add("GET", "/cluster/status", self.status, query=MODEL_FIELD)
        routes.add("GET", "/cluster/profile", self.profile, query=MODEL_FIELD)
        routes.add("GET", "/cluster/signals", self.signals, query=MODEL_FIELD)

    async def status(self, request: Request, exchange: ApiExchange) -> None:
        """Queue, workers, credits and totals."""
        fields = query_fields(request, MODEL_FIELD)
        exchange.respond(200, as_json(self._status_of(self._asked(fields))) if fields else self.status_body())

    async def profile(self, request: Request, exchange: ApiExchange) -> None:
        """What has been measured of the workers, for `slipstream bench --profile`."""
        model = self._asked(query_fields(request, MODEL_FIELD))
        exchange.respond(200, orjson.dumps({"model": model, "roles": self._service.worker_profiles_of(model)}))

    async def signals(self, request: Request, exchange: ApiExchange) -> None:
        """The recent load and how well it was served: what the planner decides from."""
        model = self._asked(query_fields(request, MODEL_FIELD))
        exchange.respond(200, orjson.dumps(self._service.signals_of(model)))

    def status_body(self) -> bytes:
        """What `/cluster/status` answers, for `slipstream status`."""
        repository = {} if self._repository is None else {"repository": self._repository()}
        names = self._service.models
        if len(names) == 1:
            return as_json(self._status_of(names[0]) | repository)
        unready = self._unready_because()
        models = {name: self._status_of(name) for name in names}
        ready = {"ready": unready is None, "unready_because": unready}
        status = {**ready, **summed(models.values()), "slipstream": __version__, "models": models}
        return as_json(status | repository)

    def _status_of(self, model: str) -> Json:
        snapshot = self._service.snapshot_of(model)
        unready = self._unready_because(model)
        return {
            "model": model,
            "ready": unready is None,
            "unready_because": unready,
            "max_model_len": self._service.max_model_len_of(model),
            "num_waiting": snapshot.num_waiting,
            "num_running": snapshot.num_running,
            "num_requests_by_phase": snapshot.num_requests_by_phase,
            "queue_depth": snapshot.queue_depth,
            "longest_queues": snapshot.longest_queues,
            "workers": snapshot.workers,
            "versions": snapshot.versions,
            "slipstream": __version__,
            "refused_pairs": snapshot.refused_pairs,
            "drift": snapshot.drift,
            "closed_links": snapshot.closed_links,
            "totals": snapshot.totals,
        }

    def _asked(self, fields: Mapping[str, str]) -> str:
        """The model that the query names, or the only one. Raises HttpError 400 and 404."""
        names, asked = self._service.models, fields.get("model")
        if asked is None and len(names) == 1:
            return names[0]
        if asked in names:
            return asked
        shown = ", ".join(map(repr, names[:MAX_NAMES])) + (", ..." if len(names) > MAX_NAMES else "")
        if asked is None:
            raise HttpError(400, f"'model' is required: one of {shown}.", param="model", code="missing_parameter")
        message = f"There is no model {asked[:64]!r}; there are {shown or 'none'}."
        raise HttpError(404, message, param="model", code="model_not_found")


def summed(models: Iterable[Json]) -> Json:
    """The fields of a status that make sense for several models together."""
    sums: Json = {"num_waiting": 0, "num_running": 0}
    phases: Counter[str] = Counter()
    depth: Counter[int] = Counter()
    longest: Counter[str] = Counter()
    lists: dict[str, list[Any]] = {"workers": [], "refused_pairs": [], "drift": [], "closed_links": []}
    for model in models:
        for name in sums:
            sums[name] += model[name]
        phases.update(model["num_requests_by_phase"])
        depth.update(model["queue_depth"])
        longest.update(model["longest_queues"])
        for name, found in lists.items():
            found += model[name]
    return {**sums, "num_requests_by_phase": phases, "queue_depth": depth, "longest_queues": longest, **lists}


def as_json(status: Json) -> bytes:
    return orjson.dumps(status, default=PeerId._asdict, option=orjson.OPT_NON_STR_KEYS)
