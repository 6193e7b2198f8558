"""The spans of a request to a tensor model."""

from __future__ import annotations

from itertools import count

import pytest

from slipstream.router.infer.requests.request_record import Execution, InferRecord, StepRecord
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


def test_the_steps_of_an_ensemble_are_spans_with_their_executions_below_them() -> None:
    record = InferRecord("r", "", "E", "1", "t", "", received_s=1.0, queued_s=1.0, batch_size=1)
    for name, begin_s in (("a", 1.1), ("b", 1.4)):
        inner = InferRecord(f"r.{name}", "", name, "1", "t", "r", received_s=begin_s, queued_s=begin_s, batch_size=1)
        inner.executions.append(Execution(f"{name}_0", begin_s + 0.1, 1, 1))
        inner.ended(begin_s + 0.2, "success")
        record.steps.append(StepRecord(inner, ("IN",), (name,)))
    record.ended(1.6, "success")
    trace = RequestTrace("ab", "cd", None, "POST", "/v2/models/E/infer", 1.0, 1.9, 200, "r", tensor_request=record)
    numbers = count()
    _, step, queued, executing, *others = spans_of(trace, lambda: f"{next(numbers):016x}")
    assert (step.name, step.parent_id, step.begin_s, step.end_s) == ("step", "cd", 1.1, pytest.approx(1.3))
    assert step.attributes["slipstream.model"] == "a"
    assert step.attributes["slipstream.step.writes"] == ("a",)
    assert {queued.parent_id, executing.parent_id} == {step.span_id}
    assert [span.name for span in others] == ["step", "queued", "executing"]


def test_only_calls_of_models_are_traced() -> None:
    assert is_tensor_request("/v2/models/M/versions/1/infer")
    assert is_tensor_request("/v2/models/M/generate_stream")
    assert not is_tensor_request("/v2/models/M/ready")
    assert not is_tensor_request("/v2/health/live")
