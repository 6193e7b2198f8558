"""Models of the workers of both roles, from what the router measured and the corrections so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slipstream.cluster.planner.model.corrections import Corrections
from slipstream.cluster.planner.model.queueing_model import WorkerModel
from slipstream.router.status.load_signals import RoleTimes, Signals, WorkerSignals

FEW_SAMPLES = 16
MAX_REALITY = 2.0  # beyond this it tells of waits, which the model has of its own


def worker_models(signals: Signals, corrections: Corrections) -> tuple[WorkerModel, WorkerModel] | None:
    """Of a prefill and of a decode worker; a role without workers is taken for like the other one, as its workers
    would be the same but for what they do. None while nothing has been measured."""
    prefill, decode = signals.times_of("prefill"), signals.times_of("decode")
    if prefill is None or decode is None or not signals.workers:
        return None
    samples = [times.num_prefill_samples + times.num_decode_samples for times in (prefill, decode)]
    if not any(samples):
        return None
    prefill, decode = _completed(prefill, decode), _completed(decode, prefill)
    prefillers = [worker for worker in signals.workers if worker.role == "prefill"]
    decoders = [worker for worker in signals.workers if worker.role == "decode"]
    return (
        _model(prefill, prefillers or decoders, corrections, prefill.reality if prefillers else decode.reality),
        _model(decode, decoders or prefillers, corrections, decode.reality if decoders else prefill.reality),
    )


def _completed(own: RoleTimes, other: RoleTimes) -> RoleTimes:
    """With the other role's times of steps of which this one has hardly computed any but those of its start."""
    if own.num_prefill_samples < FEW_SAMPLES <= other.num_prefill_samples:
        own = replace(own, prefill=other.prefill)
    if own.num_decode_samples < FEW_SAMPLES <= other.num_decode_samples:
        own = replace(own, decode=other.decode)
    return own


def _model(times: RoleTimes, workers: Sequence[WorkerSignals], corrections: Corrections, reality: float) -> WorkerModel:
    count = len(workers)
    base_s, by_seq_s, by_token_s = (one * corrections.decode for one in times.decode)
    factor = corrections.prefill * min(max(reality, 1.0), MAX_REALITY)
    chunk_s, token_s, pair_s = (one * factor for one in times.prefill)
    return WorkerModel(
        (base_s, by_seq_s, by_token_s),
        (chunk_s, token_s, pair_s),
        times.gap,
        times.reserve_s,
        workers[0].page_tokens,
        sum(worker.num_pages for worker in workers) // count,
        max(sum(worker.max_slots for worker in workers) // count, 1),
        max(min(worker.max_step_tokens for worker in workers), 1),
        workers[0].group_pages,
        workers[0].state_pages,
    )
