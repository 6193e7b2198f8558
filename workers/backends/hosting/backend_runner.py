"""Executes batches with a model of a backend: from `execute` to `executed`."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from slipstream.workers.backends.backend import LoadedModel
from slipstream.workers.backends.hosting.array_batches import ArrayBatches
from slipstream.workers.backends.hosting.failures import failure_of
from slipstream.workers.backends.hosting.response_texts import ResponseTexts
from slipstream.workers.backends.python.instance.memory.shared_files import lost_file
from slipstream.workers.backends.python.instance.wire.frames import FrameMessage
from slipstream.workers.backends.python.instance.wire.router_link import InstanceRouterLink
from slipstream.workers.backends.python.instance.wire.tensor_writer import Payload, quote


class BackendRunner:
    """InstanceRunner. The requests of a batch are computed at once if the model `is_batched`, else one by one. Each
    ends with `executed`, so that nothing is open between batches."""

    def __init__(self, model: LoadedModel, batches: ArrayBatches, texts: ResponseTexts, is_batched: bool) -> None:
        self._model = model
        self._batches = batches
        self._texts = texts
        self._is_batched = is_batched

    def execute(self, message: FrameMessage, link: InstanceRouterLink) -> None:
        begun = perf_counter_ns()
        requests = message.head["requests"]
        payload = Payload()
        times = ExecutionTimes()
        texts: list[str] = []
        failure = '"error":null'
        try:
            if self._is_batched:
                texts = self._run(requests, message.payload, payload, times)
            else:
                for request in requests:
                    texts += self._run([request], message.payload, payload, times)
        except BaseException as exception:  # SystemExit and the like are failures of the model, too
            text, code = failure_of(exception)
            failure = f'"error":{quote(text)},"error_code":"{code}"'
            lost = lost_file(exception)
            failure += f',"lost_file":{quote(lost)}' if lost else ""
            self._texts.discard(payload)
            texts, payload = [], Payload()
        rest_ns = perf_counter_ns() - begun - times.input_ns - times.compute_ns
        link.send(
            f'{{"type":"executed","batch":{message.head["batch"]},"responses":[{",".join(texts)}],{failure},'
            f'"compute_ns":{times.compute_ns},"input_ns":{times.input_ns},"output_ns":{rest_ns}}}',
            payload.pieces,
            payload.num_bytes,
        )

    def cancel(self, n: int) -> None:
        """A batch is computed as a whole."""

    def drop_all(self) -> None:
        """Nothing is open between batches."""

    def _run(
        self, requests: list[dict[str, Any]], received: bytearray, payload: Payload, times: ExecutionTimes
    ) -> list[str]:
        """Computes one batch; the responses, "null" for a place without a request."""
        begun = perf_counter_ns()
        arrays, rows = self._batches.arrays_of(requests, received)
        wanted = self._texts.wanted(requests)
        prepared = perf_counter_ns()
        times.input_ns += prepared - begun
        outputs = self._model.execute(arrays, wanted)
        times.compute_ns += perf_counter_ns() - prepared
        checked = self._texts.checked(outputs, wanted, sum(rows) if self._is_batched else None)
        if len(requests) == 1:
            return [self._texts.text(requests[0], checked, None, payload)]
        texts, first = [], 0
        for request, num_rows in zip(requests, rows, strict=True):
            own = slice(first, first + num_rows)
            first += num_rows
            texts.append("null" if request.get("is_null") else self._texts.text(request, checked, own, payload))
        return texts


class ExecutionTimes:
    __slots__ = ("compute_ns", "input_ns")

    def __init__(self) -> None:
        self.compute_ns = 0
        self.input_ns = 0
