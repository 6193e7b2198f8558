"""Which served model answers for a model of a repository, and which ones the cluster is asked to serve for that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from slipstream.router.catalog.catalog import Catalog
from slipstream.router.language_backends.settings.language_settings import (
    LanguageSettings,
    is_beside,
    is_name,
    path_of,
    unknown_model,
)
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.status.wanted_models import Want, WantedModel, WantedModels

LINK_WAIT_S = 10.0  # for another model of the repository, which is read in some milliseconds
STOPPING = "Unavailable: the server is stopping"


class ServedWorkers(Protocol):
    """What is known of the workers of models: a GenerationService."""

    def has_workers(self, model: str) -> bool: ...


class WorkerChanges(Protocol):
    """A WorkerPort."""

    async def wait_for_change(self) -> None: ...


class ModelDirectories(Protocol):
    """Where served models are read from: RouterModels."""

    def directory_of(self, name: str) -> Path: ...
    def name_at(self, directory: Path) -> str | None:
        """The first one that is read from there."""


class ModelLinks:
    """`named` are the models of the cluster, or their paths, that the deployment sets for models of the repository.
    `wanted` has each model that is in use."""

    def __init__(
        self,
        catalog: Catalog,
        workers: ServedWorkers,
        changes: WorkerChanges,
        directories: ModelDirectories,
        wanted: WantedModels,
        named: Mapping[str, str],
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._changes = changes
        self._directories = directories
        self._wanted = wanted
        self._named = named
        self._own: set[str] = set()  # names that models of the repository have wanted for themselves
        self._links: list[ModelLink] = []  # the latest is the last one
        self._news = asyncio.Event()
        self._failures: list[tuple[WantedModel, str]] = []  # that have not been wanted again
        self._is_closed = False

    async def link(self, draft: ModelDraft, version: str, settings: LanguageSettings) -> ModelLink:
        """Raises LoadError if it cannot be known which model is meant."""
        wanted = await self._meant(draft, version, settings)
        self._failures = [failure for failure in self._failures if failure[0] != wanted]
        link = ModelLink(draft.name, self._wanted.want(wanted), self)
        self._links.append(link)
        self._changed()
        return link

    def failed(self, model: WantedModel, reason: str) -> None:
        """The cluster could not start it."""
        self._failures.append((model, reason))
        self._changed()

    def served(self) -> None:
        """The cluster serves one of them, as it is wanted now."""
        self._changed()

    async def watch(self) -> None:
        """Looks whether models are served as workers come and go. Runs until it is cancelled."""
        while True:
            await self._changes.wait_for_change()
            self._changed()

    def close(self) -> None:
        """Nothing waits for a model any more."""
        self._is_closed = True
        self._changed()

    def serves(self, name: str) -> bool:
        """Whether its requests are answered now, or once a worker of it has been started for them."""
        if name not in self._catalog:
            return False
        entry = self._catalog.entry(name)
        return not entry.is_leaving and (self._workers.has_workers(name) or not entry.wants_workers)

    async def wait_until_served(self, model: WantedModel) -> None:
        """Raises LoadError."""
        while not (self.serves(model.name) and self._has_followed(model)):
            reason = next((reason for failed, reason in self._failures if failed == model), None)
            if reason is not None:
                raise LoadError(f"Unavailable: {reason}")
            if self._is_closed:
                raise LoadError(STOPPING)
            await self._news.wait()

    def _has_followed(self, model: WantedModel) -> bool:
        """Whether what is served by the name is this model, and not another one that it is to follow."""
        follows_another = any(link.model == model.name and link.want.model != model for link in self._links)
        return not follows_another or self._wanted.is_served(model)

    def release(self, link: ModelLink) -> None:
        self._links.remove(link)
        self._wanted.drop(link.want)

    def _changed(self) -> None:
        self._news.set()
        self._news.clear()

    async def _meant(self, draft: ModelDraft, version: str, settings: LanguageSettings) -> WantedModel:
        named = self._named.get(draft.name, "")
        for asked in [named] if named else settings.asked:
            if self._is_of_cluster(asked):
                return WantedModel(asked, str(self._directories.directory_of(asked)))
            if (named or not settings.path) and is_beside(asked, draft):
                return await self._of_repository(draft.name, asked)
        if named and is_name(named):
            text = f"repository.language_models.{draft.name} is {named!r}, and no such model is served"
            raise LoadError(f"Invalid argument: {text}")
        own = draft.name if len(draft.versions) == 1 else f"{draft.name}.{version}"
        path = path_of(named, draft.folder / version) if named else settings.path
        at = None if not path or own in self._catalog else self._directories.name_at(Path(path))
        if at is not None and self._is_of_cluster(at):
            return WantedModel(at, path)
        if not path and own in self._catalog:
            path = str(self._directories.directory_of(own))
        if not path:
            if settings.fault:
                raise LoadError(f"Internal: {settings.fault}")
            raise LoadError(f"Invalid argument: {unknown_model(draft.name, [named] if named else settings.asked)}")
        self._own.add(own)
        is_highest = len(draft.versions) > 1 and version == draft.versions[-1]
        aliases = {"aliases": [draft.name]} if is_highest else {}
        return WantedModel(own, path, {**settings.engine, **aliases})

    def _is_of_cluster(self, name: str) -> bool:
        """Whether a model is served, and not only for the repository."""
        return name in self._catalog and name not in self._own

    async def _of_repository(self, model: str, named: str) -> WantedModel:
        """What serves another model of the repository, which may be loaded at the same time. Raises LoadError."""
        try:
            async with asyncio.timeout(LINK_WAIT_S):
                while (found := self._latest_of(named)) is None:
                    await self._news.wait()
        except TimeoutError:
            text = f"the language model of '{model}' is to be {named!r}, a model of the repository that is not loaded"
            raise LoadError(f"Unavailable: {text}") from None
        return found

    def _latest_of(self, model: str) -> WantedModel | None:
        """What serves a model of the repository now."""
        return next((link.want.model for link in reversed(self._links) if link.of == model), None)


class ModelLink:
    """The served model `model` that a version `of` a model of the repository uses, until `release`."""

    def __init__(self, of: str, want: Want, links: ModelLinks) -> None:
        self.of = of
        self.model = want.model.name
        self.want = want
        self._links = links

    @property
    def serves(self) -> bool:
        return self._links.serves(self.model)

    async def wait_until_served(self) -> None:
        """Raises LoadError if the cluster cannot start it."""
        await self._links.wait_until_served(self.want.model)

    def release(self) -> None:
        self._links.release(self)
