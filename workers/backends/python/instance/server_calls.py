"""The server, as the model in this process sees it: what its API calls goes to the router from here."""

from __future__ import annotations

import os
import sys
from threading import Lock
from typing import TYPE_CHECKING, Any

from slipstream.workers.backends.python.instance.model_calls import OpenCall, OutgoingCalls
from slipstream.workers.backends.python.instance.wire.frames import encode_head
from slipstream.workers.backends.python.instance.wire.router_link import InstanceRouterLink
from slipstream.workers.backends.python.model_api.infer_request import InferenceRequest
from slipstream.workers.backends.python.model_api.infer_response import InferenceResponse
from slipstream.workers.backends.python.model_api.metrics import families_as_dicts
from slipstream.workers.backends.python.model_api.response_iterator import ResponseIterator
from slipstream.workers.backends.python.model_api.server_link import PROCESS
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException

if TYPE_CHECKING:
    from asyncio import Future

    from slipstream.workers.backends.python.instance.loop_calls import LoopCalls


FEW_METRICS = 32  # families with more go once an execution, not with each change


class CallResponses:
    """The source of an iterator over the responses of a call."""

    __slots__ = ("_call", "_calls")

    def __init__(self, calls: OutgoingCalls, call: OpenCall) -> None:
        self._calls = calls
        self._call = call

    def next(self) -> tuple[InferenceResponse, bool]:
        return self._calls.next_response(self._call)

    def cancel(self) -> None:
        self._calls.cancel(self._call)


class ServerCalls:
    """`parent_n` is the request that is being executed: the one of which a call is made. While `defers_metrics`,
    metrics that change wait for `send_metrics`."""

    def __init__(self, name: str, model_file: str) -> None:
        self._name = name
        self._model_dir = os.path.dirname(model_file)
        self._link: InstanceRouterLink | None = None
        self._calls: OutgoingCalls | None = None
        self._loops: dict[Any, LoopCalls] = {}
        self._changed: set[str] = set()
        self._metrics_lock = Lock()
        self.may_call_models = False
        self.defers_metrics = False
        self.parent_n: int | None = None

    def connected(self, link: InstanceRouterLink, calls: OutgoingCalls) -> None:
        self._link = link
        self._calls = calls
        self._loops = {}
        self._changed = set(PROCESS.families)

    def log(self, level: str, text: str, file: str, line: int) -> None:
        if self._link is None or self._link.is_lost:
            print(f"{level}: {file}:{line}: {text}", file=sys.stderr)
            return
        self._link.send(encode_head({"type": "log", "level": level, "text": text, "file": file, "line": line}), [], 0)

    def call(self, request: InferenceRequest) -> InferenceResponse:
        calls = self._usable()
        return calls.wait(calls.begin(request, False, self.parent_n))

    def call_decoupled(self, request: InferenceRequest) -> ResponseIterator:
        calls = self._usable()
        return ResponseIterator(CallResponses(calls, calls.begin(request, True, self.parent_n)))

    def call_async(self, request: InferenceRequest, is_decoupled: bool) -> Future[Any]:
        # asyncio costs every process milliseconds and memory; a model that comes here has it already.
        import asyncio

        from slipstream.workers.backends.python.instance.loop_calls import LoopCalls

        loop = asyncio.get_running_loop()
        calls = self._usable()
        if is_decoupled:
            future = loop.create_future()
            future.set_result(self.call_decoupled(request))
            return future
        assert self._link is not None
        if loop not in self._loops:
            self._loops = {known: calls_of for known, calls_of in self._loops.items() if not known.is_closed()}
            self._loops[loop] = LoopCalls(loop, self._link, calls)
        return self._loops[loop].future_of(calls.begin(request, False, self.parent_n))

    def control(self, action: str, model: str, **fields: Any) -> Any:
        if self._calls is None:
            raise TritonModelException("There is no connection to the router.")
        return self._calls.control(action, model, fields)

    def metrics_changed(self, name: str) -> None:
        with self._metrics_lock:
            self._changed.add(name)
        family = PROCESS.families.get(name)  # None: another thread has just deleted it
        if not self.defers_metrics or family is None or len(family.metrics) <= FEW_METRICS:
            self.send_metrics()

    def metrics_ended(self, family: dict[str, Any]) -> None:
        if self._link is not None:
            self._link.send_soon(encode_head({"type": "metrics", "families": [family]}))

    def send_metrics(self) -> None:
        """Sends the families that have changed."""
        if not self._changed or self._link is None:
            return
        with self._metrics_lock:
            families = families_as_dicts(sorted(self._changed))
            self._changed.clear()
        if families:
            self._link.send(encode_head({"type": "metrics", "families": families}), [], 0)

    def model_dir(self) -> str:
        return self._model_dir

    def refusal(self, text: str) -> str:
        return f"Failed to process the request for model '{self._name}', message: {text}"

    def poll(self) -> None:
        if self._link is not None:
            self._link.poll()

    def _usable(self) -> OutgoingCalls:
        if not self.may_call_models or self._calls is None:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        return self._calls
