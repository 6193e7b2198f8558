"""The language models that a repository names: the router wants them, and the cluster starts workers for them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WantedModel:
    """`path` is a directory or an address, as `model.path` of a deployment. `settings` are keys of an entry of `models`
    there, with its sections, that the model's configuration asks for."""

    name: str
    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Further names. Where several models want one, it is that of the latest want."""
        return tuple(self.settings.get("aliases", ()))


@dataclass(frozen=True, slots=True)
class Want:
    """`number` tells it apart from all others, also from those at other routers."""

    number: int
    model: WantedModel


@dataclass(frozen=True, slots=True)
class WantedList:
    """What is wanted at a time, once for each name. It `is_complete` once all models of the repository's start have
    been tried: until then, one that is missing may still come."""

    wants: tuple[Want, ...] = ()
    is_complete: bool = False


class WantedModels:
    """Versions that load or serve want a model, each for itself; of those that want one by the same name, the latest
    counts. `on_failure` is called with a model and a sentence when the cluster gives it up, `on_served` when it serves
    the model as it is wanted."""

    def __init__(
        self, on_failure: Callable[[WantedModel, str], None], on_served: Callable[[], None] = lambda: None
    ) -> None:
        self._on_failure = on_failure
        self._on_served = on_served
        self._served: dict[str, WantedModel] = {}
        self._wants: dict[str, list[Want]] = {}  # the latest is the last one
        self._numbers = itertools.count(time.time_ns())
        self._is_complete = False
        self._changed = asyncio.Event()

    @property
    def current(self) -> WantedList:
        return WantedList(tuple(wants[-1] for wants in self._wants.values()), self._is_complete)

    @property
    def num_wants(self) -> int:
        """Those that were not dropped; 0 when nothing is loaded."""
        return sum(map(len, self._wants.values()))

    def want(self, model: WantedModel) -> Want:
        """Wants a model, until the want is dropped or has failed."""
        want = Want(next(self._numbers), model)
        self._wants.setdefault(model.name, []).append(want)
        self._tell()
        return want

    def drop(self, want: Want) -> None:
        """What wanted it does not any more. One that has failed is ignored: others may want the same model since."""
        wants = self._wants.get(want.model.name, [])
        if want in wants:
            self._keep(want.model.name, [one for one in wants if one != want])

    def fail(self, model: WantedModel, reason: str) -> None:
        """The cluster has given a model up, so that what wanted the same name before counts again. One that is not
        wanted any more is ignored."""
        wants = self._wants.get(model.name, [])
        left = [want for want in wants if want.model != model]
        if len(left) < len(wants):
            self._keep(model.name, left)
            self._on_failure(model, reason)

    def serve(self, model: WantedModel) -> None:
        """The cluster serves the model as it is wanted, in the place of one before that had the name."""
        self._served[model.name] = model
        self._on_served()

    def is_served(self, model: WantedModel) -> bool:
        """Whether what the cluster serves by the name is this one, as far as it has said."""
        return self._served.get(model.name) == model

    def complete(self) -> None:
        """All models of the start have been tried."""
        self._is_complete = True
        self._tell()

    async def other_than(self, known: WantedList | None) -> WantedList:
        """Returns what is wanted once that is something else than what is known."""
        while (found := self.current) == known:
            await self._changed.wait()
        return found

    def _keep(self, name: str, wants: list[Want]) -> None:
        if wants:
            self._wants[name] = wants
        else:
            del self._wants[name]
            self._served.pop(name, None)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
