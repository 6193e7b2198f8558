"""The language models that a repository names: the router wants them, and the cluster starts workers for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WantedModel:
    """`path` is a directory or an address, as `model.path` of a deployment. `settings` are keys of an entry of `models`
    there, and `engine` keys, that the model's configuration asks for."""

    name: str
    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)


class WantedModels:
    """Those that are wanted now, by name, and why the cluster could not start some of them. `on_failure` is called with
    the name and a sentence when the cluster gives a model up. `revision` grows with each change."""

    def __init__(self, on_failure: Callable[[str, str], None]) -> None:
        self._on_failure = on_failure
        self._models: dict[str, WantedModel] = {}
        self.revision = 0

    @property
    def models(self) -> tuple[WantedModel, ...]:
        return tuple(self._models.values())

    def want(self, model: WantedModel) -> None:
        """Takes the place of one of the same name."""
        if self._models.get(model.name) != model:
            self._models[model.name] = model
            self.revision += 1

    def drop(self, name: str) -> None:
        """Unknown names are ignored."""
        if self._models.pop(name, None) is not None:
            self.revision += 1

    def fail(self, name: str, reason: str) -> None:
        """The cluster has given a model up. One that is not wanted any more is ignored."""
        if name in self._models:
            del self._models[name]
            self.revision += 1
            self._on_failure(name, reason)
