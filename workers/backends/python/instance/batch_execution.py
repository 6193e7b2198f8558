"""Executes batches: from `execute` to `executed`."""

from __future__ import annotations

from time import perf_counter_ns
from types import CoroutineType
from typing import Any, Callable

from slipstream.workers.backends.python.instance.failure_text import InstanceError, failure_text
from slipstream.workers.backends.python.instance.memory.input_memory import InputMemory
from slipstream.workers.backends.python.instance.memory.shared_files import lost_file
from slipstream.workers.backends.python.instance.open_requests import RequestChannel
from slipstream.workers.backends.python.instance.wire.frames import FrameMessage
from slipstream.workers.backends.python.instance.wire.router_link import InstanceRouterLink
from slipstream.workers.backends.python.instance.wire.tensor_reader import read_tensors
from slipstream.workers.backends.python.instance.wire.tensor_writer import Payload, TensorWriter, quote
from slipstream.workers.backends.python.model_api.infer_request import RELEASE_ALL, InferenceRequest
from slipstream.workers.backends.python.model_api.infer_response import InferenceResponse
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException

RESCHEDULE = 2  # TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


class BatchExecutor:
    """Calls `execute` of a model. `run_coroutine` takes what an `async` one returns: it waits for the result, or, for a
    model that is decoupled, returns None at once."""

    def __init__(
        self,
        model: Any,
        name: str,
        model_file: str,
        outputs: dict[str, str],
        is_decoupled: bool,
        writer: TensorWriter,
        memory: InputMemory,
        run_coroutine: Callable[[Any, bool], Any],
    ) -> None:
        self._model = model
        self._name = name
        self._model_file = model_file
        self._outputs = frozenset(outputs)
        self._is_decoupled = is_decoupled
        self._writer = writer
        self._memory = memory
        self._run_coroutine = run_coroutine
        self.opened: dict[int, RequestChannel] = {}

    def execute(self, message: FrameMessage, link: InstanceRouterLink) -> None:
        """Executes a batch and sends `executed`."""
        begun = perf_counter_ns()
        head = message.head
        requests: list[InferenceRequest] = []
        channels: list[RequestChannel] = []
        payload = Payload()
        texts: list[str] = []
        rescheduled: list[int] = []
        error, lost = "null", ""
        prepared = finished = 0
        try:
            for fields in head["requests"]:
                self._open_request(fields, message.payload, link, requests, channels)
            prepared = perf_counter_ns()
            returned = self._call(requests)
            finished = perf_counter_ns()
            if returned is not None:
                texts = self._responses(requests, channels, returned, payload)
            rescheduled = self._settle_unanswered(requests, channels, texts)
            returned = None
        except BaseException as exception:  # SystemExit and the like are failures of the model, too
            error = quote(failure_text(exception))
            lost = "" if prepared else lost_file(exception)
            self._writer.discard(payload)
            texts, payload = [], Payload()
            for request, channel in zip(requests, channels):
                close(request, channel)
        del requests  # ends what the model has dropped, before `executed` says that nothing else has ended
        prepared = prepared or perf_counter_ns()
        finished = finished or perf_counter_ns()
        resumed = f',"rescheduled":{rescheduled}' if rescheduled else ""
        resumed += f',"lost_file":{quote(lost)}' if lost else ""
        link.send(
            f'{{"type":"executed","batch":{head["batch"]},"responses":[{",".join(texts)}],"error":{error}{resumed},'
            f'"compute_ns":{finished - prepared},"input_ns":{prepared - begun},'
            f'"output_ns":{perf_counter_ns() - finished}}}',
            payload.pieces,
            payload.num_bytes,
        )

    def cancel(self, n: int) -> None:
        """The client does not want this request any more; the model may ask for that."""
        channel = self.opened.get(n)
        if channel is not None:
            channel.cancel()

    def drop_all(self) -> None:
        """The connection is lost: nothing that is open will be answered."""
        self.opened.clear()

    def _open_request(
        self,
        fields: dict[str, Any],
        payload: bytearray,
        link: InstanceRouterLink,
        requests: list[InferenceRequest],
        channels: list[RequestChannel],
    ) -> None:
        get = fields.get
        names = get("outputs")
        wanted = self._outputs if names is None else names
        channel = RequestChannel(
            fields["n"],
            wanted,
            get("into"),
            self._is_decoupled,
            link,
            self._writer,
            self.opened,
            get("is_null", False),
        )
        channels.append(channel)
        request = InferenceRequest.__new__(InferenceRequest)
        request._channel = channel
        request._sender = None
        requests.append(request)
        request._inputs = read_tensors(fields["inputs"], payload, self._memory)
        request._request_id = get("id", "")
        request._correlation_id = get("correlation_id", 0)
        request._requested_output_names = wanted
        request._model_name = ""
        request._model_version = -1
        request._flags = get("flags", 0)
        request._timeout = get("timeout_us", 0)
        request._preferred_memory = None
        request._trace = None
        request._parameters = get("parameters") or "{}"
        request._release_flags = RELEASE_ALL

    def _call(self, requests: list[InferenceRequest]) -> Any:
        execute = getattr(self._model, "execute", None)
        if execute is None:
            raise InstanceError(f"Python model {self._model_file} does not implement `execute` method.")
        returned = execute(requests)
        return self._run_coroutine(returned, self._is_decoupled) if type(returned) is CoroutineType else returned

    def _responses(
        self,
        requests: list[InferenceRequest],
        channels: list[RequestChannel],
        returned: Any,
        payload: Payload,
    ) -> list[str]:
        """The responses, one for each request; "null" where it comes in another way. Raises InstanceError."""
        if self._is_decoupled:
            raise InstanceError(
                f"Python model '{self._name}' is using the decoupled mode and the execute function must return None."
            )
        if not isinstance(returned, list):
            raise InstanceError(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(requests):
            raise InstanceError(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        texts = []
        for request, channel, response in zip(requests, channels, returned):
            if response is None or channel.is_null:
                texts.append("null")
                continue
            check_response(response, request._release_flags == RESCHEDULE)
            count_response(request)
            texts.append(self._writer.response(response, channel.names, channel.into, payload))
            channel.close()
        return texts

    def _settle_unanswered(
        self, requests: list[InferenceRequest], channels: list[RequestChannel], texts: list[str]
    ) -> list[int]:
        """Requests that `execute` has not answered: those that are to be executed again, whose numbers are returned,
        and those whose senders will answer. A sender ends with its request, if the model drops that."""
        rescheduled = []
        for index, request in enumerate(requests):
            if texts and texts[index] != "null":
                continue
            if channels[index].is_null:
                close(request, channels[index])
            elif request._release_flags == RESCHEDULE:
                rescheduled.append(channels[index].n)
                close(request, channels[index])
            else:
                request.get_response_sender()
        return rescheduled


def close(request: InferenceRequest, channel: RequestChannel) -> None:
    """No more responses, not even of a sender that the model has kept."""
    request.get_response_sender().close()
    channel.close()


def check_response(response: Any, is_rescheduled: bool) -> None:
    if is_rescheduled:
        raise InstanceError(
            "Expected a None object in the execute function return list for reschduled request, found type "
            f"'{type(response)}'."
        )
    if not isinstance(response, InferenceResponse):
        raise InstanceError(
            "Expected an 'InferenceResponse' object in the execute function return list, found type "
            f"'{type(response)}'."
        )


def count_response(request: InferenceRequest) -> None:
    """A response that `execute` returns is the last; the sender, if the model has asked for one, must know of it."""
    if request._sender is not None:
        try:
            request._sender.count(True, True)
        except TritonModelException as error:
            raise InstanceError(str(error)) from None
