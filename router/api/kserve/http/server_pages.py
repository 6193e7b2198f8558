"""What can be asked about the server and its models: health, metadata, configuration, statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import orjson

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.kserve.http.call_target import CallTarget
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.api.kserve.server_facts import EXTENSIONS, SERVER_VERSION, model_metadata
from slipstream.router.http.reader import Request
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_service import (
    BatchDurations,
    DurationCount,
    InferDurations,
    ModelStatistics,
    ResponseDurations,
)

NO_TYPE = "text/plain"  # of an empty body


class ServerPages:
    def __init__(self, server: KServeServer) -> None:
        self._service = server.service
        self._repository = server.repository
        self._metadata = orjson.dumps({"name": server.name, "version": SERVER_VERSION, "extensions": EXTENSIONS})

    async def live(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        exchange.respond(200, b"", NO_TYPE)

    async def ready(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        """Of the server, or of a model."""
        if not target.name:
            exchange.respond(200 if self._repository.is_server_ready() else 400, b"", NO_TYPE)
        elif self._service.is_ready(target.name, target.version):
            exchange.respond(200, b"", NO_TYPE)
        else:
            raise InferError("Model version not ready")

    async def metadata(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        exchange.respond(200, self._metadata)

    async def model(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        spec = self._service.spec_of(target.name, target.version)
        exchange.respond(200, orjson.dumps(model_metadata(spec)))

    async def config(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        exchange.respond(200, self._service.spec_of(target.name, target.version).config_json)

    async def stats(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        statistics = self._service.statistics(target.name, target.version)
        exchange.respond(200, orjson.dumps({"model_stats": [statistics_fields(one) for one in statistics]}))


def statistics_fields(statistics: ModelStatistics) -> dict[str, Any]:
    return {
        "name": statistics.name,
        "version": statistics.version,
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": durations_fields(statistics.durations),
        "response_stats": {number: durations_fields(one) for number, one in statistics.responses.items()},
        "batch_stats": list(batch_fields(statistics.by_batch_size.items())),
        "memory_usage": [],
    }


def batch_fields(sizes: Iterable[tuple[int, BatchDurations]]) -> Iterable[dict[str, Any]]:
    for size, durations in sorted(sizes, key=lambda item: item[0]):
        yield {"batch_size": size, **durations_fields(durations)}


def durations_fields(durations: InferDurations | BatchDurations | ResponseDurations) -> dict[str, DurationCount]:
    """orjson writes the counts as `{"count", "ns"}`."""
    return {field.name: getattr(durations, field.name) for field in fields(durations)}
