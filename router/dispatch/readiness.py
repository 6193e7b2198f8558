"""Whether the models can serve requests, as far as their workers are wanted at all."""

from __future__ import annotations

from slipstream.router.dispatch.readiness_probe import ReadinessProbe
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.registry.expected_workers import ExpectedWorkers

MAX_NAMES = 8  # of models in a sentence


class ModelReadiness:
    """A model is ready once its `probe` has had an answer, and while a decode worker is connected. One without wanted
    decode workers is asleep: it counts as ready until a worker has connected, and also while the probe tries that one
    out."""

    def __init__(self, service: GenerationService, model: str, expected: ExpectedWorkers) -> None:
        self._service = service
        self._model = model
        self._expected = expected
        self._asleep_since: int | None = None  # how many decode workers had joined when it fell asleep
        self.probe = ReadinessProbe(service, model, self._needs_prefill_group)

    def expect(self, expected: ExpectedWorkers) -> None:
        """Sets how many workers are wanted."""
        self._expected = expected
        if expected.num_decode == 0:
            self._asleep_since = self._service.num_decode_joins_of(self._model)

    @property
    def is_asleep(self) -> bool:
        """Whether it has no workers because none are wanted."""
        num_joins = self._service.num_decode_joins_of(self._model)
        return self._expected.num_decode == 0 or self._asleep_since == num_joins

    @property
    def has_served(self) -> bool:
        """Whether a token has been generated since the router began."""
        return self.probe.missing is None

    def unready_because(self) -> str | None:
        """What is missing; None: it is ready."""
        if self.is_asleep:
            return None
        has_slept = self._asleep_since is not None
        if self.probe.missing is not None and not has_slept:
            return self.probe.missing
        return None if self._service.has_workers(self._model) else "no decode worker is connected"

    def _needs_prefill_group(self) -> bool:
        """Whether readiness requires a prefill group. Only until these workers have served their first answer: later, a
        prefill host that is cut off is no reason to reject clients."""
        return self._expected.num_prefill > 0 and not self._expected.has_served


class ClusterReadiness:
    """Ready once each of the models of the start has been ready. From then on, a model that has lost its workers must
    not take the clients of the others away: the cluster stays ready while any of its models is."""

    def __init__(self) -> None:
        self._models: dict[str, ModelReadiness] = {}
        self._starting: set[str] = set()  # those that have never been ready

    def add(self, name: str, model: ModelReadiness, *, is_needed: bool) -> None:
        """With `is_needed`, the cluster waits for the model."""
        self._models[name] = model
        if is_needed:
            self._starting.add(name)

    def remove(self, name: str) -> None:
        self._models.pop(name, None)
        self._starting.discard(name)

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def __getitem__(self, name: str) -> ModelReadiness:
        return self._models[name]

    def unready_because(self) -> str | None:
        """What is missing, of which model; None: the cluster is ready, as one without models is."""
        if not self._models:
            return None
        unready = {name: why for name, model in self._models.items() if (why := model.unready_because()) is not None}
        self._starting &= unready.keys()
        if not self._starting and len(unready) < len(self._models):
            return None
        missing = {name: why for name, why in unready.items() if name in self._starting} or unready
        if len(self._models) == 1:
            return next(iter(missing.values()))
        reasons = [f"model {name}: {why}" for name, why in missing.items()]
        more = f"; and {len(reasons) - MAX_NAMES} more models" if len(reasons) > MAX_NAMES else ""
        return "; ".join(reasons[:MAX_NAMES]) + more
