"""The executions before an instance serves: one after the other, none after a failure, all memory given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from slipstream.router.infer.warm_up import WarmUp
from slipstream.router.infer.warm_up_samples import warm_up_requests
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.messages import Executed, ExecuteRequest, InstanceResponse
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.model_spec import TensorSpec, WarmupInput, WarmupSample
from tests.support.router.fake_tensor_service import tensor_model


@dataclass
class Link:
    """Writes down which numbers each execution has."""

    executions: list[list[int]] = field(default_factory=list)
    num_released: int = 0

    def execute(self, batch: int, requests: Sequence[ExecuteRequest]) -> None:
        self.executions.append([item.n for item in requests])

    def response(self, error: str = "") -> InstanceResponse:
        def release() -> None:
            self.num_released += 1

        return InstanceResponse(error=InferError(error) if error else None, release=release)


def begun(*sizes: int) -> tuple[WarmUp, Link]:
    link = Link()
    return WarmUp(cast(InstanceLink, link), [[InferRequest("m") for _ in range(size)] for size in sizes]), link


def test_executions_follow_each_other_and_give_their_responses_back() -> None:
    warm_up, link = begun(2, 1)
    assert link.executions == [[1, 2]]
    warm_up.executed(Executed(2, [link.response(), link.response()]))
    assert link.executions == [[1, 2], [3]]
    assert not warm_up.is_over
    warm_up.executed(Executed(3, [link.response()]))
    assert (warm_up.is_over, warm_up.error, link.num_released) == (True, "", 3)


def test_responses_of_a_sender_are_awaited() -> None:
    warm_up, link = begun(1, 1)
    warm_up.executed(Executed(1, []))
    warm_up.responded(1, link.response(), is_final=False)
    assert link.executions == [[1]]
    warm_up.responded(1, None, is_final=True)
    assert (link.executions, link.num_released) == ([[1], [2]], 1)


def test_nothing_is_executed_after_an_error_response() -> None:
    warm_up, link = begun(1, 1)
    warm_up.executed(Executed(1, [link.response("bad sample")]))
    assert (warm_up.is_over, warm_up.error) == (True, "bad sample")
    assert (link.executions, link.num_released) == ([[1]], 1)


def test_nothing_is_executed_after_an_exception_of_the_model() -> None:
    warm_up, link = begun(2, 1)
    warm_up.executed(Executed(2, [], error="ValueError: no"))
    assert (warm_up.is_over, warm_up.error) == (True, "ValueError: no")
    assert link.executions == [[1, 2]]


def test_samples_are_checked_as_requests_of_clients_are() -> None:
    model = tensor_model("m", [TensorSpec("IN", "INT32", (2,))], [TensorSpec("OUT", "INT32", (2,))])

    def requests(name: str, *dims: int) -> list[list[InferRequest]]:
        sample = WarmupSample("w", 1, 1, (WarmupInput(name, "INT32", dims, "zero"),))
        return warm_up_requests(replace(model, warmup=(sample,)))

    assert len(requests("IN", 2)) == 1
    with pytest.raises(ValueError, match=r"expected 1 inputs but got 0 inputs for model 'm'"):
        requests("NOPE", 2)
    with pytest.raises(ValueError, match="unexpected shape for input 'IN'"):
        requests("IN", 3)
