"""What placement has learned, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from slipstream.router.requests.output_length import Calibration
from slipstream.router.status.status import WorkerStatus


def forecast_families(calibration: Calibration) -> Iterator[Metric]:
    """`within` / `scored` should be the quantile; `loss` / `scored` is the mean pinball loss in tokens."""
    yield CounterMetricFamily(
        "slipstream:output_forecasts", "Answers whose length had been forecast.", value=calibration.num_scored
    )
    within = CounterMetricFamily(
        "slipstream:output_forecasts_within", "Answers not longer than the forecast quantile.", labels=["quantile"]
    )
    loss = CounterMetricFamily(
        "slipstream:output_forecast_loss_tokens", "Pinball loss of the forecast quantile.", labels=["quantile"]
    )
    for quantile in calibration.num_within:
        within.add_metric([str(quantile)], calibration.num_within[quantile])
        loss.add_metric([str(quantile)], calibration.loss[quantile])
    yield within
    yield loss


def service_time_families(workers: Sequence[WorkerStatus]) -> Iterator[Metric]:
    """As placement predicts them now."""
    times = GaugeMetricFamily(
        "slipstream:worker_predicted_seconds", "Service times as placement predicts them.", labels=["worker", "what"]
    )
    reality = GaugeMetricFamily(
        "slipstream:worker_reality", "First tokens come so many times later than predicted.", labels=["worker"]
    )
    for worker in workers:
        for what, seconds in worker.predicted_s:
            times.add_metric([worker.peer.name, what], seconds)
        reality.add_metric([worker.peer.name], worker.reality)
    yield times
    yield reality
