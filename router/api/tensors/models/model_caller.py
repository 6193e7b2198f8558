"""Calls of a tensor model by an endpoint, on behalf of one HTTP request."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.kserve.response_waiter import ResponseWaiter, release
from slipstream.router.api.kserve.tensor_places import TensorPlaces
from slipstream.router.api.tensors.models.endpoint_errors import endpoint_error, misconfigured
from slipstream.router.api.tensors.models.tensor_arrays import Array, array_of, tensor_of
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import (
    InferRequest,
    InferResponse,
    ParameterValue,
    RequestedOutput,
    RequestTokens,
)
from slipstream.router.tensors.infer_service import InferService
from slipstream.router.tensors.model_spec import ModelSpec

MAX_CALLS = 8  # of one HTTP request that are under way at a time
NO_PARAMETERS: Mapping[str, ParameterValue] = {}

T = TypeVar("T")


@dataclass(slots=True)
class ModelCaller:
    """`endpoint` is the name that errors have. Every call is a tensor request with the tenant, the id and the trace of
    the HTTP request, so that a split of the model's versions gives all of them the same one; `version` "" leaves it the
    choice. Their own ids are the HTTP request's with a number behind, but for the first. `tokens` has what language
    models use for them. So many run at a time as `MAX_CALLS` says. All methods raise HttpError."""

    service: InferService
    pool: RegionPool | None
    endpoint: str
    spec: ModelSpec
    version: str
    exchange: ApiExchange
    tokens: RequestTokens
    num_calls: int = 0
    _running: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CALLS))

    async def infer(
        self,
        inputs: Mapping[str, Array],
        wanted: Sequence[str],
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
    ) -> dict[str, Array]:
        """The outputs of the model, which gives one response."""
        async with contextlib.aclosing(self.stream(inputs, wanted, parameters)) as responses:
            answers = [answer async for answer in responses]
        if len(answers) != 1:
            raise misconfigured(self.endpoint, f"the model gave {len(answers)} responses, and one is expected")
        missing = [name for name in wanted if name not in answers[0]]
        if missing:
            raise misconfigured(self.endpoint, f"the model gave no output {missing[0]!r}")
        return answers[0]

    async def stream(
        self,
        inputs: Mapping[str, Array],
        wanted: Sequence[str],
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
    ) -> AsyncGenerator[dict[str, Array], None]:
        """The outputs of each response, as they come. A request whose answer is not read to the end is cancelled."""
        async with self._running:
            waiter = ResponseWaiter()
            try:
                waiter.submit(self._request(inputs, wanted, parameters), self.service)
                while (response := await waiter.next()) is not None:
                    yield outputs_of(response)
            except InferError as error:
                raise endpoint_error(error, self.endpoint) from error
            finally:
                waiter.close()

    def _request(
        self, inputs: Mapping[str, Array], wanted: Sequence[str], parameters: Mapping[str, ParameterValue]
    ) -> InferRequest:
        spec, context = self.spec, self.exchange.context
        datatypes = {tensor.name: tensor.datatype for tensor in spec.inputs}
        places = TensorPlaces(self.pool)
        try:
            tensors = [tensor_of(name, datatypes[name], array, places) for name, array in inputs.items()]
        except BaseException:
            places.release()
            raise
        self.num_calls += 1
        request_id = self.exchange.request_id
        return InferRequest(
            spec.name,
            self.version,
            id=f"{request_id}-{self.num_calls}" if self.num_calls > 1 else "",
            inputs=tensors,
            requested=tuple(map(RequestedOutput, wanted)),
            parameters=dict(parameters),
            tenant=context.caller.tenant(""),
            request_id=request_id,
            trace_id=context.trace_id,
            received_s=time.monotonic(),
            release=places.release if places.holds_memory else None,
            tokens=self.tokens,
        )


def outputs_of(response: InferResponse) -> dict[str, Array]:
    """Raises InferError if the response has one."""
    try:
        if response.error is not None:
            raise response.error
        return {output.name: array_of(output) for output in response.outputs}
    finally:
        release(response)


async def all_of(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of calls that run side by side. The first failure cancels the others."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
