"""Traced requests: has their workers report what they do, and keeps that."""

from __future__ import annotations

from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.protocol.messages import AttemptWork, TraceAttempt
from slipstream.router.protocol.messages.attempt_traces import TRACING_VERSION
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.history import MAX_WORK, History, WorkerWork
from slipstream.router.requests.request_state import RequestState


def trace_attempt(table: RequestTable, worker: WorkerState, state: RequestState, attempt: int) -> None:
    """Has a worker report what it does for an attempt of a sampled request. To be called before the message that
    begins it. Workers of older versions are not asked."""
    if worker.hello.version >= TRACING_VERSION:
        request = state.request
        traceparent = f"00-{request.trace_id}-{request.trace_span}-01"
        table.send(worker, TraceAttempt(request.request_id, attempt, traceparent))


def keep_work(history: History, worker: WorkerState, message: AttemptWork, now: float) -> None:
    """A worker reports on a traced request, which may have ended."""
    record = history.get(message.request_id)
    if record is not None and record.trace_id and len(record.work) < MAX_WORK:
        record.work += (WorkerWork(now, message.attempt, worker.name, message.spans),)
