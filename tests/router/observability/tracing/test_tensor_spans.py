"""The spans of a request to a tensor model."""

from __future__ import annotations

from itertools import count

from slipstream.router.infer.requests.request_record import Execution, InferRecord
from slipstream.router.observability.tracing.request_trace import RequestTrace
from slipstream.router.observability.tracing.spans import spans_of
from slipstream.router.observability.tracing.tracer import is_tensor_request
from slipstream.router.tensors.infer_error import InferError


def test_a_request_is_traced_through_its_queue_and_executions() -> None:
    record = InferRecord("r", "", "M", "1", "t", "", received_s=1.0, queued_s=1.1, batch_size=2)
    record.executions += [Execution("M_0", 1.2, 1, 2), Execution("M_1", 1.5, 2, 3)]
    record.compute_s = (0.01, 0.1, 0.02)
    record.ended(1.8, "failed", InferError("no"))
    trace = RequestTrace("ab", "cd", None, "POST", "/v2/models/M/infer", 1.0, 1.9, 500, "r", tensor_request=record)
    numbers = count()
    whole, queued, first, second = spans_of(trace, lambda: f"{next(numbers):016x}")
    assert whole.attributes["slipstream.model"] == "M"
    assert whole.attributes["slipstream.request.num_attempts"] == 2
    assert (queued.begin_s, queued.end_s) == (1.1, 1.2)
    assert (first.begin_s, first.end_s, first.error) == (1.2, 1.5, "the instance was lost")
    assert (second.attributes["slipstream.batch.rows"], second.error) == (3, "no")
    assert second.attributes["slipstream.compute.infer_s"] == 0.1
    assert {queued.parent_id, first.parent_id, second.parent_id} == {"cd"}


def test_only_calls_of_models_are_traced() -> None:
    assert is_tensor_request("/v2/models/M/versions/1/infer")
    assert is_tensor_request("/v2/models/M/generate_stream")
    assert not is_tensor_request("/v2/models/M/ready")
    assert not is_tensor_request("/v2/health/live")
