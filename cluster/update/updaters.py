"""The updaters of a cluster: one for each of its models, which are updated independently of each other."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.update.updater import Updater


class Updaters:
    """By the names of the models. Models may be added and removed while the cluster serves."""

    def __init__(self, by_model: dict[str, Updater] | None = None) -> None:
        self._by_model = dict(by_model or {})

    def __iter__(self) -> Iterator[Updater]:
        return iter(list(self._by_model.values()))

    def __contains__(self, model: str) -> bool:
        return model in self._by_model

    def add(self, model: str, updater: Updater) -> None:
        self._by_model[model] = updater

    def discard(self, model: str) -> None:
        self._by_model.pop(model, None)

    def of(self, model: str | None) -> Updater:
        """The updater of this model or, without a name, of the only one. Raises FleetError."""
        if model is None:
            if len(self._by_model) == 1:
                return next(iter(self._by_model.values()))
            if not self._by_model:
                raise FleetError("conflict", "model", "this cluster serves only a model repository")
            raise FleetError("invalid", "model", f"this cluster has several models, say which one: {self._names}")
        updater = self._by_model.get(model)
        if updater is None:
            raise FleetError("unknown", "model", f"there is no model {model!r}; there are: {self._names}")
        return updater

    async def close(self) -> None:
        for updater in self:
            await updater.close()

    @property
    def _names(self) -> str:
        return ", ".join(self._by_model) or "none"
