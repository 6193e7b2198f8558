"""The models of a front process: read from their files, and served as the dispatcher's process says."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from slipstream.router.catalog.catalog import Catalog
from slipstream.router.catalog.model_text import read_served
from slipstream.router.catalog.served_model import ModelSource, ServedModel
from slipstream.router.front.api_front import ApiFront
from slipstream.router.frontends.front_messages import LoadModel, ModelChange, ModelLoaded, NameModel, RemoveModel
from slipstream.router.frontends.front_setup import FrontModel


class FrontModels:
    """`pool` reads and encodes. `report` gets the outcome of each LoadModel."""

    def __init__(self, pool: ThreadPoolExecutor, report: Callable[[ModelLoaded], None]) -> None:
        self._pool = pool
        self._report = report
        self._loaded: dict[str, tuple[ModelSource, ServedModel]] = {}  # and not served yet
        self._texts: dict[str, ModelSource] = {}  # that are served, of versions

    async def catalog(self, models: Iterable[FrontModel]) -> Catalog:
        """Reads the models with which the front begins. Raises OSError or ValueError."""
        catalog = Catalog()
        for model in sorted(models, key=lambda one: bool(one.source.text_of)):  # texts after their models
            served = await self._read(model)
            if model.source.text_of:
                self._texts[model.name] = model.source
                catalog.add_text(model.source.text_of, served)
            else:
                catalog.add(served)
                catalog.entry(model.name).is_leaving = model.is_leaving
        return catalog

    async def apply(self, change: ModelChange, front: ApiFront) -> None:
        """Changes what the front serves. Changes are to be applied in the order in which they come."""
        match change:
            case LoadModel(pickled, number):
                model: FrontModel = pickle.loads(pickled)
                try:
                    self._loaded[model.name] = model.source, replace(await self._read(model), aliases=())
                except (OSError, ValueError) as error:
                    self._report(ModelLoaded(model.name, str(error) or repr(error), number))
                else:
                    self._report(ModelLoaded(model.name, number=number))
            case NameModel(name, aliases, is_leaving):
                if name in self._loaded:
                    self._serve(name, front)
                if name in front.catalog:
                    front.catalog.set_aliases(name, aliases)
                    front.catalog.entry(name).is_leaving = is_leaving
            case RemoveModel(name):
                self._loaded.pop(name, None)
                text = self._texts.pop(name, None)
                if text is not None:
                    front.catalog.remove_text(text.name, text.text_of)
                elif name in front.catalog:
                    front.remove_model(name)

    def _serve(self, name: str, front: ApiFront) -> None:
        source, served = self._loaded.pop(name)
        if source.text_of:
            self._texts[name] = source
            front.catalog.add_text(source.text_of, served)
        elif name in front.catalog:
            front.catalog.set_text(served)
        else:
            front.add_model(served)

    async def _read(self, model: FrontModel) -> ServedModel:
        """Raises OSError or ValueError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, read_served, model.source, model.defaults, self._pool)
