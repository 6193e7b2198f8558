"""Directories of models without their weights, for commands that only check or choose."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_files.cache.outline import write_outline
from slipstream.router.model_files.cache.version_download import in_words
from slipstream.router.model_files.cache.version_plan import plan_version
from slipstream.router.model_files.sources.open_source import open_source
from slipstream.router.model_files.sources.weights_url import WeightsUrl


class Outlines:
    """The directories are removed at the end. `notes` say what a start would download."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._made: dict[tuple[WeightsUrl, str | None], tuple[Path, str]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Outlines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def named(self, sentence: str) -> str:
        """The sentence with addresses in the place of directories that will be gone."""
        for (url, _), (directory, _) in self._made.items():
            sentence = sentence.replace(str(directory), str(url))
        return sentence

    def local(self, url: WeightsUrl, number: str | None, cache: ModelCacheConfig) -> tuple[Path, str]:
        """See `ModelFiles`. Downloads no weights."""
        made = self._made.get((url, number))
        if made is not None:
            return made
        source = open_source(url)
        plan = plan_version(source, number)
        directory = HostCache(cache.path, cache.max_gib).find(plan)
        if directory is None:
            directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="slipstream-outline-")))
            write_outline(source, plan, directory)
            self.notes.append(f"a start fetches {len(plan.files)} files, {in_words(plan.num_bytes)}, from {url}")
        else:
            self.notes.append(f"{url} is in the host's cache, {directory}")
        self._made[url, number] = directory, plan.folder
        return directory, plan.folder
