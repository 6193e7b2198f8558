"""Downloads models into this host's cache, with progress at the terminal."""

from __future__ import annotations

import time
from pathlib import Path

from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.terminal.console import Console
from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_files.cache.version_download import DownloadFailed, Show, in_words
from slipstream.router.model_files.cache.version_plan import VersionPlan, plan_version
from slipstream.router.model_files.model_origin import ModelOrigin
from slipstream.router.model_files.sources.open_source import open_source
from slipstream.router.model_files.sources.weights_source import SourceUnreachable, WeightsSource
from slipstream.router.model_files.sources.weights_url import WeightsUrl

SAY_EVERY_S = 30.0  # where there is no terminal


class Downloads:
    """If a source does not answer, the version that it had before is taken from the cache, unless that
    `must_be_newest`: a cluster starts without the source, but is not updated without it."""

    def __init__(self, terminal: Console, *, must_be_newest: bool = True) -> None:
        self._terminal = terminal
        self._must_be_newest = must_be_newest
        self._is_abandoned = False

    def abandon(self) -> None:
        """Ends running downloads, in other threads, with an error; the next one goes on with what they have fetched."""
        self._is_abandoned = True

    def local(self, url: WeightsUrl, number: str | None, cache: ModelCacheConfig) -> tuple[Path, str]:
        """See `ModelFiles`. Returns when all files are there."""
        host_cache = HostCache(cache.path, cache.max_gib)
        last = host_cache.last(url, number)
        if last is not None and url.is_pinned:
            return last, _folder(last)
        source = open_source(url)
        try:
            plan = plan_version(source, number)
        except SourceUnreachable as error:
            if last is None or self._must_be_newest:
                raise
            self._terminal.say(f"slipstream: warning: {error}; what it had before is served, {last}")
            return last, _folder(last)
        directory = host_cache.find(plan)
        if directory is None:
            directory = self._fetch(host_cache, source, plan, url)
        host_cache.note(url, number, directory)
        return directory, plan.folder

    def _fetch(self, cache: HostCache, source: WeightsSource, plan: VersionPlan, url: WeightsUrl) -> Path:
        begin_s = time.monotonic()
        self._terminal.say(f"fetching {url}: {len(plan.files)} files, {in_words(plan.num_bytes)}")
        directory = cache.fetch(source, plan, self._show())
        self._terminal.say(f"fetched {url} into {directory} in {time.monotonic() - begin_s:.1f} s")
        return directory

    def _show(self) -> Show:
        """At a terminal all the time, elsewhere a line now and then."""
        next_s = time.monotonic() + SAY_EVERY_S

        def show(text: str) -> None:
            nonlocal next_s
            if self._is_abandoned:
                raise DownloadFailed("the download was abandoned, because the cluster ends")
            self._terminal.pending(text)
            if not self._terminal.is_live and time.monotonic() >= next_s:
                next_s = time.monotonic() + SAY_EVERY_S
                self._terminal.say(text)

        return show


def _folder(directory: Path) -> str:
    origin = ModelOrigin.read(directory)
    return "" if origin is None else origin.folder
