"""The file that traces are written to."""

from __future__ import annotations

from pathlib import Path

import orjson

from slipstream.router.api.kserve.trace_control import TraceControl
from slipstream.router.api.kserve.trace_file import TraceFile
from slipstream.router.infer.requests.request_record import Execution, InferRecord


def ended_record(client_id: str) -> InferRecord:
    record = InferRecord("ours", client_id, "m", "1", "", "", 1.0, 1.5, 1)
    record.executions.append(Execution("m_0_0", 2.0, 1, 1))
    record.compute_s = (0.25, 0.5, 0.25)
    record.first_response_s = 3.5
    record.ended(4.0, "success")
    return record


def test_each_request_has_its_moments_in_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traces = TraceFile(TraceControl.of_settings({"trace_file": str(path), "trace_level": "TIMESTAMPS"}))
    for client_id in ("q", ""):
        traces.write(ended_record(client_id))
    entries = orjson.loads(path.read_bytes())
    assert entries[0] == {"id": 1, "model_name": "m", "model_version": 1, "request_id": "q"}
    moments = {entry["timestamps"][0]["name"]: entry["timestamps"][0]["ns"] for entry in entries[1:9]}
    assert moments == {
        "REQUEST_START": 1_000_000_000,
        "QUEUE_START": 1_500_000_000,
        "COMPUTE_START": 2_000_000_000,
        "COMPUTE_INPUT_END": 2_250_000_000,
        "COMPUTE_OUTPUT_START": 2_750_000_000,
        "COMPUTE_END": 3_000_000_000,
        "INFER_RESPONSE_COMPLETE": 3_500_000_000,
        "REQUEST_END": 4_000_000_000,
    }
    assert entries[9] == {"id": 2, "model_name": "m", "model_version": 1}


def test_there_is_a_file_for_every_so_many_requests(tmp_path: Path) -> None:
    settings = {"trace_file": str(tmp_path / "t"), "trace_level": "TIMESTAMPS", "log_frequency": "2"}
    traces = TraceFile(TraceControl.of_settings(settings))
    for _ in range(3):
        traces.write(ended_record("q"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.0", "t.1"]
    assert {entry["id"] for entry in orjson.loads((tmp_path / "t.0").read_bytes())} == {1, 2}


def test_a_file_that_cannot_be_written_loses_traces_only(tmp_path: Path) -> None:
    settings = {"trace_file": str(tmp_path / "no" / "t"), "trace_level": "TIMESTAMPS"}
    TraceFile(TraceControl.of_settings(settings)).write(ended_record("q"))
