"""What is told of a request to a tensor model."""

from __future__ import annotations

import dataclasses

from slipstream.router.infer.requests.request_record import Execution, InferHistory, InferRecord
from slipstream.router.observability.explain.explain_infer import (
    infer_explanation,
    infer_listing,
    infer_summary,
    infer_text,
)
from slipstream.router.tensors.infer_error import InferError


def record_of(request_id: str = "r") -> InferRecord:
    return InferRecord(request_id, "7", "M", "1", "t", "", received_s=100.0, queued_s=100.001, batch_size=2)


def test_a_request_that_waits_has_no_times_of_execution() -> None:
    explained = infer_explanation(record_of(), 0.0)
    assert (explained["phase"], explained["outcome"], explained["instance"]) == ("queued", None, None)
    assert explained["timeline"]["executed"] is None
    assert explained["queue_s"] is None


def test_each_execution_is_told_with_its_batch() -> None:
    record = record_of()
    record.executions += [Execution("M_0_0", 100.003, 1, 2), Execution("M_0_1", 100.01, 3, 6)]
    record.compute_s = (0.001, 0.002, 0.0005)
    record.num_responses = 1
    record.ended(100.02, "success")
    explained = infer_explanation(record, 0.0)
    assert explained["num_attempts"] == 2
    assert explained["executions"][1] == {"instance": "M_0_1", "at_s": 0.01, "batch_requests": 3, "batch_rows": 6}
    assert (explained["queue_s"], explained["total_s"]) == (0.002, 0.02)
    text = infer_text(explained)
    assert "10.000 ms  execution 2 by M_0_1: 3 requests, 6 rows" in text
    assert "infer 2.000 ms" in text


def test_a_failure_has_its_text() -> None:
    record = record_of()
    record.ended(100.5, "rejected", InferError("Exceeds maximum queue size"))
    assert infer_text(infer_explanation(record, 0.0)).endswith("Exceeds maximum queue size\n")
    assert "rejected" in infer_listing([infer_summary(record, 0.0)])


def all_tenants(tenant: str) -> bool:
    return True


def test_a_request_is_found_by_the_id_of_its_client_too() -> None:
    history = InferHistory(9)
    records = [
        dataclasses.replace(record_of(name), client_id=client_id, tenant=tenant)
        for name, client_id, tenant in (("a", "1", "x"), ("b", "1", "x"), ("c", "1", "y"), ("1", "", "z"))
    ]
    for record in records:
        history.add(record)
    assert history.find("1", lambda tenant: tenant == "x") is records[1]
    assert history.find("1", lambda tenant: tenant == "y") is records[2]
    assert history.find("1", all_tenants) is records[3], "an id of ours comes first"
    assert history.find("a", lambda tenant: tenant == "y") is None


def test_the_history_forgets_the_oldest_request() -> None:
    history = InferHistory(2)
    records = [record_of(name) for name in ("a", "b", "a")]
    for record in records:
        history.add(record)
    assert history.get("a") is records[2]
    assert [record.request_id for record in history.latest()] == ["a", "b"]
    history.add(record_of("c"))
    assert history.get("b") is None
