"""The ways of requests to the versions of each tensor model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.infer.routing.request_mirror import RequestMirror
from slipstream.router.infer.routing.version_choice import Chosen, VersionChoice
from slipstream.router.tensors.infer_request import InferRequest


class VersionRoutes:
    """Of one model."""

    def __init__(self, config: TensorVersionsConfig, former: VersionRoutes | None = None) -> None:
        self.config = config
        mirror = config.mirror
        self.mirror = None if mirror is None else RequestMirror(mirror.version, mirror.percent)
        self._mirrored = "" if mirror is None else mirror.version
        self.choice = VersionChoice(config.split, self._mirrored, config.before)
        if former is not None:
            self.choice.sequences = former.choice.sequences  # which keep the versions with which they have begun
            if former.mirror is not None and former.config.mirror == mirror:
                self.mirror = former.mirror  # which has counted so far

    def choose(self, request: InferRequest, serving: Collection[str]) -> Chosen:
        """For a request that names no version."""
        return self.choice.choose(request, serving)

    def shares(self, serving: Collection[str]) -> dict[str, float]:
        """Of the versions that serve, in any unit."""
        split = self.config.split or {}
        shares = {version: split.get(version, 0.0) for version in serving}
        if any(shares.values()):
            return shares
        highest = max([one for one in serving if one != self._mirrored] or serving, key=int, default="")
        return {version: float(version == highest) for version in serving}


class ModelRoutes:
    """By model. One without any has all requests at its highest version."""

    def __init__(self, configs: Mapping[str, TensorVersionsConfig]) -> None:
        self._routes = {model: VersionRoutes(config) for model, config in configs.items()}

    def of(self, model: str) -> VersionRoutes | None:
        return self._routes.get(model)

    def set(self, model: str, config: TensorVersionsConfig) -> None:
        """They count from the next request. Sequences that have begun keep their version."""
        self._routes[model] = VersionRoutes(config, self._routes.get(model))
