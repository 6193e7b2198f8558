"""Downloads models into this host's cache, with progress at the terminal."""

from __future__ import annotations

import time
from pathlib import Path

from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.terminal.console import Console
from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_files.cache.version_download import in_words
from slipstream.router.model_files.cache.version_plan import plan_version
from slipstream.router.model_files.sources.open_source import open_source
from slipstream.router.model_files.sources.weights_url import WeightsUrl

SAY_EVERY_S = 30.0  # where there is no terminal


class Downloads:
    def __init__(self, terminal: Console) -> None:
        self._terminal = terminal

    def local(self, url: WeightsUrl, number: str | None, cache: ModelCacheConfig) -> tuple[Path, str]:
        """See `ModelFiles`. Returns when all files are there."""
        source, host_cache = open_source(url), HostCache(cache.path, cache.max_gib)
        plan = plan_version(source, number)
        directory = host_cache.find(plan)
        if directory is None:
            self._terminal.say(f"fetching {url}: {len(plan.files)} files, {in_words(plan.num_bytes)}")
            begin_s = said_s = time.monotonic()

            def show(text: str) -> None:
                nonlocal said_s
                self._terminal.pending(text)
                if not self._terminal.is_live and time.monotonic() - said_s >= SAY_EVERY_S:
                    said_s = time.monotonic()
                    self._terminal.say(text)

            directory = host_cache.fetch(source, plan, show)
            self._terminal.say(f"fetched {url} into {directory} in {time.monotonic() - begin_s:.1f} s")
        return directory, plan.folder
