"""What a front counts about requests and answers.

Counting a token must cost next to nothing, so counts are plain numbers in plain objects; `metrics_page` converts them
to the Prometheus library's types when the page is scraped.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from slipstream.router.protocol.generation import Usage
from slipstream.router.requests.history import Timeline

# Bucket bounds in seconds. First tokens: from a cached prompt on a small model to a long wait in the queue. Between
# tokens: fine-grained from 5 to 50 ms, where service levels are set.
FIRST_TOKEN_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(1.5, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
NEXT_TOKEN_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06),
    *(0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0),
)
WHOLE_S = (0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 600.0)
STAGE_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
MAX_VERSIONS = 8
MAX_FIELDS = 64
OTHERS = "(others)"  # cannot be a field's name as it is counted


class Histogram:
    """Counts per bucket; `bounds` are the upper ends of the buckets, ascending, without infinity."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """The cumulative counts by upper bound, as Prometheus wants them."""
        so_far, buckets = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            buckets.append((bound, float(so_far)))
        return buckets


class FieldCounts(Counter[str]):
    """Counts by names that clients make up. Each name becomes a time series, so there are MAX_FIELDS at most; further
    ones are counted together as OTHERS."""

    def add(self, name: str, times: int = 1) -> None:
        self[name if name in self or len(self) < MAX_FIELDS else OTHERS] += times


class Latencies:
    """The latencies of the requests that one version of the model served."""

    __slots__ = ("decode_s", "first_token_s", "mean_next_token_s", "next_token_s", "prefill_s", "queue_s", "whole_s")

    def __init__(self) -> None:
        self.first_token_s = Histogram(FIRST_TOKEN_S)
        self.next_token_s = Histogram(NEXT_TOKEN_S)
        self.mean_next_token_s = Histogram(NEXT_TOKEN_S)
        self.whole_s = Histogram(WHOLE_S)
        self.queue_s = Histogram(STAGE_S)
        self.prefill_s = Histogram(STAGE_S)
        self.decode_s = Histogram(WHOLE_S)

    def histograms(self) -> dict[str, Histogram]:
        return {name: getattr(self, name) for name in self.__slots__}


class LatenciesByVersion:
    """Those of the versions that served a request most recently, MAX_VERSIONS at most, because each becomes many time
    series. `unplaced` are those of requests that no version has served."""

    def __init__(self) -> None:
        self.unplaced = Latencies()
        self._by_version: OrderedDict[str, Latencies] = OrderedDict()

    def of(self, version: str) -> Latencies:
        if not version:
            return self.unplaced
        found = self._by_version.get(version)
        if found is None:
            found = self._by_version[version] = Latencies()
            if len(self._by_version) > MAX_VERSIONS:
                self._by_version.popitem(last=False)
        else:
            self._by_version.move_to_end(version)
        return found

    def items(self) -> list[tuple[str, Latencies]]:
        return [("", self.unplaced), *self._by_version.items()]


class ModelCounts:
    """The counts of one served model, as seen by clients."""

    def __init__(self) -> None:
        self.latencies = LatenciesByVersion()
        self.prompt_tokens = Histogram(TOKENS)
        self.output_tokens = Histogram(TOKENS)
        self.choices = Histogram(CHOICES)
        self.max_tokens = Histogram(TOKENS)
        self.num_clamped = 0  # requests for more output than there is room for
        self.ends: Counter[str] = Counter()
        self.num_output_tokens = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0

    def begin(self, arrived_s: float) -> RequestMeter:
        """A meter for a request (one choice of an answer) that arrived at `arrived_s` of `time.monotonic()`."""
        return RequestMeter(self, arrived_s)


class FrontMetrics:
    """The counts of a process that faces clients: those of each model in `models`, by its name, and those of all
    requests. There are no others than those of served models, because each becomes many time series."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        self.models = {name: ModelCounts() for name in models}
        self.ignored_fields = FieldCounts()
        self.responses: Counter[int] = Counter()
        self.store_errors: Counter[str] = Counter()  # by the call of the store that failed
        self.batch_lines: Counter[str] = Counter()  # by what became of them

    def of(self, model: str) -> ModelCounts:
        """Those of a model. If it has been removed meanwhile, what is counted is lost."""
        return self.models.get(model) or ModelCounts()


class RequestMeter:
    """Measures one request from its arrival at the HTTP port, so that everything the client has to wait for counts."""

    __slots__ = ("_arrived_s", "_first_s", "_latencies", "_latest_s", "_metrics")

    def __init__(self, metrics: ModelCounts, arrived_s: float) -> None:
        self._metrics = metrics
        self._latencies = metrics.latencies.unplaced
        self._arrived_s = arrived_s
        self._first_s = 0.0
        self._latest_s = 0.0

    def served_by(self, version: str) -> None:
        """What is measured from now on counts for this version of the model."""
        self._latencies = self._metrics.latencies.of(version)

    def tokens(self, count: int) -> None:
        """`count` tokens arrived together; the time since the previous ones is divided evenly between them, and is 0
        between those that come with the first. To be called after `served_by`."""
        now = time.monotonic()
        latencies = self._latencies
        self._metrics.num_output_tokens += count
        if self._first_s:
            latencies.next_token_s.observe((now - self._latest_s) / count, count)
        else:
            self._first_s = now
            latencies.first_token_s.observe(now - self._arrived_s)
            if count > 1:
                latencies.next_token_s.observe(0.0, count - 1)
        self._latest_s = now

    def finish(self, end: str, num_output_tokens: int, usage: Usage | None, timeline: Timeline) -> None:
        """The request has ended with the finish reason `end`."""
        metrics = self._metrics
        metrics.ends[end] += 1
        if usage is not None:
            metrics.num_prompt_tokens += usage.num_prompt_tokens
            metrics.num_cached_tokens += usage.num_cached_tokens
            metrics.prompt_tokens.observe(usage.num_prompt_tokens)
        metrics.output_tokens.observe(num_output_tokens)
        latencies = self._latencies
        latencies.whole_s.observe(time.monotonic() - self._arrived_s)
        if num_output_tokens > 1:
            latencies.mean_next_token_s.observe((self._latest_s - self._first_s) / (num_output_tokens - 1))
        if timeline.placed is not None:
            latencies.queue_s.observe(timeline.placed - timeline.queued)
            if timeline.first_token is not None:
                latencies.prefill_s.observe(timeline.first_token - timeline.placed)
                latencies.decode_s.observe((timeline.finished or time.monotonic()) - timeline.first_token)
