"""The models that a router serves: what is read of them, and how they come, change and go while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from slipstream.router.catalog.catalog import Catalog, NameTakenError, UnknownNameError
from slipstream.router.catalog.model_text import ModelText, read_model, served_by
from slipstream.router.catalog.served_model import ModelSource, ServedModel
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.readiness import ClusterReadiness, ModelReadiness
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.front.front import Front
from slipstream.router.frontends.front_pool import FrontPool
from slipstream.router.frontends.front_setup import FrontModel
from slipstream.router.model_files.text_copy import keep_text
from slipstream.router.process.background_task import cancel_and_wait
from slipstream.router.protocol.model_id import ModelId
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.text.unknown_tokens import warning_about

log = logging.getLogger(__name__)


class RouterModels:
    """Life cycle: `read`; then `serve_in` is given what serves them, and `serve_by_fronts` the front processes if there
    are any; then `begin_probes`, and all the others; `end_probes`. `dispatch` is that of models that have none of
    their own. A version has the text of its model (see `ModelText`), or one of its own. Raises ValueError if two have
    the same name."""

    def __init__(self, models: Sequence[ModelSource], dispatch: DispatchConfig) -> None:
        self._sources = {source.name: source for source in models if not source.text_of}
        self._text_sources = {source.key: source for source in models if source.text_of}  # of versions
        if len(self._sources) + len(self._text_sources) != len(models):
            raise ValueError(f"models need different names, got {', '.join(source.key for source in models)}")
        self._dispatch = dispatch
        self._expected = {source.name: expected_at_start(source) for source in models}
        self._texts: dict[str, ModelText] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}
        self.readiness = ClusterReadiness()
        self._fronts: FrontPool | None = None
        self._pool: ThreadPoolExecutor
        self._service: GenerationService
        self._front: Front

    @property
    def single(self) -> str:
        """The name of the model, if there is one; "" if there are several."""
        return next(iter(self._sources)) if len(self._sources) == 1 else ""

    @property
    def dispatch_configs(self) -> dict[str, DispatchConfig]:
        """Of each model, by name."""
        return {name: self._dispatch_of(source) for name, source in self._sources.items()}

    @property
    def max_positions(self) -> dict[str, int]:
        """The longest sequence that each model allows, where its config says so."""
        longest = {name: self._texts[name].max_positions for name in self._sources}
        return {name: length for name, length in longest.items() if length is not None}

    def directory_of(self, name: str) -> Path:
        """Where a served model is read from. Raises KeyError."""
        return self._sources[name].directory

    def name_at(self, directory: Path) -> str | None:
        """The first model that is read from there."""
        return next((name for name, one in self._sources.items() if one.directory.resolve() == directory), None)

    async def read(self, pool: ThreadPoolExecutor) -> None:
        """Reads what the HTTP side needs of all models and texts of versions. Raises ValueError, OSError."""
        self._pool = pool
        for source in (*self._sources.values(), *self._text_sources.values()):
            self._texts[source.key] = await self._read(source)

    def catalog(self) -> Catalog:
        """A new catalog of all that has been read."""
        catalog = Catalog.of(map(self._served, self._sources))
        for source in self._text_sources.values():
            catalog.add_text(source.text_of, served_by(source, self._texts[source.key]))
        return catalog

    def serve_in(self, service: GenerationService) -> None:
        self._service = service
        for name, source in self._sources.items():
            service.set_weight(name, source.weight)
            self.readiness.add(name, ModelReadiness(service, name, self._expected[name]), is_needed=True)

    def serve_by(self, front: Front) -> None:
        self._front = front

    def serve_by_fronts(self, fronts: FrontPool) -> None:
        self._fronts = fronts

    def front_models(self) -> dict[str, FrontModel]:
        """All models and texts of versions as the fronts are to serve them."""
        models = {name: self._front_model(name) for name in self._sources}
        texts = {key: FrontModel(source, self._texts[key].defaults) for key, source in self._text_sources.items()}
        return models | texts

    async def keep_texts(self) -> None:
        """Copies the files of texts, so that the next router finds them if others take their place."""
        for source in (*self._sources.values(), *self._text_sources.values()):
            await asyncio.to_thread(keep_text, source.directory, source.manifests)

    def begin_probes(self) -> None:
        for name in self._sources:
            self._begin_probe(name)

    async def end_probes(self) -> None:
        for probe in self._probes.values():
            await cancel_and_wait(probe)

    async def add(self, source: ModelSource) -> None:
        """Serves another model from now on, in all front processes; the others are not affected. Raises NameTakenError
        (a ValueError), ValueError if a front process cannot read it, and what `start` raises if its directory cannot be
        used; then nothing has changed."""
        if source.name in self._sources:
            raise NameTakenError(source.name, source.name)
        names = (source.name, *source.aliases)
        self._front.catalog.check_free(names)
        self._sources[source.name] = source
        fronts = self._fronts
        try:
            text = await self._read(source)
            await asyncio.to_thread(keep_text, source.directory, source.manifests)
            if fronts is not None:
                await fronts.load_model(FrontModel(source, text.defaults))
            self._front.catalog.check_free(names)  # one may have been taken meanwhile
            self._service.add_model(source.name, self._dispatch_of(source))
            self._service.set_weight(source.name, source.weight)
        except BaseException:
            del self._sources[source.name]
            if fronts is not None:
                fronts.remove_model(source.name)
            raise
        self._texts[source.name] = text
        self._front.add_model(self._served(source.name))
        if fronts is not None:
            fronts.serve_model(self._front_model(source.name))
        expected = self._expected.setdefault(source.name, expected_at_start(source))
        self.readiness.add(source.name, ModelReadiness(self._service, source.name, expected), is_needed=False)
        self._expect(source.name, expected)
        self._begin_probe(source.name)

    async def remove(self, name: str, deadline_s: float | None = None) -> None:
        """Drains a model: new requests get a 404, those that wait or run end first, then its workers are drained. After
        `deadline_s` seconds (None: never) the rest ends by an error. Raises UnknownNameError."""
        self._front.catalog.entry(name).is_leaving = True
        fronts = self._fronts
        if fronts is not None:
            fronts.model_leaves(name)
        await self._service.remove_model(name, deadline_s)
        for source in [one for one in self._text_sources.values() if one.name == name]:
            self.remove_text(name, source.text_of)
        self._front.remove_model(name)
        if fronts is not None:
            fronts.remove_model(name)
        self._sources.pop(name, None)
        self._texts.pop(name, None)
        self.readiness.remove(name)
        self._expected.pop(name, None)
        probe = self._probes.pop(name, None)
        if probe is not None:
            await cancel_and_wait(probe)

    async def add_text(self, source: ModelSource) -> None:
        """From now on a version has a text of its own, in all front processes: tokenizer, chat template and defaults
        that are others than those of its model. Raises UnknownNameError, and what `start` raises if its directory
        cannot be used; then nothing has changed."""
        self._front.catalog.entry(source.name)
        fronts = self._fronts
        text = await self._read(source)
        await asyncio.to_thread(keep_text, source.directory, source.manifests)
        if fronts is not None:
            await fronts.load_model(FrontModel(source, text.defaults))
        self._front.catalog.entry(source.name)  # it may have been removed meanwhile
        self._text_sources[source.key], self._texts[source.key] = source, text
        self._front.catalog.add_text(source.text_of, served_by(source, text))
        if fronts is not None:
            fronts.serve_model(FrontModel(source, text.defaults))

    def remove_text(self, name: str, version: str) -> None:
        """The version is not served any more, or its text has become that of its model. Unknown ones are ignored."""
        key = str(ModelId(name, version))
        if self._text_sources.pop(key, None) is not None:
            del self._texts[key]
            self._front.catalog.remove_text(name, version)
            if self._fronts is not None:
                self._fronts.remove_model(key)

    async def set_text(self, source: ModelSource) -> None:
        """Gives a model another text, which all versions have that have none of their own. Raises what `add_text`
        raises."""
        before = self._sources.get(source.name)
        if before is None:
            raise UnknownNameError(source.name)
        now = replace(before, directory=source.directory, manifests=source.manifests)
        now = replace(now, generation_config=source.generation_config, content_format=source.content_format)
        now = replace(now, parsers=source.parsers)
        text = await self._read(now)
        await asyncio.to_thread(keep_text, now.directory, now.manifests)
        if self._fronts is not None:
            await self._fronts.load_model(FrontModel(now, text.defaults))
        if source.name not in self._sources:  # removed meanwhile
            raise UnknownNameError(source.name)
        now = replace(now, aliases=self._sources[source.name].aliases)
        self._sources[source.name], self._texts[source.name] = now, text
        self._front.catalog.set_text(served_by(now, text))
        if self._fronts is not None:
            self._fronts.serve_model(self._front_model(source.name))

    def set_aliases(self, name: str, aliases: Sequence[str]) -> None:
        """Gives a model these aliases and no others, in all front processes; one that another model has moves to this
        one. Raises UnknownNameError, NameTakenError; then nothing has changed."""
        self._front.catalog.set_aliases(name, aliases)
        for entry in self._front.catalog:
            model = entry.model
            self._sources[model.name] = replace(self._sources[model.name], aliases=model.aliases)
        if self._fronts is not None:
            self._fronts.set_aliases(name, self._sources[name].aliases)

    def expect(self, expected: Mapping[str, ExpectedWorkers]) -> None:
        """Sets how many workers are wanted of each of these models; that of a model to come counts once it is added.
        Until the first decode worker connects, requests are accepted and wait (also at a restarted router). If no
        decode worker is wanted, the model counts as ready until one has connected."""
        for name, workers in expected.items():
            self._expected[name] = workers
            if name in self.readiness:
                self._expect(name, workers)

    def _expect(self, name: str, expected: ExpectedWorkers) -> None:
        self._service.refuse_without_workers(name, expected.hindrance)
        longest = expected.max_model_len or self._texts[name].max_positions
        if longest is not None:
            self._service.expect_max_model_len(name, longest)
        self.readiness[name].expect(expected)
        self._front.catalog.entry(name).wants_workers = expected.num_decode > 0

    async def _read(self, source: ModelSource) -> ModelText:
        """Reads what the HTTP side needs of a model, without holding up the event loop. Raises ValueError, OSError."""
        # Not in the pool: while a large tokenizer is read there, the prompts of other models would wait.
        text = await asyncio.to_thread(read_model, source, self._pool)
        if text.tokenizer.unknown_to_model:
            log.warning("%s", warning_about(text.tokenizer.unknown_to_model, text.tokenizer.vocab_size))
        if text.defaults.recommended:
            log.info("defaults of requests by generation_config.json: %s", text.defaults.recommended)
        return text

    def _dispatch_of(self, source: ModelSource) -> DispatchConfig:
        return source.dispatch if source.dispatch is not None else self._dispatch

    def _served(self, name: str) -> ServedModel:
        return served_by(self._sources[name], self._texts[name])

    def _front_model(self, name: str) -> FrontModel:
        """A model as the fronts are to serve it."""
        source, defaults = self._sources[name], self._texts[name].defaults
        longest, versions = self._service.max_model_len_of(name), self._service.versions_of(name)
        shares = tuple(self._service.shares_of(name).items())
        is_leaving, abilities = self._front.catalog.entry(name).is_leaving, self._service.abilities_of(name)
        return FrontModel(source, defaults, longest, versions, is_leaving, shares, abilities)

    def _begin_probe(self, name: str) -> None:
        probe = self._probes[name] = asyncio.create_task(self.readiness[name].probe.run())
        probe.add_done_callback(partial(log_failure, name))


def expected_at_start(source: ModelSource) -> ExpectedWorkers:
    """Until a supervisor says more."""
    return ExpectedWorkers(num_prefill=int(source.has_prefill_pool))


def log_failure(name: str, task: asyncio.Task[None]) -> None:
    """Log the exception of a task. Without this, the log would not say why the router never becomes ready."""
    if not task.cancelled() and (error := task.exception()) is not None:
        message = "the request that proves readiness of model %r ended with a bug: it stays unready"
        log.error(message, name, exc_info=error)
