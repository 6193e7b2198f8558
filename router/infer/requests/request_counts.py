"""Counts the requests of one version of a model, and closes their records when they end."""

from __future__ import annotations

from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.infer.requests.request_record import Outcome
from slipstream.router.infer.requests.statistics_recorder import ComputeTimes, StatisticsRecorder, nanoseconds
from slipstream.router.instances.messages import InstanceResponse
from slipstream.router.tensors.infer_error import FailureReason, InferError

OUTCOMES: dict[FailureReason, Outcome] = {FailureReason.CANCELED: "cancelled", FailureReason.REJECTED: "rejected"}


class RequestCounts:
    """A request is counted once: as served, even if its model has answered with an error (as Triton does), or as
    failed."""

    def __init__(self, recorder: StatisticsRecorder, *, is_decoupled: bool) -> None:
        self._recorder = recorder
        self._is_decoupled = is_decoupled

    def executed(self, num_rows: int, times: ComputeTimes) -> None:
        self._recorder.executed(num_rows, times)

    def responded(self, active: ActiveRequest, response: InstanceResponse | None, now: float) -> None:
        """A response by a response sender; None: only the end."""
        if not self._is_decoupled:
            return
        if active.num_responses == 0:
            self._recorder.responded_first(now - active.record.received_s)
        counts = self._recorder.response(active.num_responses)
        elapsed_ns = nanoseconds(now - active.started_s)
        counts.compute_infer.add(elapsed_ns)
        if response is None:
            counts.empty_response.add(elapsed_ns)
        elif response.error is not None:
            counts.fail.add(elapsed_ns)
        else:
            counts.compute_output.add(0)
            counts.success.add(elapsed_ns)

    def served(
        self,
        active: ActiveRequest,
        times: ComputeTimes | None,
        now: float,
        *,
        num_responses: int,
        error: InferError | None = None,
    ) -> None:
        """`times` None: a response sender has ended it, and the instance does not measure that. `error` is the model's
        answer."""
        record = active.record
        if times is None:
            times = ComputeTimes(infer_ns=nanoseconds(now - active.started_s))
        queue_s = active.started_s - active.queued_s
        self._recorder.succeeded(active.batch_size, now - record.received_s, queue_s, times)
        record.num_responses = num_responses
        record.ended(now, "success" if error is None else "failed", error)

    def served_by_cache(self, active: ActiveRequest, lookup_ns: int, now: float) -> None:
        record = active.record
        self._recorder.hit_cache(now - record.received_s, lookup_ns)
        record.is_cache_hit, record.num_responses = True, 1
        record.ended(now, "success")

    def missed_cache(self, took_ns: int) -> None:
        self._recorder.missed_cache(took_ns)

    def failed(self, active: ActiveRequest, error: InferError, now: float) -> None:
        """Unless it was served already, and its response is held back for its order."""
        record = active.record
        if not record.outcome:
            self._recorder.failed(now - record.received_s, error.reason)
            record.num_responses = active.num_responses
            record.ended(now, OUTCOMES.get(error.reason, "failed"), error)
