"""A model of a server within a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import orjson

from slipstream.cluster.in_process.interface.errors import errors_of_server
from slipstream.cluster.in_process.interface.kinds import ModelBatchFlag, ModelTxnPropertyFlag
from slipstream.cluster.in_process.requests.infer_request import ANY_VERSION, InferenceRequest
from slipstream.cluster.in_process.requests.response_iterators import AsyncResponseIterator, ResponseIterator
from slipstream.cluster.in_process.running.running_server import ServerHandle
from slipstream.router.api.kserve.http.server_pages import statistics_fields
from slipstream.router.api.kserve.server_facts import model_metadata
from slipstream.router.tensors.infer_service import InferService
from slipstream.router.tensors.model_spec import ModelSpec

T = TypeVar("T")


class Model:
    """A version of a model, or with the version -1 whichever is the highest that is ready. `Server.model` makes them;
    whether there is such a model shows when it is used. `state` and `reason` are those of the index when it was made
    from there. Methods raise TritonError."""

    def __init__(
        self,
        server: ServerHandle,
        name: str,
        version: int = ANY_VERSION,
        state: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Raises InvalidArgumentError if the server is not started."""
        _ = server.running  # raises
        self._server = server
        self.name = name
        self.version = version
        self.state = state
        self.reason = reason

    def of_version(self, version: int) -> Model:
        """Also while the server stops."""
        if version == self.version:
            return self
        found = copy(self)
        found.version, found.state, found.reason = version, None, None
        return found

    def create_request(self, **kwargs: Any) -> InferenceRequest:
        """A request to this model; `kwargs` are the fields of InferenceRequest."""
        kwargs.pop("model", None)
        return InferenceRequest(model=self, **kwargs)

    def infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **kwargs: Any
    ) -> ResponseIterator:
        """Submits a request, or the one with the fields `kwargs`, and returns an iterator over its responses, which
        come while the program goes on. Raises TritonError if the request is wrong."""
        request = inference_request or InferenceRequest(model=self, **kwargs)
        return ResponseIterator(request, self._server.running.thread, self._service, raises_errors=raise_on_error)

    def async_infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **kwargs: Any
    ) -> AsyncResponseIterator:
        """The same for an event loop of the program: an asynchronous iterator."""
        request = inference_request or InferenceRequest(model=self, **kwargs)
        return AsyncResponseIterator(request, self._server.running.thread, self._service, raises_errors=raise_on_error)

    def metadata(self) -> dict[str, Any]:
        """Name, versions, platform, inputs and outputs."""
        return model_metadata(self._spec())

    def config(self, config_version: int = 1) -> dict[str, Any]:
        """The complete configuration."""
        fields: dict[str, Any] = orjson.loads(self._spec().config_json)
        return fields

    def ready(self) -> bool:
        """Whether it takes requests."""
        return self._call(lambda: self._service.is_ready(self.name, self._version))

    def batch_properties(self) -> ModelBatchFlag:
        return ModelBatchFlag.FIRST_DIM if self._spec().max_batch_size else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        return ModelTxnPropertyFlag.DECOUPLED if self._spec().is_decoupled else ModelTxnPropertyFlag.ONE_TO_ONE

    def statistics(self) -> dict[str, Any]:
        """As the statistics extension has them: of all its versions, or of this one."""

        def fields() -> bytes:
            found = self._service.statistics(self.name, self._version)
            return orjson.dumps({"model_stats": [statistics_fields(one) for one in found]})

        shown: dict[str, Any] = json.loads(self._call(fields))
        return shown

    def __repr__(self) -> str:
        return str({"name": self.name, "version": self.version, "state": self.state})

    @property
    def _service(self) -> InferService:
        return self._server.running.service

    @property
    def _version(self) -> str:
        return "" if self.version == ANY_VERSION else str(self.version)

    def _spec(self) -> ModelSpec:
        return self._call(lambda: self._service.spec_of(self.name, self._version))

    def _call(self, function: Callable[[], T]) -> T:
        with errors_of_server():
            return self._server.running.thread.call(function)
