"""What the endpoints of OpenAI's shape over tensor models count, and their metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from slipstream.router.observability.front_counts import WHOLE_S, Histogram

EndpointKey = tuple[str, str]  # kind and name
LABELS = ("endpoint", "model_name")


class EndpointCounts:
    """By endpoint, of which a configuration has a fixed number."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[EndpointKey, int]] = Counter()  # by HTTP status
        self.inputs: Counter[EndpointKey] = Counter()  # texts, documents, images, windows of audio
        self.tokens: Counter[EndpointKey] = Counter()
        self.seconds: dict[EndpointKey, Histogram] = {}

    def ended(self, key: EndpointKey, status: int, seconds: float) -> None:
        self.requests[key, status] += 1
        self.seconds.setdefault(key, Histogram(WHOLE_S)).observe(seconds)

    def families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "slipstream:endpoint_requests", "Requests to endpoints of tensor models.", labels=[*LABELS, "status"]
        )
        for (key, status), count in sorted(self.requests.items()):
            requests.add_metric([*key, str(status)], count)
        yield requests
        for name, text, counts in (
            ("slipstream:endpoint_inputs", "Texts, documents, images and windows of audio.", self.inputs),
            ("slipstream:endpoint_tokens", "Tokens that the router has made of texts.", self.tokens),
        ):
            family = CounterMetricFamily(name, text, labels=LABELS)
            for key, count in sorted(counts.items()):
                family.add_metric(key, count)
            yield family
        seconds = HistogramMetricFamily(
            "slipstream:endpoint_request_seconds", "From the arrival of a request to its end.", labels=LABELS
        )
        for key, histogram in sorted(self.seconds.items()):
            seconds.add_metric(key, histogram.buckets(), histogram.total)
        yield seconds
