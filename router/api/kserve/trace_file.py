"""The file of the trace extension, in the form that Triton's `trace_summary.py` reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from slipstream.router.api.kserve.trace_control import TraceControl
from slipstream.router.infer.requests.request_record import InferRecord

log = logging.getLogger(__name__)


class TraceFile:
    """Writes the requests that `control` takes, each when it has ended. The file is a JSON list at any moment; with a
    `log_frequency` of n there is a file for every n requests, with a number behind its name."""

    def __init__(self, control: TraceControl) -> None:
        self._control = control
        self._num_traces = 0
        self._is_broken = False

    def takes(self, model: str) -> bool:
        """Whether the request that begins now is to be written."""
        return self._control.takes(model)

    def write(self, record: InferRecord) -> None:
        self._num_traces += 1
        entries = b",".join(map(orjson.dumps, entries_of(record, self._num_traces)))
        try:
            append(self._path(record.model), entries)
        except OSError as error:
            if not self._is_broken:
                log.error("traces are lost: %s", error)
            self._is_broken = True

    def _path(self, model: str) -> Path:
        frequency = self._control.active(model).log_frequency
        number = f".{(self._num_traces - 1) // frequency}" if frequency else ""
        return Path(self._control.file + number)


def append(path: Path, entries: bytes) -> None:
    """Adds to the list in a file. Raises OSError."""
    with path.open("ab") as file:
        if file.tell() == 0:
            file.write(b"[" + entries + b"]")
            return
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"," + entries + b"]")


def entries_of(record: InferRecord, number: int) -> Iterator[dict[str, Any]]:
    request_id = {"request_id": record.client_id} if record.client_id else {}
    yield {"id": number, "model_name": record.model, "model_version": int(record.version), **request_id}
    for name, time_s in moments_of(record):
        yield {"id": number, "timestamps": [{"name": name, "ns": int(time_s * 1e9)}]}


def moments_of(record: InferRecord) -> Iterator[tuple[str, float]]:
    """Times of `time.monotonic`, in their order."""
    yield "REQUEST_START", record.received_s
    yield "QUEUE_START", record.queued_s
    if record.executions:
        begin_s = record.executions[-1].started_s
        yield "COMPUTE_START", begin_s
        if record.compute_s is not None:
            for name, duration_s in zip(
                ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"), record.compute_s, strict=True
            ):
                begin_s += duration_s
                yield name, begin_s
    if record.first_response_s is not None:
        yield "INFER_RESPONSE_COMPLETE", record.first_response_s
    if record.ended_s is not None:
        yield "REQUEST_END", record.ended_s
