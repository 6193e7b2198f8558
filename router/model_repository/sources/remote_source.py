"""A repository in an object store or on the Hugging Face Hub. Its models are fetched into this host's model cache, each
when it is first read, and each change of its files into a folder of its own: what is served does not change."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath

from xxhash import xxh3_128

from slipstream.router.model_files.cache.host_cache import HostCache, in_use
from slipstream.router.model_files.cache.version_plan import VersionPlan
from slipstream.router.model_files.sources.open_source import open_source
from slipstream.router.model_files.sources.weights_source import (
    Listing,
    SourceFile,
    SourceRefused,
    WeightsSource,
)
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from slipstream.router.model_repository.sources.repository_watch import ModelStamp

LISTING_AGE_S = 2.0  # the models that are loaded at the start need one listing, not one each
NUM_TRIES = 3  # to hold a folder that other processes remove
NUM_HELD = 2  # folders of a model: what is served while the next one is loaded

log = logging.getLogger(__name__)


class RemoteSource:
    """A `RepositorySource`. Its methods may be called from several threads. The cache keeps the last `NUM_HELD` folders
    of each model for as long as this object lives."""

    def __init__(self, url: WeightsUrl, cache: HostCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._cache = cache
        self._clock = clock
        self._lock = threading.Lock()
        self._listed: tuple[float, WeightsSource, dict[str, list[SourceFile]]] | None = None
        self._held: dict[str, deque[tuple[Path, ExitStack]]] = defaultdict(deque)

    @property
    def place(self) -> str:
        return str(self._url)

    def names(self) -> list[str]:
        return sorted(self._models()[1])

    def folder_of(self, model: str) -> Path | None:
        source, models = self._models()
        if model not in models:
            return None
        files = tuple(models[model])
        plan = VersionPlan(self._url, model, _version(files), files, {})
        for _ in range(NUM_TRIES - 1):
            folder = self._fetch(source, plan)
            if self._hold(model, folder):
                return folder
        return self._fetch(source, plan)

    def stamps(self) -> dict[str, ModelStamp]:
        """There are no times, only a number for all files of a model."""
        return {name: ModelStamp({".": int(_version(files), 16)}) for name, files in self._models()[1].items()}

    def _models(self) -> tuple[WeightsSource, dict[str, list[SourceFile]]]:
        """The files of each model by their names below the repository, and the source that has listed them. A driver
        of an object store remembers its listing, so that each one needs a new source."""
        with self._lock:
            now = self._clock()
            if self._listed is None or now - self._listed[0] > LISTING_AGE_S:
                source = open_source(self._url)
                self._listed = now, source, _by_model(self._url, source.listing())
            return self._listed[1:]

    def _fetch(self, source: WeightsSource, plan: VersionPlan) -> Path:
        folder = self._cache.find(plan)
        if folder is None:
            log.info("fetching model %s of %s: %d files", plan.folder, self._url, len(plan.files))
            folder = self._cache.fetch(source, plan, _show_nothing)
        return folder

    def _hold(self, model: str, folder: Path) -> bool:
        """Keeps the cache from removing a folder while the model may be served from it. False if it is gone."""
        with self._lock:
            held = self._held[model]
            if any(path == folder for path, _ in held):
                return True
            stack = ExitStack()
            if not stack.enter_context(in_use(folder)):
                stack.close()
                return False
            held.append((folder, stack))
            if len(held) > NUM_HELD:
                held.popleft()[1].close()
            return True


def _by_model(url: WeightsUrl, listing: Listing) -> dict[str, list[SourceFile]]:
    """Without files beside the models and hidden folders. Raises SourceRefused for a name that leads elsewhere."""
    models: dict[str, list[SourceFile]] = defaultdict(list)
    for file in listing.files:
        path = PurePosixPath(file.name)
        if path.is_absolute() or ".." in path.parts:
            raise SourceRefused(f"{url}: {file.name!r} is no name of a file in the repository")
        if len(path.parts) > 1 and path.parts[0][0] != ".":
            stamp = file.stamp or listing.revision
            models[path.parts[0]].append(replace(file, stamp=stamp))
    return dict(models)


def _version(files: Iterable[SourceFile]) -> str:
    """Stands for the content of a model."""
    digest = xxh3_128()
    for file in sorted(files, key=lambda file: file.name):
        digest.update(f"{file.name}\0{file.num_bytes}\0{file.stamp}\n".encode())
    return digest.hexdigest()


def _show_nothing(text: str) -> None:
    """The log says when a download begins."""
